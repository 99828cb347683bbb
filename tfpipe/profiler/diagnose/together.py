"""Finds what the fixes of a report give together, and what it takes if all of them are too little. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

from tfpipe.profiler.diagnose.bottleneck import NO_IDLE
from tfpipe.profiler.diagnose.fixes import MIN_GAIN
from tfpipe.profiler.diagnose.fixes_cpu import can_be_served, scale_cpu
from tfpipe.profiler.diagnose.predict import can_combine, combine, predict_rate, scale_other
from tfpipe.profiler.types import Bottleneck, Combination, Effort, Fix, Profile, ServiceDemand, Shortfall

_MAX_TOGETHER = 4


def find_combination(profile: Profile, fixes: Sequence[Fix]) -> Combination | None:
    """Returns the fixes that give most together; None if one alone gives as much.

    It begins with the best pair and adds the fix that gives most, until nothing is missing.
    """
    together = _find_together(profile, fixes)
    if together is None:
        return None
    numbers, rate, _ = together
    return Combination(numbers, rate, profile.step.compute_idle(rate))


def find_shortfall(profile: Profile, bottleneck: Bottleneck, fixes: Sequence[Fix]) -> Shortfall | None:
    """Returns what it takes if no fix of this host, and not all of them together, keeps the accelerator busy."""
    required, demand = profile.step.required_rate, profile.demand
    enough = required * (1 - NO_IDLE)
    if profile.service is not None or not profile.step.has_steps:  # other machines make the images, or any rate will do
        return None
    if bottleneck.stage in ("accelerator", "memory") or profile.step.idle <= NO_IDLE:
        return None
    best_demand, best = _find_best(profile, fixes)
    if best >= enough or not demand.cpu_s:
        return None
    changed = scale_other(best_demand, demand)
    _, served = _find_best(profile, [fix for fix in fixes if "cache" not in fix.changes])
    stage = _find_stuck_stage(changed, enough)
    image_s = sum(changed.cpu_s.values())
    # The share of the cores' bound that this pipeline reaches, or that one reaches which the cores limit.
    reached = best / changed.cpu_limit if changed.limit == changed.cpu_limit else 1.0
    cores = math.ceil(required * image_s / reached)
    storage_too_slow = changed.storage_limit is not None and changed.storage_limit < enough
    image_bytes = (profile.host.storage_limit_bytes_per_second or 0.0) / (changed.storage_limit or math.inf)
    return Shortfall(
        best_images_per_second=best,
        stage=stage,
        machines=math.ceil(required / served) if can_be_served(profile) else None,
        cores=cores if stage is None and cores > changed.cores else None,
        storage_bytes_per_second=required * image_bytes if storage_too_slow else None,
        cpu_us_per_image=1e6 * image_s,
        affordable_cpu_us_per_image=1e6 * changed.cores * reached / required,
        raw_images=_is_raw_enough(profile, enough),
    )


def _find_stuck_stage(demand: ServiceDemand, enough: float) -> str | None:
    """Returns the slowest of the stages that are too slow however many cores there are; None if there is none."""
    stuck = [
        name
        for name, threads in demand.threads.items()
        if demand.get_stage_limit(name) < enough
        and (name in demand.lock_bound or threads < demand.cores or demand.wait_s.get(name, 0.0) > demand.cpu_s[name])
    ]
    return min(stuck, key=demand.get_stage_limit, default=None)


def _find_together(profile: Profile, fixes: Sequence[Fix]) -> tuple[tuple[int, ...], float, ServiceDemand] | None:
    """Returns the numbers of the fixes from 1, their rate, and the demand; None if one alone gives as much."""
    demand, enough = profile.demand, profile.step.required_rate * (1 - NO_IDLE)
    parts = {number: fix for number, fix in enumerate(fixes, 1) if fix.is_sure}
    alone = max((_predict(profile, fix) for fix in parts.values()), default=0.0)
    if alone >= enough:
        return None
    found: tuple[tuple[int, ...], Fix, float] | None = None
    groups: list[tuple[tuple[int, ...], Fix]] = [
        ((first, second), combine(parts[first], parts[second], demand))
        for first, second in combinations(parts, 2)
        if can_combine(parts[first], parts[second], demand)
    ]
    while groups:
        numbers, fix = max(groups, key=lambda group: (_predict(profile, group[1]), -sum(group[0])))
        rate = _predict(profile, fix)
        if found is not None and rate < found[2] * (1 + MIN_GAIN):
            break
        found, groups = (numbers, fix, rate), []
        if len(numbers) < _MAX_TOGETHER and rate < enough:
            groups = [
                ((*numbers, number), combine(fix, part, demand))
                for number, part in parts.items()
                if number not in numbers and all(can_combine(part, parts[other], demand) for other in numbers)
            ]
    if found is None or found[2] < alone * (1 + MIN_GAIN):
        return None
    numbers, fix, rate = found
    return tuple(sorted(numbers)), rate, fix.demand or demand


def _find_best(profile: Profile, fixes: Sequence[Fix]) -> tuple[ServiceDemand, float]:
    """Returns the demand and the rate with what gives most on this host: several fixes, one or none."""
    together = _find_together(profile, fixes)
    if together is not None:
        return together[2], together[1]
    here = [(fix.demand or profile.demand, _predict(profile, fix)) for fix in fixes if fix.is_sure]
    return max([(profile.demand, profile.images_per_second), *here], key=lambda pair: pair[1])


def _predict(profile: Profile, fix: Fix) -> float:
    return min(predict_rate(profile.images_per_second, profile.demand, fix), profile.step.required_rate)


def _is_raw_enough(profile: Profile, enough: float) -> bool:
    """Returns whether shards with raw pixels in place of compressed images would do, by their measured cost.

    They cost what decoded images from a cache cost, and more bytes are read.
    """
    raw, dataset = scale_cpu(profile, "cached"), profile.dataset
    if raw is None or not dataset.formats or "RAW" in dataset.formats or dataset.late_caches:
        return False
    height, width = dataset.decoded_size
    raw_bytes = height * width * 3 * profile.records_per_image
    more_bytes = max(raw_bytes - dataset.record_bytes * profile.records_per_image, 0.0)
    raw = raw.scale({"read": 1 + more_bytes / (dataset.record_bytes * profile.records_per_image)})
    storage_limit = None
    if raw.storage_limit is not None and profile.host.storage_limit_bytes_per_second:
        storage_limit = profile.host.storage_limit_bytes_per_second / raw_bytes
    raw = replace(raw, storage_limit=storage_limit)
    return _predict(profile, Fix(Effort.NEW_SHARDS, "", raw)) >= enough
