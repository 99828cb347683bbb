"""`tfpipe serve` and `serve-check`: starts a worker that makes batches for trainers, and checks such workers."""

import glob
import json
import os
import secrets
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from tfpipe.cli.shared.checks import Check, fail_check, show_checks
from tfpipe.cli.shared.command import command
from tfpipe.cli.shared.config_option import config_options
from tfpipe.engine.config.pipeline_config import ServiceOptions
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.service import config as settings
from tfpipe.service.config import ServiceConfig
from tfpipe.system.options import Addresses
from tfpipe.system.units import human_count

if TYPE_CHECKING:
    from tfpipe.engine.source import Source

_ANSWER_S = 60


@command(
    example="tfpipe serve --root /data --host 0.0.0.0", json_help="Print one JSON object, when the workers are ready."
)
@config_options(ServiceConfig)
def serve(as_json: bool, **options: Any) -> None:
    """Run workers that read and preprocess for trainers which have too few cores of their own.

    Workers open only datasets below a --root, and write nothing. With a --host that others reach, trainers must bring
    the token in TFPIPE_SERVICE_TOKEN; without one there the command makes one and prints it. Ctrl-C or SIGTERM ends the
    workers.
    """
    from tfpipe.service.server import Service

    config = ServiceConfig(**options)
    made = "" if (token := settings.read_token()) or config.is_local else secrets.token_urlsafe(24)
    with Service(config, token or made) as service:
        stopped: list[int] = []  # by signals: from here on Ctrl-C is how a server ends, with exit code 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda signum, _: stopped.append(signum))
        if as_json:
            both = zip(service.addresses, service.pids, strict=True)
            workers = [{"address": address, "pid": pid} for address, pid in both]
            click.echo(json.dumps({"pid": os.getpid(), "workers": workers, **({"token": made} if made else {})}))
        else:
            listed = ", ".join(f'"{address}"' for address in service.addresses)
            click.echo(f"{human_count(len(service.addresses), 'worker')}: {', '.join(service.addresses)}")
            click.echo(f"Trainers      PipelineConfig(service=ServiceOptions(workers=[{listed}]), ...)")
            click.echo(f"  or in TOML  service.workers = [{listed}]")
            if made:
                click.echo(f"Token         TFPIPE_SERVICE_TOKEN={made}  (for Python, in a file: token_file=)")
            if config.is_local:
                click.echo(f"Only this machine reaches {config.host}; others need --host 0.0.0.0.")
        service.run_until(lambda: bool(stopped))


@command(example="tfpipe serve-check 10.0.0.6:5050 10.0.0.7:5050 --dataset /data/flowers", name="serve-check")
@click.argument("workers", nargs=-1, required=True, metavar="HOST:PORT...")
@click.option("--dataset", metavar="DATASET", help="A dataset that the workers must read, by its directory or URL.")
@config_options(ServiceOptions, without=("workers", "share", "timeout_s"))
def serve_check(workers: tuple[str, ...], as_json: bool, dataset: str | None = None, **options: Any) -> None:
    """Check whether the workers at each HOST:PORT answer, and have this release of tfpipe.

    With --dataset each worker makes two batches, which must be equal to those of this machine. Exit code 1 if a check
    fails; warnings do not count.
    """
    Addresses().check("HOST:PORT", workers)
    service = ServiceOptions(workers=workers, timeout_s=_ANSWER_S, **options)
    show_checks(_check_service(service, dataset), as_json)


def _check_service(service: ServiceOptions, dataset: str | None) -> Iterator[Check]:
    """Yields a check of whether the workers answer, and one of whether those that answer can read a dataset."""
    from tfpipe.dataset.load import load_manifest
    from tfpipe.engine.source import Source
    from tfpipe.service.client import Workers, advise

    source, workers = None, service.workers
    if dataset is not None:
        if any(map(os.path.isfile, glob.glob(dataset))):
            raise ConfigError(f"`tfpipe serve-check` needs a dataset, got {dataset}. Make one with `tfpipe index`.")
        data = load_manifest(dataset)
        source = Source.from_manifest(data, "train" if "train" in data.splits else next(iter(data.splits)))
    missing, count = Workers(service).find_silent(), human_count(len(workers), "worker")
    if missing:
        listed = ", ".join(f"{worker} ({trouble})" for worker, trouble in missing.items())
        finding = f"{len(workers) - len(missing)} of {count} answer; missing: {listed}."
        start = "Start it on its machine with: tfpipe serve --root DIR. All machines need the same release of tfpipe."
        yield Check("workers", "failure", finding, advise(missing.values(), start))
    else:
        finding = f"{count} answer{'s' if len(workers) == 1 else ''}: {', '.join(workers)}."
        yield Check("workers", "ok", finding)
    if source is None:
        yield Check("reads", "skipped", "Not asked.", "Name a dataset to learn whether the workers can read it.")
    elif len(missing) < len(workers):
        yield _check_reads(source, service, [one for one in workers if one not in missing])


def _check_reads(source: "Source", service: ServiceOptions, workers: Sequence[str]) -> Check:
    """Checks that each worker makes the same batches of the first and the last record as this machine."""
    import numpy as np

    from tfpipe.engine.config.pipeline_config import PipelineConfig
    from tfpipe.engine.open_maker import open_maker
    from tfpipe.engine.plan import plan_batches
    from tfpipe.service.client import RemoteMaker

    config = PipelineConfig(batch_size=1, training=False)
    try:
        local = open_maker(plan_batches(source, config))
        steps = (0, local.plan.steps_per_epoch - 1)
        expected = [local.make(0, step) for step in steps]
        for worker in workers:
            one = replace(config, service=replace(service, workers=(worker,)))
            maker = RemoteMaker(open_maker(plan_batches(source, one)))
            for step, batch in zip(steps, expected, strict=True):
                given = maker.make(0, step)
                if any(not np.array_equal(values, given[name]) for name, values in batch.items()):
                    advice = "All machines need the same release of tfpipe, and the same kind of processor."
                    return Check("reads", "failure", f"{worker} makes step {step} with other values.", advice)
    except TfpipeError as error:
        return fail_check("reads", error)
    count = human_count(len(workers), "worker")
    return Check("reads", "ok", f"{count} made the first and the last record of {source.name} as this machine does.")
