"""Changes to JPEGs: of one field, one segment or one scan at a time, and of plain bytes."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_PLAIN = frozenset((0x01, *range(0xD0, 0xD9)))  # markers without a length
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_DQT, _DHT, _SOS, _DRI, _ADOBE = 0xDB, 0xC4, 0xDA, 0xDD, 0xEE
_SIDES = (0, 1, 2, 7, 8, 9, 16, 17, 255, 256, 4095, 65500, 65501, 65535)


@dataclass
class Segment:
    """A marker, what its segment holds, and the entropy-coded data behind it. Marker 0 holds bytes without a marker."""

    marker: int
    body: bytearray
    scan: bytearray

    def join(self) -> bytes:
        if self.marker == 0:
            return bytes(self.body)
        head = bytes((0xFF, self.marker))
        if self.marker in _PLAIN or self.marker == 0xD9:
            return head + bytes(self.body)
        return head + ((len(self.body) + 2) & 0xFFFF).to_bytes(2, "big") + bytes(self.body) + bytes(self.scan)


def split(data: bytes) -> list[Segment]:
    """Splits a file, of any kind, so that its joined segments are the file again, but for fill bytes."""
    segments = [Segment(0, bytearray(data[:2]), bytearray())]
    at = 2
    while at < len(data):
        start = at
        while at + 1 < len(data) and not (data[at] == 0xFF and data[at + 1] not in (0, 0xFF)):
            at += 1
        if at + 1 >= len(data):
            segments.append(Segment(0, bytearray(data[start:]), bytearray()))
            break
        if at > start:
            segments.append(Segment(0, bytearray(data[start:at]), bytearray()))
        marker = data[at + 1]
        at += 2
        if marker in _PLAIN:
            segments.append(Segment(marker, bytearray(), bytearray()))
            continue
        if marker == 0xD9:
            segments.append(Segment(marker, bytearray(data[at:]), bytearray()))
            break
        end = at + max(2, int.from_bytes(data[at : at + 2], "big"))
        one = Segment(marker, bytearray(data[at + 2 : end]), bytearray())
        at = end
        if marker == _SOS:
            while at < len(data) and not (
                data[at] == 0xFF and at + 1 < len(data) and data[at + 1] not in (0, 0xFF, *range(0xD0, 0xD8))
            ):
                at += 1
            one.scan += data[end:at]
        segments.append(one)
    return segments


def change(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    said = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if rng.random() < 0.75:
            segments = split(data)
            what = rng.choice(_CHANGES)
            what(segments, rng)
            data = b"".join(one.join() for one in segments)
        else:
            what = rng.choice(_BYTES)
            data = what(data, rng)
        said.append(what.__name__.strip("_"))
    return data, " ".join(said)


def _pick(segments: list[Segment], markers: Iterable[int], rng: random.Random) -> Segment | None:
    found = [one for one in segments if one.marker in markers and one.body]
    return rng.choice(found) if found else None


def _set(body: bytearray, at: int, value: int) -> None:
    if at < len(body):
        body[at] = value & 255


def _frame_side(segments: list[Segment], rng: random.Random) -> None:
    if one := _pick(segments, _FRAMES, rng):
        at = rng.choice((1, 3))
        before = int.from_bytes(one.body[at : at + 2], "big")
        side = rng.choice((*_SIDES, before + rng.randint(-20, 20), before * 2)) & 0xFFFF
        one.body[at : at + 2] = side.to_bytes(2, "big")


def _frame_kind(segments: list[Segment], rng: random.Random) -> None:
    if one := _pick(segments, _FRAMES, rng):
        one.marker = rng.choice((0xC0, 0xC1, 0xC2, *_FRAMES))


def _frame_precision(segments: list[Segment], rng: random.Random) -> None:
    if one := _pick(segments, _FRAMES, rng):
        _set(one.body, 0, rng.choice((0, 1, 7, 9, 12, 16, 255)))


def _frame_count(segments: list[Segment], rng: random.Random) -> None:
    if one := _pick(segments, _FRAMES, rng):
        count = rng.choice((0, 1, 2, 3, 4, 5, 10))
        _set(one.body, 5, count)
        if rng.random() < 0.6:
            one.body[6:] = (one.body[6:] * 5)[: 3 * count]


def _frame_sampling(segments: list[Segment], rng: random.Random) -> None:
    if one := _pick(segments, _FRAMES, rng):
        factors = rng.choice((0x11, 0x21, 0x12, 0x22, 0x31, 0x13, 0x41, 0x14, 0x42, 0x24, 0x44, 0x33, 0x00, 0x51, 0xFF))
        _set(one.body, 7 + 3 * rng.randrange(4), factors)


def _frame_numbers(segments: list[Segment], rng: random.Random) -> None:
    if one := _pick(segments, _FRAMES, rng):
        _set(one.body, 6 + 3 * rng.randrange(4) + rng.choice((0, 2)), rng.choice((0, 1, 2, 3, 4, 82, 71, 66, 255)))


def _codes(segments: list[Segment], rng: random.Random) -> None:
    if one := _pick(segments, (_DHT,), rng):
        at = rng.randrange(17) if rng.random() < 0.6 else rng.randrange(len(one.body))
        _set(one.body, at, rng.choice((0, 1, 2, 3, 255, one.body[min(at, len(one.body) - 1)] + rng.choice((-1, 1)))))


def _symbols(segments: list[Segment], rng: random.Random) -> None:
    if (one := _pick(segments, (_DHT,), rng)) and len(one.body) > 17:
        for _ in range(rng.randint(1, 3)):
            _set(one.body, rng.randrange(17, len(one.body)), rng.randrange(256))


def _quantization(segments: list[Segment], rng: random.Random) -> None:
    if one := _pick(segments, (_DQT,), rng):
        if rng.random() < 0.3:
            one.body[0] ^= rng.choice((0x10, 0x01, 0x02, 0x04, 0x20))
            if one.body[0] & 0x10 and rng.random() < 0.7:
                one.body[1:] = one.body[1:65] * 2
        else:
            _set(one.body, rng.randrange(1, 66), rng.choice((0, 1, 2, 127, 128, 255)))


def _interval(segments: list[Segment], rng: random.Random) -> None:
    one = _pick(segments, (_DRI,), rng)
    interval = rng.choice((0, 1, 2, 3, 5, 8, 100, 65535)).to_bytes(2, "big")
    if one and rng.random() < 0.7:
        one.body[:2] = interval
    else:
        segments.insert(rng.randint(1, len(segments)), Segment(_DRI, bytearray(interval), bytearray()))


def _adobe(segments: list[Segment], rng: random.Random) -> None:
    one = _pick(segments, (_ADOBE,), rng)
    if one and rng.random() < 0.7:
        _set(one.body, 11 if rng.random() < 0.7 else rng.randrange(12), rng.choice((0, 1, 2, 3, 255)))
    else:
        body = bytearray(b"Adobe\0\x64\0\0\0\0" + bytes((rng.randrange(4),)))
        segments.insert(rng.randint(1, len(segments)), Segment(_ADOBE, body, bytearray()))


def _scan_header(segments: list[Segment], rng: random.Random) -> None:
    if one := _pick(segments, (_SOS,), rng):
        at = rng.randrange(len(one.body)) if rng.random() < 0.5 else len(one.body) - rng.randint(1, 3)
        at = max(at, 0)
        _set(one.body, at, rng.choice((0, 1, 2, 3, 5, 62, 63, 64, 255, 0x10, 0x01, 0x21, 0x32, 0x12, 0x0D, 0xD0)))


def _successive(segments: list[Segment], rng: random.Random) -> None:
    """Puts a scan into another place, as a refinement before what it refines."""
    scans = [i for i, one in enumerate(segments) if one.marker == _SOS]
    if len(scans) > 1:
        i, j = rng.sample(scans, 2)
        segments[i], segments[j] = segments[j], segments[i]


def _swap(segments: list[Segment], rng: random.Random) -> None:
    if len(segments) > 3:
        i, j = rng.sample(range(1, len(segments)), 2)
        segments[i], segments[j] = segments[j], segments[i]


def _repeat(segments: list[Segment], rng: random.Random) -> None:
    i = rng.randrange(1, len(segments)) if len(segments) > 1 else 0
    segments.insert(rng.randint(i, len(segments)), segments[i])


def _remove(segments: list[Segment], rng: random.Random) -> None:
    if len(segments) > 2:
        del segments[rng.randrange(1, len(segments))]


def _between(segments: list[Segment], rng: random.Random) -> None:
    kinds = (bytes(rng.randint(1, 4)), b"\xff\0", b"\xff\x01", bytes((0xFF, 0xD0 + rng.randrange(8))), b"\xff\xff")
    for _ in range(rng.randint(1, 3)):
        segments.insert(
            rng.randint(1, len(segments)), Segment(0, bytearray(rng.choice((*kinds, rng.randbytes(3)))), bytearray())
        )


def _empty(segments: list[Segment], rng: random.Random) -> None:
    if one := _pick(segments, range(1, 255), rng):
        del one.body[rng.choice((0, len(one.body) - 1, len(one.body) // 2)) :]


def _longer(segments: list[Segment], rng: random.Random) -> None:
    if one := _pick(segments, range(1, 255), rng):
        one.body += rng.randbytes(rng.choice((1, 2, 17, 65)))


def _no_end(segments: list[Segment], rng: random.Random) -> None:
    segments[:] = [one for one in segments if one.marker != 0xD9]


def _scan_bits(segments: list[Segment], rng: random.Random) -> None:
    scans = [one for one in segments if one.marker == _SOS and one.scan]
    if scans:
        scan = rng.choice(scans).scan
        for _ in range(rng.choice((1, 1, 3))):
            scan[rng.randrange(len(scan))] ^= 1 << rng.randrange(8)


def _scan_marker(segments: list[Segment], rng: random.Random) -> None:
    """Puts a marker among entropy-coded data, or takes a restart marker out of it, or gives it another number."""
    scans = [one for one in segments if one.marker == _SOS and len(one.scan) > 2]
    if not scans:
        return
    scan = rng.choice(scans).scan
    found = [i for i in range(len(scan) - 1) if scan[i] == 0xFF and 0xD0 <= scan[i + 1] <= 0xD7]
    if found and rng.random() < 0.7:
        i = rng.choice(found)
        if rng.random() < 0.5:
            del scan[i : i + 2]
        else:
            scan[i + 1] = 0xD0 + rng.randrange(8)
    else:
        i = rng.randrange(len(scan) - 1)
        scan[i : i + rng.choice((0, 1, 2))] = bytes((0xFF, rng.choice((0xD9, 0xD8, 0xDA, 0xFF, 1, *range(0xD0, 0xD8)))))


def _scan_cut(segments: list[Segment], rng: random.Random) -> None:
    scans = [one for one in segments if one.marker == _SOS and one.scan]
    if scans:
        scan = rng.choice(scans).scan
        del scan[rng.randrange(len(scan)) :]


def _flip_bits(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    end = len(changed) if rng.random() < 0.6 else min(len(changed), 700)
    for _ in range(rng.choice((1, 1, 2, 8))):
        if end:
            changed[rng.randrange(end)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _set_bytes(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 4))):
        if changed:
            changed[rng.randrange(len(changed))] = rng.choice((0, 255, rng.randrange(256)))
    return bytes(changed)


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randint(0, len(data))]


def _take_out(data: bytes, rng: random.Random) -> bytes:
    at, size = rng.randint(0, len(data)), rng.choice((1, 2, 5, 50))
    return data[:at] + data[at + size :]


_CHANGES: tuple[Callable[[list[Segment], random.Random], None], ...] = (
    *(_frame_side, _frame_side, _frame_kind, _frame_precision, _frame_count, _frame_sampling, _frame_sampling),
    *(_frame_numbers, _codes, _symbols, _quantization, _interval, _adobe, _scan_header, _scan_header, _successive),
    *(_swap, _repeat, _remove, _between, _between, _empty, _longer, _no_end, _scan_bits, _scan_bits, _scan_marker),
    *(_scan_marker, _scan_cut),
)
_BYTES: tuple[Callable[[bytes, random.Random], bytes], ...] = (_flip_bits, _set_bytes, _cut, _take_out)
