"""A report as one HTML page that needs nothing else: no script, no font, no image, no network. Pure.

Whatever came from outside, such as the name of a dataset, goes through Jinja2's escaping; the only HTML that is put in
as it is are the SVGs of `charts`, and the `code` elements made here. The page forbids itself, by its content security
policy, everything but its own styles.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup, escape

from tfpipe._version import __version__
from tfpipe.pipeline.config import toml_json
from tfpipe.profiler.diagnose import bottleneck
from tfpipe.profiler.report import charts
from tfpipe.profiler.report.text_json import MAP_FUSION_NOTE, NO_FIXES, NO_STAGES, budget_line, wall_name
from tfpipe.profiler.types import Fix, IdleMethod, Report, Spread, StageTiming
from tfpipe.system.units import human_bytes, human_rate, human_share

WIDE, NARROW = 976, 326
"""Pixels that a chart may take: two are drawn, since text in one that is scaled down cannot be read."""

_METHODS: Mapping[IdleMethod, str] = {
    "simulated": "A simulated accelerator took the batches: it is busy for the time of a step, and uses no processor. "
    "Idle is its time without a batch.",
    "training": "The real step was timed end to end, and on a batch that already lay on the device. Idle is the "
    "difference.",
    "monitor": "Measured live in a running training. Idle is an estimate from the wait for input.",
    "trace": "Read from a trace that TensorFlow's own profiler took.",
}


@dataclass(frozen=True)
class _Figure:
    """A key figure: its name, its number, what it is a number of."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class _Row:
    """A stage in the table."""

    name: str
    us: Spread
    share: float
    stage: StageTiming | None = None
    """None for what no stage accounts for."""


def render(report: Report) -> str:
    """The page.

    Args:
        report: From `make_report`; every part that may be empty may be.

    Returns:
        HTML; the same report gives the same text.
    """
    profile, step = report.profile, report.profile.step
    template = _environment().from_string(
        resources.files("tfpipe.profiler.report").joinpath("page.html.j2").read_text("utf-8")
    )
    line, rows = budget_line(report), _rows(report)
    measured = any(fix.measured_images_per_second is not None for fix in report.fixes)
    return template.render(
        report=report,
        profile=profile,
        step=step,
        title=_title(report),
        headline=line[0].upper() + line[1:],
        gauge=Markup(charts.gauge(bottleneck.idle_fraction(step), step.idle_fraction)),
        figures=_figures(report),
        wall=wall_name(report.bottleneck.stage),
        compute_bound=report.bottleneck.stage == "accelerator",
        timelines=_timelines(report),
        stage_charts=_stage_charts(rows, report.bottleneck.stage),
        rows=rows,
        fix_charts=[Markup(_fix_chart(report, fix, number)) for number, fix in enumerate(report.fixes, 1)],
        notes={"no_stages": NO_STAGES, "no_fixes": NO_FIXES, "map_fusion": MAP_FUSION_NOTE},
        measured=measured,
        method=_METHODS[step.method],
        version=__version__,
    )


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(rate=human_rate, share=human_share, size=human_bytes)
    environment.filters.update(sentence=_sentence, toml=_toml, value=_value)
    return environment


def _title(report: Report) -> str:
    name = report.profile.dataset.get("name") or "Input pipeline"
    return f"{name}: {human_share(bottleneck.idle_fraction(report.profile.step))} idle"


def _figures(report: Report) -> list[_Figure]:
    profile, host = report.profile, report.profile.host
    cpu, storage = report.cpu_limit_images_per_second, report.storage_limit_images_per_second
    figures = [
        _Figure("Required", human_rate(report.required_images_per_second), "images/s"),
        _Figure("This pipeline", human_rate(profile.images_per_second), "images/s"),
        _Figure("CPU allows", human_rate(cpu), "" if cpu == float("inf") else f"images/s on {_cores(host.cores)}"),
        _Figure("Storage allows", *(("–", "not measured") if storage is None else (human_rate(storage), "images/s"))),
        _Figure("First batch", f"{profile.first_batch_s:.1f} s", "from the start"),
        _Figure("Memory", human_bytes(host.peak_memory_bytes), f"at most, of {human_bytes(host.memory_limit_bytes)}"),
    ]
    if report.price_per_day is not None:
        figures.append(_Figure("Price of idle time", f"{report.price_per_day:,.2f}", "a day"))
    return figures


def _cores(count: int) -> str:
    return "1 core" if count == 1 else f"{count} cores"


def _timelines(report: Report) -> list[Markup]:
    """The same chart for wide and for narrow pages."""
    steps, step_s = report.profile.timeline, report.profile.step.step_s.median
    if not steps:
        return []
    return [
        Markup(charts.timeline(steps, step_s, width, f"timeline-{name}"))
        for name, width in (("wide", WIDE), ("narrow", NARROW))
    ]


def _rows(report: Report) -> list[_Row]:
    """All stages, and what no stage accounts for."""
    profile = report.profile
    if not profile.stages:
        return []
    cpu_s = bottleneck.model_of(profile).cpu_s
    total = sum(cpu_s.values()) or 1.0
    other = cpu_s["other"] * 1e6
    rows = [_Row(one.name, one.cpu_us_per_image, cpu_s[one.name] / total, one) for one in profile.stages]
    return [*rows, _Row("other", Spread(other, other, other), cpu_s["other"] / total)]


def _stage_charts(rows: list[_Row], wall: str) -> list[Markup]:
    if not rows:
        return []
    bars = [
        charts.Bar(row.name, row.us, charts.IDLE if row.name == wall else charts.BUSY if row.stage else charts.FAINT)
        for row in rows
    ]
    sizes = (("wide", WIDE), ("narrow", NARROW))
    return [Markup(charts.stage_bars(bars, width, f"stages-{name}")) for name, width in sizes]


def _fix_chart(report: Report, fix: Fix, number: int) -> str:
    return charts.before_after(
        report.profile.images_per_second,
        fix.predicted_images_per_second,
        fix.measured_images_per_second,
        report.required_images_per_second,
        f"fix-{number}",
    )


def _sentence(text: str) -> Markup:
    """Escaped, with `code` set as such."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _toml(changes: Mapping[str, Any]) -> str:
    """As they stand in a file of options; TOML has no None, which is written by leaving the option out."""
    given = {name: value for name, value in changes.items() if value is not None}
    without = [f"# {name}: leave it out" for name, value in changes.items() if value is None]
    return "\n".join([*toml_json.to_toml(given).splitlines(), *without])


def _value(value: Any, name: str) -> str:
    """A fact or an option for people."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return (" x " if "size" in name else ", ").join(_value(one, "") for one in value)
    if name.endswith("_bytes"):
        return human_bytes(value)
    return f"{value:,.0f}" if isinstance(value, int | float) and abs(value) >= 100 else str(value)
