"""The job: list, plan, write shards, finish. `run` is what `tfpipe shard`, `reshard` and `merge` call.

ListShards | WriteShards | FinishDataset        a line with one leaf, so that every runner executes all of it
"""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import apache_beam as beam
from apache_beam.metrics import MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions

from beam_jobs import files
from beam_jobs.config import ShardConfig
from beam_jobs.local import fail_on_worker_death, is_local, local_runner, parse_options, pool_workers
from beam_jobs.plan import Plan
from beam_jobs.planning import plan_shards
from beam_jobs.pool import kill_all
from beam_jobs.prepare import open_work
from beam_jobs.progress import Progress, progress_folder, watch
from beam_jobs.transforms import KEPT_COUNTER, FinishDataset, JobSettings, ListShards, WriteShards
from beam_jobs.work import Work
from tfpipe import errors
from tfpipe.format import manifest_json, naming
from tfpipe.format.manifest import Manifest
from tfpipe.machine import usable_cpus


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


def run(
    config: ShardConfig,
    beam_args: Sequence[str] = (),
    on_progress: Callable[[Progress], None] | None = None,
    on_plan: Callable[[Plan], None] | None = None,
) -> ShardResult:
    """Makes the dataset, or what an earlier run of the same command left to make.

    Args:
        config: What is asked for.
        beam_args: Arguments for Beam, such as `--runner=DataflowRunner`.
        on_progress: Called about twice a second from another thread.
        on_plan: Called once, before anything is written.

    Raises:
        ConfigError: An option does not go with the input or the output.
        DataError: The input cannot be used, the output cannot be written, too many images are bad, or a worker died.
    """
    started = time.monotonic()
    options = parse_options(beam_args)  # a wrong one is better said before the planning than after it
    planned = plan_shards(config, beam_args)
    if on_plan is not None:
        on_plan(planned)
    with open_work(config, planned) as prepared, progress_folder(prepared) as folder:
        work = replace(prepared, progress=folder)
        with watch(work, work.header(), on_progress):
            kept = _run_graph(config, work, planned, options, tuple(beam_args))
        manifest = manifest_json.loads(files.read_bytes(work.target(naming.MANIFEST)).decode())
    return ShardResult(manifest, kept, time.monotonic() - started)


def build(pipeline: beam.Pipeline, num_shards: int, settings: JobSettings) -> None:
    """The whole graph."""
    _ = (
        pipeline
        | "List shards" >> ListShards(num_shards)
        | "Write shards" >> WriteShards(settings)
        | "Finish dataset" >> FinishDataset(settings)
    )


def _run_graph(
    config: ShardConfig, work: Work, plan: Plan, options: PipelineOptions, beam_args: tuple[str, ...]
) -> int:
    """Runs the graph to its end; its errors come as ours. Returns how many shards an earlier run had finished."""
    workers = config.workers or usable_cpus()
    local = is_local(options)
    settings = JobSettings(
        output=work.output,
        max_bad=config.max_bad_images(plan.num_images),
        workers=pool_workers(options, workers) if local else 0,
        progress=work.progress,
        file_options=beam_args if any(map(files.is_remote, (*config.inputs, work.output))) else (),
    )
    pipeline = beam.Pipeline(runner=local_runner(options, workers) if local else None, options=options)
    build(pipeline, len(plan.shards), settings)
    try:
        with fail_on_worker_death():
            result = pipeline.run()
            result.wait_until_finish()
    except errors.TfpipeError as error:
        raise _plain(error) from error
    except RuntimeError as error:  # how Beam hands on an interruption, and what was raised in another process
        if str(error).startswith("KeyboardInterrupt"):
            raise KeyboardInterrupt from error
        known = _find_in_text(str(error))
        if known is None:
            raise
        raise known from error
    finally:
        kill_all()
    counters = result.metrics().query(MetricsFilter().with_name(KEPT_COUNTER))["counters"]
    return sum(counter.result for counter in counters)


def _plain(error: errors.TfpipeError) -> errors.TfpipeError:
    """Without what Beam adds to a message: where in the graph it arose."""
    return type(error)(re.sub(r" \[while running '.*'\]$", "", str(error), flags=re.DOTALL))


def _find_in_text(text: str) -> errors.TfpipeError | None:
    """One of our errors, out of a traceback that came as text."""
    found = re.findall(r"^tfpipe\.errors\.(\w+): (.*?)(?: \[while running '.*'\])?$", text, flags=re.MULTILINE)
    if not found:
        return None
    name, message = found[0]
    return getattr(errors, name, errors.DataError)(message)
