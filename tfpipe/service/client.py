"""RemoteMaker: gets the batches of a plan from the workers of a service, bit for bit as they would be made locally."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from functools import partial
from typing import Any

from tfpipe.engine.ahead import is_left
from tfpipe.engine.batch import Batch, Maker
from tfpipe.engine.config.pipeline_config import ServiceOptions
from tfpipe.errors import ConfigError, DataError, FormatError, MissingDependencyError, first_line
from tfpipe.service import config
from tfpipe.system.aside import run_aside
from tfpipe.system.extras import importing

with importing("A data service", "pyarrow", "tfpipe[service]"):
    from pyarrow import ArrowException, flight

    from tfpipe.service.messages import RELEASE, BrokenAnswer, describe_plan, receive

SILENCE_S = 5.0  # a worker that does not answer a ping within this time counts as lost
_CALL_EVERY_S, _TICK_S = 1.0, 0.5
# The requests per worker at once: one batch is made while another is sent. More hide the latency of an object store.
_REQUESTS, _STORE_REQUESTS = 2, 6
_MOST_LOCAL = 8  # the most steps ahead that this host makes itself, besides those requested from workers
_ERRORS = {kind.__name__: kind for kind in (ConfigError, DataError, FormatError, MissingDependencyError)}
_LOST = (flight.FlightError, ArrowException, OSError, BrokenAnswer)
_GIVE_TOKEN = "Put the token that it prints into the `token_file`, or TFPIPE_SERVICE_TOKEN for a command."
_GIVE_CERTIFICATE = "If it serves with TLS, name its `certificate`, or that of its authority; if not, name none."
_CHANNEL = [("grpc.http2.max_frame_size", (1 << 24) - 1)]  # the default of 16 KB takes a third more time in the trainer

logger = logging.getLogger(__name__)


@dataclass
class _Worker:
    address: str
    batches: int = 0  # received since the trainer began
    outstanding: int = 0
    losses: int = 0  # how often it was lost since its last batch
    trouble: str | None = None  # what is wrong with the worker, "" if nothing is; None before the first ping
    cause: str = "it is busy"  # the reason for its last loss
    client: Any = None


class Workers:
    """The connections to the workers of a service, shared by all threads; a pickled copy opens its own.

    Each worker is pinged every second; the requests to a lost one are sent to another. With `most`, each worker has at
    most so many requests at once, and `ask` returns None instead of waiting.
    """

    def __init__(self, options: ServiceOptions, most: int | None = None) -> None:
        self._options, self._most, self._pid = options, most, os.getpid()
        self._changed = threading.Condition()  # guards all workers
        self._workers = [_Worker(address) for address in options.workers]
        token = config.read_token(options.token_file)
        self._headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
        self._tls = {"tls_root_certs": config.read_file("certificate", path)} if (path := options.certificate) else {}
        for worker in self._workers:
            run_aside(partial(_keep_calling, weakref.ref(self), worker), "tfpipe-call")

    def __reduce__(self) -> tuple[Any, ...]:
        return Workers, (self._options, self._most)

    def find_silent(self) -> dict[str, str]:
        """Waits until every worker was pinged once, and returns the trouble of those that cannot serve, by address."""
        with self._changed:
            self._changed.wait_for(lambda: all(worker.trouble is not None for worker in self._workers))
            return {worker.address: worker.trouble for worker in self._workers if worker.trouble}

    def ask(self, ticket: dict[str, Any]) -> Batch | None:
        """Gets the batch of a step from the least busy worker; returns None if `most` is set and no worker is free."""
        if self._pid != os.getpid():
            raise ConfigError("Connections to a `service` do not outlive a fork. Start processes by spawn.")
        ticket, deadline = {"release": RELEASE, **ticket}, time.monotonic() + self._options.timeout_s
        while time.monotonic() < deadline and not is_left():
            if (worker := self._take()) is None:
                if self._most:
                    return None
                continue
            # Flight abandons no call before its deadline, so the call runs in a thread of its own.
            answer = run_aside(partial(self.get, worker, json.dumps(ticket).encode(), deadline), "tfpipe-ask")
            while not (wait((answer,), _TICK_S).done or worker.trouble or time.monotonic() > deadline or is_left()):
                continue
            try:
                if not answer.done():
                    continue
                info, batch = answer.result()
                if "error" in info:
                    kind, page = _ERRORS.get(str(info["error"]), DataError), str(info.get("page") or "")
                    raise kind(f"At the worker {worker.address}: {info.get('text')}", page=page)
                if not batch:
                    raise BrokenAnswer("its answer holds no batch")
                with self._changed:
                    worker.losses, worker.cause, worker.batches = 0, "it is busy", worker.batches + 1
                return batch
            except _LOST as error:
                self.note(worker, _describe(error), is_loss=True)
            finally:
                with self._changed:
                    worker.outstanding -= 1
        troubles = ", ".join(f"{each.address} ({each.trouble or each.cause})" for each in self._workers)
        fault = f"The `service` must give a batch within {self._options.timeout_s} s (its `timeout_s`), and gave none"
        fault += f" for step {ticket['step']} of epoch {ticket['epoch']}: {troubles}."
        raise DataError(f"{fault} Start the workers again, then run the same command.")

    def _take(self) -> _Worker | None:
        """Chooses the worker with the fewest requests; returns None if none is free, without `most` after a wait."""
        with self._changed:
            most = self._most or math.inf
            up = [each for each in self._workers if each.trouble == "" and each.outstanding < most]
            worker = min(up, key=lambda each: (each.outstanding, each.batches), default=None)
            if worker is not None:
                worker.outstanding += 1
            elif not self._most:
                self._changed.wait(_TICK_S)
            return worker

    def get(self, worker: _Worker, ticket: bytes, deadline: float) -> tuple[dict[str, Any], Batch]:
        """Sends a ticket to a worker and returns the answer; after an error in `_LOST` the next call connects anew."""
        with self._changed:
            url = f"grpc{'+tls' if self._tls else ''}://{worker.address}"
            client = worker.client = worker.client or flight.FlightClient(url, generic_options=_CHANNEL, **self._tls)
        options = flight.FlightCallOptions(timeout=deadline - time.monotonic() + 2 * _TICK_S, headers=self._headers)
        try:
            stream = client.do_get(flight.Ticket(ticket), options)
            try:
                return receive(stream)
            finally:
                stream.cancel()
        except _LOST:
            worker.client = None
            raise

    def note(self, worker: _Worker, trouble: str, is_loss: bool = False) -> None:
        """Sets a worker's trouble, "" for none; a worker in trouble gets no requests."""
        with self._changed:
            before, worker.trouble = worker.trouble, trouble
            if is_loss and not before:
                worker.losses, worker.cause = worker.losses + 1, trouble
            self._changed.notify_all()
        if before and not trouble:
            logger.warning("The worker %s of the service answers again.", worker.address)
        if trouble and before == "":
            logger.warning("The worker %s of the service is lost (%s). Others make its steps.", worker.address, trouble)


