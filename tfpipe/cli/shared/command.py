"""Commands with the options that all of them have, --json and --debug, and their output as JSON or text."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click

from tfpipe.cli.shared.console import clean_line
from tfpipe.cli.shared.help_groups import GroupedCommand, debug_option
from tfpipe.system.extras import check_installed

_FIELD = re.compile(r"`(\w+)`")
_OF_A_FILE = re.compile(r"[^`]*\.(toml|json): ")  # begins a message about the fields in a file


def command(
    *, example: str, name: str | None = None, epilog: str | None = None, json_help: str = "Print one JSON object."
) -> Callable[[Callable[..., Any]], GroupedCommand]:
    """Makes a decorator that turns a function into a command; the function also gets `as_json`."""
    json_option = click.option("--json", "as_json", is_flag=True, help=json_help)

    def make(function: Callable[..., Any]) -> GroupedCommand:
        made = click.command(name, cls=GroupedCommand, epilog=epilog, example=example)(function)
        return debug_option(json_option(made))  # options that are added to a finished command come last

    return make


def show(document: Mapping[str, Any], lines: Iterable[str], as_json: bool) -> None:
    """Prints the document as one JSON object, or the lines of text with their control characters replaced."""
    for line in [json.dumps(document)] if as_json else map(clean_line, lines):
        click.echo(line)


def name_options(message: str, running: click.Command) -> str:
    """Replaces the config fields that an error message names by the options of the running command.

    The library does not know the command line, so its messages name fields in backquotes: `max_bad` is --max-bad.
    """
    if _OF_A_FILE.match(message):
        return message
    options = {option.name: max(option.opts, key=len) for option in running.params if isinstance(option, click.Option)}
    return _FIELD.sub(lambda match: options.get(match[1], match[0]), message)


def require_tensorflow(command: str) -> None:
    """Checks that TensorFlow is installed."""
    check_installed("tensorflow", f"`tfpipe {command}`", "TensorFlow", "tfpipe[tensorflow]")


def require_beam(what: str) -> None:
    """Checks that Apache Beam is installed; `what` needs it, and is the subject of the error message."""
    check_installed("apache_beam", what, "Apache Beam", "tfpipe[beam]")
