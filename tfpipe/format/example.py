"""Writes and reads the bytes of a `tf.train.Example` without TensorFlow; each level is a tag byte, a length and a body.

Example { 1: Features { 1: entry { 1: key, 2: Feature { 1: BytesList | 2: FloatList | 3: Int64List } } } }
SequenceExample { 1: Features, 2: FeatureLists }
"""

import struct
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tfpipe.errors import ConfigError
from tfpipe.format.protobuf_wire import (
    FIXED32,
    LENGTH,
    VARINT,
    expect,
    fields,
    read_int64s,
    read_varint,
    varint,
    wire_error,
)
from tfpipe.system.budget import FIELDS, Budget

Feature: TypeAlias = list[bytes] | NDArray[np.int64] | NDArray[np.float32] | None
"""A decoded feature: a list of bytes, an int64 or float32 array [n], or None if the feature has no kind."""

FeatureLike: TypeAlias = bytes | str | int | float | Sequence[Any] | NDArray[Any] | np.generic | None
"""A value that can be encoded as a feature: a scalar, a list of one kind, an array (in row order), or None."""

_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3
_LISTS: dict[int, tuple[Callable[[], Any], str, tuple[int, ...]]] = {
    _BYTES_LIST: (list, "BytesList.value", (LENGTH,)),
    _FLOAT_LIST: (bytearray, "FloatList.value", (LENGTH, FIXED32)),
    _INT64_LIST: (lambda: array("q"), "Int64List.value", (LENGTH, VARINT)),
}
"""For each kind of list: the type that collects its values, the name of its field, and the wire types allowed."""

_LEAST_ENTRY_BYTES = 10  # of an entry with one value: its tags and lengths
_USUAL_ENTRY_FIELDS = 5  # the entry, the key, the Feature, the list and the value

_SHARED_LENGTH = 16  # the longest text that is cached, such as the format of the image

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_UINT64_MASK = 2**64 - 1

_PLAIN: tuple[tuple[Any, Any], ...] = (
    *((bytes, bytes), (str, str)),
    *(((int, np.integer, np.bool_), int), ((float, np.floating), float)),
)
_pack_float = struct.Struct("<f").pack


# --- writing --------------------------------------------------------------------------------------


def encode_example(features: Mapping[str, FeatureLike]) -> bytes:
    """Encodes features as one serialized `tf.train.Example`, in the bytes of its deterministic `SerializeToString`.

    bytes and str (as UTF-8) become a bytes list, int and bool an int64 list, and float a float list, rounded to
    float32; beyond its range it becomes infinity. The values are copied once, into the result. An empty list becomes an
    empty bytes list. An empty array keeps the kind of its dtype.
    """
    chunks = [b""]
    for key, key_field in _key_fields(tuple(features)):
        value = features[key]
        kind = type(value)
        if kind is int or (kind is str and len(value) <= _SHARED_LENGTH):  # type: ignore[arg-type]
            chunks.append(_encode_shared(key, key_field, value))  # type: ignore[arg-type]
        else:
            chunks += _encode_entry(key, key_field, value)
    chunks[0] = b"\n" + varint(sum(map(len, chunks)))
    return b"".join(chunks)


def _encode_entry(key: str, key_field: bytes, value: FeatureLike) -> list[bytes]:
    """Encodes a key and its feature as a list of chunks, so that a large value is not copied."""
    body = _feature(key, value)
    size = sum(map(len, body))
    head = key_field + b"\x12" + varint(size)
    return [b"\n" + varint(len(head) + size) + head, *body]


@lru_cache(maxsize=4096)
def _encode_shared(key: str, key_field: bytes, value: FeatureLike) -> bytes:
    """Encodes a key with a value that many records share, such as a width, and caches the result."""
    return b"".join(_encode_entry(key, key_field, value))


@lru_cache(maxsize=256)
def _key_fields(keys: tuple[str, ...]) -> tuple[tuple[str, bytes], ...]:
    """Returns the keys in the order of serialization, each with its encoded field. Cached: records share their keys."""
    encoded = []
    for key in keys:
        if not isinstance(key, str):
            raise ConfigError(f"A feature's key must be text, got {key!r}.")
        raw = _utf8(key, key)
        # Deterministic protobuf in Python sorts keys by bytes, except that a key comes before its own prefixes. The
        # byte 0xff never occurs in UTF-8, so appended to a key it gives this order.
        encoded.append((raw + b"\xff", key, b"\n" + varint(len(raw)) + raw))
    return tuple((key, field) for _, key, field in sorted(encoded))


