"""Files damaged on purpose, with the truth about them: which records are intact, where, and which are not."""

import random
import re
from dataclasses import dataclass

from tfpipe.format.tfrecord import FRAME_BYTES, record_footer, record_header


def framed(payloads: list[bytes]) -> bytes:
    return b"".join(record_header(len(p)) + p + record_footer(p) for p in payloads)


@dataclass
class DamagedFile:
    """A file's bytes and where each came from; every edit keeps both."""

    payloads: list[bytes]

    def __post_init__(self) -> None:
        self.original = framed(self.payloads)
        self.data = bytearray(self.original)
        self.origin = list(range(len(self.data)))  # position in the original; -1 for what was inserted
        self.edits: list[str] = []
        self.begins, at = [], 0
        for payload in self.payloads:
            self.begins.append(at)
            at += len(payload) + FRAME_BYTES
        self.sizes = [len(payload) + FRAME_BYTES for payload in self.payloads]

    # Edits

    def flip(self, at: int, bit: int) -> None:
        self.data[at] ^= 1 << bit
        self.edits.append(f"flip {at}.{bit}")

    def zero(self, at: int, count: int) -> None:
        count = len(self.data[at : at + count])
        self.data[at : at + count] = bytes(count)
        self.edits.append(f"zero {at}+{count}")

    def insert(self, at: int, new: bytes) -> None:
        self.data[at:at] = new
        self.origin[at:at] = [-1] * len(new)
        self.edits.append(f"insert {at}+{len(new)}")

    def remove(self, at: int, count: int) -> None:
        del self.data[at : at + count], self.origin[at : at + count]
        self.edits.append(f"remove {at}+{count}")

    def truncate(self, size: int) -> None:
        del self.data[size:], self.origin[size:]
        self.edits.append(f"truncate {size}")

    # The truth

    def intact(self) -> dict[int, int]:
        """Where each record that nothing happened to begins now, by its number."""
        place_of = {origin: at for at, origin in enumerate(self.origin) if origin >= 0}
        found = {}
        for number, (begin, size) in enumerate(zip(self.begins, self.sizes, strict=True)):
            at = place_of.get(begin)
            if at is None or self.origin[at : at + size] != list(range(begin, begin + size)):
                continue
            if self.data[at : at + size] == self.original[begin : begin + size]:
                found[number] = at
        return found

    def damaged(self) -> set[int]:
        return set(range(len(self.payloads))) - set(self.intact())

    def stray(self) -> list[range]:
        """Bytes that belong to no record: inserted between two."""
        inside = bytearray(len(self.data))
        for begin, size in zip(self.begins, self.sizes, strict=True):
            places = [at for at, origin in enumerate(self.origin) if begin <= origin < begin + size]
            if places:
                inside[places[0] : places[-1] + 1] = b"\1" * (places[-1] + 1 - places[0])
        return [range(*match.span()) for match in re.finditer(b"\0+", inside)]


KINDS = ("length", "length_crc", "payload", "payload_crc", "truncate", "zero", "insert", "remove")


def damage(file: DamagedFile, kind: str, rng: random.Random) -> None:
    """One damage of a kind, at a random record that still stands where it stood."""
    if not file.data:
        return
    number = rng.randrange(len(file.payloads))
    begin, size = file.begins[number], file.sizes[number]
    last = len(file.data)
    part = {
        "length": (begin, 8),
        "length_crc": (begin + 8, 4),
        "payload": (begin + 12, size - FRAME_BYTES),
        "payload_crc": (begin + size - 4, 4),
    }
    if kind in part:
        at, count = part[kind]
        if count and at + count <= last:
            file.flip(at + rng.randrange(count), rng.randrange(8))
    elif kind == "truncate":
        file.truncate(rng.randrange(last))
    elif kind == "zero":
        file.zero(rng.randrange(last), rng.choice((1, 4, 12, 64, 512)))
    elif kind == "insert":
        count = rng.choice((1, 4, 12, 16, 64, 300))
        # An empty record begins with zeros: after more of them it would be whole again, at another place.
        new = rng.randbytes(count) if b"" in file.payloads else rng.choice((bytes(count), rng.randbytes(count)))
        file.insert(rng.randrange(last + 1), new)
    elif kind == "remove":
        file.remove(rng.randrange(last), rng.choice((1, 4, 16, 64, 300)))
