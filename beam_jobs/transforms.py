"""The steps of the Beam graph, one labelled PTransform each.

An element is a shard's number, then a shard's row: no image and no path ever passes between two steps, so the
graph stays small whatever the size of the data, and shuffling costs nothing.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from beam_jobs import files
from beam_jobs.finish import check_bad, finish_dataset
from beam_jobs.pool import map_unordered
from beam_jobs.work import Row, Work
from beam_jobs.writer import write_shard

RowDict = dict[str, Any]
KEPT_COUNTER = "kept"


class ListShards(beam.PTransform):
    """Nothing -> the number of every planned shard, spread over the workers."""

    def __init__(self, num_shards: int) -> None:
        super().__init__()
        self._num_shards = num_shards

    def expand(self, pipeline: Any) -> Any:
        """Builds the step."""
        return (
            pipeline | "Create" >> beam.Create(range(self._num_shards), reshuffle=False) | "Spread" >> beam.Reshuffle()
        )


@dataclass(frozen=True)
class JobSettings:
    """What the steps share; it travels to the workers with them.

    Attributes:
        output: The dataset directory under construction; a path or URL that every worker reaches.
        max_bad: Stop once more images are bad.
        workers: Processes that each Beam worker starts for the work; 0: the Beam worker does it itself.
        file_options: Beam arguments that the file systems need.
        progress: As of `Work`.
    """

    output: str
    max_bad: int
    workers: int = 0
    file_options: tuple[str, ...] = ()
    progress: str | None = None

    def open_work(self) -> Work:
        """The dataset directory, in a process where its file system may not be configured yet."""
        if self.file_options:
            files.configure(self.file_options)
        return Work(self.output, self.progress)


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
        return gathered | "Write manifest" >> beam.Map(_finish, self._settings)


class _WriteShardFn(beam.DoFn):
    """Writes shards in this process as they come, or a bundle of them in a pool of processes."""

    def __init__(self, settings: JobSettings) -> None:
        super().__init__()
        self._settings = settings
        self._images = Metrics.counter("tfpipe", "images")
        self._bad = Metrics.counter("tfpipe", "bad")
        self._shards = Metrics.counter("tfpipe", "shards")
        self._kept = Metrics.counter("tfpipe", KEPT_COUNTER)

    def setup(self) -> None:
        self._work = self._settings.open_work()
        self._header = self._work.header()

    def start_bundle(self) -> None:
        self._waiting: list[int] = []
        self._bad_rows: list[Row] = []

    def process(self, shard: int) -> Iterator[RowDict]:
        if self._settings.workers:
            self._waiting.append(shard)
        else:
            yield self._count(write_shard(self._work, self._header, shard))

    def finish_bundle(self) -> Iterator[WindowedValue]:
        if not self._waiting:
            return
        shared = self._work, self._header
        options = self._settings.file_options
        set_up = partial(files.configure, options) if options else None
        window = GlobalWindow()
        workers = min(self._settings.workers, len(self._waiting))
        for row in map_unordered(write_shard, self._waiting, workers, shared=shared, set_up=set_up):
            yield WindowedValue(self._count(row), window.max_timestamp(), (window,))

    def _count(self, row: Row) -> RowDict:
        self._images.inc(row.records)
        self._bad.inc(len(row.quarantined))
        self._shards.inc()
        self._kept.inc(int(row.kept))
        if row.quarantined:
            self._bad_rows.append(row)
            check_bad(self._work, self._header, self._bad_rows, self._settings.max_bad)
        return asdict(row)


def _finish(rows: Iterable[RowDict], settings: JobSettings) -> str:
    work = settings.open_work()
    return finish_dataset(work, work.header(), (Row(**row) for row in rows), settings.max_bad).fingerprint
