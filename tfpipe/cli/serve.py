"""`tfpipe serve`: a tf.data service on this machine."""

import json
import os
import signal
import threading
from types import FrameType
from typing import TYPE_CHECKING

import click

from tfpipe.cli.shared.params import debug_option
from tfpipe.cli.shared.requirements import require_tensorflow
from tfpipe.errors import ConfigError
from tfpipe.system.units import human_count

if TYPE_CHECKING:
    from tfpipe.data_service import Service


@click.command(short_help="Run preprocessing for trainers on this machine.")
@click.option("--port", type=int, help="Of the dispatcher; 0: any that is free.  [default: 5050]")
@click.option("--workers", type=int, metavar="N", help="Worker processes; each one uses all cores.  [default: 1]")
@click.option("--worker-port", type=int, help="Of the first worker; the next follow.  [default: any that are free]")
@click.option("--host", metavar="NAME", help="Name or address of this machine for others.  [default: its address]")
@click.option("--dispatcher", metavar="grpc://HOST:PORT", help="Run workers only, for this dispatcher.")
@click.option("--dispatcher-only", is_flag=True, help="Run no worker here.")
@click.option("--work-dir", metavar="DIR", help="Journal of the dispatcher: started again, it goes on.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object once all is ready.")
@debug_option
def serve(
    port: int | None,
    workers: int | None,
    worker_port: int | None,
    host: str | None,
    dispatcher: str | None,
    dispatcher_only: bool,
    work_dir: str | None,
    as_json: bool,
) -> None:
    """Run a tf.data service: its workers read and preprocess for trainers whose own cores are not enough.

    Workers open the shards under the paths or URLs that the trainer gives. Whoever reaches the ports can use them, so
    keep them inside a trusted network. Ctrl-C or SIGTERM ends everything.
    """
    if dispatcher is not None and dispatcher_only:
        raise ConfigError("--dispatcher runs only workers here, --dispatcher-only none: leave one of them out.")
    if dispatcher is not None and port is not None:
        raise ConfigError("--port is the dispatcher's, and --dispatcher names one elsewhere: leave one of them out.")
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
    )
    with Service(config) as service:
        stop = _stop_on_signals()  # from here on Ctrl-C is how a server ends: exit code 0
        _print_json(service) if as_json else _print(service)
        service.run_until(stop)


def _stop_on_signals() -> threading.Event:
    stop = threading.Event()

    def handle(signum: int, frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
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
    click.echo(f"Other machines  tfpipe serve --dispatcher {where}")
    if "://127." in where and service.config.dispatcher is None:
        click.echo("Only this machine reaches 127.0.0.1; for others name it with --host.")


def _print_json(service: "Service") -> None:
    workers = [{"address": worker.address, "pid": worker.pid} for worker in service.workers]
    document = {"dispatcher": service.dispatcher, "pid": os.getpid(), "workers": workers}
    click.echo(json.dumps(document))
