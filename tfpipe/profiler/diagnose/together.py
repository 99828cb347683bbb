"""Finds what the fixes of a report give together, and what it takes if all of them are too little. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

from tfpipe.profiler.diagnose.bottleneck import NO_IDLE, compute_idle_fraction, compute_required_rate
from tfpipe.profiler.diagnose.fixes import MIN_GAIN
from tfpipe.profiler.diagnose.fixes_cpu import can_be_served, scale_cpu
from tfpipe.profiler.diagnose.predict import can_combine, combine, is_sure, predict_rate, scale_other
from tfpipe.profiler.types import (
    Bottleneck,
    Combination,
    Effort,
    Fix,
    Profile,
    ProposedFix,
    ServiceDemand,
    Shortfall,
)

_MAX_TOGETHER = 4

Ranked = Sequence[tuple[Fix, ProposedFix | None]]
"""The fixes of a report in their order, each with the proposal that it was predicted from; None for those that do not
raise the rate."""


def find_combination(profile: Profile, demand: ServiceDemand, ranked: Ranked) -> Combination | None:
    """Returns the fixes that give most together; None if one alone gives as much.

    It begins with the best pair and adds the fix that gives most, until nothing is missing.

    Args:
        profile: The measured figures.
        demand: The profile's demand.
        ranked: The fixes of the report.
    """
    together = _find_together(profile, demand, ranked)
    if together is None:
        return None
    numbers, rate, _ = together
    return Combination(numbers, rate, 1 - rate / compute_required_rate(profile.step))


def find_shortfall(profile: Profile, demand: ServiceDemand, bottleneck: Bottleneck, ranked: Ranked) -> Shortfall | None:
    """Returns what it takes if no fix of this host, and not all of them together, keeps the accelerator busy.

    Args:
        profile: The measured figures.
        demand: The profile's demand.
        bottleneck: The profile's bottleneck.
        ranked: The fixes of the report.
    """
    required = compute_required_rate(profile.step)
    enough = required * (1 - NO_IDLE)
    if profile.service is not None:  # the cores of other machines make the images
        return None
    if bottleneck.stage in ("accelerator", "memory") or compute_idle_fraction(profile.step) <= NO_IDLE:
        return None
    proposal, best = _find_best(profile, demand, ranked)
    if best >= enough or not demand.cpu_s:
        return None
    changed = scale_other(proposal.demand, demand)
    here = [pair for pair in ranked if pair[1] is not None and "cache" not in pair[1].changes]
    _, served = _find_best(profile, demand, here)
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
        raw_images=_is_raw_enough(profile, demand, enough),
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


def _find_together(
    profile: Profile, demand: ServiceDemand, ranked: Ranked
) -> tuple[tuple[int, ...], float, ProposedFix] | None:
    """Returns the numbers of the fixes from 1, their rate, and all of them as one; None if one alone gives as much."""
    required = compute_required_rate(profile.step)
    parts = {number: proposal for number, (_, proposal) in enumerate(ranked, 1) if proposal is not None}
    alone = max((_predict(profile, demand, proposal) for proposal in _list_here(ranked)), default=0.0)
    if alone >= required * (1 - NO_IDLE):
        return None
    pairs = [
        ((first, second), combine(parts[first], parts[second], demand))
        for first, second in combinations(parts, 2)
        if can_combine(parts[first], parts[second], demand)
    ]
    if not pairs:
        return None
    numbers: tuple[int, ...]
    numbers, proposal = max(pairs, key=lambda pair: (_predict(profile, demand, pair[1]), -sum(pair[0])))
    rate = _predict(profile, demand, proposal)
    while len(numbers) < _MAX_TOGETHER and rate < required * (1 - NO_IDLE):
        more = [
            (number, combine(proposal, part, demand))
            for number, part in parts.items()
            if number not in numbers and all(can_combine(part, parts[other], demand) for other in numbers)
        ]
        if not more:
            break
        number, longer = max(more, key=lambda pair: (_predict(profile, demand, pair[1]), -pair[0]))
        if _predict(profile, demand, longer) < rate * (1 + MIN_GAIN):
            break
        numbers, proposal, rate = (*numbers, number), longer, _predict(profile, demand, longer)
    return (tuple(sorted(numbers)), rate, proposal) if rate >= alone * (1 + MIN_GAIN) else None


def _find_best(profile: Profile, demand: ServiceDemand, ranked: Ranked) -> tuple[ProposedFix, float]:
    """Returns what gives most on this host, several fixes, one or none, as one fix with its rate."""
    together = _find_together(profile, demand, ranked)
    if together is not None:
        return together[2], together[1]
    nothing = ProposedFix(Effort.OPTION, "", demand)
    here = [(proposal, _predict(profile, demand, proposal)) for proposal in _list_here(ranked)]
    return max([(nothing, profile.images_per_second), *here], key=lambda pair: pair[1])


def _list_here(ranked: Ranked) -> list[ProposedFix]:
    """Lists the fixes that change this host or its data; a stage that the user may write anew is a guess."""
    return [proposal for _, proposal in ranked if proposal is not None and is_sure(proposal)]


def _predict(profile: Profile, demand: ServiceDemand, proposal: ProposedFix) -> float:
    return min(predict_rate(profile.images_per_second, demand, proposal), compute_required_rate(profile.step))


def _is_raw_enough(profile: Profile, demand: ServiceDemand, enough: float) -> bool:
    """Returns whether shards with raw pixels in place of compressed images would do, by their measured cost.

    They cost what decoded images from a cache cost, and more bytes are read.
    """
    cpu_s = scale_cpu(profile, demand, profile.option_costs.cached)
    dataset = profile.dataset
    if not cpu_s or not dataset.formats or "RAW" in dataset.formats or dataset.late_caches:
        return False
    height, width = dataset.decoded_size
    raw_bytes = height * width * 3 * profile.records_per_image
    more_bytes = max(raw_bytes - dataset.record_bytes * profile.records_per_image, 0.0)
    read_s = cpu_s.get("read", 0.0)
    cpu_s["read"] = read_s + read_s * more_bytes / (dataset.record_bytes * profile.records_per_image)
    storage_limit = None
    if demand.storage_limit is not None and profile.host.storage_limit_bytes_per_second:
        storage_limit = profile.host.storage_limit_bytes_per_second / raw_bytes
    raw = replace(demand, cpu_s=cpu_s, storage_limit=storage_limit)
    return _predict(profile, demand, ProposedFix(Effort.NEW_SHARDS, "", raw)) >= enough
