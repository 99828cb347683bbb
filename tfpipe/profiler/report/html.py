"""A report as one HTML page that needs nothing else: no script, no font, no image, no network. Pure.

Jinja2 escapes all text from outside. Only the style sheet and the `code` elements made here are inserted unescaped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup, escape

from tfpipe._version import __version__
from tfpipe.engine.config import toml_json
from tfpipe.profiler.report import text_json
from tfpipe.profiler.types import Fix, OptionValue, PipelineProfile, Report
from tfpipe.system.options import get_names, get_value
from tfpipe.system.units import human_bytes, human_count, human_rate, human_share


def render(report: Report) -> str:
    """Returns the page of a report; the same report gives the same text."""
    profile, step = report.profile, report.profile.step
    assert isinstance(profile, PipelineProfile)
    rows, headline = text_json.list_stage_rows(profile), text_json.format_headline(report)
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

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tfpipe.profiler.report", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(rate=human_rate, share=human_share, size=human_bytes)
    environment.filters.update(sentence=_mark_code, toml=_changes_to_toml, value=_value_to_text, rates=list_rates)
    page = environment.get_template("page.html.j2").render(
        text=text_json,
        style=Markup(resources.files("tfpipe.profiler.report").joinpath("style.css").read_text("utf-8")),
        report=report,
        profile=profile,
        step=step,
        title=f"{profile.dataset.name}: {f'{human_share(step.idle)} idle' if step.has_steps else headline}",
        headline=headline,
        figures=_list_key_figures(report),
        tallest_s=max((max(each.idle_s + step.step_s.median, each.wait_s) for each in profile.timeline), default=0),
        rows=rows,
        longest_us=max((row["us"] for row in rows), default=0),
        fastest=max((rate for fix in report.fixes for _, rate, _ in list_rates(fix)), default=0),
        tables=(("Options of the pipeline", options), ("The data", asdict(profile.dataset))),
        version=__version__,
    )
    return text_json.use_unit(page, report)


def _list_key_figures(report: Report) -> list[tuple[str, str, str]]:
    """Returns the name, the value, and the unit or a remark for each key figure."""
    profile, host = report.profile, report.profile.host
    cpu, storage = profile.cpu_limit, profile.storage_limit
    cores = human_count(host.cores, "core")
    figures = [
        *([("Required", human_rate(report.profile.step.required_rate), "images/s")] if profile.step.has_steps else []),
        ("This pipeline", human_rate(profile.images_per_second), "images/s"),
        ("CPU allows", human_rate(cpu), "" if cpu == float("inf") else f"images/s on {cores}"),
        ("Storage allows", *(("–", "not measured") if storage is None else (human_rate(storage), "images/s"))),
        ("First batch", f"{profile.first_batch_s:.1f} s", "from the start"),
        ("Memory", human_bytes(host.peak_memory_bytes), f"at most, of {human_bytes(host.memory_limit_bytes)}"),
    ]
    if report.price_per_day is not None:
        figures.append(("Price of idle time", f"{report.price_per_day:,.2f}", "a day"))
    return figures


def _mark_code(text: str) -> Markup:
    """Returns escaped text, with the parts in backquotes as `code`."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _changes_to_toml(changes: Mapping[str, OptionValue]) -> str:
    """Returns the changes as lines of a TOML file; TOML has no None, so a comment says to leave the option out."""
    # One option at a time: as a key of a table, a name with dots would be quoted.
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
