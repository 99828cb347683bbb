"""A profile as a report: put together, as text for a screen, as JSON. Pure.

The JSON is version 1: names are not taken away or given another meaning without a new version; more may come.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from tfpipe.profiler.diagnose import bottleneck as analysis
from tfpipe.profiler.diagnose import fixes
from tfpipe.profiler.types import Fix, Profile, Report, Spread, StepTiming
from tfpipe.system.units import human_bytes, human_rate, human_share

VERSION = 1
NO_STAGES = "No stages: with `autotune` off tf.data keeps no counters."
NO_FIXES = "No change that is known here would help."
MAP_FUSION_NOTE = "Measured with `map_fusion` off, which costs about 6 %; a batch counts to the stage before it."
_MAX_FIXES = 5
_HOURS = 24


def make_report(profile: Profile, price_per_hour: float | None = None) -> Report:
    """What follows from a profile.

    Args:
        profile: From `profile_pipeline`.
        price_per_hour: Of the accelerator, in any currency.
    """
    bottleneck = analysis.find_bottleneck(profile)
    idle = analysis.idle_fraction(profile.step)
    return Report(
        profile=profile,
        bottleneck=bottleneck,
        required_images_per_second=analysis.required_images_per_second(profile.step),
        cpu_limit_images_per_second=analysis.cpu_limit(profile),
        storage_limit_images_per_second=analysis.storage_limit(profile),
        fixes=fixes.find_fixes(profile, bottleneck),
        price_per_day=None if price_per_hour is None else idle_cost_per_day(price_per_hour, idle),
    )


def idle_cost_per_day(price_per_hour: float, idle_fraction: float) -> float:
    """In the currency of the price."""
    return price_per_hour * _HOURS * idle_fraction


def budget_line(report: Report) -> str:
    """The whole answer in a sentence."""
    profile = report.profile
    idle = analysis.idle_fraction(profile.step)
    parts = [
        f"the accelerator needs {human_rate(report.required_images_per_second)} images/s",
        f"this pipeline gives {human_rate(profile.images_per_second)} ({human_share(idle)} idle)",
        f"this host's CPU allows {human_rate(report.cpu_limit_images_per_second)}",
    ]
    if report.storage_limit_images_per_second is not None:
        parts.append(f"storage allows {human_rate(report.storage_limit_images_per_second)}")
    wall = report.bottleneck.stage
    parts.append(f"{'compute-bound: ' if wall == 'accelerator' else ''}the wall is {wall_name(wall)}")
    return f"{'; '.join(parts)}."


def to_text(report: Report) -> str:
    """At most one screen: the budget, the stages, the wall, the first fixes."""
    return "\n".join(line.rstrip() for line in _lines(report)) + "\n"


def step_json(step: StepTiming) -> dict[str, Any]:
    """The accelerator's side of the JSON, whichever way it was found."""
    return {
        "method": step.method,
        "idle_fraction": analysis.idle_fraction(step),
        "idle_fraction_spread": _spread(step.idle_fraction),
        "input_wait_fraction": step.input_wait_fraction.median,
        "input_wait_fraction_spread": _spread(step.input_wait_fraction),
        "steps": step.steps,
        "step_s": step.step_s.median,
        "images_per_step": step.images_per_step,
        "wall_s": step.wall_s,
    }


def to_json(report: Report) -> dict[str, Any]:
    """One object, of plain values; infinite limits are null.

    `timeline` has the fields of `Step` for at most 200 steps in a row; it is empty where no pipeline was driven.
    """
    profile, step = report.profile, report.profile.step
    return {
        "version": VERSION,
        **step_json(step),
        "images_per_second": profile.images_per_second,
        "required_images_per_second": report.required_images_per_second,
        "cpu_limit_images_per_second": _finite(report.cpu_limit_images_per_second),
        "storage_limit_images_per_second": report.storage_limit_images_per_second,
        "first_batch_s": profile.first_batch_s,
        "warm_up_s": profile.warm_up_s,
        "bottleneck": {
            **asdict(report.bottleneck),
            "limit_images_per_second": _finite(report.bottleneck.limit_images_per_second),
        },
        "stages": [
            {
                **asdict(stage),
                "cpu_us_per_image": stage.cpu_us_per_image.median,
                "cpu_us_per_image_spread": _spread(stage.cpu_us_per_image),
            }
            for stage in profile.stages
        ],
        "fixes": [_fix_json(fix) for fix in report.fixes],
        "after_images_per_second": report.after_images_per_second,
        "host": asdict(profile.host),
        "price_per_day": report.price_per_day,
        "dataset": dict(profile.dataset),
        "config": dict(profile.config),
        "what_if": dict(profile.what_if),
        "timeline": [asdict(step) for step in profile.timeline],
    }


