"""`tfpipe doctor`: finds what can go wrong before the first step, before an accelerator is paid for."""

import os
from collections.abc import Iterable
from dataclasses import asdict, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from tfpipe.cli.shared.checks import show_checks
from tfpipe.cli.shared.command import name_options
from tfpipe.cli.shared.config_option import config_option, drop_missing
from tfpipe.cli.shared.help_groups import GroupedCommand
from tfpipe.cli.shared.inputs import load_stages, open_data, quiet_start, read_config
from tfpipe.cli.shared.params import (
    batch_option,
    config_file_option,
    debug_option,
    json_option,
    size_option,
    split_option,
    stages_option,
)
from tfpipe.cli.shared.requirements import require_tensorflow
from tfpipe.doctor.result import TargetConfig

if TYPE_CHECKING:
    from tfpipe.doctor.result import Check
    from tfpipe.engine.config.pipeline_config import PipelineConfig


@click.command(
    cls=GroupedCommand,
    short_help="Check data, options and machine before a run.",
)
@click.argument("dataset")
@split_option
@batch_option
@size_option
@config_file_option
@stages_option
@click.option(
    "--tpu",
    metavar="NAME",
    envvar="TPU_NAME",
    show_envvar=True,
    help='Check for training on this TPU: "local", a name, or grpc://address:port. The TPU is not started.',
)
@config_option(
    TargetConfig,
    "num_replicas",
    "The accelerators of all hosts together.",
    metavar="N",
    default="each host has as many as this machine",
)
@config_option(TargetConfig, "num_hosts", "The machines that read the data.", metavar="N", default="1")
@config_option(
    TargetConfig,
    "images_per_second",
    "The images that all accelerators together consume per second. Measures whether this host can deliver its share.",
    metavar="RATE",
)
@json_option
@debug_option
def doctor(dataset: str, split: str | None, config: str | None, stages: str | None, **options: Any) -> None:
    """Check whether DATASET, the pipeline and this machine are ready for training, before it costs anything.

    DATASET is the directory or URL of a finished dataset, or a pattern such as "/data/train-*" of TFRecords that
    another tool wrote. Exit code 1 if a check fails; warnings do not count.
    """
    from tfpipe.doctor.tpu_checks import TPU_VARIABLES

    as_json, given = options.pop("as_json"), {"image_size": options.pop("image_size")}
    pipeline = read_config(config, options.pop("batch_size"), given=given)
    variables = tuple((name, os.environ[name]) for name in TPU_VARIABLES if os.environ.get(name))
    target = TargetConfig(tpu=options.pop("tpu") or None, tpu_variables=variables, **drop_missing(options))
    checks = _run_checks(dataset, split, pipeline, target, _read_tuned_table(config), stages)
    show_checks(map(_name_options, checks), as_json)


def _read_tuned_table(config: str | None) -> dict[str, Any]:
    """Reads the host and the data that the options were tuned on; empty if they were not tuned."""
    from tfpipe.engine.config import toml_json

    return {} if config is None else toml_json.read_with_notes(config)[1]


def _run_checks(
    dataset: str,
    split: str | None,
    config: "PipelineConfig",
    target: "TargetConfig",
    tuned: dict[str, Any],
    stages: str | None,
) -> "Iterable[Check]":
    require_tensorflow("doctor")
    with quiet_start():
        from tfpipe.doctor.probes import count_local_replicas
        from tfpipe.doctor.run import run_checks

        count_local_replicas()  # the devices' libraries log when they are first asked
    data, split = open_data(dataset, split)
    customize = load_stages(stages)
    checks = run_checks(data, split, config, target, customize)
    if config.service.workers:
        from tfpipe.doctor.service_checks import check_service, check_speed

        service = check_service(config.service.workers, data, split)
        checks = chain(service, checks, check_speed(data, split, config))
    if not tuned:
        return checks
    from tfpipe.doctor.runtime_checks import check_tuned
    from tfpipe.tuning.tuned_file import get_place

    place = get_place(data, split)
    return chain([check_tuned(tuned, {**asdict(place), "key": place.key})], checks)


def _name_options(check: "Check") -> "Check":
    """Puts the command's options in the place of the fields that a check names."""
    command = click.get_current_context().command
    return replace(check, found=name_options(check.found, command), advice=name_options(check.advice, command))
