"""The workers as a trainer sees them: which of them answer, and which has least to do.

One connection carries one request at a time. What a lost worker was asked for goes to another one.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tfpipe.engine.ahead import is_left
from tfpipe.engine.batch import Batch
from tfpipe.engine.config.service_options import ServiceOptions
from tfpipe.errors import ConfigError, DataError, FormatError, MissingDependencyError, TfpipeError, first_line
from tfpipe.service.config import get_token
from tfpipe.service.plans import name_release
from tfpipe.service.processes import read_file
from tfpipe.system.extras import importing

with importing("A data service", "pyarrow", "tfpipe[service]"):
    from pyarrow import ArrowException, flight

    from tfpipe.service.arrays import BrokenAnswer, receive

Ticket = dict[str, Any]
Answer = tuple[Batch, dict[str, Any], int]
SILENCE_S = 5.0
"""The seconds without a sign after which a worker counts as lost; it gives one each second while it works."""

_TICK_S, _LONGEST_PAUSE_S = 0.5, 30.0
_ERRORS: dict[str, type[TfpipeError]] = {
    kind.__name__: kind for kind in (ConfigError, DataError, FormatError, MissingDependencyError)
}
_LOST = (flight.FlightError, ArrowException, OSError, BrokenAnswer)

logger = logging.getLogger(__name__)


@dataclass
class WorkerClock:
    """The figures of one worker since the trainer began."""

    address: str
    batches: int = 0
    made_s: float = 0.0  # as it says itself; two batches are made at once
    num_bytes: int = 0


@dataclass
class _Worker(WorkerClock):
    """A worker, or this host if it has no address."""

    outstanding: int = 0
    is_up: bool = True
    losses: int = 0  # since its last batch
    trouble: str = ""
    idle: list[Any] = field(default_factory=list)  # connections


class Workers:
    """The workers of a service, for all threads of a process.

    If each has at most `most` requests, this host makes batches too when all have so many, and at most so many at once.
    """

    def __init__(self, options: ServiceOptions, most: int | None = None) -> None:
        self._timeout_s, self._most = options.timeout_s, most
        self._release, self._pid = name_release(), os.getpid()
        self._changed = threading.Condition()  # guards all workers, and what is read
        self._workers = [_Worker(address) for address in options.workers]
        self._here = _Worker("")
        token = get_token()
        if options.token_file is not None:
            token = read_file("token_file", options.token_file).decode(errors="replace").strip()
        self._headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
        self._scheme, self._tls = "grpc", {}
        if options.certificate is not None:
            self._scheme, self._tls = "grpc+tls", {"tls_root_certs": read_file("certificate", options.certificate)}

    @property
    def clocks(self) -> list[WorkerClock]:
        """The figures of each worker by now."""
        return [WorkerClock(each.address, each.batches, each.made_s, each.num_bytes) for each in self._workers]

    def call_all(self) -> dict[str, str]:
        """Calls all workers at once, and returns what is wrong with those that do not answer, by their addresses."""
        threads = [threading.Thread(target=self._call, args=(worker,), daemon=True) for worker in self._workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {worker.address: worker.trouble for worker in self._workers if not worker.is_up}

    def check(self) -> None:
        """Calls all workers. Those that do not answer are called again until they do."""
        self.call_all()
        silent = [worker for worker in self._workers if not worker.is_up]
        other = [worker for worker in silent if "release" in worker.trouble]
        refusing = [worker for worker in silent if "token" in worker.trouble]
        listed = ", ".join(f"{worker.address} ({worker.trouble})" for worker in other or refusing or silent)
        if other:
            raise ConfigError(f"Every worker of the `service` must have this release, {self._release}: {listed}.")
        if refusing:
            raise ConfigError(
                f"The workers of the `service` ask for the token that `tfpipe serve` printed: {listed}. Put it into "
                "the `token_file`, or TFPIPE_SERVICE_TOKEN for a command."
            )
        if len(silent) == len(self._workers):
            raise ConfigError(
                f"`service` must name running workers, and none answers: {listed}. Start one with: tfpipe serve "
                "--root DIR"
            )
        for worker in silent:
            logger.warning("The worker %s of the service does not answer (%s).", worker.address, worker.trouble)
            self._begin_calls(worker)

    def ask(self, ticket: Ticket, make_here: Callable[[], Batch]) -> tuple[Batch, bool]:
        """Returns the batch of a step, and whether it is of a worker: the one that had least to do."""
        if self._pid != os.getpid():
            raise ConfigError("Connections to a `service` do not outlive a fork. Start processes by spawn.")
        deadline = time.monotonic() + self._timeout_s
        while True:
            with self._take(deadline, ticket) as worker:
                if worker is self._here:
                    return make_here(), False
                try:
                    return self._ask_worker(worker, ticket, deadline), True
                except _LOST as error:
                    if is_left() or time.monotonic() > deadline:
                        raise self._explain_silence(ticket) from None
                    self._lose(worker, _describe(error))

    @contextmanager
    def _take(self, deadline: float, ticket: Ticket) -> Iterator[_Worker]:
        """Takes the worker with the fewest requests, and gives it back."""
        with self._changed:
            while (worker := self._choose()) is None:
                if time.monotonic() > deadline or is_left():
                    raise self._explain_silence(ticket)
                self._changed.wait(_TICK_S)
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
        return min(up, key=lambda worker: (worker.outstanding, worker.batches), default=None)

    def _ask_worker(self, worker: _Worker, ticket: Ticket, deadline: float) -> Batch:
        """Asks a worker for a batch; raises one of `_LOST` if it does not give it, or the error that it answers."""
        text = json.dumps({"release": self._release, **ticket}).encode()
        batch, end, num_bytes = self._get(worker, text, deadline)
        if "error" in end:
            kind = _ERRORS.get(str(end["error"]), DataError)
            raise kind(f"At the worker {worker.address}: {end.get('text')}", page=str(end.get("page") or ""))
        if type(made_s := end.get("made_s")) is not float:
            raise BrokenAnswer("a batch does not say how long it took")
        with self._changed:
            worker.batches += 1
            worker.losses = 0
            worker.made_s += made_s
            worker.num_bytes += num_bytes
        return batch

    def _get(self, worker: _Worker, ticket: bytes, deadline: float) -> Answer:
        """Returns the answer to a ticket; a connection that failed is not used again."""
        with self._changed:
            client = worker.idle.pop() if worker.idle else None
        client = client or flight.FlightClient(f"{self._scheme}://{worker.address}", **self._tls)
        options = flight.FlightCallOptions(timeout=max(deadline - time.monotonic(), 0.001), headers=self._headers)
        answer, heard, is_given_up = Future[Answer](), time.monotonic(), False

        def hear() -> None:
            nonlocal heard
            heard = time.monotonic()
            if is_given_up:
                raise TimeoutError

        def ask() -> None:
            try:
                stream = client.do_get(flight.Ticket(ticket), options)
                try:
                    answer.set_result(receive(stream, hear))
                except BaseException:
                    stream.cancel()
                    raise
            except BaseException as error:
                answer.set_exception(error)

        # Flight waits for a worker's first sign without end, so a thread of its own does: this one may give up.
        threading.Thread(target=ask, name="tfpipe-ask", daemon=True).start()
        while not wait_for((answer,), _TICK_S).done:
            silent_s = time.monotonic() - heard
            if silent_s > SILENCE_S or time.monotonic() > deadline or is_left():
                is_given_up = True
                raise TimeoutError(f"no sign of it for {silent_s:.0f} s")
        given = answer.result()
        with self._changed:
            worker.idle.append(client)
        return given

    def _lose(self, worker: _Worker, trouble: str) -> None:
        """Sends no more requests to a worker until it answers a call."""
        with self._changed:
            worker.idle.clear()
            was_up, worker.is_up, worker.trouble = worker.is_up, False, trouble
            worker.losses += was_up
        if was_up:
            logger.warning("The worker %s of the service is lost (%s). Others make its steps.", worker.address, trouble)
            self._begin_calls(worker)

    def _begin_calls(self, worker: _Worker) -> None:
        arguments = (weakref.ref(self), worker)
        threading.Thread(target=_call_until_up, args=arguments, name="tfpipe-call", daemon=True).start()

    def _call(self, worker: _Worker) -> None:
        """Asks a worker for its release, and notes what is wrong with it."""
        try:
            release = self._get(worker, b"", time.monotonic() + SILENCE_S)[1].get("release")
            trouble = "" if release == self._release else f"it has the release {release}"
        except _LOST as error:
            trouble = _describe(error)
        with self._changed:
            worker.is_up, worker.trouble = not trouble, trouble
            self._changed.notify_all()

    def _explain_silence(self, ticket: Ticket) -> DataError:
        troubles = [f"{worker.address} ({worker.trouble or 'it is busy'})" for worker in self._workers]
        return DataError(
            f"The `service` must give a batch within {self._timeout_s:g} s (its `timeout_s`), and gave none for "
            f"step {ticket['step']} of epoch {ticket['epoch']}: {', '.join(troubles)}. Start the workers again, then "
            "run the same command."
        )


def _call_until_up(reference: weakref.ref[Workers], worker: _Worker) -> None:
    """Calls a worker until it answers, or until nobody needs it."""
    time.sleep(min(_TICK_S * (2 ** max(worker.losses - 1, 0) - 1), _LONGEST_PAUSE_S))  # it may answer calls alone
    while (workers := reference()) is not None:
        workers._call(worker)
        if worker.is_up:
            logger.warning("The worker %s of the service answers again.", worker.address)
            return
        del workers
        time.sleep(_TICK_S)


def _describe(error: Exception) -> str:
    """Returns the reason in an error of gRPC, which stands last among the texts around it."""
    if isinstance(error, TimeoutError | BrokenAnswer):
        return str(error)
    if isinstance(error, flight.FlightTimedOutError):
        return "no answer in time"
    text = (
        first_line(error).partition(". gRPC client debug")[0].partition(". Detail: ")[0].rpartition("with message: ")[2]
    )
    return text.rpartition(": ")[2].rstrip("]. ").lower()
