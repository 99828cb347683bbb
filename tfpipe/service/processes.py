"""The worker processes of this machine. One that ends is started again, on the same port.

```
with Service(ServiceConfig(workers=2)) as service:
    service.addresses           # ("10.0.0.6:5050", "10.0.0.6:5051")
    service.run_until(stop)
```

This process holds the ports, so none is lost while a worker starts again.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
import socket
import threading
import time
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from tfpipe.errors import TfpipeError
from tfpipe.service.config import ServiceConfig
from tfpipe.service.server import Server
from tfpipe.system import host_limits
from tfpipe.system.child_process import die_with_parent, hold_interrupts

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

_LOOK_EVERY_S = 0.5
_START_LIMIT_S = 60.0
_STOP_LIMIT_S = 5.0
_LOOPBACK = "127.0.0.1"
_REMOTE = ("192.0.2.1", 9)  # an address for documentation (RFC 5737), to which nothing is sent

logger = logging.getLogger(__name__)


class Service:
    """The workers of this machine; a context manager starts and stops them.

    Args:
        config: The workers to run.

    Attributes:
        addresses: The address of each worker, host:port.
    """

    def __init__(self, config: ServiceConfig) -> None:
        self._config = config
        self._listeners: list[socket.socket] = []
        self._processes: list[SpawnProcess] = []
        self.addresses: tuple[str, ...] = ()

    def __enter__(self) -> Service:
        """Starts the workers and waits until they serve: about a second.

        Raises:
            TfpipeError: A port is in use, or a worker ended at once.
        """
        config = self._config
        try:
            for number in range(config.workers):
                self._listeners.append(_listen(config.host, config.port and config.port + number))
            host = config.host or _find_own_address()
            ports = [listener.getsockname()[1] for listener in self._listeners]
            self.addresses = tuple(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for port in ports)
            for listener in self._listeners:
                self._processes.append(self._start(listener))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pids(self) -> tuple[int | None, ...]:
        """The number of each worker's process."""
        return tuple(process.pid for process in self._processes)

    def run_until(self, stop: threading.Event) -> None:
        """Starts lost workers again until `stop` is set.

        Raises:
            TfpipeError: A worker that was started again ended at once.
        """
        while not stop.wait(_LOOK_EVERY_S):
            for number, process in enumerate(self._processes):
                if not process.is_alive():
                    cause = _describe_exit(process.exitcode)
                    logger.warning("The worker %s ended (%s) and is started again.", self.addresses[number], cause)
                    self._processes[number] = self._start(self._listeners[number])

    def stop(self) -> None:
        """Ends the workers."""
        for process in self._processes:
            process.terminate()
        deadline = time.monotonic() + _STOP_LIMIT_S
        for process in self._processes:
            process.join(max(deadline - time.monotonic(), 0))
            process.kill()  # harmless if it has ended
            process.join()
        for listener in self._listeners:
            listener.close()
        self._processes, self._listeners = [], []

    def _start(self, listener: socket.socket) -> SpawnProcess:
        """Starts a worker, and returns once it serves."""
        context = multiprocessing.get_context("spawn")
        ready, child = context.Pipe(duplex=False)
        threads = self._config.threads or host_limits.usable_cpus()
        process = context.Process(
            target=_run_worker, args=(listener, threads, child), name="tfpipe-worker", daemon=True
        )
        with hold_interrupts():  # or `stop` could meet a process that is half started
            process.start()
        child.close()  # so that this end sees the child's end
        try:
            if ready.poll(_START_LIMIT_S) and ready.recv():
                return process
        except EOFError:
            process.join(1)
        process.kill()
        raise TfpipeError(f"A worker ended ({_describe_exit(process.exitcode)}) before it was ready.")


def _run_worker(listener: socket.socket, threads: int, ready: Connection) -> None:
    """Serves as a worker; the main function of its process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the parent decides
    die_with_parent()
    server = Server(threads)
    ready.send(True)
    server.serve(listener)


def _listen(host: str | None, port: int) -> socket.socket:
    """Opens a port.

    Raises:
        TfpipeError: Another server has the port, or this user may not have it, or the host is not this machine.
    """
    family = socket.AF_INET6 if ":" in (host or "") else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port whose server ended is free
        listener.bind((host or "", port))
        listener.listen()
    except OSError as error:
        listener.close()
        reason = (error.strerror or str(error)).lower()
        where = f"Port {port}" if host is None else f"Port {port} of {host}"
        raise TfpipeError(f"{where} must be free, and is not ({reason}). Choose another `port` or `host`.") from error
    return listener


def _find_own_address() -> str:
    """Returns the address of the interface that leads to the rest of the network; 127.0.0.1 without a network."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagram_socket:
            datagram_socket.connect(_REMOTE)  # chooses the interface, and sends nothing
            own_address: str = datagram_socket.getsockname()[0]
            return own_address
    except OSError:
        return _LOOPBACK


def _describe_exit(code: int | None) -> str:
    if code is None:
        return "it does not answer"
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
