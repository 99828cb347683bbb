"""Fields in messages become options."""

import click
import pytest

from tfpipe.cli.shared.command import name_options


@click.command()
@click.option("-n", "--max-bad", type=int)
@click.option("--shuffle/--no-shuffle")
@click.argument("dataset")
def command(max_bad: int, shuffle: bool, dataset: str) -> None:
    """Does nothing."""


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ("`max_bad` must be at least 0, got -1.", "--max-bad must be at least 0, got -1."),
        ("Leave `shuffle` or `max_bad` out.", "Leave --shuffle or --max-bad out."),
        ("`cache` must be none or bytes.", "`cache` must be none or bytes."),  # an option of other commands
        ("`dataset` is missing; `tfpipe verify` names it.", "`dataset` is missing; `tfpipe verify` names it."),
        ("a.toml: `max_bad` must be at least 0, got -1.", "a.toml: `max_bad` must be at least 0, got -1."),
    ],
)
def test_fields_become_options(message: str, named: str) -> None:
    assert name_options(message, command) == named
