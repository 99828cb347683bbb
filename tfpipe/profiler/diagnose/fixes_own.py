"""Proposals for stages of the user's own: another place, other code, the accelerator, a cache behind them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tfpipe.engine.ahead import count_decoded
from tfpipe.engine.config.pipeline_config import IMAGES_PER_CALL
from tfpipe.profiler.diagnose.fixes_cpu import compute_cache_room
from tfpipe.profiler.diagnose.fixes_waiting import SPARE, next_power_of_two
from tfpipe.profiler.diagnose.predict import scale_other
from tfpipe.profiler.types import MOST_THREADS, Bottleneck, Effort, Fix, Profile, StageTiming
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


def propose(profile: Profile, bottleneck: Bottleneck) -> Iterator[Fix]:
    """Yields the changes of the user's own stages that could help, in no order."""
    yield from _filter_first(profile)
    yield from _narrow(profile)
    yield from _mend_bottleneck(profile, bottleneck)
    yield from _vectorize(profile)
    for stage in profile.stages:
        if stage.name not in profile.dataset.own_stages or _is_cured_by_calls(profile, stage.name):
            continue
        if _computes_much(profile, stage):
            yield from _do_elsewhere(profile, stage)


def _computes_much(profile: Profile, stage: StageTiming) -> bool:
    """Returns whether a stage keeps many cores busy. One that waits, caches or runs on one core has other cures."""
    demand = profile.demand
    cpu_s = demand.cpu_s.get(stage.name, 0.0)
    has_other_cure = (
        stage.name in demand.lock_bound
        or stage.name in profile.dataset.late_caches
        or stage.parallelism == 1
        or demand.wait_s.get(stage.name, 0.0) > cpu_s
    )
    return not has_other_cure and cpu_s >= _COSTLY * sum(demand.cpu_s.values())


def _filter_first(profile: Profile) -> Iterator[Fix]:
    """Yields, for each filter of the user's own behind `decode`, the filter in front of it."""
    names, demand = [stage.name for stage in profile.stages], profile.demand
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
        left = dict.fromkeys(skipped, share)
        lighter = scale_other(demand.scale(left, left), demand)
        other_s = lighter.cpu_s["other"] - (1 - handed) * demand.handover_s
        lighter = replace(lighter, cpu_s={**lighter.cpu_s, "other": max(other_s, 0.0)})
        instruction = f"Filter before `decode`, on the label or the image's header, and not in the stage {stage.name}."
        for move in profile.dataset.stage_moves:
            if move.startswith(f"{stage.name} before "):  # its `commutes_with` allows it
                instruction = f"Return `stages.move({move!r})` from the function that adds your stages."
        yield Fix(Effort.WASTE, reason, lighter, instruction=instruction, action="move_stage", stage=stage.name)


def _count_handovers(names: Sequence[str], share: float, skipped: Sequence[str]) -> float:
    """Returns how often elements are handed over for one that a filter passes on.

    Args:
        names: The stages before the filter.
        share: The share that the filter passes on.
        skipped: The stages among them that only get what is passed on.
    """
    records = names[names.index("read") :] if "read" in names else names
    return 1 + sum(1.0 if name in skipped else 1 / share for name in records)


