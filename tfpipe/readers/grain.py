"""Data sources for Grain: the records of a split as dictionaries, which Grain batches; or the batches of the engine.

This module does not need Grain: its sources are classes with certain methods.
"""

import operator
import os
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from tfpipe.engine.config.pipeline_config import PipelineConfig, choose_config
from tfpipe.engine.order import ORDER_VERSION
from tfpipe.engine.record_reader import Numbers
from tfpipe.errors import ConfigError, FormatError
from tfpipe.format.example import Feature
from tfpipe.format.manifest import Manifest
from tfpipe.format.schema import FeatureSpec
from tfpipe.readers.base import BatchTransform, Data, ImageTransform
from tfpipe.readers.data_source import Record, data_source
from tfpipe.readers.numpy import NumpyBatches
from tfpipe.system.arguments import check_count

NO_LABEL = -1
"""The class of a record that has none."""

_MOST_STEPS = 2**31  # the length of a run without end, which Grain must be able to count

_KINDS: dict[str, type[np.generic]] = {"int64": np.int64, "float": np.float32}


class RecordSource:
    """The records of a split for Grain: `grain.sources.RandomAccessDataSource` with batched reads.

    An element is a dictionary with `image` if the records hold images, with `label` if the dataset has classes, and
    with the features that were asked for, such as tensors and text. It can be pickled, so Grain's worker processes open
    the files themselves. Threads may share it. A number beyond the records is an IndexError.

    A checkpoint of a `grain.DataLoader` holds the `repr` of its source. This `repr` names the split, the records by
    their checksums and the features, but no folder. So a checkpoint can be restored if the same records lie elsewhere,
    and is refused if the records are others.

    Attributes:
        manifest: The manifest of the dataset.
        split: The name of the split.
        features: The names of the features that an element holds besides the image and the class.
        decode: Whether `image` is pixels, and not the bytes that are stored.
    """

    def __init__(
        self,
        manifest: Manifest | str | os.PathLike[str],
        split: str,
        *,
        features: Sequence[str] = (),
        decode: bool = True,
    ) -> None:
        """Opens the records of a split, which reads the manifest only.

        Args:
            manifest: A manifest from `load_manifest`, or a dataset's directory or URL. It may describe TFRecords of
                another program.
            split: The name of a split.
            features: The features that an element holds besides the image and the class.
            decode: Whether to decode images, to uint8 [height, width, 3]. A stage of yours can do it later.

        Raises:
            ConfigError: There is no such split or feature, a feature is named `image` or `label`; or the dataset or its
                shards lie on another machine, or are compressed as a whole.
            DataError: The directory does not hold a finished dataset.
            FormatError: The manifest cannot be used.
        """
        self._records = data_source(manifest, split)
        self.manifest, self.split = self._records.manifest, split
        self.features, self.decode = tuple(features), decode
        schema = self.manifest.full_schema
        for name in self.features:
            if name not in schema:
                raise ConfigError(f"`features` must be among {', '.join(schema.names)}, got {name!r}.")
            if name in ("image", "label"):
                raise ConfigError(f"`features` must not hold {name!r}: an element has a value of this name anyway.")
        self._specs = tuple(schema[name] for name in self.features)

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]:
        """Reads one record.

        Args:
            index: A number, from 0 or, below 0, counted from the end.

        Returns:
            `image`: the pixels, or bytes; of several images a list. `label`: int32, -1 if the record has none. And each
            feature: bytes, int64 or float32 for one value, else an array [values], of objects for bytes. A tensor is an
            array, and text is str.

        Raises:
            NoSuchRecord: There are fewer records; a ConfigError and an IndexError.
            FormatError: A file is missing, has another size than the manifest says, or is damaged; or the record has no
                image.
            DataError: A file cannot be read.
        """
        return self._make_element(self._records[operator.index(index)])

    def __getitems__(self, indices: Numbers) -> list[dict[str, Any]]:
        """Reads several records at once, in any order; elements and errors are those of `source[index]`.

        Grain calls it by the name `_getitems`, where it reads in batches.
        """
        return list(map(self._make_element, self._records.__getitems__(indices)))

    _getitems = __getitems__

    def read_batch(self, indices: Numbers) -> dict[str, Any]:
        """Reads several records at once as one batch, for `grain.MapDataset.range(len(source)).batch(n).map`.

        Args:
            indices: The numbers, in any order: the batch that Grain makes of them.

        Returns:
            The values of the elements by their names. Numbers and arrays of one shape are stacked; images of several
            sizes and bytes are a list. Errors are those of `source[index]`.
        """
        elements = self.__getitems__(indices)
        names = elements[0] if elements else ()
        return {name: _stack([element[name] for element in elements]) for name in names}

    def __repr__(self) -> str:
        images = () if self.manifest.image_key is None else ("pixels" if self.decode else "bytes",)
        kinds = ", ".join((*images, *self.features))
        fingerprint = self.manifest.splits[self.split].fingerprint[:16]
        return f"<{len(self):,} records of {self.split!r}, {fingerprint}, with {kinds}>"

    def close(self) -> None:
        """Closes all files; reading opens them again."""
        self._records.close()

    def _make_element(self, record: Record) -> dict[str, Any]:
        element: dict[str, Any] = {}
        if self.manifest.image_key is not None:
            images = record.images if self.decode else record.encoded_images
            element["image"] = list(images) if self.manifest.has_several_images else images[0]
        if self.manifest.label_key is not None:
            element["label"] = np.int32(NO_LABEL if record.label is None else record.label)
        for spec in self._specs:
            try:
                element[spec.name] = _get_value(spec, record.features)
            except FormatError as error:
                raise FormatError(f"Record {record.index} of {self.split!r}: {error}") from None
        return element