class RemoteMaker(Maker):
    """A maker that gets its batches from workers. Threads may share it; a pickled copy opens its own connections."""

    is_remote, block_steps = True, 1  # it holds connections, and each worker reads its own blocks of records

    def __init__(self, maker: Maker, workers: Workers | None = None) -> None:
        self._local, self.plan, self.clocks = maker, maker.plan, maker.clocks
        self._wire_plan = describe_plan(maker.plan)
        options, per_worker = maker.plan.config.service, _STORE_REQUESTS if maker.is_remote else _REQUESTS
        count = per_worker * len(options.workers)
        more = _REQUESTS if options.share == "auto" else math.ceil(count / (1 - options.share)) - count
        self.steps_ahead = self.steps_asked = count + min(more, _MOST_LOCAL)  # as many as keep each worker busy
        self._workers = workers or Workers(options, per_worker if options.share == "auto" else None)
        silent = {} if workers else self._workers.find_silent()
        if len(silent) == len(options.workers):
            listed = ", ".join(f"{address} ({trouble})" for address, trouble in silent.items())
            fault = f"`service` must name running workers, and none serves this trainer: {listed}."
            start = f"Start one of the same release with: tfpipe serve --root DIR. {_GIVE_TOKEN}"
            raise ConfigError(f"{fault} {advise(silent.values(), start)}")
        for address, trouble in silent.items():
            logger.warning("The worker %s of the service does not serve this trainer (%s).", address, trouble)

    def announce(self, numbers: Any, soon: Sequence[Any] = ()) -> None:
        """Does nothing, because workers read the records."""

    def for_rows(self, first: int, end: int) -> RemoteMaker:
        """Returns a maker of some of the rows of this host's batches, with the same connections."""
        return RemoteMaker(self._local.for_rows(first, end), self._workers)

    def read(self, epoch: int, step: int, numbers: Any = None) -> Any:
        """Gets the batch of a step from a worker, or reads its records if this host makes it."""
        begin, share = time.perf_counter(), self.plan.config.service.share
        if share == "auto" or not is_local(epoch * self.plan.steps_per_epoch + step, share):
            rows = [self.plan.rows.start, len(self.plan.rows)]
            batch = self._workers.ask({"plan": self._wire_plan, "epoch": epoch, "step": step, "rows": rows})
            if batch is not None:
                self.clocks.add("read", time.perf_counter() - begin, 0.0)
                return batch
        return self._local.read(epoch, step, numbers)

    def decode(self, stored: Any, threads: int = 1) -> Batch:
        """Decodes the records that this host has read; returns a batch from a worker as it is."""
        return stored if isinstance(stored, dict) else self._local.decode(stored, threads)


def is_local(step: int, share: float) -> bool:
    """Tests whether a host makes a step of a run itself: `share` of the steps, spread evenly over the run."""
    return math.floor((step + 1) * share) > math.floor(step * share)


def _keep_calling(reference: weakref.ref[Workers], worker: _Worker) -> None:
    """Calls a worker every second while its `Workers` object exists; each further loss doubles the interval."""
    while not is_left() and (workers := reference()) is not None:
        try:
            release = workers.get(worker, b"", time.monotonic() + SILENCE_S)[0].get("release")
            trouble = "" if release == RELEASE else f"it has the release {release}, not {RELEASE}"
        except _LOST as error:
            trouble = _describe(error)
        workers.note(worker, trouble)
        del workers
        time.sleep(_CALL_EVERY_S * 2 ** max(min(worker.losses, 6) - 1, 0))


def advise(troubles: Iterable[str], start: str) -> str:
    """Returns what to do about workers in trouble: `start`, unless they lack the token or the certificate."""
    tls = re.compile("ssl|certificate|socket closed|connection reset|broken pipe|empty address")
    found = (_GIVE_TOKEN if "token" in it else _GIVE_CERTIFICATE if tls.search(it) else start for it in troubles)
    return " ".join(dict.fromkeys(found))


def _describe(error: Exception) -> str:
    """Returns the reason in the text of a gRPC error, where it stands last."""
    if isinstance(error, BrokenAnswer):
        return str(error)
    if isinstance(error, flight.FlightTimedOutError):
        return "no answer in time"
    text = first_line(error).partition(". gRPC client debug")[0].partition(". Detail: ")[0]
    return text.rpartition("with message: ")[2].rpartition(": ")[2].rstrip("]. ").lower()
