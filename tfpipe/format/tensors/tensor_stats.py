"""The statistics of the tensors and the masks of a feature."""

import math
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from tfpipe.format.json_reader import MAX_COUNT, Rule, at_most, is_number
from tfpipe.format.tensors.tensor_type import MAX_AXES, TensorType

_LARGEST = {"float16": 0x7BFF, "bfloat16": 0x7F7F}  # the bits of the largest finite number

COUNTED_CLASSES = 256
"""The number of classes, from 0, that have a pixel count each; the pixels of higher classes share one."""

_CLASSES = at_most(COUNTED_CLASSES, "counts")
_SIZES = at_most(MAX_AXES, "sizes")
_NUMBER = Rule("a number or null", is_number)


@dataclass(slots=True)
class MaskStats:
    """The statistics of the masks of a shard or of a split."""

    records: int = 0
    # One count for each class from 0 to 255, up to the last that occurs.
    pixels: Annotated[list[int], _CLASSES] = field(default_factory=list)
    images: Annotated[list[int], _CLASSES] = field(default_factory=list)  # masks that contain the class
    higher: int = 0  # pixels whose class is 256 or more

    def __post_init__(self) -> None:
        if len(self.images) != len(self.pixels) or max(self.images, default=0) > self.records:
            raise ValueError(
                f"`images` must be {len(self.pixels)} counts, as `pixels` are, each at most {self.records}, got "
                f"{self.images}."
            )

    def add(self, classes: NDArray[np.integer[Any]]) -> None:
        """Adds a mask: uint8 or uint16 [height, width]."""
        counts = np.bincount(classes.reshape(-1)).tolist()
        pixels = counts[:COUNTED_CLASSES]
        self.merge(MaskStats(1, pixels, [int(count > 0) for count in pixels], sum(counts[COUNTED_CLASSES:])))

    def merge(self, other: "MaskStats") -> None:
        """Adds the masks of another shard."""
        self.records += other.records
        self.pixels = _add(self.pixels, other.pixels)
        self.images = _add(self.images, other.images)
        self.higher += other.higher


@dataclass(slots=True)
class TensorStats:
    """The statistics of the tensors of one feature."""

    records: int = 0
    values: int = 0  # in all tensors
    nan: int = 0
    nan_records: int = 0  # tensors with a NaN
    infinite: int = 0
    low: Annotated[float, _NUMBER] | None = None  # of the finite values; false and true count as 0 and 1
    high: Annotated[float, _NUMBER] | None = None
    min_sizes: Annotated[tuple[int, ...], _SIZES] = ()  # for each axis whose size is unknown
    max_sizes: Annotated[tuple[int, ...], _SIZES] = ()

    def __post_init__(self) -> None:
        if self.nan > self.values or self.nan_records > self.records:
            most = f"{self.values} and {self.records}"
            raise ValueError(f"`nan` and `nan_records` must be at most {most}, got {self.nan} and {self.nan_records}.")
        if (self.low is None) != (self.high is None) or len(self.min_sizes) != len(self.max_sizes):
            got = f"{self.low} and {self.high}, {list(self.min_sizes)} and {list(self.max_sizes)}"
            raise ValueError(f"`low` and `high`, and `min_sizes` and `max_sizes`, must belong together, got {got}.")

    def add(self, kind: TensorType, bits: NDArray[Any]) -> int:
        """Adds a tensor from `TensorType.read_bits`, 64 KB in 5 to 15 us, and returns its number of NaN values."""
        nan = infinite = 0
        low: float | None = None
        high: float | None = None
        if bits.size:
            low, high = _find_range(kind, bits)
            if not (math.isfinite(low) and math.isfinite(high)):
                values = _to_float(kind, bits)
                finite = values[np.isfinite(values)]
                nan = int(np.isnan(values).sum())
                infinite = values.size - finite.size - nan
                low, high = (finite.min().item(), finite.max().item()) if finite.size else (None, None)
        if kind.num_unknown:
            sizes = bits.shape[: kind.num_unknown]
            self._add_sizes(sizes, sizes)
        self.records += 1
        self.values += bits.size
        if nan or infinite:
            self.nan += nan
            self.nan_records += nan > 0
            self.infinite += infinite
        self._add_range(low, high)
        return nan

    def _add_sizes(self, low: tuple[int, ...], high: tuple[int, ...]) -> None:
        self.min_sizes = tuple(map(min, self.min_sizes, low)) if self.records else low
        self.max_sizes = tuple(map(max, self.max_sizes, high)) if self.records else high

    def _add_range(self, low: float | None, high: float | None) -> None:
        if low is not None and (self.low is None or low < self.low):
            self.low = low
        if high is not None and (self.high is None or high > self.high):
            self.high = high

    def merge(self, other: "TensorStats") -> None:
        """Adds the tensors of another shard."""
        if not other.records:
            return
        self._add_sizes(other.min_sizes, other.max_sizes)
        self.records += other.records
        self.values += other.values
        self.nan += other.nan
        self.nan_records += other.nan_records
        self.infinite += other.infinite
        self._add_range(other.low, other.high)

    def forget_sizes(self, axes: int) -> None:
        """Drops the sizes of all but the first `axes` axes, because the type tells the others."""
        self.min_sizes, self.max_sizes = self.min_sizes[:axes], self.max_sizes[:axes]


def _find_range(kind: TensorType, bits: NDArray[Any]) -> tuple[float, float]:
    """Returns the smallest and the largest value. If a value is NaN or infinite, at least one of these is too."""
    if kind.dtype in _LARGEST:  # NumPy compares these floats one by one, but integers with vector instructions
        numbers = bits.view(np.int16)
        ordered = numbers ^ (numbers >> 15 & 0x7FFF)  # in the order of the values, NaN at both ends
        low, high = int(np.minimum.reduce(ordered, axis=None)), int(np.maximum.reduce(ordered, axis=None))
        if low < ~_LARGEST[kind.dtype] or high > _LARGEST[kind.dtype]:
            return np.inf, np.inf
        ends = np.array([low, high], np.int16)
        low_value, high_value = _to_float(kind, (ends ^ (ends >> 15 & 0x7FFF)).view(bits.dtype)).tolist()
        return low_value, high_value
    # `bits.min()` does the same, but takes a detour through Python code.
    low, high = np.minimum.reduce(bits, axis=None).item(), np.maximum.reduce(bits, axis=None).item()
    return (low, high) if bits.dtype.kind == "f" else (max(int(low), -MAX_COUNT), int(high))  # as JSON allows


def _to_float(kind: TensorType, bits: NDArray[Any]) -> NDArray[Any]:
    if kind.dtype == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.astype(np.float32) if kind.dtype == "float16" else bits


def _add(first: list[int], second: list[int]) -> list[int]:
    return list(map(sum, zip_longest(first, second, fillvalue=0)))
