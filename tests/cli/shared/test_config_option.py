"""A command-line option reads its type and its default from the field of the config."""

import json
from dataclasses import dataclass
from typing import Any

import click
import pytest
from click.testing import CliRunner

from beam_jobs.runners.base import RunnerConfig
from tfpipe.cli.main import tfpipe as commands
from tfpipe.cli.shared.config_option import config_option, describe_field
from tfpipe.export.config import ExportConfig
from tfpipe.system.options import Amount, Choice, Count, Flag, Number, Text, option
from tfpipe.training.config import TrainConfig


@dataclass(frozen=True)
class Config:
    num_files: int | None = option(Count(1), None)
    rate: float = option(Number(above=0), 1e-4)
    smoothing: float = option(Number(at_least=0), 0.0)
    encoding: str = option(Choice(("keep", "jpeg")), "keep")
    buffer: int | str = option(Amount(), "256MiB")
    overwrite: bool = option(Flag(), False)
    shuffle: bool = option(Flag(), True)
    name: str = option(Text(), "a")


@click.command()
@config_option(Config, "num_files", "The number.", metavar="N", default="one for each core")
@config_option(Config, "rate", "The rate.", metavar="R")
@config_option(Config, "smoothing", "The share.")
@config_option(Config, "encoding", "The encoding.")
@config_option(Config, "buffer", "The buffer.")
@config_option(Config, "overwrite", "Replace them.")
@config_option(Config, "shuffle", "Mix them.")
@config_option(Config, "name", "The name.", default="")
def command(**options: Any) -> None:
    click.echo(json.dumps(options))


def test_the_help_shows_types_and_defaults() -> None:
    lines = CliRunner().invoke(command, ["--help"], terminal_width=100).output.splitlines()
    assert [" ".join(line.split()) for line in lines if line.startswith("  --")] == [
        "--num-files N The number. [default: one for each core]",
        "--rate R The rate. [default: 0.0001]",
        "--smoothing FLOAT The share. [default: 0]",
        "--encoding [keep|jpeg] The encoding. [default: keep]",
        "--buffer SIZE The buffer. [default: 256MiB]",
        "--overwrite Replace them.",
        "--shuffle / --no-shuffle Mix them. [default: shuffle]",
        "--name TEXT The name.",
        "--help Show this message and exit.",
    ]


@pytest.mark.parametrize(
    ("args", "options"),
    [
        ([], {}),
        (["--num-files", "3", "--rate", "0.5"], {"num_files": 3, "rate": 0.5}),
        (["--encoding", "jpeg", "--overwrite"], {"encoding": "jpeg", "overwrite": True}),
        (["--no-shuffle"], {"shuffle": False}),
        (["--buffer", "1KiB", "--name", "b"], {"buffer": 1024, "name": "b"}),
    ],
)
def test_what_is_not_given_is_none(args: list[str], options: dict[str, Any]) -> None:
    names = ("num_files", "rate", "smoothing", "encoding", "buffer", "overwrite", "shuffle", "name")
    assert json.loads(CliRunner().invoke(command, args).output) == {**dict.fromkeys(names), **options}


def test_a_field_without_a_text_has_the_first_sentence_of_its_documentation() -> None:
    assert describe_field(TrainConfig, "epochs") == "The number of epochs."
    assert describe_field(RunnerConfig, "region") == "Dataflow: the region of the machines, such as europe-west4."
    assert describe_field(Config, "name") == ""


def test_every_option_has_a_text() -> None:
    for name, one in commands.commands.items():
        for param in one.params:
            if isinstance(param, click.Option):
                assert (param.help or "").partition("  [default")[0].endswith("."), (name, param.name)


def test_a_wrong_word_is_refused() -> None:
    assert "'png' is not one of 'keep', 'jpeg'" in CliRunner().invoke(command, ["--encoding", "png"]).output


def test_a_word_may_have_a_second_name() -> None:
    @click.command()
    @config_option(ExportConfig, "to", "The word.")
    def show(to: str) -> None:
        click.echo(to)

    assert CliRunner().invoke(show, ["--to", "wds"]).output == "webdataset\n"
