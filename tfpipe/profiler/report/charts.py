"""The charts of the report's page, as SVG inside of HTML. Pure: the same figures give the same bytes.

A length is a pixel of the page, at 72 to the inch. Colors are variables of the page's style sheet, so that a chart is
right in light and in dark. matplotlib draws with the stand-ins below, and `_to_svg` puts the variables in their place.
Text stays text, in the font of the page.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Wedge
from matplotlib.ticker import MaxNLocator

from tfpipe.profiler.types import Spread, Step
from tfpipe.system.units import human_rate, human_share

INK, MUTED, LINE = "#010101", "#020202", "#030303"
BUSY, IDLE, GAIN, FAINT = "#040404", "#050505", "#060606", "#070707"
_VARIABLES = {
    **{INK: "ink", MUTED: "muted", LINE: "line"},
    **{BUSY: "busy", IDLE: "idle", GAIN: "gain", FAINT: "faint"},
}
_SIZE = 12.0  # of text
_BOLD = "bold"  # by name: Matplotlib before 3.11 draws no SVG with a number
_ROW = 26  # of a bar and the room around it
_NO_METADATA = {"Creator": None, "Date": None, "Format": None, "Type": None}


@dataclass(frozen=True)
class Bar:
    """The processor time of a stage.

    Attributes:
        name: The stage's name.
        us: The microseconds of a core for each image.
        color: One of the stand-ins.
    """

    name: str
    us: Spread
    color: str = BUSY


@dataclass(frozen=True)
class HostBar:
    """The time of a host.

    Attributes:
        index: The number of the host.
        idle: The share of time in which it waits for its own batches.
        for_others: The share of time in which it waits for those of others.
        late: Whether the others wait for it.
    """

    index: int
    idle: float
    for_others: float
    late: bool


def draw_gauge(idle: float, spread: Spread, name: str = "gauge") -> str:
    """Draws a ring that is filled for the idle share; the thin arc around it is the spread.

    Args:
        idle: The idle share of wall time, 0 to 1.
        spread: The spread of that share.
        name: The prefix of every id in the SVG; each chart of a page needs its own.
    """
    figure = _make_figure(190, 190)
    axes = _add_axes(figure, 0, 0, 190, 190)
    axes.set(xlim=(-95, 95), ylim=(-95, 95))
    for low, high, color, radius, width in (
        (0.0, 1.0, FAINT, 82, 17),
        (0.0, idle, IDLE, 82, 17),
        (spread.low, spread.high, MUTED, 90, 2),
    ):
        if high > low:
            axes.add_patch(Wedge((0, 0), radius, 90 - 360 * high, 90 - 360 * low, width=width, color=color, lw=0))
    text = human_share(idle)
    axes.text(0, 6, text, size=32 if len(text) < 6 else 22, weight=_BOLD, color=INK, ha="center", va="center")
    axes.text(0, -24, "idle", size=14, color=MUTED, ha="center", va="center")
    return _to_svg(figure, name, f"The accelerator is idle for {text} of the time.")


def draw_timeline(steps: Sequence[Step], step_s: float, width: int, name: str = "timeline") -> str:
    """Draws a column for each step: its compute, on top the idle time before it; the line is the wait for its batch.

    Args:
        steps: At least one step.
        step_s: Compute of a step, in seconds.
        width: The chart's width.
        name: The prefix of every id.
    """
    tallest_s = max(max(step.idle_s + step_s, step.wait_s) for step in steps)
    unit, factor = ("s", 1.0) if tallest_s >= 1 else ("ms", 1e3)
    figure = _make_figure(width, 186)
    axes = _add_axes(figure, 44, 12, width - 50, 150)
    edges = [number + 0.5 for number in range(len(steps) + 1)]
    compute = [step_s * factor] * len(steps)
    whole = [(step.idle_s + step_s) * factor for step in steps]
    axes.stairs(compute, edges, fill=True, color=BUSY, lw=0, gid="compute")
    axes.stairs(whole, edges, baseline=compute, fill=True, color=IDLE, lw=0, gid="idle")
    line = 1.0 if width > 6 * len(steps) else 0.6  # or it would hide narrow columns
    axes.stairs([step.wait_s * factor for step in steps], edges, baseline=None, color=INK, lw=line, gid="wait")
    axes.set(xlim=(edges[0], edges[-1]), ylim=(0, 1.08 * tallest_s * factor))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_locator(MaxNLocator(min(8, width // 90), integer=True, min_n_ticks=1))
    axes.set_axis_on()
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=LINE, lw=1)
    axes.tick_params(length=0, labelsize=_SIZE, labelcolor=MUTED, pad=6)
    axes.spines[:].set_visible(False)
    figure.text(0, 1, unit, size=_SIZE, color=MUTED, va="top")
    figure.text(38 / width, 18 / 186, "step", size=_SIZE, color=MUTED, ha="right", va="top")
    idle = sum(step.idle_s > 0 for step in steps)
    return _to_svg(figure, name, f"{len(steps)} steps in a row; the accelerator stood idle before {idle} of them.")


def draw_stage_bars(bars: Sequence[Bar], width: int, name: str = "stages") -> str:
    """Draws a bar for each stage, from the first to the last, with a whisker from its low to its high figure.

    Args:
        bars: At least one bar; its id is `NAME-bar-STAGE`.
        width: The chart's width.
        name: The prefix of every id.
    """
    height = _ROW * len(bars)
    figure = _make_figure(width, height)
    axes = _add_axes(figure, 74, 0, width - 74 - 76, height)
    axes.set(xlim=(0, max([1.0, *(max(bar.us.median, bar.us.high) for bar in bars)])), ylim=(len(bars) - 0.5, -0.5))
    for row, bar in enumerate(bars):
        strong = bar.color == IDLE
        axes.barh(row, bar.us.median, height=0.56, color=bar.color, lw=0, gid=f"bar-{bar.name}")
        _add_label(axes, bar.name, 0, row, dx=-12, ha="right", size=_SIZE + 1, strong=strong)
        figures = f"{bar.us.median:,.0f} µs"
        _add_label(axes, figures, max(bar.us.median, bar.us.high), row, dx=10, strong=strong, muted=not strong)
    spreads = [(row, bar.us) for row, bar in enumerate(bars) if bar.us.high > bar.us.low]
    rows, lows, highs = [row for row, _ in spreads], [us.low for _, us in spreads], [us.high for _, us in spreads]
    axes.hlines(rows, lows, highs, color=INK, lw=1.25)
    axes.vlines(lows + highs, [row - 0.12 for row in rows * 2], [row + 0.12 for row in rows * 2], color=INK, lw=1.25)
    longest = max(bars, key=lambda bar: bar.us.median)
    return _to_svg(
        figure, name, f"Processor time by stage; most in {longest.name}: {longest.us.median:,.0f} µs an image."
    )


def draw_host_bars(bars: Sequence[HostBar], width: int, name: str = "hosts") -> str:
    """Draws a bar for each host: the time in which it trains, waits for its own batches, and waits for other hosts.

    Args:
        bars: At least one bar; its parts have the ids `NAME-idle-INDEX` and `NAME-others-INDEX`.
        width: The chart's width.
        name: The prefix of every id.
    """
    height = _ROW * len(bars)
    figure = _make_figure(width, height)
    axes = _add_axes(figure, 74, 0, width - 74 - 76, height)
    axes.set(xlim=(0, 1), ylim=(len(bars) - 0.5, -0.5))
    for row, bar in enumerate(bars):
        busy = max(1 - bar.idle - bar.for_others, 0.0)
        axes.barh(row, busy, height=0.56, color=BUSY, lw=0)
        axes.barh(row, bar.idle, left=busy, height=0.56, color=IDLE, lw=0, gid=f"idle-{bar.index}")
        axes.barh(row, bar.for_others, left=busy + bar.idle, height=0.56, color=FAINT, lw=0, gid=f"others-{bar.index}")
        _add_label(axes, f"host {bar.index}", 0, row, dx=-12, ha="right", size=_SIZE + 1, strong=bar.late)
        text = f"{human_share(bar.idle)} own"
        _add_label(axes, text, 1, row, dx=10, strong=bar.late, muted=not bar.late)
    longest = max(bars, key=lambda bar: bar.idle)
    return _to_svg(
        figure, name, f"Wait for batches by host; longest on host {longest.index}: {human_share(longest.idle)}."
    )


def draw_before_after(now: float, predicted: float, measured: float | None, required: float, name: str) -> str:
    """Draws the images per second now, as predicted, and where known as measured; the line is the required rate.

    Args:
        now: The rate now, in images per second.
        predicted: The predicted rate.
        measured: The measured rate; None where it was not measured.
        required: The rate that the accelerator needs.
        name: The prefix of every id.
    """
    rows = [("now", now, BUSY), ("predicted", predicted, GAIN)]
    if measured is not None:
        rows.append(("measured", measured, GAIN))
    width, head, row_height = 360, 24, 26
    height = head + row_height * len(rows)
    figure = _make_figure(width, height)
    axes = _add_axes(figure, 70, 0, width - 70 - 62, height)
    highest = max(required, *(rate for _, rate, _ in rows))
    axes.set(xlim=(0, highest), ylim=(len(rows) - 0.5, -0.5 - head / row_height))
    for row, (label, rate, color) in enumerate(rows):
        alpha = 0.55 if label == "predicted" and measured is not None else 1.0
        axes.barh(row, rate, height=0.56, color=color, lw=0, alpha=alpha, gid=f"bar-{label}")
        y = 1 - (head + row_height * (row + 0.5)) / height
        figure.text(0, y, label, size=_SIZE, color=MUTED, va="center_baseline")
        figure.text(1, y, human_rate(rate), size=_SIZE + 1, weight=_BOLD, color=INK, ha="right", va="center_baseline")
    axes.vlines(required, -0.6, len(rows) - 0.5, color=INK, lw=1.5, linestyles=(0, (3, 2)), gid="required")
    side: Literal["left", "right"] = "right" if required > highest / 2 else "left"
    _add_label(axes, f"required {human_rate(required)}", required, -0.5 - 0.66 * head / row_height, ha=side, muted=True)
    measured_text = "" if measured is None else f", measured {human_rate(measured)}"
    title = f"Images a second: now {human_rate(now)}, predicted {human_rate(predicted)}{measured_text}"
    return _to_svg(figure, name, f"{title}; required {human_rate(required)}.")


def _make_figure(width: int, height: int) -> Figure:
    return Figure(figsize=(width / 72, height / 72), dpi=72, facecolor="none")


def _add_axes(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Adds axes at a place in pixels; they draw nothing but what is put in."""
    whole_width, whole_height = figure.get_size_inches() * 72
    bottom = whole_height - top - height
    axes = figure.add_axes((left / whole_width, bottom / whole_height, width / whole_width, height / whole_height))
    axes.set_facecolor("none")
    axes.set_axis_off()
    return axes


