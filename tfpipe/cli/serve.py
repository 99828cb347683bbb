"""`tfpipe serve` and `serve-check`: workers that make batches for trainers, and whether they do."""

import json
import os
import signal
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import click

from tfpipe.cli.shared.checks import show_checks
from tfpipe.cli.shared.command import command
from tfpipe.cli.shared.config_option import config_option, drop_missing
from tfpipe.cli.shared.inputs import open_data
from tfpipe.service.config import ServiceConfig
from tfpipe.system.options import Addresses
from tfpipe.system.units import human_count

if TYPE_CHECKING:
    from tfpipe.service.processes import Service


@command("Run workers that make batches for trainers.", json_help="Print one JSON object, when the workers are ready.")
@config_option(ServiceConfig, "port", metavar="N")
@config_option(ServiceConfig, "workers", metavar="N")
@config_option(ServiceConfig, "host", metavar="NAME", default="all interfaces")
@config_option(ServiceConfig, "threads", metavar="N", default="one for each core")
def serve(as_json: bool, **options: Any) -> None:
    """Run workers that read and preprocess for trainers which have too few cores of their own.

    Workers open the shards under the paths or URLs that the trainer gives. Anyone who can reach the ports can read
    datasets through them, so keep them inside a trusted network. Ctrl-C or SIGTERM ends them.
    """
    from tfpipe.service.processes import Service

    with Service(ServiceConfig(**drop_missing(options))) as service:
        stop = _stop_on_signals()  # from here on Ctrl-C is how a server ends: exit code 0
        _print_json(service) if as_json else _print(service)
        service.run_until(stop)


def _stop_on_signals() -> threading.Event:
    stop = threading.Event()
    signals: SimpleQueue[int] = SimpleQueue()

    def wait_for_signal() -> None:
        signals.get()
        stop.set()

    # A handler that set the event would wait forever if the main thread held the event's lock, in `stop.wait`, when
    # the signal came. A SimpleQueue takes an item at any moment.
    threading.Thread(target=wait_for_signal, name="tfpipe-signals", daemon=True).start()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda signum, _: signals.put(signum))
    return stop


def _print(service: "Service") -> None:
    listed = ", ".join(f'"{address}"' for address in service.addresses)
    click.echo(f"{human_count(len(service.addresses), 'worker')}: {', '.join(service.addresses)}")
    click.echo(f"Trainers      PipelineConfig(service=ServiceOptions(workers=[{listed}]), ...)")
    click.echo(f"  or in TOML  service.workers = [{listed}]")
    if all(address.startswith("127.") for address in service.addresses):
        click.echo("Only this machine reaches 127.0.0.1; for others leave --host out.")


def _print_json(service: "Service") -> None:
    workers = [{"address": address, "pid": pid} for address, pid in zip(service.addresses, service.pids, strict=True)]
    click.echo(json.dumps({"pid": os.getpid(), "workers": workers}))


@command("Check running workers from the trainer's machine.", name="serve-check")
@click.argument("workers", nargs=-1, required=True, metavar="HOST:PORT...")
@click.option("--dataset", metavar="DATASET", help="A dataset that the workers must read, by its directory or URL.")
def serve_check(workers: tuple[str, ...], dataset: str | None, as_json: bool) -> None:
    """Check whether the workers at each HOST:PORT answer, and have this release of tfpipe.

    With --dataset each worker makes two batches, which must be equal to those of this machine. Exit code 1 if a check
    fails; warnings do not count.
    """
    Addresses().check("HOST:PORT", workers)
    from tfpipe.doctor.service_checks import check_service

    data, split = (None, None) if dataset is None else open_data(dataset, None)
    show_checks(check_service(workers, data, split), as_json)
