"""A view: some records of a dataset, and how often each is read. A view numbers its own records from 0."""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tfpipe.errors import ConfigError, FormatError
from tfpipe.format.json_reader import join, parse_json, read, refuse, wrong

VIEWS_DIR = "views"
VIEW_SUFFIX = ".view"

WEIGHT_UNITS = 1 << 16
"""A weight of 1. Weights are stored as whole multiples of 1/65,536, so that every machine draws the same records."""

MAX_WEIGHT = 1000
MAX_VIEW_BYTES = 1 << 34
_Bytes: TypeAlias = bytes  # for use in a class with a field named `bytes`
_LEVEL = 4  # takes a third of the time of zlib's default, for a tenth more bytes
_MAGIC = "tfpipe view 1"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

_MAX_HEADER_BYTES = 1 << 26

HIDDEN = np.dtype([("number", "<i8"), ("label", "<i4"), ("size", "<i8")])
"""A record that `tfpipe delete` hid: its number, counted through all shards of the split; its class from 0, below 0 for
none; and its bytes in the shard. Hidden records of a split are an array of these by ascending number."""


@dataclass(frozen=True, slots=True, eq=False)
class ViewSplit:
    """The records of one split that a view reads."""

    numbers: NDArray[np.int64]  # [records], counted through all shards of the split, ascending
    weights: NDArray[np.uint32] | None  # [records], reads in an epoch in units of 1/65,536; None: once
    stored_records: int  # in the shards
    bytes: int  # of the chosen records in their files
    class_counts: tuple[int, ...]  # of chosen records; empty without labels
    fingerprint: str  # of the shards

    @property
    def records(self) -> int:
        """The number of chosen records."""
        return len(self.numbers)

    @property
    def epoch_records(self) -> int:
        """The number of records that an epoch of training reads: the sum of the weights, rounded."""
        if self.weights is None:
            return self.records
        return (int(self.weights.sum(dtype=np.int64)) + WEIGHT_UNITS // 2) // WEIGHT_UNITS

    def leave_out(self, hidden: NDArray[Any]) -> ViewSplit:
        """Returns the chosen records without the hidden ones, [n] of `HIDDEN`."""
        stays = ~np.isin(self.numbers, hidden["number"], assume_unique=True)
        gone = hidden[np.isin(hidden["number"], self.numbers, assume_unique=True)]
        labels, classes = gone["label"], len(self.class_counts)
        counts = np.bincount(labels[(labels >= 0) & (labels < classes)], minlength=classes)
        return replace(
            self,
            numbers=self.numbers[stays],
            weights=None if self.weights is None else self.weights[stays],
            bytes=self.bytes - int(gone["size"].sum()),
            class_counts=tuple((np.array(self.class_counts, np.int64) - counts).tolist()) if self.class_counts else (),
        )

    def list_rows(self, first: int, count: int) -> NDArray[np.int64]:
        """Lists the chosen records from `first` to `first + count`, numbered from `first`: int64 [n]."""
        begin, end = np.searchsorted(self.numbers, (first, first + count))
        return self.numbers[begin:end] - first

    @property
    def digest(self) -> str:
        """The SHA-256 of the chosen numbers and their weights, as hexadecimal digits."""
        found = hashlib.sha256(self.numbers.astype("<i8").tobytes())
        if self.weights is not None:
            found.update(self.weights.astype("<u4").tobytes())
        return found.hexdigest()

    def pack(self) -> tuple[_Bytes, _Bytes]:
        """Returns the chosen records as a compressed bitmap, and the compressed weights; empty without weights."""
        bits = np.zeros(self.stored_records, np.bool_)
        bits[self.numbers] = True
        weights = b"" if self.weights is None else zlib.compress(self.weights.astype("<u4").tobytes(), _LEVEL)
        return zlib.compress(np.packbits(bits).tobytes(), _LEVEL), weights

    def __reduce__(self) -> tuple[object, ...]:
        # A pickle takes an eighth of a byte for each stored record, in place of 8 bytes for each chosen record.
        fields = self.stored_records, self.bytes, self.class_counts, self.fingerprint
        return _unpack, (*self.pack(), self.records, *fields)


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """Some records of each split of a dataset."""

    name: str
    splits: Mapping[str, ViewSplit]  # an empty one where no record was chosen
    made_from: Mapping[str, object] = field(default_factory=dict)  # the options that made it, for people

    def encode(self) -> bytes:
        """Encodes the view as the bytes of its file."""
        blocks: list[bytes] = []
        splits = {}
        for name, split in self.splits.items():
            chosen, weights = split.pack()
            blocks += [chosen, weights]
            fields = split.records, split.stored_records, split.bytes, split.class_counts, split.fingerprint
            splits[name] = _SplitHeader(*fields, len(chosen), len(weights))
        return encode_headed(_MAGIC, asdict(_Header(self.name, dict(self.made_from), splits)), blocks)


@dataclass
class _SplitHeader:
    records: int
    stored_records: int
    bytes: int
    class_counts: tuple[int, ...]
    fingerprint: str
    chosen_bytes: int
    weight_bytes: int


@dataclass
class _Header:
    name: str
    made_from: Mapping[str, object]
    splits: Mapping[str, _SplitHeader]


def decode_view(data: bytes, where: str, records: Mapping[str, int]) -> View:
    """Decodes a view; `records` are those of each split, a bound that is checked before a bitmap takes memory."""
    document, body = decode_headed(data, where, _MAGIC, "Make the view again by `tfpipe view`.")
    header = read(document, _Header, where)
    splits, at = {}, 0
    for name, split in header.splits.items():
        check_records(split.stored_records, where, name, records, "Make it again by `tfpipe view`.")
        path, end = join("splits", name), at + split.chosen_bytes
        if split.records > split.stored_records:
            must = f"a whole number of at least 0 and at most {split.stored_records}"
            raise wrong(where, f"{path}.records", must, split.records)
        fields = split.records, split.stored_records, split.bytes, split.class_counts, split.fingerprint
        try:
            splits[name] = _unpack(body[at:end], body[end : end + split.weight_bytes], *fields)
        except (ValueError, zlib.error) as error:
            raise refuse(where, path, f"it is damaged: {error}.") from None
        at = end + split.weight_bytes
    return View(header.name, splits, header.made_from)


def is_view_name(name: str) -> bool:
    """Returns whether a view can have this name."""
    return _NAME.fullmatch(name) is not None and not name.isdecimal()


def check_view_name(name: str) -> str:
    """Returns `name`. Raises `ConfigError` if it cannot name a view."""
    if name.isdecimal():
        raise ConfigError(f"A view's name must have more than digits, because @{name} is a layer, got {name!r}.")
    if not is_view_name(name):
        raise ConfigError(
            "A view's name must have at most 64 letters, digits, dots, dashes and underscores, and begin with a letter "
            f"or a digit, got {name!r}."
        )
    return name


def check_records(count: int, where: str, split: str, records: Mapping[str, int], advice: str) -> None:
    """Refuses a file whose header claims more records than the shards of the split have."""
    if count > (most := records.get(split, 0)):
        raise FormatError(
            f"{where} was made for other shards: it names {count:,} records of {split!r}, and there are {most:,}. "
            f"{advice}"
        )


def _unpack(chosen: bytes, weights: bytes, records: int, stored_records: int, *fields: Any) -> ViewSplit:
    """Restores a split from the two values of `ViewSplit.pack`. Raises ValueError or zlib.error if they are damaged."""
    bitmap = np.frombuffer(inflate(chosen, -(-stored_records // 8)), np.uint8)
    numbers = np.flatnonzero(np.unpackbits(bitmap, count=stored_records)).astype(np.int64)
    if len(numbers) != records:
        raise ValueError(f"it has {len(numbers)} records and not {records}")
    table = np.frombuffer(inflate(weights, 4 * records), "<u4").astype(np.uint32) if weights else None
    return ViewSplit(numbers, table, stored_records, *fields)


def encode_headed(magic: str, header: Mapping[str, object], blocks: Iterable[bytes]) -> bytes:
    """Encodes a file as a line of JSON with its format and SHA-256, and binary blocks."""
    body, line = b"".join(blocks), {"format": magic, **header}
    return _dump(line | {"sha256": _hash(line, body)}) + b"\n" + body


def decode_headed(data: bytes, where: str, magic: str, advice: str) -> tuple[Any, bytes]:
    """Decodes a file of `encode_headed` into its header and the bytes after that; checks the format and the SHA-256."""
    text, newline, _ = data[:_MAX_HEADER_BYTES].partition(b"\n")
    body = data[len(text) + 1 :]
    try:
        line = parse_json(text.decode(), where)
    except UnicodeDecodeError:
        newline = b""
    if not newline:
        raise FormatError(f"{where} is not a {magic.split()[1]} of tfpipe, or is damaged.")
    if (found := read(line, dict[str, Any], where).get("format")) != magic:
        raise wrong(where, "format", repr(magic), found)
    try:
        is_whole = line.pop("sha256", None) == _hash(line, body)
    except UnicodeEncodeError:  # half a surrogate pair is valid JSON, but not a text that was written
        is_whole = False
    if not is_whole:
        raise FormatError(f"{where} is damaged: its bytes have another checksum. {advice}")
    return line, body


def inflate(data: bytes, size: int) -> bytes:
    """Decompresses data that must give exactly `size` bytes, and no more. Otherwise raises ValueError or zlib.error."""
    inflater = zlib.decompressobj()
    plain = inflater.decompress(data, size + 1)
    if len(plain) != size or not inflater.eof:
        raise ValueError(f"it does not decompress to {size} bytes")
    return plain


def _dump(line: Mapping[str, object]) -> bytes:
    return json.dumps(line, ensure_ascii=False).encode()


def _hash(line: Mapping[str, object], body: bytes) -> str:
    return hashlib.sha256(_dump(line) + b"\n" + body).hexdigest()
