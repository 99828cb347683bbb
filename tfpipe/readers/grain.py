"""A data source for Grain: the records of a split as dictionaries, which Grain batches and copies between processes.

```
source = RecordSource("/data/flowers", "train")
dataset = grain.MapDataset.source(source).shuffle(seed=1)       # or grain.DataLoader(data_source=source, ...)
dataset[0]["image"], dataset[0]["label"]

numbers = grain.MapDataset.range(len(source)).shuffle(seed=1)   # the same records in the same order,
dataset = numbers.batch(256).map(source.read_batch)             # read together, which takes less time for each
```

This module does not need Grain: its sources are classes with certain methods.
"""

import operator
import os
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from tfpipe.engine.record_reader import Numbers
from tfpipe.errors import ConfigError, FormatError
from tfpipe.format.example import Feature
from tfpipe.format.manifest import Manifest
from tfpipe.format.schema import FeatureSpec
from tfpipe.readers.data_source import Record, data_source

NO_LABEL = -1
"""The class of a record without one."""

_KINDS: dict[str, type[np.generic]] = {"int64": np.int64, "float": np.float32}


class RecordSource:
    """The records of a split for Grain: `grain.sources.RandomAccessDataSource` with batched reads.

    An element is a dictionary with `image` if the records hold images, with `label` if the dataset has classes, and
    with the features that were asked for, such as tensors and text. It can be pickled, so Grain's worker processes open
    the files themselves. Threads may share it. A number beyond the records is an IndexError.

    A checkpoint of a `grain.DataLoader` holds the text of its source. The text here names the split, the records by
    their checksums and the features, but no folder. So a checkpoint is restored where the same records lie elsewhere,
    and refused where they are others.

    Attributes:
        manifest: The manifest of the dataset.
        split: The name of the split.
        features: The names of the features that an element holds beside the image and the class.
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
            features: The features that an element holds beside the image and the class.
            decode: Whether to decode images, to uint8 [height, width, 3]. A stage of yours can do it later.

        Raises:
            ConfigError: There is no such split or feature, a feature is named `image` or `label`; or the dataset or its
                shards lie on another machine, or are compressed.
            DataError: The directory does not hold a finished dataset.
            FormatError: The manifest cannot be used.
        """
        self._records = data_source(manifest, split)
        self.manifest, self.split = self._records.manifest, split
        self.features, self.decode = tuple(features), decode
        schema = self.manifest.schema
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
