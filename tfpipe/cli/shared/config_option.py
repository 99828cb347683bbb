"""Command-line options made from the fields of a config: their names, types, help texts, defaults and headings.

A command does not get an option that the user does not give, so the default itself stays at the field.
"""

import re
from collections.abc import Callable, Collection
from dataclasses import MISSING, fields
from functools import cache, reduce
from typing import Any, TypeVar

import click

from tfpipe.cli.shared.command import help_option
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.system import options
from tfpipe.system.options import Amount, Choice, Count, Flag, Nested, Number, Option, Seed, Share, get_options
from tfpipe.system.units import A_SIZE, parse_bytes

Command = TypeVar("Command", bound=Callable[..., Any])
Config = TypeVar("Config")

_SENTENCE_END = re.compile(r"(?<=[.)])\s+(?=[A-Z`\"0-9])")


def config_options(
    config: Any, *groups: str, without: Collection[str] = (), default: str | None = None
) -> Callable[[Command], Command]:
    """Makes the command-line options of a config, or only those of some of its groups."""
    chosen = {
        name: spec
        for name, spec in get_options(config).items()
        if name not in without and not isinstance(spec.kind, Nested) and (not groups or spec.group in groups)
    }
    names = sorted(chosen, key=lambda name: groups.index(chosen[name].group)) if groups else chosen
    return all_options(*(config_option(config, name, default=default) for name in names))


def config_option(
    config: Any, name: str, *, default: str | None = None, required: bool = False
) -> Callable[[Command], Command]:
    """Makes the command-line option of a config's field; `default` replaces the default that the help shows."""
    (field,) = (field for field in fields(config) if field.name == name)
    spec: Option = get_options(config)[name]
    given = None if field.default is MISSING else field.default
    flag, several = get_flag(config, name), given == () and not required
    text, own_default = describe_field(config, name)
    if given is False or required:
        shown = ""
    else:
        shown = default or own_default or ("" if given in (None, (), "") else _describe(given, name, flag))
    text += " Repeat it for several." * several + (f"  [default: {shown}]" if shown else "")
    if isinstance(spec.kind, Flag):
        flags = f"{flag}/--no-{flag.removeprefix('--')}" if given else flag
        return help_option(flags, name, is_flag=True, default=None, help=text, group=spec.group, rare=spec.rare)
    kind = SIZE if name.endswith("_bytes") else _TYPES.get(type(spec.kind), str)
    return help_option(
        *(flag, name),
        type=click.Choice(spec.kind.words) if isinstance(spec.kind, Choice) else kind,
        metavar=spec.metavar or ("N" if isinstance(spec.kind, Count | Seed) else None),
        required=required,
        multiple=several,
        help=text,
        group=spec.group,
        rare=spec.rare,
    )


def get_flag(config: Any, name: str) -> str:
    """Returns the command-line option of a field, such as --max-bad."""
    return get_options(config)[name].flag or f"--{name.replace('_', '-')}"


@cache
def describe_field(config: Any, name: str) -> tuple[str, str]:
    """Returns the help text of a field from the `Attributes:` of its class, and its default in words.

    The text is the first sentence, or all of them for a choice of words; an option of one runner names the runner.
    """
    spec, entry = get_options(config)[name], options.read_words(config).get(name, "").removesuffix("Required.")
    sentences = _SENTENCE_END.split(entry.partition("Default: ")[0].strip())
    names = _name_fields(config)
    (field,) = (field for field in fields(config) if field.name == name)
    without = "Empty: " if field.default in ((), "") else f"{field.default}: "
    shown, default = [], ""
    for sentence in sentences:
        # Backquotes are removed, except around code with a star.
        words = re.sub(r"`([^*]*?)`|`.*?`", lambda match: names.get(match[0], match[1] or match[0]), sentence)
        if words.startswith(without) and not isinstance(spec.kind, Choice):
            default = words.removeprefix(without).rstrip(".").strip('"')
        elif sentence != spec.kind.allowed:
            shown.append(words)
    text, runner = " ".join(shown if isinstance(spec.kind, Choice) else shown[:1]), field.metadata.get("runner")
    return text if runner is None else f"{runner.capitalize()}: {text[:1].lower()}{text[1:]}", default