def _feature(key: str, value: FeatureLike) -> list[bytes]:
    """Encodes the body of a Feature message as a list of chunks. Tests the usual types of an image record first."""
    kind = type(value)
    if kind is bytes:
        return _bytes_list([value])  # type: ignore[list-item]
    if kind is int or kind is bool:
        return _int64_list(key, [value])  # type: ignore[list-item]
    if kind is str:
        return _bytes_list([_utf8(key, value)])  # type: ignore[arg-type]
    if kind is float:
        return _float_list(_floats([value]))  # type: ignore[list-item]
    if value is None:
        return []
    if isinstance(value, list | tuple):
        return _list(key, value)
    if isinstance(value, np.ndarray):
        return _array(key, value)
    if isinstance(value, bytes | str | int | float | np.generic):
        return _list(key, [value])
    raise ConfigError(f"Feature {key!r} must be bytes, text, a number, or a list or array of one of them, got {kind}.")


def _list(key: str, values: Sequence[Any]) -> list[bytes]:
    kinds = set(map(type, values))
    if not kinds <= {bytes, str, int, bool, float}:
        values = [_plain(key, value) for value in values]
        kinds = set(map(type, values))
    if kinds <= {bytes}:
        return _bytes_list(values)
    if kinds <= {bytes, str}:
        return _bytes_list([value if type(value) is bytes else _utf8(key, value) for value in values])
    if kinds <= {int, bool}:
        return _int64_list(key, values)
    if kinds == {float}:
        return _float_list(_floats(values))
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise ConfigError(f"The list of feature {key!r} must hold one kind of value, got {names}.")


def _plain(key: str, value: object) -> bytes | str | int | float:
    """Converts a list element to its built-in type. NumPy scalars and subclasses such as `IntEnum` come here."""
    for kinds, make in _PLAIN:
        if isinstance(value, kinds):
            plain: bytes | str | int | float = make(value)
            return plain
    raise ConfigError(f"The list of feature {key!r} must hold bytes, text or numbers, got a {type(value).__name__}.")


def _array(key: str, values: NDArray[Any]) -> list[bytes]:
    kind = values.dtype.kind
    if kind == "f":
        with np.errstate(over="ignore"):  # a number beyond float32 becomes infinity, as in protobuf
            return _float_list(values.astype("<f4").tobytes())
    if kind in "iub":
        return _int64_list(key, values.ravel().tolist())
    raise ConfigError(
        f"The array of feature {key!r} must be of integers or floats, got {values.dtype}; "
        "pass bytes and text as a list."
    )


def _bytes_list(values: Sequence[bytes]) -> list[bytes]:
    chunks = [b""]
    size = 0
    for value in values:
        head = b"\n" + varint(len(value))
        chunks.append(head)
        chunks.append(value)
        size += len(head) + len(value)
    chunks[0] = b"\n" + varint(size)
    return chunks


def _int64_list(key: str, values: Sequence[int]) -> list[bytes]:
    if not values:
        return [b"\x1a\x00"]
    low, high = min(values), max(values)
    if low < _INT64_MIN or high > _INT64_MAX:
        raise ConfigError(f"Feature {key!r} must fit int64, got {hex(low if low < _INT64_MIN else high)[:40]}.")
    # Below 128 a varint is the byte itself, which covers most labels.
    run = bytes(values) if low >= 0 and high < 128 else b"".join([varint(v & _UINT64_MASK) for v in values])
    return [b"\x1a" + _packed(run)]


def _float_list(run: bytes) -> list[bytes]:
    return [b"\x12" + (_packed(run) if run else b"\x00")]


def _packed(run: bytes) -> bytes:
    """Encodes packed numbers as field 1 of a message, with the length of that message in front."""
    field = b"\n" + varint(len(run)) + run
    return varint(len(field)) + field


def _floats(values: Sequence[float]) -> bytes:
    try:
        return b"".join([_pack_float(value) for value in values])
    except OverflowError:  # struct refuses a number that protobuf turns into infinity
        with np.errstate(over="ignore"):
            return np.array(values, np.float64).astype("<f4").tobytes()


def _utf8(key: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"Feature {key!r}: text must be valid Unicode, got {text[:80]!r}.") from None


# --- reading --------------------------------------------------------------------------------------


