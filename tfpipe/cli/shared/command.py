"""A command with the options that all have, --json and --debug, and the output that --json chooses."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click

from tfpipe.cli.shared.console import clean_line
from tfpipe.cli.shared.help_groups import GroupedCommand, debug_option
from tfpipe.system.extras import check_installed

_FIELD = re.compile(r"`(\w+)`")
_OF_A_FILE = re.compile(r"[^`]*\.(toml|json): ")  # such a message speaks of the fields in that file


def command(
    *, example: str, name: str | None = None, epilog: str | None = None, json_help: str = "Print one JSON object."
) -> Callable[[Callable[..., Any]], GroupedCommand]:
    """Makes a command of a function, which gets `as_json` too."""
    json_option = click.option("--json", "as_json", is_flag=True, help=json_help)

    def make(function: Callable[..., Any]) -> GroupedCommand:
        made = click.command(name, cls=GroupedCommand, epilog=epilog, example=example)(function)
        return debug_option(json_option(made))  # an option of a finished command is its last one

    return make


def show(document: Mapping[str, Any], lines: Iterable[str], as_json: bool) -> None:
    """Prints one JSON object or lines of text, in which control characters are replaced."""
    for line in [json.dumps(document)] if as_json else map(clean_line, lines):
        click.echo(line)


def name_options(message: str, running: click.Command) -> str:
    """Returns a library's message with each field that the running command has as an option under that name.

    The library knows no command line, so its messages name the field in backquotes: `max_bad` is --max-bad.
    """
    if _OF_A_FILE.match(message):
        return message
    options = {option.name: max(option.opts, key=len) for option in running.params if isinstance(option, click.Option)}
    return _FIELD.sub(lambda match: options.get(match[1], match[0]), message)


def require_tensorflow(command: str) -> None:
    """Checks that TensorFlow is installed."""
    check_installed("tensorflow", f"`tfpipe {command}`", "TensorFlow", "tfpipe[tensorflow]")


def require_beam(what: str) -> None:
    """Checks that Apache Beam is installed for `what`, the subject of a sentence."""
    check_installed("apache_beam", what, "Apache Beam", "tfpipe[beam]")
