"""The measurements and conclusions of the profiler of loaders, as plain frozen values. Pure.

LoaderProfile (BatchFacts, ProcessUse ..., Drive ...)  measured
Wall, LoaderFix ..., ShardsResult                      concluded
LoaderReport                                           all together
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Activity = Literal["reading", "decoding", "functions", "collating", "handing over", "waiting", "idle", "other"]
"""A thread's activity: the time in `functions` of the user, and in `waiting` inside of them; `idle` waits for work."""

ACTIVITIES: tuple[Activity, ...] = (
    "reading", "decoding", "functions", "collating", "handing over", "waiting", "other",
)  # fmt: skip

WallKind = Literal[
    "accelerator", "cores", "lock", "hand-over", "main process", "storage latency", "storage bytes", "slow record",
    "slow worker", "too few workers", "too many workers", "restarts", "waits", "unknown",
]  # fmt: skip


@dataclass(frozen=True)
class BatchFacts:
    """A batch of the loader.

    Attributes:
        images: The images, or other records, in it.
        bytes: The bytes of its arrays.
        dtype: The type of its largest array; empty if it has none.
        shape: The shape of its largest array.
        objects: The Python objects in it that are not arrays, such as the entries of a list.
    """

    images: int
    bytes: int
    dtype: str = ""
    shape: tuple[int, ...] = ()
    objects: int = 0

    @property
    def image_size(self) -> tuple[int, int] | None:
        """The height and width, if the largest array holds images."""
        shape = self.shape
        if len(shape) != 4:
            return None
        return (shape[2], shape[3]) if shape[1] in (1, 3, 4) else (shape[1], shape[2])


@dataclass(frozen=True)
class FunctionUse:
    """A line of the user's code, with what happens below it.

    Attributes:
        place: The file, the line and the function, as in "train.py:31 augment".
        activity: The activity there.
        seconds: The time of all samples there.
    """

    place: str
    activity: Activity
    seconds: float


@dataclass(frozen=True)
class ProcessUse:
    """The work of one process in a window of time.

    Attributes:
        pid: The number of the process.
        wall_s: The length of the window, in seconds.
        cpu_s: The processor time.
        delay_s: The time in which its threads waited for a core.
        lock_s: The time in which its threads waited for Python's lock.
        storage_s: The time in which its threads waited for files; it is not part of `seconds`.
        idle_s: The time in which none of its threads had work.
        pool_s: The processor time of threads that know no Python, such as those of OpenCV or of NumPy's libraries.
        seconds: The time of all threads in each activity, with that for cores and the lock.
        functions: The lines of the user's code, the most expensive first.
        bytes: The bytes that it read.
        record_s: The time of each record, in seconds; empty if nobody knows.
        slowest: The name of the record that took longest.
        files: Some of the image files that it opened.
    """

    pid: int
    wall_s: float
    cpu_s: float = 0.0
    delay_s: float = 0.0
    lock_s: float = 0.0
    storage_s: float = 0.0
    idle_s: float = 0.0
    pool_s: float = 0.0
    seconds: Mapping[Activity, float] = field(default_factory=dict)
    functions: tuple[FunctionUse, ...] = ()
    bytes: int = 0
    record_s: tuple[float, ...] = ()
    slowest: str = ""
    files: tuple[str, ...] = ()

    @property
    def busy_s(self) -> float:
        """The time in which it had work."""
        return max(self.wall_s - self.idle_s, 0.0)

    @property
    def thread_s(self) -> float:
        """The time of all threads that had work, with that for files."""
        return sum(self.seconds.values()) + self.storage_s


@dataclass(frozen=True)
class Drive:
    """A loop over the loader's batches, with a step behind each.

    Attributes:
        batches: The number of batches.
        wall_s: The duration, in seconds.
        wait_s: The time in which the loop waited for a batch.
        restart_s: The part of `wait_s` before the first batch of a further epoch.
        epochs: The number of further epochs that began.
        cpu_s: The processor time of this process.
    """

    batches: int
    wall_s: float
    wait_s: float
    restart_s: float = 0.0
    epochs: int = 0
    cpu_s: float = 0.0


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
        copy_s: The time to copy a batch once, in seconds.
        records: The records in the dataset; None if nobody knows.
        free_memory_bytes: The memory that could be taken.
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
    copy_s: float = 0.0
    records: int | None = None
    free_memory_bytes: int = 0

    @property
    def needed_rate(self) -> float:
        """The images per second of a trainer that never waits; infinite without a step."""
        return self.batch.images / self.step_s if self.step_s else float("inf")

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

    @property
    def input_wait_fraction(self) -> float:
        """The share of time in which the loop waited for a batch."""
        return min(self.paced.wait_s / self.paced.wall_s, 1.0)


@dataclass(frozen=True)
class Wall:
    """A resource or mistake that holds the loader.

    Attributes:
        kind: The resource or mistake.
        reason: The proof in a sentence or two.
        where: The user's line, the activity, or the record that it comes from; empty if none.
    """

    kind: WallKind
    reason: str
    where: str = ""


@dataclass(frozen=True)
class LoaderFix:
    """A change that makes the loader faster.

    Attributes:
        changes: The options to change with their new values; empty if code must change.
        instruction: The change of code; empty if options say it all.
        reason: The reason why it helps.
        predicted_rate: The images per second with it, of the loop with steps.
        predicted_gain: The predicted rate, divided by the rate without the fix.
        measured_gain: The gain in turns with the loader as it is; None if it was not tried.
        kept: Whether the gain was above the noise.
    """

    changes: Mapping[str, Any]
    instruction: str
    reason: str
    predicted_rate: float
    predicted_gain: float
    measured_gain: float | None = None
    kept: bool = False


@dataclass(frozen=True)
class ShardsResult:
    """A reading of the same images as shards by the engine.

    Attributes:
        images: The number of images that were written and read.
        rate: The images per second.
        gain: The rate divided by that of the loader.
        why_not: The reason why nothing was measured; empty if it was.
    """

    images: int = 0
    rate: float = 0.0
    gain: float = 0.0
    why_not: str = ""


@dataclass(frozen=True)
class LoaderReport:
    """A profile with what follows from it.

    Attributes:
        profile: The profile.
        wall: The wall that holds the loader.
        fixes: The fixes, the most useful first.
        shards: The reading of the same images as shards.
        price_per_day: The price of a day's idle time; None if the accelerator's is not known.
    """

    profile: LoaderProfile
    wall: Wall
    fixes: tuple[LoaderFix, ...]
    shards: ShardsResult
    price_per_day: float | None = None

    @property
    def idle_after_fixes(self) -> float:
        """The share of time in which the accelerator has nothing to do, with the fixes that were kept."""
        gain = math.prod(fix.measured_gain or 1.0 for fix in self.fixes if fix.kept)
        return max(1 - (1 - self.profile.idle_fraction) * gain, 0.0)