def decode_example(data: bytes | memoryview, widths: dict[str, int] | None = None) -> dict[str, Feature]:
    """Decodes one serialized `tf.train.Example` into copies, in the order of its bytes.

    Of a `tf.train.SequenceExample` the features of its context come first, then each of its lists as one feature with
    the values of all steps. `widths` gets the number of values that each step of a list has, and -1 if these differ.

    As in protobuf, numbers may be packed or not, unknown fields except groups are skipped, the last value of a repeated
    key counts, and parts of one feature are merged. Time and memory grow with the size of `data` and the number of
    fields, of which there may be at most 100,000.
    """
    buffer = data if isinstance(data, bytes) else bytes(data)
    features: dict[str, Feature] = {}
    lists: dict[str, tuple[Feature, int]] = {}
    budget = FIELDS.renew()
    for field, wire, start, stop in fields(buffer, 0, len(buffer), budget):
        if field == 2 and wire == LENGTH:
            lists.update(_read_lists(buffer, start, stop, budget))
        if field != 1:
            continue
        expect(wire == LENGTH, "Example.features", wire, start)
        while start < stop:
            usual = _read_usual_entry(buffer, start, stop, budget)
            if usual is not None:
                key, features[key], start = usual
                continue
            field, wire, entry_start, start = next(fields(buffer, start, stop, budget))
            if field == 1:
                expect(wire == LENGTH, "Features.feature", wire, entry_start)
                key, feature = _entry(buffer, entry_start, start, budget)
                features[key] = feature
    for key, (feature, width) in lists.items():
        if key in features:
            raise wire_error(f"{key[:80]!r} is both a feature of the context and a list of steps", len(buffer))
        features[key] = feature
        if widths is not None:
            widths[key] = width
    return features


def _read_lists(buffer: bytes, pos: int, end: int, budget: Budget) -> Iterator[tuple[str, tuple[Feature, int]]]:
    """Yields each list of steps: its name, its values, and the number of values in each step (-1 if these differ).

    FeatureLists { 1: entry { 1: key, 2: FeatureList { 1: Feature, repeated } } }
    """
    for field, wire, start, stop in fields(buffer, pos, end, budget):
        if field != 1:
            continue
        expect(wire == LENGTH, "FeatureLists.feature_list", wire, start)
        key, steps = "", (stop, stop)
        for inner, inner_wire, inner_start, inner_stop in fields(buffer, start, stop, budget):
            if inner == 1:
                expect(inner_wire == LENGTH, "a list's key", inner_wire, inner_start)
                key = _key(buffer, inner_start, inner_stop)
            elif inner == 2:
                expect(inner_wire == LENGTH, "FeatureList", inner_wire, inner_start)
                steps = inner_start, inner_stop
        yield key, _read_equal_steps(buffer, *steps, budget) or _read_steps(buffer, *steps, budget)


