"""Every link inside the project leads somewhere; links to other sites are not opened."""

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.docs.pages import DOCS, PAGES, find_anchors, find_links
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
