"""`tfpipe serve`: a tf.data service on this machine."""

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
from tfpipe.cli.shared.inputs import open_data, quiet_start
from tfpipe.cli.shared.params import debug_option
from tfpipe.cli.shared.requirements import require_tensorflow
from tfpipe.errors import ConfigError
from tfpipe.system.units import human_count

if TYPE_CHECKING:
    from tfpipe.data_service import Service


_PORT = 5050  # of a dispatcher in a cluster, if no other one is given
_OF_A_CLUSTER = ("kubernetes", "image", "worker_cpu", "worker_memory")
_OF_A_START = (
    "port",
    "workers",
    "worker_port",
    "host",
    "dispatcher",
    "dispatcher_only",
    "work_dir",
    "worker_addresses",
)


@click.command(short_help="Run a tf.data service that preprocesses for trainers.")
@click.option("--port", type=int, help="Port of the dispatcher; 0 takes any free port.  [default: 5050]")
@click.option("--workers", type=int, metavar="N", help="Number of worker processes; each uses all cores.  [default: 1]")
@click.option(
    "--worker-port",
    type=int,
    help="Port of the first worker; the others take the next ports.  [default: any free ports]",
)
@click.option(
    "--host", metavar="NAME", help="Name or address under which other machines reach this one.  [default: its address]"
)
@click.option("--dispatcher", metavar="grpc://HOST:PORT", help="Run only workers, for the dispatcher at this address.")
@click.option("--dispatcher-only", is_flag=True, help="Run only the dispatcher, without workers.")
@click.option(
    "--work-dir", metavar="DIR", help="Folder for the dispatcher's journal, so that it can go on after a restart."
)
@click.option(
    "--worker-address",
    "worker_addresses",
    multiple=True,
    metavar="HOST:PORT",
    help="Worker of another machine that the dispatcher knows, as exact order needs; may be repeated.",
)
@click.option(
    "--check",
    "checked",
    metavar="HOST:PORT",
    help="Check the running service of this dispatcher instead: its workers, their versions, its journal.",
)
@click.option(
    "--dataset", metavar="DATASET", help="With --check: a dataset that the workers must read, by its directory or URL."
)
@click.option(
    "--kubernetes",
    is_flag=True,
    help="Print manifests for Kubernetes instead: a dispatcher with a journal, and --workers of stable addresses.",
)
@click.option("--image", metavar="IMAGE", help="With --kubernetes: the container image with tfpipe and TensorFlow.")
@click.option("--worker-cpu", metavar="CORES", help="With --kubernetes: the cores of a worker.  [default: 8]")
@click.option("--worker-memory", metavar="SIZE", help="With --kubernetes: the memory of a worker.  [default: 8Gi]")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object, when the service is ready or with the checks."
)
@debug_option
def serve(
    port: int | None,
    workers: int | None,
    worker_port: int | None,
    host: str | None,
    dispatcher: str | None,
    dispatcher_only: bool,
    work_dir: str | None,
    worker_addresses: tuple[str, ...],
    checked: str | None,
    dataset: str | None,
    kubernetes: bool,
    image: str | None,
    worker_cpu: str | None,
    worker_memory: str | None,
    as_json: bool,
) -> None:
    """Run a tf.data service: its workers read and preprocess for trainers that have too few cores of their own.

    Workers open the shards under the paths or URLs that the trainer gives. Anyone who can reach the ports can use the
    service, so keep it inside a trusted network. Ctrl-C or SIGTERM ends it.

    With --check it starts nothing, and ends with exit code 1 if a check fails; warnings do not count. With --kubernetes
    it prints what `kubectl apply -f -` takes.
    """
    if checked is not None:
        _refuse_others("--check", (*_OF_A_START, *_OF_A_CLUSTER))
        raise SystemExit(_check(checked, dataset, as_json))
    if dataset is not None:
        raise ConfigError("--dataset names what --check reads. Give --check HOST:PORT too, or leave it out.")
    if kubernetes:
        sizes = {"worker_cpu": worker_cpu, "worker_memory": worker_memory}
        return _print_manifests(image, (workers, port, worker_port), sizes, as_json)
    _refuse_others("A service on this machine", _OF_A_CLUSTER)
    if dispatcher is not None and dispatcher_only:
        raise ConfigError("--dispatcher runs only workers, and --dispatcher-only runs none. Leave one of them out.")
    if dispatcher is not None and port is not None:
        raise ConfigError(
            "--port is the port of a new dispatcher, and --dispatcher names a running one. Leave one of them out."
        )
    if dispatcher_only and workers:
        raise ConfigError(f"--dispatcher-only excludes --workers, got {workers}. Leave one of them out.")
    require_tensorflow("serve")
    _quiet_tensorflow()
    from tfpipe.data_service import Service, ServiceConfig

    config = ServiceConfig(
        port=ServiceConfig.port if port is None else port,
        workers=0 if dispatcher_only else ServiceConfig.workers if workers is None else workers,
        worker_port=worker_port or 0,
        host=host,
        dispatcher=dispatcher,
        work_dir=work_dir,
        worker_addresses=worker_addresses,
    )
    with Service(config) as service:
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


