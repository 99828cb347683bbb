"""A plan whose lines are written already, because no process holds all of its images."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from beam_jobs.plan.image_ref import ImageRef, PlannedImage
from beam_jobs.plan.image_table import ImageTable
from beam_jobs.plan.listing import Listing
from beam_jobs.plan.split_and_shard import Plan, ShardPlan
from beam_jobs.shards.work_dir import PlannedShard, read_lines


@dataclass(frozen=True, slots=True)
class PlanOnDisk(Plan):
    """A plan whose lines lie in a folder. Its listing has no images.

    Attributes:
        base: The folder.
        planned: The place of the lines of each shard.
        digest: The SHA-256 of the SHA-256 of each shard's lines, as hexadecimal digits.
    """

    base: str
    planned: tuple[PlannedShard, ...]
    digest: str

    def lines(self, shard: ShardPlan) -> Iterator[PlannedImage]:
        """Returns the images of a shard as lines of the plan file, in order."""
        return read_lines(self.base, self.planned[self.shards.index(shard)])

    def pick(self, images: Sequence[int]) -> tuple[Listing, NDArray[np.int64]]:
        """Returns a listing with some images at least, and their indices in it. Reads the lines of their shards.

        Args:
            images: The positions of the images in the plan.
        """
        starts = list(accumulate((planned.images for planned in self.planned), initial=0))
        refs: dict[int, ImageRef] = {}
        shard, lines = -1, []
        for position in sorted(images):
            if shard != bisect_right(starts, position) - 1:
                shard = bisect_right(starts, position) - 1
                lines = list(read_lines(self.base, self.planned[shard]))
            refs[position] = self._make_ref(lines[position - starts[shard]])
        index = {position: k for k, position in enumerate(refs)}
        listing = replace(self.listing, images=ImageTable.from_refs(refs.values()))
        return listing, np.array([index[position] for position in images], np.int64)

    def _make_ref(self, image: PlannedImage) -> ImageRef:
        label = self.listing.label_names[image.label] if image.label >= 0 else None
        boxes = tuple((xmin, ymin, xmax, ymax) for xmin, ymin, xmax, ymax in image.boxes)
        labels, extra = tuple(image.box_labels), tuple(image.extra)
        return ImageRef(image.path, image.size, image.location, "", label, "", boxes, labels, extra)
