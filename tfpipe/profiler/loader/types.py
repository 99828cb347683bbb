"""The measurements and conclusions of the profiler of loaders, as plain frozen values. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Activity: TypeAlias = str
ACTIVITIES: tuple[Activity, ...] = (
    *("reading", "decoding", "functions", "collating", "handing over", "other", "waiting"),
    *("storage", "lock", "no core", "idle"),
)
"""The activities of a thread: `functions` are the user's, `waiting` happens in them; the last four are waits for a
file, for Python's lock, for a core, and for work."""
_CROWDED = 0.25  # the share of the cores from which on other programs change what a loader gives


@dataclass(frozen=True)
class BatchFacts:
    """A batch of the loader."""

    images: int  # or other records
    bytes: int  # of its arrays
    dtype: str = ""  # of its largest array; empty if it has none
    shape: tuple[int, ...] = ()  # of its largest array; equal arrays of a list of records count as one
    objects: int = 0  # Python objects that are not arrays

    @property
    def image_size(self) -> tuple[int, int] | None:
        """The height and width, if the largest array holds images."""
        if len(self.shape) != 4:
            return None
        return self.shape[2:] if self.shape[1] in (1, 3, 4) else self.shape[1:3]


@dataclass(frozen=True)
class ProcessUse:
    """The work of one process in a window of time."""

    pid: int
    wall_s: float  # the length of the window
    cpu_s: float = 0.0
    pool_s: float = 0.0  # processor time of threads that know no Python, such as OpenCV's
    seconds: Mapping[Activity, float] = field(default_factory=dict)  # of all threads; in "idle" none had work
    functions: tuple[tuple[str, Activity, float], ...] = ()  # place, activity, seconds, most first
    bytes: int = 0  # that it read
    record_s: tuple[float, ...] = ()  # the time of each record, where known
    slowest: str = ""  # the name of the record that took longest
    files: tuple[str, ...] = ()  # some of the image files that it opened
    collecting_s: float = 0.0  # in which Python looked for garbage

    def sum(self, *activities: Activity) -> float:
        """Returns the seconds of some activities."""
        return math.fsum(self.seconds.get(name, 0.0) for name in activities)

    @property
    def working_s(self) -> float:
        """The time of all threads that had work and a core, or waited for something else than a core."""
        return math.fsum(self.seconds.values()) - self.sum("idle", "no core")

    @property
    def time_scale(self) -> float:
        """The share of a thread's second that counts as time of this process: its threads share that."""
        return min((self.wall_s - self.sum("idle")) / max(self.working_s + self.sum("no core"), 1e-9), 1.0)

    def time_share(self, *activities: Activity) -> float:
        """Returns the share of some activities in the time of this process, as reports show it."""
        return math.fsum(
            self.seconds.get(name, 0.0) * (1.0 if name == "idle" else self.time_scale) for name in activities
        ) / max(self.wall_s, 1e-9)


@dataclass(frozen=True)
class Drive:
    """A loop over the loader's batches, with a step behind each."""

    batches: int
    wall_s: float
    wait_s: float
    restart_s: float = 0.0  # the part of `wait_s` before the first batch of a further epoch
    epochs: int = 0  # further ones that began


