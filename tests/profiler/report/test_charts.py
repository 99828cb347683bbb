"""The charts: their content, their place in a page, and the same bytes for the same figures."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from tfpipe.profiler.report.charts import IDLE, Bar, draw_before_after, draw_gauge, draw_stage_bars, draw_timeline
from tfpipe.profiler.types import Spread, Step

STEPS = [Step(0.1 * i, 0.01 * (i % 3), 0.05) for i in range(1, 31)]
BARS = [Bar("read", Spread(200, 150, 260)), Bar("decode", Spread(2400, 2300, 2500), IDLE)]
CHARTS = {
    "gauge": draw_gauge(0.26, Spread(0.25, 0.22, 0.3)),
    "timeline": draw_timeline(STEPS, 0.045, 400),
    "stages": draw_stage_bars(BARS, 400),
    "fix": draw_before_after(1000, 1400, None, 1500, "fix"),
}


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter() if element.tag.endswith("text")]


def ids(svg: str) -> list[str]:
    return [name for element in ET.fromstring(svg).iter() if (name := element.get("id"))]


def bar_widths(svg: str, prefix: str) -> dict[str, float]:
    """Returns the width of each bar by name, in pixels."""
    widths = {}
    for name, path in re.findall(rf'<g id="{prefix}-bar-(\w+)">\s*<path d="([^"]+)"', svg):
        x = [float(pair.split()[0]) for pair in re.findall(r"[ML] ([\d.]+ [\d.]+)", path)]
        widths[name] = max(x) - min(x)
    return widths


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_is_one_element_that_keeps_to_itself(name: str) -> None:
    svg = CHARTS[name]
    root = ET.fromstring(svg.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1))
    assert root.get("role") == "img"
    assert root.get("aria-label")
    assert all(each == name or each.startswith(f"{name}-") for each in ids(svg))
    assert len(set(ids(svg))) == len(ids(svg))
    assert set(re.findall(r"url\(#([^)]+)\)", svg)) <= set(ids(svg))
    for foreign in ("<?xml", "<!DOCTYPE", "<style", "<script", "http", "metadata"):
        assert foreign not in svg
    assert not re.search(r"#[0-9a-f]{6}", svg), "every color is one of the page's"


def test_the_same_figures_give_the_same_bytes() -> None:
    assert draw_gauge(0.26, Spread(0.25, 0.22, 0.3)) == CHARTS["gauge"]
    assert draw_timeline(STEPS, 0.045, 400) == CHARTS["timeline"]
    assert draw_stage_bars(BARS, 400) == CHARTS["stages"]
    assert draw_before_after(1000, 1400, None, 1500, "fix") == CHARTS["fix"]


@pytest.mark.parametrize(
    ("idle", "text"), [(0.0, "0 %"), (0.001, "under 1 %"), (0.26, "26 %"), (0.999, "100 %"), (1.0, "100 %")]
)
def test_the_gauge_says_how_much(idle: float, text: str) -> None:
    svg = draw_gauge(idle, Spread(idle, idle, idle))
    assert texts(svg) == [text, "idle"]
    assert svg.count("var(--idle)") == (idle > 0)


def test_a_bar_is_as_long_as_its_stage_costs() -> None:
    widths = bar_widths(CHARTS["stages"], "stages")
    assert list(widths) == ["read", "decode"]
    assert widths["decode"] / widths["read"] == pytest.approx(12, rel=1e-4)
    assert texts(CHARTS["stages"]) == ["read", "200 µs", "decode", "2,400 µs"]
    assert 'bar-decode">' in CHARTS["stages"]
    assert CHARTS["stages"].count("fill: var(--idle)") == 1


def test_stages_that_cost_nothing_have_bars() -> None:
    assert bar_widths(draw_stage_bars([Bar("list", Spread(0, 0, 0))], 300), "stages") == {"list": 0}


def test_a_fix_has_a_bar_for_each_rate() -> None:
    predicted = bar_widths(CHARTS["fix"], "fix")
    assert predicted["predicted"] / predicted["now"] == pytest.approx(1.4, rel=1e-4)
    assert set(texts(CHARTS["fix"])) == {"required 1,500", "now", "1,000", "predicted", "1,400"}
    assert list(bar_widths(draw_before_after(1000, 1400, 1300, 1500, "fix"), "fix")) == ["now", "predicted", "measured"]


@pytest.mark.parametrize("count", [1, 2, 200])
@pytest.mark.parametrize(("idle_s", "step_s", "unit"), [(0.0, 1e-5, "ms"), (3600.0, 0.001, "s"), (0.0, 60.0, "s")])
def test_a_timeline_of_any_size(count: int, idle_s: float, step_s: float, unit: str) -> None:
    svg = draw_timeline([Step(i, idle_s, idle_s + step_s / 2) for i in range(count)], step_s, 326)
    assert unit in texts(svg)
    assert {"timeline-compute", "timeline-idle", "timeline-wait"} <= set(ids(svg))


def test_names_are_text_whatever_is_in_them() -> None:
    svg = draw_stage_bars([Bar("a</svg><script>$x^2$", Spread(1, 1, 1))], 300)
    assert texts(svg)[0] == "a</svg><script>$x^2$"
    assert "<script" not in svg


def test_drawing_leaves_matplotlib_as_it_was() -> None:
    code = """
import sys, matplotlib
before = matplotlib.rcParams.copy()
from tfpipe.profiler.report.charts import draw_gauge
from tfpipe.profiler.types import Spread
draw_gauge(0.5, Spread(0.5, 0.4, 0.6))
assert matplotlib.rcParams.copy() == before
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
