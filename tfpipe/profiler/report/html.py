"""A report as one HTML page that needs nothing else: no script, no font, no image, no network. Pure.

Text from outside goes through Jinja2's escaping. The only HTML that is put in as it is: `code` elements made here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from importlib import resources
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup, escape

from tfpipe._version import __version__
from tfpipe.engine.config import toml_json
from tfpipe.profiler.report import text_json
from tfpipe.profiler.types import Fix, IdleMethod, OptionValue, PipelineProfile, Report, Spread, StageTiming
from tfpipe.system.options import get_names, get_value
from tfpipe.system.units import human_bytes, human_rate, human_share

_METHODS: Mapping[IdleMethod, str] = {
    "loop": "A simulated accelerator took the batches: it is busy for the time of a step, and uses no processor. Its "
    "trainer is a plain loop, which takes a batch and then computes. Idle is its time without a batch.",
    "fit": "A simulated accelerator took the batches: it is busy for the time of a step, and uses no processor. Its "
    "trainer takes the next batch meanwhile, as Keras' `fit` does on a device with a queue. Idle is its time without a "
    "batch.",
    "none": "Batches were taken as fast as they came.",
    "train": "A plain loop took the batches, and waited for the user's step behind each.",
    "monitor": "Measured live in a running training. Idle is an estimate from the wait for input.",
}


_KeyFigure = tuple[str, str, str]  # name, number, unit or what to compare it with


class _Row(NamedTuple):
    """A row in the table of stages, without a stage for the time that no stage accounts for."""

    name: str
    us: Spread
    share: float
    stage: StageTiming | None = None


def render(report: Report) -> str:
    """Returns the page of a report; the same report gives the same text."""
    profile, step = report.profile, report.profile.step
    assert isinstance(profile, PipelineProfile)
    rows, headline = _list_rows(profile), text_json.format_headline(report)
    options = {name: get_value(profile.config, name) for name in get_names(profile.config)}

    def list_rates(fix: Fix) -> list[tuple[str, float, str]]:
        """Returns the name, the rate and the color of each bar of a fix."""
        measured = fix.measured_images_per_second
        return [
            ("now", profile.images_per_second, "busy"),
            ("predicted", fix.predicted_images_per_second, "gain"),
            *([] if measured is None else [("measured", measured, "gain")]),
            *([("required", step.required_rate, "faint")] if step.has_steps else []),
        ]

    environment = _make_environment()
    environment.filters["rates"] = list_rates
    page = environment.get_template("page.html.j2").render(
        text=text_json,
        style=_read_style(),
        report=report,
        profile=profile,
        step=step,
        title=f"{profile.dataset.name}: {f'{human_share(step.idle)} idle' if step.has_steps else headline}",
        headline=headline,
        figures=_list_key_figures(report),
        tallest_s=max((max(each.idle_s + step.step_s.median, each.wait_s) for each in profile.timeline), default=0),
        rows=rows,
        longest_us=max((max(row.us.median, row.us.high) for row in rows), default=0),
        fastest=max((rate for fix in report.fixes for _, rate, _ in list_rates(fix)), default=0),
        tables=(("Options of the pipeline", options), ("The data", asdict(profile.dataset))),
        method=_METHODS[step.method],
        version=__version__,
    )
    return text_json.use_unit(page, report)


def _read_style() -> Markup:
    return Markup(resources.files("tfpipe.profiler.report").joinpath("style.css").read_text("utf-8"))


def _make_environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tfpipe.profiler.report", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(rate=human_rate, share=human_share, size=human_bytes)
    environment.filters.update(sentence=_mark_code, toml=_changes_to_toml, value=_value_to_text)
    return environment


def _list_key_figures(report: Report) -> list[_KeyFigure]:
    profile, host = report.profile, report.profile.host
    cpu, storage = profile.cpu_limit, profile.storage_limit
    cores = "1 core" if host.cores == 1 else f"{host.cores} cores"
    memory = f"at most, of {human_bytes(host.memory_limit_bytes)}"
    figures = [
        *([("Required", human_rate(report.profile.step.required_rate), "images/s")] if profile.step.has_steps else []),
        ("This pipeline", human_rate(profile.images_per_second), "images/s"),
        ("CPU allows", human_rate(cpu), "" if cpu == float("inf") else f"images/s on {cores}"),
        ("Storage allows", "–", "not measured")
        if storage is None
        else ("Storage allows", human_rate(storage), "images/s"),
        ("First batch", f"{profile.first_batch_s:.1f} s", "from the start"),
        ("Memory", human_bytes(host.peak_memory_bytes), memory),
    ]
    if report.price_per_day is not None:
        figures.append(("Price of idle time", f"{report.price_per_day:,.2f}", "a day"))
    return figures


def _list_rows(profile: PipelineProfile) -> list[_Row]:
    stages, cpu_s = profile.stages, profile.demand.cpu_s
    if not stages:
        return []
    total_s = sum(cpu_s.values()) or 1.0
    other_us = cpu_s["other"] * 1e6
    rows = [_Row(stage.name, stage.cpu_us_per_image, cpu_s[stage.name] / total_s, stage) for stage in stages]
    return [*rows, _Row(text_json.HAND_OVER, Spread(other_us, other_us, other_us), cpu_s["other"] / total_s)]


def _mark_code(text: str) -> Markup:
    """Returns escaped text, with the parts in backquotes as `code`."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _changes_to_toml(changes: Mapping[str, OptionValue]) -> str:
    """Returns the changes as a file of options may have them; TOML has no None, which is written by leaving it out."""
    # One by one, since the dots in a name would be quoted.
    given = [name + toml_json.to_toml({"x": value}).strip()[1:] for name, value in changes.items() if value is not None]
    left_out = [f"# {name}: leave it out" for name, value in changes.items() if value is None]
    return "\n".join([*given, *left_out])


def _value_to_text(value: Any, name: str) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return (" x " if "size" in name else ", ").join(_value_to_text(item, "") for item in value)
    if name.endswith("_bytes"):
        return human_bytes(value)
    return f"{value:,.0f}" if isinstance(value, int | float) and abs(value) >= 100 else str(value)
