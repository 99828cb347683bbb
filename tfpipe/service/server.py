"""The server of a worker: answers each ticket with the batch of a step, for any number of trainers.

The makers of the last few plans stay open. No other state is kept between requests, so a worker may end at any time.
"""

from __future__ import annotations

import hmac
import json
import logging
import math
import os
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyarrow import flight

from tfpipe.engine.batch import Batch, Maker
from tfpipe.engine.plan import estimate_row_bytes
from tfpipe.errors import TfpipeError, first_line
from tfpipe.service.config import Tls
from tfpipe.service.messages import MOST_BYTES, RELEASE, SCHEMA, Ticket, check_bytes, send

_MOST_MAKERS, _MOST_WAITING = 16, 512
_AT_ONCE, _DECODING = 32, 2
_LOOK_EVERY_S, _SEND_LIMIT_S = 1.0, 60.0

logger = logging.getLogger(__name__)


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
        free_bytes = self._num_bytes - sum(each.num_bytes for each in working)
        fitting = [
            each
            for each in self.requests
            if not each.granted.is_set()
            and plans[each.plan] < self._of_a_plan
            and (each.num_bytes <= free_bytes or not working)
        ]
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
        self,
        location: str,
        roots: Sequence[str],
        threads: int,
        num_bytes: int = MOST_BYTES,
        token: str = "",
        tls: Tls = None,
    ) -> None:
        self._roots, self._threads, self._num_bytes = roots, threads, num_bytes
        self._serving, self._decoding = FairQueue(_AT_ONCE, num_bytes, _MOST_WAITING), FairQueue(_DECODING, 0, _AT_ONCE)
        self._lock = threading.Lock()  # guards the makers
        self._makers: OrderedDict[str, _Opened] = OrderedDict()
        middleware = {"token": _CheckToken(token)} if token else None
        super().__init__(location, tls_certificates=[tls] if tls else None, middleware=middleware)

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
