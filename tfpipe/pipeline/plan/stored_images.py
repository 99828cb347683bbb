"""How a split's images are stored, as the manifest promises it: what need not be looked up in every record."""

from __future__ import annotations

from dataclasses import dataclass

from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest, SplitInfo

RATIOS = (2, 4, 8)
"""Reductions that JPEG decoders do while decoding: they turn each block of 8 x 8 into 4 x 4, 2 x 2 or one pixel."""


@dataclass(frozen=True)
class StoredImages:
    """What is known of a split's images before one is read.

    Attributes:
      formats: Of "JPEG", "PNG" and "RAW", those that occur; empty where others occur, or nobody looked.
      size: Height and width in pixels where all images were squeezed to one size.
      short_side: No image's short side is longer than this many pixels; None where nothing is known.

    Raises:
      ConfigError: Raw pixels without a size, or beside other formats, which nothing in their bytes tells apart.
    """

    formats: frozenset[str] = frozenset()
    size: tuple[int, int] | None = None
    short_side: int | None = None

    def __post_init__(self) -> None:
        if unknown := self.formats - {"JPEG", "PNG", "RAW"}:
            raise ConfigError(f"`formats` must be of JPEG, PNG and RAW, got {', '.join(sorted(unknown))}.")
        if "RAW" in self.formats and (self.size is None or len(self.formats) > 1):
            got = f"{', '.join(sorted(self.formats))} of size {self.size}"
            raise ConfigError(f"Raw images need a fixed `size` and no other format beside them, got {got}.")

    @classmethod
    def of(cls, manifest: Manifest, split: str) -> StoredImages:
        """What a manifest knows of one of its splits."""
        if manifest.foreign is not None:
            return cls._of_foreign(manifest.splits[split])
        square, short = (
            side if isinstance(side := manifest.image.get(name), int) else None for name in ("square", "resize_short")
        )
        size = None if square is None else (square, square)
        return cls(frozenset(manifest.splits[split].formats), size, short)

    @classmethod
    def _of_foreign(cls, info: SplitInfo) -> StoredImages:
        """What the headers of all images said, where each could be read."""
        formats, sizes = frozenset(kind for kind, count in info.formats.items() if count), info.sizes
        if not formats or not formats <= {"JPEG", "PNG"}:
            return cls()
        largest = sizes.max_height, sizes.max_width
        alike = largest == (sizes.min_height, sizes.min_width)
        return cls(formats, largest if alike else None, min(largest))

    def ratios_for(self, out_size: tuple[int, int]) -> tuple[int, ...]:
        """Those of `RATIOS` for which some window can be large enough; costs no record anything."""
        return tuple(
            ratio
            for ratio in RATIOS
            if (self.size is None or (self.size[0] >= ratio * out_size[0] and self.size[1] >= ratio * out_size[1]))
            and (self.short_side is None or self.short_side >= ratio * min(out_size))
        )
