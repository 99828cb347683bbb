"""The plan of a job: which shards there will be, and the lines that say which images go into each, in their order.

with make_plan(config) as plan:
for shard in plan.shards:
for image in plan.read_lines(shard): ...
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from beam_jobs.plan.image_ref import PlannedImage, decode_line
from beam_jobs.plan.listing import Listing
from beam_jobs.plan.scratch import Scratch
from beam_jobs.plan.split_and_shard import ShardRange
from beam_jobs.shards.work_dir import PlannedShard, get_part_name


@dataclass(frozen=True, slots=True)
class Plan:
    """The shards that a job will write.

    Attributes:
        listing: The facts that all images have in common. It has no images.
        shards: The shards, split by split, with the places of their lines.
        shard_bytes: The bytes of the sources of each shard.
        class_counts: The number of images of each class, by split; the position is the label.
        digest: The SHA-256 of the SHA-256 of each shard's lines, as hexadecimal digits.
        scratch: The files with the lines.
    """

    listing: Listing
    shards: tuple[PlannedShard, ...]
    shard_bytes: tuple[int, ...]
    class_counts: dict[str, list[int]]
    digest: str
    scratch: Scratch

    @property
    def num_images(self) -> int:
        """The number of images in all splits."""
        return sum(shard.images for shard in self.shards)

    @property
    def num_bytes(self) -> int:
        """The bytes of all sources."""
        return sum(self.shard_bytes)

    @property
    def num_parts(self) -> int:
        """The number of parts of the lines."""
        return 1 + max((shard.part for shard in self.shards), default=-1)

    def read_lines(self, shard: PlannedShard) -> Iterator[PlannedImage]:
        """Returns the images of a shard, in order."""
        return map(decode_line, self.read_encoded(shard))

    def read_encoded(self, shard: PlannedShard) -> list[bytes]:
        """Returns the lines of a shard."""
        data = self.scratch.read(get_part_name(shard.part), shard.begin, shard.end - shard.begin)
        return data.splitlines(keepends=True)


@dataclass(frozen=True)
class WrittenLines:
    """The lines of one shard that were written.

    Attributes:
        shard: The shard, with the place of its lines.
        num_bytes: The bytes of its sources.
        sha256: The SHA-256 of its lines.
    """

    shard: PlannedShard
    num_bytes: int
    sha256: bytes


def write_lines(
    out: IO[bytes], part: int, begin: int, shard: ShardRange, lines: Iterable[bytes], num_bytes: int
) -> WrittenLines:
    """Writes the lines of one shard into a part of the plan."""
    digest, end = hashlib.sha256(), begin
    for line in lines:
        digest.update(line)
        end += out.write(line)
    planned = PlannedShard(shard.split, shard.shard_index, shard.num_shards, shard.end - shard.begin, part, begin, end)
    return WrittenLines(planned, num_bytes, digest.digest())


def collect(
    listing: Listing, written: Sequence[WrittenLines], class_counts: dict[str, list[int]], scratch: Scratch
) -> Plan:
    """Returns the plan whose lines are written; the arguments are as in `Plan`."""
    return Plan(
        listing,
        tuple(lines.shard for lines in written),
        tuple(lines.num_bytes for lines in written),
        class_counts,
        hashlib.sha256(b"".join(lines.sha256 for lines in written)).hexdigest(),
        scratch,
    )
