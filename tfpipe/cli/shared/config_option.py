"""Command-line options that read their type, their words and their default from the field of a config.

    @config_option(ImageForm, "quality", "The JPEG quality of images that are encoded again.")

gives `--quality INTEGER` with `[default: 95]`. The command gets None if the user does not give the option, so the
default itself stays at the field.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any

import click

from tfpipe.cli.shared.params import Command, Size
from tfpipe.system.options import Amount, Choice, Count, Flag, Number, Seed, Share, get_options

_SECOND_NAMES = {"pytorch": "torch", "wds": "webdataset"}


def config_option(
    config: type[Any],
    name: str,
    text: str,
    *,
    metavar: str | None = None,
    default: str | None = None,
    required: bool = False,
) -> Callable[[Command], Command]:
    """Makes the command-line option for a field of a config.

    Args:
        config: The class.
        name: The name of the field; `keep_checkpoints` becomes `--keep-checkpoints`.
        text: The help text.
        metavar: The name of the value in the help. None: click's name of its type.
        default: The default in words, if the field's default is None or says too little. An empty text shows none.
        required: Whether the user must give the option.
    """
    kind = get_options(config)[name].kind
    given = _get_default(config, name)
    dashed = name.replace("_", "-")
    if default is None:
        default = "" if given is None or given is False else _describe(given, dashed)
    suffix = f"  [default: {default}]" if default else ""
    if isinstance(kind, Flag):
        flag = f"--{dashed}/--no-{dashed}" if given else f"--{dashed}"
        return click.option(flag, is_flag=True, default=None, help=text + suffix)
    return click.option(f"--{dashed}", type=_get_type(kind), metavar=metavar, required=required, help=text + suffix)


class _Words(click.Choice):
    """A choice of words, some of which have a second name that people know."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Converts the option's text; click calls it."""
        word: str = super().convert(_SECOND_NAMES.get(value, value), param, ctx)
        return word


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


def _get_default(config: type[Any], name: str) -> Any:
    (default,) = (field.default for field in fields(config) if field.name == name)
    return None if default is MISSING else default


def _describe(default: Any, dashed: str) -> str:
    if default is True:
        return dashed
    return f"{default:g}" if isinstance(default, float) else str(default)
