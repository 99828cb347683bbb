"""`help()` shows each option of a public config with its values and its default, and both are true."""

import dataclasses
import inspect
from typing import Any

import pytest

import tfpipe
from beam_jobs.config import ShardConfig, TableColumns
from beam_jobs.runners.base import RunnerConfig
from tests.test_docstrings import get_attributes
from tfpipe.cli.doctor_checks import TargetConfig
from tfpipe.export.run import ExportConfig
from tfpipe.format.image_form import ImageForm
from tfpipe.integrity.foreign.index import IndexConfig
from tfpipe.integrity.verify import VerifyConfig
from tfpipe.service.config import ServiceConfig
from tfpipe.system.options import get_options
from tfpipe.training.config import TrainConfig

CONFIGS = (
    *(tfpipe.PipelineConfig, tfpipe.AugmentOptions, tfpipe.ServiceOptions, tfpipe.TfDataOptions, ShardConfig),
    TableColumns,
    *(RunnerConfig, ImageForm, IndexConfig, VerifyConfig, TrainConfig, ServiceConfig, TargetConfig, ExportConfig),
)


def find_faults(config: type[Any]) -> list[str]:
    """Returns a sentence for each option whose entry has another ending."""
    entries = get_attributes(inspect.getdoc(config) or "")
    options = get_options(config)
    faults = []
    for field in dataclasses.fields(config):
        entry = entries.get(field.name, "")
        before, _, default = entry.rpartition("Required." if is_required(field) else "Default: ")
        if not before or not (is_required(field) or is_default(field, default.removesuffix("."))):
            faults.append(f"{field.name}: the entry must end with the default, got {entry!r}.")
        elif field.name in options and not before.rstrip().endswith(options[field.name].kind.allowed):
            allowed = options[field.name].kind.allowed
            faults.append(f"{field.name}: {allowed!r} must stand before the default, got {entry!r}.")
    return faults


def is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def is_default(field: dataclasses.Field[Any], text: str) -> bool:
    """Tests whether the text is an expression for the field's default."""
    names: dict[str, Any] = {}
    default = field.default
    if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
        names[type(default).__name__] = type(default)
    try:
        value = eval(text, names)  # noqa: S307 (the documentation is ours)
    except (SyntaxError, NameError):
        return False
    return isinstance(default, type(value)) and bool(value == default)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.__name__)
def test_each_option_is_documented_with_its_values_and_default(config: type[Any]) -> None:
    faults = find_faults(config)
    assert not faults, "\n" + "\n".join(faults)


def test_every_exported_config_is_checked() -> None:
    exported = {name for name in tfpipe.__all__ if name.endswith(("Config", "Options"))}
    assert exported <= {config.__name__ for config in CONFIGS}


@pytest.mark.parametrize(
    ("clean", "planted"),
    [
        ("At least 1. Default: 64.", "At least 1. Default: 65."),
        ("At least 1. Default: 64.", "At least 1."),
        ("At least 1. Default: 64.", "At least 2. Default: 64."),
        ("At least 1. Default: 64.", "Default: 64."),
        ("Default: AugmentOptions().", "Default: None."),
        ('Default: "host".', "Default: host."),
        ("    max_boxes: ", "    boxes: "),
    ],
)
def test_a_planted_fault_is_found(clean: str, planted: str) -> None:
    text = tfpipe.PipelineConfig.__doc__ or ""
    assert text.count(clean) == 1

    class Planted(tfpipe.PipelineConfig):
        __doc__ = text.replace(clean, planted)

    (fault,) = find_faults(Planted)
    assert fault.split(":")[0] in {"max_boxes", "augment_options", "augment"}
