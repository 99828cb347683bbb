"""Writes JPEGs of every kind that a decoder must take, from coefficients; for tests.

```
drawn = draw_jpeg(7)                     # everything is drawn from the seed
drawn.data, drawn.description            # the file, and what was drawn
python -m tests.native.jpeg_writer FOLDER COUNT SEED

image = Image(40, 40, [make_component(40, 40, 1, (1, 1), (1, 1), 0, planes)], {0: table})
data = write_jpeg(image, [Scan((0,))], Options())
```

Pillow writes few kinds of JPEG. This writer knows all Huffman processes of ITU T.81 for 8-bit samples (baseline,
extended, progressive), all sampling factors, any order of scans and segments, and tables that no encoder would choose.
Blocks that only fill up an MCU hold coefficients of their own, as a decoder must not show them.
"""

import random
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Token = tuple[int, int, int, int]
"""The key of a Huffman table (-1: none), a symbol, bits that follow it, and their number."""
Table = dict[int, tuple[int, int]]
"""The code of each symbol and its length."""

ZIGZAG = np.array(
    [v * 8 + u for s in range(15) for v, u in [(i, s - i) if s % 2 else (s - i, i) for i in range(s + 1)] if v < 8 > u]
)
"""The index in a block, row by row, of each coefficient in the order of the file."""
_COSINES = np.array(
    [[np.sqrt((1 if u == 0 else 2) / 8) * np.cos((2 * x + 1) * u * np.pi / 16) for x in range(8)] for u in range(8)]
)
_AC = 4  # added to a number of a table of AC codes to get its key
_MOST_EOB_RUN = 0x7FFF


