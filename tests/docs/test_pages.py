"""Links inside the project lead somewhere (those to other sites are not opened), and figures come from one file."""

import re
from pathlib import Path

import figures
import pytest

from tests.conftest import ROOT
from tests.docs.pages import DOCS, PAGES, find_anchors, find_links, parse
from tfpipe.system.extras import name_install

OTHERS = sorted(path for path in ROOT.rglob("README.md") if path != ROOT / "README.md" and "build" not in path.parts)
CHECKED = [*PAGES, *(path for path in OTHERS if ".venv" not in path.parts), ROOT / "CONTRIBUTING.md"]


def find_broken(page: Path) -> list[str]:
    """Returns a sentence for each link that leads nowhere."""
    broken = []
    for link in find_links(page):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists():
            broken.append(f"{page.name}: there is no {link}.")
        elif anchor and target.suffix == ".md" and anchor not in find_anchors(target):
            broken.append(f"{page.name}: {name or 'the page'} has no heading {anchor!r}.")
    return broken


@pytest.mark.parametrize("page", CHECKED, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    assert find_broken(page) == []


@pytest.mark.parametrize("page", CHECKED, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_install_lines_are_those_of_the_errors(page: Path) -> None:
    """Before the first release tfpipe comes from a checkout; only the page about installing names what will be."""
    own = name_install("tfpipe[beam]").split("beam")[0]
    lines = re.findall(r"pip install .*?'(?:\.|tfpipe)\[", page.read_text(encoding="utf-8"))
    assert [line for line in lines if line[-3:] != own[-3:]] == (
        ["pip install 'tfpipe["] if page.stem == "install" else []
    )


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# One `name`\n\n(own)=\n\ntext\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md#one-name) [b](other.md#own) [c](other.md#two) [d](gone.md) ![e](gone.svg) <https://x.y>\n"
    )
    assert find_broken(page) == [
        "page.md: other.md has no heading 'two'.",
        "page.md: there is no gone.md.",
        "page.md: there is no gone.svg.",
    ]


def test_every_page_is_in_a_table_of_contents() -> None:
    """Sphinx says the same, as a warning; this test needs no Sphinx."""
    listed = {DOCS / "index.md"}
    for page in PAGES:
        for entries in re.findall(
            r"^```\{toctree\}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
        ):
            for entry in entries.splitlines():
                name = re.sub(r".*<(.*)>", r"\1", entry.strip())
                if name and not name.startswith(":"):
                    listed |= set(page.parent.glob(f"{name}.md"))
    assert set(DOCS.rglob("*.md")) <= listed


def test_the_page_for_machines_names_pages_that_exist() -> None:
    links = re.findall(r"\]\(([^)]+)\)", (DOCS / "llms.txt").read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not (DOCS / link).with_suffix(".md").exists()] == []


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
