"""A command-line option reads its type and its default from the field of the config."""

import json
import re
from dataclasses import dataclass
from typing import Any

import click
from click.testing import CliRunner

from beam_jobs.config import ShardConfig
from beam_jobs.runners.base import RunnerConfig
from tests.refusals import refusal
from tfpipe.cli.main import tfpipe as commands
from tfpipe.cli.shared.command import HelpOption
from tfpipe.cli.shared.config_option import COUNT_OR_SHARE, SHARES, SIZE, config_option, config_options, describe_field
from tfpipe.columns.config import TableConfig
from tfpipe.format.image_form import ImageForm
from tfpipe.system.options import Choice, Count, Flag, Names, Number, Text, get_options, option
from tfpipe.training.config import TrainConfig


@dataclass(frozen=True)
class Config:
    """The options of a test.

    Attributes:
        source: The input.
        num_files: The number of files in `source`. None: one for each core, or as `encoding` says. At least 1.
        rate: The rate. It decays. Above 0. Default: 1e-4.
        smoothing: The share.
        encoding: The encoding. `keep`: as they are. "keep" or "jpeg". Default: "keep".
        buffer_bytes: The buffer. Default: 256 * 2**20.
        overwrite: Whether they are replaced.
        shuffle: Whether they are mixed.
        name: The name. Empty: none.
        columns: The columns.
    """

    source: str
    num_files: int | None = option(Count(1), None, group="Files")
    rate: float = option(Number(above=0), 1e-4, metavar="R")
    smoothing: float = option(Number(at_least=0), 0.0)
    encoding: str = option(Choice(("keep", "jpeg")), "keep", group="Files", rare=True)
    buffer_bytes: int = option(Count(1), 256 * 2**20, flag="--buffer", metavar="SIZE")
    overwrite: bool = option(Flag(), False)
    shuffle: bool = option(Flag(), True)
    name: str = option(Text(), "")
    columns: tuple[str, ...] = option(Names(), (), flag="--column", metavar="COLUMN")


@click.command()
@config_options(Config, "", "Files", without=("name",))
@config_option(Config, "name", default="that of the day")
def command(**options: Any) -> None:
    click.echo(json.dumps(options))


def test_the_help_shows_types_words_and_defaults() -> None:
    lines = CliRunner().invoke(command, ["--help"], terminal_width=150).output.splitlines()
    assert [" ".join(line.split()) for line in lines if line.startswith("  --")] == [
        "--rate R The rate. [default: 0.0001]",
        "--smoothing FLOAT The share. [default: 0]",
        "--buffer SIZE The buffer. [default: 256MiB]",
        "--overwrite Whether they are replaced.",
        "--shuffle / --no-shuffle Whether they are mixed. [default: shuffle]",
        "--column COLUMN The columns. Repeat it for several.",
        "--num-files N The number of files in SOURCE. [default: one for each core, or as --encoding says]",
        "--encoding [keep|jpeg] The encoding. keep: as they are. [default: keep]",
        "--name TEXT The name. [default: that of the day]",
        "--help Show this message and exit.",
    ]


def test_an_option_knows_its_group_and_its_words() -> None:
    shown = {param.name: (param.group, param.rare) for param in command.params if isinstance(param, HelpOption)}
    assert (shown["num_files"], shown["encoding"], shown["rate"]) == (("Files", False), ("Files", True), ("", False))
    assert "'png' is not one of 'keep', 'jpeg'" in CliRunner().invoke(command, ["--encoding", "png"]).output


def test_what_is_not_given_is_none() -> None:
    missing = {**dict.fromkeys(get_options(Config)), "columns": []}
    given: dict[str, dict[str, Any]] = {
        "": {},
        "--num-files 3 --rate 0.5": {"num_files": 3, "rate": 0.5},
        "--encoding jpeg --overwrite": {"encoding": "jpeg", "overwrite": True},
        "--no-shuffle": {"shuffle": False},
        "--buffer 1KiB --name b": {"buffer_bytes": 1024, "name": "b"},
        "--column a --column b": {"columns": ["a", "b"]},
    }
    for args, options in given.items():
        assert json.loads(CliRunner().invoke(command, args.split()).output) == {**missing, **options}


def test_the_words_of_a_field_are_those_of_its_documentation() -> None:
    assert describe_field(TrainConfig, "epochs") == ("The number of epochs.", "100 for small_cnn, else 90")
    region = "Dataflow: the region of the machines, such as europe-west4."
    assert describe_field(RunnerConfig, "region") == (region, "")
    assert describe_field(ImageForm, "quality") == ("The JPEG quality of images that are encoded again.", "")
    layouts = " beside `annotations/instances_*.json`, or one with Annotations, "
    assert layouts in describe_field(ShardConfig, "input_format")[0]
    without = "The treatment of records without a value: nothing is"
    assert describe_field(TableConfig, "missing")[0].startswith(without)


def test_every_option_has_a_text_that_the_site_can_show() -> None:
    for name, one in ((name, commands.get_command(None, name)) for name in commands.modules):
        for param in one.params:
            if isinstance(param, click.Option):
                text = param.help or ""
                assert text.partition("  [default")[0].endswith("."), (name, param.name)
                assert not re.search(r"\w_(?!\w)", re.sub(r"`.*?`", "", text)), (name, param.name)  # a link there


def test_values_in_words() -> None:
    for kind, text, value in (
        (SIZE, "128MiB", 128 * 2**20),
        (COUNT_OR_SHARE, "25", 25),
        (COUNT_OR_SHARE, "1%", 0.01),
        (COUNT_OR_SHARE, "0.25", 0.25),
        (COUNT_OR_SHARE, "0", 0),
        (SHARES, "train=0.9, validation=0.1", {"train": 0.9, "validation": 0.1}),
    ):
        converted = kind.convert(text, None, None)
        assert (converted, type(converted)) == (value, type(value))
    for kind, text, must in (
        (SIZE, "big", "a size such as 128MiB or 2GB"),
        (COUNT_OR_SHARE, "some", "a count such as 25 or a share such as 1%"),
        (SHARES, "train", "like train=0.9,validation=0.1, each split once"),
        (SHARES, "a=0.5,a=0.5", "like train=0.9,validation=0.1, each split once"),
    ):
        error = refusal(click.BadParameter, kind.convert, text, None, None)
        assert error == f"must be {must}, got {text!r}."