def _fix_json(fix: Fix) -> dict[str, Any]:
    return {**asdict(fix), "changes": dict(fix.changes)}


def _lines(report: Report) -> Iterator[str]:
    profile, step = report.profile, report.profile.step
    line = budget_line(report)
    yield line[0].upper() + line[1:]
    yield ""
    spread = step.idle_fraction
    idle = f"idle {human_share(analysis.idle_fraction(step))} ({human_share(spread.low)} to {human_share(spread.high)})"
    yield (
        f"{idle}, {step.method}; input wait {human_share(step.input_wait_fraction.median)}; first batch "
        f"{profile.first_batch_s:.1f} s; {step.steps:,} steps in {step.wall_s:.1f} s"
    )
    host = profile.host
    others = f", others {human_share(host.other_cpu_fraction)}" if host.other_cpu_fraction >= 0.05 else ""
    yield (
        f"{host.cores} cores {human_share(host.cpu_fraction)} busy{others}; memory at most "
        f"{human_bytes(host.peak_memory_bytes)}; reads {human_bytes(host.storage_bytes_per_second)}/s"
    )
    if report.price_per_day is not None:
        yield f"The idle time costs {report.price_per_day:,.2f} a day."
    yield ""
    yield from _stage_table(profile)
    yield ""
    yield report.bottleneck.reason
    yield from _fix_lines(report)


def _stage_table(profile: Profile) -> Iterator[str]:
    if not profile.stages:
        yield NO_STAGES
        return
    cpu_s = analysis.model_of(profile).cpu_s
    total = 1e6 * sum(cpu_s.values()) or 1.0
    yield f"{'stage':<10}{'µs/image':>10}{'low':>8}{'high':>8}{'share':>8}{'threads':>9}{'buffer':>14}{'out MB/s':>10}"
    for stage in profile.stages:
        cpu, share = stage.cpu_us_per_image, 1e6 * cpu_s[stage.name] / total
        buffer = ""
        if stage.buffer_size is not None:
            buffer = f"{stage.buffer_fill or 0:.0%} of {stage.buffer_size:,}"
        yield (
            f"{stage.name:<10}{cpu.median:>10,.0f}{cpu.low:>8,.0f}{cpu.high:>8,.0f}{share:>8.0%}"
            f"{stage.parallelism:>9}{buffer:>14}{stage.bytes_out_per_second / 1e6:>10,.0f}"
        )
    other = 1e6 * cpu_s["other"]
    yield f"{'other':<10}{other:>10,.0f}{'':>16}{other / total:>8.0%}"
    if profile.config.get("map_fusion"):
        yield MAP_FUSION_NOTE


def _fix_lines(report: Report) -> Iterator[str]:
    if not report.fixes:
        if report.bottleneck.stage != "accelerator":
            yield NO_FIXES
        return
    yield ""
    for number, fix in enumerate(report.fixes[:_MAX_FIXES], 1):
        what = fix.action or ", ".join(f"{name} = {_value(value)}" for name, value in fix.changes.items())
        yield f"{number}. {what}"
        rate, idle = human_rate(fix.predicted_images_per_second), human_share(fix.predicted_idle_fraction)
        yield f"   {rate} images/s, {idle} idle predicted. {fix.reason}"
        if fix.measured_images_per_second is not None and fix.measured_gain is not None:
            gain = fix.measured_gain
            yield (
                f"   {human_rate(fix.measured_images_per_second)} measured, x {gain.median:.2f} ({gain.low:.2f} to "
                f"{gain.high:.2f}): {'kept' if fix.kept else 'not kept'}."
            )
    if more := len(report.fixes) - _MAX_FIXES:
        yield f"{more} more with --json." if more > 0 else ""
    if report.after_images_per_second is not None:
        rate, idle = human_rate(report.after_images_per_second), human_share(analysis.idle_after(report))
        yield f"With what was kept: {rate} images/s, {idle} idle."


def wall_name(stage: str) -> str:
    """What a bottleneck is called in a sentence."""
    return {"cpu": "this host's CPU", "first_batch": "the first batch", "accelerator": "the accelerator"}.get(
        stage, stage
    )


def _value(value: object) -> str:
    return "auto" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)


def _spread(spread: Spread) -> dict[str, float]:
    return {"low": spread.low, "high": spread.high}


def _finite(number: float) -> float | None:
    return None if number == float("inf") else number
