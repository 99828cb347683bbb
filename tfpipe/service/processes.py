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
from tfpipe.service.config import ServiceConfig, Tls, read_file
from tfpipe.storage.file_io import resolve_links
from tfpipe.system import host_limits
from tfpipe.system.child_process import defer_interrupts, die_with_parent
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
        tls = None
        if config.certificate is not None and config.key is not None:
            tls = read_file("certificate", config.certificate), read_file("key", config.key)
        self._config, self._settings = config, (config, token, tls)
        self._workers: dict[int, SpawnProcess] = {}  # by port

    def __enter__(self) -> Service:
        """Starts the workers, and waits until they serve."""
        try:
            for number in range(self._config.workers):
                self._start(self._config.port and self._config.port + number)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the workers."""
        for process in self._workers.values():
            process.terminate()
        for process in self._workers.values():
            process.join(_STOP_LIMIT_S)
            process.kill()  # harmless if it has ended
            process.join()

    @property
    def addresses(self) -> tuple[str, ...]:
        """The address of each worker, for trainers."""
        host = self._config.host
        if host in ("0.0.0.0", "::"):  # all interfaces: name the one that leads to other machines
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as found:
                host = "127.0.0.1" if found.connect_ex(_REMOTE) else str(found.getsockname()[0])
        return tuple(_join(host, port) for port in self._workers)

    @property
    def pids(self) -> tuple[int | None, ...]:
        """The process ids of the workers."""
        return tuple(process.pid for process in self._workers.values())

    def run_until(self, is_stopped: Callable[[], bool]) -> None:
        """Starts workers that ended again, twice a second, until `is_stopped` returns true."""
        while not is_stopped():
            for port, process in list(self._workers.items()):
                if not process.is_alive():
                    text = "The worker on port %s ended (exit code %s) and is started again."
                    logger.warning(text, port, process.exitcode)  # negative: the number of a signal
                    self._start(port)
            time.sleep(_LOOK_EVERY_S)

    def _start(self, port: int) -> None:
        """Starts a worker on a port (0: any free one), and waits until it serves."""
        context = multiprocessing.get_context("spawn")
        ready, child = context.Pipe(duplex=False)
        process = context.Process(target=_run_worker, args=(child, port, *self._settings), daemon=True)
        with defer_interrupts():  # no signal must reach a process that is half started
            process.start()
        child.close()  # so that `recv` raises EOFError if the child ends
        try:
            served = ready.recv() if ready.poll(_START_LIMIT_S) else "it took too long"
        except EOFError:
            process.join(1)
            served = f"exit code {process.exitcode}"
        if isinstance(served, str):
            process.kill()
            raise TfpipeError(
                f"A worker must serve on `port` {port} of `host` {self._config.host}, and does not ({served}). "
                "If another program has the port, choose another."
            )
        self._workers[served] = process


def _run_worker(ready: Connection, port: int, config: ServiceConfig, token: str, tls: Tls) -> None:
    """Runs the server of a worker in its process, after sending the parent its port, or why it cannot serve."""
    from tfpipe.service.server import Server

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the parent decides
    die_with_parent()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each idle connection takes a file descriptor
    location, roots = f"grpc{'+tls' if tls else ''}://{_join(config.host, port)}", [*map(resolve_links, config.root)]
    num_bytes = host_limits.memory_limit_bytes() // 4 // config.workers
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        socket.create_server((config.host, port), family=family).close()  # gRPC would share a port that is in use
        server = Server(location, roots, config.threads or host_limits.usable_cpus(), num_bytes, token, tls)
    except Exception as error:  # Arrow raises several types
        ready.send((getattr(error, "strerror", None) or first_line(error)).partition(" (while")[0])
        return
    ready.send(server.port)
    server.serve()


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
