"""`tfpipe doctor`: what can go wrong before the first step, found before an accelerator is paid for."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from tfpipe.cli.shared.inputs import need_tensorflow, open_data, pipeline_config, quiet_start
from tfpipe.cli.shared.params import (
    PER_REPLICA_BATCH_SIZE,
    config_option,
    counted,
    debug_option,
    json_option,
    one_line,
    split_option,
)

if TYPE_CHECKING:
    from rich.console import Console

    from tfpipe.doctor.result import Check, Target
    from tfpipe.pipeline.config.pipeline_config import PipelineConfig

_STYLES = {"ok": "green", "warning": "yellow", "failure": "bold red", "skipped": "dim"}
_NAME_WIDTH = 12


@click.command(short_help="Check data, pipeline and machine before a run.")
@click.argument("dataset")
@split_option
@click.option(
    "--tpu",
    metavar="NAME",
    envvar="TPU_NAME",
    show_envvar=True,
    help='Check for a TPU: "local", a name, or grpc://address:port. It is not started.',
)
@click.option("--global-batch-size", type=int, metavar="N", help="Images in a batch of all replicas together.")
@click.option(
    "--per-replica-batch-size",
    type=int,
    metavar="N",
    help=f"Images in a batch of one replica.  [default: {PER_REPLICA_BATCH_SIZE}]",
)
@click.option("--replicas", type=int, metavar="N", help="Of all hosts.  [default: this machine's, on each host]")
@click.option("--hosts", type=int, metavar="N", help="Machines that read.  [default: 1]")
@config_option
@click.option(
    "--images-per-second",
    type=float,
    metavar="RATE",
    help="What all replicas consume: measure whether this host's share can be made.",
)
@json_option
@debug_option
def doctor(
    dataset: str,
    split: str | None,
    tpu: str | None,
    global_batch_size: int | None,
    per_replica_batch_size: int | None,
    replicas: int | None,
    hosts: int | None,
    config: str | None,
    images_per_second: float | None,
    as_json: bool,
) -> None:
    """Check whether DATASET, the pipeline and this machine are ready for a run, before it costs anything.

    DATASET is the directory or URL of a finished dataset, or a pattern such as "/data/train-*" of TFRecords that
    something else wrote. Exit code 1 if a check fails; warnings do not count.
    """
    from tfpipe.doctor.result import Target

    target = Target(tpu=tpu or None, num_replicas=replicas, num_hosts=hosts, images_per_second=images_per_second)
    options = pipeline_config(config, global_batch_size, per_replica_batch_size)
    checks = _examine(dataset, split, options, target, _tuner_notes(config))
    if as_json:
        done = list(checks)
        click.echo(json.dumps({"checks": [check.to_json() for check in done], "ok": _passed(done)}))
    else:
        done = _print(checks)
    raise SystemExit(0 if _passed(done) else 1)


def _tuner_notes(config: str | None) -> dict[str, Any]:
    """Where the options were tuned; empty where they were not."""
    from tfpipe.pipeline.config import toml_json

    return {} if config is None else toml_json.read_with_notes(config)[1]


def _examine(
    dataset: str, split: str | None, config: "PipelineConfig", target: "Target", notes: dict[str, Any]
) -> "Iterable[Check]":
    need_tensorflow("doctor")
    with quiet_start():
        from tfpipe.doctor.probes import local_replicas
        from tfpipe.doctor.run import examine

        local_replicas()  # the devices' libraries have their say when they are first asked
    data, split = open_data(dataset, split)
    checks = examine(data, split, config, target)
    if not notes:
        return checks
    from tfpipe.doctor.runtime_checks import check_tuned
    from tfpipe.tuning.tuned_file import place_of

    place = place_of(data, split)
    return chain([check_tuned(notes, {**asdict(place), "key": place.key})], checks)


def _passed(checks: "Iterable[Check]") -> bool:
    return all(check.status != "failure" for check in checks)


def _print(checks: "Iterable[Check]") -> "list[Check]":
    """Each check as soon as it is made, then one line on all of them."""
    from tfpipe.cli.inspect_summary import new_console

    console, done = new_console(), []
    for check in checks:
        done.append(check)
        _print_check(console, check)
    counts = Counter(check.status for check in done)
    numbers = [f"{counts['ok']} ok", counted(counts["warning"], "warning"), counted(counts["failure"], "failure")]
    skipped = f", {counts['skipped']} skipped" if counts["skipped"] else ""
    ready = "Ready" if _passed(done) else "Not ready"
    console.print(f"{ready}: {', '.join(numbers)}{skipped}.")
    return done


def _print_check(console: "Console", check: "Check") -> None:
    """What was found, and below it what to do about it."""
    from rich.table import Table
    from rich.text import Text

    line = Table.grid(padding=(0, 2, 0, 0))
    line.add_column(width=max(map(len, _STYLES)), no_wrap=True)
    line.add_column(width=_NAME_WIDTH, no_wrap=True)
    line.add_column(overflow="fold")
    text = Text(one_line(check.found))
    if check.advice:
        text.append(f"\n→ {one_line(check.advice)}", "dim" if check.status == "ok" else "")
    line.add_row(Text(check.status, _STYLES[check.status]), Text(check.name, "bold"), text)
    console.print(line)
