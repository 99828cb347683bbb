"""What is measured and what is concluded: plain frozen values, no TensorFlow.

Words: *input wait* is the time in which the trainer stands still for its next batch, as its own clock sees it. *Idle*
is the time in which the accelerator has nothing to work on. Where steps are dispatched ahead of the device, the wait
is longer than the idle time; each figure says which of the two it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

IdleMethod = Literal["simulated", "training", "monitor", "trace"]
"""How the idle time was found: a simulated accelerator, a step with and without input, live in a training, or a trace
that TensorFlow's own profiler took."""


@dataclass(frozen=True)
class Spread:
    """A figure and how far it moved: the median, and the 10th and 90th percentile of its parts.

    Of a simulated accelerator, and of stages, `median` is the figure of the whole run: waits and images come in bursts.
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float], whole: float | None = None) -> Spread:
        """Median and percentiles of some values, at least one; between two of them in proportion.

        Args:
            values: Of the parts of a run.
            whole: The figure of the whole run, which goes in place of the median.
        """
        ordered = sorted(values)

        def at(share: float) -> float:
            place = share * (len(ordered) - 1)
            low = int(place)
            high = min(low + 1, len(ordered) - 1)
            return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

        return cls(at(0.5) if whole is None else whole, at(0.1), at(0.9))


@dataclass(frozen=True)
class StageTiming:
    """One named stage, in steady state."""

    name: str
    cpu_us_per_image: Spread
    """Processor time in this stage alone."""
    images_per_second: float
    """That left it."""
    bytes_in_per_second: float = 0.0
    bytes_out_per_second: float = 0.0
    parallelism: int = 1
    """Threads that AUTOTUNE, or the config, gave it."""
    buffer_size: int | None = None
    buffer_fill: float | None = None
    """Mean share of its buffer that was full, 0 to 1; a full buffer means that what comes after is slower."""
    blocked_fraction: float | None = None
    """Share of wall time in which its threads waited: for files in `read`, elsewhere for whatever a function of the
    user's waits for, Python's lock above all. None where that cannot happen."""
    wait_us_per_image: float = 0.0
    """The same, as time of a thread for each image."""
    max_parallelism: int | None = None
    """Threads that it can have at most, whatever AUTOTUNE does; None where that is not known."""
    python: bool = False
    """Whether a Python function runs in it: then Python's lock lets it use one core at a time."""


@dataclass(frozen=True)
class Step:
    """One step, in seconds of the accelerator's clock."""

    begins_s: float
    """When the device began to work on its batch."""
    idle_s: float
    """That the device had nothing to work on before it."""
    wait_s: float
    """That the host stood still for its batch; up to the time of a step of it, the device was busy meanwhile."""


@dataclass(frozen=True)
class StepTiming:
    """The accelerator's side, in steady state. Times in seconds."""

    method: IdleMethod
    steps: int
    images_per_step: int
    step_s: Spread
    """Compute of a step, without input."""
    wall_s: float
    """Of all steps together."""
    idle_fraction: Spread
    """Share of wall time in which the accelerator has no batch to work on."""
    input_wait_fraction: Spread
    """Share of wall time in which the trainer waits for a batch."""


@dataclass(frozen=True)
class HostUse:
    """The machine meanwhile."""

    cores: int
    cpu_fraction: float
    """Processor time of this process by wall time and cores."""
    peak_memory_bytes: int
    memory_limit_bytes: int
    storage_bytes_per_second: float
    """Read by the pipeline."""
    storage_limit_bytes_per_second: float | None = None
    """That the storage gave when it was read and nothing else done; None where that was not measured."""
    trainer_us_per_step: float = 0.0
    """Processor time of the thread that takes the batches: what each costs beside making it."""
    other_cpu_fraction: float = 0.0
    """Share of the cores that other processes took; 0 where that cannot be known, as in a container."""


@dataclass(frozen=True)
class Profile:
    """All that was measured in one run."""

    step: StepTiming
    stages: tuple[StageTiming, ...]
    host: HostUse
    images_per_second: float
    first_batch_s: float
    warm_up_s: float
    """Left out of every figure above."""
    config: Mapping[str, Any] = field(default_factory=dict)
    dataset: Mapping[str, Any] = field(default_factory=dict)
    """Records, mean record size, mean image size, forms."""
    what_if: Mapping[str, float] = field(default_factory=dict)
    """Processor time of an image from `parse` to `batch`, in us, as it is and if something were otherwise: tried with a
    few of the records; see `what_if.py` for the names."""
    timeline: tuple[Step, ...] = ()
    """The first steps of those measured, in a row; 0 is when measuring began. Empty where steps are not seen one by
    one."""


@dataclass(frozen=True)
class Bottleneck:
    """What limits the rate."""

    stage: str
    """Name of a stage, or "storage", "cpu", "memory", "first_batch", "accelerator"."""
    reason: str
    """A sentence with the numbers that prove it."""
    limit_images_per_second: float


@dataclass(frozen=True)
class Fix:
    """Something to change, and what it gives."""

    changes: Mapping[str, Any]
    """Of `PipelineConfig`; empty where the data or the machine must change."""
    reason: str
    predicted_images_per_second: float
    predicted_idle_fraction: float
    measured_images_per_second: float | None = None
    """With it, and with the fixes that were kept before it; None where it was not tried."""
    measured_gain: Spread | None = None
    """By what factor the rate grew in a paired run, with the bounds of its 95 % interval."""
    kept: bool | None = None
    """Whether that was more than noise; None where it was not tried."""
    action: str = ""
    """What to do where `changes` is empty, or besides: a command or a sentence."""


@dataclass(frozen=True)
class Report:
    """A profile and what follows from it."""

    profile: Profile
    bottleneck: Bottleneck
    required_images_per_second: float
    cpu_limit_images_per_second: float
    """What this host's cores would give if they did nothing but this pipeline."""
    storage_limit_images_per_second: float | None
    fixes: tuple[Fix, ...] = ()
    after_images_per_second: float | None = None
    """With all the fixes that were kept, in a last run in turns with the first pipeline; None where none was tried."""
    price_per_day: float | None = None
    """What the idle time costs, where a price per hour was given."""
