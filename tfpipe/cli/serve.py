"""`tfpipe serve`: workers on this machine that make batches for trainers."""

import json
import os
import signal
import threading
from collections.abc import Iterable
from queue import SimpleQueue
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from tfpipe.cli.serve_kubernetes import ClusterConfig, make_manifests, to_yaml
from tfpipe.cli.shared.checks import all_passed, print_checks
from tfpipe.cli.shared.config_option import config_option, drop_missing
from tfpipe.cli.shared.help_groups import GroupedCommand
from tfpipe.cli.shared.inputs import open_data
from tfpipe.cli.shared.params import debug_option
from tfpipe.errors import ConfigError
from tfpipe.service.config import ServiceConfig
from tfpipe.system.options import Addresses
from tfpipe.system.units import human_count

if TYPE_CHECKING:
    from tfpipe.service.processes import Service

_OF_A_CLUSTER = ("kubernetes", "image", "worker_cpu", "worker_memory")
_OF_A_START = ("port", "workers", "host", "threads")


@click.command(cls=GroupedCommand, short_help="Run workers that make batches for trainers.")
@config_option(ServiceConfig, "port", "Port of the first worker; the others take the next ports. 0 takes free ones.")
@config_option(ServiceConfig, "workers", "Number of worker processes; each uses all cores.", metavar="N")
@config_option(
    ServiceConfig,
    "host",
    "Name or address of the interface on which workers listen, such as 127.0.0.1.",
    metavar="NAME",
    default="all interfaces",
)
@config_option(
    ServiceConfig, "threads", "Threads with which a worker decodes.", metavar="N", default="one for each core"
)
@click.option(
    "--check",
    "checked",
    metavar="HOST:PORT,...",
    help="Check running workers instead: whether they answer, and have this release.",
)
@click.option(
    "--dataset", metavar="DATASET", help="With --check: a dataset that the workers must read, by its directory or URL."
)
@click.option(
    "--kubernetes", is_flag=True, help="Print manifests for Kubernetes instead: --workers of stable addresses."
)
@click.option("--image", metavar="IMAGE", help="With --kubernetes: the container image with tfpipe.")
@click.option("--worker-cpu", metavar="CORES", help="With --kubernetes: the cores of a worker.  [default: 8]")
@click.option("--worker-memory", metavar="SIZE", help="With --kubernetes: the memory of a worker.  [default: 8Gi]")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object, when the workers are ready or with the checks."
)
@debug_option
def serve(
    port: int | None,
    workers: int | None,
    host: str | None,
    threads: int | None,
    checked: str | None,
    dataset: str | None,
    kubernetes: bool,
    image: str | None,
    worker_cpu: str | None,
    worker_memory: str | None,
    as_json: bool,
) -> None:
    """Run workers that read and preprocess for trainers which have too few cores of their own.

    Workers open the shards under the paths or URLs that the trainer gives. Anyone who can reach the ports can read
    datasets through them, so keep them inside a trusted network. Ctrl-C or SIGTERM ends them.

    With --check it starts nothing, and ends with exit code 1 if a check fails; warnings do not count. With --kubernetes
    it prints what `kubectl apply -f -` takes.
    """
    if checked is not None:
        _refuse_others("--check", (*_OF_A_START, *_OF_A_CLUSTER))
        raise SystemExit(_check(checked, dataset, as_json))
    if dataset is not None:
        raise ConfigError("--dataset names what --check reads. Give --check HOST:PORT too, or leave it out.")
    options = drop_missing({"port": port, "workers": workers, "host": host, "threads": threads})
    if kubernetes:
        sizes = {"worker_cpu": worker_cpu, "worker_memory": worker_memory}
        return _print_manifests(image, ServiceConfig(**options), drop_missing(sizes), as_json)
    _refuse_others("A service on this machine", _OF_A_CLUSTER)
    from tfpipe.service.processes import Service

    with Service(ServiceConfig(**options)) as service:
        stop = _stop_on_signals()  # from here on Ctrl-C is how a server ends: exit code 0
        _print_json(service) if as_json else _print(service)
        service.run_until(stop)


def _refuse_others(option: str, names: Iterable[str]) -> None:
    """Refuses options that this way to use the command does not take."""
    context = click.get_current_context()
    for parameter in context.command.params:
        given = context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
        if given and parameter.name in names:
            raise ConfigError(f"{option} excludes {parameter.opts[0]}. Leave one of them out.")


def _print_manifests(image: str | None, service: ServiceConfig, sizes: dict[str, str], as_json: bool) -> None:
    """Prints the manifests of a cluster, in YAML or as one list in JSON."""
    _refuse_others("--kubernetes", ("host", "threads"))
    manifests = make_manifests(ClusterConfig(image=image or "", workers=service.workers, port=service.port, **sizes))
    if as_json:
        click.echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}))
    else:
        click.echo(to_yaml(manifests), nl=False)


def _check(addresses: str, dataset: str | None, as_json: bool) -> int:
    """Checks workers, prints what was found, and returns the exit code."""
    from tfpipe.doctor.service_checks import check_service

    workers = tuple(each.strip() for each in addresses.split(","))
    Addresses().check("checked", workers)  # or an error would name the number, --workers
    data, split = (None, None) if dataset is None else open_data(dataset, None)
    checks = check_service(workers, data, split)
    if as_json:
        results = list(checks)
        click.echo(json.dumps({"checks": [check.to_json() for check in results], "ok": all_passed(results)}))
    else:
        results = print_checks(checks)
    return 0 if all_passed(results) else 1


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
