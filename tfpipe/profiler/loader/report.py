"""A report on a loader as text for a screen and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from tfpipe.profiler.loader.diagnose import compute_costs
from tfpipe.profiler.loader.types import ACTIVITIES, LoaderProfile, LoaderReport
from tfpipe.system.units import human_bytes, human_count, human_rate, human_share

VERSION = 1
_MAX_FIXES, _MAX_LINES, _MAX_PROCESSES = 5, 5, 8
_SMALLEST, _NOTABLE_CORES = 0.005, 0.2
_ROWS = {
    **{"functions": "your functions", "waiting": "other waits", "storage": "wait for storage"},
    **{"lock": "wait for the lock", "no core": "wait for a core", "idle": "nothing to do"},
}
_STEPS = {
    "sleeps": "by a plain loop: fetch, then a step that sleeps",
    "trains": "by a plain loop: fetch, then your step, which is waited for",
    "none": "to a loop that only fetches",
}


def to_text(report: LoaderReport) -> str:
    """Returns at most one screen: the wall, the rates, the processes, the lines of code, the fixes."""
    wall = report.wall
    lines = [f"Bottleneck: {wall.kind}{f' ({wall.where})' if wall.where else ''}", wall.reason, ""]
    if report.profile.is_crowded:
        lines[:0] = [_explain_neighbors(report.profile)]
    lines += [*_rate_lines(report), "", *_process_lines(report.profile), *_code_lines(report.profile), ""]
    lines += _fix_lines(report)
    return "\n".join(line.rstrip() for line in lines) + "\n"


def to_json(report: LoaderReport) -> dict[str, Any]:
    """Returns the report as one object of plain values."""
    profile = report.profile
    uses = {use.pid: {**asdict(use), "record_s": None, "files": None} for use in (*profile.workers, profile.main)}
    return {
        "version": VERSION,
        "loader": profile.kind,
        "options": {name: value for name, value in profile.options.items() if _is_plain(value)},
        "bottleneck": asdict(report.wall),
        "needed_images_per_second": profile.batch.images / profile.step_s if profile.step_s else None,
        "images_per_second": profile.given_rate,
        "free_images_per_second": profile.free_rate,
        "idle_fraction": profile.idle_fraction if profile.step_s else None,
        "input_wait_fraction": profile.paced.wait_s / profile.paced.wall_s,
        "step_s": profile.step_s,
        "step": profile.step_method,
        "first_batch_s": profile.first_batch_s,
        "cores": profile.num_cores,
        "others_cores": profile.others_cores,
        "batch": asdict(profile.batch),
        "workers": [uses[use.pid] for use in profile.workers],
        "main": uses[profile.main.pid],
        "costs": asdict(compute_costs(profile)),
        "fixes": [
            {
                **asdict(fix),
                "changes": dict(fix.changes),
                "predicted_gain": None if profile.is_crowded else fix.predicted_gain,
            }
            for fix in report.fixes
        ],
        "price_per_day": report.price_per_day,
    }


def _explain_neighbors(profile: LoaderProfile) -> str:
    cores = human_count(profile.num_cores, "core")
    return (
        f"Busy neighbors: other programs take {profile.others_cores:.1f} of {cores}. End them and run this again: the "
        "figures hold only beside them, and no gain is predicted."
    )


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def _rate_lines(report: LoaderReport) -> Iterator[str]:
    profile, batch = report.profile, report.profile.batch
    given, how = human_rate(profile.given_rate), _STEPS[profile.step_method]
    if profile.step_s:
        wait = human_share(min(profile.paced.wait_s / profile.paced.wall_s, 1.0))
        yield (
            f"needed {human_rate(batch.images / profile.step_s)} images/s, given {given}; idle "
            f"{human_share(profile.idle_fraction)}, input wait {wait}; {how}"
        )
    else:
        yield f"given {given} images/s, {how}"
    options = ", ".join(f"{name}={value!r}" for name, value in profile.options.items() if _is_plain(value))
    yield f"{profile.kind}{f': {options}' if options else ''}"
    shape = f", {batch.dtype} {list(batch.shape)}" if batch.dtype else ""
    others = f", others take {profile.others_cores:.1f}" if profile.others_cores > _NOTABLE_CORES else ""
    yield (
        f"{human_count(batch.images, 'image')} a batch{shape}, {human_bytes(batch.bytes)}; first batch "
        f"{profile.first_batch_s:.1f} s; {human_count(profile.num_cores, 'core')}{others}"
    )
    if report.price_per_day is not None:
        yield f"The idle time costs {report.price_per_day:,.2f} a day."


def _process_lines(profile: LoaderProfile) -> Iterator[str]:
    uses = (*profile.workers[:_MAX_PROCESSES], profile.main)
    names = [*(f"worker {number}" for number in range(len(uses) - 1)), "trainer"]
    yield f"{'share of time':<18}" + "".join(f"{name:>10}" for name in names)
    for name in ACTIVITIES:  # threads of one process share its column
        shares = [use.time_share(name) for use in uses]
        if max(shares) >= _SMALLEST:
            cells = (human_share(share) if share >= _SMALLEST else "" for share in shares)
            yield f"{_ROWS.get(name, name):<18}" + "".join(f"{cell:>10}" for cell in cells)
    if len(profile.workers) > _MAX_PROCESSES:
        yield f"{len(profile.workers) - _MAX_PROCESSES} more workers with --json."


def _code_lines(profile: LoaderProfile) -> Iterator[str]:
    totals: dict[tuple[str, str], float] = {}
    for place, activity, seconds in (
        (place, activity, use.time_scale * seconds)
        for use in profile.makers
        for place, activity, seconds in use.functions
    ):
        totals[place, activity] = totals.get((place, activity), 0.0) + seconds
    every_s = sum(use.wall_s for use in profile.makers) or 1.0
    if totals:
        yield ""
        yield "Your code, with its waits for a core or the lock:"
    for place, activity in sorted(totals, key=lambda key: -totals[key])[:_MAX_LINES]:
        what = "" if activity == "functions" else f": {_ROWS.get(activity, activity)}"
        yield f"{human_share(totals[place, activity] / every_s):>10}  {place}{what}"


def _fix_lines(report: LoaderReport) -> Iterator[str]:
    for number, fix in enumerate(report.fixes[:_MAX_FIXES], 1):
        yield f"{number}. {fix.name}"
        line = f"   {fix.reason}"
        if fix.predicted_gain > 1 and not report.profile.is_crowded:
            rate = human_rate(report.profile.given_rate * fix.predicted_gain)
            line = f"   x {fix.predicted_gain:.2f} predicted, {rate} images/s. {fix.reason}"
        if fix.measured_gain is not None:
            line += f" Measured x {fix.measured_gain:.2f}: {'kept' if fix.kept else 'not kept'}."
        yield line
    if len(report.fixes) > _MAX_FIXES:
        yield f"{len(report.fixes) - _MAX_FIXES} more with --json."
    if not report.fixes and report.wall.kind != "accelerator":
        yield "No fix here would help."
