"""Every figure of speed on a page comes from docs/figures.toml."""

import re

import figures
import pytest

from tests.conftest import ROOT
from tests.docs.pages import DOCS, PAGES, parse

VALUES = figures.make_substitutions()

# "1.5 times as many", "40 % less", "0.47 of the processor time", "495 images per CPU-second".
RATIO = re.compile(
    r"\b\d+\.\d+(?: to [\d.]+)? times\b|\b[\d.]+ % (?:less|more|faster|slower|cheaper|fewer)\b"
    r"|\b0\.\d+ of (?:the|its|that)\b|\b[\d,.]*\d (?:images |originals )?(?:a|per) CPU-second"
)


def find_ratios(text: str) -> list[str]:
    """Returns the ratios and rates that a page writes itself, outside of blocks of code."""
    return [match for token in parse(text) if token.type == "inline" for match in RATIO.findall(token.content)]


def test_no_page_has_a_ratio_by_hand() -> None:
    texts = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in PAGES}
    found = {name: ratios for name, text in texts.items() if (ratios := find_ratios(text))}
    assert found == {"README.md": [f"{VALUES[f'crops_{name}_gain']} times" for name in ("tfpipe", "tfpipe_seekable")]}


def test_a_ratio_is_found() -> None:
    text = (
        "2.1 times as fast, {{ a }} images per CPU-second.\n\n```text\n5 % less\n```\n\nOr 40 % less: 495 a CPU-second."
    )
    assert find_ratios(text) == ["2.1 times", "40 % less", "495 a CPU-second"]


def test_the_readme_has_the_bars_of_the_chart() -> None:
    (alternative,) = re.findall(r'alt="(Images.*?)"', (ROOT / "README.md").read_text(encoding="utf-8"))
    bars = [VALUES["_".join(place)] for place in figures.BARS.values()]
    assert re.findall(r" ([\d,]*\d)(?:,|$)", alternative) == bars


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_charts_are_drawn_from_the_figures_of_today(theme: str) -> None:
    assert (DOCS / "_static" / f"speed-{theme}.svg").read_text(encoding="utf-8") == figures.draw_chart(theme)


def test_the_results_have_each_figure() -> None:
    results = (ROOT / "tests" / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert [text for key, text in VALUES.items() if not key.endswith("_gain") and text not in results] == []
