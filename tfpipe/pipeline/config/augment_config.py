"""How training and evaluation images are changed: the options that host and device share."""

from dataclasses import dataclass

from tfpipe.errors import ConfigError
from tfpipe.pipeline.config.validators import check_flag

IMAGENET_MEAN = (0.485, 0.456, 0.406)
"""Mean of red, green and blue over ImageNet's training images, where white is 1; as in torchvision."""

IMAGENET_STD = (0.229, 0.224, 0.225)
"""Their standard deviation, likewise."""

Size = int | tuple[int, int]
"""Of an image: the side of a square in pixels, or height and width."""


@dataclass(frozen=True)
class AugmentOptions:
    """How images are cropped, mirrored and normalized.

    Attributes:
      scale: Share of the image's area in a training crop, smallest and largest (Szegedy et al. 2014).
      ratio: Aspect ratio of a training crop in the original, smallest and largest (Szegedy et al. 2014).
      flip: Mirror half of the training images.
      crop_fraction: Share of the side kept in evaluation: 224 of 256 (He et al. 2015).
      antialias: Widen the resize kernel where a crop shrinks, as Pillow does. Off, as in `tf.image.resize`; worth
        it where the output is much smaller than what is stored. The same cost either way.
      matmul_dtype: "float32", or "bfloat16" where the device is faster with it; see `device.crop_and_resize`.
      mean: Of each channel, where white is 1.
      std: Of each channel, likewise.

    Raises:
      ConfigError: A value cannot be used.
    """

    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = True
    crop_fraction: float = 0.875
    antialias: bool = False
    matmul_dtype: str = "float32"
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    def __post_init__(self) -> None:
        """Numbers become floats and lists, as files have them, tuples: equal options have one hash and one text."""
        for name in ("scale", "ratio", "mean", "std"):
            object.__setattr__(self, name, _floats(name, getattr(self, name)))
        for name in ("flip", "antialias"):
            check_flag(name, getattr(self, name))
        if len(self.scale) != 2 or not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ConfigError(f"`scale` must be two rising shares in (0, 1], got {self.scale}.")
        if len(self.ratio) != 2 or not 0 < self.ratio[0] <= self.ratio[1]:
            raise ConfigError(f"`ratio` must be two rising numbers above 0, got {self.ratio}.")
        if not _is_number(self.crop_fraction) or not 0 < self.crop_fraction <= 1:
            raise ConfigError(f"`crop_fraction` must be in (0, 1], got {self.crop_fraction!r}.")
        object.__setattr__(self, "crop_fraction", float(self.crop_fraction))
        if self.matmul_dtype not in ("float32", "bfloat16"):
            raise ConfigError(f"`matmul_dtype` must be 'float32' or 'bfloat16', got {self.matmul_dtype!r}.")
        if not self.std or min(self.std) <= 0:
            raise ConfigError(f"`std` must be numbers above 0, one for each channel, got {self.std}.")
        if len(self.mean) != len(self.std):
            raise ConfigError(f"`mean` and `std` must have one number for each channel, got {self.mean}, {self.std}.")


def as_pair(size: Size) -> tuple[int, int]:
    """Height and width."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _floats(name: str, values: object) -> tuple[float, ...]:
    if not isinstance(values, list | tuple) or not all(map(_is_number, values)):
        raise ConfigError(f"`{name}` must be a list of finite numbers, got {values!r}.")
    return tuple(map(float, values))


def _is_number(value: object) -> bool:
    """Finite, and within what a float can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300
