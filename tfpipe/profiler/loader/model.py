"""The costs of an image in a loader, and the rate that follows from them. Pure.

    workers: worker_s / num_workers, + slow records ─┐
    cores:   cpu_s / cores ──────────────────────────┼─▶ the largest, + restarts
    loop:    step_s + main_s ────────────────────────┘

A prediction is the rate that was measured, times the ratio of two results of this model: so only what a fix changes has
to be known.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

from tfpipe.profiler.loader.types import LoaderProfile

_OUTLIER, _OUTLIER_S, _FEW = 10.0, 0.05, 0.05
"""A record is slow if it takes ten times the median and 50 ms; then there must be at most 5 % of such records."""
_SLOWER, _IDLE = 2.5, 0.3


@dataclass(frozen=True)
class Costs:
    """The costs of an image, in seconds.

    Attributes:
        num_workers: The worker processes; 0 if this process does all.
        worker_s: The time of a worker, without waits for a core that this loader's own processes took.
        slowest_s: The time of the slowest worker, which all wait for if batches come in order.
        cpu_s: The processor time of all processes.
        main_s: The time of this process while it fetches.
        main_cpu_s: The part of `cpu_s` that this process takes beside its workers; 0 without any.
        lock_s: The time in which Python's lock is held, if several threads of one process want it; else 0.
        stall_s: The time that slow records take beyond the others.
        restart_s: The time to start workers for an epoch.
        step_s: The time of the trainer's step.
        cores: The cores.
    """

    num_workers: int
    worker_s: float
    slowest_s: float
    cpu_s: float
    main_s: float
    main_cpu_s: float
    lock_s: float
    stall_s: float
    restart_s: float
    step_s: float
    cores: float

    @property
    def rate(self) -> float:
        """The images per second of the loop with steps."""
        limits = self.cpu_s / self.cores, self.lock_s
        if not self.num_workers:
            return 1 / max(max(self.worker_s + self.stall_s, *limits) + self.step_s, 1e-9)
        made_s = max(self.slowest_s / self.num_workers + self.stall_s, *limits)
        return 1 / max(max(made_s, self.step_s + self.main_s) + self.restart_s, 1e-9)

    def save(self, seconds: float, received: float = 0.0) -> Costs:
        """Returns the costs if an image takes less of a worker and of a core, and less of the process that fetches.

        Args:
            seconds: The time that a worker saves.
            received: The share of the time of the process that fetches which is saved there.
        """
        names = ("worker_s", "slowest_s", "cpu_s", *(("lock_s",) if self.lock_s else ()))
        made = replace(self, **{name: max(getattr(self, name) - seconds, 0.0) for name in names})
        saved_s = received * self.main_cpu_s
        main_s = (1 - received) * self.main_s
        return replace(made, cpu_s=max(made.cpu_s - saved_s, 0.0), main_cpu_s=self.main_cpu_s - saved_s, main_s=main_s)


def compute_costs(profile: LoaderProfile) -> Costs:
    """Returns the costs of an image in a profile."""
    images = profile.free.batches * profile.batch.images
    workers, main, makers = profile.workers, profile.main, profile.makers
    cpu_s = main.cpu_s + sum(use.cpu_s for use in workers)
    # Where others take cores, more workers get more of them, and each waits as before.
    own = cpu_s / max(cpu_s + profile.others_cores * profile.free.wall_s, 1e-9)
    busy_s = [max(use.wall_s - use.sum("idle"), 1e-9) for use in makers]
    # Several threads of a worker can wait for a core at once, so it is not less than what it computes.
    busy_s = [
        max(time - own * use.sum("no core"), min(use.cpu_s, time)) for time, use in zip(busy_s, makers, strict=True)
    ]
    stall_s = sum(list_excess(profile)) / images
    slowest_s = worker_s = max(sum(busy_s) / images - stall_s, 0.0)
    if is_worker_slow(profile):  # in order, each makes as many images
        slowest_s = max(busy_s) * len(busy_s) / images
        worker_s = len(busy_s) ** 2 / sum(1 / seconds for seconds in busy_s) / images
    locked = [use.cpu_s for use in makers if use.sum("lock") > 0.1 * use.working_s]
    main_s = main.working_s - main.sum("waiting", "lock") + (1 - own) * main.sum("no core")
    return Costs(
        num_workers=profile.num_workers,
        worker_s=worker_s,
        slowest_s=slowest_s,
        cpu_s=cpu_s / images,
        main_s=min(main_s, main.wall_s) / images if workers else 0.0,
        main_cpu_s=main.cpu_s / images if workers else 0.0,
        lock_s=max(locked, default=0.0) / images,
        stall_s=stall_s,
        # The workers make batches while the first one is waited for, so this is a little too much.
        restart_s=get_restart_s(profile) / ((profile.steps_per_epoch or float("inf")) * profile.batch.images),
        step_s=profile.step_s / profile.batch.images,
        cores=profile.num_cores if profile.is_crowded else profile.cores,
    )


def list_excess(profile: LoaderProfile) -> list[float]:
    """Returns the time of each slow record beyond the median; nothing if there are none, or more than a few."""
    times = [seconds for use in profile.makers for seconds in use.record_s]
    if len(times) < 20:
        return []
    median = statistics.median(times)
    excess = [seconds - median for seconds in times if seconds > max(_OUTLIER * median, _OUTLIER_S)]
    return excess if len(excess) <= _FEW * len(times) else []


def is_worker_slow(profile: LoaderProfile) -> bool:
    """Returns whether a record takes 2.5 times as long in one worker as in the others, which wait for it."""
    times = sorted(
        (statistics.median(use.record_s), use.sum("idle")) for use in profile.workers if len(use.record_s) > 2
    )
    if len(times) < 2 or times[-1][0] < _SLOWER * statistics.median(time for time, _ in times[:-1]):
        return False
    return statistics.fmean(idle_s for _, idle_s in times[:-1]) > _IDLE * profile.free.wall_s


def keep_workers(profile: LoaderProfile, now: Costs) -> Costs:
    """Returns the costs where the workers stay from one epoch to the next."""
    times = [seconds for use in profile.makers for seconds in use.record_s] or [now.worker_s]
    first_s = statistics.median(times) / (profile.steps_per_epoch or 1)  # a worker makes the first batch alone
    return replace(now, restart_s=min(now.restart_s, first_s))


def get_restart_s(profile: LoaderProfile) -> float:
    """Returns the time that starting the workers takes at the beginning of an epoch, in seconds."""
    if not profile.workers or profile.options.get("persistent_workers", True):
        return 0.0
    drives = (profile.paced, profile.free)  # the paced one is not watched, which takes time in each new worker
    return next((one.restart_s / one.epochs for one in drives if one.epochs), profile.first_batch_s)
