"""Proposals for stages of the user's own: another place, other code, the accelerator, a cache behind them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tfpipe.engine.config.pipeline_config import IMAGES_PER_CALL
from tfpipe.profiler.diagnose.bottleneck import compute_required_rate
from tfpipe.profiler.diagnose.calibration import (
    ALLOCATION_PER_STAGE_TIME,
    MOST_OTHER_PER_STAGE_TIME,
    READ_CPU_LEFT_ON_DEVICE,
)
from tfpipe.profiler.diagnose.fixes_cpu import compute_cache_room, without_storage
from tfpipe.profiler.diagnose.fixes_waiting import SPARE, next_power_of_two, raise_threads
from tfpipe.profiler.types import (
    OPTION_COST_STAGES,
    READING_STAGES,
    Bottleneck,
    Effort,
    Profile,
    ProposedFix,
    ServiceDemand,
    StageTiming,
)
from tfpipe.system.units import human_bytes

_CLEARLY_FEWER = 0.9
"""The share of the images that a filter passes on, above which its place hardly matters."""
_CLEARLY_CHEAPER = 0.8
"""The share of a stage's time that calls for many images must leave at most, to be worth an option."""
_MOSTLY_CALLS = 0.2
"""The share of a stage's time up to which what calls for many images leave is no reason to do the work elsewhere."""
_CHEAPER = 0.1
"""The share of a stage's time that is left if the user writes it anew: a guess, which the instruction names."""
_COSTLY = 0.3
"""The share of an image's processor time from which on it is worth to do a stage elsewhere."""


def propose(profile: Profile, demand: ServiceDemand, bottleneck: Bottleneck) -> Iterator[ProposedFix]:
    """Yields the changes of the user's own stages that could help, in no order.

    Args:
        profile: The measured figures.
        demand: The profile's demand.
        bottleneck: The profile's bottleneck.
    """
    yield from _filter_first(profile, demand)
    yield from _mend_bottleneck(profile, demand, bottleneck)
    yield from _vectorize(profile, demand)
    for stage in profile.stages:
        if stage.name not in profile.dataset.own_stages or _is_cured_by_calls(profile, stage.name):
            continue
        if _computes_much(profile, demand, stage):
            yield from _do_elsewhere(profile, demand, stage)
            yield from _make_cheaper(profile, demand, stage)


def _computes_much(profile: Profile, demand: ServiceDemand, stage: StageTiming) -> bool:
    """Returns whether a stage keeps many cores busy. One that waits, caches or runs on one core has other cures."""
    cpu_s = demand.cpu_s.get(stage.name, 0.0)
    has_other_cure = (
        stage.name in demand.lock_bound
        or stage.name in profile.dataset.late_caches
        or stage.max_parallelism == 1
        or demand.wait_s.get(stage.name, 0.0) > cpu_s
    )
    return not has_other_cure and cpu_s >= _COSTLY * sum(demand.cpu_s.values())


def _filter_first(profile: Profile, demand: ServiceDemand) -> Iterator[ProposedFix]:
    """Yields, for each filter of the user's own behind `decode`, the filter in front of it."""
    names = [stage.name for stage in profile.stages]
    if "decode" not in names:
        return
    end = names.index("batch") if "batch" in names else len(names)
    for place, stage in enumerate(profile.stages[:end]):
        skipped, share = names[names.index("decode") : place], stage.elements_out_per_in
        if not skipped or stage.name not in profile.dataset.filters or share > _CLEARLY_FEWER:
            continue
        reason = (
            f"{stage.name} drops {1 - share:.0%} of the images after they were decoded: {1 / share:.1f} are decoded "
            "for each that stays."
        )
        left = {
            **dict.fromkeys(("read", "shuffle"), 1 - (1 - READ_CPU_LEFT_ON_DEVICE) * (1 - share)),
            **dict.fromkeys(skipped, share),
        }
        cpu_s = {name: seconds * left.get(name, 1.0) for name, seconds in demand.cpu_s.items()}
        handed = _count_handovers(names[:place], share, skipped) / _count_handovers(names[:place], share, [])
        cpu_s["other"] = _compute_other_s(demand, cpu_s, handed)
        wait_s = {name: seconds * (share if name in skipped else 1.0) for name, seconds in demand.wait_s.items()}
        lighter = replace(demand, cpu_s=cpu_s, wait_s=wait_s)
        instruction = f"Filter before `decode`, on the label or the image's header, and not in the stage {stage.name}."
        for move in profile.dataset.stage_moves:
            if move.startswith(f"{stage.name} before "):  # its `commutes_with` allows it
                instruction = f"Return `stages.move({move!r})` from the function that adds your stages."
        yield ProposedFix(Effort.WASTE, reason, lighter, instruction=instruction, action="move_stage", stage=stage.name)


