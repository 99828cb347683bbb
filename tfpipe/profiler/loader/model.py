"""The costs of an image in a loader, and the rate that follows from them. Pure.

    workers: num_workers / worker_s ─┐
    cores:   cores / cpu_s ──────────┼─▶ the slowest, beside the loop: step_s + main_s
    slow records, restarts ──────────┘

A prediction is the rate that was measured, times the ratio of two results of this model: so only what a fix changes has
to be known.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from tfpipe.profiler.loader.types import LoaderProfile

_OUTLIER, _OUTLIER_S, _FEW = 10.0, 0.05, 0.05
"""A record is slow if it takes ten times the median and 50 ms; then there must be at most 5 % of such records."""


@dataclass(frozen=True)
class Costs:
    """The costs of an image, in seconds.

    Attributes:
        num_workers: The worker processes; 0 if this process does all.
        worker_s: The time of a worker, without waiting for a core.
        slowest_s: The time of the slowest worker, which all wait for if batches come in order.
        cpu_s: The processor time of all processes.
        main_s: The time of this process while it fetches.
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
    lock_s: float
    stall_s: float
    restart_s: float
    step_s: float
    cores: float

    @property
    def rate(self) -> float:
        """The images per second of the loop with steps."""
        if not self.num_workers:
            made_s = self.worker_s + self.stall_s
            return 1 / max(max(made_s, self.lock_s, self.cpu_s / self.cores) + self.step_s + self.restart_s, 1e-9)
        made_s = max(self.slowest_s / self.num_workers, self.cpu_s / self.cores, self.lock_s) + self.stall_s
        return 1 / max(max(made_s, self.step_s + self.main_s) + self.restart_s, 1e-9)


def compute_costs(profile: LoaderProfile) -> Costs:
    """Returns the costs of an image in a profile."""
    images = profile.free.batches * profile.batch.images
    workers, main = profile.workers, profile.main
    main_s = sum(seconds for name, seconds in main.seconds.items() if name != "waiting") + main.storage_s
    main_s = max(main_s - main.delay_s, 0.0)
    makers = workers or (main,)
    busy_s = [max(use.busy_s - min(use.delay_s, 0.9 * use.busy_s), 1e-9) for use in makers]
    slowest_s = worker_s = sum(busy_s) / images
    if is_worker_slow(profile):  # in order, each makes as many images
        slowest_s = max(busy_s) * len(busy_s) / images
        worker_s = len(busy_s) ** 2 / sum(1 / seconds for seconds in busy_s) / images
    held_s = max((use.cpu_s if use.lock_s > 0.1 * use.thread_s else 0.0 for use in makers), default=0.0)
    stall_s = sum(list_excess(profile)) / images
    return Costs(
        num_workers=len(workers),
        worker_s=max(worker_s - stall_s, 1e-9),
        slowest_s=max(slowest_s - stall_s, 1e-9),
        cpu_s=(sum(use.cpu_s for use in workers) + main.cpu_s) / images,
        main_s=main_s / images if workers else 0.0,
        lock_s=held_s / images,
        stall_s=stall_s,
        restart_s=get_restart_s(profile) / images_per_epoch(profile),
        step_s=profile.step_s / profile.batch.images,
        cores=profile.cores,
    )


def list_excess(profile: LoaderProfile) -> list[float]:
    """Returns the time of each slow record beyond the median; nothing if there are none, or more than a few."""
    times = [seconds for use in (*profile.workers, profile.main) for seconds in use.record_s]
    if len(times) < 20:
        return []
    median = statistics.median(times)
    excess = [seconds - median for seconds in times if seconds > max(_OUTLIER * median, _OUTLIER_S)]
    return excess if len(excess) <= _FEW * len(times) else []


def is_worker_slow(profile: LoaderProfile) -> bool:
    """Returns whether a record takes 2.5 times as long in one worker as in the others."""
    medians = sorted(statistics.median(use.record_s) for use in profile.workers if len(use.record_s) > 2)
    return len(medians) > 1 and medians[-1] > 2.5 * statistics.median(medians[:-1])


def get_restart_s(profile: LoaderProfile) -> float:
    """Returns the time that starting the workers takes at the beginning of an epoch, in seconds."""
    if not profile.workers or profile.options.get("persistent_workers", True):
        return 0.0
    epochs = profile.paced.epochs + (profile.free.epochs if profile.free is not profile.paced else 0)
    if not epochs:
        return profile.first_batch_s
    restart_s = profile.paced.restart_s + (profile.free.restart_s if profile.free is not profile.paced else 0.0)
    return restart_s / epochs


def images_per_epoch(profile: LoaderProfile) -> float:
    """Returns the images of an epoch, infinite if nobody knows."""
    steps = profile.steps_per_epoch
    return float("inf") if not steps else steps * profile.batch.images
