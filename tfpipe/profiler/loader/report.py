"""A report on a loader as text for a screen and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from tfpipe.profiler.loader.model import compute_costs
from tfpipe.profiler.loader.trials import name_changes
from tfpipe.profiler.loader.types import ACTIVITIES, LoaderFix, LoaderProfile, LoaderReport, ProcessUse
from tfpipe.system.units import human_bytes, human_count, human_rate, human_share

VERSION = 1
_MAX_FIXES, _MAX_LINES, _MAX_PROCESSES = 5, 5, 8
_SMALLEST = 0.005
_ROWS = {
    "functions": "your functions",
    "storage": "wait for storage",
    "lock": "wait for the lock",
    "no core": "wait for a core",
    "waiting": "other waits",
    "idle": "nothing to do",
}
_STEPS = {
    "sleeps": "a plain loop: fetch, then a step that sleeps",
    "trains": "a plain loop: fetch, then your step, which is waited for",
    "none": "a loop that only fetches",
}


def to_text(report: LoaderReport) -> str:
    """Returns at most one screen: the wall, the rates, the processes, the lines of code, the fixes."""
    profile = report.profile
    lines = [f"Bottleneck: {name_wall(report)}", report.wall.reason, ""]
    lines += [*_rate_lines(report), "", *_process_lines(profile), "", *_code_lines(profile), *_fix_lines(report)]
    shards = report.shards
    if shards.why_not:
        lines.append(f"As tfpipe shards: not measured, because {shards.why_not}")
    else:
        lines.append(
            f"As tfpipe shards: {shards.gain:.1f} times, measured on {human_count(shards.images, 'image')}: "
            f"{human_rate(shards.rate)} images/s of random crops, this loader gives {human_rate(profile.free_rate)} "
            f"without a step."
        )
    return "\n".join(line.rstrip() for line in lines) + "\n"


def name_wall(report: LoaderReport) -> str:
    """Returns the wall and its place."""
    wall = report.wall
    return f"{wall.kind} ({wall.where})" if wall.where else wall.kind


def to_json(report: LoaderReport) -> dict[str, Any]:
    """Returns the report as one object of plain values."""
    profile = report.profile
    return {
        "version": VERSION,
        "loader": profile.kind,
        "options": {name: value for name, value in profile.options.items() if _is_plain(value)},
        "bottleneck": asdict(report.wall),
        "needed_images_per_second": profile.needed_rate if profile.step_s else None,
        "images_per_second": profile.given_rate,
        "free_images_per_second": profile.free_rate,
        "idle_fraction": profile.idle_fraction if profile.step_s else None,
        "input_wait_fraction": profile.input_wait_fraction,
        "step_s": profile.step_s,
        "step": profile.step_method,
        "first_batch_s": profile.first_batch_s,
        "batch": asdict(profile.batch),
        "workers": [_process_to_json(use) for use in profile.workers],
        "main": _process_to_json(profile.main),
        "costs": asdict(compute_costs(profile)),
        "fixes": [{**asdict(fix), "changes": dict(fix.changes)} for fix in report.fixes],
        "shards": asdict(report.shards),
        "price_per_day": report.price_per_day,
    }


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def _process_to_json(use: ProcessUse) -> dict[str, Any]:
    return {
        **{name: value for name, value in asdict(use).items() if name not in ("record_s", "files")},
        "records": len(use.record_s),
        "shares": _get_shares(use),
    }


def _rate_lines(report: LoaderReport) -> Iterator[str]:
    profile, batch = report.profile, report.profile.batch
    given = human_rate(profile.given_rate)
    if profile.step_s:
        yield (
            f"needed {human_rate(profile.needed_rate)} images/s, given {given}; idle "
            f"{human_share(profile.idle_fraction)}, input wait {human_share(profile.input_wait_fraction)}; by "
            f"{_STEPS[profile.step_method]}"
        )
    else:
        yield f"given {given} images/s, to {_STEPS[profile.step_method]}"
    shape = f", {batch.dtype} {list(batch.shape)}" if batch.dtype else ""
    options = name_changes({name: value for name, value in profile.options.items() if _is_plain(value)})
    yield f"{profile.kind}: {options or 'no options that are known'}"
    cores = f"{human_count(profile.num_cores, 'core')} that now do the work of {profile.cores:.1f}"
    yield (
        f"{human_count(batch.images, 'image')} a batch{shape}, {human_bytes(batch.bytes)}; first batch "
        f"{profile.first_batch_s:.1f} s; {cores}"
    )
    if report.price_per_day is not None:
        yield f"The idle time costs {report.price_per_day:,.2f} a day."


def _process_lines(profile: LoaderProfile) -> Iterator[str]:
    """Yields a row for each activity with a column for each process."""
    workers = profile.workers[:_MAX_PROCESSES]
    columns = [_get_shares(use) for use in (*workers, profile.main)]
    names = [*(f"worker {number}" for number in range(len(workers))), "trainer"]
    yield f"{'share of time':<18}" + "".join(f"{name:>10}" for name in names)
    for name in columns[0]:
        if any(shares[name] >= _SMALLEST for shares in columns):
            cells = [human_share(shares[name]) if shares[name] >= _SMALLEST else "" for shares in columns]
            yield f"{_ROWS.get(name, name):<18}" + "".join(f"{cell:>10}" for cell in cells)
    if len(profile.workers) > _MAX_PROCESSES:
        yield f"{len(profile.workers) - _MAX_PROCESSES} more workers with --json."


def _get_shares(use: ProcessUse) -> dict[str, float]:
    """Returns the shares of the wall time: waiting for the lock or for a core is taken out of what it interrupts."""
    working_s = sum(seconds for name, seconds in use.seconds.items() if name != "waiting")
    lost_s = min(use.lock_s + use.delay_s, working_s)
    left = 1 - lost_s / working_s if working_s else 1.0
    scale = lost_s / max(use.lock_s + use.delay_s, 1e-9)
    shares = {
        name: use.seconds.get(name, 0.0) * (1.0 if name == "waiting" else left) / use.wall_s for name in ACTIVITIES
    }
    return {
        **{str(name): share for name, share in shares.items()},
        "storage": use.storage_s / use.wall_s,
        "lock": use.lock_s * scale / use.wall_s,
        "no core": use.delay_s * scale / use.wall_s,
        "idle": use.idle_s / use.wall_s,
    }


def _code_lines(profile: LoaderProfile) -> Iterator[str]:
    totals: dict[tuple[str, str], float] = {}
    makers = profile.workers or (profile.main,)
    for use in makers:
        for one in use.functions:
            if one.place:
                totals[one.place, one.activity] = totals.get((one.place, one.activity), 0.0) + one.seconds
    all_s = sum(use.thread_s for use in makers) or 1.0
    if not totals:
        return
    yield "Your code:"
    for place, activity in sorted(totals, key=lambda key: -totals[key])[:_MAX_LINES]:
        yield f"{human_share(totals[place, activity] / all_s):>6}  {place}  {activity}"
    yield ""


def _fix_lines(report: LoaderReport) -> Iterator[str]:
    for number, fix in enumerate(report.fixes[:_MAX_FIXES], 1):
        yield f"{number}. {name_fix(fix)}"
        line = f"   x {fix.predicted_gain:.2f} predicted, {human_rate(fix.predicted_rate)} images/s. {fix.reason}"
        if fix.measured_gain is not None:
            line += f" Measured x {fix.measured_gain:.2f}: {'kept' if fix.kept else 'not kept'}."
        yield line
    if len(report.fixes) > _MAX_FIXES:
        yield f"{len(report.fixes) - _MAX_FIXES} more with --json."
    if report.fixes:
        yield ""
    elif report.wall.kind != "accelerator":
        yield "No change that is known here would help."
        yield ""


def name_fix(fix: LoaderFix) -> str:
    """Returns the options of a fix with their values, or its instruction."""
    return fix.instruction or name_changes(fix.changes)
