"""Finds the station that limits the rate: the cores, a stage's threads, the storage, a service. Pure."""

from __future__ import annotations

import math

from tfpipe.profiler.types import Bottleneck, HostUse, PipelineProfile
from tfpipe.system.units import human_bytes, human_rate

SATURATED = 0.85  # of a resource's time, from which on it is the bottleneck: work queues behind one that is as busy
NO_IDLE = 0.01  # the idle share up to which an accelerator counts as busy: measurements are right to within a point
SLOW_FIRST_BATCH_S = 5.0
_FULL_MEMORY = 0.9
_PART = 0.5  # the share of its own limit that a stage must give at least, if it allows clearly less than the cores
REACHED = 0.7  # of a stage's own limit, measured alone: less than `SATURATED`, since it also hands elements over


def count_needed_workers(profile: PipelineProfile) -> int:
    """Returns how many workers like those of its service the accelerator of a profile needs."""
    now = len(profile.config.service.workers)
    if not profile.step.has_steps:
        return now
    return max(math.ceil(now * profile.step.required_rate / profile.images_per_second), 1)


def _find_service_bottleneck(profile: PipelineProfile) -> Bottleneck:
    """Returns what limits the batches of a service: this host's cores, or its workers and the network to them."""
    rate, host, count = profile.images_per_second, profile.host, len(profile.config.service.workers)
    if host.cpu_fraction >= host.other_cpu_fraction and host.cpu_fraction + host.other_cpu_fraction >= SATURATED:
        reason = f"This host's {host.cores} cores are {host.cpu_fraction:.0%} busy with taking batches."
        return Bottleneck("cpu", reason, rate / host.cpu_fraction)
    reason = f"{'The worker gives' if count == 1 else f'The {count} workers give'} {human_rate(rate)} images/s"
    if profile.step.has_steps:
        required = human_rate(profile.step.required_rate)
        reason += f", and the accelerator needs {required}: it takes {count_needed_workers(profile)} like them"
    return Bottleneck("service", f"{reason}.", rate)


def find_bottleneck(profile: PipelineProfile) -> Bottleneck:
    """Returns the station that limits the rate, with the numbers that prove it."""
    urgent = _check_memory(profile) or _check_first_batch(profile)
    if urgent is not None:
        return urgent
    if profile.step.idle <= NO_IDLE:
        return _accelerator(profile)
    if profile.config.service.workers:
        return _find_service_bottleneck(profile)
    return (
        _check_storage(profile)
        or _check_slowest(profile)
        or _check_cores(profile)
        or _check_threads(profile)
        or _unbuffered_stage(profile)
    )


def _check_memory(profile: PipelineProfile) -> Bottleneck | None:
    """Checks the memory, which comes before all else: a run that is killed has no rate."""
    host = profile.host
    share = host.peak_memory_bytes / host.memory_limit_bytes
    if share <= _FULL_MEMORY:
        return None
    reason = f"{share:.0%} of the memory is taken, {human_bytes(host.peak_memory_bytes)}: a little more ends the run."
    return Bottleneck("memory", reason, profile.images_per_second)


def _check_first_batch(profile: PipelineProfile) -> Bottleneck | None:
    """Checks whether more time is lost before the first step than in an epoch of steps."""
    first_s, idle = profile.first_batch_s, profile.step.idle
    epoch_s = (profile.dataset.records or 0) / profile.images_per_second
    if first_s <= SLOW_FIRST_BATCH_S or (idle > NO_IDLE and first_s <= idle * epoch_s):
        return None
    lost = f"the accelerator is idle for {idle * epoch_s:.1f} s of an epoch"
    if not profile.step.has_steps:
        lost = f"a whole epoch {epoch_s:.1f} s"
    elif idle <= NO_IDLE:
        lost = "the accelerator never waits after that"
    reason = f"The first batch took {first_s:.1f} s, and {lost}."
    return Bottleneck("first_batch", reason, profile.step.required_rate)


def _accelerator(profile: PipelineProfile) -> Bottleneck:
    reason = (
        f"The accelerator is never idle: a step takes {profile.step.step_s.median * 1e3:,.1f} ms, and its batch is "
        "there before. Only a faster step makes this training faster."
    )
    return Bottleneck("accelerator", reason, profile.step.required_rate)


def _check_storage(profile: PipelineProfile) -> Bottleneck | None:
    rate, limit = profile.images_per_second, profile.demand.storage_limit
    if limit is None or rate < SATURATED * limit:
        return None
    read_mb, limit_mb = (
        (num_bytes or 0.0) / 1e6
        for num_bytes in (profile.host.storage_bytes_per_second, profile.host.storage_limit_bytes_per_second)
    )
    reason = f"The storage gives {read_mb:,.0f} MB/s of the {limit_mb:,.0f} MB/s that it can."
    return Bottleneck("storage", reason, limit)


def _check_slowest(profile: PipelineProfile) -> Bottleneck | None:
    """Checks for a stage that allows clearly less than the cores do, or a lock that is held nearly all the time."""
    demand = profile.demand
    name, limit = demand.slowest, demand.get_stage_limit(demand.slowest)
    if profile.images_per_second < _PART * limit:
        return None
    at_lock = name in demand.lock_bound and profile.images_per_second >= SATURATED * limit
    if not at_lock and limit > REACHED * demand.cpu_limit:
        return None
    return _explain_lock(profile, name) if name in demand.lock_bound else _check_threads(profile, _PART)


