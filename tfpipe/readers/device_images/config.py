"""DeviceConfig: how many threads read for a GPU, and how many batches lie ready on it."""

from __future__ import annotations

from dataclasses import dataclass

from tfpipe.system.options import Count, Flag, check_options, option, show_options


@dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """The options of `DeviceImages` that concern speed and memory. They change no record and no pixel.

    Attributes:
        num_threads: The number of threads that read records and headers, and that decode what the GPU refuses. Each
            has one batch in hand, with its files in memory of its own. From 1 to 64. Default: 2.
        prefetch_batches: The number of batches that are decoded ahead of the trainer, in the GPU's memory. While one
            is decoded, its whole images lie there too. From 1 to 16. Default: 2.
        channels_last: Whether images lie in channels-last memory, which convolutions in bfloat16 are fastest with.
            Their shape is [batch, 3, height, width] in any case. Default: True.

    Raises:
        ConfigError: An option is out of range.
    """

    num_threads: int = option(Count(1, 64), 2)
    prefetch_batches: int = option(Count(1, 16), 2)
    channels_last: bool = option(Flag(), True)

    __repr__ = show_options

    def __post_init__(self) -> None:
        check_options(self)
