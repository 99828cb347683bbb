"""A table of a whole split by class and by name, built when it is first needed."""

import hashlib
from array import array
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tfpipe.engine.record_reader import RecordReader
from tfpipe.errors import ConfigError
from tfpipe.format.example import Feature
from tfpipe.format.manifest import Manifest
from tfpipe.system.fork_lock import ForkLock

NO_LABEL = -(2**63)
"""The class of a record without one: the least int64, which no stored label becomes."""

_INT64 = np.dtype(np.int64)  # NumPy takes longer to compare with the type


class RecordLookup:
    """The class and the name of every record of a split.

    A name is kept as 8 bytes of its hash, so a search for a name reads the records that may have it. 24 bytes a record
    are in memory.
    """

    def __init__(self, reader: RecordReader, name_key: str | None) -> None:
        self.name_key = name_key
        self._reader = reader
        self._lock = ForkLock()
        self._labels: NDArray[np.int64] | None = None
        self._hashes = np.empty(0, np.uint64)  # sorted
        self._order = np.empty(0, np.int64)  # the record of each hash

    def labels(self) -> NDArray[np.int64]:
        """Returns the class of every record, counted from 0, or `NO_LABEL`: int64 of shape [records]."""
        with self._lock:
            return self._read() if self._labels is None else self._labels

    def find_name(self, name: str) -> list[int]:
        """Returns the numbers of the records with this name, ascending."""
        if self.name_key is None:
            raise ConfigError("The records of this dataset do not say where their images came from.")
        self.labels()
        try:
            name_bytes = name.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            return []
        begin, end = (np.searchsorted(self._hashes, np.uint64(_hash(name_bytes)), side) for side in ("left", "right"))
        return [
            int(number)
            for number in np.sort(self._order[begin:end])
            if get_text(self._reader[int(number)], self.name_key) == name_bytes
        ]

    def _read(self) -> NDArray[np.int64]:
        labels, hashes = array("q"), array("Q")  # they grow with the records read, not with a manifest's promise
        for features in self._reader:
            label = get_label(features, self._reader.manifest)
            labels.append(NO_LABEL if label is None else label)
            hashes.append(_hash(get_text(features, self.name_key)))
        unsorted = np.array(hashes, np.uint64)
        self._order = np.argsort(unsorted, kind="stable")
        self._hashes = unsorted[self._order]
        self._labels = np.array(labels, np.int64)
        return self._labels


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