def _compute_other_s(demand: ServiceDemand, cpu_s: Mapping[str, float], handed: float) -> float:
    """Returns the time that no stage accounts for. Allocations are in proportion to the stages' time.

    Args:
        demand: The measured demand.
        cpu_s: The processor time by stage with the change, in seconds; "other" as it was.
        handed: The share of the handovers that is left.
    """
    other_s = demand.cpu_s["other"]
    before_s, after_s = (sum(each.values()) - other_s - demand.take_batch_s for each in (demand.cpu_s, cpu_s))
    if before_s <= 0:
        return other_s
    allocations_s = min(ALLOCATION_PER_STAGE_TIME * before_s, other_s)
    return allocations_s * after_s / before_s + (other_s - allocations_s) * handed


def _count_handovers(names: Sequence[str], share: float, skipped: Sequence[str]) -> float:
    """Returns how often elements are handed over for one that a filter passes on.

    Args:
        names: The stages before the filter.
        share: The share that the filter passes on.
        skipped: The stages among them that only get what is passed on.
    """
    records = names[names.index("read") :] if "read" in names else names
    return 1 + sum(1.0 if name in skipped else 1 / share for name in records)


def _do_elsewhere(profile: Profile, demand: ServiceDemand, stage: StageTiming) -> Iterator[ProposedFix]:
    """Yields other places for the work of a costly stage: the accelerator, or a cache behind it."""
    name, facts = stage.name, profile.dataset.declared.get(stage.name)
    cost_s = demand.cpu_s[name]
    share = cost_s / sum(demand.cpu_s.values())
    takes = f"{name} takes {share:.0%} of the processor time, {cost_s * 1e6:,.0f} µs for each image"
    if facts is None or facts.per_image is not False:
        cpu_s = _take_threads_along(demand, {**_leave_alone(profile, demand), name: 0.0})
        threads = {other: count for other, count in demand.threads.items() if other != name}
        without = replace(demand, cpu_s=cpu_s, threads=threads)
        left_us = _compute_affordable_us(profile, demand, name)
        cheaper = f", or make it cheaper: at most {left_us:,.0f} µs" if left_us > 0 else ""
        instruction = f"Do the work of the stage {name} on the accelerator, for the whole batch{cheaper}."
        yield ProposedFix(
            Effort.VISIBLE_OPTION, f"{takes}.", without, instruction=instruction, action="move_to_device", stage=name
        )
    if facts is not None and facts.random is False and profile.config.training:
        yield from _cache_behind(profile, demand, stage, takes)


