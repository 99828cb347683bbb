"""What is said of errors."""

import pickle
import re
from pathlib import Path

import pytest

from beam_jobs.runners.beam_errors import remove_graph_step
from tests.conftest import ROOT, Tfpipe
from tfpipe.errors import ConfigError, MissingDependencyError, first_line, hide_secrets


def test_the_first_line_of_an_error() -> None:
    assert first_line(ValueError("\n  It failed.\n\nStack trace:\n ...")) == "It failed"
    assert first_line(ValueError()) == "ValueError"
    assert first_line(KeyError("image")) == "KeyError: 'image'"
    graph = "{{function_node __wrapped__Iterator}} Unknown image file format. [[{{node Decode}}]] [Op:IteratorGetNext]"
    assert first_line(ValueError(graph)) == "Unknown image file format"
    ours = "{{function_node f}} Error in Map: assertion failed: [Record 0 is damaged. Copy it.]\n\t [[{{node Assert}}]]"
    assert first_line(ValueError(ours)) == "Record 0 is damaged"
    step = (
        "{{function_node f}} Error in user-defined function passed to ParallelMapDatasetV2:41 transformation with "
        "iterator: Iterator::Root::Prefetch::ParallelMapV2: jpeg::Uncompress failed.\n\t [[{{node Decode}}]]"
    )
    assert first_line(ValueError(step)) == "jpeg::Uncompress failed"
    code = (
        'in user code:\n\n    File "stages.py", line 3, in change  *\n        x\n\n    ValueError: It does not fit.\n'
    )
    assert first_line(ValueError(code)) == "ValueError: It does not fit"


def test_an_error_keeps_its_page() -> None:
    error = MissingDependencyError("It is missing.", page="install")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.page, copy.exit_code) == ("It is missing.", "install", 1)
    assert remove_graph_step(error).page == "install"
    assert (ConfigError("No.").page, vars(ConfigError("No."))) == ("", {})


def test_the_pages_that_errors_name_can_be_printed(tfpipe: Tfpipe) -> None:
    sources = [path for package in ("tfpipe", "beam_jobs") for path in (ROOT / package).rglob("*.py")]
    named = {page for path in sources for page in re.findall(r'page="([^"]+)"', path.read_text(encoding="utf-8"))}
    assert len(named) >= 3
    for page in named:
        done = tfpipe("help", page)
        assert (done.code, done.err) == (0, ""), page
        assert done.out.startswith("## " if "#" in page else "# "), page


def test_a_page_without_its_comments_and_an_unknown_page(tfpipe: Tfpipe) -> None:
    assert "symptoms" in tfpipe("help").lines
    assert not [name for name in tfpipe("help").lines if re.search(r"^%|\{\{", tfpipe("help", name).out, re.MULTILINE)]
    sentence = "Error: TOPIC must be a command, or one of the pages that `tfpipe help` lists, got 'memory'.\n"
    assert tfpipe("help", "memory")[::2] == (2, sentence)
    assert tfpipe("help", "shard") == tfpipe("shard", "--help")


def test_the_command_line_shows_the_page_below_the_error(tfpipe: Tfpipe, tmp_path: Path) -> None:
    (tmp_path / ".tfpipe").mkdir()
    done = tfpipe("inspect", tmp_path)
    assert done.code == 1
    assert done.err.splitlines() == [
        f"Error: {tmp_path} holds no manifest.json: it is not a finished tfpipe dataset. An earlier run was not "
        "finished; run the same `tfpipe shard` command again to finish it.",
        "More: tfpipe help symptoms#the-run-does-not-go-on",
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("got https://h/a.png?X-Amz-Signature=S&b=2. Mend it.", "got https://h/a.png?.... Mend it."),
        ("'az://box/a?sig=S' and gs://b/c", "'az://box/a?...' and gs://b/c"),
        ("https://h/a?TOKEN", "https://h/a?..."),
        ("https://TOKEN@h/a", "https://...@h/a"),
        ("s3://key:SECRET@bucket/a", "s3://...@bucket/a"),
        ("hf://datasets/me/cats@main/a", "hf://datasets/me/cats@main/a"),
        ("abfss://box@account/a", "abfss://box@account/a"),
        ("gs://data/train-????", "gs://data/train-????"),
        ("grpc://10.0.0.2:8470", "grpc://10.0.0.2:8470"),
        ("a?b=c@d", "a?b=c@d"),
    ],
)
def test_passwords_and_queries_of_addresses_are_not_shown(text: str, shown: str) -> None:
    assert hide_secrets(text) == shown
    assert str(ConfigError(text)) == shown
