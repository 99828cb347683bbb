"""The numbers about the masks of a feature: the pixels of each class, and the images that have the class."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfpipe.format.json_reader import Node

COUNTED_CLASSES = 256
"""The classes, from 0, whose pixels are counted one by one."""


@dataclass(slots=True)
class MaskStats:
    """The numbers about masks, those of a shard or of a split.

    Attributes:
        records: The number of masks.
        pixels: The number of pixels of each class from 0 to 255, up to the last class that occurs.
        images: The number of masks in which each of these classes occurs.
        higher: The number of pixels whose class is 256 or more.
    """

    records: int = 0
    pixels: list[int] = field(default_factory=list)
    images: list[int] = field(default_factory=list)
    higher: int = 0

    def add(self, classes: NDArray[np.integer[Any]]) -> None:
        """Adds a mask: uint8 or uint16 [height, width]."""
        counts = np.bincount(classes.reshape(-1)).tolist()
        pixels = counts[:COUNTED_CLASSES]
        self.merge(MaskStats(1, pixels, [int(count > 0) for count in pixels], sum(counts[COUNTED_CLASSES:])))

    def merge(self, other: "MaskStats") -> None:
        """Adds the masks of another shard."""
        self.records += other.records
        self.pixels = _add(self.pixels, other.pixels)
        self.images = _add(self.images, other.images)
        self.higher += other.higher

    def to_json(self) -> dict[str, Any]:
        """Returns the numbers as JSON values."""
        return {"records": self.records, "pixels": self.pixels, "images": self.images, "higher": self.higher}

    @classmethod
    def from_json(cls, node: Node) -> "MaskStats":
        """Inverts `to_json`. Raises `FormatError` for any other value."""
        records = node.field("records").count()
        pixels = list(node.field("pixels").tuple(Node.count))
        if len(pixels) > COUNTED_CLASSES:
            raise node.field("pixels").error(f"a list of at most {COUNTED_CLASSES} counts")
        images = list(node.field("images").tuple(lambda count: count.count(0, records)))
        if len(images) != len(pixels):
            raise node.field("images").error(f"a list of {len(pixels)} counts, as `pixels` is")
        return cls(records, pixels, images, node.field("higher").count())


def _add(first: list[int], second: list[int]) -> list[int]:
    longer, shorter = (first, second) if len(first) >= len(second) else (second, first)
    return [count + (shorter[k] if k < len(shorter) else 0) for k, count in enumerate(longer)]