class GrainBatches:
    """The batches of one process for Grain: `grain.sources.RandomAccessDataSource`, whose element i is that of step i.

    Records, order and crops are those of all other readers, so Grain must not shuffle, batch or shard: it makes
    elements ahead and keeps the step in its checkpoint. Threads may share a source. It can be pickled, and a process
    that gets it opens the files itself. A step beyond the last is an IndexError.

    Grain makes 500 elements ahead unless `grain.ReadOptions` says otherwise, and here each is a whole batch.

    The `repr` of a source names the split, the records by their checksums, the batch size, the seed and the order, but
    no folder and no rank. So a `grain.DataLoader` goes on from its checkpoint even if the same records lie elsewhere,
    and on any number of processes.

    Args:
        data: A manifest from `load_manifest`, a dataset's directory or URL, or several datasets from `tfpipe.mix`.
        split: The name of a split.
        config: The options of `build_dataset`. Options that only tf.data supports are refused, and so is
            `prefetch_batches`, which `grain.ReadOptions` decides.
        num_epochs: The number of epochs, each in another order. None: so many that no run comes to an end. In
            evaluation 1.
        rank: The number of this process, from 0, and the number of processes that share each batch.
        num_threads: The number of threads that decode, of all batches together. Grain's worker processes have as many
            each. None: one for each core, or what `cpu_budget` leaves.
        transform: A function that replaces crop, resize and flip, as for `NumpyBatches`.
        batch_transform: A function for finished batches, as for `NumpyBatches`.
        changes: Options that replace those of the config, or stand in for a config, such as `batch_size=256`.

    A batch is that of `tfpipe.readers.numpy.NumpyBatches`.

    Raises:
        ConfigError: The config does not fit this reader, the data or the number of processes; or a source with a cache
            in memory is pickled.
        DataError: There are no records, or the directory is not a finished dataset.
        FormatError: While reading: a file is missing or damaged, or an image is.
    """

    def __init__(
        self,
        data: Data,
        split: str,
        config: PipelineConfig | None = None,
        num_epochs: int | None = 1,
        rank: tuple[int, int] = (0, 1),
        num_threads: int | None = None,
        *,
        transform: ImageTransform | None = None,
        batch_transform: BatchTransform | None = None,
        **changes: Any,
    ) -> None:
        config = choose_config(config, changes)
        if config.prefetch_batches is not None:
            raise ConfigError(
                f"`prefetch_batches` {config.prefetch_batches} is decided by Grain: give "
                "`grain.ReadOptions(prefetch_buffer_size=...)`, and leave it out here."
            )
        if num_epochs is not None:
            check_count("num_epochs", num_epochs, 1)
        if not config.training and num_epochs != 1:
            raise ConfigError(f"`num_epochs` must be 1 in evaluation, where each is the same, got {num_epochs}.")
        self._batches = NumpyBatches(
            data, split, config, 0, rank, num_threads, transform=transform, batch_transform=batch_transform
        )
        self._split = split
        steps = len(self._batches)
        self._num_steps = steps * (_MOST_STEPS // steps if num_epochs is None else num_epochs)

    def __len__(self) -> int:
        """Returns the number of steps of all epochs."""
        return self._num_steps

    def __getitem__(self, step: SupportsIndex) -> Any:
        """Makes the batch of a global step.

        Args:
            step: The step, from 0 or, below 0, counted from the last.

        Raises:
            IndexError: There are fewer steps.
            FormatError: A file is missing or damaged, or an image is.
            DataError: A file cannot be read.
        """
        number = operator.index(step)
        if not -len(self) <= number < len(self):
            raise IndexError(f"The steps of {self._split!r} are from {-len(self)} to {len(self) - 1}, got {number}.")
        return self._batches.read(number % len(self))

    def __repr__(self) -> str:
        plan = self._batches.plan
        records = [
            f"{each.config.batch_size} of {each.source.manifest.splits[self._split].fingerprint[:16]}"
            for each in plan.plans
            if each.source.manifest is not None
        ]
        order = "evaluation"
        if self._batches.config.training:
            blocks = " and ".join(str(each.order.block_records) for each in plan.plans)
            order = f"seed {self._batches.config.seed}, blocks of {blocks}, order {ORDER_VERSION}"
        return f"<batches of {self._split!r}: {', '.join(records)}; {order}>"

    def __getstate__(self) -> dict[str, Any]:
        config = self._batches.config
        if config.cache != "none" and config.cache_dir is None:
            raise ConfigError(
                f"`cache` {config.cache} needs threads of Grain, not worker processes: each would have a cache of its "
                "own. Set a `cache_dir`, or no cache."
            )
        return vars(self)


def _get_value(spec: FeatureSpec, features: Mapping[str, Feature]) -> Any:
    """Returns a feature as one value or as an array."""
    if spec.kind != "values":
        return spec.decode(features)
    feature = features.get(spec.name)
    if spec.dtype == "bytes":
        texts = feature if isinstance(feature, list) else []
        if spec.shape == () and len(texts) == 1:
            return texts[0]
        values: NDArray[Any] = np.empty(len(texts), object)
        values[:] = texts
        return values
    kind = _KINDS[spec.dtype]
    numbers = feature if isinstance(feature, np.ndarray) else np.empty(0, kind)
    return kind(numbers[0]) if spec.shape == () and len(numbers) == 1 else numbers


def _stack(values: list[Any]) -> Any:
    """Stacks numbers and arrays of one shape, and leaves others as a list."""
    if not all(isinstance(value, np.ndarray | np.generic) for value in values):
        return values
    return np.stack(values) if len({value.shape for value in values}) == 1 else values
