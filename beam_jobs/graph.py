"""The Beam graph of a job, 0 -> numbers of shards -> spread -> write shards -> gather -> finish, and its runner.

The plan and the shards are files, so the graph is as small for a billion images as for ten.

Beam's default runner first tries to download a Go program, and waits forever behind a proxy that does not answer. So
the runner is Beam's `FnApiRunner`, which runs on this machine, unless `--runner` names another.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import partial, reduce
from operator import iadd
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions
from apache_beam.portability.api import beam_provision_api_pb2
from apache_beam.runners.portability.fn_api_runner.fn_runner import ExtendedProvisionInfo, FnApiRunner
from apache_beam.runners.runner import create_runner
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue
from google.protobuf import json_format, struct_pb2

from beam_jobs.runners.base import LocalRunner, Runner, ShardObserver
from beam_jobs.runners.beam_errors import unwrap_errors
from beam_jobs.runners.dataflow import DataflowRunner
from beam_jobs.shards.job import GatheredShards, Job, finish, stop_if_bad, write_one, write_shards
from tfpipe.errors import ConfigError, first_line
from tfpipe.writer.written_shard import WrittenShard


def run(job: Job, runner: Runner, observer: ShardObserver) -> None:
    """Runs a job as a graph."""
    with runner.watch(job, observer), unwrap_errors(explains_all=runner.explains_all), runner.prepare(job):
        pipeline = beam.Pipeline(runner=runner.make_beam_runner(job), options=runner.options)
        add_steps(pipeline | "Create" >> beam.Create([0], reshuffle=False), job)
        runner.submit(pipeline, observer)
        runner.wait()


def add_steps(start: Any, job: Job) -> Any:
    """Adds the steps of a job to a graph.

    Args:
        start: A collection of one element, whose value is not used.
        job: The job.
    """
    numbers = start | "Number shards" >> beam.FlatMap(partial(_count_up, job))
    written = numbers | "Spread shards" >> beam.Reshuffle() | "Write shards" >> beam.ParDo(_WriteFn(job))
    gathered = written | "Gather shards" >> beam.CombineGlobally(_gather)
    return gathered | "Write manifest" >> beam.Map(partial(finish, job))


def _count_up(job: Job, _: int) -> Iterable[int]:
    return range(len(job.header.shards))


def _gather(written: Iterable[Any]) -> Any:  # without type hints, which Beam would use
    return reduce(iadd, written, GatheredShards())


_COUNTED = ("images", "bytes", "bad", "unreadable", "shards", "kept")
_COUNTERS = {name: Metrics.counter("tfpipe", name) for name in _COUNTED}
_IMAGE_BYTES, _IMAGE_MS = (Metrics.distribution("tfpipe", name) for name in ("image_bytes", "image_ms"))


def _count_image(num_bytes: int, seconds: float, bad_kind: str | None) -> None:
    """Adds one image to Beam's counters when it is done; `bad_kind` is None for a good image."""
    _COUNTERS["images"].inc()
    _COUNTERS["bytes"].inc(num_bytes)
    _IMAGE_BYTES.update(num_bytes)
    _IMAGE_MS.update(round(seconds * 1000))
    if bad_kind is not None:
        _COUNTERS[bad_kind].inc()


def _count_shard(shard: WrittenShard, *, by_image: bool) -> None:
    """Adds one finished shard to Beam's counters, and its images unless `_count_image` has counted them.

    A pool of processes on this machine can tell Beam about images only at the end of their shard.
    """
    _COUNTERS["shards"].inc()
    _COUNTERS["kept"].inc(int(shard.kept))
    if shard.kept or not by_image:
        _COUNTERS["images"].inc(shard.info.records + shard.num_left_out)
        for line in shard.left_out:
            _COUNTERS[line["kind"]].inc()


class _WriteFn(beam.DoFn):
    """The step that writes shards: each in the Beam worker's process, or a whole bundle in a pool of processes."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job

    def start_bundle(self) -> None:
        self._waiting: list[int] = []
        self._bad_shards: list[WrittenShard] = []

    def process(self, number: int) -> Iterator[WrittenShard]:
        if self._job.workers:
            self._waiting.append(number)
        else:
            shard = write_one(self._job, number, _count_image)
            _count_shard(shard, by_image=True)
            stop_if_bad(self._job, shard, self._bad_shards)
            yield shard

    def finish_bundle(self) -> Iterator[WindowedValue]:
        if not self._waiting:
            return
        window = GlobalWindow()
        gathered = GatheredShards()  # of the whole bundle: the results of many shards would take memory
        for shard in write_shards(self._job, self._waiting):
            _count_shard(shard, by_image=False)
            gathered += shard
        yield WindowedValue(gathered, window.max_timestamp(), (window,))


_SILENT = str(logging.CRITICAL + 1)  # an interrupted worker would print its traceback as critical


class DirectRunner(LocalRunner):
    """A graph on this machine. A pool of processes writes the shards, unless Beam's options ask for Beam's workers."""

    def __init__(self, options: PipelineOptions) -> None:
        super().__init__(options)
        mode = options.view_as(DirectOptions).direct_running_mode
        if mode == "multi_processing":
            raise ConfigError(
                "`direct_running_mode` must be in_memory or multi_threading, got multi_processing, whose workers all "
                "import Beam. Leave it out; `workers` are processes without Beam."
            )
        self._in_memory, self._workers = mode == "in_memory", 0

    def get_pool_workers(self, workers: int) -> int:
        """Returns the size of the pool: one process for each core by default, 0 if Beam starts workers."""
        self._workers = super().get_pool_workers(workers)
        return self._workers if self._in_memory else 0

    def make_beam_runner(self, job: Job) -> Any:
        """Returns a runner that uses no network."""
        direct = self.options.view_as(DirectOptions)
        if not self._in_memory and direct.direct_num_workers == 1:
            direct.direct_num_workers = self._workers
        harness_options = struct_pb2.Struct()
        json_format.ParseDict({"default_sdk_harness_log_level": _SILENT}, harness_options)
        info = beam_provision_api_pb2.ProvisionInfo(retrieval_token="unused", pipeline_options=harness_options)
        return FnApiRunner(provision_info=ExtendedProvisionInfo(info))


def choose_runner(beam_args: Sequence[str]) -> Runner:
    """Returns the runner that `--runner` names in Beam's arguments; without `--runner`, the one for this machine."""
    # The main session need not be pickled: all that workers need lies in modules.
    options = PipelineOptions([*beam_args, "--no_save_main_session"])
    name: str | None = options.view_as(StandardOptions).runner
    runner_class: type[Runner] = Runner
    short = name and name.rpartition(".")[2]  # Beam also takes the whole path of a class
    if short in (None, "DirectRunner", "FnApiRunner", "SwitchingDirectRunner"):
        runner_class = DirectRunner
    elif short == "DataflowRunner":
        runner_class = DataflowRunner
    else:
        try:
            create_runner(name)  # its import also registers its options
        except (ValueError, ImportError, AttributeError) as error:
            raise ConfigError(f"`runner` must be one that Beam can load, got {name}: {first_line(error)}.") from error
    known_options = options.get_all_options(retain_unknown_options=False)
    unknown_options = options.get_all_options(retain_unknown_options=True).keys() - known_options.keys()
    if unknown_options:  # Beam itself would ignore it
        raise ConfigError(f"Options after -- must be known to Beam, got --{min(unknown_options)}.")
    return runner_class(options)