def _vectorize(profile: Profile, demand: ServiceDemand) -> Iterator[ProposedFix]:
    """Yields the stages that cost less if a call of their function gets many images, by what was measured."""
    for name, costs in profile.call_costs.items():
        if name not in demand.cpu_s or costs.many_us > _CLEARLY_CHEAPER * costs.one_us:
            continue
        now_s = _leave_alone(profile, demand) if name in demand.lock_bound else demand.cpu_s
        cpu_s = {**now_s, name: now_s[name] * costs.many_us / costs.one_us}
        values = "The values are the same." if costs.same_values else "But the values differ."
        reason = (
            f"{name} takes {costs.one_us:,.0f} µs for an image in a call of its own, and {costs.many_us:,.0f} µs among "
            f"{IMAGES_PER_CALL} images in one call, measured with a few records. {values}"
        )
        yield ProposedFix(
            Effort.OPTION if costs.same_values else Effort.VISIBLE_OPTION,
            reason,
            replace(demand, cpu_s=cpu_s),
            instruction=f"Return `stages.vectorize({costs.entry!r})` from the function that adds your stages.",
            action="vectorize_stage",
            stage=name,
            keeps_values=costs.same_values,
        )


def _is_cured_by_calls(profile: Profile, name: str) -> bool:
    """Returns whether it is the call that a stage costs: then an option saves what other code would."""
    costs = profile.call_costs.get(name)
    return costs is not None and costs.same_values and costs.many_us <= _MOSTLY_CALLS * costs.one_us


def _make_cheaper(profile: Profile, demand: ServiceDemand, stage: StageTiming) -> Iterator[ProposedFix]:
    """Yields a cheaper stage: work for the user, which is kept only where nothing else helps."""
    name, cost_us = stage.name, demand.cpu_s[stage.name] * 1e6
    lighter = replace(demand, cpu_s={**demand.cpu_s, name: _CHEAPER * demand.cpu_s[name]})
    instruction = (
        f"Make the stage {name} cheaper, which is work for you: the prediction is for {_CHEAPER * cost_us:,.0f} µs for "
        f"each image in place of {cost_us:,.0f}."
    )
    reason = f"{name} takes {cost_us / 1e6 / sum(demand.cpu_s.values()):.0%} of the processor time."
    yield ProposedFix(Effort.REWRITE, reason, lighter, instruction=instruction, action="rewrite_stage", stage=name)


def _cache_behind(profile: Profile, demand: ServiceDemand, stage: StageTiming, takes: str) -> Iterator[ProposedFix]:
    """Yields a cache behind a stage that gives the same in each epoch, if what it gives fits into memory."""
    names = [each.name for each in profile.stages]
    before, after = names[: names.index(stage.name) + 1], names[names.index(stage.name) + 1 :]
    records = profile.dataset.records
    draws = next((name for name in after if name == "augment" or _is_random(profile, name)), None)
    if records is None or not stage.images_per_second or any(_is_random(profile, name) for name in before):
        return
    if "augment" in before and profile.config.augment != "none":
        return  # it draws crops
    num_bytes = records * stage.bytes_out_per_second / stage.images_per_second
    if num_bytes > compute_cache_room(profile.host):
        return
    left_s = {name: 0.0 if name in before else seconds for name, seconds in _leave_alone(profile, demand).items()}
    cpu_s = _take_threads_along(demand, left_s)
    if stage.name in profile.behind_us and (counted_s := sum(cpu_s.values())):
        ratio = profile.behind_us[stage.name] / 1e6 / counted_s
        cpu_s = {name: seconds * ratio for name, seconds in cpu_s.items()}
    reason = f"{takes}, and gives the same in each epoch: {human_bytes(num_bytes)} of memory."
    yield ProposedFix(
        Effort.VISIBLE_OPTION,
        reason,
        without_storage(demand, cpu_s),
        instruction=f"Put a stage that caches right behind {stage.name}.",
        action="cache_before_stage",
        stage=draws or (after[0] if after else stage.name),
    )


def _take_threads_along(demand: ServiceDemand, cpu_s: Mapping[str, float]) -> dict[str, float]:
    """Returns the time by stage without a costly stage, with what is left then of the time that no stage accounts for.

    Operations that compute much have threads of their own, which no stage accounts for: they go with the stage.
    """
    before_s, after_s = (sum(each.values()) - each["other"] for each in (demand.cpu_s, cpu_s))
    share = min(demand.cpu_s["other"] / before_s, MOST_OTHER_PER_STAGE_TIME) if before_s > 0 else 0.0
    return {**cpu_s, "other": share * after_s}


