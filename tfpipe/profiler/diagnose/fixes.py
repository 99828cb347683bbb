"""What to change, and what it would give: each measured demand is changed as the fix changes it, and the asymptotic
bounds of `analysis` are asked again. Pure.

A prediction is `efficiency x bound`, where the efficiency is how near this pipeline came to its bound while it was
measured (above 1 where a demand was overestimated), and never more than the accelerator consumes. What is proposed
stands in `less_waiting.py` and `less_work.py`; fixes of memory and of the start, which give no images, here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tfpipe.profiler.diagnose import fixes_cpu, fixes_waiting
from tfpipe.profiler.diagnose.bottleneck import (
    NO_IDLE,
    SLOW_FIRST_BATCH_S,
    Model,
    idle_fraction,
    model_of,
    required_images_per_second,
)
from tfpipe.profiler.diagnose.proposal import AWAKE, AWAKENED, REACHED, Proposal
from tfpipe.profiler.types import Bottleneck, Fix, Profile
from tfpipe.system.units import human_bytes

MIN_GAIN = 0.02
"""A fix that gives less is not worth a line."""
ALLOCATING = 0.16
"""Of the stages' time, and in no stage. What there is beyond it is the same for every image, however large: threads
that wake each other. Both together are 0.14 to 0.19 of the stages' time in exact order, for 0.8 to 7 ms an image, and
0.17 to 0.35 where `order = "throughput"` hands every record over alone (2 cores)."""
_GOOD_FIRST_BATCH_S = 2.0
_WAITING_BATCHES = 2
_MEMORY_SHARE = 0.05


def find_fixes(profile: Profile, bottleneck: Bottleneck) -> tuple[Fix, ...]:
    """What to change, best first: options before new shards before more machines, and of those the greatest gain.

    None where the accelerator is the limit: then no input pipeline makes it faster.
    """
    if bottleneck.stage == "accelerator":
        return ()
    urgent = [*(_less_memory(profile) if bottleneck.stage == "memory" else ()), *_starting_sooner(profile, bottleneck)]
    if idle_fraction(profile.step) <= NO_IDLE:
        return tuple(urgent)
    model, required = model_of(profile), required_images_per_second(profile.step)
    found = []
    for one in (*fixes_waiting.propose(profile, model, bottleneck), *fixes_cpu.propose(profile, model)):
        rate = min(_predicted(profile, model, one), one.most, required)
        if rate >= profile.images_per_second * (1 + MIN_GAIN):
            found.append((one, Fix(dict(one.changes), one.reason, rate, 1 - rate / required, action=one.action)))
    found.sort(key=lambda pair: _rank(pair[0], pair[1], profile.images_per_second))
    fixes = [fix for _, fix in found]
    return tuple([*urgent, *fixes] if bottleneck.stage in ("memory", "first_batch") else [*fixes, *urgent])


def _predicted(profile: Profile, model: Model, proposal: Proposal) -> float:
    changed = _with_less_other(proposal.model, model)
    efficiency = proposal.efficiency or (profile.images_per_second / model.limit if model.limit > 0 else 1.0)
    if changed.limit == changed.cpu_limit and model.limit < model.cpu_limit:
        wall = min(model.threads, key=model.stage_limit, default="")
        waited = model.wait_s.get(wall, 0.0) > model.cpu_s.get(wall, 0.0)
        # How near it came to another bound says nothing of this one.
        efficiency = REACHED / (AWAKENED if waited else AWAKE)
    return efficiency * changed.limit


def _with_less_other(changed: Model, model: Model) -> Model:
    """The changed model, with what no stage accounts for: allocations, in proportion to the work, and handing over."""
    before, after = (sum(one.cpu_s.values()) - one.cpu_s["other"] - one.taking_s for one in (model, changed))
    if before <= 0:
        return changed
    handing = max(model.cpu_s["other"] - ALLOCATING * before, 0.0)
    other = (model.cpu_s["other"] - handing) * after / before + handing
    return replace(changed, cpu_s={**changed.cpu_s, "other": other})


def _rank(proposal: Proposal, fix: Fix, now: float) -> tuple[int, float, int]:
    # What an option gives is compared in steps of a tenth: less than that decides nothing, the effort does.
    gain = round(math.log(max(fix.predicted_images_per_second, 1e-9) / now, 1.1))
    # And an option that gives hardly anything does not stand before new shards that give much.
    return max(proposal.effort, 1 if gain >= 1 else 2), -gain, proposal.effort


def _less_memory(profile: Profile) -> Iterator[Fix]:
    """What holds most, first."""
    rate, idle, config = profile.images_per_second, idle_fraction(profile.step), profile.config
    stages = {stage.name: stage for stage in profile.stages}
    held: list[tuple[float, dict[str, Any], str]] = []
    prefetch = stages.get("prefetch")
    if prefetch is not None and (prefetch.buffer_size or 0) > _WAITING_BATCHES and rate > 0:
        batch = prefetch.bytes_out_per_second / rate * profile.step.images_per_step
        size = (prefetch.buffer_size or 0) * batch
        reason = f"{prefetch.buffer_size} batches wait for the trainer, {human_bytes(size)}: two are enough."
        held.append((size, {"prefetch_batches": _WAITING_BATCHES}, reason))
    if "shuffle" in stages:
        size = profile.dataset.get("shuffled_records", 0) * profile.dataset.get("record_bytes", 0.0)
        reason = f"{human_bytes(size)} of records are held to be shuffled: a quarter mixes less, and takes less."
        held.append((size, _smaller_shuffle(profile, 0.25), reason))
    if config.get("cache", "none") != "none" and config.get("cache_dir") is None:
        size = profile.dataset.get("records") or 0
        height, width = profile.dataset.get("decoded_size") or (0, 0)
        size *= height * width * 3 if config["cache"] == "decoded" else profile.dataset.get("record_bytes", 0.0)
        reason = f"The cache takes {human_bytes(size)}. Or keep it in files: `cache_dir`."
        held.append((size, {"cache": "none"}, reason))
    for size, changes, reason in sorted(held, key=lambda one: -one[0]):
        if size > _MEMORY_SHARE * profile.host.memory_limit_bytes:
            yield Fix(changes, reason, rate, idle)


def _starting_sooner(profile: Profile, bottleneck: Bottleneck) -> Iterator[Fix]:
    """Nothing in steady state, but the first step comes earlier."""
    if profile.first_batch_s <= SLOW_FIRST_BATCH_S or "shuffle" not in [stage.name for stage in profile.stages]:
        return
    share = _GOOD_FIRST_BATCH_S / profile.first_batch_s
    reason = (
        f"{share:.0%} as much is read before the first batch, which took {profile.first_batch_s:.1f} s and then takes "
        f"about {_GOOD_FIRST_BATCH_S:.0f}; it mixes less."
    )
    yield Fix(_smaller_shuffle(profile, share), reason, profile.images_per_second, idle_fraction(profile.step))


def _smaller_shuffle(profile: Profile, share: float) -> dict[str, Any]:
    """The shuffle's buffer, or window, with this share of its records."""
    if profile.dataset.get("exact") is False:
        return {"shuffle_buffer_size": max(round(profile.dataset.get("shuffled_records", 0) * share), 1)}
    window = profile.config.get("window_records", 512) * share
    return {"window_records": 2 ** max(round(math.log2(max(window, 1))), 4)}
