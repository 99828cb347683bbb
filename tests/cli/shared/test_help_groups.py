"""The help of every command: its groups, what --help shows first, and the order of the commands."""

import re
import shlex

import click
import pytest
from click.testing import CliRunner

from tests.conftest import ROOT, Tfpipe
from tfpipe.cli.main import CONTEXT_SETTINGS
from tfpipe.cli.main import tfpipe as commands
from tfpipe.cli.shared.help_groups import EXAMPLES, GROUPS, Group, GroupedCommand

OPTION = re.compile(r"  (?:-h, )?--([a-z-]+)")


def list_options(text: str) -> list[str]:
    """Returns the options of a help screen, in its order."""
    groups = [lines for paragraph in text.split("\n\n") if (lines := paragraph.splitlines())[0].endswith(":")]
    return [found[1] for lines in groups for line in lines if (found := OPTION.match(line))]


def get_names(command: click.Command) -> list[str]:
    options = [param for param in command.params if isinstance(param, click.Option)]
    return sorted(max(option.opts, key=len).removeprefix("--") for option in options)


@pytest.mark.parametrize("name", commands.commands)
def test_every_option_stands_in_one_group_and_few_stand_in_the_first_help(tfpipe: Tfpipe, name: str) -> None:
    command = commands.commands[name]
    assert isinstance(command, GroupedCommand)
    if name in GROUPS:
        grouped = [option for group in GROUPS[name] for option in f"{group.first} {group.more}".split()]
        assert sorted(grouped) == get_names(command)
    first, every = tfpipe(name, "--help"), tfpipe(name, "--help-all")
    assert (first.code, every.code) == (0, 0)
    help_options = ["help", "help-all"] if any(group.more for group in GROUPS.get(name, ())) else ["help"]
    assert sorted(list_options(every.out)) == sorted([*get_names(command), *help_options])
    shown = list_options(first.out)
    assert shown == [option for option in list_options(every.out) if option in shown]
    assert shown[-len(help_options) :] == help_options
    assert len(shown) <= 25


def test_groups_are_of_commands_and_each_has_an_example_that_it_takes() -> None:
    assert set(GROUPS) <= set(commands.commands)
    assert list(EXAMPLES) == list(commands.commands)
    for name, example in EXAMPLES.items():
        program, command, *args = shlex.split(example)
        assert (program, command) == ("tfpipe", name)
        commands.commands[name].make_context(name, args, **CONTEXT_SETTINGS)  # click keeps its help option


def test_an_option_without_a_group_is_not_hidden(monkeypatch) -> None:
    @click.command(cls=GroupedCommand, name="paint", help="Paint it.")
    @click.option("--color", metavar="NAME", help="The color.")
    @click.option("--thickness", metavar="MM", help="The thickness.")
    @click.option("--new", is_flag=True, help="A new one.")
    def paint(**options: object) -> None:
        pass

    monkeypatch.setitem(GROUPS, "paint", (Group("Paint", "color", "thickness"),))
    assert paint.list_ungrouped() == ["new"]
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
    assert lines[lines.index("Make a dataset:") :] == [
        "Make a dataset:",
        "  shard        Write images as TFRecord shards.",
        "  index        Make a dataset of TFRecords that another tool wrote.",
        "  merge        Join datasets into one.",
        "  reshard      Rewrite a dataset with other shards or another form of images.",
        "",
        "Change it:",
        "  append       Add more images to a finished dataset.",
        "  delete       Hide records of a dataset by their names.",
        "  add          Add columns of a table to the records of a dataset.",
        "",
        "Look at it:",
        "  inspect      Show what a dataset holds.",
        "  view         Name a part of a dataset, or weigh its records.",
        "  verify       Check every record, image, index and checksum.",
        "  repair       Write the undamaged records as a clean dataset.",
        "  export       Write a dataset as WebDataset, Parquet or ArrayRecord.",
        "",
        "Read it fast, and train:",
        "  doctor       Check data, options and machine before a run.",
        "  profile      Say why the accelerator waits, and what to change.",
        "  train        Train a classifier on a dataset, and export it.",
        "  predict      Classify image files with a trained model.",
        "  steps        Show the records of a step, or the steps of a record.",
        "  serve        Run workers that make batches for trainers.",
        "  serve-check  Check running workers from the trainer's machine.",
        "  help         Print a page of the documentation.",
        "",
        "  Begin with: tfpipe shard photos flowers, then tfpipe inspect flowers. The help of a",
        "  command: tfpipe shard --help",
    ]
    assert len(tfpipe("--help", columns=80).lines) <= 40  # a screen


def test_the_help_of_merge(tfpipe: Tfpipe) -> None:
    lines = tfpipe("merge", "--help", columns=110).lines
    assert lines[lines.index("Records:") :] == [
        "Records:",
        "  --drop-duplicates               Of images with equal bytes, keep only one.",
        "  --drop-feature NAME             Leave this feature out of the records. Repeat it for several. The image",
        "                                  and its class always stay.",
        "  --max-bad N|SHARE               Fail if more images than this are bad: a count such as 25, or a share such",
        "                                  as 1%.  [default: 1%, or up to 10 images, a third at most]",
        "",
        "Output:",
        "  --num-shards N                  The number of shards of every split, but never more than its images.",
        "                                  [default: from --shard-size]",
        "  --shard-size SIZE               The approximate size of a shard.  [default: 128MiB]",
        "  --shuffle / --no-shuffle        Shuffle all images of a split, or keep the datasets one after the other.",
        "                                  [default: shuffle]",
        "  --overwrite                     Replace the dataset that is in OUTPUT, once the new one is complete.",
        "",
        "Clouds:",
        "  --runner [local|direct|dataflow]",
        "                                  Where the job runs; local means this machine, direct Beam on it.",
        "                                  [default: local]",
        "",
        "Running:",
        "  --workers N                     The number of processes that read, check and write. 0: one per core.",
        "                                  [default: one per core]",
        "  --dry-run                       Write nothing. Print the plan, and estimate size and time from a sample of",
        "                                  the images.",
        "  --json                          Print one JSON object.",
        "  -h, --help                      Show this message and exit.",
        "  --help-all                      Show all 23 options and exit.",
        "",
        "  Example: tfpipe merge flowers more-flowers all-flowers",
        "",
        "  Options after -- go to Beam.",
    ]


def test_clouds_of_shard(tfpipe: Tfpipe) -> None:
    def list_clouds(flag: str) -> list[str]:
        text = tfpipe("shard", flag).out
        return list_options("Clouds:\n" + text.partition("\nClouds:\n")[2].partition("\n\n")[0])

    assert list_clouds("--help") == ["runner"]
    assert list_clouds("--help-all") == [
        *("runner", "project", "region", "max-workers", "machine-type", "service-account", "network", "subnetwork"),
        *("temp-location", "print-command"),
    ]


def test_the_page_lists_the_commands_in_the_same_order() -> None:
    page = (ROOT / "docs" / "reference" / "command_line.md").read_text(encoding="utf-8")
    (listed,) = re.findall(r":commands: (.*)", page)
    assert listed.split(",") == list(commands.commands)
