"""The form in which a split's images are stored, as the manifest promises it, so that no record need be looked at."""

from __future__ import annotations

from dataclasses import dataclass

from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest, SplitInfo

RATIOS = (2, 4, 8)
"""Reductions that JPEG decoders do while decoding: they turn each block of 8 x 8 into 4 x 4, 2 x 2 or one pixel."""


@dataclass(frozen=True)
class StoredImages:
    """The facts about a split's images that are known before one is read.

    Attributes:
        formats: The formats that occur: "JPEG", "PNG" or "RAW". Empty if other formats occur, or if nobody looked.
        size: The height and width in pixels, if all images were squeezed to one size.
        short_side: The length in pixels that no image's short side exceeds; None if it is unknown.
        seekable: Whether all JPEGs have restart markers, so that a crop can be decoded without the rest.

    Raises:
        ConfigError: Raw pixels have no size, or are mixed with other formats, from which their bytes cannot be told.
    """

    formats: frozenset[str] = frozenset()
    size: tuple[int, int] | None = None
    short_side: int | None = None
    seekable: bool = False

    def __post_init__(self) -> None:
        if unknown := self.formats - {"JPEG", "PNG", "RAW"}:
            raise ConfigError(f"`formats` must be of JPEG, PNG and RAW, got {', '.join(sorted(unknown))}.")
        if "RAW" in self.formats and (self.size is None or len(self.formats) > 1):
            got = f"{', '.join(sorted(self.formats))} of size {self.size}"
            raise ConfigError(f"Raw images need a fixed `size` and no other format beside them, got {got}.")

    @classmethod
    def from_manifest(cls, manifest: Manifest, split: str) -> StoredImages:
        """Returns the facts that a manifest has about the images of one of its splits."""
        if manifest.foreign is not None:
            return cls._from_foreign(manifest.splits[split])
        square, short = (
            side if isinstance(side := manifest.image.get(name), int) else None for name in ("square", "resize_short")
        )
        size = None if square is None else (square, square)
        info = manifest.splits[split]
        return cls(frozenset(info.formats), size, short, info.seekable)

    @classmethod
    def _from_foreign(cls, info: SplitInfo) -> StoredImages:
        """Returns the facts from the headers of all images, if each header could be read."""
        formats, sizes = frozenset(kind for kind, count in info.formats.items() if count), info.sizes
        if not formats or not formats <= {"JPEG", "PNG"}:
            return cls()
        largest, smallest = (sizes.max_height, sizes.max_width), (sizes.min_height, sizes.min_width)
        return cls(formats, largest if largest == smallest else None, min(largest), info.seekable)

    def find_ratios(self, out_size: tuple[int, int]) -> tuple[int, ...]:
        """Returns the `RATIOS` for which some crop can be large enough. It reads no record."""
        return tuple(
            ratio
            for ratio in RATIOS
            if (self.size is None or (self.size[0] >= ratio * out_size[0] and self.size[1] >= ratio * out_size[1]))
            and (self.short_side is None or self.short_side >= ratio * min(out_size))
        )
