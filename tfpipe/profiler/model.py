"""The performance model: an image takes time at cores, threads and storage; the busiest of these sets the rate. Pure.

The laws are those of operational analysis: U = X S, and X <= m / D for m servers and a demand of D. See E. D. Lazowska
et al., "Quantitative System Performance", 1984, chapters 3 and 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

SATURATED = 0.85  # a resource that is busy for this share of the time is the bottleneck, because work queues up for it
NO_IDLE = 0.01  # an accelerator with at most this idle share counts as busy: measured shares are off by up to 0.01


@dataclass(frozen=True)
class Demand:
    """The time that an image needs at each station: the cores, each stage's threads, the storage."""

    cores: float  # available to this process; other programs use the rest
    cpu_s: Mapping[str, float]  # processor time by stage; "other" is the time outside all stages
    wait_s: Mapping[str, float] = field(default_factory=dict)
    threads: Mapping[str, float] = field(default_factory=dict)  # at most, by stage; a stage without entry is no limit
    passes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by stage, earlier ones that share its threads
    lock_bound: frozenset[str] = frozenset()  # stages whose lock lets one call run at a time
    storage_limit: float | None = None  # images per second; None if it is not a limit
    take_batch_s: float = 0.0  # the part of "other" that is spent once per batch, however many images it has
    handover_s: float = 0.0  # the part of "other" that stays when stages get cheaper; includes `take_batch_s`
    pause_s: float = 0.0  # per image, in which all stations stand still

    @property
    def cpu_limit(self) -> float:
        """The images per second that the cores allow."""
        total_s = sum(self.cpu_s.values())
        return self.cores / total_s if total_s > 0 else float("inf")

    @property
    def limit(self) -> float:
        """The images per second that all stations together allow."""
        storage = float("inf") if self.storage_limit is None else self.storage_limit
        limit = min(self.cpu_limit, storage, *(self.get_stage_limit(name) for name in self.threads))
        return 1 / (1 / limit + self.pause_s) if self.pause_s else limit

    def get_stage_limit(self, name: str) -> float:
        """Returns the images per second that a stage's threads allow; the same threads may run earlier stages too."""
        cpu_s, wait_s = self.get_service_s(name)
        if name not in self.threads or cpu_s + wait_s <= 0:
            return float("inf")
        if not self.passes.get(name) or name in self.lock_bound or not (cpu_s and wait_s):
            return self.threads[name] / (cpu_s + wait_s)
        # Threads wait for an image, and then compute, again and again: mean value analysis of a closed queueing network
        # (Reiser and Lavenberg, Journal of the ACM 27(2), 1980). The cores are modeled as one core with the speed of
        # all, plus a delay (Seidmann et al., Large Scale Systems 12, 1987).
        share_s, rate, queue = cpu_s / (self.cores * cpu_s / sum(self.cpu_s.values())), 0.0, 0.0
        for count in range(1, max(int(self.threads[name]), 1) + 1):
            at_cores_s = share_s * (1 + queue)
            rate = count / (wait_s + max(cpu_s - share_s, 0.0) + at_cores_s)
            queue = rate * at_cores_s
        return rate

    @property
    def slowest(self) -> str:
        """The stage whose threads allow the lowest rate; empty if no stage has any."""
        return min(self.threads, key=self.get_stage_limit, default="")

    def get_service_s(self, name: str) -> tuple[float, float]:
        """Returns the processor time and the wait, in seconds, of an image in the threads of a stage."""
        stages = (name,) if name in self.lock_bound else (*self.passes.get(name, ()), name)
        return sum(self.cpu_s.get(stage, 0.0) for stage in stages), sum(self.wait_s.get(stage, 0.0) for stage in stages)

    def scale(self, cpu: Mapping[str, float], wait: Mapping[str, float] | None = None) -> Demand:
        """Returns the demand with the processor times and the waits of some stages multiplied by factors."""
        cpu_s = {name: seconds * cpu.get(name, 1.0) for name, seconds in self.cpu_s.items()}
        wait_s = {name: seconds * (wait or {}).get(name, 1.0) for name, seconds in self.wait_s.items()}
        return replace(self, cpu_s=cpu_s, wait_s=wait_s)

    def scale_other(self, before: Demand) -> Demand:
        """Returns the demand with "other" adapted to stages that changed since `before`.

        The hand-over stays the same for every image. The rest, such as allocations, grows with the time of the stages.
        """
        if self.cpu_s["other"] != before.cpu_s["other"]:
            return self  # the fix knows what it saves there
        before_s, after_s = (sum(each.cpu_s.values()) - each.cpu_s["other"] for each in (before, self))
        if before_s <= 0:
            return self
        grows_s = before.cpu_s["other"] - before.handover_s
        handover_s = before.handover_s - before.take_batch_s + self.take_batch_s
        return replace(self, cpu_s={**self.cpu_s, "other": grows_s * after_s / before_s + handover_s})

    def widen(self, name: str, threads: float) -> Demand:
        """Returns the demand with at least this number of threads for a stage."""
        return replace(self, threads={**self.threads, name: max(threads, self.threads.get(name, 1))})

    def read_less(self, left: float) -> Demand:
        """Returns the demand if only this share of the bytes is read: the wait shrinks, the storage's limit rises."""
        limit = None if self.storage_limit is None else self.storage_limit / left
        return replace(self.scale({}, {"read": left}), storage_limit=limit)

    def without_reading(self, cpu_s: Mapping[str, float]) -> Demand:
        """Returns the demand without reading and with these processor times; stages without any no longer limit."""
        threads = {name: count for name, count in self.threads.items() if cpu_s.get(name)}
        wait_s = {name: seconds for name, seconds in self.wait_s.items() if name != "read" and cpu_s.get(name)}
        return replace(self, cpu_s=cpu_s, wait_s=wait_s, storage_limit=None, threads=threads)
