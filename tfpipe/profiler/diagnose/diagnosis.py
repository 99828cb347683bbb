"""From a profile to a report: the bottleneck, and the fixes with the rates that they give, the best one first. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tfpipe.profiler.diagnose.bottleneck import NO_IDLE, SLOW_FIRST_BATCH_S, count_needed_workers, find_bottleneck
from tfpipe.profiler.diagnose.proposals import propose
from tfpipe.profiler.loader.diagnose import find_loader_bottleneck, list_loader_fixes
from tfpipe.profiler.types import Bottleneck, Effort, Fix, LoaderProfile, OptionValue, PipelineProfile, Profile, Report
from tfpipe.system.units import human_bytes, human_rate

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
_HOURS_PER_DAY = 24


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
    if profile.config.service.workers:  # the stages run elsewhere
        return (*urgent, *(_add_workers(profile) if bottleneck.stage == "service" else ()))
    predicted = []
    for fix in propose(profile, bottleneck):
        fix = fix.predict(profile, profile.demand)
        if fix.predicted_images_per_second >= now * (1 + MIN_GAIN):
            predicted.append(fix)
    predicted.sort(key=lambda fix: _rank(fix.effort, fix.predicted_images_per_second / now))
    faster = _put_closers_first(_leave_out_trifles(_leave_out_work(predicted, now), now), now, required)
    return (*urgent, *faster) if bottleneck.stage in ("memory", "first_batch") else (*faster, *urgent)


def _add_workers(profile: PipelineProfile) -> Iterator[Fix]:
    """Yields as many workers of a service as the accelerator needs."""
    count, needed = len(profile.config.service.workers), count_needed_workers(profile)
    if needed > count:
        reason = f"A worker makes {human_rate(profile.images_per_second / count)} images/s."
        instruction = f"Run {needed} workers like these with `tfpipe serve`, in place of {count}."
        fix = Fix(Effort.MORE_MACHINES, reason, instruction=instruction, action="add_machines")
        yield replace(fix, predicted_images_per_second=profile.step.required_rate)


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


def make_report(profile: Profile, price_per_hour: float | None = None) -> Report:
    """Returns a profile of a pipeline or of a loader with the conclusions from it."""
    price = None if price_per_hour is None else price_per_hour * _HOURS_PER_DAY * profile.step.idle
    if isinstance(profile, LoaderProfile):
        bottleneck = find_loader_bottleneck(profile)
        return Report(profile, bottleneck, list_loader_fixes(profile, bottleneck), price_per_day=price)
    assert isinstance(profile, PipelineProfile)
    bottleneck = find_bottleneck(profile)
    return Report(profile, bottleneck, find_fixes(profile, bottleneck), price_per_day=price)
