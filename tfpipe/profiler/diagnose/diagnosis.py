"""From a profile to a report: the bottleneck, the fixes with the rates that they give, what is still missing. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from tfpipe.profiler.diagnose.bottleneck import NO_IDLE, SLOW_FIRST_BATCH_S, find_bottleneck, list_service_fixes
from tfpipe.profiler.diagnose.proposals import can_be_served, propose, scale_cpu
from tfpipe.profiler.loader.diagnose import find_loader_bottleneck, list_loader_fixes
from tfpipe.profiler.model import Demand
from tfpipe.profiler.types import (
    Bottleneck,
    Combination,
    Effort,
    Fix,
    FixAction,
    LoaderProfile,
    OptionValue,
    PipelineProfile,
    Profile,
    Report,
    Shortfall,
)
from tfpipe.system.units import human_bytes

_INDEPENDENT: frozenset[FixAction] = frozenset({"move_stage", "move_to_device", "rewrite_stage"})
"""The kinds of changes that save their share of a demand, whatever else is saved of it."""
MIN_GAIN = 0.02  # the gain below which a change is not worth its line in a report, nor its place in a config
_HARDLY, _HARDLY_BESIDE = 0.05, 0.1
"""The gain, and the share of the greatest gain of all fixes, below which both a fix changes next to nothing."""
_LITTLE = 1 / 5  # a fix is listed last if five such fixes, multiplied, gain less than the best one
_MUCH = 1.2  # the gain from which on work for nothing is left out first, and a mere option comes before new shards
_GOOD_FIRST_BATCH_S = 2.0
_WAITING_BATCHES = 2
_SHUFFLE_SHARE = 0.25  # the share of a shuffle that is left if it takes too much memory
_MUCH_BYTES = 100e6  # the bytes from which on a stage of the user's own that shuffles should shuffle records instead
_WORTH_FREEING = 0.05  # the share of the memory above which a fix that frees a part of it is worth its line
_MAX_TOGETHER = 4
_HOURS_PER_DAY = 24


def can_combine(first: Fix, second: Fix, demand: Demand) -> bool:
    """Returns whether what two fixes give together follows from what each gives alone."""
    shared = set(first.changes) & set(second.changes)
    if any(first.changes[name] != second.changes[name] for name in shared):
        return False
    if not (first.is_sure and second.is_sure):
        return False
    if "cache_before_stage" in (first.action, second.action):
        return False  # nothing is left to save of what such a cache keeps
    if first.stage is not None and first.stage == second.stage:
        return False
    if first.action in _INDEPENDENT or second.action in _INDEPENDENT:
        return True
    return not (_list_changed(first.demand or demand, demand) & _list_changed(second.demand or demand, demand))


def combine(first: Fix, second: Fix, demand: Demand) -> Fix:
    """Returns two fixes as one. Each demand is changed by the factors of both."""
    left, right = ((each.demand or demand).scale_other(demand) for each in (first, second))
    merged = replace(
        demand,
        cpu_s=_multiply(demand.cpu_s, left.cpu_s, right.cpu_s),
        wait_s=_multiply(demand.wait_s, left.wait_s, right.wait_s),
        threads={name: max(left.threads[name], right.threads[name]) for name in left.threads if name in right.threads},
        lock_bound=left.lock_bound & right.lock_bound,
        storage_limit=None
        if demand.storage_limit is None or left.storage_limit is None or right.storage_limit is None
        else left.storage_limit * right.storage_limit / demand.storage_limit,
        take_batch_s=left.take_batch_s * right.take_batch_s / demand.take_batch_s if demand.take_batch_s else 0.0,
    )
    # What bounds one fix beside its demand is time that the other one shortens, too.
    bounds = [
        each.max_images_per_second * max(other.limit / demand.limit, 1.0)
        for each, other in ((first, right), (second, left))
    ]
    return Fix(
        effort=max(first.effort, second.effort),
        reason="",
        demand=merged,
        changes={**first.changes, **second.changes},
        max_images_per_second=min(bounds),
        efficiency=first.efficiency or second.efficiency,
    )


def _multiply(now: Mapping[str, float], left: Mapping[str, float], right: Mapping[str, float]) -> dict[str, float]:
    both = {}
    for name in {**left, **right}:
        base, a, b = (times.get(name, 0.0) for times in (now, left, right))
        both[name] = a * b / base if base else a + b
    return both


def _list_changed(changed: Demand, demand: Demand) -> set[tuple[str, str]]:
    """Lists the demands that a fix changes; the time that no stage accounts for follows from the others."""
    parts = {"cpu": (changed.cpu_s, demand.cpu_s), "wait": (changed.wait_s, demand.wait_s)}
    different = {
        (kind, name)
        for kind, (after, before) in parts.items()
        for name in {**after, **before}
        if name != "other" and after.get(name, 0.0) != before.get(name, 0.0)
    }
    threads = {("threads", name) for name, count in changed.threads.items() if count != demand.threads.get(name)}
    storage = {("storage", "")} if changed.storage_limit != demand.storage_limit else set()
    return different | threads | storage


def find_fixes(profile: PipelineProfile, bottleneck: Bottleneck) -> tuple[Fix, ...]:
    """Returns the changes that help, best first. Fixes of memory, of the start and of a service have no demand."""
    if bottleneck.stage == "accelerator":
        return ()
    now, required = profile.images_per_second, profile.step.required_rate
    early = [*(_free_memory(profile) if bottleneck.stage == "memory" else ()), *_start_sooner(profile)]
    idle_now = profile.step.idle if profile.step.has_steps else None
    unchanged = {"predicted_images_per_second": now, "predicted_idle_fraction": idle_now}
    urgent = [replace(fix, **unchanged) for fix in early]
    if profile.step.idle <= NO_IDLE:
        return tuple(urgent)
    if profile.service is not None:  # the stages run elsewhere
        return (*urgent, *list_service_fixes(profile))
    predicted = []
    for fix in propose(profile, bottleneck):
        fix = fix.predict(profile, profile.demand)
        if fix.predicted_images_per_second >= now * (1 + MIN_GAIN):
            predicted.append(fix)
    predicted.sort(key=lambda fix: _rank(fix.effort, fix.predicted_images_per_second / now))
    faster = _put_closers_first(_leave_out_trifles(_leave_out_work(predicted, now), now), now, required)
    return (*urgent, *faster) if bottleneck.stage in ("memory", "first_batch") else (*faster, *urgent)


def _leave_out_trifles(fixes: list[Fix], now: float) -> list[Fix]:
    """Leaves out what changes next to nothing while another fix changes much."""
    best = _get_best_rate(fixes, now)
    least = now + min(_HARDLY * now, _HARDLY_BESIDE * (best - now))
    return [fix for fix in fixes if fix.predicted_images_per_second >= least]


def _leave_out_work(fixes: list[Fix], now: float) -> list[Fix]:
    """Leaves out a stage to be made cheaper by the user, if another fix gives half of the gain or more."""
    most = _get_best_rate([fix for fix in fixes if fix.effort is not Effort.REWRITE], now) - now
    return [
        fix for fix in fixes if fix.effort is not Effort.REWRITE or most < (fix.predicted_images_per_second - now) / 2
    ]


def _put_closers_first(fixes: list[Fix], now: float, required: float) -> list[Fix]:
    """Puts fixes that give little behind those that give much: less than half of the gap where a fix closes it.

    Else it is what five times over gives less than the best fix; but not a mere option that gives a fifth.
    """
    best = _get_best_rate(fixes, now)
    if best >= required * (1 - NO_IDLE):
        least = now + (required - now) / 2
        return sorted(fixes, key=lambda fix: fix.predicted_images_per_second < least)
    least = now * (best / now) ** _LITTLE if now else 0.0
    enough = {Effort.OPTION: min(least, _MUCH * now)}
    return sorted(fixes, key=lambda fix: fix.predicted_images_per_second < enough.get(fix.effort, least))


def _get_best_rate(fixes: Sequence[Fix], now: float) -> float:
    return max((fix.predicted_images_per_second for fix in fixes), default=now)


def _rank(effort: Effort, factor: float) -> tuple[int, float, int]:
    """Returns the key that sorts fixes, best first; `factor` is the predicted rate by the measured one."""
    # Gains are compared in steps of a tenth: less than that decides nothing, the effort does.
    gain = round(math.log(max(factor, 1e-9), 1.1))
    if effort is Effort.WASTE and factor >= _MUCH:
        return effort, -gain, effort
    # An option that gives hardly anything does not stand before new shards that give much.
    worth = Effort.VISIBLE_OPTION if gain >= 1 else Effort.NEW_SHARDS
    return max(effort, worth), -gain, effort


def _free_memory(profile: PipelineProfile) -> Iterator[Fix]:
    """Yields fixes that free memory, the one that frees most first."""
    for held in profile.held:
        if held.num_bytes <= _WORTH_FREEING * profile.host.memory_limit_bytes:
            continue
        size = human_bytes(held.num_bytes)
        if held.stage == "prefetch" and held.number > _WAITING_BATCHES:
            reason = f"{held.number} batches wait for the trainer, {size}: two are enough."
            yield Fix(Effort.OPTION, reason, changes={"prefetch_batches": _WAITING_BATCHES})
        elif held.stage == "shuffle":
            reason = f"{size} of records are held to be shuffled: a quarter mixes less, and takes less."
            yield Fix(Effort.OPTION, reason, changes=_shrink_shuffle(profile, _SHUFFLE_SHARE))
        elif held.stage == "cache":
            no_cache: dict[str, OptionValue] = {"cache": "none"}
            if profile.config.cache_bytes is not None:
                no_cache["cache_bytes"] = None
            in_files = " Or keep it in files: `cache_dir`." if profile.dataset.by_engine else ""
            yield Fix(Effort.OPTION, f"The cache takes {size}.{in_files}", changes=no_cache)


def _start_sooner(profile: PipelineProfile) -> Iterator[Fix]:
    """Yields the fixes that make the first step come earlier, or a shuffle smaller, and leave the steady state."""
    for held in profile.held:
        if held.stage in profile.dataset.own_stages and held.num_bytes >= _MUCH_BYTES:
            reason = (
                f"{held.stage} holds {held.number:,} {held.what}, {human_bytes(held.num_bytes)}, and takes about "
                f"{held.fill_s:.1f} s of the {profile.first_batch_s:.1f} s until the first batch. As records they are "
                f"{human_bytes(held.number * profile.dataset.record_bytes)}."
            )
            instruction = f"Shuffle records before they are decoded, and not in the stage {held.stage}."
            yield Fix(Effort.OPTION, reason, instruction=instruction, action="move_stage", stage=held.stage)
    if profile.first_batch_s <= SLOW_FIRST_BATCH_S or not profile.dataset.shuffled_records:
        return
    share = _GOOD_FIRST_BATCH_S / profile.first_batch_s
    reason = (
        f"{share:.0%} as much is read before the first batch, which took {profile.first_batch_s:.1f} s and then takes "
        f"about {_GOOD_FIRST_BATCH_S:.0f}; it mixes less."
    )
    yield Fix(Effort.OPTION, reason, changes=_shrink_shuffle(profile, share))


def _shrink_shuffle(profile: PipelineProfile, share: float) -> Mapping[str, OptionValue]:
    return {"tf_data.shuffle_buffer_size": max(round(profile.dataset.shuffled_records * share), 1)}


def find_combination(profile: PipelineProfile, fixes: Sequence[Fix]) -> Combination | None:
    """Returns the fixes that give most together, by adding the best one to a pair; None if one alone gives as much."""
    together = _find_together(profile, fixes)
    if together is None:
        return None
    numbers, rate, _ = together
    return Combination(numbers, rate, profile.step.compute_idle(rate))


def find_shortfall(profile: PipelineProfile, bottleneck: Bottleneck, fixes: Sequence[Fix]) -> Shortfall | None:
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
    changed = best_demand.scale_other(demand)
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


def _find_stuck_stage(demand: Demand, enough: float) -> str | None:
    """Returns the slowest of the stages that are too slow however many cores there are; None if there is none."""
    stuck = [
        name
        for name, threads in demand.threads.items()
        if demand.get_stage_limit(name) < enough
        and (name in demand.lock_bound or threads < demand.cores or demand.wait_s.get(name, 0.0) > demand.cpu_s[name])
    ]
    return min(stuck, key=demand.get_stage_limit, default=None)


def _find_together(profile: PipelineProfile, fixes: Sequence[Fix]) -> tuple[tuple[int, ...], float, Demand] | None:
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


def _find_best(profile: PipelineProfile, fixes: Sequence[Fix]) -> tuple[Demand, float]:
    together = _find_together(profile, fixes)
    if together is not None:
        return together[2], together[1]
    here = [(fix.demand or profile.demand, _predict(profile, fix)) for fix in fixes if fix.is_sure]
    return max([(profile.demand, profile.images_per_second), *here], key=lambda pair: pair[1])


def _predict(profile: PipelineProfile, fix: Fix) -> float:
    return fix.predict(profile, profile.demand).predicted_images_per_second


def _is_raw_enough(profile: PipelineProfile, enough: float) -> bool:
    """Returns whether raw pixels in the shards would do: they cost what cached images cost, and more bytes."""
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


def make_report(profile: Profile, price_per_hour: float | None = None) -> Report:
    """Returns a profile of a pipeline or of a loader with the conclusions from it."""
    price = None if price_per_hour is None else price_per_hour * _HOURS_PER_DAY * profile.step.idle
    if isinstance(profile, LoaderProfile):
        bottleneck = find_loader_bottleneck(profile)
        return Report(profile, bottleneck, list_loader_fixes(profile, bottleneck), price_per_day=price)
    assert isinstance(profile, PipelineProfile)
    bottleneck = find_bottleneck(profile)
    fixes = find_fixes(profile, bottleneck)
    combination, shortfall = find_combination(profile, fixes), find_shortfall(profile, bottleneck, fixes)
    return Report(profile, bottleneck, fixes, combination, shortfall, price_per_day=price)


def add_measured(report: Report, fixes: Sequence[Fix], after: float) -> Report:
    """Returns the report with what was measured in the place of what was predicted."""
    tried = replace(report, fixes=tuple(fixes), after_images_per_second=after)
    if not any(fix.kept for fix in fixes):
        return tried
    required, needs = report.profile.step.required_rate, report.shortfall
    if needs is not None and after >= required * (1 - NO_IDLE):
        needs = None
    elif needs is not None:
        machines = None if needs.machines is None else math.ceil(required / after)
        needs = replace(needs, best_images_per_second=after, machines=machines, cores=None, raw_images=False)
    return replace(tried, combination=None, shortfall=needs)
