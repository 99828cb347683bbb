"""The form in which a split's images are stored, as the manifest promises it, so that no record need be looked at."""

from __future__ import annotations

from dataclasses import dataclass

from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest, SplitInfo


@dataclass(frozen=True)
class StoredImages:
    """The facts about a split's images that are known before one is read."""

    formats: frozenset[str] = frozenset()  # "JPEG", "PNG" or "RAW"; empty if other formats occur, or if nobody looked
    size: tuple[int, int] | None = None  # height and width, if all images were squeezed to one size
    seekable: bool = False  # whether all JPEGs have restart markers

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
        square, info = manifest.image.get("square"), manifest.splits[split]
        size = (square, square) if isinstance(square, int) else None
        return cls(frozenset(info.formats), size, info.seekable)

    @classmethod
    def _from_foreign(cls, info: SplitInfo) -> StoredImages:
        """Returns the facts from the headers of all images, if each header could be read."""
        formats, sizes = frozenset(kind for kind, count in info.formats.items() if count), info.sizes
        if not formats or not formats <= {"JPEG", "PNG"}:
            return cls()
        largest, smallest = (sizes.max_height, sizes.max_width), (sizes.min_height, sizes.min_width)
        return cls(formats, largest if largest == smallest else None, info.seekable)
