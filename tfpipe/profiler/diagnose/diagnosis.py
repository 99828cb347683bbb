"""Turns a profile into a report: the bottleneck, and the fixes with their predicted rates, best first. Pure."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from tfpipe.profiler.diagnose.proposals import propose
from tfpipe.profiler.loader.diagnose import find_loader_bottleneck, list_loader_fixes
from tfpipe.profiler.model import NO_IDLE, SATURATED
from tfpipe.profiler.types import Bottleneck, Effort, Fix, LoaderProfile, OptionValue, PipelineProfile, Profile, Report
from tfpipe.system.units import human_bytes

SLOW_FIRST_BATCH_S = 5.0
_FULL_MEMORY = 0.9
_CLEAR_SHARE = 0.5  # a stage that allows clearly less than the cores is the bottleneck from this share of its limit on
REACHED = 0.7  # a stage at this share of its own limit is the bottleneck: less than `SATURATED`, for it also hands over
MIN_GAIN = 0.02  # the gain below which a change is not worth a line in a report or a config
_HARDLY, _HARDLY_BESIDE = 0.05, 0.1
"""A fix is left out if it gains less than this share of the rate, and less than this share of the best fix's gain."""
_LITTLE = 1 / 5  # a fix is listed last if five such fixes, multiplied, gain less than the best one
_MUCH = 1.2  # from this gain on, fixes that leave out useless work come first, and options are not listed last
_GOOD_FIRST_BATCH_S = 2.0
_WAITING_BATCHES = 2
_SHUFFLE_SHARE = 0.25  # the proposed size of a shuffle buffer that takes too much memory, as a share of its size
_MUCH_BYTES = 100e6  # a user stage that shuffles more bytes should shuffle encoded records instead
_WORTH_FREEING = 0.05  # the share of the memory that a stage must hold for a fix that frees it


def find_bottleneck(profile: PipelineProfile) -> Bottleneck:
    """Returns the stage or the resource that limits the rate, with the numbers that prove it."""
    host, step, rate, limit = profile.host, profile.step, profile.images_per_second, profile.demand.storage_limit
    share = host.peak_memory_bytes / host.memory_limit_bytes
    if share > _FULL_MEMORY:  # checked first: a run that is killed has no rate
        taken = human_bytes(host.peak_memory_bytes)
        return Bottleneck("memory", f"{share:.0%} of the memory is taken, {taken}: a little more ends the run.", rate)
    first_s, epoch_s = profile.first_batch_s, (profile.dataset.records or 0) / rate
    # More time is lost before the first step than in an epoch of steps.
    if first_s > SLOW_FIRST_BATCH_S and (step.idle <= NO_IDLE or first_s > step.idle * epoch_s):
        lost = f"a whole epoch {epoch_s:.1f} s"
        if step.has_steps:
            lost = f"the accelerator waits for {step.idle * epoch_s:.1f} s of an epoch after that"
        return Bottleneck("first_batch", f"The first batch took {first_s:.1f} s, and {lost}.", step.required_rate)
    if step.idle <= NO_IDLE:
        reason = f"The accelerator is never idle: a step takes {step.step_s.median * 1e3:,.1f} ms."
        reason += " Only a faster step makes this training faster."
        return Bottleneck("accelerator", reason, step.required_rate)
    if limit is not None and rate >= SATURATED * limit:
        read, most = host.storage_bytes_per_second, host.storage_limit_bytes_per_second or 0.0
        reason = f"The storage gives {read / 1e6:,.0f} MB/s of the {most / 1e6:,.0f} MB/s that it can."
        return Bottleneck("storage", reason, limit)
    demand, slowest = profile.demand, profile.demand.slowest
    lowest, found = demand.get_stage_limit(slowest), None
    # A stage allows clearly less than the cores do, or a lock is held nearly all the time.
    if lowest <= REACHED * demand.cpu_limit or (slowest in demand.lock_bound and rate >= SATURATED * lowest):
        found = _check_threads(profile, _CLEAR_SHARE)
    return found or _check_cores(profile) or _check_threads(profile) or _unbuffered_stage(profile)


def _check_cores(profile: PipelineProfile) -> Bottleneck | None:
    demand, host = profile.demand, profile.host
    if host.cpu_fraction + host.other_cpu_fraction < SATURATED:
        return None
    if host.other_cpu_fraction > host.cpu_fraction:
        others = f"Other processes take {host.other_cpu_fraction:.0%} of the {host.cores} cores"
        return Bottleneck("cpu", f"{others}, this pipeline {host.cpu_fraction:.0%}.", demand.cpu_limit)
    busy = f"{'The core is' if host.cores == 1 else f'The {host.cores} cores are'} {_describe_busy(profile)}"
    if not profile.stages:
        return Bottleneck("cpu", f"{busy}.", demand.cpu_limit)
    if profile.hands_over_mostly:
        return _explain_small_batches(profile, busy)
    name = max((stage.name for stage in profile.stages), key=lambda stage: demand.cpu_s[stage])
    share = demand.cpu_s[name] / sum(demand.cpu_s.values())
    reason = f"{busy}, {share:.0%} of it in {name}: {demand.cpu_s[name] * 1e6:,.0f} µs of a core for each image."
    return Bottleneck(name, reason, demand.cpu_limit)


