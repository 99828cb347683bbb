"""AdviseConfig: the options of a comparison of stored forms. The command line loads it with its options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from tfpipe.system.options import Choice, Count, Number, check_options, option

Crop = Literal["host", "device", "both"]


@dataclass(frozen=True)
class AdviseConfig:
    """The demand that the stored images must meet, and the size of the sample that is measured.

    Attributes:
        images_per_second: The images that the training consumes per second, on all of its devices. Above 0. Required.
        crop: The place where the random crops of training are taken. "host": in the input pipeline. "device": in the
            training step, which `tfpipe.pipeline.device.augment` does. "both": either; both are measured.
            "host", "device" or "both". Default: "both".
        num_images: The number of images that are written in every form and measured. None: 1,000, or as many as
            take 1 GiB if those are fewer, but at least 64. At least 1. Default: None.

    Raises:
        ConfigError: A value cannot be used.
    """

    images_per_second: float = option(Number(above=0))
    crop: Crop = option(Choice(get_args(Crop)), "both")
    num_images: int | None = option(Count(1), None)

    def __post_init__(self) -> None:
        check_options(self)

    def count_sample(self, mean_bytes: float) -> int:
        """Returns the number of images to sample, by the mean bytes of an image of the input."""
        if self.num_images is not None:
            return self.num_images
        return min(_SAMPLE_IMAGES, max(_MIN_SAMPLE_IMAGES, int(_SAMPLE_BYTES / max(mean_bytes, 1))))


_SAMPLE_IMAGES, _MIN_SAMPLE_IMAGES, _SAMPLE_BYTES = 1000, 64, 2**30
