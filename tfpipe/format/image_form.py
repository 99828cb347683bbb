"""The form of the stored images: the options of `tfpipe.images`, which the manifest records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from tfpipe.errors import ConfigError, FormatError
from tfpipe.format.json_reader import to_json
from tfpipe.system.options import Choice, Count, Flag, check_options, option

Encoding = Literal["keep", "jpeg", "raw"]

# The longest side that the JPEG library can write, and a bound on every option given in pixels.
MAX_SIDE = 65_500

_GROUP = "Images"


@dataclass(frozen=True)
class ImageForm:
    """The form every image is brought into before it is stored.

    Attributes:
        encoding: The encoding of stored images. "keep": JPEG and PNG stay as they are; other formats become PNG where
            they are lossless, else JPEG. "jpeg": JPEG only. "raw": `square * square * 3` bytes of RGB.
            "keep", "jpeg" or "raw". Default: "keep".
        resize_short: The short side, in pixels, that larger images are reduced to. They keep their aspect, and smaller
            images stay. None: no image is reduced. From 1 to 65500. Default: None.
        square: The side, in pixels, of the square that every image is squeezed to. "raw" needs it, `resize_short`
            excludes it. None: no image is squeezed. From 1 to 65500. Default: None.
        quality: The JPEG quality of images that are encoded again. At 95 the loss is hardly visible, and the size is
            about that of a camera's files. From 1 to 100. Default: 95.
        reencode_progressive: Whether progressive JPEGs are encoded again as baseline, which decodes about twice as
            fast. Then every JPEG is one that a GPU's decoder takes: baseline, in RGB or gray. Default: False.
        max_pixels: The largest number of pixels of an image; larger ones are refused from their header. An image that
            is converted or turned costs 8 bytes a pixel for a moment (WebP 16). So the default bounds a worker at
            0.5 GB (1 GB) and admits images of cameras with 60 megapixels. At least 1. Default: 64_000_000.
        seekable: Whether every JPEG gets restart markers, so that a crop can be decoded without the rest. A JPEG that
            stays is transcoded without loss, a progressive one to a sequential one. "raw"
            excludes it. Default: False.

    Raises:
        ConfigError: An option is out of range, or two options exclude each other.
    """

    encoding: Encoding = option(Choice(get_args(Encoding)), "keep", group=_GROUP)
    resize_short: int | None = option(Count(1, MAX_SIDE), None, group=_GROUP, metavar="PX")
    square: int | None = option(Count(1, MAX_SIDE), None, group=_GROUP, metavar="PX")
    quality: int = option(Count(1, 100), 95, group=_GROUP)
    reencode_progressive: bool = option(Flag(), False, group=_GROUP, rare=True)
    max_pixels: int = option(Count(1), 64_000_000, group=_GROUP, rare=True)
    seekable: bool = option(Flag(), False, group=_GROUP)
    optional = ("seekable",)

    def __post_init__(self) -> None:
        check_options(self)
        if self.square is not None and self.resize_short is not None:
            raise ConfigError("`square` and `resize_short` exclude each other. Give one of them.")
        if self.encoding == "raw" and self.square is None:
            raise ConfigError("`encoding` raw needs `square`: all raw images have the same size.")
        if self.encoding == "raw" and self.seekable:
            raise ConfigError("`encoding` raw and `seekable` exclude each other: only a JPEG has restart markers.")

    def change(self, changes: Mapping[str, Any]) -> ImageForm:
        """Returns this form with changed options, a new size in place of the old; refuses impossible conversions."""
        no_sizes = {"square": None, "resize_short": None} if changes.keys() & {"square", "resize_short"} else {}
        no_markers = {"seekable": False} if changes.get("encoding") == "raw" else {}
        new = replace(self, **{**no_sizes, **no_markers, **changes})
        if new != self and replace(new, quality=self.quality) == self:
            raise ConfigError(
                "`quality` is for images that are encoded again, and none would be. Change `encoding`, `resize_short` "
                "or `square` too."
            )
        limit = self.resize_short or self.square
        for name, side in (("resize_short", new.resize_short), ("square", new.square)):
            if side and limit and side > limit:
                raise ConfigError(
                    f"The images were reduced to {limit} pixels and cannot be enlarged again: "
                    f"`{name}` must be at most that, got {side}."
                )
        return new

    @staticmethod
    def join_limits(forms: Sequence[ImageForm]) -> dict[str, Any]:
        """Merges the options in which forms may differ into values that hold for the images of every form."""
        return {
            "quality": min(form.quality for form in forms),
            "max_pixels": max(form.max_pixels for form in forms),
            "reencode_progressive": all(form.reencode_progressive for form in forms),
        }

    def describe(self, *, whole: bool = False) -> str:
        """Returns the encoding and the size, as in "encoding jpeg, square 224"; with `whole` also the quality."""
        options = {"encoding": self.encoding, "square": self.square, "resize_short": self.resize_short}
        options |= {"quality": self.quality} if whole else {}
        return ", ".join(f"{name} {value}" for name, value in options.items() if value is not None)

    def to_json(self) -> dict[str, Any]:
        """Returns the options as JSON values, without `seekable` if false: other manifests keep their bytes."""
        options: dict[str, Any] = to_json(self)
        return options

    @classmethod
    def recorded(cls, image: Mapping[str, object]) -> ImageForm:
        """Returns the form that the `image` of a manifest describes. Missing options take their defaults."""
        options = {name: image[name] for name in cls.__dataclass_fields__ if name in image}
        try:
            return cls(**options)  # type: ignore[arg-type]
        except ConfigError as error:
            raise FormatError(f"The manifest's image form cannot be used: {error}") from None
