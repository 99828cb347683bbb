"""The workers of this machine, and the server in each, which answers a ticket of any trainer with the batch of a step.

The makers of the last few plans stay open. No other state is kept between requests, so a worker may end at any time.
One that ends is started again, on the same port.
"""

from __future__ import annotations

import hmac
import json
import logging
import math
import multiprocessing
import os
import resource
import signal
import socket
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from tfpipe.engine.batch import Batch, Maker
from tfpipe.engine.plan import estimate_row_bytes
from tfpipe.errors import ConfigError, TfpipeError, first_line
from tfpipe.service.config import ServiceConfig, read_file
from tfpipe.storage.file_io import resolve_links
from tfpipe.system import host_limits
from tfpipe.system.child_process import defer_interrupts, die_with_parent, silence_stderr
from tfpipe.system.extras import importing

with importing("A data service", "pyarrow", "tfpipe[service]"):
    from pyarrow import flight

    from tfpipe.service.messages import MOST_BYTES, RELEASE, SCHEMA, Ticket, check_bytes, send

Tls = tuple[bytes, ...] | None  # a certificate and its key

_RESTART_EVERY_S, _LOOK_EVERY_S, _START_LIMIT_S, _STOP_LIMIT_S, _SEND_LIMIT_S = 0.5, 1.0, 60.0, 5.0, 60.0
_REMOTE = ("192.0.2.1", 9)  # an address for documentation (RFC 5737), to which nothing is sent
_MOST_MAKERS, _MOST_WAITING, _AT_ONCE, _DECODING = 16, 512, 32, 2

logger = logging.getLogger(__name__)


class Service:
    """The workers of this machine; a context manager starts and stops them."""

    def __init__(self, config: ServiceConfig, token: str = "") -> None:
        if not (token or config.is_local):
            raise ConfigError(f"Workers on `host` {config.host}, which others reach, need a token, got none.")
        tls = tuple(read_file(name, getattr(config, name)) for name in ("certificate", "key")) if config.key else None
        self._config, self._settings = config, (config, token, tls)
        self._workers: dict[int, BaseProcess] = {}  # by port

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
            time.sleep(_RESTART_EVERY_S)

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
            fault = f"A worker must serve on `port` {port} of `host` {self._config.host}, and does not ({served})."
            key = "`key` must be the private key of `certificate`, in PEM and without a passphrase."
            advice = key if "did not start" in served else "If another program has the port, choose another."
            raise TfpipeError(f"{fault} {advice}")
        self._workers[served] = process


def _run_worker(ready: Connection, port: int, config: ServiceConfig, token: str, tls: Tls) -> None:
    """Runs the server of a worker in its process, after sending the parent its port, or why it cannot serve."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the parent decides
    die_with_parent()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each idle connection takes a file descriptor
    location, roots = f"grpc{'+tls' if tls else ''}://{_join(config.host, port)}", [*map(resolve_links, config.root)]
    num_bytes = host_limits.memory_limit_bytes() // 4 // config.workers
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        socket.create_server((config.host, port), family=family).close()  # gRPC would share a port that is in use
        with silence_stderr():  # gRPC logs what is wrong with a key
            server = Server(location, roots, config.threads or host_limits.usable_cpus(), num_bytes, token, tls)
    except Exception as error:  # Arrow raises several types
        ready.send((getattr(error, "strerror", None) or first_line(error)).partition(" (while")[0])
        return
    ready.send(server.port)
    server.serve()


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(eq=False)
class Request:
    """A request in a queue, which waits for a slot or has one."""

    client: str
    plan: tuple[str, str]  # the client and the text of its plan
    num_bytes: int  # the memory that it takes while it has a slot
    granted: threading.Event = field(default_factory=threading.Event)
    sent: float = math.inf  # when its last message was sent


class FairQueue:
    """A queue for a few slots that is fair to clients, and to the plans of a client.

    Next is the client, then the plan, that has the fewest slots and was served longest ago. A plan gets at most half of
    3 or more slots. A request above `num_bytes` runs alone. Clients share `most_waiting`. Each `enter` needs a `leave`.
    """

    def __init__(self, slots: int, num_bytes: int, most_waiting: int) -> None:
        self._slots, self._num_bytes, self._most_waiting = slots, num_bytes, most_waiting
        self._of_a_plan = slots // 2 if slots > 2 else slots
        self._lock = threading.Lock()  # guards the requests
        self.requests: list[Request] = []  # those of the client that was served longest ago come first

    def enter(self, client: str, plan: str, num_bytes: int = 0) -> Request:
        """Adds a request, or refuses it if too many requests of the client wait."""
        request = Request(client, (client, plan), num_bytes)
        with self._lock:
            waiting = [each.client for each in self.requests if not each.granted.is_set()]
            if waiting.count(client) >= self._most_waiting // len({client, *waiting}):
                raise flight.FlightUnavailableError("it has too many requests")
            self.requests.append(request)
            self._grant()
        return request

    def leave(self, request: Request) -> None:
        """Removes a request, whether it waits for a slot or has one."""
        with self._lock:
            self.requests.remove(request)
            self._grant()

    def _grant(self) -> None:
        working = [each for each in self.requests if each.granted.is_set()]
        clients, plans = Counter(each.client for each in working), Counter(each.plan for each in working)
        free_bytes = self._num_bytes - sum(each.num_bytes for each in working) if working else math.inf
        waiting = [each for each in self.requests if not each.granted.is_set()]
        fitting = [each for each in waiting if plans[each.plan] < self._of_a_plan and each.num_bytes <= free_bytes]
        if fitting and len(working) < self._slots:
            client = min(fitting, key=lambda each: clients[each.client]).client
            request = min((each for each in fitting if each.client == client), key=lambda each: plans[each.plan])
            request.granted.set()
            self.requests.sort(key=lambda each: (each.client == client, each.plan == request.plan))  # these go last
            self._grant()


@dataclass
class _Opened:
    client: str
    lock: threading.Lock = field(default_factory=threading.Lock)
    maker: Maker | None = None


class _CheckToken(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """A middleware that refuses calls without the token before their content is read."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    def start_call(self, info: object, headers: dict[str, Any]) -> None:
        """Checks the token in the headers of a call; Flight calls it."""
        given = headers.get("authorization", [""])[0]
        if not hmac.compare_digest(given if isinstance(given, bytes) else str(given).encode(), self._expected):
            raise flight.FlightUnauthenticatedError("the token is missing or wrong")


