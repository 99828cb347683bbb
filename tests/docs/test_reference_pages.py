"""The reference is whole: each public name, each option and each field of a JSON output has its place."""

import dataclasses
import re
import shutil
from pathlib import Path
from typing import Any

import docstring_markup
import option_rows
import pytest

import tfpipe as library
from tests.conftest import ROOT, Tfpipe
from tests.test_documented_options import CONFIGS
from tfpipe.engine.config import toml_json

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
    printed = tfpipe(name, *(words.get(word, word) for word in arguments.split()), "--json")
    assert printed.code == 0, printed.err
    first = command if name == "shard" else f"`{command}`"
    (row,) = (line for line in (REFERENCE / "json.md").read_text().splitlines() if line.startswith(f"| {first} |"))
    listed = re.findall(r"`(\w+)`", row.removeprefix(f"| {first}"))
    document = printed.json
    assert set(document) <= set(listed)
    if command == "inspect" or name == "shard":
        assert {key for split in document["splits"].values() for key in split} <= set(listed)
        assert set(document.get("estimate", ())) <= set(listed)
