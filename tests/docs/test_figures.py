"""Every figure of speed on a page comes from docs/figures.toml."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.docs.pages import DOCS, PAGES, parse
from tests.docs.test_reference_pages import load_extension

figures = load_extension("figures")
RESULTS = (ROOT / "tests" / "benchmarks" / "README.md").read_text(encoding="utf-8")

# "1.5 times as many", "40 % less", "0.47 of the processor time", "495 images per CPU-second".
RATIO = re.compile(
    r"\b\d+\.\d+(?: to [\d.]+)? times\b|\b[\d.]+ % (?:less|more|faster|slower|cheaper|fewer)\b"
    r"|\b0\.\d+ of (?:the|its|that)\b|\b[\d,.]*\d (?:images |originals )?(?:a|per) CPU-second"
)


def find_ratios(text: str) -> list[str]:
    """Returns the ratios and rates that a page writes itself, outside of blocks of code and of what it substitutes."""
    texts = [token.content for token in parse(text) if token.type == "inline"]
    return [match for text in texts for match in RATIO.findall(re.sub(r"\{\{.*?\}\}", "", text))]


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent != ROOT], ids=lambda page: page.stem)
def test_no_page_has_a_ratio_by_hand(page: Path) -> None:
    assert find_ratios(page.read_text(encoding="utf-8")) == []


def test_a_ratio_is_found() -> None:
    text = (
        "2.1 times as fast, {{ a }} images per CPU-second.\n\n```text\n5 % less\n```\n\nOr 40 % less: 495 a CPU-second."
    )
    assert find_ratios(text) == ["2.1 times", "40 % less", "495 a CPU-second"]


def test_the_readme_has_the_figures_of_today() -> None:
    values = figures.make_substitutions()
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    gain, seekable = values["crops_tfpipe_gain"], values["crops_tfpipe_seekable_gain"]
    assert find_ratios(readme) == [f"{gain} times", f"{seekable} times"]
    bars = [values[f"{table}_{name}"] for table, name, _ in figures.BARS]
    assert re.findall(r"(?:seekable|tfpipe|hand|DALI|FFCV) ([\d,]+\d)", re.findall(r'alt="(.*?)"', readme)[0]) == bars


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_charts_are_drawn_from_the_figures_of_today(theme: str) -> None:
    assert (DOCS / "_static" / f"speed-{theme}.svg").read_text(encoding="utf-8") == figures.draw_chart(theme)


def test_the_results_have_each_figure() -> None:
    missing = [figure for table in figures.read_figures().values() for figure in table.values()]
    assert [figure for figure in missing if f"{figure:,}" not in RESULTS] == []
