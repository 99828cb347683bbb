"""Commands: their help in groups, the options that all of them have (--json and --debug), and their output.

The groups of a help screen stand in the order of their first options; --help-all shows the rare options too.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import click

from tfpipe.cli.shared.console import clean_line
from tfpipe.system.extras import check_installed

_FIELD = re.compile(r"`(\w+)`")
_OF_A_FILE = re.compile(r"[^`]*\.(toml|json): ")  # begins a message about the fields in a file
_ASKED_FOR_ALL = "tfpipe.help_all"
_MAX_WIDTH = 30  # of the column of options; click puts the text of a longer one on the next line


class HelpOption(click.Option):
    """An option that has a group in the help of its command, and that may be rare, so that only --help-all shows it."""

    def __init__(self, *names: Any, group: str = "", rare: bool = False, **arguments: Any) -> None:
        super().__init__(*names, **arguments)
        self.group, self.rare = group, rare


help_option = partial(click.option, cls=HelpOption)
debug_option = click.option(
    "--debug", is_flag=True, expose_value=False, help="Show tracebacks and the libraries' own log messages."
)


class GroupedCommand(click.Command):
    """A command whose help shows its options in groups. Options without a group stand last, under "Options"."""

    def __init__(self, *names: Any, example: str = "", **arguments: Any) -> None:
        super().__init__(*names, **arguments)
        self.example = example

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Returns the arguments and options, with --help-all; click calls it."""
        return [*super().get_params(ctx), _HELP_ALL]

    def invoke(self, ctx: click.Context) -> Any:
        """Calls the function with what the user gave: its own defaults, and those of configs, stand for the rest."""
        ctx.params = {name: value for name, value in ctx.params.items() if value not in (None, ())}
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options; click calls it."""
        *options, _ = (param for param in self.get_params(ctx) if isinstance(param, click.Option))
        headings = [(getattr(option, "group", ""), getattr(option, "rare", False)) for option in options]
        groups: dict[str, list[tuple[str, str]]] = {group: [] for group, _ in headings if group}
        groups[""] = []
        for (group, rare), option in sorted(zip(headings, options, strict=True), key=lambda pair: pair[0][1]):
            record = option.get_help_record(ctx)
            if record and (ctx.meta.get(_ASKED_FOR_ALL) or not rare):
                groups[group].append(record)
        if any(rare for _, rare in headings):
            groups[""].append(("--help-all", f"Show all {len(options) - 1} options and exit."))
        width = min(_MAX_WIDTH, max(len(names) for records in groups.values() for names, _ in records))
        for group, records in groups.items():
            if records:
                with formatter.section(group or "Options"):
                    formatter.write_dl((f"{names:{width}}", text) for names, text in records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the example; click calls it."""
        if self.example:
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(f"Example: {self.example}")
        super().format_epilog(ctx, formatter)


def _show_all(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    """Prints the help with all options, and exits."""
    if asked and not ctx.resilient_parsing:
        ctx.meta[_ASKED_FOR_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()


_HELP_ALL = click.Option(["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_show_all)


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
