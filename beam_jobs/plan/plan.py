"""The plan of a job: which shards there will be, and the lines that say which images go into each, in their order."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from beam_jobs.plan.image_ref import PlannedImage, decode_line
from beam_jobs.plan.image_table import ImageTable
from beam_jobs.plan.listing import Listing
from beam_jobs.shards.work_dir import PlannedShard

_ROWS_AT_ONCE = 1 << 13


@dataclass
class Plan:
    """The shards that a job will write."""

    listing: Listing  # without its images
    images: ImageTable
    order: NDArray[np.int64]  # indices, shard after shard: [images]
    shards: tuple[PlannedShard, ...]
    shard_bytes: tuple[int, ...]
    class_counts: dict[str, list[int]]  # by split
    digest: str  # the SHA-256 of those of each shard's lines

    @classmethod
    def make(
        cls,
        listing: Listing,
        images: ImageTable,
        order: NDArray[np.int64],
        shards: Sequence[tuple[str, int, int, int]],
        class_counts: dict[str, list[int]],
    ) -> "Plan":
        """Returns the plan with these shards; the other arguments are as in `Plan`."""
        counts, ends = [shard[3] for shard in shards], list(accumulate(shard[3] for shard in shards))
        sums = np.append(0, np.cumsum(images.sizes[order])[np.array(ends, np.int64) - 1])
        planned: list[PlannedShard] = []
        digests, end = hashlib.sha256(), 0
        lines = _encode(images, order, counts, listing.label_names)
        for shard, (_, pieces) in zip(shards, groupby(lines, itemgetter(0)), strict=True):
            begin, digest = end, hashlib.sha256()
            for _, piece in pieces:
                digest.update(piece)
                end += len(piece)
            digests.update(digest.digest())
            planned.append(PlannedShard(*shard, begin, end))
        num_bytes = tuple(np.diff(sums).tolist())
        return cls(listing, images, order, tuple(planned), num_bytes, class_counts, digests.hexdigest())

    @property
    def num_images(self) -> int:
        """The number of images in all splits."""
        return sum(shard.images for shard in self.shards)

    @property
    def num_bytes(self) -> int:
        """The bytes of all sources."""
        return sum(self.shard_bytes)

    def read_lines(self, shard: PlannedShard) -> Iterator[PlannedImage]:
        """Returns the images of a shard, in order."""
        begin = sum(other.images for other in self.shards[: self.shards.index(shard)])
        labels = self.images.number_labels(self.listing.label_names)
        lines, _ = self.images.encode_lines(self.order[begin : begin + shard.images], labels)
        return map(decode_line, bytes(lines).splitlines())

    def encode(self) -> Iterator[memoryview]:
        """Yields all lines, shard after shard, in pieces."""
        counts = [shard.images for shard in self.shards]
        return map(itemgetter(1), _encode(self.images, self.order, counts, self.listing.label_names))

    def forget_images(self) -> None:
        """Drops the images, which take memory, once their lines are written."""
        self.images, self.order = ImageTable.make_empty(), np.zeros(0, np.int64)


def _encode(
    images: ImageTable, order: NDArray[np.int64], counts: Sequence[int], label_names: Sequence[str]
) -> Iterator[tuple[int, memoryview]]:
    """Yields the number of each shard with some of its lines. Shards with few images are encoded together."""
    ends = list(accumulate(counts))
    labels, number = images.number_labels(label_names), 0
    for first in range(0, len(order), _ROWS_AT_ONCE):
        lines, offsets = images.encode_lines(order[first : first + _ROWS_AT_ONCE], labels)
        begin, after = first, first + len(offsets) - 1
        while begin < after:
            end = min(ends[number], after)
            yield number, lines[int(offsets[begin - first]) : int(offsets[end - first])]
            begin = end
            number += begin == ends[number]