def _print_manifests(
    image: str | None, numbers: tuple[int | None, ...], sizes: dict[str, str | None], as_json: bool
) -> None:
    """Prints the manifests of a cluster, in YAML or as one list in JSON."""
    _refuse_others("--kubernetes", [name for name in _OF_A_START if name not in ("port", "workers", "worker_port")])
    workers, port, worker_port = numbers
    config = ClusterConfig(
        image=image or "",
        workers=1 if workers is None else workers,
        port=port or _PORT,
        worker_port=worker_port or (port or _PORT) + 1,
        **{name: size for name, size in sizes.items() if size is not None},
    )
    manifests = make_manifests(config)
    if as_json:
        click.echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}))
    else:
        click.echo(to_yaml(manifests), nl=False)


def _check(address: str, dataset: str | None, as_json: bool) -> int:
    """Checks a service, prints what was found, and returns the exit code."""
    require_tensorflow("serve")
    with quiet_start():
        from tfpipe.doctor.service_checks import check_service
    source = None
    if dataset is not None:
        from tfpipe.engine.source import get_source

        source = get_source(*open_data(dataset, None))
    dispatcher = address if "://" in address else f"grpc://{address}"
    checks = check_service(dispatcher, source, "--check")
    if as_json:
        results = list(checks)
        document = {"dispatcher": dispatcher, "checks": [check.to_json() for check in results]}
        click.echo(json.dumps({**document, "ok": all_passed(results)}))
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


def _quiet_tensorflow() -> None:
    """Sets the environment for TensorFlow before it is imported; the workers inherit it."""
    context = click.get_current_context()
    if not any(one.params.get("debug") for one in (context, context.find_root())):
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # Workers use no GPU; on a trainer's machine they must not take its memory.
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"


def _print(service: "Service") -> None:
    addresses = ", ".join(worker.address for worker in service.workers)
    workers = f"{human_count(len(service.workers), 'worker')}: {addresses}" if addresses else "no worker here"
    where = service.dispatcher
    click.echo(f"Dispatcher {where}, {workers}")
    click.echo(f'Trainers        PipelineConfig(service="{where}", ...)')
    click.echo(f'  or in TOML    service = "{where}"')
    if service.known_workers:
        click.echo("Other machines  name their workers here with --worker-address HOST:PORT")
    else:
        click.echo(f"Other machines  tfpipe serve --dispatcher {where}")
    if "://127." in where and service.config.dispatcher is None:
        click.echo("Only this machine reaches 127.0.0.1; for others name it with --host.")


def _print_json(service: "Service") -> None:
    workers = [{"address": worker.address, "pid": worker.pid} for worker in service.workers]
    document = {"dispatcher": service.dispatcher, "pid": os.getpid(), "workers": workers}
    click.echo(json.dumps(document))
