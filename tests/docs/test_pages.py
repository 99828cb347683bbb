"""Links inside the project lead somewhere, figures come from one file, and the reference is whole."""

import dataclasses
import re
import shutil
from pathlib import Path
from typing import Any

import docstring_markup
import figures
import option_rows
import pytest

import tfpipe as library
from tests.conftest import ROOT, Tfpipe
from tests.docs.pages import DOCS, PAGES, find_anchors, find_links, parse
from tests.test_documented_options import CONFIGS
from tfpipe.engine.config import toml_json
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
def test_links_lead_somewhere_and_install_lines_are_those_of_the_errors(page: Path) -> None:
    """Before the first release tfpipe comes from a checkout; only the page about installing names what will be."""
    assert find_broken(page) == []
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


REFERENCE = ROOT / "docs" / "reference"


def read_pages() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(REFERENCE.glob("*.md")))


def test_every_public_name_has_its_place() -> None:
    documented = re.findall(r"(?:\.\. auto\w+:: |\{option-table\} |`)(tfpipe\.\w+)$", read_pages(), re.MULTILINE)
    missing = {f"tfpipe.{name}" for name in library.__all__} - set(documented) - {"tfpipe.__version__"}
    assert not missing
    assert "`tfpipe.__version__`" in read_pages()


def test_every_config_has_a_table() -> None:
    tables = re.findall(r"^```\{option-table\} (\S+)$", read_pages(), re.MULTILINE)
    assert sorted(table.rpartition(".")[2] for table in tables) == sorted(config.__name__ for config in CONFIGS)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.__name__)
def test_a_table_has_a_row_for_each_option(config: type[Any]) -> None:
    lines = option_rows.write_markdown(config)
    rows = [re.split(r"(?<!\\) ?\| ?", line)[1:-1] for line in lines if line.startswith("| `")]
    public = [field.name for field in dataclasses.fields(config) if not field.name.startswith("_")]
    assert [row[0] for row in rows] == [f"`{name}`" for name in public]
    assert len({len(row) for row in rows}) == 1
    assert all(row[-1] and row[1] for row in rows)


def test_a_row_has_default_values_and_meaning() -> None:
    write_markdown = option_rows.write_markdown
    assert (
        "| `block_length` | `16` | The number of records that are taken from one file before the next one has its "
        "turn. At least 1. *Affects: speed.* |"
    ) in write_markdown(library.TfDataOptions)
    lines = write_markdown(library.PipelineConfig)
    assert "| option | default | meaning |" in lines
    (seed,) = (line for line in lines if line.startswith("| `seed` "))
    assert seed.endswith(r" From -2\*\*63 to 2\*\*64 - 1. *Affects: order.* |")


def test_docstrings_become_restructured_text() -> None:
    convert = docstring_markup.convert
    assert convert(["Needs --epochs.", ".. option:: --a-b"]) == ["Needs ``--epochs``.", ".. option:: --a-b"]
    assert convert(["Files `a*b` that match *.jpg, as `Example`s.", "```", "a * b", "```"]) == [
        r"Files `a*b` that match \*.jpg, as `Example`\ s.",
        "::",
        "",
        "    a * b",
        "",
    ]


def test_the_page_about_installing_lists_every_extra() -> None:
    extras = set(toml_json.read(ROOT / "pyproject.toml")["project"]["optional-dependencies"])
    rows = re.findall(r"^\| (`[^|]+) \|", (ROOT / "docs/start/install.md").read_text(encoding="utf-8"), re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`([\w-]+)`", row)}
    assert extras - listed == {"docs", "test", "test-all"}  # for those who work on tfpipe


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        *(("inspect", "DATASET"), ("inspect --record", "DATASET --record train:0"), ("--version", "")),
        *(("verify", "DATASET"), ("repair", "DATASET OUT"), ("index", "FOREIGN")),
        ("the same with `--dry-run`", "IMAGES OUT --dry-run"),
    ],
)
def test_the_page_lists_the_fields_of_a_json_output(
    command: str, arguments: str, small_dataset: Path, tmp_path: Path, tfpipe: Tfpipe
) -> None:
    (tmp_path / "foreign").mkdir()
    shard = small_dataset / "train-00000-of-00002.tfrecord"
    shutil.copy(shard, tmp_path / "foreign" / "train-00000-of-00001.tfrecord")
    words = {"DATASET": small_dataset, "OUT": tmp_path / "out", "FOREIGN": tmp_path / "foreign"}
    words["IMAGES"] = small_dataset.parent / "images"
    name = "shard" if "dry-run" in command else command.split()[0]
    document = tfpipe(name, *(words.get(word, word) for word in arguments.split()), "--json").ok.json
    first = command if name == "shard" else f"`{command}`"
    (row,) = (line for line in (REFERENCE / "json.md").read_text().splitlines() if line.startswith(f"| {first} |"))
    listed = re.findall(r"`(\w+)`", row.removeprefix(f"| {first}"))
    assert set(document) <= set(listed)
    if command == "inspect" or name == "shard":
        assert {key for split in document["splits"].values() for key in split} <= set(listed)
        assert set(document.get("estimate", ())) <= set(listed)
