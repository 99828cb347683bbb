"""JPEGs to compare decoders with: from drawn coefficients, by Pillow, photographs, and all of them changed."""

import io
import random
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from PIL import Image

from tests.conftest import ROOT
from tests.fuzz.mutate import change_bytes
from tests.native.jpeg_writer import draw_jpeg

_NOT_SOUND = ("square-cut-in-half", "square-no-end-marker", "circle-png-inside")  # of sample_data/


class File(NamedTuple):
    """A file, how it came about, and whether a decoder must take it."""

    data: bytes
    family: str
    description: str
    sound: bool


def draw_file(seed: int) -> File:
    rng = random.Random(seed)
    kind = rng.random()
    if kind < 0.5:
        drawn = draw_jpeg(rng.getrandbits(48), wild=rng.random() < 0.15)
        file = File(drawn.data, drawn.family, drawn.description, drawn.sound)
    elif kind < 0.8:
        file = _draw_by_pillow(rng)
    else:
        name, data = rng.choice(_read_samples())
        file = File(data, "sample", name, not name.startswith(_NOT_SOUND))
    if rng.random() < 0.45:
        data, said = change_jpeg(file.data, rng)
        file = File(data, f"changed {file.family}", f"{said} of {file.description}", False)
    return file


@cache
def _read_samples() -> list[tuple[str, bytes]]:
    return [(path.name, path.read_bytes()) for path in sorted((ROOT / "sample_data").glob("*/*.jpg"))]


