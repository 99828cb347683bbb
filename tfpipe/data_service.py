"""Runs a tf.data service on this machine: a dispatcher in this process, and each worker in another one.

    with Service(ServiceConfig(workers=2)) as service:
        print(service.dispatcher)               # grpc://10.0.0.5:5050
        service.run_until(stop)                 # a threading.Event

One worker is usually enough: it uses all cores, and takes 0.6 GB before it does anything. Each worker is a process, so
the kernel can kill one for its memory without ending the dispatcher or the others. A lost worker starts again *on its
port*, because a trainer in the middle of an epoch asks for it there. The trainer waits for it, as long as
`service_timeout_s` says.

No password protects the service: everybody who reaches the ports can run TensorFlow graphs, and graphs can read and
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

from tfpipe.errors import ConfigError, TfpipeError, first_line
from tfpipe.native import library
from tfpipe.pipeline.service_client import (
    announce_journal,
    announce_native_library,
    announce_workers,
    check_address,
    find_workers,
    is_address,
    split_address,
)
from tfpipe.system.child_process import die_with_parent, hold_interrupts
from tfpipe.system.options import Count, Names, check_options, option

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.5
_START_LIMIT_S = 120.0  # TensorFlow's import takes 3 s, and minutes on a cold network disk
_STOP_LIMIT_S = 5.0
_FORGET_JOBS_MS = 2_000
_HEARTBEAT_MS = 2_000  # a worker hears from its dispatcher which jobs ended; by default after 30 s
_MAX_PORT = 65535
_LOOPBACK = "127.0.0.1"
_REMOTE = ("192.0.2.1", 9)  # an address for documentation (RFC 5737), to which nothing is sent


@dataclass(frozen=True, kw_only=True)
class ServiceConfig:
    """The options of the servers on this machine: their number and their addresses.

    Attributes:
        port: The port of the dispatcher. 0: any free one. From 0 to 65535. Default: 5050.
        workers: The number of worker processes. 0: the dispatcher alone. At least 0. Default: 1.
        worker_port: The port of the first worker; the next workers take the next ports. 0: any free ones. From 0 to
            65535. Default: 0.
        host: The name or address by which other machines reach this one. None: the address of the interface that
            leads to the dispatcher, or to the rest of the network for the dispatcher itself; 127.0.0.1 without a
            network. Default: None.
        dispatcher: The dispatcher that the workers join, "grpc://host:port". None: it starts here. Default: None.
        work_dir: The folder or URL for the dispatcher's journal. With it a dispatcher that starts again goes on with
            its jobs. None: the jobs end with the dispatcher. Default: None.
        worker_addresses: The workers of other machines, host:port each, if the dispatcher starts here. With workers
            here or named, the dispatcher knows all of them, as exact order needs, and takes no others. With neither it
            takes any worker that joins. Default: ().

    Raises:
        ConfigError: A value cannot be used, or two options exclude each other.
    """

    port: int = option(Count(0, _MAX_PORT), 5050)
    workers: int = option(Count(0), 1)
    worker_port: int = option(Count(0, _MAX_PORT), 0)
    host: str | None = None
    dispatcher: str | None = None
    work_dir: str | None = None
    worker_addresses: tuple[str, ...] = option(Names(), ())

    def __post_init__(self) -> None:
        check_options(self)
        last_port = _MAX_PORT - max(self.workers - 1, 0)  # of the first worker, so that all fit
        if self.worker_port > last_port:
            raise ConfigError(f"`worker_port` must be from 0 to {last_port}, got {self.worker_port}.")
        if self.dispatcher is not None and self.workers == 0:
            raise ConfigError("`workers` must be at least 1 where `dispatcher` runs elsewhere, got 0.")
        if self.dispatcher is not None and self.work_dir is not None:
            raise ConfigError("`work_dir` is for a dispatcher here, `dispatcher` names another. Leave out one of them.")
        if self.dispatcher is not None and self.worker_addresses:
            raise ConfigError(
                "`worker_addresses` is for a dispatcher here, `dispatcher` names another. Leave out one of them."
            )
        for address in self.worker_addresses:
            if not is_address(f"grpc://{address}"):
                raise ConfigError(f"`worker_addresses` must be like host:5051, got {address!r}.")


@dataclass
class Worker:
    """A worker process.

    Attributes:
        port: The port on which it serves.
        address: The address by which trainers reach it, host:port.
        process: The process; None before its start.
        ready: A pipe that holds a message once the worker serves. If the worker ends before, the other end closes.
    """

    port: int
    address: str
    process: SpawnProcess | None = field(default=None, repr=False)
    ready: Connection | None = field(default=None, repr=False)

    @property
    def pid(self) -> int | None:
        """The number of the process; None before its start."""
        return self.process.pid if self.process is not None else None


class Service:
    """The servers of this machine; a context manager starts and stops them.

    Attributes:
        config: The servers to run.
        workers: The workers that run.
        dispatcher: The address by which trainers and other machines reach the dispatcher, grpc://host:port.
    """

    def __init__(self, config: ServiceConfig) -> None:
        self.config = config
        self.workers: list[Worker] = []
        self.dispatcher = config.dispatcher or ""
        self._workers_dispatcher = self.dispatcher
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

    @property
    def known_workers(self) -> tuple[str, ...]:
        """The workers that the dispatcher here knows, in the order of their numbers; none if it takes any."""
        here = () if self.config.dispatcher is not None else tuple(worker.address for worker in self.workers)
        return (*here, *self.config.worker_addresses)

    def run_until(self, stop: threading.Event) -> None:
        """Starts lost workers again until `stop` is set.

        Raises:
            TfpipeError: A worker that was started again ended at once.
        """
        while not stop.wait(_LOOK_EVERY_S):
            for worker in self.workers:
                if worker.process is None or worker.process.is_alive():
                    continue
                if worker.ready is not None and not _is_ready(worker, 0):
                    raise _make_start_error(worker)
                cause = _describe_exit(worker.process.exitcode)
                logger.warning("The worker at %s ended (%s) and is started again.", worker.address, cause)
                self._start_worker(worker)

    def stop(self) -> None:
        """Ends the workers, then the dispatcher."""
        processes = [worker.process for worker in self.workers if worker.process is not None]
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + _STOP_LIMIT_S
        for process in processes:
            process.join(max(deadline - time.monotonic(), 0))
            process.kill()  # harmless if it has ended
            process.join()
        self.workers = []
        if self._server is not None:
            self._server.stop()
            self._server = None

    def _start(self) -> None:
        config = self.config
        if config.dispatcher is not None:
            check_address(config.dispatcher, "`dispatcher`")
            destination = split_address(config.dispatcher)
        else:
            destination = _REMOTE
        host = config.host or _find_own_address(destination)
        dispatcher_port, worker_ports = self._claim_ports()
        if dispatcher_port is not None:
            self.dispatcher = f"grpc://{_join_address(host, dispatcher_port)}"
            # Workers reach a dispatcher of this machine by loopback: its public name may not be known here.
            self._workers_dispatcher = f"grpc://{_join_address(_LOOPBACK, dispatcher_port)}"
        self.workers = [Worker(port, _join_address(host, port)) for port in worker_ports]
        for worker in self.workers:  # first, so that they import TensorFlow while this process does
            self._start_worker(worker)
        if dispatcher_port is not None:
            self._server = _start_dispatcher(dispatcher_port, config.work_dir, self.known_workers)
            if self.known_workers:
                announce_workers(self._workers_dispatcher, self.known_workers)
            if config.work_dir is not None:
                announce_journal(self._workers_dispatcher)
        for worker in self.workers:
            if not _is_ready(worker, _START_LIMIT_S):
                assert worker.process is not None
                worker.process.join(1)
                raise _make_start_error(worker)

    def _claim_ports(self) -> tuple[int | None, list[int]]:
        """Returns the port of the dispatcher, or None if it runs elsewhere, and the ports of the workers."""
        config = self.config
        requests = [(config.worker_port and config.worker_port + i, "worker_port") for i in range(config.workers)]
        if config.dispatcher is not None:
            return None, claim_ports(requests)
        dispatcher_port, *worker_ports = claim_ports([(config.port, "port"), *requests])
        return dispatcher_port, worker_ports

    def _start_worker(self, worker: Worker) -> None:
        context = multiprocessing.get_context("spawn")
        worker.ready, child = context.Pipe(duplex=False)
        joins = self.config.dispatcher is not None
        arguments = (self._workers_dispatcher.removeprefix("grpc://"), joins, worker.address, worker.port, child)
        process = context.Process(target=_run_worker, args=arguments, name="tfpipe-worker", daemon=True)
        with hold_interrupts():  # or `stop` could meet a process that is half started
            process.start()
            worker.process = process
        child.close()  # so that this end sees the child's end


def claim_ports(requests: Sequence[tuple[int, str]]) -> list[int]:
    """Checks that ports are free, and finds a free one for each 0.

    TensorFlow's servers share ports (SO_REUSEPORT). A second dispatcher would start on the port of the first without a
    message, and each request of a trainer would reach one of the two by chance.

    Args:
        requests: Port numbers, and the option from which each comes.

    Raises:
        TfpipeError: Another server has a port, or this user may not have it.
    """
    ports = []
    with ExitStack() as sockets:  # all stay open until the end, or a port might be found twice
        for port, option in requests:
            server = sockets.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            # A port whose server ended a minute ago is free.
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                server.bind(("", port))
                server.listen()  # two sockets may bind the same port, but only one can listen
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                raise TfpipeError(
                    f"Port {port} must be free, and is not ({reason}). Choose another `{option}`."
                ) from error
            ports.append(server.getsockname()[1])
    return ports


def _start_dispatcher(port: int, work_dir: str | None, workers: Sequence[str]) -> Any:
    import tensorflow as tf

    service = tf.data.experimental.service
    config = service.DispatcherConfig(
        port=port,
        work_dir=work_dir,
        fault_tolerant_mode=work_dir is not None,
        worker_addresses=list(workers) or None,
        # A trainer that goes on after a fault begins another job. Workers then soon forget the old one.
        job_gc_check_interval_ms=_FORGET_JOBS_MS,
        job_gc_timeout_ms=_FORGET_JOBS_MS,
    )
    try:
        return service.DispatchServer(config)
    except tf.errors.OpError as error:
        raise TfpipeError(f"The dispatcher could not be started: {first_line(error)}.") from error


def _run_worker(dispatcher: str, joins: bool, address: str, port: int, ready: Connection) -> None:
    """Serves as a worker; the main function of its process.

    A dispatcher that knows its workers would refuse another one again and again, so this process asks first.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the parent decides
    die_with_parent()
    import tensorflow as tf

    known = find_workers(f"grpc://{dispatcher}") if joins else ()
    if known and address not in known:
        ready.send(
            f"The dispatcher must know the worker {address}, and it knows {', '.join(known)}. Start it with "
            f"--worker-address {address}."
        )
        return
    has_library = library.is_available()  # before the first job comes
    service = tf.data.experimental.service
    server = service.WorkerServer(
        service.WorkerConfig(
            dispatcher_address=dispatcher,
            worker_address=address,
            port=port,
            data_transfer_address=address,
            heartbeat_interval_ms=_HEARTBEAT_MS,
        )
    )
    if has_library:
        announce_native_library(f"grpc://{dispatcher}", address)
    ready.send("")
    server.join()


def _is_ready(worker: Worker, seconds: float) -> bool:
    """Returns whether a worker serves within some seconds. Once it has served, the answer stays True.

    Raises:
        TfpipeError: The dispatcher does not know the worker.
    """
    assert worker.ready is not None
    if not worker.ready.closed:
        try:
            if not worker.ready.poll(seconds):
                return False
            refusal = worker.ready.recv()
        except EOFError:
            return False
        worker.ready.close()
        if refusal:
            raise TfpipeError(refusal)
    return True


def _make_start_error(worker: Worker) -> TfpipeError:
    cause = _describe_exit(worker.process.exitcode if worker.process is not None else None)
    return TfpipeError(f"The worker at {worker.address} ended ({cause}) before it was ready.")


def _find_own_address(destination: tuple[str, int]) -> str:
    """Returns the address of the interface that leads to a destination. An address needs no name service."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(*destination, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as datagram_socket:
            datagram_socket.connect(address)  # chooses the interface, and sends nothing
            own_address: str = datagram_socket.getsockname()[0]
            return own_address
    except OSError:
        return _LOOPBACK


def _join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _describe_exit(code: int | None) -> str:
    if code is None:
        return "it does not answer"
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
