"""Records by class and by name: a table of the whole split, made when it is first asked for."""

import hashlib
import threading
from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfpipe.errors import ConfigError
from tfpipe.format.example import Feature
from tfpipe.format.manifest import Manifest
from tfpipe.readers.record_reader import RecordReader

_NO_LABEL = -(2**63)


class Lookup:
    """Class and name of every record of a split.

    A name is kept as 8 bytes of its hash: whoever looks for one reads the records that may have it. 24 bytes a record.

    Args:
      reader: Of the split.
      name_key: The feature that holds a record's name; None where there is none.
    """

    def __init__(self, reader: RecordReader, name_key: str | None) -> None:
        self.name_key = name_key
        self._reader = reader
        self._lock = threading.Lock()
        self._labels: NDArray[np.int64] | None = None
        self._hashes = np.empty(0, np.uint64)  # sorted
        self._order = np.empty(0, np.int64)  # the record of each hash

    def labels(self) -> NDArray[np.int64]:
        """Class of every record, counted from 0: int64 of shape [records]; of one without a class, the least int64."""
        with self._lock:
            return self._read() if self._labels is None else self._labels

    def numbers_named(self, name: str) -> list[int]:
        """Numbers of the records with this name, ascending.

        Raises:
          ConfigError: The records have no names.
        """
        if self.name_key is None:
            raise ConfigError("The records of this dataset do not say where their images came from.")
        self.labels()
        try:
            wanted = name.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            return []
        begin, end = (np.searchsorted(self._hashes, np.uint64(_hash(wanted)), side) for side in ("left", "right"))
        return [
            int(number)
            for number in np.sort(self._order[begin:end])
            if one_text(self._reader[int(number)], self.name_key) == wanted
        ]

    def _read(self) -> NDArray[np.int64]:
        labels, hashes = array("q"), array("Q")  # they grow with what is read, not with what a manifest promises
        for features in self._reader:
            label = one_label(features, self._reader.manifest)
            labels.append(_NO_LABEL if label is None else label)
            hashes.append(_hash(one_text(features, self.name_key)))
        unsorted = np.array(hashes, np.uint64)
        self._order = np.argsort(unsorted, kind="stable")
        self._hashes = unsorted[self._order]
        self._labels = np.array(labels, np.int64)
        return self._labels

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()


def one_label(features: Mapping[str, Feature], manifest: Manifest) -> int | None:
    """The class that a record has, counted from 0; None where it has none, or several."""
    stored = features.get(manifest.label_key) if manifest.label_key is not None else None
    if not isinstance(stored, np.ndarray) or stored.dtype != np.int64 or stored.size != 1:
        return None
    return max(int(stored[0]) - manifest.label_base, _NO_LABEL + 1)  # never beyond int64


def one_text(features: Mapping[str, Feature], key: str | None) -> bytes:
    """The one value of a bytes feature; empty where there is none, or several."""
    values = features.get(key) if key is not None else None
    return values[0] if isinstance(values, list) and len(values) == 1 else b""


def _hash(name: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")