def _explain_lock(profile: PipelineProfile, name: str) -> Bottleneck:
    """Returns a stage of which a lock lets one call run at a time."""
    rate = profile.images_per_second
    stage = next(stage for stage in profile.stages if stage.name == name)
    limit = profile.demand.get_stage_limit(name)
    share = min(rate / limit, 1.0)
    if stage.waits:
        what = f"{name} waits behind a lock of its own that one call holds at a time"
    elif stage.holds_python_lock:
        what = f"{name} is a Python function that holds Python's lock"
    else:
        what = f"{name} computes behind a lock that one call holds at a time"
    reason = (
        f"{what}: {1e6 / limit:,.0f} µs for each image, {share:.0%} of the time. So it gives {limit:,.0f} images/s "
        "with any number of threads, as a run with 1 and with 2 showed."
    )
    return Bottleneck(name, reason, limit)


def _check_cores(profile: PipelineProfile) -> Bottleneck | None:
    demand = profile.demand
    host = profile.host
    has_no_core = host.cpu_fraction + host.other_cpu_fraction >= SATURATED
    if not has_no_core and (host.budget_cores is None or host.budget_fraction < SATURATED):
        return None
    if host.other_cpu_fraction > host.cpu_fraction:
        reason = (
            f"Other processes take {host.other_cpu_fraction:.0%} of the {host.cores} cores, this pipeline "
            f"{host.cpu_fraction:.0%}."
        )
        return Bottleneck("cpu", reason, demand.cpu_limit)
    stages = {name: seconds for name, seconds in demand.cpu_s.items() if name != "other"}
    if has_no_core:
        cores = "The core is" if host.cores == 1 else f"The {host.cores} cores are"
        busy = f"{cores} {_describe_busy(host)}"
    else:
        busy = f"The pipeline takes the {host.budget_cores} of {host.cores} cores that cpu_budget leaves it"
    if not stages:
        return Bottleneck("cpu", f"{busy}.", demand.cpu_limit)
    total_s = sum(demand.cpu_s.values())
    if profile.hands_over_mostly:
        return _explain_small_batches(profile, busy)
    name = max(stages, key=lambda stage: stages[stage])
    share = stages[name] / total_s
    reason = f"{_join(busy, host, share, name)}: {stages[name] * 1e6:,.0f} µs of a core for each image."
    return Bottleneck(name, reason, demand.cpu_limit)


def _describe_busy(host: HostUse) -> str:
    """Returns how busy the cores are: with this pipeline, unless others are named."""
    others = f" with this pipeline and {host.other_cpu_fraction:.0%} with other programs" if host.is_crowded else ""
    return f"{host.cpu_fraction:.0%} busy{others}"


def _join(busy: str, host: HostUse, share: float, what: str) -> str:
    work = f"; {share:.0%} of this pipeline's work is {what}" if host.is_crowded else f", {share:.0%} of it in {what}"
    return f"{busy}{work}"


def _explain_small_batches(profile: PipelineProfile, busy: str) -> Bottleneck:
    demand = profile.demand
    other_s, images = demand.cpu_s["other"], profile.step.images_per_step
    share = other_s / sum(demand.cpu_s.values())
    reason = (
        f"{_join(busy, profile.host, share, 'handing over batches')}: "
        f"{1e6 * other_s * images:,.0f} µs of a core for each batch of {images}."
    )
    return Bottleneck("batch", reason, demand.cpu_limit)


def _check_threads(profile: PipelineProfile, reached: float = REACHED) -> Bottleneck | None:
    """Checks for a stage that gives most of what it can, by the utilization law."""
    demand = profile.demand
    name, limit = demand.slowest, demand.get_stage_limit(demand.slowest)
    if profile.images_per_second < reached * limit:
        return None
    if name in demand.lock_bound:
        return _explain_lock(profile, name)
    threads, (cpu_s, wait_s) = demand.threads[name], demand.get_service_s(name)
    service_s = cpu_s + wait_s
    awaited = "for storage" if name == "read" else "for something else"
    waiting = f", {wait_s / service_s:.0%} of it waiting {awaited}" if wait_s > 0.1 * service_s else ""
    before = ", ".join(demand.passes.get(name, ()))
    takes = f"{before} and {name} take" if before else f"{name} takes"
    reason = (
        f"{takes} {service_s * 1e6:,.0f} µs for each image{waiting}, and {threads:,.0f} of its calls "
        f"{'work' if threads > 1 else 'works'} at once: {limit:,.0f} images/s, while the cores are "
        f"{_describe_busy(profile.host)}."
    )
    return Bottleneck(name, reason, limit)


def _unbuffered_stage(profile: PipelineProfile) -> Bottleneck:
    """Returns the stage that the others wait for if no station is at its limit: a buffer is missing."""
    demand = profile.demand
    config = profile.config
    limit = demand.get_stage_limit(demand.slowest)
    busy = f"The cores are {_describe_busy(profile.host)}"
    if profile.hands_over_mostly:
        return _explain_small_batches(profile, busy)
    if (config.prefetch_batches == 0 and not config.tf_data.inject_prefetch) or not demand.threads:
        name, why = "prefetch", "no batch is made while the accelerator works"
    else:
        name = demand.slowest
        why = f"{name} is nearest, {profile.images_per_second / limit:.0%} of what it can give"
        if profile.images_per_second / limit < profile.host.cpu_fraction:  # the cores are nearer
            if demand.cpu_s["other"] > sum(demand.cpu_s.values()) / 2:
                return _explain_small_batches(profile, busy)
            name = max(demand.threads, key=lambda stage: demand.cpu_s[stage])
            why = f"{name} takes most of them"
    return Bottleneck(name, f"{busy}, and no stage is at its limit: {why}.", demand.limit)
