"""The job: list, plan, write shards, finish. `run` is what `tfpipe shard`, `reshard` and `merge` call.

ListShards | WriteShards | FinishDataset        a line with one leaf, so that every runner executes all of it
"""

import contextlib
import re
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from beam_jobs.config import ShardConfig
from beam_jobs.list_and_plan import plan_shards
from beam_jobs.plan.split_and_shard import Plan
from beam_jobs.process_pool import kill_all
from beam_jobs.runners import dask, dataflow, portable
from beam_jobs.runners.base import ShardObserver
from beam_jobs.runners.local import fail_on_worker_death, is_local, local_runner, parse_options, pool_workers
from beam_jobs.runners.metrics import read_metrics
from beam_jobs.shards.output_dir import open_work
from beam_jobs.shards.progress import LIST_EVERY_S, progress_folder, read_finished, read_progress
from beam_jobs.shards.work_dir import PlanHeader, WorkDir
from beam_jobs.shards.worker_check import Agreement, not_installed
from beam_jobs.storage import filesystem
from beam_jobs.transforms import FinishDataset, JobSettings, ListShards, WriteShards, finish
from tfpipe import errors
from tfpipe.format import file_names, manifest_json
from tfpipe.format.manifest import Manifest
from tfpipe.system.host_limits import usable_cpus
from tfpipe.system.progress import poll_progress


@dataclass(frozen=True, slots=True)
class ShardResult:
    """What a run did: the dataset, the shards it found finished, and its time in seconds, planning included."""

    manifest: Manifest
    kept_shards: int
    seconds: float

    @property
    def images_per_second(self) -> float:
        """Images over the whole run, start-up and planning included."""
        images = sum(split.records for split in self.manifest.splits.values()) + self.manifest.quarantined
        return images / self.seconds


def run(config: ShardConfig, beam_args: Sequence[str] = (), observer: ShardObserver | None = None) -> ShardResult:
    """Makes the dataset, or what an earlier run of the same command left to make.

    Args:
        config: What is asked for.
        beam_args: Arguments for Beam, such as `--runner=DataflowRunner`.
        observer: The object that is told how far the job is.

    Raises:
        ConfigError: An option does not go with the input or the output.
        DataError: The input cannot be used, the output cannot be written, too many images are bad, or a worker died.
    """
    observer, started = observer or ShardObserver(), time.monotonic()
    options = parse_options(beam_args)  # a wrong one is better said before the planning than after it
    if dataflow.is_dataflow(options):
        dataflow.check_options(config, options)
    elif dask.is_dask(options):
        dask.check_options(config, options)
    elif portable.is_portable(options):
        portable.check_options(options)
    planned = plan_shards(config, beam_args, observer)
    observer.plan(planned)
    with open_work(config, planned) as work:
        finished = work.finished()
        job = _Job(config, work, work.header(), planned, options, tuple(beam_args))
        if dataflow.is_dataflow(options):
            job.run_on_dataflow(observer)
        else:
            with progress_folder(work) as folder:
                replace(job, work=replace(work, progress=folder)).run(observer)
        # A bundle that is tried again finds what this run had made.
        kept = len(work.kept() & finished)
        manifest = manifest_json.loads(filesystem.read_bytes(work.target(file_names.MANIFEST)).decode())
    return ShardResult(manifest, kept, time.monotonic() - started)


def build(pipeline: beam.Pipeline, num_shards: int, settings: JobSettings, *, on_dask: bool = False) -> None:
    """The whole graph; `on_dask`, which neither spreads nor gathers well, without the end, and the rows come out."""
    shards = pipeline | "List shards" >> ListShards(num_shards, count_here=on_dask)
    rows = shards | "Write shards" >> WriteShards(settings)
    if not on_dask:
        _ = rows | "Finish dataset" >> FinishDataset(settings)