@dataclass(frozen=True)
class LoaderProfile:
    """The measurements of a loader."""

    kind: str  # such as "PyTorch DataLoader"
    options: Mapping[str, Any]  # those that a fix can change
    batch: BatchFacts
    step_s: float  # of a step that need not wait for its batch; 0 for a trainer without limit
    step_method: Literal["sleeps", "trains", "none"]
    first_batch_s: float
    paced: Drive  # with a step behind each batch; without a step it is `free`
    free: Drive  # as fast as batches come
    workers: tuple[ProcessUse, ...]  # in `free`
    main: ProcessUse  # in `free`, while it fetched batches
    steps_per_epoch: int | None = None
    cores: float = 1.0  # that threads get, measured: 1.3 where two threads share one core
    num_cores: int = 1  # that this process may use
    others_cores: float = 0.0  # taken by other programs
    copy_s: float = 0.0  # to copy a batch once
    hop_s: float = 0.0  # processor time to hand a batch of arrays from process to process
    records: int | None = None  # in the dataset
    free_memory_bytes: int = 0
    torch_threads: int = 1  # where this process makes the batches; else 1

    @property
    def makers(self) -> tuple[ProcessUse, ...]:
        """The processes that make batches: the workers, or this one."""
        return self.workers or (self.main,)

    @property
    def is_crowded(self) -> bool:
        """Whether other programs take so many of the cores that no gain can be predicted."""
        return self.others_cores > _CROWDED * self.num_cores

    @property
    def used_cores(self) -> float:
        """The cores that the loader gets."""
        cpu_s = self.main.cpu_s + sum(use.cpu_s for use in self.workers)
        return cpu_s / self.free.wall_s

    @property
    def delay(self) -> float:
        """The share of a core's wait in the time of the makers' threads that have work."""
        delay_s = sum(use.sum("no core") for use in self.makers)
        return delay_s / max(delay_s + sum(use.working_s for use in self.makers), 1e-9)

    @property
    def num_workers(self) -> int:
        """The worker processes at a time; `workers` may hold those of several epochs."""
        asked = self.options.get("num_workers") or self.options.get("workers")
        return min(asked or len(self.workers), len(self.workers))

    @property
    def given_rate(self) -> float:
        """The images per second of the loop with steps."""
        return self.batch.images * self.paced.batches / self.paced.wall_s

    @property
    def free_rate(self) -> float:
        """The images per second of the loop without steps."""
        return self.batch.images * self.free.batches / self.free.wall_s

    @property
    def idle_fraction(self) -> float:
        """The share of time in which the accelerator had nothing to do."""
        return min(max(1 - self.step_s * self.paced.batches / self.paced.wall_s, 0.0), 1.0)

    def share(self, *activities: Activity) -> float:
        """Returns the share of some activities in the time of the makers, without waits for work or a core."""
        return sum(use.sum(*activities) for use in self.makers) / max(sum(use.working_s for use in self.makers), 1e-9)

    def time_share(self, *activities: Activity) -> float:
        """Returns the share of some activities in all time of the makers, as reports show it."""
        all_s = sum(use.wall_s for use in self.makers)
        return sum(use.time_share(*activities) * use.wall_s for use in self.makers) / max(all_s, 1e-9)


@dataclass(frozen=True)
class Wall:
    """A resource or mistake that holds the loader."""

    kind: str
    reason: str  # the proof
    where: str = ""  # the user's line, the activity, or the record that it comes from


@dataclass(frozen=True)
class LoaderFix:
    """A change that makes the loader faster."""

    changes: Mapping[str, Any]
    instruction: str  # if code must change
    reason: str
    predicted_gain: float  # the factor of the rate with steps
    measured_gain: float | None = None  # in turns; None if it was not tried
    kept: bool = False  # whether the gain was above the noise

    @property
    def name(self) -> str:
        """The instruction, or the options as `num_workers=4, persistent_workers=True`."""
        return self.instruction or ", ".join(f"{name}={value!r}" for name, value in self.changes.items())


@dataclass(frozen=True)
class LoaderReport:
    """A profile with what follows from it."""

    profile: LoaderProfile
    wall: Wall
    fixes: tuple[LoaderFix, ...]  # the most useful first
    price_per_day: float | None = None  # of idle time

    @property
    def idle_after_fixes(self) -> float:
        """The share of time in which the accelerator has nothing to do, with the fixes that were kept."""
        gain = math.prod(fix.measured_gain or 1.0 for fix in self.fixes if fix.kept)
        return max(1 - (1 - self.profile.idle_fraction) * gain, 0.0)
