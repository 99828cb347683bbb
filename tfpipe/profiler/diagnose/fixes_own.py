"""Proposals for stages of the user's own: another place, other code, the accelerator, a cache behind them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tfpipe.engine.ahead import count_decoded
from tfpipe.engine.config.pipeline_config import IMAGES_PER_CALL
from tfpipe.profiler.diagnose.bottleneck import compute_required_rate
from tfpipe.profiler.diagnose.fixes_cpu import compute_cache_room, without_storage
from tfpipe.profiler.diagnose.fixes_waiting import MOST_THREADS, SPARE, next_power_of_two, raise_threads
from tfpipe.profiler.diagnose.predict import scale_other
from tfpipe.profiler.types import (
    Bottleneck,
    Effort,
    Profile,
    ProposedFix,
    ServiceDemand,
    StageTiming,
)
from tfpipe.system.units import human_bytes

_FUNCTIONS = ("transform", "batch_transform")
"""The names of the functions that the engine calls."""
_CLEARLY_FEWER = 0.9
"""The share of the images that a filter passes on, above which its place hardly matters."""
_CLEARLY_CHEAPER = 0.8
"""The share of a stage's time that calls for many images must leave at most, to be worth an option."""
_MOSTLY_CALLS = 0.2
"""The share of a stage's time up to which what calls for many images leave is no reason to do the work elsewhere."""
_CHEAPER = 0.1
"""The share of a stage's time that is left if the user writes it anew: a guess, which the instruction names."""
_GROWS = 2.0
"""The bytes that a stage makes of one, from which on it is worth to do its work on the accelerator."""
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
    yield from _narrow(profile, demand)
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
        or stage.parallelism == 1
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
        names_before = names[:place]
        handed = _count_handovers(names_before, share, skipped) / _count_handovers(names_before, share, [])
        cpu_s = {name: seconds * (share if name in skipped else 1.0) for name, seconds in demand.cpu_s.items()}
        wait_s = {name: seconds * (share if name in skipped else 1.0) for name, seconds in demand.wait_s.items()}
        lighter = scale_other(replace(demand, cpu_s=cpu_s, wait_s=wait_s), demand)
        other_s = lighter.cpu_s["other"] - (1 - handed) * demand.handover_s
        lighter = replace(lighter, cpu_s={**lighter.cpu_s, "other": max(other_s, 0.0)})
        instruction = f"Filter before `decode`, on the label or the image's header, and not in the stage {stage.name}."
        for move in profile.dataset.stage_moves:
            if move.startswith(f"{stage.name} before "):  # its `commutes_with` allows it
                instruction = f"Return `stages.move({move!r})` from the function that adds your stages."
        yield ProposedFix(Effort.WASTE, reason, lighter, instruction=instruction, action="move_stage", stage=stage.name)


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
        cpu_s = {**demand.cpu_s, name: 0.0}
        threads = {other: count for other, count in demand.threads.items() if other != name}
        without = replace(demand, cpu_s=cpu_s, threads=threads)
        left_us = _compute_affordable_us(profile, demand, name)
        cheaper = f", or make it cheaper: at most {left_us:,.0f} µs" if left_us > 0 else ""
        instruction = f"Do the work of {_name(name)} on the accelerator, for the whole batch{cheaper}."
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
        left = costs.many_us / costs.one_us
        cpu_s = {**demand.cpu_s, name: demand.cpu_s[name] * left}
        wait_s = {**demand.wait_s, name: demand.wait_s.get(name, 0.0) * left}
        values = "The values are the same." if costs.same_values else "But the values differ."
        reason = (
            f"{name} takes {costs.one_us:,.0f} µs for an image in a call of its own, and {costs.many_us:,.0f} µs among "
            f"{IMAGES_PER_CALL} images in one call, measured with a few records. {values}"
        )
        yield ProposedFix(
            Effort.OPTION if costs.same_values else Effort.VISIBLE_OPTION,
            reason,
            replace(demand, cpu_s=cpu_s, wait_s=wait_s),
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
        f"Make {_name(name)} cheaper, which is work for you: the prediction is for {_CHEAPER * cost_us:,.0f} µs for "
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
    if records is None or any(_is_random(profile, name) for name in before):
        return
    if "augment" in before and profile.config.augment != "none":
        return  # it draws crops
    num_bytes = records * stage.bytes_out_per_image
    if num_bytes > compute_cache_room(profile.host):
        return
    cpu_s = {name: 0.0 if name in before else seconds for name, seconds in demand.cpu_s.items()}
    reason = f"{takes}, and gives the same in each epoch: {human_bytes(num_bytes)} of memory."
    yield ProposedFix(
        Effort.VISIBLE_OPTION,
        reason,
        without_storage(demand, cpu_s),
        instruction=f"Put a stage that caches right behind {stage.name}.",
        action="cache_before_stage",
        stage=draws or (after[0] if after else stage.name),
    )


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
        if not _is_cured_by_calls(profile, name):
            yield from _leave_lock(profile, demand, stage)
        return
    wait_s, compute_s = demand.wait_s.get(name, 0.0), demand.cpu_s[name]
    if wait_s > compute_s and stage.parallelism != 1:
        rate = min(compute_required_rate(profile.step), demand.cpu_limit)
        threads = min(next_power_of_two(SPARE * rate * (wait_s + compute_s)), MOST_THREADS)
        reason = f"{threads} of its calls wait side by side, not {demand.threads[name]:,.0f}: threads, not cores."
        wider = replace(demand, threads=raise_threads(demand, name, threads))
        if threads > demand.threads[name] and not profile.dataset.by_engine:
            yield ProposedFix(Effort.VISIBLE_OPTION, reason, wider, {"tf_data.private_threadpool_size": threads})
        elif threads > demand.threads[name] and name == "transform":
            each = -(-threads // count_decoded(threads))  # of the batches that are decoded at once
            instruction = f"Give your reader `num_threads={each}`."
            yield ProposedFix(Effort.VISIBLE_OPTION, reason, wider, instruction=instruction)
    elif stage.parallelism == 1 and name not in profile.dataset.late_caches:
        instruction = f"Give the map of the stage {name} `num_parallel_calls=tf.data.AUTOTUNE`."
        wider = replace(demand, threads=raise_threads(demand, name, demand.cores))
        reason = "It runs on one core; there are more."
        yield ProposedFix(
            Effort.VISIBLE_OPTION, reason, wider, instruction=instruction, action="rewrite_stage", stage=name
        )


def _name(name: str) -> str:
    """Returns the words for a stage of the user's own, or for one of the engine's functions."""
    return f"the function `{name}`" if name in _FUNCTIONS else f"the stage {name}"


def _leave_lock(profile: Profile, demand: ServiceDemand, stage: StageTiming) -> Iterator[ProposedFix]:
    """Yields what helps a stage of which a lock lets one call run at a time. Threads do not."""
    name = stage.name
    what = _name(name)
    threads = {**demand.threads, name: max(stage.parallelism, 1)}
    if stage.waits:
        reason = "More threads wait for the same lock. Without it, calls wait side by side."
        instruction = f"Take the lock out of {what}, or hold it for a shorter time: threads do not help."
        freed = replace(demand, threads=threads, lock_bound=demand.lock_bound - {name})
    elif not stage.holds_python_lock:
        reason = "It computes, and all cores can do so at once without the lock."
        instruction = f"Take the lock out of {what}, or hold it for a shorter time."
        wait_s = {each: seconds for each, seconds in demand.wait_s.items() if each != name}
        freed = replace(demand, wait_s=wait_s, threads=threads, lock_bound=demand.lock_bound - {name})
    else:
        reason = "They use all cores; a Python function holds Python's lock."
        instruction = f"Write {what} with TensorFlow's operations instead of a Python function"
        if name in _FUNCTIONS:
            instruction = f"Let {what} call operations that let go of Python's lock"
        instruction += ", do its work on the accelerator, or run it in several processes."
        freed = replace(demand, cpu_s={**demand.cpu_s, name: 0.0}, wait_s={**demand.wait_s, name: 0.0})
        freed = replace(freed, threads=threads, lock_bound=demand.lock_bound - {name})
    yield ProposedFix(Effort.VISIBLE_OPTION, reason, freed, instruction=instruction, action="rewrite_stage", stage=name)


def _narrow(profile: Profile, demand: ServiceDemand) -> Iterator[ProposedFix]:
    """Yields, for each stage of the user's own that makes images larger, the same stage on the device."""
    for stage in profile.stages:
        name, grows = (
            stage.name,
            stage.bytes_out_per_image / stage.bytes_in_per_image if stage.bytes_in_per_image else 0,
        )
        if name not in profile.dataset.own_stages or grows < _GROWS or stage.name in profile.dataset.late_caches:
            continue
        names = [each.name for each in profile.stages]
        behind = names[names.index(name) + 1 :]
        left = {name: 0.0, **dict.fromkeys(behind, 1 / grows)}
        cpu_s = {each: seconds * left.get(each, 1.0) for each, seconds in demand.cpu_s.items()}
        reason = (
            f"{name} makes {grows:.0f} bytes of each byte, {human_bytes(stage.bytes_out_per_image)} for an image, and "
            "all that stands behind it must copy them."
        )
        instruction = f"Leave the values as small as they are in front of {name}, and widen them on the accelerator."
        yield ProposedFix(
            Effort.WASTE,
            reason,
            replace(demand, cpu_s=cpu_s),
            instruction=instruction,
            action="move_to_device",
            stage=name,
        )
