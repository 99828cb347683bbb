"""A tf.data service on this machine: a dispatcher in this process, and workers in processes of their own.

    with Service(ServiceConfig(workers=2)) as service:
        print(service.dispatcher)               # grpc://10.0.0.5:5050
        service.run_until(stop)                 # a threading.Event

One worker is the rule: it uses all cores, and takes 0.6 GB before it does anything. Each has a process, so that one
the kernel kills for its memory takes neither the dispatcher nor the others along. A lost worker is started again *on
its port*: a trainer in the middle of one pass asks for it there and waits (5 minutes and longer, when tried).

Nothing here is protected by a password: whoever reaches the ports can run TensorFlow graphs, and with them read and
write files. Keep the ports inside a trusted network.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.pipeline.service_client import check_address, split_address
from tfpipe.system.child_process import die_with_parent, hold_interrupts

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.5
_START_S = 120.0  # TensorFlow's import takes 3 s, and minutes on a cold network disk
_STOP_S = 5.0
_LOOPBACK = "127.0.0.1"
_ELSEWHERE = ("192.0.2.1", 9)  # an address for documentation (RFC 5737); nothing is sent there


@dataclass(frozen=True, kw_only=True)
class ServiceConfig:
    """What runs on this machine, and where others find it."""

    port: int = 5050
    """Of the dispatcher; 0: any that is free."""
    workers: int = 1
    """Worker processes; 0: the dispatcher alone."""
    worker_port: int = 0
    """Of the first worker; the next ones follow. 0: any that are free."""
    host: str | None = None
    """Name or address by which other machines reach this one. None: the address of the interface that leads to the
    dispatcher, or for the dispatcher itself to the rest of the network; 127.0.0.1 without a network."""
    dispatcher: str | None = None
    """Dispatcher that the workers join, "grpc://host:port". None: one is started here."""
    work_dir: str | None = None
    """Folder or URL for the dispatcher's journal; a dispatcher that is started again there goes on with its jobs.
    None: they end with it."""

    def __post_init__(self) -> None:
        _check_port("port", self.port, self.port)
        _check_port("worker_port", self.worker_port, self.worker_port + max(self.workers - 1, 0))
        if self.workers < 0:
            raise ConfigError(f"`workers` must be at least 0, got {self.workers}.")
        if self.dispatcher is not None and self.workers == 0:
            raise ConfigError("Without a dispatcher here there must be at least 1 worker, got 0.")
        if self.dispatcher is not None and self.work_dir is not None:
            raise ConfigError("`work_dir` is for a dispatcher, and that one runs elsewhere. Leave one of the two out.")


@dataclass
class Worker:
    """One worker process."""

    port: int
    address: str
    """host:port, as trainers reach it."""
    process: SpawnProcess | None = field(default=None, repr=False)
    ready: Connection | None = field(default=None, repr=False)
    """Something can be read from it once the worker serves; the end of the file, if it ended before."""

    @property
    def pid(self) -> int | None:
        """Number of the process."""
        return self.process.pid if self.process is not None else None


class Service:
    """The servers of this machine; a context manager that starts and stops them."""

    def __init__(self, config: ServiceConfig) -> None:
        self.config = config
        self.workers: list[Worker] = []
        self.dispatcher = config.dispatcher or ""
        """grpc://host:port, as trainers and other machines reach it."""
        self._joins = self.dispatcher
        self._server: Any = None

    def __enter__(self) -> Service:
        """Starts everything and waits until the workers serve: about 5 s, most of it TensorFlow's import.

        Raises:
            ConfigError: The dispatcher to join does not answer.
            TfpipeError: A port is in use, or a worker ended at once.
        """
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def run_until(self, stop: threading.Event) -> None:
        """Returns when `stop` is set. Until then, starts again what is lost.

        Raises:
            TfpipeError: A worker that was started again ended at once.
        """
        while not stop.wait(_LOOK_EVERY_S):
            for worker in self.workers:
                if worker.process is None or worker.process.is_alive():
                    continue
                how = _how(worker.process.exitcode)
                if worker.ready is not None and not _is_ready(worker, 0):
                    raise TfpipeError(f"The worker at {worker.address} ended ({how}) before it was ready.")
                logger.warning("The worker at %s ended (%s) and is started again.", worker.address, how)
                self._start_worker(worker)

    def stop(self) -> None:
        """Ends the workers, then the dispatcher."""
        processes = [worker.process for worker in self.workers if worker.process is not None]
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + _STOP_S
        for process in processes:
            process.join(max(deadline - time.monotonic(), 0))
            process.kill()  # harmless where it has ended
            process.join()
        self.workers = []
        if self._server is not None:
            self._server.stop()
            self._server = None

    def _start(self) -> None:
        config = self.config
        if config.dispatcher is not None:
            check_address(config.dispatcher, "`dispatcher`")
            towards = split_address(config.dispatcher)
        else:
            towards = _ELSEWHERE
        host = config.host or _own_address(towards)
        numbers = [config.worker_port and config.worker_port + i for i in range(config.workers)]
        wanted = [(config.port, "--port")] if config.dispatcher is None else []
        found = claim_ports([*wanted, *((number, "--worker-port") for number in numbers)])
        port, ports = (found[0], found[1:]) if wanted else (0, found)
        if config.dispatcher is None:
            self.dispatcher = f"grpc://{_joined(host, port)}"
        # A dispatcher of this machine is asked by the short way: its public name may not be known here.
        self._joins = config.dispatcher or f"grpc://{_joined(_LOOPBACK, port)}"
        self.workers = [Worker(port, _joined(host, port)) for port in ports]
        for worker in self.workers:  # first, so that they import TensorFlow while this process does
            self._start_worker(worker)
        if config.dispatcher is None:
            self._server = _start_dispatcher(port, config.work_dir)
        for worker in self.workers:
            if not _is_ready(worker, _START_S):
                assert worker.process is not None
                worker.process.join(1)
                how = _how(worker.process.exitcode)
                raise TfpipeError(f"The worker at {worker.address} ended ({how}) before it was ready.")

    def _start_worker(self, worker: Worker) -> None:
        context = multiprocessing.get_context("spawn")
        worker.ready, child = context.Pipe(duplex=False)
        arguments = (self._joins.removeprefix("grpc://"), worker.address, worker.port, child)
        process = context.Process(target=_work, args=arguments, name="tfpipe-worker", daemon=True)
        with hold_interrupts():  # or `stop` could meet a process that is half started
            process.start()
            worker.process = process
        child.close()  # so that this end sees the child's end


