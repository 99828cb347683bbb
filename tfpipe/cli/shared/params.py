"""The types of options that are more than a number or a word, and options that several commands have."""

import contextlib
from collections.abc import Callable
from typing import Any

import click

from tfpipe.cli.shared.config_option import Command, config_option
from tfpipe.engine.config.pipeline_config import PipelineConfig


class CountOrShare(click.ParamType):
    """A count or a share: `25` becomes 25, `1%` and `0.01` become 0.01."""

    name = "count or share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | float:
        """Converts the option's text; click calls it."""
        try:
            if value.endswith("%"):
                return float(value[:-1]) / 100
            return float(value) if "." in value or "e" in value else int(value)
        except ValueError:
            self.fail(f"must be a count such as 25 or a share such as 1%, got {value!r}.", param, ctx)


class Percent(click.ParamType):
    """A percentage with or without its sign, as a share: 0.05 for `5` and `5%`."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Converts the option's text; click calls it."""
        with contextlib.suppress(ValueError):
            share = value if isinstance(value, float) else float(value.removesuffix("%")) / 100
            if 0 <= share <= 1:
                return share
        self.fail(f"must be from 0% to 100%, got {value!r}.", param, ctx)


class Shares(click.ParamType):
    """A share for each name, as in `train=0.9,validation=0.1`."""

    name = "name=share,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, float]:
        """Converts the option's text; click calls it."""
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


BATCH_SIZE = 128
"""The images of a batch if neither the command line nor a file names its size."""

debug_option = click.option(
    "--debug", is_flag=True, expose_value=False, help="Show tracebacks and the libraries' own log messages."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
split_option = click.option("--split", metavar="NAME", help="The split to use.  [default: train, or the only one]")
stages_option = click.option(
    "--stages",
    metavar="MODULE:FUNCTION",
    help="A function of yours that changes the pipeline: it takes a tfpipe.Stages and returns one.",
)
config_file_option = click.option(
    "--config", metavar="FILE", help="The file with the pipeline's options, .toml or .json."
)
budget_option = config_option(
    PipelineConfig,
    "cpu_budget",
    "The share of the cores that the pipeline may take, such as 0.5, in whole threads.",
    metavar="SHARE",
    default="all cores",
)
batch_option = config_option(
    PipelineConfig, "batch_size", "The images in a batch, over all replicas.", metavar="N", default=str(BATCH_SIZE)
)
size_option = config_option(
    PipelineConfig,
    "image_size",
    "The side of the square images that the model gets, in pixels.",
    kind=click.INT,
    metavar="PX",
    default="224",
)


def all_options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Adds several options to a command, in this order."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add
