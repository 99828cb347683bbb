"""Finds what limits a service, and what would help: the network, too few workers. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from tfpipe.profiler.types import Bottleneck, Effort, Fix, Profile, ServiceUse
from tfpipe.system.units import human_bytes, human_rate, human_share

SATURATED = 0.85
"""The share of a resource's time from which on it counts as the bottleneck: work queues behind one that is as busy."""
_IDLE = 0.5  # of the time: workers that are busy less wait for the network, or for this host


def find_service_bottleneck(profile: Profile) -> Bottleneck:
    """Returns the part of a service that limits the rate, with the numbers that prove it."""
    use, rate, host, required = profile.service, profile.images_per_second, profile.host, profile.step.required_rate
    assert use is not None
    if host.cpu_fraction >= host.other_cpu_fraction and host.cpu_fraction + host.other_cpu_fraction >= SATURATED:
        reason = f"This host's {host.cores} cores are {host.cpu_fraction:.0%} busy with taking batches."
        return Bottleneck("cpu", reason, rate / host.cpu_fraction)
    total = use.images_per_second
    if total >= required:
        reason = f"The workers can make {human_rate(total)} images/s, and this host takes {human_rate(rate)} of them"
        reason += ": no batch waits, since `prefetch_batches` is 0." if profile.config.prefetch_batches == 0 else "."
        return Bottleneck("prefetch", reason, total)
    if is_wire_full(use):
        full = total * (1 - use.local_fraction) / profile.step.images_per_step * use.batch_bytes
        reason = (
            f"The network hands over {human_bytes(full)}/s at most: the workers are busy "
            f"{human_share(_get_busy_fraction(use))} of the time, and wait for it else."
        )
        return Bottleneck("wire", reason, total)
    reason = f"{_count(len(use.workers))} can make {human_rate(total)} images/s"
    needed = count_needed_workers(use, required)
    if needed is not None:
        reason += f", and the accelerator needs {human_rate(required)}: it takes {needed} like them"
    reason += "."
    return Bottleneck("service", reason, total)


def list_service_fixes(profile: Profile) -> Iterator[Fix]:
    """Yields what would make a service faster."""
    use, required = profile.service, profile.step.required_rate
    assert use is not None
    needed = count_needed_workers(use, required)
    if needed is None or needed <= len(use.workers) or is_wire_full(use):
        return
    instruction = f"Run {needed} workers like these with `tfpipe serve`, in place of {len(use.workers)}."
    reason = f"A worker makes {human_rate(_get_mean_rate(use))} images/s."
    fix = Fix(Effort.MORE_MACHINES, reason, instruction=instruction, action="add_machines")
    yield replace(fix, predicted_images_per_second=required)


def is_wire_full(use: ServiceUse) -> bool:
    """Returns whether the workers wait for the network, or for this host, most of the time."""
    return _get_busy_fraction(use) < _IDLE


def count_needed_workers(use: ServiceUse, required: float) -> int | None:
    """Returns how many workers like these an accelerator needs; None if they made nothing, or it takes any rate."""
    rate = _get_mean_rate(use)
    return None if rate <= 0 or math.isinf(required) else max(math.ceil(required * (1 - use.local_fraction) / rate), 1)


def explain_wire(use: ServiceUse) -> str:
    """Returns the sentence about the network."""
    return f"Batches of {human_bytes(use.batch_bytes)}: {human_bytes(use.wire_bytes_per_second)}/s came from workers."


def explain_needed_workers(use: ServiceUse, required: float) -> str:
    """Returns a sentence about the number of workers, or an empty text if none was measured."""
    needed = count_needed_workers(use, required)
    if needed is None:
        return ""
    plural, rate = "" if needed == 1 else "s", human_rate(_get_mean_rate(use))
    return f"For {human_rate(required)} images/s it takes {needed} worker{plural} of {rate} images/s."


def _get_mean_rate(use: ServiceUse) -> float:
    return sum(worker.images_per_second for worker in use.workers) / len(use.workers)


def _get_busy_fraction(use: ServiceUse) -> float:
    return max(worker.busy_fraction for worker in use.workers)


def _count(workers: int) -> str:
    return "The worker" if workers == 1 else f"The {workers} workers"
