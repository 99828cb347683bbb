"""Options that are more than a number or a word: sizes, shares, shares by name."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from tfpipe.errors import ConfigError
from tfpipe.system.units import A_SIZE, parse_bytes

Command = TypeVar("Command", bound=Callable[..., Any])


class Size(click.ParamType):
    """`128MiB`, `2GB` or a number of bytes -> bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Called by click with the option's text."""
        try:
            return parse_bytes(value)
        except ConfigError:
            self.fail(f"must be {A_SIZE}, got {value!r}.", param, ctx)  # click names the option itself


class CountOrShare(click.ParamType):
    """`25` -> 25, a count; `1%` or `0.01` -> 0.01, a share."""

    name = "count or share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | float:
        """Called by click with the option's text."""
        try:
            if value.endswith("%"):
                return float(value[:-1]) / 100
            return float(value) if "." in value or "e" in value else int(value)
        except ValueError:
            self.fail(f"must be a count such as 25 or a share such as 1%, got {value!r}.", param, ctx)


class Shares(click.ParamType):
    """`train=0.9,validation=0.1` -> a share for each name."""

    name = "name=share,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, float]:
        """Called by click with the option's text."""
        if isinstance(value, dict):
            return value
        shares: dict[str, float] = {}
        for part in value.split(","):
            name, _, share = part.partition("=")
            if name.strip() in shares:
                self.fail(f"must name each split once, got {name.strip()!r} twice.", param, ctx)
            try:
                shares[name.strip()] = float(share)
            except ValueError:
                self.fail(f"must be like train=0.9,validation=0.1, got {value!r}.", param, ctx)
        return shares


PER_REPLICA_BATCH_SIZE = 128
"""Where neither the command line nor a file says how large a batch is."""

debug_option = click.option(
    "--debug", is_flag=True, expose_value=False, help="Show tracebacks and what the libraries below log."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
split_option = click.option("--split", metavar="NAME", help="Which split.  [default: train, or the only one]")
stages_option = click.option(
    "--stages",
    metavar="MODULE:FUNCTION",
    help="A function that gets the pipeline's stages and returns them changed, both tfpipe.pipeline.stage.Stages.",
)
config_option = click.option("--config", metavar="FILE", help="Options of the pipeline, .toml or .json.")
batch_option = click.option(
    "--global-batch-size", type=int, metavar="N", help=f"Images in a batch.  [default: {PER_REPLICA_BATCH_SIZE}]"
)


def all_options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Adds several options to a command, in this order."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add
