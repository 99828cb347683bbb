"""A worker: it answers each ticket with the batch of a step, for any number of trainers.

The makers of the last few plans stay open. Nothing else is kept, so a worker may end at any time.
"""

from __future__ import annotations

import hmac
import json
import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from typing import Any

from pyarrow import flight

from tfpipe.engine.batch import Batch
from tfpipe.engine.mixed_batch import AnyMaker, MixedPlan
from tfpipe.errors import ConfigError, TfpipeError, first_line
from tfpipe.service.arrays import MOST_BYTES, SCHEMA, make_message, send_batch
from tfpipe.service.fair_queue import FairQueue, Turn
from tfpipe.service.plans import count_bytes, name_release, open_plan, read_plan

BEAT_S = 1.0
"""The seconds after which a worker says that it still works."""

_MOST_TICKET_BYTES = 1 << 16
_MOST_MAKERS, _MOST_WAITING = 16, 512
_AT_ONCE, _DECODING = 32, 2
_SEND_LIMIT_S = 60.0

logger = logging.getLogger(__name__)


@dataclass
class _Opened:
    address: str
    lock: threading.Lock = field(default_factory=threading.Lock)
    maker: AnyMaker | None = None


class _CheckToken(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """A check that refuses calls without the token, before anything of them is read."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    def start_call(self, info: object, headers: dict[str, Any]) -> None:
        """Checks a call."""
        given = headers.get("authorization", [""])[0]
        if not hmac.compare_digest(given if isinstance(given, bytes) else str(given).encode(), self._expected):
            raise flight.FlightUnauthenticatedError("the token is missing or wrong")


class Server(flight.FlightServerBase):  # type: ignore[misc]
    """A worker, without a process of its own. It serves as soon as it is made, on port 0 at any free one.

    `give_up` is called when clients hold half of all places and take nothing, while others wait.
    """

    def __init__(
        self,
        location: str,
        roots: Sequence[str],
        threads: int,
        num_bytes: int = MOST_BYTES,
        *,
        token: str = "",
        tls: tuple[bytes, bytes] | None = None,
        give_up: Callable[[], None] | None = None,
    ) -> None:
        self._roots, self._threads, self._num_bytes, self._give_up = roots, threads, num_bytes, give_up
        self._release = name_release()
        self._pool = ThreadPoolExecutor(_AT_ONCE, "tfpipe-make")
        self._places, self._decoding = FairQueue(_AT_ONCE, num_bytes, _MOST_WAITING), FairQueue(_DECODING, 0, _AT_ONCE)
        self._lock = threading.Lock()  # guards what follows
        self._makers: OrderedDict[str, _Opened] = OrderedDict()
        self._sending: dict[Turn, float] = {}
        middleware = {"token": _CheckToken(token)} if token else None
        super().__init__(location, tls_certificates=[tls] if tls else None, middleware=middleware)

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Answers a ticket; an empty one with the release."""
        address = context.peer().rpartition(":")[0]
        return flight.GeneratorStream(SCHEMA, self._answer(address, ticket.ticket))

    def _answer(self, address: str, ticket: bytes) -> Iterator[Any]:
        """Yields the messages of an answer. gRPC closes it when the client leaves."""
        if not ticket:
            yield make_message({"release": self._release})
            return
        turn = made = None
        try:
            try:
                request = self._read_ticket(ticket)
                plan, rows = request["plan"], request["rows"]
                turn = self._places.enter(address, json.dumps(plan), rows[1] * request["row_bytes"])
                while not turn.granted.wait(BEAT_S):
                    self._look_after_senders()
                    yield make_message()
                if turn.is_refused:
                    raise flight.FlightUnavailableError("it has too many requests")
                made = self._pool.submit(self._make, turn, request)
                while not wait_for((made,), BEAT_S).done:
                    yield make_message()
                batch, made_s = made.result()
                end: dict[str, Any] = {"made_s": made_s}
            except TfpipeError as error:
                batch, end = {}, {"error": type(error).__name__, "text": str(error), "page": error.page}
            except flight.FlightError:
                raise
            except Exception as error:  # a fault of this program must not end the worker for all others
                logger.exception("A batch could not be made.")
                batch, end = {}, {"error": "DataError", "text": f"A batch could not be made: {first_line(error)}."}
            for message in (*send_batch(batch), make_message(end)):
                if turn is not None:
                    self._sending[turn] = time.monotonic()
                yield message
        finally:
            if turn is not None:
                self._sending.pop(turn, None)
                place = turn
                if made is None:
                    self._places.leave(place)
                else:
                    made.cancel()
                    made.add_done_callback(lambda _: self._places.leave(place))

    def _look_after_senders(self) -> None:
        """Gives up where clients that take nothing hold the places for which others wait."""
        late = [turn for turn, since in list(self._sending.items()) if time.monotonic() - since > _SEND_LIMIT_S]
        holds_half = 2 * len(late) >= _AT_ONCE or 2 * sum(turn.num_bytes for turn in late) >= self._num_bytes
        if late and holds_half and self._give_up is not None:
            logger.warning("Clients take nothing of %s batches, and others wait: this worker starts anew.", len(late))
            self._give_up()

    def _read_ticket(self, ticket: bytes) -> dict[str, Any]:
        """Reads and checks a ticket; nothing is opened."""
        if len(ticket) > _MOST_TICKET_BYTES:
            raise ConfigError(f"A ticket must have at most {_MOST_TICKET_BYTES:,} bytes, got {len(ticket):,}.")
        try:
            request = json.loads(ticket)
            release, plan, (first, count) = request["release"], request["plan"], request["rows"]
            numbers = [request["epoch"], request["step"], first, count]
        except (ValueError, TypeError, KeyError, RecursionError):
            release, plan, numbers = None, {}, []
        if len(numbers) != 4 or not all(type(number) is int and 0 <= number < 2**62 for number in numbers):
            raise ConfigError(f"A ticket must have a release, a plan, an epoch, a step and rows, got {ticket[:100]!r}.")
        if release != self._release:
            raise ConfigError(
                f"A trainer and its workers must have the same release: the trainer has {release}, and this worker has "
                f"{self._release}. Install one of them on both."
            )
        config, _, _ = read_plan(plan)
        first, count = numbers[2:]
        if not 0 < count <= config.batch_size - first or config.batch_size % count:
            raise ConfigError(f"Rows must be an equal share of a batch, got {count} from {first} on.")
        return {**request, "row_bytes": _check_bytes(count, count_bytes(config))}

    def _make(self, turn: Turn, request: dict[str, Any]) -> tuple[Batch, float]:
        """Makes a batch, and returns the seconds of it without those in which others decoded."""
        first, count = request["rows"]
        whole = self._open(turn, request["plan"])
        plans = whole.plan.parts if isinstance(whole.plan, MixedPlan) else (whole.plan,)
        _check_bytes(count, max(count_bytes(plan.config, plan) for plan in plans))
        maker = whole.for_rows(first, first + count)
        begin = time.perf_counter()
        stored = maker.read(request["epoch"], request["step"])
        made_s = time.perf_counter() - begin
        place = self._decoding.enter(turn.keys[0], turn.keys[1][1])
        try:
            place.granted.wait()
            begin = time.perf_counter()
            return maker.decode(stored, self._threads), made_s + time.perf_counter() - begin
        finally:
            self._decoding.leave(place)

    def _open(self, turn: Turn, plan: dict[str, Any]) -> AnyMaker:
        """Returns the maker of a plan, which is opened once for all who ask for it."""
        address, text = turn.keys[1]
        with self._lock:
            opened = self._makers.setdefault(text, _Opened(address))
            self._makers.move_to_end(text)
            if len(self._makers) > _MOST_MAKERS:  # the oldest of the client that has most
                counts = Counter(each.address for each in self._makers.values())
                del self._makers[max(self._makers, key=lambda text: counts[self._makers[text].address])]
        with opened.lock:
            if opened.maker is None:
                opened.maker = open_plan(plan, self._roots)
            return opened.maker


def _check_bytes(rows: int, row_bytes: int) -> int:
    if rows * row_bytes > MOST_BYTES:
        raise ConfigError(
            f"A service makes at most {MOST_BYTES:,} bytes of a batch at once, got {rows:,} rows of {row_bytes:,} "
            "bytes. Take smaller batches or images, or `image_dtype` uint8."
        )
    return row_bytes
