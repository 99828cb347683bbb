"""Command-line options that read their type, their words and their default from the field of a config.

    @config_option(ImageForm, "quality", "The JPEG quality of images that are encoded again.")

gives `--quality INTEGER` with `[default: 95]`. The command gets None if the user does not give the option, so the
default itself stays at the field.
"""

import contextlib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

import click

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import SENTENCE_END, ConfigError
from tfpipe.system.options import Amount, Choice, Count, Flag, Number, Seed, Share, get_options
from tfpipe.system.units import A_SIZE, parse_bytes

Command = TypeVar("Command", bound=Callable[..., Any])

_SECOND_NAMES = {"wds": "webdataset"}


def config_option(
    config: type[Any],
    name: str,
    text: str | None = None,
    *,
    flag: str | None = None,
    kind: click.ParamType | None = None,
    metavar: str | None = None,
    default: str | None = None,
    required: bool = False,
) -> Callable[[Command], Command]:
    """Makes the command-line option for a field of a config.

    Args:
        config: The class.
        name: The name of the field; `label_smoothing` becomes `--label-smoothing`.
        text: The help text. None: the first sentence that documents the field.
        flag: The option, if it has not the name of its field: `--tensor` for `tensors`.
        kind: The type of its value. None: that of the field.
        metavar: The name of the value in the help. None: click's name of its type.
        default: The default in words, if the field's default is None or says too little. An empty text shows none.
        required: Whether the user must give the option.
    """
    (field,) = (field for field in fields(config) if field.name == name)
    facts = get_options(config).get(name)
    given = None if field.default is MISSING else field.default
    flag = flag or f"--{name.replace('_', '-')}"
    text = describe_field(config, name) if text is None else text
    if default is None:
        default = "" if given is None or given is False or given == () else _describe(given, flag)
    text += f"  [default: {default}]" if default else ""
    if facts is not None and isinstance(facts.kind, Flag):
        flags = f"{flag}/--no-{flag.removeprefix('--')}" if given else flag
        return click.option(flags, is_flag=True, default=None, help=text)
    value = kind or (str if facts is None else _get_type(facts.kind))
    several = given == () and not required
    return click.option(flag, name, type=value, metavar=metavar, required=required, multiple=several, help=text)


def describe_field(config: type[Any], name: str) -> str:
    """Returns the first sentence on a field in the docstring of its class; an option of one runner names that too."""
    entry = re.search(rf"^    {name}: (.*(?:\n {{8}}.*)*)", inspect.getdoc(config) or "", re.MULTILINE)
    sentence = SENTENCE_END.split(" ".join(entry[1].replace("`", "").split()))[0] if entry else ""
    (runner,) = (field.metadata.get("runner") for field in fields(config) if field.name == name)
    return sentence if runner is None else f"{runner.capitalize()}: {sentence[:1].lower()}{sentence[1:]}"


class Size(click.ParamType):
    """A size: `128MiB`, `2GB` or a number of bytes becomes bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Converts the option's text; click calls it."""
        try:
            return parse_bytes(value)
        except ConfigError:
            self.fail(f"must be {A_SIZE}, got {value!r}.", param, ctx)  # click names the option itself


class _Words(click.Choice):
    """A choice of words, some of which have a second name that people know."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Converts the option's text; click calls it."""
        word: str = super().convert(_SECOND_NAMES.get(value, value), param, ctx)
        return word


def take(config: type[Any], options: dict[str, Any]) -> dict[str, Any]:
    """Removes the options of a config from those of a command, and returns those that the user gave."""
    return drop_missing({field.name: options.pop(field.name) for field in fields(config) if field.name in options})


def drop_missing(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that the user gave."""
    return {name: value for name, value in options.items() if value is not None}


def _get_type(kind: object) -> Any:
    match kind:
        case Choice(words):
            return _Words(words)
        case Count() | Seed():
            return int
        case Number() | Share():
            return float
        case Amount():
            return Size()
        case _:
            return str


def _describe(default: Any, flag: str) -> str:
    if default is True:
        return flag.removeprefix("--")
    return f"{default:g}" if isinstance(default, float) else str(default)


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
