"""Counts of the images, masks and tensors in a shard: added record by record, merged, and given to a `SplitInfo`."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tfpipe.format.manifest import ImageSizes, ImagesPerRecord, ShardInfo, SplitInfo
from tfpipe.format.schema import Schema, find_tensors
from tfpipe.format.tensors.tensor_stats import MaskStats, TensorStats

_COUNTS, _SIDES = ("formats", "labels", "changed", "noticed"), ("heights", "widths", "per_record")


@dataclass(slots=True)
class SideStats:
    """The range and the sum of the heights of images, of their widths, or of the numbers of images per record."""

    smallest: int | None = None  # in pixels or images; None before the first value
    largest: int = 0
    total: int = 0  # the sum

    def add(self, pixels: int) -> None:
        """Adds one height, width or number of images."""
        self.merge(SideStats(pixels, pixels, pixels))

    def merge(self, other: "SideStats") -> None:
        """Adds the range and the sum of another instance."""
        if other.smallest is not None:
            self.smallest = other.smallest if self.smallest is None else min(self.smallest, other.smallest)
        self.largest = max(self.largest, other.largest)
        self.total += other.total


@dataclass(slots=True)
class ShardStats:
    """The counts of the images in one or more shards."""

    images: int = 0  # images whose size is known, normally all
    formats: Counter[str] = field(default_factory=Counter)  # images in each format
    labels: Counter[int] = field(default_factory=Counter)  # images with each label
    changed: Counter[str] = field(default_factory=Counter)  # by kind of change
    noticed: Counter[str] = field(default_factory=Counter)  # by property
    seekable_jpegs: int = 0  # JPEGs with restart markers, for decoding crops
    heights: SideStats = field(default_factory=SideStats)
    widths: SideStats = field(default_factory=SideStats)
    tensors: dict[str, TensorStats] = field(default_factory=dict)
    masks: dict[str, MaskStats] = field(default_factory=dict)
    per_record: SideStats = field(default_factory=SideStats)  # images in records that have several
    label_counts: dict[str, Counter[int]] = field(default_factory=dict)  # records with each class, of lists of classes

    def add(self, image_format: str | None, height: int | None, width: int | None, label: int | None = None) -> None:
        """Adds one image. None stands for a value that its record does not give."""
        self.images += 1
        if image_format is not None:
            self.formats[image_format] += 1
        if height is not None:
            self.heights.add(height)
        if width is not None:
            self.widths.add(width)
        if label is not None:
            self.labels[label] += 1

    def add_tensors(self, schema: Schema, features: Mapping[str, Any]) -> list[str]:
        """Adds the tensors of a record that was checked or decoded; returns the features that hold NaN."""
        with_nan = []
        for spec, bits in find_tensors(schema, features):
            assert spec.tensor is not None
            stats = self.tensors.get(spec.name)
            if stats is None:
                stats = self.tensors[spec.name] = TensorStats()
            if stats.add(spec.tensor, bits):
                with_nan.append(spec.name)
        return with_nan

    def add_classes(self, schema: Schema, features: Mapping[str, Any]) -> None:
        """Adds the lists of classes of a record, each class once; a number that is not a class does not count."""
        for spec in schema.class_lists:
            value = features.get(spec.name)
            numbers = {int(number) for number in (() if value is None else value)}
            classes = (number for number in numbers if 0 <= number < len(spec.names))
            self.label_counts.setdefault(spec.name, Counter()).update(classes)

    def merge(self, other: "ShardStats") -> None:
        """Adds the images, masks and tensors of another shard."""
        self.images += other.images
        for name in _COUNTS:
            getattr(self, name).update(getattr(other, name))
        self.seekable_jpegs += other.seekable_jpegs
        for name in _SIDES:
            getattr(self, name).merge(getattr(other, name))
        for name, stats in other.tensors.items():
            self.tensors.setdefault(name, TensorStats()).merge(stats)
        for name, mask_stats in other.masks.items():
            self.masks.setdefault(name, MaskStats()).merge(mask_stats)
        for name, counts in other.label_counts.items():
            self.label_counts.setdefault(name, Counter()).update(counts)

    def to_split_info(self, name: str, shards: Iterable[ShardInfo], num_classes: int, label_base: int = 0) -> SplitInfo:
        """Returns the manifest's entry for a split with these images."""
        images, heights, widths, per_record = max(1, self.images), self.heights, self.widths, self.per_record
        counts = ImagesPerRecord(per_record.total, per_record.smallest or 0, per_record.largest)
        return SplitInfo(
            name=name,
            shards=tuple(shards),
            formats=sort_counts(self.formats),
            class_counts=tuple(self.labels[k + label_base] for k in range(num_classes)),
            sizes=ImageSizes(  # all zeros without images
                min_height=heights.smallest or 0,
                max_height=heights.largest,
                mean_height=round(heights.total / images, 1),
                min_width=widths.smallest or 0,
                max_width=widths.largest,
                mean_width=round(widths.total / images, 1),
            ),
            seekable_jpegs=self.seekable_jpegs,
            tensors=dict(sorted(self.tensors.items())),
            masks=dict(sorted(self.masks.items())),
            images_per_record=None if per_record.smallest is None else counts,
            label_counts={
                name: tuple(classes[number] for number in range(max(classes, default=-1) + 1))
                for name, classes in sorted(self.label_counts.items())
            },
        )

    @classmethod
    def from_split_info(cls, info: SplitInfo) -> "ShardStats":
        """Restores the counts that `to_split_info` gave. The mean sizes are rounded."""
        images, sizes, several = sum(info.formats.values()), info.sizes, info.images_per_record
        stats = cls(images, Counter(info.formats), Counter(dict(enumerate(info.class_counts))))
        if sizes.max_height:
            stats.heights = SideStats(sizes.min_height, sizes.max_height, round(sizes.mean_height * images))
            stats.widths = SideStats(sizes.min_width, sizes.max_width, round(sizes.mean_width * images))
        if several is not None:
            stats.per_record = SideStats(several.min, several.max, several.total)
        stats.seekable_jpegs, stats.tensors, stats.masks = info.seekable_jpegs, dict(info.tensors), dict(info.masks)
        stats.label_counts = {name: Counter(dict(enumerate(counts))) for name, counts in info.label_counts.items()}
        return stats


def merge_stats(stats: Iterable[ShardStats]) -> ShardStats:
    """Sums the counts of several shards."""
    total = ShardStats()
    for shard_stats in stats:
        total.merge(shard_stats)
    return total


def sort_counts(counts: Mapping[str, int]) -> dict[str, int]:
    """Returns counts in the order of their names, as the manifest has them."""
    return dict(sorted(counts.items()))