def _divide(number: int, by: int) -> int:
    return -(-number // by)


@dataclass
class Component:
    """A component of an image."""

    number: int
    across: int
    down: int
    table: int
    blocks: NDArray[np.int64]


@dataclass
class Image:
    """What a file says, without how."""

    height: int
    width: int
    components: list[Component]
    tables: dict[int, NDArray[np.int64]]

    @property
    def factors(self) -> tuple[int, int]:
        return max(one.across for one in self.components), max(one.down for one in self.components)

    def size_in_blocks(self, component: Component) -> tuple[int, int]:
        """Returns the rows and columns of blocks that hold pixels, those of a scan of this component alone."""
        across, down = self.factors
        height, width = _divide(self.height * component.down, down), _divide(self.width * component.across, across)
        return _divide(height, 8), _divide(width, 8)


@dataclass
class Scan:
    """A scan."""

    components: tuple[int, ...]  # indexes into the image's components
    first: int = 0  # coefficient
    last: int = 63
    high: int = 0  # the bits that are still missing before this scan; 0 for the first scan of a coefficient
    low: int = 0  # the bits that are still missing after it
    interval: int = 0  # the MCUs between restart markers; 0: none
    dc: tuple[int, ...] = (0, 1, 1, 0)  # the table of each component
    ac: tuple[int, ...] = (0, 1, 1, 0)
    most_eob_run: int = _MOST_EOB_RUN  # the most blocks that one code may end


@dataclass
class Options:
    """How a file is written, apart from its scans."""

    frame: int = 0xC0  # its marker: 0xC0 baseline, 0xC1 extended, 0xC2 progressive
    jfif: bool = True
    adobe: int | None = None  # the transform in Adobe's marker
    huffman: str = "even"  # "even": codes of one length, "odd", or "any": drawn for each table
    one_segment: bool = False  # whether the tables of a scan stand in one segment
    keep_tables: float = 1.0  # the probability that a Huffman table that has all codes is not written anew
    shuffle: bool = False  # whether segments before the first scan come in any order
    fill: float = 0.0  # the probability of fill bytes before a marker
    between: float = 0.0  # the probability of bytes between segments that decoders skip
    extra: int = 0  # the most segments without meaning before each scan
    wide: bool = False  # whether quantization tables have 16 bits a value, even if 8 are enough
    late_tables: bool = False  # whether a quantization table is written only before the first scan that needs it
    pad: bool = False  # whether the last bits of an interval are drawn; else they are ones
    tail: int = 0  # the most bytes behind the end of the image


class Drawn(NamedTuple):
    """A file and what was drawn."""

    data: bytes
    family: str
    description: str
    sound: bool


def make_component(
    number: int, height: int, width: int, across_down: tuple[int, int], most: tuple[int, int], table: int
) -> Component:
    """Makes a component whose coefficients are all zero, for an image with these largest factors."""
    rows, columns = _divide(height, 8 * most[1]), _divide(width, 8 * most[0])
    blocks = np.zeros((rows * across_down[1], columns * across_down[0], 64), np.int64)
    return Component(number, *across_down, table, blocks)


def transform_plane(plane: NDArray[np.float64], table: NDArray[np.int64]) -> NDArray[np.int64]:
    """Makes quantized coefficients of samples from 0 to 255, whose sides are multiples of 8."""
    rows, columns = plane.shape[0] // 8, plane.shape[1] // 8
    blocks = (plane - 128).reshape(rows, 8, columns, 8).swapaxes(1, 2)
    blocks = _COSINES @ blocks @ _COSINES.T
    return _limit(np.rint(blocks.reshape(rows, columns, 64)[..., ZIGZAG] / table))


def _limit(blocks: NDArray[Any]) -> NDArray[np.int64]:
    """Limits coefficients to what a baseline file can hold."""
    return blocks.clip(-1023, 1023).astype(np.int64)


# Entropy-coded data: a scan becomes tokens, and tokens become bits once the tables are known.


def make_tokens(image: Image, scan: Scan, progressive: bool) -> list[list[Token]]:
    mcus = list(_list_mcus(image, scan))
    step = scan.interval or len(mcus)
    if not progressive or scan.first == 0:
        encode = _refine_dc if scan.high else _encode_whole
    else:
        encode = _refine_ac if scan.high else _encode_ac
    return [encode(mcus[i : i + step], scan) for i in range(0, len(mcus), step)]


def _list_mcus(image: Image, scan: Scan) -> Iterable[list[tuple[int, list[int]]]]:
    """Yields MCUs: the position in the scan of each block's component, and its coefficients."""
    chosen = [image.components[i] for i in scan.components]
    if len(chosen) == 1:
        rows, columns = image.size_in_blocks(chosen[0])
        for block in chosen[0].blocks[:rows, :columns].reshape(-1, 64).tolist():
            yield [(0, block)]
        return
    lists = [one.blocks.tolist() for one in chosen]
    for y in range(len(lists[0]) // chosen[0].down):
        for x in range(len(lists[0][0]) // chosen[0].across):
            yield [
                (k, lists[k][y * one.down + v][x * one.across + u])
                for k, one in enumerate(chosen)
                for v in range(one.down)
                for u in range(one.across)
            ]


def _encode_whole(mcus: list[list[tuple[int, list[int]]]], scan: Scan) -> list[Token]:
    """Encodes whole blocks, or in a progressive file the upper bits of their DC coefficients."""
    tokens: list[Token] = []
    before = [0] * len(scan.components)
    for mcu in mcus:
        for k, block in mcu:
            dc = block[0] >> scan.low
            _add_value(tokens, scan.dc[k], 0, dc - before[k])
            before[k] = dc
            key, last = _AC + scan.ac[k], 0
            for i in range(1, scan.last + 1):
                if block[i]:
                    _add_run(tokens, key, i - last - 1, block[i])
                    last = i
            if last < scan.last:
                tokens.append((key, 0, 0, 0))
    return tokens


def _add_value(tokens: list[Token], key: int, run: int, value: int) -> None:
    bits = abs(value).bit_length()
    tokens.append((key, run << 4 | bits, value if value >= 0 else value + (1 << bits) - 1, bits))


def _add_run(tokens: list[Token], key: int, zeros: int, value: int) -> None:
    tokens += [(key, 0xF0, 0, 0)] * (zeros // 16)
    _add_value(tokens, key, zeros % 16, value)


def _refine_dc(mcus: list[list[tuple[int, list[int]]]], scan: Scan) -> list[Token]:
    return [(-1, 0, block[0] >> scan.low & 1, 1) for mcu in mcus for _, block in mcu]


class _EobRun:
    """Blocks that have ended, and correction bits of their coefficients, which one code is to tell."""

    def __init__(self, tokens: list[Token], key: int, most: int) -> None:
        self._tokens, self._key, self._most = tokens, key, most
        self._count, self._corrections = 0, []

    def add(self, corrections: list[int]) -> None:
        self._count += 1
        self._corrections += corrections
        if self._count >= self._most:
            self.end()

    def end(self) -> None:
        if self._count:
            bits = self._count.bit_length() - 1
            self._tokens.append((self._key, bits << 4, self._count - (1 << bits), bits))
            self._tokens += [(-1, 0, bit, 1) for bit in self._corrections]
            self._count, self._corrections = 0, []


def _encode_ac(mcus: list[list[tuple[int, list[int]]]], scan: Scan) -> list[Token]:
    tokens: list[Token] = []
    key, low = _AC + scan.ac[0], scan.low
    ended = _EobRun(tokens, key, scan.most_eob_run)
    for ((_, block),) in mcus:
        last = scan.first - 1
        for i in range(scan.first, scan.last + 1):
            value = block[i]
            value = value >> low if value >= 0 else -(-value >> low)
            if value:
                ended.end()
                _add_run(tokens, key, i - last - 1, value)
                last = i
        if last < scan.last:
            ended.add([])
    ended.end()
    return tokens


def _refine_ac(mcus: list[list[tuple[int, list[int]]]], scan: Scan) -> list[Token]:
    tokens: list[Token] = []
    key = _AC + scan.ac[0]
    ended = _EobRun(tokens, key, scan.most_eob_run)
    for ((_, block),) in mcus:
        sizes = [abs(value) >> scan.low for value in block]
        new = [i for i in range(scan.first, scan.last + 1) if sizes[i] == 1]
        end = new[-1] if new else -1
        run, corrections = 0, []
        for i in range(scan.first, scan.last + 1):
            size = sizes[i]
            if size == 0:
                run += 1
                continue
            while run > 15 and i <= end:
                ended.end()
                tokens.append((key, 0xF0, 0, 0))
                tokens += [(-1, 0, bit, 1) for bit in corrections]
                run, corrections = run - 16, []
            if size > 1:
                corrections.append(size & 1)
                continue
            ended.end()
            tokens.append((key, run << 4 | 1, int(block[i] > 0), 1))
            tokens += [(-1, 0, bit, 1) for bit in corrections]
            run, corrections = 0, []
        if run or corrections:
            ended.add(corrections)
    ended.end()
    return tokens


def pack_tokens(tokens: list[Token], tables: dict[int, Table], rng: random.Random | None = None) -> bytes:
    """Packs the tokens of an interval into bytes, with a zero behind each 0xFF. `rng` draws the bits of padding."""
    parts: list[bytes] = []
    bits = count = 0
    for key, symbol, extra, extra_bits in tokens:
        if key >= 0:
            code, length = tables[key][symbol]
            bits = bits << length | code
            count += length
        bits = bits << extra_bits | extra
        count += extra_bits
        if count > 2048:
            rest = count & 7
            parts.append((bits >> rest).to_bytes(count >> 3, "big"))
            bits &= (1 << rest) - 1
            count = rest
    missing = -count % 8
    bits = bits << missing | (rng.getrandbits(8) if rng else 255) & ((1 << missing) - 1)
    parts.append(bits.to_bytes((count + missing) >> 3, "big"))
    return b"".join(parts).replace(b"\xff", b"\xff\0")


def assign_codes(counts: Sequence[int], symbols: Sequence[int]) -> Table:
    table: Table = {}
    code, given = 0, iter(symbols)
    for length, count in enumerate(counts, 1):
        for _ in range(count):
            table[next(given)] = (code, length)
            code += 1
        code <<= 1
    return table


def even_table(needed: Iterable[int]) -> tuple[list[int], list[int]]:
    """Makes codes of one length, of which none is all ones."""
    symbols = sorted(needed)
    counts = [0] * 16
    counts[len(symbols).bit_length() - 1] = len(symbols)
    return counts, symbols


def odd_table(needed: Iterable[int], key: int, rng: random.Random) -> tuple[list[int], list[int]]:
    """Makes a valid table of drawn code lengths, with symbols that no token has and with codes that are not given."""
    symbols = set(needed)
    allowed = range(256) if key >= _AC else range(16)
    others = [symbol for symbol in allowed if symbol not in symbols]
    symbols.update(rng.sample(others, rng.randint(0, len(others) if rng.random() < 0.3 else min(len(others), 20))))
    leaves = [0]
    dropped = 1 + (rng.randrange(8) if rng.random() < 0.5 else 0)
    deep = rng.random()
    while len(leaves) < len(symbols) + dropped or not leaves[0]:
        chosen = max(range(len(leaves)), key=lambda i: leaves[i] % 16) if rng.random() < deep else None
        if chosen is None or leaves[chosen] > 15:
            chosen = rng.choice([i for i, depth in enumerate(leaves) if depth < 16])
        leaves[chosen] += 1
        leaves.append(leaves[chosen])
    rng.shuffle(leaves)
    counts = [leaves[: len(symbols)].count(length) for length in range(1, 17)]
    drawn = list(symbols)
    rng.shuffle(drawn)
    return counts, drawn


def segment(marker: int, body: bytes) -> bytes:
    return bytes((0xFF, marker)) + (len(body) + 2).to_bytes(2, "big") + body


def write_jpeg(image: Image, scans: Sequence[Scan], options: Options, rng: random.Random | None = None) -> bytes:
    """Writes a file. What `options` leave open is drawn from `rng`."""
    rng = rng or random.Random(0)
    return _Writer(image, scans, options, rng).write()


class _Writer:
    def __init__(self, image: Image, scans: Sequence[Scan], options: Options, rng: random.Random) -> None:
        self._image, self._scans, self._options, self._rng = image, scans, options, rng
        self._tables: dict[int, Table] = {}
        self._quantized: set[int] = set()
        self._interval = 0
        self._parts = [b"\xff\xd8"]

    def write(self) -> bytes:
        options, rng = self._options, self._rng
        for k, scan in enumerate(self._scans):
            tokens = make_tokens(self._image, scan, options.frame == 0xC2)
            segments = [] if k else self._make_markers()
            segments += self._make_quantization(scan)
            if scan.interval != self._interval or rng.random() < 0.05:
                segments.append(segment(0xDD, scan.interval.to_bytes(2, "big")))
                self._interval = scan.interval
            segments += self._make_huffman(tokens)
            for _ in range(rng.randint(0, options.extra)):
                body = rng.randbytes(rng.randrange(30)) if rng.random() < 0.7 else b"\xff\xd8\xff\xda\xff\xff\xd9"
                marker = rng.choice((0xFE, 0xFE, *range(0xE1, 0xEE), 0xEF))
                segments.insert(rng.randint(0, len(segments)), segment(marker, body))
            if options.shuffle:
                rng.shuffle(segments)
            for one in segments:
                self._add(one)
            self._add(self._make_scan(scan))
            self._add_intervals(tokens)
        self._add(b"\xff\xd9")
        self._parts.append(rng.randbytes(rng.randint(0, options.tail)))
        return b"".join(self._parts)

    def _add(self, part: bytes) -> None:
        """Adds what begins with a marker, behind bytes that decoders skip, if any are drawn."""
        rng = self._rng
        if len(self._parts) > 1 and rng.random() < self._options.between:
            for _ in range(rng.randint(1, 3)):
                kinds = (b"\0" * rng.randint(1, 5), b"\xff\0", b"\xff\x01", bytes((0xFF, 0xD0 + rng.randrange(8))))
                self._parts.append(rng.choice(kinds) if rng.random() < 0.9 else bytes((rng.randrange(255),)))
        if rng.random() < self._options.fill:
            self._parts.append(b"\xff" * rng.choice((1, 1, 2, 3, 9)))
        self._parts.append(part)

    def _make_markers(self) -> list[bytes]:
        """Makes the segments that stand once at the beginning."""
        image, options, rng = self._image, self._options, self._rng
        segments = []
        if options.jfif:
            segments.append(segment(0xE0, b"JFIF\0\1" + bytes((rng.randrange(3), 0, 0, 72, 0, 72, 0, 0))))
        if options.adobe is not None:
            segments.append(segment(0xEE, b"Adobe\0\x64\0\0\0\0" + bytes((options.adobe,))))
        body = b"\x08" + image.height.to_bytes(2, "big") + image.width.to_bytes(2, "big")
        body += bytes((len(image.components),))
        for one in image.components:
            body += bytes((one.number, one.across << 4 | one.down, one.table))
        segments.append(segment(options.frame, body))
        return segments

    def _make_quantization(self, scan: Scan) -> list[bytes]:
        components = self._image.components
        if self._options.late_tables:
            needed = sorted({components[i].table for i in scan.components} - self._quantized)
        else:
            needed = sorted(self._image.tables.keys() - self._quantized)
        self._quantized.update(needed)
        bodies = []
        for number in needed:
            table = self._image.tables[number]
            wide = self._options.wide or int(table.max()) > 255
            bodies.append(bytes((wide << 4 | number,)) + table.astype(">u2" if wide else np.uint8).tobytes())
        return _join(bodies, 0xDB, self._rng.random() < 0.5)

    def _make_huffman(self, tokens: list[list[Token]]) -> list[bytes]:
        options, rng = self._options, self._rng
        used = {(key, symbol) for part in tokens for key, symbol, *_ in part if key >= 0}
        bodies = []
        for key in sorted({key for key, _ in used}):
            needed = {symbol for other, symbol in used if other == key}
            if needed <= self._tables.get(key, {}).keys() and rng.random() < options.keep_tables:
                continue
            kind = options.huffman if options.huffman != "any" else rng.choice(("even", "odd"))
            counts, symbols = even_table(needed) if kind == "even" else odd_table(needed, key, rng)
            self._tables[key] = assign_codes(counts, symbols)
            number = (0x10 | key - _AC) if key >= _AC else key
            bodies.append(bytes((number, *counts, *symbols)))
        return _join(bodies, 0xC4, options.one_segment)

    def _make_scan(self, scan: Scan) -> bytes:
        body = bytes((len(scan.components),))
        for k, i in enumerate(scan.components):
            # A progressive scan has one kind of table, and the number of the other is 0 by the standard.
            dc = scan.dc[k] if scan.first == 0 and not scan.high else 0
            ac = scan.ac[k] if scan.last else 0
            body += bytes((self._image.components[i].number, dc << 4 | ac))
        return segment(0xDA, body + bytes((scan.first, scan.last, scan.high << 4 | scan.low)))

    def _add_intervals(self, tokens: list[list[Token]]) -> None:
        options, rng = self._options, self._rng
        for k, part in enumerate(tokens):
            if k:
                if rng.random() < options.fill:
                    self._parts.append(b"\xff" * rng.randint(1, 3))
                self._parts.append(bytes((0xFF, 0xD0 + (k - 1) % 8)))
            self._parts.append(pack_tokens(part, self._tables, rng if options.pad else None))


def _join(bodies: list[bytes], marker: int, together: bool) -> list[bytes]:
    if together and bodies:
        return [segment(marker, b"".join(bodies))]
    return [segment(marker, body) for body in bodies]


# What is drawn.

_COLOR_IDS = ((1, 2, 3), (1, 2, 3), (0, 1, 2), (82, 71, 66), (7, 9, 8), (255, 0, 128), (1, 3, 2), (34, 35, 36))
_INK_IDS = ((1, 2, 3, 4), (67, 77, 89, 75), (0, 1, 2, 3), (9, 8, 7, 200))
_USUAL = (((1, 1),) * 3, ((2, 1), (1, 1), (1, 1)), ((2, 2), (1, 1), (1, 1)), ((1, 2), (1, 1), (1, 1)))


def draw_jpeg(
    seed: int,
    *,
    family: str | None = None,
    components: int | None = None,
    extreme: bool | None = None,
    odd: bool = True,
    wild: bool = False,
    most: int = 100,
) -> Drawn:
    """Draws a file."""
    rng = random.Random(seed)
    numbers = np.random.default_rng(rng.getrandbits(64))
    family = family or rng.choice(("baseline", "baseline", "extended", "progressive", "progressive"))
    count = components or rng.choice((1, 3, 3, 3, 3, 4))
    wildness = rng.choice(("fractional", "incomplete", "wild")) if wild else ""
    if extreme is None:
        extreme = rng.random() < 0.15
    height, width = _draw_side(rng, most), _draw_side(rng, most)
    factors, interleaved = _draw_factors(rng, count, wildness == "fractional")
    numbers_of_tables = [0, 1, 1, 0][:count] if rng.random() < 0.5 else [rng.randrange(4) for _ in range(count)]
    wide = extreme and rng.random() < 0.5
    tables = {number: _draw_table(rng, numbers, extreme, wide) for number in dict.fromkeys(numbers_of_tables)}
    ids = rng.choice({1: ((1,), (0,), (200,)), 3: _COLOR_IDS, 4: _INK_IDS}[count])
    largest = max(one[0] for one in factors), max(one[1] for one in factors)
    image = Image(height, width, [], tables)
    kind = "extreme" if extreme else rng.choice(("waves", "waves", "sparse", "dense", "flat"))
    for number, factor, table in zip(ids, factors, numbers_of_tables, strict=True):
        one = make_component(number, height, width, factor, largest, table)
        _draw_blocks(one, tables[table], kind, wildness == "wild", rng, numbers)
        image.components.append(one)
    options = _draw_options(rng, family, count, odd)
    options.wide |= wide
    if family == "progressive":
        scans = _draw_progression(rng, image, interleaved)
    else:
        scans = _draw_sequence(rng, image, interleaved, 2 if family == "baseline" else 4)
    for scan in scans:
        scan.interval = _draw_interval(rng, image, scan)
    if wildness == "incomplete":
        scans = scans[: rng.randint(1, len(scans))]
    data = write_jpeg(image, scans, options, rng)
    sampling = " ".join(f"{h}x{v}" for h, v in factors)
    told = f"{height} x {width}, ids {ids}, sampling {sampling}, tables {numbers_of_tables}, {kind}, {options}, {scans}"
    name = f"{family} {wildness}".strip()
    sound = not wildness and _is_whole(factors)
    return Drawn(data, name, f"seed {seed}: {name}, {told}", sound)


def _is_whole(factors: Sequence[tuple[int, int]]) -> bool:
    """Whether each component is enlarged by whole numbers."""
    return all(max(one[i] for one in factors) % one[i] == 0 for one in factors for i in range(2))


def _draw_side(rng: random.Random, most: int) -> int:
    kind = rng.random()
    if kind < 0.1:
        return min(most, rng.randint(1, 9))
    if kind < 0.3:
        return max(1, min(most, rng.choice((8, 16, 32, 64)) + rng.randint(-1, 1)))
    return rng.randint(1, max(1, most if kind > 0.8 else most // 2))


def _draw_factors(rng: random.Random, count: int, fractional: bool) -> tuple[list[tuple[int, int]], bool]:
    """Draws sampling factors, and says whether one scan may hold all components."""
    while True:
        if count == 1:
            factors = [(rng.choice((1, 1, 1, 2, 3, 4)), rng.choice((1, 1, 1, 2, 3, 4)))]
        elif rng.random() < 0.5 and not fractional:
            factors = list(rng.choice(_USUAL)) + ([rng.choice(((1, 1), (2, 2)))] if count == 4 else [])
        else:
            top = (1, 2, 3, 4) if rng.random() < 0.5 or fractional else (1, 2)
            factors = [(rng.choice(top), rng.choice(top)) for _ in range(count)]
            if rng.random() < 0.5 and not fractional:
                factors = [factors[0], *[(1, 1)] * (count - 1)]
        interleaved = sum(h * v for h, v in factors) <= 10
        if (_is_whole(factors) != fractional or count == 1) and (interleaved or rng.random() < 0.1):
            return factors, interleaved


def _draw_table(rng: random.Random, numbers: np.random.Generator, extreme: bool, wide: bool) -> NDArray[np.int64]:
    if extreme:
        return numbers.integers(1, rng.choice((300, 5000, 65535)) if wide else 255, 64, endpoint=True)
    steps = np.add.outer(np.arange(8), np.arange(8)).reshape(-1)[ZIGZAG]
    return (1 + rng.choice((0.0, 0.5, 2, 6)) * steps + numbers.integers(0, 3, 64)).clip(1, 255).astype(np.int64)


def _draw_blocks(
    one: Component, table: NDArray[np.int64], kind: str, wild: bool, rng: random.Random, numbers: np.random.Generator
) -> None:
    shape = rows, columns, _ = one.blocks.shape
    if kind == "extreme":
        bits = rng.randint(4, 10)
        blocks = numbers.integers(-(1 << bits) + 1, 1 << bits, shape)
        blocks[numbers.random(shape) < rng.choice((0.0, 0.5, 0.9, 0.98))] = 0
        one.blocks = _limit(blocks)
        if wild:  # more bits than the standard allows
            one.blocks[..., 1:] *= numbers.choice((1, 1, 1, 31), (rows, columns, 63))
            one.blocks[..., 0] *= numbers.choice((1, 1, 15), (rows, columns))
        return
    if kind in ("waves", "flat"):
        y, x = np.mgrid[: rows * 8, : columns * 8]
        a, b, c = (rng.uniform(2, 30) for _ in range(3))
        plane = np.full(y.shape, rng.uniform(0, 255))
        if kind == "waves":
            plane = 128 + 100 * np.sin(y / a + c) * np.cos(x / b) + numbers.normal(0, rng.choice((0, 3, 25)), y.shape)
        one.blocks = transform_plane(plane.clip(0, 255), table)
    else:
        steps = np.add.outer(np.arange(8), np.arange(8)).reshape(-1)[ZIGZAG]
        scale = rng.uniform(5, 60) / (1 + steps * rng.choice((0.2, 1, 3)))
        blocks = np.rint(numbers.normal(0, 1, shape) * scale / table)
        blocks[..., 0] = np.rint(numbers.uniform(-500, 500, (rows, columns)) / table[0])
        if kind == "sparse":
            blocks[..., 1:][numbers.random((rows, columns, 63)) < rng.uniform(0.7, 0.99)] = 0
        one.blocks = _limit(blocks)
    if wild:
        one.blocks[..., 0] *= numbers.choice((1, 1, 1, -9), (rows, columns))


def _draw_options(rng: random.Random, family: str, count: int, odd: bool) -> Options:
    frame = {"baseline": 0xC0, "extended": 0xC1, "progressive": 0xC2}[family]
    adobe = {1: (None, None, 0, 1), 3: (None, None, 0, 1, 2), 4: (None, 0, 2, 2, 1)}[count]
    options = Options(frame, rng.random() < 0.5, rng.choice(adobe))
    if not odd:
        return options
    options.huffman = rng.choice(("even", "odd", "any"))
    options.one_segment = rng.random() < 0.5
    options.keep_tables = rng.choice((0.0, 0.5, 1.0))
    options.shuffle = rng.random() < 0.4
    options.fill = rng.choice((0.0, 0.0, 0.1, 0.5))
    options.between = rng.choice((0.0, 0.0, 0.0, 0.2))
    options.extra = rng.choice((0, 0, 1, 3))
    options.wide = family != "baseline" and rng.random() < 0.2
    options.late_tables = rng.random() < 0.3
    options.pad = rng.random() < 0.1
    options.tail = rng.choice((0, 0, 0, 20))
    return options


def _draw_interval(rng: random.Random, image: Image, scan: Scan) -> int:
    kind = rng.random()
    if kind < 0.4:
        return 0
    if len(scan.components) == 1:
        rows, columns = image.size_in_blocks(image.components[scan.components[0]])
    else:
        across, down = image.factors
        rows, columns = _divide(image.height, 8 * down), _divide(image.width, 8 * across)
    if kind < 0.6:
        return columns
    if kind < 0.7:
        return rng.choice([step for step in range(1, columns + 1) if columns % step == 0])
    if kind < 0.75:
        return rng.choice((rows * columns, rows * columns + 1, 65535))
    return rng.randint(1, rng.choice((4, max(1, rows * columns))))


def _draw_groups(rng: random.Random, image: Image, interleaved: bool) -> list[tuple[int, ...]]:
    """Splits the components into scans, each with at most 10 blocks in an MCU."""
    count = len(image.components)
    if interleaved and rng.random() < 0.5:
        return [tuple(range(count))]
    groups: list[list[int]] = []
    for i in range(count):
        sizes = [sum(image.components[j].across * image.components[j].down for j in [*group, i]) for group in groups]
        fitting = [group for group, size in zip(groups, sizes, strict=True) if size <= 10]
        if fitting and rng.random() < 0.4:
            rng.choice(fitting).append(i)
        else:
            groups.append([i])
    rng.shuffle(groups)
    return [tuple(group) for group in groups]


def _draw_sequence(rng: random.Random, image: Image, interleaved: bool, tables: int) -> list[Scan]:
    scans = []
    for group in _draw_groups(rng, image, interleaved):
        scan = Scan(group)
        if rng.random() < 0.6:
            scan.dc = tuple(rng.randrange(tables) for _ in group)
            scan.ac = tuple(rng.randrange(tables) for _ in group)
        scans.append(scan)
    return scans


def _draw_progression(rng: random.Random, image: Image, interleaved: bool) -> list[Scan]:
    """Draws a script that ends with all bits of all coefficients: scans that wait for each other, in any order."""
    count = len(image.components)
    waiting: list[list[Scan]] = []
    for group in _draw_groups(rng, image, interleaved):
        low = rng.choice((0, 0, 1, 1, 2, 5))
        waiting.append([Scan(group, 0, 0, 0, low)] + [Scan(group, 0, 0, k + 1, k) for k in range(low - 1, -1, -1)])
    chains: list[list[Scan]] = []
    for i in range(count):
        cuts = sorted(rng.sample(range(2, 64), rng.choice((0, 1, 1, 2, 4))))
        for first, end in zip([1, *cuts], [*cuts, 64], strict=True):
            low = rng.choice((0, 0, 1, 2, 2, 4))
            refining = [Scan((i,), first, end - 1, k + 1, k) for k in range(low - 1, -1, -1)]
            chains.append([Scan((i,), first, end - 1, 0, low), *refining])
    scans: list[Scan] = []
    begun: set[int] = set()
    waiting += chains
    while waiting:
        chain = rng.choice([chain for chain in waiting if chain[0].first == 0 or chain[0].components[0] in begun])
        scan = chain.pop(0)
        begun.update(scan.components)
        scan.dc = tuple(rng.randrange(4) for _ in scan.components)
        scan.ac = tuple(rng.randrange(4) for _ in scan.components)
        scan.most_eob_run = rng.choice((1, 2, 100, _MOST_EOB_RUN, _MOST_EOB_RUN))
        scans.append(scan)
        waiting = [one for one in waiting if one]
    return scans


def draw_waves(
    height: int, width: int, factors: Sequence[tuple[int, int]], options: Options, progressive: bool = False
) -> bytes:
    """Draws an image with a component for each pair of sampling factors."""
    table = np.arange(2, 66)
    image = Image(height, width, [], {0: table})
    most = max(one[0] for one in factors), max(one[1] for one in factors)
    for k, factor in enumerate(factors):
        one = make_component(k + 1, height, width, factor, most, 0)
        y, x = np.mgrid[: 8 * one.blocks.shape[0], : 8 * one.blocks.shape[1]]
        one.blocks = transform_plane(128 + 90 * np.sin(y / (5 + k)) * np.cos(x / (4 + k)), table)
        image.components.append(one)
    every = tuple(range(len(factors)))
    groups = [every] if sum(h * v for h, v in factors) <= 10 else [(k,) for k in every]
    if not progressive:
        return write_jpeg(image, [Scan(group) for group in groups], options)
    scans = [Scan(group, 0, 0) for group in groups] + [Scan((k,), 1, 63) for k in every]
    return write_jpeg(image, scans, replace(options, frame=0xC2))


def make_dc_overflow(bits: int) -> tuple[bytes, int, int]:
    """Makes a gray image whose DC differences add up to more than 32 bits can hold."""
    columns = 1024 if bits < 13 else 256
    rows = _divide(2**31 // ((1 << bits) - 1) + 1, columns)
    height, width = 8 * rows, 8 * columns
    table = segment(0xDB, bytes((0, *[1] * 64)))
    frame = segment(0xC0, b"\x08" + height.to_bytes(2, "big") + width.to_bytes(2, "big") + bytes((1, 1, 0x11, 0)))
    codes = [segment(0xC4, bytes((key, 1, *[0] * 15, symbol))) for key, symbol in ((0x00, bits), (0x10, 0))]
    scan = segment(0xDA, bytes((1, 1, 0, 0, 63, 0)))
    eight_blocks = ("0" + "1" * bits + "0") * 8  # of each a code, the difference, and the end of the block
    data = int(eight_blocks, 2).to_bytes(2 + bits, "big").replace(b"\xff", b"\xff\0")
    file = b"".join((b"\xff\xd8", table, frame, *codes, scan, data * (rows * columns // 8), b"\xff\xd9"))
    return file, height, width


def main() -> None:
    """Writes drawn files, every fourth a wild one, and some whose sums overflow, into a folder."""
    folder, count, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    for k in range(seed, seed + count):
        drawn = draw_jpeg(k, wild=k % 4 == 3)
        (folder / f"{k}-{drawn.family.replace(' ', '-')}.jpg").write_bytes(drawn.data)
    (folder / "dc-overflow-wild.jpg").write_bytes(make_dc_overflow(15)[0])
    (folder / "dc-overflow-huge.jpg").write_bytes(make_dc_overflow(11)[0])


if __name__ == "__main__":
    main()
