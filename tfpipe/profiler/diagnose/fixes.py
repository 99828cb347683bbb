"""From a bottleneck to the changes that help, and the rate that each would give. Pure.

`predict` says how a prediction is made. None exceeds what the accelerator consumes.

The proposals that raise the rate stand in `fixes_waiting`, `fixes_cpu` and `fixes_data`. Fixes of memory and of the
start, which do not raise it, stand here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from tfpipe.profiler.diagnose import fixes_cpu, fixes_data, fixes_own, fixes_waiting
from tfpipe.profiler.diagnose.bottleneck import (
    NO_IDLE,
    SLOW_FIRST_BATCH_S,
    compute_idle_fraction,
    compute_required_rate,
)
from tfpipe.profiler.diagnose.predict import predict_rate
from tfpipe.profiler.diagnose.service import list_service_fixes
from tfpipe.profiler.types import Bottleneck, Effort, Fix, OptionValue, Profile, ProposedFix, ServiceDemand
from tfpipe.system.units import human_bytes

MIN_GAIN = 0.02
"""The gain below which a change is not worth its line in a report, nor its place in a config."""
_HARDLY, _HARDLY_BESIDE = 0.05, 0.1
"""The gain, and the share of the greatest gain of all fixes, below which both a fix changes next to nothing."""
_LITTLE = 1 / 5
"""The power of the best fix's factor below which a fix stands behind the others: five like it would not reach it."""
_MUCH_WASTE = 1.2
"""The factor from which on it is worth more to leave out work for nothing than to make it cheaper."""
_GOOD_FIRST_BATCH_S = 2.0
_WAITING_BATCHES = 2
_SHUFFLE_SHARE = 0.25
"""The share of a shuffle that is left if it takes too much memory."""
_MUCH_BYTES = 100e6
"""The bytes from which on a stage of the user's own that shuffles should shuffle records instead."""
_WORTH_FREEING = 0.05
"""The share of the memory above which a fix that frees a part of it is worth its line."""


_Ranked = tuple[Fix, ProposedFix | None]
"""A fix, and the proposal that it was predicted from."""


def find_fixes(profile: Profile, demand: ServiceDemand, bottleneck: Bottleneck) -> tuple[Fix, ...]:
    """Returns the changes that help, best first. The arguments are those of `rank_fixes`."""
    return tuple(fix for fix, _ in rank_fixes(profile, demand, bottleneck))


def rank_fixes(profile: Profile, demand: ServiceDemand, bottleneck: Bottleneck) -> list[_Ranked]:
    """Returns the changes that help, best first, each with the proposal that it was predicted from.

    Work for nothing that is left out comes before work that is made cheaper, options before new shards, and new shards
    before more machines; among equals the greatest gain comes first.
    There is none if the accelerator is the bottleneck, since no input pipeline makes it faster. Fixes of memory, of the
    start and of a service have no proposal.

    Args:
        profile: The measured figures.
        demand: The profile's demand, from `compute_demand`.
        bottleneck: The profile's bottleneck, from `find_bottleneck`.
    """
    if bottleneck.stage == "accelerator":
        return []
    early = [*(_free_memory(profile) if bottleneck.stage == "memory" else ()), *_start_sooner(profile)]
    urgent: list[_Ranked] = [(fix, None) for fix in early]
    if compute_idle_fraction(profile.step) <= NO_IDLE:
        return urgent
    now, required = profile.images_per_second, compute_required_rate(profile.step)
    if profile.service is not None:  # the stages run elsewhere
        return [*urgent, *((fix, None) for fix in list_service_fixes(profile, required))]
    ranked: list[tuple[tuple[int, float, int], Fix, ProposedFix]] = []
    proposals = (
        *fixes_waiting.propose(profile, demand, bottleneck),
        *fixes_own.propose(profile, demand, bottleneck),
        *fixes_cpu.propose(profile, demand),
        *fixes_data.propose(profile, demand),
    )
    for proposal in proposals:
        rate = min(predict_rate(now, demand, proposal), required)
        if rate >= now * (1 + MIN_GAIN):
            fix = Fix(
                dict(proposal.changes),
                proposal.reason,
                rate,
                1 - rate / required,
                instruction=proposal.instruction,
                action=proposal.action,
                stage=proposal.stage,
                keeps_values=proposal.keeps_values,
                effort=proposal.effort,
            )
            ranked.append((_rank(proposal.effort, rate / now), fix, proposal))
    ranked.sort(key=lambda row: row[0])
    pairs: list[_Ranked] = _leave_out_work([(fix, proposal) for _, fix, proposal in ranked], now)
    faster = _put_closers_first(_leave_out_trifles(pairs, now), now, required)
    return [*urgent, *faster] if bottleneck.stage in ("memory", "first_batch") else [*faster, *urgent]


def _leave_out_trifles(ranked: list[_Ranked], now: float) -> list[_Ranked]:
    """Leaves out what changes next to nothing while another fix of this host changes much."""
    rates = [fix.predicted_images_per_second for fix, _ in ranked if fix.action != "add_machines"]
    least = now + min(_HARDLY * now, _HARDLY_BESIDE * (max(rates, default=now) - now))
    return [pair for pair in ranked if pair[0].predicted_images_per_second >= least]


