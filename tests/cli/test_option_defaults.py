"""Every command-line option for a field of a config has the type, the words and the default of that field."""

import dataclasses
import re
from typing import Any

import click
import pytest

from beam_jobs.config import ShardConfig
from beam_jobs.runners.base import RunnerConfig
from tfpipe.cli.main import tfpipe
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.format.image_form import ImageForm
from tfpipe.integrity.foreign.index import IndexConfig
from tfpipe.integrity.verify import VerifyConfig
from tfpipe.service.config import ServiceConfig
from tfpipe.system.options import Choice, Count, Flag, Kind, Number, get_options
from tfpipe.training.config import TrainConfig

CONFIGS: dict[str, tuple[type[Any], ...]] = {
    "shard": (ShardConfig, ImageForm, RunnerConfig),
    "merge": (ShardConfig, RunnerConfig),
    "reshard": (ShardConfig, RunnerConfig),
    "index": (IndexConfig,),
    "serve": (ServiceConfig,),
    "train": (TrainConfig, PipelineConfig),
    "verify": (VerifyConfig,),
}

# Options that take a word or a unit beside the numbers of their field.
TAKE_WORDS = ("shard_size_bytes",)


def list_options() -> list[Any]:
    cases = []
    for command, configs in CONFIGS.items():
        fields = {field.name: (config, field) for config in configs for field in dataclasses.fields(config)}
        for parameter in tfpipe.commands[command].params:
            if isinstance(parameter, click.Option) and parameter.name in fields:
                cases.append(pytest.param(parameter, *fields[parameter.name], id=f"{command} {parameter.opts[0]}"))
    return cases


def get_click_type(kind: Kind) -> type[click.ParamType] | None:
    """Returns the type of click for the values of an option; None where click need not know."""
    kinds: dict[type[Kind], Any] = {Count: click.types.IntParamType, Number: click.types.FloatParamType}
    return kinds.get(type(kind))


@pytest.mark.parametrize(("parameter", "config", "field"), list_options())
def test_an_option_has_the_type_and_default_of_its_field(parameter, config, field):
    assert parameter.name is not None
    kind = get_options(config)[parameter.name].kind if parameter.name in get_options(config) else None
    if isinstance(kind, Choice):
        assert isinstance(parameter.type, click.Choice)
        assert tuple(parameter.type.choices) == kind.words
    elif kind is not None and parameter.name not in TAKE_WORDS and (expected := get_click_type(kind)):
        assert isinstance(parameter.type, expected)
    if (
        parameter.name not in TAKE_WORDS
        and field.default not in (None, dataclasses.MISSING)
        and not isinstance(kind, Flag)
    ):
        text = parameter.get_help_record(click.Context(tfpipe))[1]
        default = f"{field.default:g}" if isinstance(field.default, float) else str(field.default)
        shown = re.search(r"\[default: (.*)\]", text)
        assert shown is None or default in re.split(r"[ ,]+", shown[1]) or field.default == 0, text


def test_most_options_are_compared() -> None:
    assert len(list_options()) > 60
