"""AugmentOptions: how training and evaluation images are changed, on the host and on the device alike."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tfpipe.errors import ConfigError
from tfpipe.system.options import Choice, Flag, Kind, Share, check_options, is_number, option, show_options

IMAGENET_MEAN = (0.485, 0.456, 0.406)
"""The mean of red, green and blue over ImageNet's training images, where white is 1; as in torchvision."""

IMAGENET_STD = (0.229, 0.224, 0.225)
"""The standard deviation of red, green and blue over the same images; as in torchvision."""

ImageSize = int | tuple[int, int]
"""The size of an image: the side of a square in pixels, or height and width."""


@dataclass(frozen=True)
class _Numbers(Kind):
    """An option of several numbers, which must keep a rule."""

    rule: str  # the rule in words, such as "numbers above 0"
    holds: Callable[[tuple[float, ...]], bool]

    @property
    def allowed(self) -> str:
        """The rule as a sentence."""
        return f"{self.rule[0].upper()}{self.rule[1:]}."

    def check(self, name: str, value: object) -> None:
        """Refuses a value that breaks the rule."""
        assert isinstance(value, tuple)
        if not self.holds(value):
            raise ConfigError(f"`{name}` must be {self.rule}, got {value}.")


def _are_rising(values: tuple[float, ...], most: float = float("inf")) -> bool:
    return len(values) == 2 and 0 < values[0] <= values[1] <= most


_SHARES = _Numbers("two rising shares in (0, 1]", lambda values: _are_rising(values, 1))
_RATIOS = _Numbers("two rising numbers above 0", _are_rising)
_MEANS = _Numbers("one number for each channel", lambda values: True)
_DEVIATIONS = _Numbers("numbers above 0, one for each channel", lambda values: min(values, default=0) > 0)


@dataclass(frozen=True)
class AugmentOptions:
    """The options for cropping, flipping and normalizing images.

    Attributes:
        scale: The smallest and the largest share of the image's area in a training crop (Szegedy et al. 2014).
            Two rising shares in (0, 1]. Default: (0.08, 1.0).
        ratio: The smallest and the largest ratio of width to height of a training crop in the original (Szegedy et al.
            2014). Two rising numbers above 0. Default: (3 / 4, 4 / 3).
        flip: Whether half of the training images are flipped from left to right. Default: True.
        crop_fraction: The share of each side that evaluation keeps: 224 of 256 pixels (He et al. 2015). In (0, 1].
            Default: 0.875.
        antialias: Whether the resize kernel widens when a crop shrinks, as Pillow's does. `tf.image.resize` has it off.
            It is worth it if the output is much smaller than the stored image. It costs a device nothing, and a host
            a fraction of a millisecond an image. Default: False.
        dct_scaling: Whether a JPEG may be decoded at 1/2, 1/4 or 1/8 of its size. It is if the crop or the whole image
            is at least that many times larger than the result. It saves decoding time. None: the engine does it, and
            the textbook pipeline, which refuses True, does not. Default: None.
        matmul_dtype: The type in which the device resizes, see `tfpipe.pipeline.device.augment`. bfloat16 is for
            devices that are faster with it. "float32" or "bfloat16". Default: "float32".
        mean: The mean of each channel, where white is 1, as `tfpipe.engine.config.augment_config.IMAGENET_MEAN`.
            One number for each channel. Default: (0.485, 0.456, 0.406).
        std: The standard deviation of each channel, where white is 1, as `IMAGENET_STD`. Numbers above 0, one for each
            channel. Default: (0.229, 0.224, 0.225).

    Raises:
        ConfigError: A value cannot be used.
    """

    scale: tuple[float, float] = option(_SHARES, (0.08, 1.0))
    ratio: tuple[float, float] = option(_RATIOS, (3 / 4, 4 / 3))
    flip: bool = option(Flag(), True)
    crop_fraction: float = option(Share(), 0.875)
    antialias: bool = option(Flag(), False)
    dct_scaling: bool | None = option(Flag(), None, affects="images")
    matmul_dtype: str = option(Choice(("float32", "bfloat16")), "float32")
    mean: tuple[float, ...] = option(_MEANS, IMAGENET_MEAN)
    std: tuple[float, ...] = option(_DEVIATIONS, IMAGENET_STD)

    __repr__ = show_options

    def __post_init__(self) -> None:
        # Files have integers and lists. As floats and tuples, equal options have one hash and one text.
        for name in ("scale", "ratio", "mean", "std"):
            values: object = getattr(self, name)
            if not isinstance(values, list | tuple) or not all(map(is_number, values)):
                raise ConfigError(f"`{name}` must be a list of finite numbers, got {values!r}.")
            object.__setattr__(self, name, tuple(map(float, values)))
        check_options(self)
        object.__setattr__(self, "crop_fraction", float(self.crop_fraction))
        if len(self.mean) != len(self.std):
            raise ConfigError(f"`mean` and `std` must have one number for each channel, got {self.mean}, {self.std}.")


def compute_scaling(mean: Sequence[float], std: Sequence[float]) -> tuple[list[float], list[float]]:
    """Computes offset and factor of each channel that normalize values from 0 to 255: (value - offset) * factor."""
    return [255.0 * value for value in mean], [1.0 / (255.0 * value) for value in std]


def as_pair(size: ImageSize) -> tuple[int, int]:
    """Returns a size as height and width; one number is the side of a square."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])
