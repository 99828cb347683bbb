"""The Beam graph: ListShards | WriteShards | FinishDataset.

It is a line with one leaf, so that every runner executes all of it. An element is the number of a shard, and then the
shard as it was written. No image and no path passes between two steps, so the graph stays small whatever the size of
the data, and shuffling costs nothing.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from beam_jobs.engine.list_files import list_end_steps
from beam_jobs.engine.search_steps import save_shard
from beam_jobs.job_steps import JobConfig, begin_end, finish, finish_end, write_in_pool
from beam_jobs.runners.metrics import ShardMetrics
from beam_jobs.shards.finish_dataset import check_bad
from beam_jobs.shards.gather_rows import GatheredShards
from beam_jobs.shards.write_shard import write_shard
from beam_jobs.step_graph import add_steps
from tfpipe.writer.written_shard import WrittenShard


def build_graph(pipeline: beam.Pipeline, num_shards: int, settings: JobConfig, *, whole: bool = True) -> None:
    """Adds the steps of the job to a pipeline.

    Args:
        pipeline: An empty pipeline.
        num_shards: The number of planned shards.
        settings: The settings of the steps.
        whole: Whether the runner spreads and gathers elements well. If not, the graph names every shard and ends
            with the written shards; `finish` then makes the dataset complete.
    """
    shards = pipeline | "List shards" >> ListShards(num_shards, in_graph=not whole)
    written_shards = shards | "Write shards" >> WriteShards(settings)
    if settings.search_tasks:
        written_shards = written_shards | "Sort digests" >> beam.ParDo(_SortDigestsFn(settings))
    if whole:
        _ = written_shards | "Finish dataset" >> FinishDataset(settings)


class ListShards(beam.PTransform):
    """The first step: nothing -> the number of every planned shard, spread over the workers.

    Args:
        num_shards: The number of planned shards.
        in_graph: Whether to put every number into the graph, for a runner that spreads only what it finds there.
    """

    def __init__(self, num_shards: int, *, in_graph: bool = False) -> None:
        super().__init__()
        self._num_shards, self._in_graph = num_shards, in_graph

    def expand(self, pipeline: Any) -> Any:
        """Builds the step."""
        if self._in_graph:
            return pipeline | "Create" >> beam.Create(range(self._num_shards), reshuffle=False)
        count = pipeline | "Create" >> beam.Create([self._num_shards], reshuffle=False)
        # A worker counts, so the graph holds one number, however many shards there are.
        return count | "Number" >> beam.FlatMap(_count_up) | "Spread" >> beam.Reshuffle()


class WriteShards(beam.PTransform):
    """The second step: shard numbers -> a `WrittenShard` for each shard that was written or kept."""

    def __init__(self, settings: JobConfig) -> None:
        super().__init__()
        self._fn = _WriteShardFn(settings)

    def expand(self, shards: Any) -> Any:
        """Builds the step."""
        return shards | "Write shard" >> beam.ParDo(self._fn)


class FinishDataset(beam.PTransform):
    """The last step: all written shards -> the manifest on disk. Its fingerprint is the one element that comes out.

    With `search_tasks` the gathered shards are saved, and tasks search for duplicates and write lists before the end.
    """

    def __init__(self, settings: JobConfig) -> None:
        super().__init__()
        self._settings = settings

    def expand(self, written_shards: Any) -> Any:
        """Builds the step."""
        gathered = written_shards | "Gather rows" >> beam.CombineGlobally(_GatherFn())
        if not self._settings.search_tasks:
            return gathered | "Write manifest" >> beam.Map(_finish_gathered, self._settings)
        saved = gathered | "Save rows" >> beam.Map(_begin_end, self._settings)
        ended = add_steps(saved, list_end_steps(), self._settings)
        return ended | "Write manifest" >> beam.Map(_finish_end, self._settings)


class _GatherFn(beam.CombineFn):
    """The gathering of written shards: each worker adds up the class counts of its own shards first."""

    def create_accumulator(self) -> GatheredShards:
        return GatheredShards()

    def add_input(self, gathered: GatheredShards, shard: WrittenShard) -> GatheredShards:
        gathered.add(shard)
        return gathered

    def merge_accumulators(self, accumulators: Iterable[GatheredShards]) -> GatheredShards:
        total = GatheredShards()
        for gathered in accumulators:
            total.merge(gathered)
        return total

    def extract_output(self, gathered: GatheredShards) -> GatheredShards:
        return gathered


class _SortDigestsFn(beam.DoFn):
    """The step that saves what tasks need of each written shard, and passes the rest on."""

    def __init__(self, settings: JobConfig) -> None:
        super().__init__()
        self._settings = settings

    def setup(self) -> None:
        self._end = self._settings.open()

    def process(self, shard: WrittenShard) -> Iterator[WrittenShard]:
        yield save_shard(self._end, shard)


def _begin_end(gathered: GatheredShards, settings: JobConfig) -> int:
    begin_end(gathered, settings)
    return 0


def _finish_end(_: int, settings: JobConfig) -> str:
    return finish_end(settings)


def _finish_gathered(gathered: GatheredShards, settings: JobConfig) -> str:
    return finish(gathered.list_shards(), settings)


def _count_up(count: int) -> Iterator[int]:
    yield from range(count)  # Beam reads no element type from `range` itself


class _WriteShardFn(beam.DoFn):
    """The work of a Beam worker: each shard in its own process, or all shards of a bundle in a pool of processes."""

    def __init__(self, settings: JobConfig) -> None:
        super().__init__()
        self._settings = settings
        self._metrics = ShardMetrics()

    def setup(self) -> None:
        self._work, self._header = self._settings.open_plan()

    def start_bundle(self) -> None:
        self._waiting: list[int] = []
        self._bad_shards: list[WrittenShard] = []

    def process(self, shard_number: int) -> Iterator[WrittenShard]:
        if self._settings.workers:
            self._waiting.append(shard_number)
            return
        shard = write_shard(self._work, self._header, shard_number, self._metrics.count_image)
        self._metrics.count_shard(shard, by_image=True)
        if shard.num_left_out:
            self._bad_shards.append(shard.strip())
            check_bad(self._work, self._header, self._bad_shards, self._settings.max_bad)
        yield shard

    def finish_bundle(self) -> Iterator[WindowedValue]:
        if not self._waiting:
            return
        window = GlobalWindow()
        for shard in write_in_pool(self._work, self._header, self._waiting, self._settings):
            self._metrics.count_shard(shard, by_image=False)
            yield WindowedValue(shard, window.max_timestamp(), (window,))