def _do_elsewhere(profile: Profile, stage: StageTiming) -> Iterator[Fix]:
    """Yields other places for the work of a costly stage, the accelerator or a cache behind it, and cheaper code."""
    name, facts, demand = stage.name, profile.dataset.declared.get(stage.name), profile.demand
    cost_s, all_s = demand.cpu_s[name], sum(demand.cpu_s.values())
    share, cost_us, cheap_us = cost_s / all_s, cost_s * 1e6, _CHEAPER * cost_s * 1e6
    takes = f"{name} takes {share:.0%} of the processor time, {cost_us:,.0f} µs for each image"
    if facts is None or facts.per_image is not False:
        threads = {other: count for other, count in demand.threads.items() if other != name}
        without = replace(demand.scale({name: 0.0}), threads=threads)
        left_us = (demand.cores / profile.step.required_rate - (all_s - cost_s)) * 1e6  # that no accelerator waits for
        cheaper = f", or make it cheaper: at most {left_us:,.0f} µs" if left_us > 0 else ""
        instruction = f"Do the work of {_name(name)} on the accelerator, for the whole batch{cheaper}."
        yield Fix(
            Effort.VISIBLE_OPTION, f"{takes}.", without, instruction=instruction, action="move_to_device", stage=name
        )
    if facts is not None and facts.random is False and profile.config.training:
        yield from _cache_behind(profile, stage, takes)
    instruction = (
        f"Make {_name(name)} cheaper, which is work for you: the prediction is for {cheap_us:,.0f} µs for each image "
        f"in place of {cost_us:,.0f}."
    )
    lighter, reason = demand.scale({name: _CHEAPER}), f"{name} takes {share:.0%} of the processor time."
    yield Fix(Effort.REWRITE, reason, lighter, instruction=instruction, action="rewrite_stage", stage=name)


def _vectorize(profile: Profile) -> Iterator[Fix]:
    """Yields the stages that cost less if a call of their function gets many images, by what was measured."""
    for name, costs in profile.call_costs.items():
        if name not in profile.demand.cpu_s or costs.many_us > _CLEARLY_CHEAPER * costs.one_us:
            continue
        left = {name: costs.many_us / costs.one_us}
        values = "The values are the same." if costs.same_values else "But the values differ."
        reason = (
            f"{name} takes {costs.one_us:,.0f} µs for an image in a call of its own, and {costs.many_us:,.0f} µs among "
            f"{IMAGES_PER_CALL} images in one call, measured with a few records. {values}"
        )
        yield Fix(
            Effort.OPTION if costs.same_values else Effort.VISIBLE_OPTION,
            reason,
            profile.demand.scale(left, left),
            instruction=f"Return `stages.vectorize({costs.entry!r})` from the function that adds your stages.",
            action="vectorize_stage",
            stage=name,
            keeps_values=costs.same_values,
        )


def _is_cured_by_calls(profile: Profile, name: str) -> bool:
    """Returns whether it is the call that a stage costs: then an option saves what other code would."""
    costs = profile.call_costs.get(name)
    return costs is not None and costs.same_values and costs.many_us <= _MOSTLY_CALLS * costs.one_us


def _cache_behind(profile: Profile, stage: StageTiming, takes: str) -> Iterator[Fix]:
    """Yields a cache behind a stage that gives the same in each epoch, if what it gives fits into memory."""
    names = [each.name for each in profile.stages]
    before, after = names[: names.index(stage.name) + 1], names[names.index(stage.name) + 1 :]
    records, demand = profile.dataset.records, profile.demand
    random = {name for name, facts in profile.dataset.declared.items() if facts.random is True}
    draws = next((name for name in after if name == "augment" or name in random), None)
    if records is None or random.intersection(before):
        return
    if "augment" in before and profile.config.augment != "none":
        return  # it draws crops
    num_bytes = records * stage.bytes_out_per_image
    if num_bytes > compute_cache_room(profile.host):
        return
    reason = f"{takes}, and gives the same in each epoch: {human_bytes(num_bytes)} of memory."
    yield Fix(
        Effort.VISIBLE_OPTION,
        reason,
        demand.without_reading(demand.scale(dict.fromkeys(before, 0.0)).cpu_s),
        instruction=f"Put a stage that caches right behind {stage.name}.",
        action="cache_before_stage",
        stage=draws or (after[0] if after else stage.name),
    )


