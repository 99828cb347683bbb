"""The report of several hosts as text and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from tfpipe.profiler.diagnose.bottleneck import NO_IDLE
from tfpipe.profiler.hosts.types import HostLine, HostsReport
from tfpipe.system.units import human_rate, human_share

VERSION = 1
_SHOWN_NAME = 20


def format_verdict(report: HostsReport) -> str:
    """Returns the answer in a sentence or two."""
    slowest = human_share(report.slowest_wait_fraction)
    if report.late:
        hosts = _name_hosts(report.late)
        late = "is late" if len(report.late) == 1 else "are late"
        stages = {host.stage for host in report.hosts if host.index in report.late}
        stage = stages.pop() if len(stages) == 1 else None
        where = f" at {stage}" if stage else ""
        return (
            f"{hosts} {late}{where}: all others wait for {'it' if len(report.late) == 1 else 'them'} "
            f"{human_share(report.lost_fraction)} of the time. All hosts together train on "
            f"{human_rate(report.images_per_second)} images/s; without that wait it would be up to "
            f"{human_rate(report.images_per_second_without_late)}."
        )
    if report.late_in_turns:
        return (
            f"Hosts are late in turns: each waits little, and yet the last batch of a step is missing {slowest} of the "
            "time. Larger buffers even that out: raise `prefetch_batches`."
        )
    if report.slowest_wait_fraction > NO_IDLE:
        return (
            f"Most hosts wait alike, up to {slowest} of the time: the pipeline is slow, not a host. `tfpipe profile` "
            "on one of them says why."
        )
    return "No host waits for its batches: no input pipeline makes this training faster."


def to_text(report: HostsReport) -> str:
    """Returns the verdict, a line for each host, and what limits the hosts that wait."""
    lines = [format_verdict(report), "", *_table(report), *_explanations(report)]
    if report.missing:
        missing = ", ".join(map(str, report.missing))
        lines += ["", f"{len(report.hosts)} of {report.num_hosts} hosts were compared; nothing is known of {missing}."]
    lines += ["", describe_source(report)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def to_json(report: HostsReport) -> dict[str, Any]:
    """Returns the report as one object of plain values."""
    return {"version": VERSION, "verdict": format_verdict(report), **asdict(report)}


def find_largest_idle(report: HostsReport) -> float:
    """Returns the share of time in which the accelerators wait, for a host's own batches or for those of others."""
    return max(host.idle_fraction + host.waits_for_others_fraction for host in report.hosts)


def _name_hosts(indices: tuple[int, ...]) -> str:
    if len(indices) == 1:
        return f"Host {indices[0]}"
    return f"Hosts {', '.join(map(str, indices[:-1]))} and {indices[-1]}"


def _table(report: HostsReport) -> Iterator[str]:
    width = min(max([4, *(len(host.name) for host in report.hosts)]), _SHOWN_NAME)
    yield (
        f"{'host':>4}  {'name':<{width}}{'idle':>11}{'input wait':>12}{'for others':>12}{'images/s':>10}"
        f"{'cores busy':>14}  slow stage"
    )
    for host in report.hosts:
        shares = (host.idle_fraction, host.input_wait_fraction, host.waits_for_others_fraction)
        idle, wait, others = map(human_share, shares)
        busy = f"{human_share(host.usage.cpu_fraction)} of {host.usage.cores}"
        late = "  late" if host.index in report.late else ""
        yield (
            f"{host.index:>4}  {host.name[:width]:<{width}}{idle:>11}{wait:>12}{others:>12}"
            f"{human_rate(host.images_per_second):>10}{busy:>14}  {host.stage or '-'}{late}"
        )


def list_explained(report: HostsReport) -> list[HostLine]:
    """Returns the hosts to explain: the late ones, or without these the one that waits most."""
    shown = [host for host in report.hosts if host.index in report.late]
    if not shown and report.slowest_wait_fraction > NO_IDLE and not report.late_in_turns:
        shown = [max(report.hosts, key=lambda host: host.idle_fraction)]
    return [host for host in shown if host.reason]


def advise(host: HostLine, report: HostsReport) -> str:
    """Returns what to do about a host that waits; empty if nothing is known."""
    if host.fix is not None:
        return host.fix.text
    if host.stage is not None:
        return ""
    return (
        f"To see the stage, run on it: tfpipe profile DATASET --step-ms MS --host {host.index}/{report.num_hosts} "
        f"--json > profile-{host.index}.json. Then name that file with --hosts too."
    )


def describe_source(report: HostsReport) -> str:
    """Returns a sentence about how the hosts were compared."""
    if report.method == "simulated":
        return (
            "Compared by the profile of each host. What each would wait for the others follows from the time that "
            "each needs for a step alone."
        )
    return f"Compared by {report.steps:,} steps that all of them made together."


def _explanations(report: HostsReport) -> Iterator[str]:
    for host in list_explained(report):
        yield ""
        yield f"Host {host.index}: {host.reason}"
        if advice := advise(host, report):
            yield f"   {advice}"
        if host.fix is not None:
            yield f"   {human_rate(host.fix.images_per_second)} images/s predicted on this host. {host.fix.reason}"
