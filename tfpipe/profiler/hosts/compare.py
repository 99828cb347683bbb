"""Finds the late hosts of a training, and what all others lose by them. Pure: numbers in, numbers and sentences out.

All hosts of synchronous training begin a step together and end it together. Of a step, the host that gets its batch
last decides when it ends. With w[h, k], the wait of host h in step k:

    the step waits for the last batch     W[k] = max over h of w[h, k]
    host h waits for others               W[k] - w[h, k]
    lost because of the late hosts L      W[k] - max over h not in L of w[h, k]

The sums over steps are taken step by step, since hosts that are late in turns cost more than any of them waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tfpipe.errors import DataError
from tfpipe.profiler.diagnose.bottleneck import NO_IDLE
from tfpipe.profiler.diagnose.service import SATURATED
from tfpipe.profiler.hosts.types import HostCall, HostLine, HostProfile, HostRecord, HostsReport, HostUsage
from tfpipe.system.units import human_share

_CLEARLY_LONGER = 0.25
"""The share of the longest wait by which it must exceed that of the median host, or no host is late."""
_AS_LATE = 0.5
"""The share of this excess from which on another host is late too."""
_WORTH_IT = 1 / 3
"""The share of the wait for the last batch that the late hosts must cause, or they are not the reason."""
_IN_TURNS = 2.0
"""The factor by which the steps wait longer than the latest host, above which hosts are late in turns."""
_OTHERS_TAKE_MUCH = 0.25


def compare_hosts(records: Sequence[HostRecord], profiles: Sequence[HostProfile]) -> HostsReport:
    """Compares the hosts by their records, or without these by their profiles. Profiles name the stages in any case.

    Raises:
        DataError: There are fewer than two hosts of one kind, or the records have no step in common.
    """
    if max(len(records), len(profiles)) < 2:
        raise DataError(
            "A comparison needs the records of at least 2 hosts, or the profiles of 2, got "
            f"{len(records)} and {len(profiles)}."
        )
    report = compare_records(records) if len(records) > 1 else compare_profiles(profiles)
    stages = {profile.index: profile for profile in profiles}
    return replace(report, hosts=tuple(_explain(host, report, stages) for host in report.hosts))


def compare_records(records: Sequence[HostRecord]) -> HostsReport:
    """Compares hosts by the steps that all of them recorded.

    Where steps are dispatched ahead of the device, a host waits while its device still works. Then only the share of
    the waits counts in which the device of the host that waits most was idle.
    """
    calls = [{call.step: call for call in record.calls} for record in records]
    common = sorted(set.intersection(*(set(each) for each in calls)))
    if not common:
        raise DataError("The records of the hosts have no step in common. Name those of one run.")
    # A host that saves or evaluates for longer than another pauses its clock, and the other one's next step is long.
    wall_s = min(sum(each[step].wall_s for step in common) for each in calls) or 1.0
    waits = {record.index: [each[step].wait_s for step in common] for record, each in zip(records, calls, strict=True)}
    lines: list[HostLine] = []
    exposed = 1.0
    for record, each in zip(records, calls, strict=True):
        steps = [each[step] for step in common]
        wait = min(sum(call.wait_s for call in steps) / wall_s, 1.0)
        idle = _estimate_idle(steps, record.compute_s, wait)
        if wait >= max((line.input_wait_fraction for line in lines), default=0.0):
            exposed = idle / wait if wait else 1.0
        rate = sum(call.images for call in steps) / wall_s
        lines.append(HostLine(record.index, record.name, idle, wait, 0.0, rate, record.usage))
    slowest = [max(each) for each in zip(*waits.values(), strict=True)]
    late, in_turns = _find_late({line.index: line.input_wait_fraction for line in lines}, sum(slowest) / wall_s)
    others = [max(each) for each in zip(*(waits[index] for index in waits if index not in late), strict=True)]
    lost = exposed * (sum(slowest) - sum(others)) / wall_s if late else 0.0
    if lost < _WORTH_IT * exposed * sum(slowest) / wall_s:
        late, lost = (), 0.0
    rate = sum(line.images_per_second for line in lines)
    hosts = [
        replace(line, waits_for_others_fraction=max(exposed * (sum(slowest) - sum(waits[line.index])) / wall_s, 0.0))
        for line in lines
    ]
    return HostsReport(
        method="monitor",
        num_hosts=records[0].num_hosts,
        missing=_find_missing(records),
        hosts=tuple(hosts),
        late=late,
        late_in_turns=in_turns,
        slowest_wait_fraction=min(exposed * sum(slowest) / wall_s, 1.0),
        lost_fraction=lost,
        images_per_second=rate,
        images_per_second_without_late=rate / (1 - lost) if lost < 1 else rate,
        steps=sum(calls[0][step].steps for step in common),
    )


def compare_profiles(profiles: Sequence[HostProfile]) -> HostsReport:
    """Compares hosts by the time that each would take for a step if it trained alone. The longest one decides."""
    step_s = {profile.index: profile.images_per_step / (profile.images_per_second or 1e-9) for profile in profiles}
    pace_s = max(step_s.values())
    late, _ = _find_late({profile.index: profile.idle_fraction for profile in profiles}, 0.0)
    without_s = max((seconds for index, seconds in step_s.items() if index not in late), default=pace_s)
    images = sum(profile.images_per_step for profile in profiles)
    hosts = []
    for profile in profiles:
        share = step_s[profile.index] / pace_s  # of the common step, in which this host would need no more
        hosts.append(
            HostLine(
                index=profile.index,
                name="",
                idle_fraction=profile.idle_fraction * share,
                input_wait_fraction=profile.input_wait_fraction * share,
                waits_for_others_fraction=1 - share,
                images_per_second=profile.images_per_step / pace_s,
                usage=profile.usage,
            )
        )
    return HostsReport(
        method="simulated",
        num_hosts=profiles[0].num_hosts,
        missing=_find_missing(profiles),
        hosts=tuple(hosts),
        late=late,
        late_in_turns=False,
        slowest_wait_fraction=max(host.idle_fraction for host in hosts),
        lost_fraction=1 - without_s / pace_s if late else 0.0,
        images_per_second=images / pace_s,
        images_per_second_without_late=images / (without_s if late else pace_s),
        steps=0,
    )


def _estimate_idle(calls: Sequence[HostCall], compute_s: float | None, wait: float) -> float:
    """Returns the share of time in which the device had no batch: the time less the compute, and at most the wait."""
    if compute_s is None:
        return wait
    wall_s, steps = sum(call.wall_s for call in calls), sum(call.steps for call in calls)
    return max(0.0, min(wait, 1.0 - steps * compute_s / wall_s)) if wall_s else 0.0


def _find_late(waits: Mapping[int, float], slowest: float) -> tuple[tuple[int, ...], bool]:
    """Returns the late hosts, the latest first, and whether hosts are late in turns.

    A host is late beside the median host, so at most half of the hosts are.

    Args:
        waits: The share of time in which each host waits for its own batches.
        slowest: The share of time in which the last batch of a step is missing; 0 if that is unknown.
    """
    longest = max(waits.values())
    if max(longest, slowest) <= NO_IDLE:
        return (), False
    if slowest > _IN_TURNS * longest:
        return (), True
    usual = sorted(waits.values())[(len(waits) - 1) // 2]
    excess = longest - usual
    if excess <= max(NO_IDLE, _CLEARLY_LONGER * longest):  # then the pipeline is slow, not a host
        return (), False
    late = [index for index, wait in waits.items() if wait >= usual + _AS_LATE * excess]
    return tuple(sorted(late, key=lambda index: -waits[index])), False


def _find_missing(hosts: Sequence[HostRecord] | Sequence[HostProfile]) -> tuple[int, ...]:
    return tuple(sorted(set(range(hosts[0].num_hosts)) - {host.index for host in hosts}))


def _explain(host: HostLine, report: HostsReport, profiles: Mapping[int, HostProfile]) -> HostLine:
    """Returns a host with what limits it: its profile says the stage, else the use of its cores says what it can."""
    profile = profiles.get(host.index)
    if profile is not None and profile.idle_fraction > NO_IDLE:
        return replace(host, stage=profile.stage, reason=profile.reason, fix=profile.fix)
    if host.index not in report.late:
        return host
    others = [other.usage for other in report.hosts if other.index not in report.late]
    return replace(host, reason=_explain_usage(host.usage, others))


def _explain_usage(usage: HostUsage, others: Sequence[HostUsage]) -> str:
    """Returns what a late host's cores say, beside those of the hosts in time."""
    cores, are = ("1 core", "is") if usage.cores == 1 else (f"{usage.cores} cores", "are")
    if usage.other_cpu_fraction >= _OTHERS_TAKE_MUCH:
        return f"Other processes take {human_share(usage.other_cpu_fraction)} of its {cores}."
    if usage.cpu_fraction + usage.other_cpu_fraction >= SATURATED:
        usual = sorted(other.cores for other in others)[len(others) // 2]
        fewer = f", and the other hosts have {usual}" if usual > usage.cores else ""
        return f"Its {cores} {are} {human_share(usage.cpu_fraction)} busy{fewer}: the processor limits it."
    busy = sorted(other.cpu_fraction for other in others)[len(others) // 2]
    return (
        f"Its {cores} {are} {human_share(usage.cpu_fraction)} busy, those of the others {human_share(busy)}: it waits "
        "for its storage, or for a stage that runs on one core."
    )
