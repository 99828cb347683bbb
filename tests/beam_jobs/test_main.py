"""The job as a plain Beam command."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from beam_jobs import __main__
from beam_jobs.__main__ import _config, _parser, command_line
from beam_jobs.config import ShardConfig
from tests.beam_jobs.commands import ROOT, finish_command, start_command
from tests.beam_jobs.datasets import make_dataset, read_tree
from tests.beam_jobs.images import make_photos, write_files
from tfpipe.format.image_form import ImageForm

EVERYTHING = ShardConfig(
    input="gs://in/a folder",
    output="gs://out",
    splits={"train": 0.75, "test": 0.25},
    group_by="patient",
    labels="labels.txt",
    num_shards=8,
    shard_size_bytes=1000,
    shuffle=False,
    seed=-3,
    form=ImageForm(encoding="jpeg", resize_short=256, quality=90, reencode_progressive=True, max_pixels=1000),
    max_bad=0.02,
    keep_quarantined=True,
    drop_duplicates=True,
    overwrite=True,
    workers=3,
)
CONFIGS = [
    ShardConfig("in", "out"),
    EVERYTHING,
    ShardConfig("in", "out", split="val", max_bad=25, form=ImageForm(encoding="raw", square=64)),
    ShardConfig("a, b", "out", datasets=("a", "b"), form_changes={"encoding": "jpeg", "resize_short": 64}),
]


@pytest.mark.parametrize("config", CONFIGS, ids=range(len(CONFIGS)))
def test_there_and_back(config: ShardConfig) -> None:
    words = shlex.split(command_line(config, ["--runner=DataflowRunner", "--label", "a=b"]))
    assert words[:3] == ["python", "-m", "beam_jobs.shard_job"]
    given, rest = _parser().parse_known_args(words[3:])
    assert _config(vars(given)) == config
    assert rest == ["--runner=DataflowRunner", "--label", "a=b"]


def test_defaults_are_left_out() -> None:
    assert command_line(ShardConfig("in", "out"), ()) == "python -m beam_jobs.shard_job --input=in --output=out"


def test_no_option_is_one_of_beams() -> None:
    ours = {option.lstrip("-") for action in _parser()._actions for option in action.option_strings}
    assert not ours & {*PipelineOptions([]).get_all_options(), "labels"}


def test_the_printed_command_makes_the_same(tmp_path: Path) -> None:
    write_files(tmp_path / "my photos", make_photos({"cat": 7, "dog": 6}))
    source, output = tmp_path / "my photos", tmp_path / "out"
    options = ["--splits", "a=0.7,b=0.3", "--num-shards", "2", "--seed", "5", "--encoding", "jpeg", "--workers", "1"]
    code, out, err = finish_command(start_command(source, output, *options, "--print-command"))
    assert (code, err) == (0, "")
    assert not output.exists()
    python, *words = shlex.split(out)
    assert python == "python"
    made = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    assert made.stderr.splitlines()[-1].startswith(f"{output} is complete: 13 records, ")
    form = ImageForm(encoding="jpeg")
    make_dataset(source, tmp_path / "other", splits={"a": 0.7, "b": 0.3}, num_shards=2, seed=5, form=form)
    assert read_tree(output) == read_tree(tmp_path / "other")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--input=a"], 2, "the following arguments are required: --output"),
        (["--input=a", "--output=b", "--num_shards=x"], 2, "argument --num_shards: invalid int value: 'x'"),
        (["--input=a", "--output=b", "--splits=[1]"], 2, "argument --splits: invalid json_object value: '[1]'"),
        (["--input=a", "--output=b", "--num_shards=0"], 2, "Error: `num_shards` must be at least 1, got 0.\n"),
        (["--input=nowhere", "--output=b"], 1, "nowhere does not exist.\n"),
        (["--input=a", "--output=b", "--nix=1"], 2, "must be known to Beam, got --nix.\n"),
    ],
)
def test_a_mistake(words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        __main__.main(words)
    assert stop.value.code == code
    assert message in capsys.readouterr().err
