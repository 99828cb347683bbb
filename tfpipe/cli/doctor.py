"""`tfpipe doctor`: finds what can go wrong before the first step, before an accelerator is paid for."""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from tfpipe.cli.shared.checks import all_passed, print_checks
from tfpipe.cli.shared.help_groups import GroupedCommand
from tfpipe.cli.shared.inputs import load_stages, open_data, quiet_start, read_config
from tfpipe.cli.shared.option_names import name_options
from tfpipe.cli.shared.params import (
    BATCH_SIZE,
    config_option,
    debug_option,
    json_option,
    split_option,
    stages_option,
)
from tfpipe.cli.shared.requirements import is_installed, require_tensorflow
from tfpipe.errors import ConfigError

if TYPE_CHECKING:
    from tfpipe.doctor.result import Check, TargetConfig
    from tfpipe.engine.config.pipeline_config import PipelineConfig


@click.command(cls=GroupedCommand, short_help="Check data, pipeline and machine before a run.")
@click.argument("dataset", required=False)
@split_option
@click.option(
    "--tpu",
    metavar="NAME",
    envvar="TPU_NAME",
    show_envvar=True,
    help='Check for training on this TPU: "local", a name, or grpc://address:port. The TPU is not started.',
)
@click.option(
    "--batch-size", type=int, metavar="N", help=f"Images in a batch, over all replicas.  [default: {BATCH_SIZE}]"
)
@click.option(
    "--num-replicas",
    type=int,
    metavar="N",
    help="Number of replicas on all hosts together.  [default: each host has as many as this machine]",
)
@click.option("--num-hosts", type=int, metavar="N", help="Number of machines that read the data.  [default: 1]")
@config_option
@stages_option
@click.option(
    "--images-per-second",
    type=float,
    metavar="RATE",
    help="Images that all replicas together consume per second. Measures whether this host can deliver its share.",
)
@click.option(
    "--gpu-decode",
    is_flag=True,
    help="Check whether a GPU can decode the images, as DeviceImages of tfpipe.readers.torch does: names the kinds of "
    "images that are left to the CPU, by the manifest or by the headers of up to 2,000 images. Needs no TensorFlow.",
)
@click.option(
    "--report",
    is_flag=True,
    help="Check nothing; print versions, machine and options for a report of an error, without paths, names of hosts "
    "or free text. Works without DATASET and without TensorFlow.",
)
@json_option
@debug_option
def doctor(
    dataset: str | None,
    split: str | None,
    tpu: str | None,
    batch_size: int | None,
    num_replicas: int | None,
    num_hosts: int | None,
    config: str | None,
    stages: str | None,
    images_per_second: float | None,
    gpu_decode: bool,
    report: bool,
    as_json: bool,
) -> None:
    """Check whether DATASET, the pipeline and this machine are ready for training, before it costs anything.

    DATASET is the directory or URL of a finished dataset, or a pattern such as "/data/train-*" of TFRecords that
    another tool wrote. Exit code 1 if a check fails; warnings do not count.
    """
    options = read_config(config, batch_size)
    if report:
        return _print_report(dataset, split, options, as_json)
    if dataset is None:
        raise ConfigError("Name the DATASET to check, or give --report for the facts that a report of an error needs.")
    from tfpipe.doctor.result import TargetConfig
    from tfpipe.doctor.tpu_checks import TPU_VARIABLES

    target = TargetConfig(
        tpu=tpu or None,
        num_replicas=num_replicas,
        num_hosts=num_hosts,
        images_per_second=images_per_second,
        gpu_decode=gpu_decode,
        tpu_variables=tuple((name, os.environ[name]) for name in TPU_VARIABLES if os.environ.get(name)),
    )
    checks = map(_name_options, _run_checks(dataset, split, options, target, _read_tuned_table(config), stages))
    if as_json:
        results = list(checks)
        click.echo(json.dumps({"checks": [check.to_json() for check in results], "ok": all_passed(results)}))
    else:
        results = print_checks(checks)
    raise SystemExit(0 if all_passed(results) else 1)


def _print_report(dataset: str | None, split: str | None, options: "PipelineConfig", as_json: bool) -> None:
    from tfpipe.doctor.report import format_report, make_report

    data = None if dataset is None else open_data(dataset, split)[0]
    facts = make_report(os.environ, options, data)
    click.echo(json.dumps(facts) if as_json else format_report(facts))


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
    if target.gpu_decode and not is_installed("tensorflow"):
        return _check_images_alone(dataset, split)
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


def _check_images_alone(dataset: str, split: str | None) -> "Iterable[Check]":
    """Yields what can be said of images for a GPU where TensorFlow is missing, as a trainer in PyTorch needs none."""
    from tfpipe.doctor.image_kinds import check_images
    from tfpipe.doctor.result import Check

    yield check_images(*open_data(dataset, split))
    yield Check("others", "skipped", "All other checks need TensorFlow.", "pip install 'tfpipe[tensorflow]'")


def _name_options(check: "Check") -> "Check":
    """Puts the command's options in the place of the fields that a check names."""
    command = click.get_current_context().command
    return replace(check, found=name_options(check.found, command), advice=name_options(check.advice, command))