@cache
def _name_fields(config: Any) -> dict[str, str]:
    """Returns the name of each field in the help, by its name in backquotes: an option, or an argument in capitals."""
    own = get_options(config)
    return {
        f"`{field.name}`": get_flag(config, field.name) if field.name in own else field.name.upper()
        for field in fields(config)
    }


class Parsed(click.ParamType):
    """A click type whose text a function parses, which raises a ValueError unless the text is like `examples`."""

    def __init__(self, name: str, parse: Callable[[str], Any], examples: str) -> None:
        self.name, self._parse, self._examples = name, parse, examples

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Converts the option's text; click calls it, also with a value that is already converted."""
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError:
            self.fail(f"must be {self._examples}, got {value!r}.", param, ctx)  # click names the option itself


def _parse_share(text: str) -> float:
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)


def _parse_count_or_share(text: str) -> int | float:
    return int(text) if text.isdecimal() else _parse_share(text)


def _parse_percent(text: str) -> float:
    share = float(text.removesuffix("%")) / 100
    if not 0 <= share <= 1:
        raise ValueError(text)
    return share


def _parse_shares(text: str) -> dict[str, float]:
    pairs = [pair.partition("=") for pair in text.split(",")]
    shares = {name.strip(): float(share) for name, _, share in pairs}
    if len(shares) < len(pairs):
        raise ValueError(text)
    return shares


SIZE = Parsed("size", parse_bytes, A_SIZE)
SHARE = Parsed("share", _parse_share, "a share such as 10% or 0.1")
COUNT_OR_SHARE = Parsed("count or share", _parse_count_or_share, "a count such as 25 or a share such as 1%")
PERCENT = Parsed("percent", _parse_percent, "from 0% to 100%")
SHARES = Parsed("name=share,...", _parse_shares, "like train=0.9,validation=0.1, each split once")


def take(config: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Removes the options of a config from those that a command was given, and returns them."""
    return {field.name: options.pop(field.name) for field in fields(config) if field.name in options}


def build(config: type[Config], options: dict[str, Any]) -> Config:
    """Removes the options of a config from those that a command was given, and returns the config with them."""
    return config(**take(config, options))


_TYPES: dict[type[options.Kind], Any] = {
    **{Amount: SIZE, Count: int, Seed: int, options.Size: int, Number: float},
    **{Share: SHARE, options.CountOrShare: COUNT_OR_SHARE, options.Shares: SHARES},
}


def _describe(default: Any, name: str, flag: str) -> str:
    if default is True:
        return flag.removeprefix("--")
    if isinstance(default, float):
        return f"{default:g}"
    return f"{default >> 20}MiB" if name.endswith("_bytes") and isinstance(default, int) else str(default)


def all_options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Adds several options to a command, in this order."""
    return lambda command: reduce(lambda made, option: option(made), reversed(options), command)


BATCH_SIZE = 128
"""The images of a batch if neither the command line nor a file names its size."""

split_option = help_option(
    "--split", metavar="NAME", group="Data", help="The split to use.  [default: train, or the only one]"
)
config_file_option = help_option(
    "--config", metavar="FILE", group="Data", help="The file with the pipeline's options, .toml or .json."
)
batch_option = config_option(PipelineConfig, "batch_size", default=str(BATCH_SIZE))
pipeline_options = all_options(
    split_option,
    batch_option,
    config_option(PipelineConfig, "image_size"),
    config_option(PipelineConfig, "cpu_budget"),
    config_file_option,
    help_option(
        "--stages",
        metavar="MODULE:FUNCTION",
        group="Data",
        help="A function of yours that changes the pipeline: it takes a tfpipe.Stages and returns one.",
    ),
)
"""The options of commands that run a pipeline."""