def _describe_busy(profile: PipelineProfile) -> str:
    """Returns how busy a pipeline keeps the cores."""
    return f"{profile.host.cpu_fraction:.0%} busy{' with this pipeline' if profile.host.is_crowded else ''}"


def _explain_small_batches(profile: PipelineProfile, busy: str) -> Bottleneck:
    demand = profile.demand
    other_s, images = demand.cpu_s["other"], profile.step.images_per_step
    busy += f", {other_s / sum(demand.cpu_s.values()):.0%} of it in handing over batches"
    reason = f"{busy}: {1e6 * other_s * images:,.0f} µs of a core for each batch of {images}."
    return Bottleneck("batch", reason, demand.cpu_limit)


def _check_threads(profile: PipelineProfile, reached: float = REACHED) -> Bottleneck | None:
    """Checks whether the slowest stage's threads are close to their limit, by the utilization law."""
    demand = profile.demand
    name, limit = demand.slowest, demand.get_stage_limit(demand.slowest)
    if profile.images_per_second < reached * limit:
        return None
    if name in demand.lock_bound:  # one call runs at a time
        stage = next(stage for stage in profile.stages if stage.name == name)
        what = f"{name} computes behind a lock that one call holds at a time"
        if stage.waits:
            what = f"{name} waits behind a lock of its own that one call holds at a time"
        elif stage.holds_python_lock:
            what = f"{name} is a Python function that holds Python's lock"
        reason = f"{what}: {1e6 / limit:,.0f} µs for each image, so {limit:,.0f} images/s with any number of threads."
        return Bottleneck(name, reason, limit)
    threads, (cpu_s, wait_s) = demand.threads[name], demand.get_service_s(name)
    service_s = cpu_s + wait_s
    awaited = "for storage" if name == "read" else "for something else"
    waiting = f", {wait_s / service_s:.0%} of it waiting {awaited}" if wait_s > 0.1 * service_s else ""
    before = ", ".join(demand.passes.get(name, ()))
    takes = f"{before} and {name} take" if before else f"{name} takes"
    reason = (
        f"{takes} {service_s * 1e6:,.0f} µs for each image{waiting}, and {threads:,.0f} of its calls "
        f"{'work' if threads > 1 else 'works'} at once: {limit:,.0f} images/s, while the cores are "
        f"{_describe_busy(profile)}."
    )
    return Bottleneck(name, reason, limit)


def _unbuffered_stage(profile: PipelineProfile) -> Bottleneck:
    """Returns the stage that the others wait for if nothing is at its limit, because a buffer is missing."""
    demand, config = profile.demand, profile.config
    busy = f"The cores are {_describe_busy(profile)}"
    reached = profile.images_per_second / demand.get_stage_limit(demand.slowest)
    name, why = demand.slowest, f"{demand.slowest} is nearest, {reached:.0%} of what it can give"
    if (config.prefetch_batches == 0 and not config.tf_data.inject_prefetch) or not demand.threads:
        name, why = "prefetch", "no batch is made while the accelerator works"
    elif reached < profile.host.cpu_fraction:  # the cores are nearer to their limit
        if demand.cpu_s["other"] > sum(demand.cpu_s.values()) / 2:
            return _explain_small_batches(profile, busy)
        name = max(demand.threads, key=lambda stage: demand.cpu_s[stage])
        why = f"{name} takes most of them"
    return Bottleneck(name, f"{busy}, and no stage is at its limit: {why}.", demand.limit)


def find_fixes(profile: PipelineProfile, bottleneck: Bottleneck) -> tuple[Fix, ...]:
    """Returns the changes that help, best first. Fixes for memory or a late first batch leave the rate as it is."""
    if bottleneck.stage == "accelerator":
        return ()
    now, required = profile.images_per_second, profile.step.required_rate
    early = [*(_free_memory(profile) if bottleneck.stage == "memory" else ()), *_start_sooner(profile)]
    idle_now = profile.step.idle if profile.step.has_steps else None
    urgent = [replace(fix, predicted_images_per_second=now, predicted_idle_fraction=idle_now) for fix in early]
    if profile.step.idle <= NO_IDLE:
        return tuple(urgent)
    fixes = [fix.predict(profile, profile.demand) for fix in propose(profile, bottleneck)]
    # If no step bounds the rate, a fix that removes all measured processor time predicts infinity, and is left out.
    known = [fix for fix in fixes if now * (1 + MIN_GAIN) <= fix.predicted_images_per_second < float("inf")]
    faster = _rank_all(known, now, required)
    return (*urgent, *faster) if bottleneck.stage in ("memory", "first_batch") else (*faster, *urgent)


