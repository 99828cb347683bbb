"""The form of the stored images: the options of `tfpipe.images`, which the manifest records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from tfpipe.errors import ConfigError, FormatError

Encoding = Literal["keep", "jpeg", "raw"]

# The longest side that the JPEG library can write, and a bound on every option given in pixels.
MAX_SIDE = 65_500


@dataclass(frozen=True)
class ImageForm:
    """The form every image is brought into before it is stored.

    Attributes:
        encoding: "keep" stores JPEG and PNG as they came and turns other formats into PNG (lossless sources)
            or JPEG (lossy ones); "jpeg" stores JPEG only; "raw" stores `square * square * 3` bytes of RGB.
        resize_short: An image whose short side is longer than this many pixels is reduced to it, keeping its
            aspect; smaller ones stay. None: no image is reduced.
        square: The whole image is squeezed to `square` x `square` pixels. "raw" needs it, `resize_short`
            excludes it.
        quality: JPEG quality, 1 to 100, of whatever is encoded anew. 95: hardly a visible loss, and about the
            size of a camera's own files.
        reencode_progressive: Encode progressive JPEGs anew as baseline, which decode about twice as fast.
        max_pixels: Images with more pixels than this are refused from their header. What is kept as it is costs
            hardly any memory; what is converted or turned costs 8 bytes a pixel for a moment (WebP 16), so the
            default bounds a worker at 0.5 GB (1 GB) and admits what cameras of 60 megapixels take.

    Raises:
        ConfigError: An option is out of range, or two options exclude each other.
    """

    encoding: Encoding = "keep"
    resize_short: int | None = None
    square: int | None = None
    quality: int = 95
    reencode_progressive: bool = False
    max_pixels: int = 64_000_000

    def __post_init__(self) -> None:
        """Checks each option, then the pairs."""
        if self.encoding not in get_args(Encoding):
            raise ConfigError(f"`encoding` must be keep, jpeg or raw, got {self.encoding!r}.")
        if self.resize_short is not None:
            _check_range("resize_short", self.resize_short, 1, MAX_SIDE)
        if self.square is not None:
            _check_range("square", self.square, 1, MAX_SIDE)
        _check_range("quality", self.quality, 1, 100)
        _check_range("max_pixels", self.max_pixels, 1, None)
        if self.square is not None and self.resize_short is not None:
            raise ConfigError("`square` and `resize_short` exclude each other. Give one of them.")
        if self.encoding == "raw" and self.square is None:
            raise ConfigError("`encoding` raw needs `square`: all raw images have the same size.")

    @classmethod
    def recorded(cls, image: Mapping[str, object]) -> ImageForm:
        """Returns the form that the `image` of a manifest describes. Missing options take their defaults.

        Keys that are not options are ignored.

        Raises:
            FormatError: The manifest's options do not make a valid form.
        """
        options = {name: image[name] for name in cls.__dataclass_fields__ if name in image}
        try:
            return cls(**options)  # type: ignore[arg-type]
        except ConfigError as error:
            raise FormatError(f"The manifest's image form cannot be used: {error}") from None


def _check_range(name: str, value: object, low: int, high: int | None) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"`{name}` must be a whole number, got {value!r}.")
    if high is None:
        if value < low:
            raise ConfigError(f"`{name}` must be at least {low}, got {value}.")
    elif not low <= value <= high:
        raise ConfigError(f"`{name}` must be from {low} to {high}, got {value}.")
