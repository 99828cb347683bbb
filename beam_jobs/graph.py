"""The Beam graph of a job: 0 -> numbers of shards -> spread -> write shards -> gather -> finish.

The plan and the shards are files. So the graph is as small for a billion images as for ten, and it has one leaf.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from beam_jobs.runners.base import Runner, ShardObserver
from beam_jobs.runners.beam_errors import unwrap_errors
from beam_jobs.shards.job import GatheredShards, Job, finish, stop_if_bad, write_one, write_shards
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
    gathered = written | "Gather shards" >> beam.CombineGlobally(_GatherFn())
    return gathered | "Write manifest" >> beam.Map(partial(_finish, job))


def _count_up(job: Job, _: int) -> Iterator[int]:
    job.configure()
    yield from range(len(job.header.shards))


def _finish(job: Job, gathered: GatheredShards) -> int:
    job.configure()
    finish(job, gathered)
    return 0


class _GatherFn(beam.CombineFn):
    """The gathering of written shards."""

    def create_accumulator(self) -> GatheredShards:
        return GatheredShards()

    def add_input(self, accumulator: GatheredShards, written: WrittenShard | GatheredShards) -> GatheredShards:
        accumulator += written
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[GatheredShards]) -> GatheredShards:
        gathered = GatheredShards()
        for accumulator in accumulators:
            gathered += accumulator
        return gathered

    def extract_output(self, accumulator: GatheredShards) -> GatheredShards:
        return accumulator


class _Metrics:
    """The counters and distributions of the step that writes shards. Beam pickles them and sends them to the workers.

    The process pool of this machine reports images to Beam only at the end of their shard. So it counts whole shards.
    """

    def __init__(self) -> None:
        counted = ("images", "bytes", "bad", "unreadable", "shards", "kept")
        self._counters = {name: Metrics.counter("tfpipe", name) for name in counted}
        self._image_bytes = Metrics.distribution("tfpipe", "image_bytes")
        self._image_ms = Metrics.distribution("tfpipe", "image_ms")

    def count_image(self, num_bytes: int, seconds: float, bad_kind: str | None) -> None:
        """Counts one image when it is done; `bad_kind` is None for a good one."""
        self._counters["images"].inc()
        self._counters["bytes"].inc(num_bytes)
        self._image_bytes.update(num_bytes)
        self._image_ms.update(round(seconds * 1000))
        if bad_kind is not None:
            self._counters[bad_kind].inc()

    def count_shard(self, shard: WrittenShard, *, by_image: bool) -> None:
        """Counts one shard when it is done, and its images unless `count_image` got them."""
        self._counters["shards"].inc()
        self._counters["kept"].inc(int(shard.kept))
        if shard.kept or not by_image:
            self._counters["images"].inc(shard.info.records + shard.num_left_out)
            for line in shard.left_out:
                self._counters[line["kind"]].inc()


class _WriteFn(beam.DoFn):
    """The work of a Beam worker: each shard in its own process, or all shards of a bundle in a pool of processes."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job, self._metrics = job, _Metrics()

    def setup(self) -> None:
        self._job.configure()

    def start_bundle(self) -> None:
        self._waiting: list[int] = []
        self._bad_shards: list[WrittenShard] = []

    def process(self, number: int) -> Iterator[WrittenShard]:
        if self._job.workers:
            self._waiting.append(number)
        else:
            shard = write_one(self._job, number, self._metrics.count_image)
            self._metrics.count_shard(shard, by_image=True)
            stop_if_bad(self._job, shard, self._bad_shards)
            yield shard

    def finish_bundle(self) -> Iterator[WindowedValue]:
        if not self._waiting:
            return
        window = GlobalWindow()
        gathered = GatheredShards()  # of the whole bundle: the results of many shards would take memory
        for shard in write_shards(self._job, self._waiting):
            self._metrics.count_shard(shard, by_image=False)
            gathered += shard
        yield WindowedValue(gathered, window.max_timestamp(), (window,))
