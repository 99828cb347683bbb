"""The steps of the Beam graph, one labelled PTransform each.

An element is a shard's number, then a shard's row: no image and no path ever passes between two steps, so the
graph stays small whatever the size of the data, and shuffling costs nothing.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from beam_jobs.process_pool import map_unordered
from beam_jobs.runners.metrics import ShardMetrics
from beam_jobs.shards.finish_dataset import check_bad, check_present, finish_dataset
from beam_jobs.shards.work_dir import PlanHeader, WorkDir, WrittenShard
from beam_jobs.shards.worker_check import Agreement
from beam_jobs.shards.write_shard import write_shard
from beam_jobs.storage import filesystem

RowDict = dict[str, Any]


class ListShards(beam.PTransform):
    """Nothing -> the number of every planned shard, spread over the workers.

    Args:
        num_shards: In the plan.
        count_here: Put every number into the graph, for an engine that spreads nothing but what it finds there.
    """

    def __init__(self, num_shards: int, *, count_here: bool = False) -> None:
        super().__init__()
        self._num_shards, self._count_here = num_shards, count_here

    def expand(self, pipeline: Any) -> Any:
        """Builds the step."""
        if self._count_here:
            return pipeline | "Create" >> beam.Create(range(self._num_shards), reshuffle=False)
        count = pipeline | "Create" >> beam.Create([self._num_shards], reshuffle=False)
        # Counted by a worker: the graph then holds one number, however many shards there are.
        return count | "Number" >> beam.FlatMap(_numbers) | "Spread" >> beam.Reshuffle()


@dataclass(frozen=True)
class JobSettings:
    """What the steps share; it travels to the workers with them.

    Attributes:
        output: The dataset directory under construction; a path or URL that every worker reaches.
        max_bad: Stop once more images are bad.
        workers: Processes that each Beam worker starts for the work; 0: the Beam worker does it itself.
        file_options: Beam arguments that the file systems need.
        progress: As of `WorkDir`.
        agreement: What the plan was made with; None: by this process.
    """

    output: str
    max_bad: int
    workers: int = 0
    file_options: tuple[str, ...] = ()
    progress: str | None = None
    agreement: Agreement | None = None

    def open_plan(self) -> tuple[WorkDir, PlanHeader]:
        """The dataset directory and its plan, in a process where its file system may not be configured yet.

        Raises:
            DataError: This worker may not take part, as `Agreement` has it.
        """
        if self.file_options and filesystem.configured() != self.file_options:
            filesystem.configure(self.file_options)
        work = WorkDir(self.output, self.progress)
        return work, self.agreement.open_plan(work) if self.agreement else work.header()


class WriteShards(beam.PTransform):
    """Shard numbers -> one row (a dict) for each shard that was written or kept."""

    def __init__(self, settings: JobSettings) -> None:
        super().__init__()
        self._fn = _WriteShardFn(settings)

    def expand(self, shards: Any) -> Any:
        """Builds the step."""
        return shards | "Write shard" >> beam.ParDo(self._fn)


class FinishDataset(beam.PTransform):
    """All rows -> nothing but the manifest on disk, whose fingerprint is the one element that comes out."""

    def __init__(self, settings: JobSettings) -> None:
        super().__init__()
        self._settings = settings

    def expand(self, rows: Any) -> Any:
        """Builds the step."""
        gathered = rows | "Gather rows" >> beam.combiners.ToList()
        return gathered | "Write manifest" >> beam.Map(finish, self._settings)


class _WriteShardFn(beam.DoFn):
    """Writes shards in this process as they come, or a bundle of them in a pool of processes."""

    def __init__(self, settings: JobSettings) -> None:
        super().__init__()
        self._settings = settings
        self._metrics = ShardMetrics()

    def setup(self) -> None:
        self._work, self._header = self._settings.open_plan()

    def start_bundle(self) -> None:
        self._waiting: list[int] = []
        self._bad_rows: list[WrittenShard] = []

    def process(self, shard: int) -> Iterator[RowDict]:
        if self._settings.workers:
            self._waiting.append(shard)
        else:
            yield self._count(write_shard(self._work, self._header, shard, self._metrics.image), by_image=True)

    def finish_bundle(self) -> Iterator[WindowedValue]:
        if not self._waiting:
            return
        shared = self._work, self._header
        options = self._settings.file_options
        set_up = partial(filesystem.configure, options) if options else None
        window = GlobalWindow()
        workers = min(self._settings.workers, len(self._waiting))
        for row in map_unordered(write_shard, self._waiting, workers, shared=shared, set_up=set_up):
            yield WindowedValue(self._count(row, by_image=False), window.max_timestamp(), (window,))

    def _count(self, row: WrittenShard, *, by_image: bool) -> RowDict:
        self._metrics.shard(row, by_image=by_image)
        if row.quarantined:
            self._bad_rows.append(row)
            check_bad(self._work, self._header, self._bad_rows, self._settings.max_bad)
        return row.to_json()


def _numbers(count: int) -> Iterator[int]:
    yield from range(count)


def finish(rows: Iterable[RowDict], settings: JobSettings) -> str:
    """Writes what stands beside the shards, and says the dataset's fingerprint.

    Raises:
        DataError: A shard is missing, more images are bad than allowed, or this process may not take part.
    """
    work, header = settings.open_plan()
    made = [WrittenShard.from_json(row) for row in rows]
    check_present(work, header, made)
    work.write_kept(row.file for row in made if row.kept)
    return finish_dataset(work, header, made, settings.max_bad).fingerprint