def _mend_bottleneck(profile: Profile, bottleneck: Bottleneck) -> Iterator[Fix]:
    """Yields the changes that help if the bottleneck is a stage of the user."""
    name, demand = bottleneck.stage, profile.demand
    stage = next((stage for stage in profile.stages if stage.name == name), None)
    if stage is None or name not in profile.dataset.own_stages:
        return
    if name in demand.lock_bound:
        if not _is_cured_by_calls(profile, name):
            yield _leave_lock(profile, stage)
        return
    compute_s, wait_s = demand.get_service_s(name)
    if wait_s > demand.cpu_s.get(name, 0.0) and stage.parallelism != 1:
        rate = min(profile.step.required_rate, demand.cpu_limit)
        threads = min(next_power_of_two(SPARE * rate * (wait_s + compute_s)), MOST_THREADS)
        reason = f"{threads} of its calls wait side by side, not {demand.threads[name]:,.0f}: threads, not cores."
        fix = Fix(Effort.VISIBLE_OPTION, reason, demand.widen(name, threads))
        if threads > demand.threads[name] and not profile.dataset.by_engine:
            yield replace(fix, changes={"tf_data.private_threadpool_size": threads})
        elif threads > demand.threads[name] and name == "transform":
            each = -(-threads // count_decoded(threads))  # of the batches that are decoded at once
            yield replace(fix, instruction=f"Give your reader `num_threads={each}`.")
    elif stage.parallelism == 1 and name not in profile.dataset.late_caches:
        instruction = f"Give the map of the stage {name} `num_parallel_calls=tf.data.AUTOTUNE`."
        wider, reason = demand.widen(name, demand.cores), "It runs on one core; there are more."
        yield Fix(Effort.VISIBLE_OPTION, reason, wider, instruction=instruction, action="rewrite_stage", stage=name)


def _name(name: str) -> str:
    """Returns the words for a stage of the user's own, or for one of the engine's functions."""
    return f"the function `{name}`" if name in _FUNCTIONS else f"the stage {name}"


def _leave_lock(profile: Profile, stage: StageTiming) -> Fix:
    """Returns what helps a stage of which a lock lets one call run at a time. Threads do not."""
    name, what, demand = stage.name, _name(stage.name), profile.demand
    threads = {**demand.threads, name: max(stage.parallelism, 1)}
    freed = replace(demand, threads=threads, lock_bound=demand.lock_bound - {name})
    if stage.waits:
        reason = "More threads wait for the same lock. Without it, calls wait side by side."
        instruction = f"Take the lock out of {what}, or hold it for a shorter time: threads do not help."
    elif not stage.holds_python_lock:
        reason = "It computes, and all cores can do so at once without the lock."
        instruction = f"Take the lock out of {what}, or hold it for a shorter time."
        freed = freed.scale({}, {name: 0.0})
    else:
        reason = "They use all cores; a Python function holds Python's lock."
        instruction = f"Write {what} with TensorFlow's operations instead of a Python function"
        if name in _FUNCTIONS:
            instruction = f"Let {what} call operations that let go of Python's lock"
        instruction += ", do its work on the accelerator, or run it in several processes."
        freed = freed.scale({name: 0.0}, {name: 0.0})
    return Fix(Effort.VISIBLE_OPTION, reason, freed, instruction=instruction, action="rewrite_stage", stage=name)


def _narrow(profile: Profile) -> Iterator[Fix]:
    """Yields, for each stage of the user's own that makes images larger, the same stage on the device."""
    names = [each.name for each in profile.stages]
    for place, stage in enumerate(profile.stages):
        grows = stage.bytes_out_per_image / stage.bytes_in_per_image if stage.bytes_in_per_image else 0
        if stage.name not in profile.dataset.own_stages or grows < _GROWS or stage.name in profile.dataset.late_caches:
            continue
        lighter = profile.demand.scale({**dict.fromkeys(names[place + 1 :], 1 / grows), stage.name: 0.0})
        reason = (
            f"{stage.name} makes {grows:.0f} bytes of each byte, {human_bytes(stage.bytes_out_per_image)} for an "
            "image, and all that stands behind it must copy them."
        )
        what = f"Leave the values as small as they are in front of {stage.name}, and widen them on the accelerator."
        yield Fix(Effort.WASTE, reason, lighter, instruction=what, action="move_to_device", stage=stage.name)
