"""Finds what limits a tf.data service, and what would help: a late worker, the wire, too few workers. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator

from tfpipe.profiler.diagnose.calibration import SATURATED
from tfpipe.profiler.types import Bottleneck, Fix, FixAction, Profile, ServiceUse
from tfpipe.system.units import human_bytes, human_rate, human_share


def find_service_bottleneck(profile: Profile, required: float) -> Bottleneck:
    """Returns the part of a service that limits the rate, with the numbers that prove it.

    Args:
        profile: The measured figures, with a service.
        required: The images per second that the accelerator consumes.
    """
    use, rate = profile.service, profile.images_per_second
    assert use is not None
    late, limit = use.late_worker, use.wire_limit_images_per_second
    if late is not None:
        return Bottleneck("service", explain_late_worker(use), (late.images_per_second or 0.0) * _count_turns(use))
    if limit is not None and rate * (1 - use.local_fraction) >= SATURATED * limit:
        full = limit * use.batch_bytes / profile.step.images_per_step
        reason = f"The wire hands over {human_bytes(use.wire_bytes_per_second)}/s of the {human_bytes(full)}/s it can."
        return Bottleneck("wire", reason, limit)
    host = profile.host
    if host.cpu_fraction >= host.other_cpu_fraction and host.cpu_fraction + host.other_cpu_fraction >= SATURATED:
        reason = f"This host's {host.cores} cores are {host.cpu_fraction:.0%} busy with taking batches."
        return Bottleneck("cpu", reason, rate / host.cpu_fraction)
    needed, rates = count_needed_workers(use, required), use.rates
    if needed is None:
        return Bottleneck("service", f"The workers give {human_rate(rate)} images/s; the accelerator needs more.", rate)
    total = statistics.median(rates.values()) * _count_turns(use)
    if needed <= len(rates):
        reason = f"The workers can make {human_rate(total)} images/s, and this host takes {human_rate(rate)} of them"
        reason += ": no batch waits, since `prefetch_batches` is 0." if profile.config.prefetch_batches == 0 else "."
        return Bottleneck("prefetch", reason, total)
    reason = (
        f"{_count(len(rates))} can make {human_rate(total)} images/s, and the accelerator needs "
        f"{human_rate(required)}: it takes {needed} like them."
    )
    return Bottleneck("service", reason, total)


def list_service_fixes(profile: Profile, required: float) -> Iterator[Fix]:
    """Yields what would make a service faster, best first.

    Args:
        profile: The measured figures, with a service.
        required: The images per second that the accelerator consumes.
    """
    use, now = profile.service, profile.images_per_second
    assert use is not None
    most = min(required, use.wire_limit_images_per_second or math.inf)
    if use.late_worker is not None:
        rate = min(_get_usual_rate(use) * _count_turns(use), most)
        instruction = (
            f"Give the worker {use.late_worker.address} as many free cores and as near a dataset as the others have, "
            "or start the service without it."
        )
        reason = "All batches come in turn, so each worker waits for the slowest."
        yield _make_fix(max(rate, now), required, reason, instruction, "mend_worker")
    needed = count_needed_workers(use, required)
    if needed is not None and needed > len(use.workers) and most > now:
        instruction = f"Run {needed} workers like these with `tfpipe serve`, in place of {len(use.workers)}."
        reason = f"A worker makes {human_rate(_get_usual_rate(use))} images/s."
        if most < required:
            reason += f" The wire allows {human_rate(most)} at this size of a batch."
        yield _make_fix(most, required, reason, instruction, "add_machines")


def count_needed_workers(use: ServiceUse, required: float) -> int | None:
    """Returns how many workers like the median one an accelerator needs; None if no worker was measured."""
    if not use.rates or _get_usual_rate(use) <= 0:
        return None
    return max(math.ceil(required * (1 - use.local_fraction) / _get_usual_rate(use)), 1)


def explain_late_worker(use: ServiceUse) -> str:
    """Returns the sentences about a worker that is late, or an empty text."""
    late = use.late_worker
    if late is None:
        return ""
    text = (
        f"The worker {late.address} is late: it makes {human_rate(late.images_per_second or 0.0)} images/s, and the "
        f"median of the others is {human_rate(_get_usual_rate(use))}."
    )
    if late.wait_fraction is not None:
        text += f" The trainer waits for it {human_share(late.wait_fraction)} of the time."
    return text


def explain_wire(use: ServiceUse) -> str:
    """Returns the sentences about the wire and compression."""
    change = f"{human_share(1 - use.compressed_fraction)} smaller" if use.compressed_fraction < 1 else "no smaller"
    text = f"Batches of {human_bytes(use.batch_bytes)}: {human_bytes(use.wire_bytes_per_second)}/s, not compressed. "
    if use.hand_over_s is not None:
        low, high = use.hand_over_s.low * 1e3, use.hand_over_s.high * 1e3
        text += f"One is handed over in {use.hand_over_s.median * 1e3:.1f} ms ({low:.1f} to {high:.1f}). "
    return text + (
        f"Snappy would make it {change} for {use.compress_s * 1e3:.1f} ms of a core there and "
        f"{use.uncompress_s * 1e3:.1f} ms here."
    )


def explain_needed_workers(use: ServiceUse, required: float) -> str:
    """Returns a sentence about the number of workers, or an empty text if none was measured."""
    needed = count_needed_workers(use, required)
    if needed is None:
        return ""
    plural, rate = "" if needed == 1 else "s", human_rate(_get_usual_rate(use))
    return f"For {human_rate(required)} images/s it takes {needed} worker{plural} of {rate} images/s."


def _get_usual_rate(use: ServiceUse) -> float:
    """Returns the median rate of the workers that are not late."""
    rates = [rate for worker, rate in use.rates.items() if use.late_worker is None or worker != use.late_worker.address]
    return statistics.median(rates) if rates else 0.0


def _count_turns(use: ServiceUse) -> float:
    """Returns the images of the whole pipeline for each that one worker makes: all have the same number of turns."""
    return len(use.workers) / (1 - use.local_fraction) if use.local_fraction < 1 else math.inf


def _count(workers: int) -> str:
    return "The worker" if workers == 1 else f"The {workers} workers"


def _make_fix(rate: float, required: float, reason: str, instruction: str, action: FixAction) -> Fix:
    return Fix({}, reason, rate, max(1 - rate / required, 0.0), instruction=instruction, action=action)