def _leave_out_work(ranked: list[_Ranked], now: float) -> list[_Ranked]:
    """Leaves out a stage to be made cheaper by the user, if another fix of this host gives half of the gain or more."""

    def is_work(proposal: ProposedFix | None) -> bool:
        return proposal is not None and proposal.effort is Effort.REWRITE

    others = [
        fix.predicted_images_per_second - now
        for fix, proposal in ranked
        if not is_work(proposal) and fix.action != "add_machines"
    ]
    most = max(others, default=0.0)
    return [
        (fix, proposal)
        for fix, proposal in ranked
        if not is_work(proposal) or most < (fix.predicted_images_per_second - now) / 2
    ]


def _put_closers_first(ranked: list[_Ranked], now: float, required: float) -> list[_Ranked]:
    """Puts fixes that give little behind those that give much; else the order stays.

    Little is less than half of the gap where a fix of this host closes it. Else it is what five times over, as gains
    multiply, gives less than the best fix of this host. More machines are no reason to leave out what this one can do.
    """
    here = [fix for fix, _ in ranked if fix.action != "add_machines"]
    if any(fix.predicted_idle_fraction <= NO_IDLE for fix in here):
        least = now + (required - now) / 2
        return sorted(ranked, key=lambda pair: pair[0].predicted_images_per_second < least)
    best = max((fix.predicted_images_per_second for fix in here), default=now)
    least = now * (best / now) ** _LITTLE if now else 0.0

    def place(pair: _Ranked) -> int:
        if pair[0].action == "add_machines":
            return 2
        return int(pair[0].predicted_images_per_second < least)

    return sorted(ranked, key=place)


def _rank(effort: Effort, factor: float) -> tuple[int, float, int]:
    """Returns the key that sorts fixes, best first; `factor` is the predicted rate by the measured one."""
    # Gains are compared in steps of a tenth: less than that decides nothing, the effort does.
    gain = round(math.log(max(factor, 1e-9), 1.1))
    if effort is Effort.WASTE and factor >= _MUCH_WASTE:
        return effort, -gain, effort
    # An option that gives hardly anything does not stand before new shards that give much.
    worth = Effort.VISIBLE_OPTION if gain >= 1 else Effort.NEW_SHARDS
    return max(effort, worth), -gain, effort


def _free_memory(profile: Profile) -> Iterator[Fix]:
    """Yields fixes that free memory, the one that frees most first."""
    config, rate, idle = profile.config, profile.images_per_second, compute_idle_fraction(profile.step)
    for held in profile.held:
        if held.num_bytes <= _WORTH_FREEING * profile.host.memory_limit_bytes:
            continue
        size = human_bytes(held.num_bytes)
        if held.stage == "prefetch" and held.number > _WAITING_BATCHES:
            reason = f"{held.number} batches wait for the trainer, {size}: two are enough."
            yield Fix({"prefetch_batches": _WAITING_BATCHES}, reason, rate, idle)
        elif held.stage == "shuffle":
            reason = f"{size} of records are held to be shuffled: a quarter mixes less, and takes less."
            yield Fix(_shrink_shuffle(profile, _SHUFFLE_SHARE), reason, rate, idle)
        elif held.stage == "cache":
            no_cache: dict[str, OptionValue] = {"cache": "none"}
            if config.cache_bytes is not None:
                no_cache["cache_bytes"] = None
            in_files = " Or keep it in files: `cache_dir`." if profile.dataset.by_engine else ""
            yield Fix(no_cache, f"The cache takes {size}.{in_files}", rate, idle)


def _start_sooner(profile: Profile) -> Iterator[Fix]:
    """Yields the fixes that make the first step come earlier, or a shuffle smaller, and leave the steady state."""
    idle, rate = compute_idle_fraction(profile.step), profile.images_per_second
    for held in profile.held:
        if held.stage in profile.dataset.own_stages and held.num_bytes >= _MUCH_BYTES:
            reason = (
                f"{held.stage} holds {held.number:,} {held.what}, {human_bytes(held.num_bytes)}, and takes about "
                f"{held.fill_s:.1f} s of the {profile.first_batch_s:.1f} s until the first batch. As records they are "
                f"{human_bytes(held.number * profile.dataset.record_bytes)}."
            )
            instruction = f"Shuffle records before they are decoded, and not in the stage {held.stage}."
            yield Fix({}, reason, rate, idle, instruction=instruction, action="move_stage", stage=held.stage)
    if profile.first_batch_s <= SLOW_FIRST_BATCH_S or not profile.dataset.shuffled_records:
        return
    share = _GOOD_FIRST_BATCH_S / profile.first_batch_s
    reason = (
        f"{share:.0%} as much is read before the first batch, which took {profile.first_batch_s:.1f} s and then takes "
        f"about {_GOOD_FIRST_BATCH_S:.0f}; it mixes less."
    )
    yield Fix(_shrink_shuffle(profile, share), reason, rate, idle)


def _shrink_shuffle(profile: Profile, share: float) -> Mapping[str, OptionValue]:
    """Returns the change that leaves this share of the shuffle buffer."""
    return {"tf_data.shuffle_buffer_size": max(round(profile.dataset.shuffled_records * share), 1)}
