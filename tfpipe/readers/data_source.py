"""A data source: the images of a split as a sequence, for NumPy, PyTorch and JAX, and for looking at data."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import overload

import numpy as np
from numpy.typing import NDArray

from tfpipe.dataset.load import load_if_path
from tfpipe.engine.record_reader import ColumnValues, Numbers, RecordReader, resolve_index, resolve_indices
from tfpipe.errors import ConfigError, FormatError
from tfpipe.format.example import Feature
from tfpipe.format.image_form import ImageForm
from tfpipe.format.manifest import Manifest, list_images
from tfpipe.storage.file_io import is_url
from tfpipe.system import notebook
from tfpipe.system.fork_lock import make_fork_lock

NO_LABEL = -(2**63)
"""The class of a record that has none: the least int64, which no stored label becomes."""

_INT64 = np.dtype(np.int64)  # comparing a dtype with `np.int64` takes longer
_LOCK = make_fork_lock()  # guards the tables of all lookups


@dataclass(frozen=True, slots=True)
class Record:
    """A record: its image, or several images, its class, its name, and all of its features.

    Attributes:
        split: The name of its split.
        index: The number of the record in the split, from 0, whatever view it came from.
        name: The file that the image came from, such as `daisy/12.jpg`; empty if the records do not say. Bytes that
            are not UTF-8 are kept as surrogates.
        label: The class, counted from 0; None if there is none.
        label_name: The name of the class; None if there is none.
        encoded: The image as it is stored: a file, or raw pixels. The first one of several.
        features: All features of the record, as they are stored.
    """

    split: str
    index: int
    name: str
    label: int | None
    label_name: str | None
    encoded: bytes = field(repr=False)
    features: dict[str, Feature] = field(repr=False)
    _form: ImageForm = field(repr=False)
    _images: tuple[bytes, ...] = field(default=(), repr=False)  # if there are several

    @property
    def encoded_images(self) -> tuple[bytes, ...]:
        """All images as they are stored: one, or several."""
        return self._images or (self.encoded,)

    @property
    def images(self) -> list[NDArray[np.uint8]]:
        """The pixels of all images, each as `image` has them. The error names one of several by its number, from 0."""
        return [self._decode(encoded, number) for number, encoded in enumerate(self.encoded_images)]

    @property
    def image(self) -> NDArray[np.uint8]:
        """The pixels: uint8 of shape [height, width, 3], decoded by Pillow at each access. Of several images the first.

        A JPEG's pixels may differ by a few levels from TensorFlow's, which rounds less exactly.

        Raises:
            FormatError: The image is damaged, or larger than the manifest allows.
        """
        return self._decode(self.encoded, 0)

    def _decode(self, encoded: bytes, number: int) -> NDArray[np.uint8]:
        from tfpipe.images.decode import decode_pixels
        from tfpipe.images.errors import BadImage

        try:
            return decode_pixels(encoded, self._form)
        except BadImage as error:
            which = f"image {number}" if self._images else "image"
            raise FormatError(f"Record {self.index} of {self.split!r}: its {which} cannot be used, {error}.") from None


class DataSource:
    """The images of a split, or some of them, as a sequence; `data_source` makes one.

    It has the methods that `torch.utils.data.DataLoader`, TFDS and Grain expect of a data source: a length, records by
    their number, and a pickled form, which opens the files anew in another process. Threads may share it. A number
    beyond the records is an IndexError. At most 64 files are open, and 8 bytes a record are in memory once every shard
    was read.

    Attributes:
        manifest: The manifest of the dataset.
        split: The name of the split.
    """

    def __init__(self, reader: RecordReader, numbers: range | NDArray[np.int64], lookup: RecordLookup) -> None:
        self.manifest, self.split = reader.manifest, reader.split
        self._reader, self._numbers, self._lookup = reader, numbers, lookup
        self._form = ImageForm.recorded(self.manifest.image) if self.manifest.foreign is None else ImageForm()

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int | np.integer) -> Record: ...
    @overload
    def __getitem__(self, index: slice | Numbers) -> DataSource: ...
    def __getitem__(self, index: int | np.integer | slice | Numbers) -> Record | DataSource:
        """Reads one record; or returns a view of several, for which nothing is read.

        Args:
            index: A number, from 0 or, below 0, counted from the end; a slice; or several numbers, in any order.

        Raises:
            NoSuchRecord: There are fewer records; a ConfigError and an IndexError.
            FormatError: A file is missing, has another size than the manifest says, or is damaged; or the record has no
                image.
            DataError: A file cannot be read.
        """
        if isinstance(index, slice):
            return DataSource(self._reader, self._numbers[index], self._lookup)
        if isinstance(index, Sequence | np.ndarray) and np.ndim(index) > 0:
            return DataSource(self._reader, self._choose(index), self._lookup)
        number = int(self._numbers[resolve_index(index, len(self), self.split)])  # type: ignore[arg-type]
        return self._make_record(number, self._reader[number])

    def __getitems__(self, indices: Numbers) -> list[Record]:
        """Reads several records at once, which takes a fraction of the time of reading them one by one.

        PyTorch's DataLoader calls it for a batch; where Grain reads in batches, it does so by the name `_getitems`. The
        arrays of features with one value may share memory with those of the other records, 8 bytes a value.

        Args:
            indices: The numbers, each from 0 or, below 0, counted from the end; in any order and with repetitions.

        Raises:
            ConfigError: The numbers are not whole ones in one list or array. Other errors are those of `source[index]`.
        """
        numbers = self._choose(indices)
        return list(map(self._make_record, numbers.tolist(), self._reader.read_examples(numbers)))

    _getitems = __getitems__

    def read_columns(
        self, indices: Numbers, names: Sequence[str], memory: NDArray[np.uint8] | None = None
    ) -> dict[str, ColumnValues]:
        """Reads some features of several records as they are stored, for a decoder or a loop of your own.

        Bytes are not copied once they are read, unless a record has 2 MB or more.

        Args:
            indices: The numbers, as for `__getitems__`.
            names: The features, such as "image/encoded". Each has one value in every record.
            memory: The memory into which the records are read if they fit: uint8 of one axis. Using it again is faster
                than new memory, whose pages the system zeroes, but overwrites the bytes that an earlier call returned.
                None: new memory in every call.

        Returns:
            By the feature's name: a list of uint8 arrays that must not be written to, or int64 or float32 [records].

        Raises:
            ConfigError: A feature does not exist or is a list; or the numbers or the memory have another form. Other
                errors are those of `source[index]`.
        """
        return self._reader.read_columns(self._choose(indices), names, memory)

    def __iter__(self) -> Iterator[Record]:
        return map(self._make_record, map(int, self._numbers), self._reader.iterate(self._numbers))

    def __repr__(self) -> str:
        return f"<{len(self):,} records of {self.split!r} in {self._reader.directory}>"

    def _repr_html_(self) -> str | None:
        return notebook.show(self)

    def with_label(self, label: int | str) -> NDArray[np.int64]:
        """Returns the numbers of the records of one class, in this view: int64, ascending.

        The first call of `with_label` or `find`, in any view of the split, reads the whole split once: about a second
        for 8,000 photographs of 110 kB. It keeps 16 bytes a record, which a pickled copy takes along.

        Args:
            label: The number of the class, from 0, or its name.

        Raises:
            ConfigError: There is no such class.
            FormatError: A record is damaged.
        """
        names = self.manifest.label_names
        if isinstance(label, str):
            if label not in names:
                raise ConfigError(f"The dataset has no class {label!r}; `manifest.label_names` lists them.")
            label = names.index(label)
        elif self.manifest.label_key is None or not 0 <= label < len(names):
            allowed = f"from 0 to {len(names) - 1}" if names else "of a dataset that has labels"
            raise ConfigError(f"A class must be {allowed}, got {label}.")
        return np.flatnonzero(self._lookup.read()[0][self._choose(np.arange(len(self)))] == label)

    def find(self, name: str) -> int:
        """Returns the number in this view of the first record with this name, at the cost of `with_label`.

        Raises:
            ConfigError: There is no such record.
            FormatError: A record is damaged.
        """
        numbers = self._lookup.find_name(name)
        if isinstance(self._numbers, range):
            indices = [self._numbers.index(number) for number in numbers if number in self._numbers]
        else:
            indices = np.flatnonzero(np.isin(self._numbers, numbers)).tolist()
        if not indices:
            raise ConfigError(f"No record of {self.split!r} has the name {name!r}.")
        return min(indices)

    def close(self) -> None:
        """Closes all files, of every view; reading opens them again."""
        self._reader.close()

    def __enter__(self) -> DataSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _choose(self, numbers: Numbers) -> NDArray[np.int64]:
        """Converts numbers in this view to numbers in the split."""
        chosen = resolve_indices(numbers, len(self), self.split)
        if isinstance(self._numbers, range):
            return self._numbers.start + self._numbers.step * chosen
        return self._numbers[chosen]

    def _make_record(self, number: int, features: dict[str, Feature]) -> Record:
        manifest = self.manifest
        several = manifest.has_several_images
        images = list_images(features, manifest.image_keys) if manifest.image_key is not None else [b""]
        if not images or (len(images) > 1 and not several):
            must = f"{'a list of' if several else 'one'} {manifest.image_key}"
            raise FormatError(f"Record {number} of {self.split!r} must have {must}.")
        label, names = get_label(features, manifest), manifest.label_names
        name = get_text(features, self._lookup.name_key).decode("utf-8", "surrogateescape")
        label_name = names[label] if label is not None and 0 <= label < len(names) else None
        all_images = tuple(images) if several else ()
        return Record(self.split, number, name, label, label_name, images[0], features, self._form, all_images)


def data_source(manifest: Manifest | str | os.PathLike[str], split: str) -> DataSource:
    """Opens the records of a split for random access, without TensorFlow.

    Opening reads the manifest only. Reading checks every record against its checksums.

    Args:
        manifest: A manifest from `load_manifest`, or a dataset's directory or URL.
        split: The name of a split.

    Raises:
        ConfigError: There is no such split; the dataset or its shards lie on another machine, or are compressed as
            a whole.
        DataError: The directory does not hold a finished dataset.
        FormatError: The manifest cannot be used.
    """
    manifest = load_if_path(manifest, Manifest)
    directory = manifest.directory
    if not directory:
        raise ConfigError("The manifest must come from `tfpipe.load_manifest`, so that it knows where its shards lie.")
    if not is_url(directory):
        directory = os.path.abspath(directory)  # a copy in another process may have another working directory
        columns = (replace(column, directory=os.path.abspath(column.directory)) for column in manifest.columns)
        manifest = replace(manifest, columns=tuple(columns))
    reader = RecordReader(directory, replace(manifest, directory=directory), split)
    return DataSource(reader, range(len(reader)), RecordLookup(reader, manifest.schema.name_key))


class RecordLookup:
    """The class and the name of every record of a split, read when they are first needed.

    A name is kept as a hash of 8 bytes, so a search for a name reads the records whose hash matches. The tables take
    16 bytes of memory a record.
    """

    def __init__(self, reader: RecordReader, name_key: str | None) -> None:
        self.name_key = name_key
        self._reader = reader
        self._tables: tuple[NDArray[np.int64], NDArray[np.uint64]] | None = None

    def find_name(self, name: str) -> list[int]:
        """Returns the numbers of the records with this name, ascending."""
        if self.name_key is None:
            raise ConfigError("The records of this dataset do not say where their images came from.")
        try:
            name_bytes = name.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            return []
        numbers = np.flatnonzero(self.read()[1] == np.uint64(_hash(name_bytes))).tolist()
        return [number for number in numbers if get_text(self._reader[number], self.name_key) == name_bytes]

    def read(self) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """Returns each record's class, counted from 0, or `NO_LABEL`, and the hash of its name: both [records]."""
        with _LOCK:
            if self._tables is None:
                labels, hashes = array("q"), array("Q")  # they grow with the records read, as a manifest may be wrong
                for features in self._reader:
                    label = get_label(features, self._reader.manifest)
                    labels.append(NO_LABEL if label is None else label)
                    hashes.append(_hash(get_text(features, self.name_key)))
                self._tables = np.array(labels, np.int64), np.array(hashes, np.uint64)
            return self._tables


def get_label(features: Mapping[str, Feature], manifest: Manifest) -> int | None:
    """Returns the class of a record, counted from 0; None if it has none, or several."""
    key = manifest.label_key
    stored = features.get(key) if key is not None else None
    if not isinstance(stored, np.ndarray) or stored.dtype != _INT64 or stored.size != 1:
        return None
    return max(int(stored[0]) - manifest.label_base, NO_LABEL + 1)  # never `NO_LABEL`, and never beyond int64


def get_text(features: Mapping[str, Feature], key: str | None) -> bytes:
    """Returns the value of a bytes feature; empty if there is none, or several."""
    values = features.get(key) if key is not None else None
    return values[0] if isinstance(values, list) and len(values) == 1 else b""


def _hash(name: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")
