"""The workers as a trainer sees them: which of them answer, and which has least to do.

```
workers = Workers(("10.0.0.6:5050", "10.0.0.7:5050"), timeout_s=300)
workers.check()                         # ConfigError: none answers, or one has another release
batch = workers.ask(Request(plan, epoch, step, rows), make_here)
```

One connection carries one request at a time. A worker that fails or falls silent gets no more requests, and what it was
asked for goes to another one. A thread calls it until it answers again.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from tfpipe.engine.ahead import is_left
from tfpipe.engine.batch import Batch
from tfpipe.errors import ConfigError, DataError, FormatError, MissingDependencyError, TfpipeError
from tfpipe.service import wire
from tfpipe.service.plans import name_release

SILENCE_S = 5.0
"""The seconds without a sign after which a worker counts as lost; it gives one each second while it works."""

_CONNECT_S = 3.0
_CALL_EVERY_S = 0.5
_ERRORS: dict[str, type[TfpipeError]] = {
    kind.__name__: kind for kind in (ConfigError, DataError, FormatError, MissingDependencyError)
}

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """The request for the batch of a step.

    Attributes:
        plan: The text of the plan.
        epoch: The epoch.
        step: The step in it.
        rows: The rows of the global batch.
    """

    plan: bytes
    epoch: int
    step: int
    rows: range


@dataclass
class WorkerClock:
    """The figures of one worker since the trainer began.

    Attributes:
        address: The address, host:port.
        batches: The number of batches that it gave.
        made_s: The seconds in which it made them, as it says itself. Two are made at once.
        num_bytes: The bytes of these batches.
    """

    address: str
    batches: int = 0
    made_s: float = 0.0
    num_bytes: int = 0


@dataclass
class _Worker:
    """A worker, or this host if it has no address."""

    address: str
    clock: WorkerClock
    outstanding: int = 0
    is_up: bool = True
    trouble: str = ""
    idle: list[socket.socket] = field(default_factory=list)


class Workers:
    """The workers of a service, for all threads of a process.

    Args:
        addresses: The address of each worker, host:port.
        timeout_s: The seconds to wait for a batch.
        most: The most requests that a worker has. This host makes batches too when all workers have so many, and at
            most so many at once. None: any number, and this host makes none.
    """

    def __init__(self, addresses: tuple[str, ...], timeout_s: float, most: int | None = None) -> None:
        self._timeout_s, self._most = timeout_s, most
        self._release, self._pid = name_release(), os.getpid()
        self._changed = threading.Condition()  # guards all workers
        self._workers = [_Worker(address, WorkerClock(address)) for address in addresses]
        self._here = _Worker("", WorkerClock(""))
        weakref.finalize(self, _close, self._workers)

    @property
    def clocks(self) -> list[WorkerClock]:
        """The figures of each worker."""
        return [worker.clock for worker in self._workers]

    def call_all(self) -> dict[str, str]:
        """Calls all workers at once, and returns what is wrong with those that do not answer, by their addresses."""
        threads = [threading.Thread(target=self._call, args=(worker,), daemon=True) for worker in self._workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_CONNECT_S + SILENCE_S + 1)
        return {worker.address: worker.trouble for worker in self._workers if not worker.is_up}

    def check(self) -> None:
        """Calls all workers. Those that do not answer are called again until they do.

        Raises:
            ConfigError: None answers, or one has another release.
        """
        self.call_all()
        other = [worker for worker in self._workers if "release" in worker.trouble]
        silent = [worker for worker in self._workers if not worker.is_up]
        if other or len(silent) == len(self._workers):
            listed = ", ".join(f"{worker.address} ({worker.trouble})" for worker in other or silent)
            if other:
                raise ConfigError(f"Every worker of the `service` must have this release, {self._release}: {listed}.")
            raise ConfigError(
                f"`service` must name running workers, and none answers: {listed}. Start one with: tfpipe serve"
            )
        for worker in silent:
            logger.warning("The worker %s of the service does not answer (%s).", worker.address, worker.trouble)
            self._begin_calls(worker)

    def ask(self, request: Request, make_here: Callable[[], Batch]) -> tuple[Batch, bool]:
        """Returns the batch of a step, and whether it is of a worker: the one that had least to do.

        Args:
            request: The request.
            make_here: The function that makes the batch on this host.

        Raises:
            DataError: No worker gave it in time.
            TfpipeError: The error that the batch has, wherever it is made.
        """
        if self._pid != os.getpid():
            raise ConfigError("Connections to a `service` do not outlive a fork. Start processes by spawn.")
        deadline = time.monotonic() + self._timeout_s
        while True:
            with self._take(deadline, request) as worker:
                if worker is self._here:
                    return make_here(), False
                try:
                    return self._ask_worker(worker, request, deadline), True
                except (OSError, wire.BrokenMessage) as error:
                    if is_left() or time.monotonic() > deadline:
                        raise self._explain_silence(request) from None
                    self._lose(worker, _describe(error))

    @contextmanager
    def _take(self, deadline: float, request: Request) -> Iterator[_Worker]:
        """Takes the worker with the fewest requests, and gives it back."""
        with self._changed:
            while (worker := self._choose()) is None:
                if time.monotonic() > deadline or is_left():
                    raise self._explain_silence(request)
                self._changed.wait(wire.TICK_S)
            worker.outstanding += 1
        try:
            yield worker
        finally:
            with self._changed:
                worker.outstanding -= 1
                self._changed.notify_all()

    def _choose(self) -> _Worker | None:
        most = self._most
        up = [worker for worker in self._workers if worker.is_up and (most is None or worker.outstanding < most)]
        if not up and most is not None and self._here.outstanding < most:
            return self._here
        return min(up, key=lambda worker: (worker.outstanding, worker.clock.batches), default=None)

    def _ask_worker(self, worker: _Worker, request: Request, deadline: float) -> Batch:
        """Asks a worker for a batch.

        Raises:
            OSError: The connection broke, or the worker fell silent.
            BrokenMessage: The answer is damaged.
            TfpipeError: The worker answers with this error.
        """

        def wait(seconds: float) -> None:
            if seconds > SILENCE_S or time.monotonic() > deadline or is_left():
                raise TimeoutError(f"no sign of it for {seconds:.0f} s")

        connection = self._connect(worker)
        try:
            rows = [request.rows.start, request.rows.stop]
            header = {"kind": "step", "release": self._release, "epoch": request.epoch, "step": request.step}
            wire.send(connection, {**header, "rows": rows}, [np.frombuffer(request.plan, np.uint8)], wait)
            while (answer := wire.receive(connection, wire.Limits(), wait)).header.get("kind") == "wait":
                wait(0)
            if answer.header.get("kind") == "error":
                raise _make_error(worker, answer)
            batch = wire.decode_batch(answer.header.get("parts"), answer.payload)
            if type(made_s := answer.header.get("made_s")) is not float:
                raise wire.BrokenMessage("a batch does not say how long it took")
        except (OSError, wire.BrokenMessage):
            connection.close()
            raise
        except TfpipeError:
            self._keep(worker, connection)
            raise
        with self._changed:
            worker.clock.batches += 1
            worker.clock.made_s += made_s
            worker.clock.num_bytes += len(answer.payload)
        self._keep(worker, connection)
        return batch

    def _connect(self, worker: _Worker) -> socket.socket:
        with self._changed:
            if worker.idle:
                return worker.idle.pop()
        return _open_connection(worker.address)

    def _keep(self, worker: _Worker, connection: socket.socket) -> None:
        with self._changed:
            worker.idle.append(connection)

    def _lose(self, worker: _Worker, trouble: str) -> None:
        """Sends no more requests to a worker until it answers a call."""
        with self._changed:
            idle, worker.idle = worker.idle, []
            was_up, worker.is_up, worker.trouble = worker.is_up, False, trouble
        for connection in idle:
            connection.close()
        if was_up:
            logger.warning("The worker %s of the service is lost (%s). Others make its steps.", worker.address, trouble)
            self._begin_calls(worker)

    def _begin_calls(self, worker: _Worker) -> None:
        arguments = (weakref.ref(self), worker)
        threading.Thread(target=_call_until_up, args=arguments, name="tfpipe-call", daemon=True).start()

    def _call(self, worker: _Worker) -> None:
        """Asks a worker for its release, and notes what is wrong with it."""
        connection = None
        try:
            connection = _open_connection(worker.address)
            wire.send(connection, {"kind": "hello"})
            release = wire.receive(connection, wire.Limits(1 << 16, 0), _refuse_silence).header.get("release")
            trouble = "" if release == self._release else f"it has the release {release}"
        except (OSError, wire.BrokenMessage) as error:
            trouble = _describe(error)
        with self._changed:
            worker.is_up, worker.trouble = not trouble, trouble
            if worker.is_up and connection is not None:
                worker.idle.append(connection)
            self._changed.notify_all()
        if trouble and connection is not None:
            connection.close()

    def _explain_silence(self, request: Request) -> DataError:
        troubles = [f"{worker.address} ({worker.trouble or 'it is busy'})" for worker in self._workers]
        return DataError(
            f"The `service` must give a batch within {self._timeout_s:g} s (its `timeout_s`), and gave none for "
            f"step {request.step} of epoch {request.epoch}: {', '.join(troubles)}. Start the workers again, then run "
            "the same command."
        )


def split_address(address: str) -> tuple[str, int]:
    """Splits "host:port", where an IPv6 address stands in brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _close(workers: list[_Worker]) -> None:
    for connection in [connection for worker in workers for connection in worker.idle]:
        connection.close()


def _open_connection(address: str) -> socket.socket:
    connection = socket.create_connection(split_address(address), _CONNECT_S)
    wire.prepare(connection)
    return connection


def _call_until_up(reference: weakref.ref[Workers], worker: _Worker) -> None:
    """Calls a worker until it answers, or until nobody needs it."""
    while (workers := reference()) is not None:
        workers._call(worker)
        if worker.is_up:
            logger.warning("The worker %s of the service answers again.", worker.address)
            return
        del workers
        time.sleep(_CALL_EVERY_S)


def _refuse_silence(seconds: float) -> None:
    if seconds > SILENCE_S:
        raise TimeoutError(f"no sign of it for {seconds:.0f} s")


def _make_error(worker: _Worker, answer: wire.Message) -> TfpipeError:
    kind = _ERRORS.get(str(answer.header.get("class")), DataError)
    text, page = answer.header.get("text"), answer.header.get("page")
    return kind(f"At the worker {worker.address}: {text}", page=str(page or ""))


def _describe(error: Exception) -> str:
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    return str(error)