def claim_ports(wanted: Sequence[tuple[int, str]]) -> list[int]:
    """Makes sure that ports are free, and finds one for each 0.

    TensorFlow's servers share ports (SO_REUSEPORT): a second dispatcher would start on the first one's without a
    word, and trainers would get now the one, now the other.

    Args:
        wanted: Ports, and the option each is from.

    Raises:
        TfpipeError: Another server has a port, or this user may not have it.
    """
    ports = []
    with ExitStack() as held:  # until all are found, or one might be found twice
        for port, option in wanted:
            one = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what closed a minute ago does not count
            try:
                one.bind(("", port))
                one.listen()  # sockets that only bound could share it
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                raise TfpipeError(
                    f"Port {port} must be free, and is not ({reason}). Choose another with {option}."
                ) from error
            ports.append(one.getsockname()[1])
    return ports


def _start_dispatcher(port: int, work_dir: str | None) -> Any:
    import tensorflow as tf

    service = tf.data.experimental.service
    config = service.DispatcherConfig(port=port, work_dir=work_dir, fault_tolerant_mode=work_dir is not None)
    try:
        return service.DispatchServer(config)
    except tf.errors.OpError as error:
        cause = str(error.message or error).splitlines()[0]
        raise TfpipeError(f"The dispatcher could not be started: {cause}") from error


def _work(dispatcher: str, address: str, port: int, ready: Connection) -> None:
    """A worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the parent decides
    die_with_parent()
    import tensorflow as tf

    service = tf.data.experimental.service
    server = service.WorkerServer(
        service.WorkerConfig(
            dispatcher_address=dispatcher,
            worker_address=address,
            port=port,
            data_transfer_address=address,
        )
    )
    ready.send(True)
    server.join()


def _is_ready(worker: Worker, seconds: float) -> bool:
    """Whether it serves within this time; asked again, the answer stays."""
    assert worker.ready is not None
    if not worker.ready.closed:
        try:
            if not worker.ready.poll(seconds):
                return False
            worker.ready.recv()
        except EOFError:
            return False
        worker.ready.close()
    return True


def _own_address(towards: tuple[str, int]) -> str:
    """The address of the interface that leads there. A name would need a name service that knows it."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(*towards, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as one:
            one.connect(where)  # of a datagram socket: chooses the interface, sends nothing
            address: str = one.getsockname()[0]
            return address
    except OSError:
        return _LOOPBACK


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _how(code: int | None) -> str:
    if code is None:
        return "it does not answer"
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _check_port(name: str, port: int, last: int) -> None:
    if port < 0 or last > 65535:
        raise ConfigError(f"`{name}` must be from 0 to 65535, for each server one, got {port}.")