def _draw_by_pillow(rng: random.Random) -> File:
    mode = rng.choice(("RGB", "RGB", "RGB", "L", "CMYK"))
    height, width = rng.randint(1, 120), rng.randint(1, 120)
    numbers = np.random.default_rng(rng.getrandbits(48))
    channels = len(Image.new(mode, (1, 1)).getbands())
    small = numbers.integers(0, 256, (max(1, height // rng.choice((1, 6))), max(1, width // 6), channels), np.uint8)
    image = Image.fromarray(small if channels > 1 else small[..., 0], mode).resize((width, height), rng.choice((0, 2)))
    options: dict[str, object] = {"quality": rng.choice((1, 20, 75, 90, 95, 100)), "progressive": rng.random() < 0.4}
    options["optimize"] = rng.random() < 0.4
    if mode == "RGB":
        options |= {"subsampling": rng.randrange(3), "keep_rgb": rng.random() < 0.15}
    if rng.random() < 0.4:
        options[rng.choice(("restart_marker_blocks", "restart_marker_rows"))] = rng.randint(1, 6)
    if rng.random() < 0.2:
        options |= {"comment": b"a comment", "icc_profile": rng.randbytes(40), "exif": b"Exif\0\0" + rng.randbytes(30)}
    buffer = io.BytesIO()
    try:
        image.save(buffer, "JPEG", **options)
    except OSError:  # no encoder for these options together
        return _draw_by_pillow(rng)
    return File(buffer.getvalue(), "pillow", f"{mode} {height} x {width} {options}", True)


_PLAIN = frozenset((0x01, *range(0xD0, 0xD9)))  # markers without a length
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_DQT, _DHT, _SOS, _DRI, _ADOBE, _END = 0xDB, 0xC4, 0xDA, 0xDD, 0xEE, 0xD9
_SIDES = (0, 1, 2, 7, 8, 9, 16, 17, 255, 256, 4095, 65500, 65501, 65535)
_RESTARTS = range(0xD0, 0xD8)

_FIELDS: Sequence[tuple[Collection[int], Sequence[int], Sequence[int]]] = (
    (_FRAMES, (0,), (0, 1, 7, 9, 12, 16, 255)),  # the bits of a sample
    (_FRAMES, (7, 10, 13, 16), (0x11, 0x21, 0x12, 0x22, 0x31, 0x13, 0x41, 0x14, 0x42, 0x24, 0x44, 0x33, 0, 0x51, 0xFF)),
    (_FRAMES, (7, 10, 13, 16), (0x11, 0x21, 0x12, 0x22, 0x31, 0x13, 0x41, 0x14)),
    (_FRAMES, (6, 8, 9, 11, 12, 14, 15, 17), (0, 1, 2, 3, 4, 82, 71, 66, 255)),  # the numbers of components and tables
    ((_DHT,), range(17), (0, 1, 2, 3, 255)),  # how many codes have each length
    ((_DHT,), range(17, 180), range(256)),  # symbols
    ((_DQT,), range(1, 66), (0, 1, 2, 127, 128, 255)),
    ((_DQT,), (0,), (0, 1, 2, 0x10, 0x11, 0x20)),
    ((_DRI,), (0, 1), (0, 1, 2, 3, 5, 8, 100, 255)),
    ((_ADOBE,), (*range(12), 11, 11, 11, 11), (0, 1, 2, 3, 255)),
    ((_SOS,), (*range(10), -1, -2, -3), (0, 1, 2, 3, 5, 62, 63, 64, 255, 0x10, 0x01, 0x21, 0x32, 0x12, 0x0D, 0xD0)),
    ((_SOS,), (-1, -2, -3), (0, 1, 2, 5, 62, 63, 64, 0x10, 0x21, 0x32)),
)
"""The markers of segments, the places in such a segment, and the values that are tried there."""


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
        if self.marker in _PLAIN or self.marker == _END:
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
        if marker == _END:
            segments.append(Segment(marker, bytearray(data[at:]), bytearray()))
            break
        end = at + max(2, int.from_bytes(data[at : at + 2], "big"))
        one = Segment(marker, bytearray(data[at + 2 : end]), bytearray())
        at = end
        if marker == _SOS:
            while at < len(data) and not (
                data[at] == 0xFF and at + 1 < len(data) and data[at + 1] not in (0, 0xFF, *_RESTARTS)
            ):
                at += 1
            one.scan += data[end:at]
        segments.append(one)
    return segments


def change_jpeg(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    said = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if rng.random() < 0.75:
            segments = split(data)
            what = rng.choice(_CHANGES)
            what(segments, rng)
            data = b"".join(one.join() for one in segments)
            said.append(what.__name__.strip("_"))
        else:
            data = change_bytes(data, rng)
            said.append("bytes")
    return data, " ".join(said)


def _pick(segments: list[Segment], markers: Iterable[int], rng: random.Random) -> Segment | None:
    found = [one for one in segments if one.marker in markers and one.body]
    return rng.choice(found) if found else None


def _insert(segments: list[Segment], rng: random.Random, marker: int, body: bytes) -> None:
    segments.insert(rng.randint(1, len(segments)), Segment(marker, bytearray(body), bytearray()))


def _field(segments: list[Segment], rng: random.Random) -> None:
    markers, places, values = rng.choice(_FIELDS)
    if one := _pick(segments, markers, rng):
        at = rng.choice(places)
        if -len(one.body) <= at < len(one.body):
            one.body[at] = rng.choice(values)


def _frame_side(segments: list[Segment], rng: random.Random) -> None:
    if one := _pick(segments, _FRAMES, rng):
        at = rng.choice((1, 3))
        before = int.from_bytes(one.body[at : at + 2], "big")
        side = rng.choice((*_SIDES, before + rng.randint(-20, 20), before * 2)) & 0xFFFF
        one.body[at : at + 2] = side.to_bytes(2, "big")


def _frame_kind(segments: list[Segment], rng: random.Random) -> None:
    if one := _pick(segments, _FRAMES, rng):
        one.marker = rng.choice((0xC0, 0xC1, 0xC2, *_FRAMES))


def _frame_count(segments: list[Segment], rng: random.Random) -> None:
    one = _pick(segments, _FRAMES, rng)
    if one and len(one.body) > 5:
        count = one.body[5] = rng.choice((0, 1, 2, 3, 4, 5, 10))
        if rng.random() < 0.6:
            one.body[6:] = (one.body[6:] * 5)[: 3 * count]


def _add(segments: list[Segment], rng: random.Random) -> None:
    """Adds an interval of restart markers, Adobe's marker, or bytes between segments."""
    for _ in range(rng.randint(1, 3)):
        kind = rng.randrange(4)
        if kind == 0:
            _insert(segments, rng, _DRI, rng.choice((0, 1, 2, 3, 5, 8, 100, 65535)).to_bytes(2, "big"))
        elif kind == 1:
            _insert(segments, rng, _ADOBE, b"Adobe\0\x64\0\0\0\0" + bytes((rng.randrange(4),)))
        else:
            restart = bytes((0xFF, rng.choice(_RESTARTS)))
            between = (bytes(rng.randint(1, 4)), b"\xff\0", b"\xff\x01", restart, b"\xff\xff", rng.randbytes(3))
            _insert(segments, rng, 0, rng.choice(between))


def _swap(segments: list[Segment], rng: random.Random) -> None:
    """Puts two segments into each other's place, such as a refinement before the scan that it refines."""
    scans = [i for i, one in enumerate(segments) if one.marker == _SOS]
    places = scans if len(scans) > 1 and rng.random() < 0.5 else range(1, len(segments))
    if len(places) > 1:
        i, j = rng.sample(places, 2)
        segments[i], segments[j] = segments[j], segments[i]


def _repeat(segments: list[Segment], rng: random.Random) -> None:
    i = rng.randrange(1, len(segments)) if len(segments) > 1 else 0
    segments.insert(rng.randint(i, len(segments)), segments[i])


def _remove(segments: list[Segment], rng: random.Random) -> None:
    if len(segments) > 2:
        del segments[rng.choice((*range(1, len(segments)), len(segments) - 1))]  # the last one ends the image


def _resize(segments: list[Segment], rng: random.Random) -> None:
    if one := _pick(segments, range(1, 255), rng):
        if rng.random() < 0.5:
            del one.body[rng.choice((0, len(one.body) - 1, len(one.body) // 2)) :]
        else:
            one.body += rng.randbytes(rng.choice((1, 2, 17, 65)))


def _scan(segments: list[Segment], rng: random.Random) -> None:
    """Flips bits of entropy-coded data, cuts it, or changes the markers in it."""
    scans = [one.scan for one in segments if one.marker == _SOS and len(one.scan) > 2]
    if not scans:
        return
    scan, kind = rng.choice(scans), rng.randrange(5)
    found = [i for i in range(len(scan) - 1) if scan[i] == 0xFF and scan[i + 1] in _RESTARTS]
    if kind == 0:
        del scan[rng.randrange(len(scan)) :]
    elif kind < 3:
        for _ in range(rng.choice((1, 1, 3))):
            scan[rng.randrange(len(scan))] ^= 1 << rng.randrange(8)
    elif found and rng.random() < 0.7:
        i = rng.choice(found)
        scan[i : i + 2] = b"" if rng.random() < 0.5 else bytes((0xFF, rng.choice(_RESTARTS)))
    else:
        i = rng.randrange(len(scan) - 1)
        scan[i : i + rng.choice((0, 1, 2))] = bytes((0xFF, rng.choice((0xD9, 0xD8, 0xDA, 0xFF, 1, *_RESTARTS))))


_CHANGES: tuple[Callable[[list[Segment], random.Random], None], ...] = (
    *(_field,) * 12,
    *(_frame_side, _frame_side, _frame_kind, _frame_count, _add, _add, _add, _swap, _swap),
    *(_repeat, _remove, _resize, _resize, _scan, _scan, _scan, _scan, _scan),
)