def _rank_all(fixes: list[Fix], now: float, required: float) -> list[Fix]:
    """Returns fixes, best first, without those that change next to nothing while another fix changes much.

    A rewrite by the user is left out if another fix gives half of its gain. If one closes the gap to the required rate,
    fixes that close less than half of the gap come last; else those of which five, multiplied, gain less than the best.
    """

    def get_best(some: list[Fix]) -> float:
        return max((fix.predicted_images_per_second for fix in some), default=now)

    others = get_best([fix for fix in fixes if fix.effort is not Effort.REWRITE]) - now
    fixes = [f for f in fixes if f.effort is not Effort.REWRITE or others < (f.predicted_images_per_second - now) / 2]
    best = get_best(fixes)
    least = now + min(_HARDLY * now, _HARDLY_BESIDE * (best - now))
    closes = best >= required * (1 - NO_IDLE)
    enough = now + (required - now) / 2 if closes else now * (best / now) ** _LITTLE

    def rank(fix: Fix) -> tuple[bool, int, int, int]:
        rate, effort = fix.predicted_images_per_second, fix.effort
        is_option = effort is Effort.OPTION and not closes  # an option that gains a fifth is not late
        is_late = rate < (min(enough, _MUCH * now) if is_option else enough)
        # Gains are compared in steps of a tenth. Within a step the lower effort comes first.
        gain = round(math.log(rate / now, 1.1))
        if effort is Effort.WASTE and rate >= _MUCH * now:
            return is_late, effort, -gain, effort
        # An option with hardly any gain does not come before new shards with a large one.
        worth = Effort.VISIBLE_OPTION if gain >= 1 else Effort.NEW_SHARDS
        return is_late, max(effort, worth), -gain, effort

    return sorted((fix for fix in fixes if fix.predicted_images_per_second >= least), key=rank)


def _free_memory(profile: PipelineProfile) -> Iterator[Fix]:
    """Yields fixes that free memory, the one that frees most first."""
    for buffer in profile.buffers:
        if buffer.num_bytes <= _WORTH_FREEING * profile.host.memory_limit_bytes:
            continue
        size = human_bytes(buffer.num_bytes)
        if buffer.stage == "prefetch" and buffer.number > _WAITING_BATCHES:
            reason = f"{buffer.number} batches wait for the trainer, {size}: two are enough."
            yield Fix(Effort.OPTION, reason, changes={"prefetch_batches": _WAITING_BATCHES})
        elif buffer.stage == "shuffle":
            reason = f"{size} of records are held to be shuffled: a quarter mixes less, and takes less."
            yield Fix(Effort.OPTION, reason, changes=_shrink_shuffle(profile, _SHUFFLE_SHARE))
        elif buffer.stage == "cache":
            no_cache: dict[str, OptionValue] = {} if profile.config.cache_bytes is None else {"cache_bytes": None}
            in_files = " Or keep it in files: `cache_dir`." if profile.dataset.by_engine else ""
            yield Fix(Effort.OPTION, f"The cache takes {size}.{in_files}", changes={"cache": "none", **no_cache})


def _start_sooner(profile: PipelineProfile) -> Iterator[Fix]:
    """Yields fixes that bring the first batch sooner or make a shuffle smaller, and keep the rate after that."""
    for buffer in profile.buffers:
        if buffer.stage in profile.dataset.own_stages and buffer.num_bytes >= _MUCH_BYTES:
            size, stored = map(human_bytes, (buffer.num_bytes, buffer.number * profile.dataset.record_bytes))
            holds = f"{buffer.stage} holds {buffer.number:,} {buffer.what}, {size}, before the first batch"
            instruction = f"Shuffle records before they are decoded, and not in the stage {buffer.stage}."
            reason = f"{holds}. As records they are {stored}."
            yield Fix(Effort.OPTION, reason, instruction=instruction, action="move_stage", stage=buffer.stage)
    if profile.first_batch_s <= SLOW_FIRST_BATCH_S or not profile.dataset.shuffled_records:
        return
    share = _GOOD_FIRST_BATCH_S / profile.first_batch_s
    less = f"{share:.0%} as much is read before the first batch"
    reason = f"{less}, which then takes about {_GOOD_FIRST_BATCH_S:.0f} s; it mixes less."
    yield Fix(Effort.OPTION, reason, changes=_shrink_shuffle(profile, share))


def _shrink_shuffle(profile: PipelineProfile, share: float) -> Mapping[str, OptionValue]:
    return {"tf_data.shuffle_buffer_size": max(round(profile.dataset.shuffled_records * share), 1)}


def make_report(profile: Profile, price_per_hour: float | None = None) -> Report:
    """Returns the report on a profile of a pipeline or of a loader, with its bottleneck and fixes."""
    price = None if price_per_hour is None else 24 * price_per_hour * profile.step.idle
    if isinstance(profile, LoaderProfile):
        bottleneck = find_loader_bottleneck(profile)
        return Report(profile, bottleneck, list_loader_fixes(profile, bottleneck), price_per_day=price)
    assert isinstance(profile, PipelineProfile)
    bottleneck = find_bottleneck(profile)
    return Report(profile, bottleneck, find_fixes(profile, bottleneck), price_per_day=price)