def _read_steps(buffer: bytes, pos: int, end: int, budget: Budget) -> tuple[Feature, int]:
    """Reads the values of all steps of a list, and the number of values in each step (-1 if these differ)."""
    kind, values, counts = 0, None, set[int]()
    for field, wire, start, stop in fields(buffer, pos, end, budget):
        if field != 1:
            continue
        expect(wire == LENGTH, "FeatureList.feature", wire, start)
        before = len(values or ())
        step_kind, values = _read_feature(buffer, start, stop, kind, values, budget)
        if kind and step_kind != kind:
            raise wire_error("the steps of a list are of different kinds", start)
        kind = step_kind
        counts.add((len(values or ()) - before) // (4 if kind == _FLOAT_LIST else 1))
    return _finish(kind, values), -1 if len(counts) > 1 else max(counts, default=0)


def _read_equal_steps(buffer: bytes, pos: int, end: int, budget: Budget) -> tuple[Feature, int] | None:
    """Reads all steps at once if they differ in nothing but their values, such as vectors; otherwise returns None."""
    at, tags = pos, []
    size, stop = 0, end
    for level in range(3):  # the Feature, the list and the value
        if at >= stop:
            return None
        tags.append(buffer[at])
        size, at = read_varint(buffer, at + 1, stop, 10)
        if at + size > stop or (level and at + size != stop):
            return None
        stop = at + size
    count, rest = divmod(end - pos, stop - pos)
    is_text = tags == [10, 10, 10]
    if rest or budget.items < 3 * count or not (is_text or (tags == [10, 18, 10] and size % 4 == 0 and size)):
        return None
    steps = np.frombuffer(buffer, np.uint8, end - pos, pos).reshape(count, stop - pos)
    if (steps[:, : at - pos] != steps[0, : at - pos]).any():
        return None
    budget.items -= 3 * count
    if is_text:
        return [buffer[first : first + size] for first in range(at, at + count * (stop - pos), stop - pos)], 1
    return np.frombuffer(steps[:, at - pos :].tobytes(), "<f4").astype(np.float32), size // 4


def _read_usual_entry(buffer: bytes, pos: int, end: int, budget: Budget) -> tuple[str, Feature, int] | None:
    """Reads an entry of one value or one packed list, four times as fast as `_entry`; returns None for any other."""
    if buffer[pos] != 10 or end - pos < _LEAST_ENTRY_BYTES or budget.items < _USUAL_ENTRY_FIELDS:
        return None
    size, at = read_varint(buffer, pos + 1, end, 10)
    stop = at + size
    if stop > end or size < _LEAST_ENTRY_BYTES - 2 or buffer[at] != 10 or buffer[at + 1] > 127:
        return None
    key_at, at, tags = at + 2, at + 2 + buffer[at + 1], []
    key_stop = at
    for _ in range(3):  # the Feature, the list and the value
        if at >= stop:
            return None
        tags.append(buffer[at])
        size, at = read_varint(buffer, at + 1, stop, 10)
        if at + size != stop:
            return None
    feature: Feature
    if tags == [18, 10, 10]:
        feature = [buffer[at:stop]]
    elif tags == [18, 26, 10]:
        feature = _read_small_run(buffer, at, stop)
    elif tags == [18, 18, 10] and size % 4 == 0:
        feature = np.array(np.frombuffer(buffer, "<f4", size // 4, at), np.float32)
    else:
        return None
    budget.items -= _USUAL_ENTRY_FIELDS
    return _key(buffer, key_at, key_stop), feature, stop


def _read_small_run(buffer: bytes, start: int, stop: int) -> NDArray[np.int64]:
    if stop - start == 1 and buffer[start] < 128:
        return np.array((buffer[start],), np.int64)
    ints: array[int] = array("q")
    read_int64s(buffer, start, stop, ints)
    return np.array(ints, np.int64)


def _entry(buffer: bytes, pos: int, end: int, budget: Budget) -> tuple[str, Feature]:
    """Reads one key and its feature. A list of another kind replaces the values read before it."""
    key, kind = "", 0
    values: Any = None
    for field, wire, start, stop in fields(buffer, pos, end, budget):
        if field == 1:
            expect(wire == LENGTH, "a feature's key", wire, start)
            key = _key(buffer, start, stop)
        elif field == 2:
            expect(wire == LENGTH, "Feature", wire, start)
            kind, values = _read_feature(buffer, start, stop, kind, values, budget)
    return key, _finish(kind, values)


def _read_feature(buffer: bytes, pos: int, end: int, kind: int, values: Any, budget: Budget) -> tuple[int, Any]:
    """Appends a Feature's values to `values`, or replaces them if the kind differs; returns the kind and the values."""
    for list_kind, wire, start, stop in fields(buffer, pos, end, budget):
        if list_kind not in _LISTS:
            continue
        expect(wire == LENGTH, "a feature's list", wire, start)
        if list_kind != kind:
            kind, values = list_kind, _LISTS[list_kind][0]()
        _read_values(buffer, start, stop, kind, values, budget)
    return kind, values


def _finish(kind: int, values: Any) -> Feature:
    """Converts the collected values of a kind to a decoded feature."""
    if kind == _FLOAT_LIST:
        return np.array(np.frombuffer(values, "<f4") if values else (), np.float32)
    return np.array(values, np.int64) if kind == _INT64_LIST else values


def _key(buffer: bytes, start: int, stop: int) -> str:
    try:
        return buffer[start:stop].decode()
    except UnicodeDecodeError as error:
        raise wire_error("a feature's key is not UTF-8", start + error.start) from None


def _read_values(buffer: bytes, pos: int, end: int, kind: int, out: Any, budget: Budget) -> None:
    """Appends the values of a list to `out`: byte strings, integers, or the raw bytes of floats."""
    _, name, wires = _LISTS[kind]
    for field, wire, start, stop in fields(buffer, pos, end, budget):
        if field != 1:
            continue
        expect(wire in wires, name, wire, start)
        if kind == _BYTES_LIST:
            out.append(buffer[start:stop])
        elif kind == _INT64_LIST:
            read_int64s(buffer, start, stop, out)
        elif (stop - start) % 4:
            raise wire_error(f"packed floats must be a multiple of 4 bytes, got {stop - start}", start)
        else:
            out += buffer[start:stop]
