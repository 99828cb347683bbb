"""`tfpipe serve`: a tf.data service on this machine."""

import json
import os
import signal
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

import click

from tfpipe.cli.shared.params import debug_option
from tfpipe.cli.shared.requirements import require_tensorflow
from tfpipe.errors import ConfigError
from tfpipe.system.units import human_count

if TYPE_CHECKING:
    from tfpipe.data_service import Service


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
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object when the service is ready.")
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
    as_json: bool,
) -> None:
    """Run a tf.data service: its workers read and preprocess for trainers that have too few cores of their own.

    Workers open the shards under the paths or URLs that the trainer gives. Anyone who can reach the ports can use the
    service, so keep it inside a trusted network. Ctrl-C or SIGTERM ends it.
    """
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