@dataclass(frozen=True)
class _Job:
    """A planned job, ready to run."""

    config: ShardConfig
    work: WorkDir
    header: PlanHeader
    plan: Plan
    options: PipelineOptions
    beam_args: tuple[str, ...]

    def run(self, observer: ShardObserver) -> None:
        """Runs it to its end, with which the process that started it ends too; its errors come as ours."""
        with self._watched(observer), _our_errors():
            if dask.is_dask(self.options):
                with dask.prepared(self.options, self.config.workers, len(self.plan.shards)):
                    rows = dask.wait(self._start())
                with filesystem.explain_os_errors(f"write to {self.work.output}"):
                    finish(rows, self._settings())
            elif portable.is_portable(self.options):
                with portable.prepared(self.options, _find_in_text):
                    portable.wait(self._start())
            else:
                self._start().wait_until_finish()

    def _watched(self, observer: ShardObserver) -> contextlib.AbstractContextManager[None]:
        if filesystem.is_remote(self.work.output) and not is_local(self.options):
            return poll_progress(partial(read_finished, self.work, self.header), observer, LIST_EVERY_S)
        return poll_progress(partial(read_progress, self.work, self.header), observer)

    def run_on_dataflow(self, observer: ShardObserver) -> None:
        """The same as a job of the service, whose metrics say how far it is."""
        shards = len(self.plan.shards)
        with dataflow.explain_errors(_find_in_text):
            with dataflow.prepared(self.options, self.work, self.plan.listing.name, shards):
                result = self._start()
            observer.submitted(dataflow.submitted_job(result, self.options))
            look = partial(read_metrics, result, self.plan.num_images, shards)
            with poll_progress(look, observer, dataflow.METRICS_EVERY_S):
                dataflow.wait(result)

    def _start(self) -> Any:
        """Hands the graph to its runner; one on this machine comes back when it is done."""
        settings = self._settings()  # before `local_runner`, which rewrites the mode that it looks at
        runner, on_dask = None, dask.is_dask(self.options)
        if is_local(self.options):
            runner = local_runner(self.options, self._workers)
        elif on_dask:
            runner = dask.new_runner()
        pipeline = beam.Pipeline(runner=runner, options=self.options)
        build(pipeline, len(self.plan.shards), settings, on_dask=on_dask)
        return pipeline.run()

    def _settings(self) -> JobSettings:
        remote = any(map(filesystem.is_remote, (*self.config.inputs, self.work.output)))
        return JobSettings(
            output=self.work.output,
            max_bad=self.config.max_bad_images(self.plan.num_images),
            workers=self._pool_workers(),
            progress=self.work.progress,
            file_options=self.beam_args if remote else (),
            # Dataflow gets this very tfpipe, and the image libraries that its workers' image has.
            agreement=Agreement.on(self.header, codecs=not dataflow.is_dataflow(self.options)),
        )

    @property
    def _workers(self) -> int:
        return self.config.workers or usable_cpus()

    def _pool_workers(self) -> int:
        """Processes that each Beam worker is to start."""
        if is_local(self.options):
            return pool_workers(self.options, self._workers)
        if portable.is_portable(self.options):
            return self._workers if portable.is_loopback(self.options) else self.config.workers
        return 0


@contextlib.contextmanager
def _our_errors() -> Iterator[None]:
    """Takes ours out of what Beam makes of them, and leaves no worker behind."""
    try:
        with fail_on_worker_death():
            yield
    except errors.TfpipeError as error:
        raise _plain(error) from error
    except (RuntimeError, ImportError) as error:  # how Beam hands on an interruption, and what came from elsewhere
        if str(error).startswith("KeyboardInterrupt"):
            raise KeyboardInterrupt from error
        known = _find_in_text("".join(traceback.format_exception(error)))
        if known is None:
            raise
        raise known from error
    finally:
        kill_all()


def _plain(error: errors.TfpipeError) -> errors.TfpipeError:
    """Without what Beam adds to a message: where in the graph it arose."""
    return type(error)(re.sub(r" \[while running '.*'\]$", "", str(error), flags=re.DOTALL))


def _find_in_text(text: str) -> errors.TfpipeError | None:
    """One of our errors, out of a traceback that came as text."""
    found = re.findall(r"^tfpipe\.errors\.(\w+): (.*?)(?: \[while running '.*'\])?$", text, flags=re.MULTILINE)
    if found:
        name, message = found[0]
        return getattr(errors, name, errors.DataError)(message)
    return not_installed(text)


if __name__ == "__main__":
    from beam_jobs import __main__

    # Worker processes load what a command was started as, unless it has no name: this one would load Beam for nothing.
    __spec__ = None  # type: ignore[assignment]
    del __file__
    __main__.main()
