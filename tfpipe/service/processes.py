"""The worker processes of this machine. One that ends is started again, on the same port."""

from __future__ import annotations

import logging
import multiprocessing
import resource
import signal
import socket
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from tfpipe.errors import ConfigError, TfpipeError, first_line
from tfpipe.service.config import ServiceConfig, read_file
from tfpipe.storage.file_io import resolve_links
from tfpipe.system import host_limits
from tfpipe.system.child_process import die_with_parent, hold_interrupts
from tfpipe.system.extras import importing

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

_LOOK_EVERY_S, _START_LIMIT_S, _STOP_LIMIT_S = 0.5, 60.0, 5.0
_REMOTE = ("192.0.2.1", 9)  # an address for documentation (RFC 5737), to which nothing is sent

logger = logging.getLogger(__name__)


class Service:
    """The workers of this machine; a context manager starts and stops them."""

    def __init__(self, config: ServiceConfig, token: str = "") -> None:
        with importing("A data service", "pyarrow", "tfpipe[service]"):
            import pyarrow.flight  # noqa: F401
        if not (token or config.is_local):
            raise ConfigError(f"Workers on `host` {config.host}, which others reach, need a token, got none.")
        self._tls = None
        if config.certificate is not None and config.key is not None:
            self._tls = read_file("certificate", config.certificate), read_file("key", config.key)
        self._config, self._token = config, token
        self._processes: list[SpawnProcess] = []
        self._ports: list[int] = []

    def __enter__(self) -> Service:
        """Starts the workers and waits until they serve: about a second."""
        port = self._config.port
        try:
            for number in range(self._config.workers):
                self._ports.append(_find_port(self._config.host, port and port + number))
                self._processes.append(self._start(self._ports[-1]))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the workers."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join(_STOP_LIMIT_S)
            process.kill()  # harmless if it has ended
            process.join()

    @property
    def addresses(self) -> tuple[str, ...]:
        """The address of each worker, for trainers."""
        host = self._config.host
        return tuple(_join(_find_own_address() if host in ("0.0.0.0", "::") else host, port) for port in self._ports)

    @property
    def pids(self) -> tuple[int | None, ...]:
        """The number of each worker's process."""
        return tuple(process.pid for process in self._processes)

    def run_until(self, is_stopped: Callable[[], bool]) -> None:
        """Starts lost workers again until it is stopped, which it asks twice a second."""
        while not is_stopped():
            for number, process in enumerate(self._processes):
                if not process.is_alive():
                    cause = f"exit code {process.exitcode}"  # below 0: the number of a signal
                    logger.warning("The worker %s ended (%s) and is started again.", self.addresses[number], cause)
                    self._processes[number] = self._start(self._ports[number])
            time.sleep(_LOOK_EVERY_S)

    def _start(self, port: int) -> SpawnProcess:
        """Starts a worker, and returns once it serves."""
        context, address = multiprocessing.get_context("spawn"), _join(self._config.host, port)
        ready, child = context.Pipe(duplex=False)
        arguments = (child, self._config, address, self._token, self._tls)
        process = context.Process(target=_run_worker, args=arguments, name="tfpipe-worker", daemon=True)
        with hold_interrupts():  # or a signal could meet a process that is half started
            process.start()
        child.close()  # so that this end sees the child's end
        try:
            trouble = ready.recv() if ready.poll(_START_LIMIT_S) else "it took too long"
        except EOFError:
            process.join(1)
            trouble = f"exit code {process.exitcode}"
        if trouble:
            process.kill()
            raise TfpipeError(f"A worker must serve at {address}, and does not ({trouble}).")
        return process


def _run_worker(
    ready: Connection, config: ServiceConfig, address: str, token: str, tls: tuple[bytes, bytes] | None
) -> None:
    """Serves as a worker; the main function of its process."""
    from tfpipe.service.server import Server

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the parent decides
    die_with_parent()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # silent connections cost a file each, and nothing else
    location, roots = f"grpc{'+tls' if tls else ''}://{address}", [*map(resolve_links, config.root)]
    num_bytes = host_limits.memory_limit_bytes() // 4 // config.workers
    try:
        server = Server(location, roots, config.threads or host_limits.usable_cpus(), num_bytes, token=token, tls=tls)
    except Exception as error:  # Arrow has several kinds
        ready.send(first_line(error))
        return
    ready.send("")
    server.serve()


def _find_port(host: str, port: int) -> int:
    """Returns a port that is free: the given one, or any for 0."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, port), family=family) as listener:  # on a port whose server ended, too
            return int(listener.getsockname()[1])
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (")[0].lower()
        raise TfpipeError(
            f"Port {port} of {host} must be free, and is not ({reason}). Choose another `port` or `host`."
        ) from error


def _find_own_address() -> str:
    """Returns the address of the interface that leads to the rest of the network; 127.0.0.1 without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as found:  # chooses the interface, and sends nothing
        return "127.0.0.1" if found.connect_ex(_REMOTE) else str(found.getsockname()[0])


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
