"""The measurements and conclusions of the profiler of loaders, as plain frozen values. Pure.

LoaderProfile (BatchFacts, ProcessUse ..., Drive) -> Wall, LoaderFix ... -> LoaderReport
"""

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
_CROWDED = 0.25
"""The share of the cores from which on other programs change what a loader gives."""


@dataclass(frozen=True)
class BatchFacts:
    """A batch of the loader.

    Attributes:
        images: The images, or other records, in it.
        bytes: The bytes of its arrays.
        dtype: The type of its largest array; empty if it has none.
        shape: The shape of its largest array. The equal arrays of a list of records count as one array.
        objects: The Python objects in it that are not arrays.
    """

    images: int
    bytes: int
    dtype: str = ""
    shape: tuple[int, ...] = ()
    objects: int = 0

    @property
    def image_size(self) -> tuple[int, int] | None:
        """The height and width, if the largest array holds images."""
        if len(self.shape) != 4:
            return None
        return self.shape[2:] if self.shape[1] in (1, 3, 4) else self.shape[1:3]


@dataclass(frozen=True)
class ProcessUse:
    """The work of one process in a window of time.

    Attributes:
        pid: The number of the process.
        wall_s: The length of the window, in seconds.
        cpu_s: The processor time.
        pool_s: The processor time of threads that know no Python, such as those of OpenCV.
        seconds: The time of all threads in each activity. "idle" is the time in which none of them had work.
        functions: The lines of the user's code, the most expensive first: place, activity, seconds.
        bytes: The bytes that it read.
        record_s: The time of each record, in seconds; empty if nobody knows.
        slowest: The name of the record that took longest.
        files: Some of the image files that it opened.
        collecting_s: The part of these times in which Python looked for garbage among its objects.
    """

    pid: int
    wall_s: float
    cpu_s: float = 0.0
    pool_s: float = 0.0
    seconds: Mapping[Activity, float] = field(default_factory=dict)
    functions: tuple[tuple[str, Activity, float], ...] = ()
    bytes: int = 0
    record_s: tuple[float, ...] = ()
    slowest: str = ""
    files: tuple[str, ...] = ()
    collecting_s: float = 0.0

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
    """A loop over the loader's batches, with a step behind each.

    Attributes:
        batches: The number of batches.
        wall_s: The duration, in seconds.
        wait_s: The time in which the loop waited for a batch.
        restart_s: The part of `wait_s` before the first batch of a further epoch.
        epochs: The number of further epochs that began.
    """

    batches: int
    wall_s: float
    wait_s: float
    restart_s: float = 0.0
    epochs: int = 0


@dataclass(frozen=True)
class LoaderProfile:
    """The measurements of a loader.

    Attributes:
        kind: The loader in plain words, such as "PyTorch DataLoader".
        options: The options that a fix can change, by name.
        batch: A batch of it.
        step_s: The time of a step when it need not wait for its batch, in seconds; 0 for a trainer without limit.
        step_method: The kind of step: "sleeps", "trains", or "none".
        first_batch_s: The time until the first batch, in seconds.
        paced: The loop with steps. Without a step it is `free`.
        free: The loop that takes batches as fast as they come.
        workers: The work of the worker processes in `free`.
        main: The work of this process in `free`, while it fetched batches.
        steps_per_epoch: The batches of an epoch; None if the loader does not say.
        cores: The cores that threads get, measured: 1.3 where two threads share one core.
        num_cores: The cores that this process may use.
        others_cores: The cores that other programs took.
        copy_s: The time to copy a batch once, in seconds.
        hop_s: The processor time to hand a batch from process to process if it is arrays only, in seconds.
        records: The records in the dataset; None if nobody knows.
        free_memory_bytes: The memory that could be taken.
        torch_threads: The threads in which PyTorch computes where this process makes the batches; else 1.
    """

    kind: str
    options: Mapping[str, Any]
    batch: BatchFacts
    step_s: float
    step_method: Literal["sleeps", "trains", "none"]
    first_batch_s: float
    paced: Drive
    free: Drive
    workers: tuple[ProcessUse, ...]
    main: ProcessUse
    steps_per_epoch: int | None = None
    cores: float = 1.0
    num_cores: int = 1
    others_cores: float = 0.0
    copy_s: float = 0.0
    hop_s: float = 0.0
    records: int | None = None
    free_memory_bytes: int = 0
    torch_threads: int = 1

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
    """A resource or mistake that holds the loader.

    Attributes:
        kind: The resource or mistake: "accelerator", "starving threads", "cores", "lock", "hand-over", "main process",
            "storage latency", "storage bytes", "slow record", "slow worker", "too few workers", "too many workers",
            "restarts", "waits", or "unknown".
        reason: The proof in a sentence or two.
        where: The user's line, the activity, or the record that it comes from; empty if none.
    """

    kind: str
    reason: str
    where: str = ""


@dataclass(frozen=True)
class LoaderFix:
    """A change that makes the loader faster.

    Attributes:
        changes: The options to change with their new values; empty if code must change.
        instruction: The change of code; empty if options say it all.
        reason: The reason why it helps.
        predicted_gain: The predicted rate of the loop with steps, divided by that without the fix.
        measured_gain: The gain in turns with the loader as it is; None if it was not tried.
        kept: Whether the gain was above the noise.
    """

    changes: Mapping[str, Any]
    instruction: str
    reason: str
    predicted_gain: float
    measured_gain: float | None = None
    kept: bool = False

    @property
    def name(self) -> str:
        """The instruction, or the options as `num_workers=4, persistent_workers=True`."""
        return self.instruction or ", ".join(f"{name}={value!r}" for name, value in self.changes.items())


@dataclass(frozen=True)
class LoaderReport:
    """A profile with what follows from it.

    Attributes:
        profile: The profile.
        wall: The wall that holds the loader.
        fixes: The fixes, the most useful first.
        price_per_day: The price of a day's idle time; None if the accelerator's is not known.
    """

    profile: LoaderProfile
    wall: Wall
    fixes: tuple[LoaderFix, ...]
    price_per_day: float | None = None

    @property
    def idle_after_fixes(self) -> float:
        """The share of time in which the accelerator has nothing to do, with the fixes that were kept."""
        gain = math.prod(fix.measured_gain or 1.0 for fix in self.fixes if fix.kept)
        return max(1 - (1 - self.profile.idle_fraction) * gain, 0.0)