class Server(flight.FlightServerBase):  # type: ignore[misc]
    """The server of a worker, in this process. It serves once it is constructed; port 0 means any free port."""

    def __init__(
        self, url: str, roots: Sequence[str], threads: int, memory: int = MOST_BYTES, token: str = "", tls: Tls = None
    ) -> None:
        self._roots, self._threads, self._num_bytes = roots, threads, memory
        self._serving, self._decoding = FairQueue(_AT_ONCE, memory, _MOST_WAITING), FairQueue(_DECODING, 0, _AT_ONCE)
        self._lock = threading.Lock()  # guards the makers
        self._makers: OrderedDict[str, _Opened] = OrderedDict()
        middleware = {"token": _CheckToken(token)} if token else None
        super().__init__(url, tls_certificates=[tls] if tls else None, middleware=middleware)

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Answers a ticket with its batch; an empty ticket is a ping, and is answered with the release."""
        text = ticket.ticket
        return flight.GeneratorStream(SCHEMA, self._answer(context, text) if text else send({"release": RELEASE}))

    def _answer(self, context: Any, text: bytes) -> Iterator[Any]:
        """Yields the messages of an answer. gRPC closes the generator when the client disconnects."""
        request: Request | None = None
        info: dict[str, Any] = {}
        batch: Batch = {}
        try:
            try:
                ticket = Ticket(text)
                client = context.peer().rpartition(":")[0]
                request = self._serving.enter(client, json.dumps(ticket.plan), ticket.num_bytes)
                while not request.granted.wait(_LOOK_EVERY_S):
                    self._look_after_senders()
                    if context.is_cancelled():
                        return
                batch = self._make(request, ticket)
            except TfpipeError as error:
                info = {"error": type(error).__name__, "text": str(error), "page": error.page}
            except flight.FlightError:
                raise
            except Exception as error:  # a fault of this program must not end the worker for all others
                logger.exception("A batch could not be made.")
                info = {"error": "DataError", "text": f"A batch could not be made: {first_line(error)}."}
            for message in send(info, batch):
                if request is not None:
                    request.sent = time.monotonic()
                yield message
        finally:
            if request is not None:
                self._serving.leave(request)

    def _look_after_senders(self) -> None:
        """Ends this process if clients that stopped receiving have half of the slots or memory, while others wait."""
        late = [request for request in self._serving.requests if time.monotonic() - request.sent > _SEND_LIMIT_S]
        if late and (2 * len(late) >= _AT_ONCE or 2 * sum(request.num_bytes for request in late) >= self._num_bytes):
            logger.warning("Clients take nothing of %s batches, and others wait: this worker starts anew.", len(late))
            os._exit(1)

    def _make(self, request: Request, ticket: Ticket) -> Batch:
        client, text = request.plan
        with self._lock:
            opened = self._makers.setdefault(text, _Opened(client))  # one maker for all requests of a plan
            self._makers.move_to_end(text)
            if len(self._makers) > _MOST_MAKERS:  # drop the oldest maker of the client with the most makers
                counts = Counter(each.client for each in self._makers.values())
                del self._makers[max(self._makers, key=lambda text: counts[self._makers[text].client])]
        with opened.lock:
            whole = opened.maker = opened.maker or ticket.open(self._roots)
        for plan in whole.plan.plans:
            row_bytes = estimate_row_bytes(plan.config, plan) + int(plan.source.record_bytes)
            check_bytes(len(ticket.rows), row_bytes)
        maker = whole.for_rows(ticket.rows.start, ticket.rows.stop)
        stored = maker.read(ticket.epoch, ticket.step)
        decoding = self._decoding.enter(client, text)  # never refuses: it has room for all that `_serving` grants
        try:
            decoding.granted.wait()
            return maker.decode(stored, self._threads)
        finally:
            self._decoding.leave(decoding)