def _is_random(profile: Profile, name: str) -> bool:
    facts = profile.dataset.declared.get(name)
    return facts is not None and facts.random is True


def _compute_affordable_us(profile: Profile, demand: ServiceDemand, name: str) -> float:
    """Returns the processor time of an image that the stage may take if the accelerator shall not wait."""
    others_s = sum(seconds for stage, seconds in demand.cpu_s.items() if stage != name)
    return (demand.cores / compute_required_rate(profile.step) - others_s) * 1e6


def _mend_bottleneck(profile: Profile, demand: ServiceDemand, bottleneck: Bottleneck) -> Iterator[ProposedFix]:
    """Yields the changes that help if the bottleneck is a stage of the user."""
    name = bottleneck.stage
    stage = next((stage for stage in profile.stages if stage.name == name), None)
    if stage is None or name not in profile.dataset.own_stages:
        return
    if name in demand.lock_bound:
        if _is_cured_by_calls(profile, name):
            return
        reason = "They use all cores; a Python function holds Python's lock."
        instruction = f"Write the stage {name} with TensorFlow's operations instead of a Python function."
        cpu_s = {**_leave_alone(profile, demand), name: 0.0}
        native = replace(demand, cpu_s=cpu_s, threads=raise_threads(demand, name, demand.cores))
        yield ProposedFix(
            Effort.VISIBLE_OPTION, reason, native, instruction=instruction, action="rewrite_stage", stage=name
        )
        return
    wait_s, compute_s = demand.wait_s.get(name, 0.0), demand.cpu_s[name]
    if wait_s > compute_s and stage.max_parallelism != 1:
        rate = min(compute_required_rate(profile.step), demand.cpu_limit)
        threads = next_power_of_two(SPARE * rate * (wait_s + compute_s))
        if threads > demand.threads[name] and not profile.dataset.by_engine:
            reason = f"{threads} of its calls wait side by side, not {demand.threads[name]:,.0f}: threads, not cores."
            wider = replace(demand, threads=raise_threads(demand, name, threads))
            yield ProposedFix(Effort.VISIBLE_OPTION, reason, wider, {"tf_data.private_threadpool_size": threads})
    elif stage.max_parallelism == 1 and name not in profile.dataset.late_caches:
        instruction = f"Give the map of the stage {name} `num_parallel_calls=tf.data.AUTOTUNE`."
        wider = replace(demand, threads=raise_threads(demand, name, demand.cores))
        reason = "It runs on one core; there are more."
        yield ProposedFix(
            Effort.VISIBLE_OPTION, reason, wider, instruction=instruction, action="rewrite_stage", stage=name
        )


def _leave_alone(profile: Profile, demand: ServiceDemand) -> dict[str, float]:
    """Returns the processor time by stage if the stages of tfpipe had the cores to themselves.

    Threads that fight for Python's lock, or for the cores, slow all other stages. `OptionCosts.now` was measured
    without the user's own stages: 1.1 ms, where 1.1 to 2.5 ms were counted beside a function that holds the lock (2
    cores, JPEGs of 500 x 375 pixels). `OptionCosts.read` was, too: 0.1 ms, where 0.3 ms were counted beside a blur.
    """
    alone_s = dict(demand.cpu_s)
    costs = profile.option_costs
    for names, cost_us in ((OPTION_COST_STAGES, costs.now), (READING_STAGES, costs.read)):
        counted_s = sum(demand.cpu_s.get(name, 0.0) for name in names)
        if cost_us is not None and counted_s:
            ratio = min(cost_us / 1e6 * profile.records_per_image / counted_s, 1.0)
            alone_s |= {name: seconds * ratio for name, seconds in demand.cpu_s.items() if name in names}
    return alone_s
