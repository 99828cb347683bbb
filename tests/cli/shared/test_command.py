"""Fields in messages become options; the groups of a help screen, and the order of the commands."""

import re
import shlex

import click
import pytest
from click.testing import CliRunner

from tests.conftest import ROOT, Tfpipe
from tfpipe.cli.main import CONTEXT_SETTINGS
from tfpipe.cli.main import tfpipe as commands
from tfpipe.cli.shared.command import GroupedCommand, HelpOption, help_option, name_options


@click.command()
@click.option("-n", "--max-bad", type=int)
@click.option("--shuffle/--no-shuffle")
@click.argument("dataset")
def command(max_bad: int, shuffle: bool, dataset: str) -> None:
    """Does nothing."""


def test_fields_become_options() -> None:
    assert name_options("`max_bad` must be at least 0, got -1.", command) == "--max-bad must be at least 0, got -1."
    assert name_options("Leave `shuffle` or `max_bad` out.", command) == "Leave --shuffle or --max-bad out."
    for message in (
        "`cache` must be none or bytes.",  # an option of other commands
        "`dataset` is missing; `tfpipe verify` names it.",
        "a.toml: `max_bad` must be at least 0, got -1.",
    ):
        assert name_options(message, command) == message


OPTION = re.compile(r"  (?:-h, )?--([a-z-]+)")


def list_options(text: str) -> list[str]:
    """Returns the options of a help screen, in its order."""
    groups = [lines for paragraph in text.split("\n\n") if (lines := paragraph.splitlines())[0].endswith(":")]
    return [found[1] for lines in groups for line in lines if (found := OPTION.match(line))]


@pytest.mark.parametrize("name", commands.modules)
def test_every_option_stands_in_the_help_with_an_example_and_few_in_the_first_one(tfpipe: Tfpipe, name: str) -> None:
    command = commands.get_command(None, name)
    assert isinstance(command, GroupedCommand)
    first, every = tfpipe(name, "--help"), tfpipe(name, "--help-all")
    assert (first.code, every.code) == (0, 0)
    has_rare = any(isinstance(param, HelpOption) and param.rare for param in command.params)
    help_options = ["help", "help-all"] if has_rare else ["help"]
    options = [param for param in command.params if isinstance(param, click.Option)]
    names = [max(option.opts, key=len).removeprefix("--") for option in options]
    assert sorted(list_options(every.out)) == sorted([*names, *help_options])
    shown = list_options(first.out)
    assert shown == [option for option in list_options(every.out) if option in shown]
    assert (len(shown) < len(list_options(every.out))) == has_rare
    assert shown[-len(help_options) :] == help_options
    assert len(shown) <= 25
    refused = tfpipe(name, "--frobnicate")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.splitlines()[-1].startswith("Error: No such option '--frobnicate'.")
    program, shown_name, *args = shlex.split(command.example)
    assert (program, shown_name) == ("tfpipe", name)
    command.make_context(name, args, **CONTEXT_SETTINGS)  # click keeps its help option


def test_an_option_without_a_group_stands_last_and_a_rare_one_behind_help_all() -> None:
    @click.command(cls=GroupedCommand, name="paint", help="Paint it.")
    @click.option("--new", is_flag=True, help="A new one.")
    @help_option("--thickness", group="Paint", rare=True, metavar="MM", help="The thickness.")
    @help_option("--color", group="Paint", metavar="NAME", help="The color.")
    def paint(**options: object) -> None:
        pass

    assert CliRunner().invoke(paint, ["--help"]).output.splitlines() == [
        "Usage: paint [OPTIONS]",
        "",
        "  Paint it.",
        "",
        "Paint:",
        "  --color NAME  The color.",
        "",
        "Options:",
        "  --new         A new one.",
        "  --help        Show this message and exit.",
        "  --help-all    Show all 3 options and exit.",
    ]
    lines = CliRunner().invoke(paint, ["--help-all"]).output.splitlines()
    assert lines[4:7] == ["Paint:", "  --color NAME    The color.", "  --thickness MM  The thickness."]


def test_the_commands_stand_under_what_one_does_with_them(tfpipe: Tfpipe) -> None:
    lines = tfpipe("--help", columns=90).lines
    expected = [
        line
        for heading, entries in commands.sections.items()
        for line in (f"{heading}:", *(f"  {name:11}  {sentence}" for name, _, sentence in entries), "")
    ]
    assert expected[:2] == ["Make a dataset:", "  shard        Write images as TFRecord shards."]
    assert lines[lines.index("Make a dataset:") :] == [
        *expected,
        "  Begin with: tfpipe shard photos flowers, then tfpipe inspect flowers. The help of a",
        "  command: tfpipe shard --help",
    ]
    assert len(tfpipe("--help", columns=80).lines) <= 40  # a screen


def test_clouds_of_shard(tfpipe: Tfpipe) -> None:
    def list_clouds(flag: str) -> list[str]:
        text = tfpipe("shard", flag).out
        return list_options("Clouds:\n" + text.partition("\nClouds:\n")[2].partition("\n\n")[0])

    assert list_clouds("--help") == ["runner"]
    assert list_clouds("--help-all") == [
        *("runner", "project", "region", "max-workers", "machine-type", "service-account"),
        *("network", "subnetwork", "temp-location"),
    ]


def test_the_page_lists_the_commands_in_the_same_order() -> None:
    page = (ROOT / "docs" / "reference" / "command_line.md").read_text(encoding="utf-8")
    (listed,) = re.findall(r":commands: (.*)", page)
    assert listed.split(",") == list(commands.modules)
