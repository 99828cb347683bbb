"""`AddColumn`: a Beam pipeline that adds a column to a finished dataset, many shards at once.

```
prepare the folder ─▶ (split, number) of every shard ─▶ write the column's shard ─▶ gather ─▶ manifest
```

A worker reads the records of a shard, gives them to the user's function, and writes the values. So only the
names of shards go through Beam.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics

from beam_jobs.records.write_records import find_file_options
from beam_jobs.storage import job_stores
from tfpipe.columns.add import plan_column
from tfpipe.columns.config import ColumnConfig, Missing
from tfpipe.columns.write import NewLayerColumn, publish_layers
from tfpipe.errors import DataError
from tfpipe.storage.file_io import explain_os_errors
from tfpipe.writer.fields import Field
from tfpipe.writer.written_shard import WrittenShard

_Shard = tuple[int, str, int]  # the layer among those that are written, the split, and the shard


class AddColumn(beam.PTransform):
    """A Beam pipeline that adds features to a finished dataset, as `tfpipe.add_column` does on one machine.

    It stands at the beginning: `pipeline | beam_jobs.AddColumn(...)`. The output has one element: the
    number of the shards that were written. When the same pipeline runs again after a failure, shards that are finished
    are kept.

    Args:
        dataset: The directory of a dataset, as a path or URL (gs://, s3://, az://) that every worker reaches.
        name: The name of the column.
        function: A function of a record, as `tfpipe.data_source` gives it, that returns its value; None for a record
            without one. With `batch_size` a function of a list of records that returns a list with a value for each. An
            object that loads a model at its first call loads it once for each shard at most.
        schema: The kind of the value, `Tensor`, `Text`, `Values` or `Labels`: the feature is then called as the column.
            Or the kind of each feature by its name, and the function returns mappings from these names.
        batch_size: The number of records that the function gets at once. None: it gets one record.
        missing: The way with records without a value: "error"; "default" gives them a value; "view" makes a view
            of the others, with the column's name.
        default: The value of each feature in records without one. None: 0, an empty text, an empty list or zeros.
        replace: Whether the column takes the place of one with its name, on a disk that every worker reaches. The
            function still gets the old features.

    Raises:
        ConfigError: An argument cannot be used, or the dataset has such a column or feature.
        DataError: In the pipeline: the function raised an error, a record has no value, or the column cannot
            be written.
    """

    def __init__(
        self,
        dataset: str | os.PathLike[str],
        name: str,
        function: Callable[[Any], Any],
        schema: Field | Mapping[str, Field],
        *,
        batch_size: int | None = None,
        missing: Missing = "error",
        default: Mapping[str, Any] | None = None,
        replace: bool = False,
    ) -> None:
        super().__init__()
        self._dataset, self._function, self._schema, self._batch_size = dataset, function, schema, batch_size
        self._config = ColumnConfig(name, missing, dict(default or {}), replace)

    def expand(self, begin: Any) -> Any:
        """Builds the steps."""
        options = find_file_options(begin.pipeline.options)
        job_stores.adopt(options)
        layers = plan_column(self._dataset, self._config, self._function, self._schema, batch_size=self._batch_size)
        prepared = (
            begin
            | "Start" >> beam.Create([None], reshuffle=False)
            | "Prepare" >> beam.ParDo(_PrepareFn(layers, options))
        )
        shards = prepared | beam.Reshuffle() | "Write shard" >> beam.ParDo(_WriteFn(layers, options))
        return shards | "Gather shards" >> beam.GroupByKey() | "Finish" >> beam.ParDo(_FinishFn(layers, options))


class _ColumnFn(beam.DoFn):
    """A step over the layers of a column. A worker first gets the stores of the job."""

    def __init__(self, layers: list[NewLayerColumn], options: tuple[str, ...]) -> None:
        super().__init__()
        self._layers, self._options = layers, options

    def setup(self) -> None:
        """Configures the stores of this process."""
        job_stores.adopt(self._options)


class _PrepareFn(_ColumnFn):
    """The making of the working folders. Then every shard is named."""

    def process(self, _: None) -> Iterator[_Shard]:
        for number, layer in enumerate(self._layers):
            with explain_os_errors(f"write to {layer.job.folder.output}"):
                layer.job.folder.prepare(layer.identity)
            for split, shard in layer.list_shards():
                yield number, split, shard


class _WriteFn(_ColumnFn):
    """The writing of each shard."""

    def __init__(self, layers: list[NewLayerColumn], options: tuple[str, ...]) -> None:
        super().__init__(layers, options)
        self._shards, self._kept = Metrics.counter("tfpipe", "shards"), Metrics.counter("tfpipe", "kept")

    def process(self, shard: _Shard) -> Iterator[tuple[int, tuple[_Shard, WrittenShard]]]:
        layer = self._layers[shard[0]]
        with explain_os_errors(f"write to {layer.job.folder.output}"):
            written = layer.write_shard(*shard[1:])
        self._shards.inc()
        self._kept.inc(int(written.kept))
        yield 0, (shard, written)


class _FinishFn(_ColumnFn):
    """The writing of the manifests, if the runner has brought every shard."""

    def process(self, gathered: tuple[int, Iterable[tuple[_Shard, WrittenShard]]]) -> Iterator[int]:
        by_shard = dict(gathered[1])
        for number, layer in enumerate(self._layers):
            written: dict[str, list[WrittenShard]] = {}
            for split, shard in layer.list_shards():
                if (number, split, shard) not in by_shard:
                    raise DataError(
                        f"Shard {shard} of {split!r} of {layer.job.folder.output} is missing: Beam's runner lost it. "
                        "Run the same pipeline again."
                    )
                written.setdefault(split, []).append(by_shard[number, split, shard])
            with explain_os_errors(f"write to {layer.job.folder.output}"):
                layer.finish(written)
        with explain_os_errors(f"write to {self._layers[0].job.folder.output}"):
            publish_layers(self._layers)
            for layer in self._layers:
                layer.job.folder.remove()
        yield len(by_shard)