def _add_label(
    axes: Axes,
    text: str,
    x: float,
    y: float,
    *,
    dx: float = 0,
    ha: Literal["left", "right"] = "left",
    size: float = _SIZE,
    strong: bool = False,
    muted: bool = False,
) -> None:
    """Writes text beside a point; nothing in it is taken for mathematics."""
    label = axes.annotate(text, (x, y), (dx, 0), textcoords="offset points", ha=ha, va="center_baseline")
    label.set(size=size, color=MUTED if muted else INK, weight=_BOLD if strong else "normal", parse_math=False)


def _to_svg(figure: Figure, name: str, title: str) -> str:
    """Returns matplotlib's SVG without its prologue and its style sheet, which would apply to the whole page."""
    file = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.family": ["DejaVu Sans"]}):
        figure.savefig(file, format="svg", metadata=_NO_METADATA, transparent=True)
    text = file.getvalue()
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text[text.index("<svg") :], count=1, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", text)
    for stand_in, variable in _VARIABLES.items():
        text = text.replace(stand_in, f"var(--{variable})")
    width, height = (round(inches * 72) for inches in figure.get_size_inches())
    root = f'<svg id="{name}" class="chart" role="img" aria-label="{html.escape(title)}" viewBox="0 0 {width} {height}"'
    return re.sub(r"<svg[^>]*>", f'{root} width="{width}" height="{height}">', text, count=1)
