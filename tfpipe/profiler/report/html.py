"""A report as one HTML page that needs nothing else: no script, no font, no image, no network. Pure.

Text from outside, such as the name of a dataset, goes through Jinja2's escaping. The only HTML that is put in as it is
are the SVGs of `charts` and the `code` elements made here. By its content security policy the page forbids itself
everything but its own styles.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup, escape

from tfpipe._version import __version__
from tfpipe.engine.config import toml_json
from tfpipe.profiler.hosts.types import HostsReport
from tfpipe.profiler.report import charts
from tfpipe.profiler.report.hosts_text_json import advise, describe_source, format_verdict, list_explained
from tfpipe.profiler.report.text_json import (
    EFFORTS,
    HAND_OVER,
    NO_FIXES,
    NO_STAGES,
    RANKING,
    SERVICE_NOTE,
    explain_filling,
    explain_first_batch,
    explain_gain,
    explain_idle,
    explain_memory,
    explain_rates,
    format_after,
    format_at_once,
    format_combination,
    format_headline,
    format_out_per_in,
    format_shortfall,
    list_service_notes,
    name_bottleneck,
    use_unit,
)
from tfpipe.profiler.types import Fix, IdleMethod, OptionValue, Report, Spread, StageTiming
from tfpipe.system.options import Nested, get_options
from tfpipe.system.units import human_bytes, human_rate, human_share

WIDE, NARROW = 976, 326
"""The widths of a chart in pixels. Two are drawn, since text in a chart that is scaled down cannot be read."""
_SIZES = (("wide", WIDE), ("narrow", NARROW))

_METHODS: Mapping[IdleMethod, str] = {
    "loop": "A simulated accelerator took the batches: it is busy for the time of a step, and uses no processor. Its "
    "trainer is a plain loop, which takes a batch and then computes. Idle is its time without a batch.",
    "fit": "A simulated accelerator took the batches: it is busy for the time of a step, and uses no processor. Its "
    "trainer takes the next batch meanwhile, as Keras' `fit` does on a device with a queue. Idle is its time without a "
    "batch.",
    "monitor": "Measured live in a running training. Idle is an estimate from the wait for input.",
}


@dataclass(frozen=True)
class _KeyFigure:
    """A key figure.

    Attributes:
        name: The name of the figure.
        value: The number as text.
        note: The number's unit, or the number to compare it with.
    """

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class _Row:
    """A row in the table of stages.

    Attributes:
        name: The stage's name, or "hand-over".
        us: Processor time for each image, in microseconds.
        share: Share of all processor time.
        stage: The stage; None for the time that no stage accounts for.
    """

    name: str
    us: Spread
    share: float
    stage: StageTiming | None = None


def render(report: Report) -> str:
    """Returns the page of a report; the same report gives the same text.

    Args:
        report: The report, from `make_report`. Every optional part may be empty.
    """
    profile, step = report.profile, report.profile.step
    rows = _list_rows(report)
    page = (
        _make_environment()
        .from_string(_read_file("page.html.j2"))
        .render(
            style=Markup(_read_file("style.css")),
            report=report,
            profile=profile,
            step=step,
            title=f"{profile.dataset.name}: {human_share(step.idle)} idle",
            headline=format_headline(report),
            rates=explain_rates(report),
            idle_for=explain_idle(step),
            memory=explain_memory(profile),
            first_batch=explain_first_batch(profile),
            gauge=Markup(charts.draw_gauge(step.idle, step.idle_fraction)),
            figures=_list_key_figures(report),
            filling=explain_filling(profile),
            bottleneck=name_bottleneck(report.bottleneck.stage),
            compute_bound=report.bottleneck.stage == "accelerator",
            timelines=_draw_timelines(report),
            stage_charts=_draw_stages(rows, report.bottleneck.stage),
            rows=rows,
            combination=format_combination(report),
            shortfall=format_shortfall(report),
            fix_charts=[Markup(_draw_fix(report, fix, number)) for number, fix in enumerate(report.fixes, 1)],
            tables=(("Options of the pipeline", _list_options(profile.config)), ("The data", asdict(profile.dataset))),
            notes={"no_stages": NO_STAGES, "no_fixes": NO_FIXES, "service": SERVICE_NOTE, "ranking": RANKING},
            efforts=EFFORTS,
            service_notes=list_service_notes(report),
            after=format_after(report),
            method=_METHODS[step.method],
            version=__version__,
        )
    )
    return use_unit(page, report)


def render_hosts(report: HostsReport) -> str:
    """Returns the page that compares the hosts of a training; the same report gives the same text."""
    bars = [
        charts.HostBar(host.index, host.idle_fraction, host.waits_for_others_fraction, host.index in report.late)
        for host in report.hosts
    ]
    figures = [
        _KeyFigure("All hosts", human_rate(report.images_per_second), "images/s"),
        _KeyFigure("Without late hosts", human_rate(report.images_per_second_without_late), "images/s at most"),
        _KeyFigure("Lost by all others", human_share(report.lost_fraction), "of the time"),
        _KeyFigure("Hosts", f"{len(report.hosts)}", f"of {report.num_hosts} compared"),
    ]
    return (
        _make_environment()
        .from_string(_read_file("hosts.html.j2"))
        .render(
            style=Markup(_read_file("style.css")),
            report=report,
            verdict=format_verdict(report),
            source=describe_source(report),
            advice={host.index: advise(host, report) for host in report.hosts},
            explained=list_explained(report),
            figures=figures,
            host_charts=[Markup(charts.draw_host_bars(bars, width, f"hosts-{size}")) for size, width in _SIZES],
            version=__version__,
        )
    )


def _read_file(name: str) -> str:
    """Returns a file that lies beside this module."""
    return resources.files("tfpipe.profiler.report").joinpath(name).read_text("utf-8")


def _make_environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(rate=human_rate, share=human_share, size=human_bytes)
    environment.filters.update(sentence=_mark_code, toml=_changes_to_toml, value=_value_to_text)
    environment.filters.update(out_per_in=format_out_per_in, at_once=format_at_once, gain=explain_gain)
    return environment


def _list_key_figures(report: Report) -> list[_KeyFigure]:
    profile, host = report.profile, report.profile.host
    cpu, storage = profile.cpu_limit, profile.storage_limit
    cores = "1 core" if host.cores == 1 else f"{host.cores} cores"
    memory = f"at most, of {human_bytes(host.memory_limit_bytes)}"
    figures = [
        _KeyFigure("Required", human_rate(report.profile.step.required_rate), "images/s"),
        _KeyFigure("This pipeline", human_rate(profile.images_per_second), "images/s"),
        _KeyFigure("CPU allows", human_rate(cpu), "" if cpu == float("inf") else f"images/s on {cores}"),
        _KeyFigure("Storage allows", "–", "not measured")
        if storage is None
        else _KeyFigure("Storage allows", human_rate(storage), "images/s"),
        _KeyFigure("First batch", f"{profile.first_batch_s:.1f} s", "from the start"),
        _KeyFigure("Memory", human_bytes(host.peak_memory_bytes), memory),
    ]
    if report.price_per_day is not None:
        figures.append(_KeyFigure("Price of idle time", f"{report.price_per_day:,.2f}", "a day"))
    return figures


def _list_rows(report: Report) -> list[_Row]:
    """Returns a row for each stage and one for the time that no stage accounts for."""
    stages, cpu_s = report.profile.stages, report.profile.demand.cpu_s
    if not stages:
        return []
    total_s = sum(cpu_s.values()) or 1.0
    other_us = cpu_s["other"] * 1e6
    rows = [_Row(stage.name, stage.cpu_us_per_image, cpu_s[stage.name] / total_s, stage) for stage in stages]
    return [*rows, _Row(HAND_OVER, Spread(other_us, other_us, other_us), cpu_s["other"] / total_s)]


def _draw_timelines(report: Report) -> list[Markup]:
    """Returns the same chart for wide and for narrow pages."""
    steps, step_s = report.profile.timeline, report.profile.step.step_s.median
    if not steps:
        return []
    return [Markup(charts.draw_timeline(steps, step_s, width, f"timeline-{size}")) for size, width in _SIZES]


def _draw_stages(rows: list[_Row], bottleneck: str) -> list[Markup]:
    """Returns the same chart for wide and for narrow pages."""
    if not rows:
        return []
    bars = [charts.Bar(row.name, row.us, _choose_color(row, bottleneck)) for row in rows]
    return [Markup(charts.draw_stage_bars(bars, width, f"stages-{size}")) for size, width in _SIZES]


def _choose_color(row: _Row, bottleneck: str) -> str:
    if row.name == bottleneck:
        return charts.IDLE
    return charts.BUSY if row.stage else charts.FAINT


def _draw_fix(report: Report, fix: Fix, number: int) -> str:
    return charts.draw_before_after(
        report.profile.images_per_second,
        fix.predicted_images_per_second,
        fix.measured_images_per_second,
        report.profile.step.required_rate,
        f"fix-{number}",
    )


def _mark_code(text: str) -> Markup:
    """Returns escaped text, with the parts in backquotes as `code`."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _changes_to_toml(changes: Mapping[str, OptionValue]) -> str:
    """Returns the changes as a file of options may have them; TOML has no None, which is written by leaving it out."""
    # One by one, since the dots in a name would be quoted.
    given = [name + toml_json.to_toml({"x": value}).strip()[1:] for name, value in changes.items() if value is not None]
    left_out = [f"# {name}: leave it out" for name, value in changes.items() if value is None]
    return "\n".join([*given, *left_out])


def _list_options(config: Any) -> dict[str, Any]:
    """Returns the value of each option, those of a nested object by names as in "tf_data.cycle_length"."""
    values: dict[str, Any] = {}
    for name, facts in get_options(config).items():
        value = getattr(config, name)
        inner = _list_options(value) if isinstance(facts.kind, Nested) else None
        values |= {name: value} if inner is None else {f"{name}.{each}": part for each, part in inner.items()}
    return values


def _value_to_text(value: Any, name: str) -> str:
    """Returns a fact or an option for people."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return (" x " if "size" in name else ", ").join(_value_to_text(item, "") for item in value)
    if name.endswith("_bytes"):
        return human_bytes(value)
    return f"{value:,.0f}" if isinstance(value, int | float) and abs(value) >= 100 else str(value)
