"""A worker: it answers each request with the batch of a step, for any number of trainers.

```
connection ── thread: receives, says "wait" each second, sends ──┐
connection ── thread ────────────────────────────────────────────┤── a few threads: read, then two at once decode
connection ── thread ────────────────────────────────────────────┘
```

The makers of the last few plans stay open. Nothing else is kept, so a worker may end at any time.
"""

from __future__ import annotations

import errno
import logging
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillWorking
from dataclasses import dataclass, field
from typing import Any

from tfpipe.engine.mixed_batch import AnyMaker
from tfpipe.errors import ConfigError, TfpipeError, first_line
from tfpipe.service import wire
from tfpipe.service.plans import name_release, open_plan

BEAT_S = 1.0
"""The seconds after which a worker says that it still works."""

_LIMITS = wire.Limits(1 << 16, 1 << 22)  # of requests
_MOST_MAKERS = 16
_MOST_CONNECTIONS = 1024
_AT_ONCE, _DECODING = 16, 2
_SEND_LIMIT_S = 60.0
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED)
"""Errors of a new connection after which a worker goes on: too many files are open, or the trainer has left."""

logger = logging.getLogger(__name__)


@dataclass
class _Opened:
    lock: threading.Lock = field(default_factory=threading.Lock)
    maker: AnyMaker | None = None


class Server:
    """A worker, without a process of its own.

    Args:
        threads: The number of threads that decode, of all batches together.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._release = name_release()
        self._pool = ThreadPoolExecutor(_AT_ONCE, "tfpipe-make")
        self._decoding = threading.Semaphore(_DECODING)
        self._connections = threading.Semaphore(_MOST_CONNECTIONS)
        self._lock = threading.Lock()  # guards what follows
        self._makers: OrderedDict[bytes, _Opened] = OrderedDict()

    def serve(self, listener: socket.socket) -> None:
        """Answers all who connect, without end."""
        listener.settimeout(None)
        while True:
            try:
                connection, _ = listener.accept()
            except OSError as error:
                if error.errno not in _PASSING:
                    raise
                logger.warning("A connection could not be taken: %s.", error.strerror)
                time.sleep(BEAT_S)  # those that are open go on meanwhile
                continue
            if self._connections.acquire(blocking=False):
                threading.Thread(target=self._talk, args=(connection,), name="tfpipe-talk", daemon=True).start()
            else:
                connection.close()

    def _talk(self, connection: socket.socket) -> None:
        """Answers the requests of one connection until it ends."""
        try:
            with connection:
                wire.prepare(connection)
                while True:
                    request = wire.receive(connection, _LIMITS, lambda _: None)
                    self._answer(connection, request)
        except (OSError, wire.BrokenMessage) as error:
            logger.debug("A connection ended: %s.", error)
        finally:
            self._connections.release()

    def _answer(self, connection: socket.socket, request: wire.Message) -> None:
        if request.header.get("kind") == "hello":
            wire.send(connection, {"kind": "hello", "release": self._release})
            return
        made = self._pool.submit(self._make, request)
        while not _is_done(made):
            wire.send(connection, {"kind": "wait"})
        try:
            header, pieces = made.result()
        except TfpipeError as error:
            header = {"kind": "error", "class": type(error).__name__, "text": str(error), "page": error.page}
            pieces = []
        except Exception as error:  # a fault of this program must not end the worker for all others
            logger.exception("A batch could not be made.")
            header = {"kind": "error", "class": "DataError", "text": f"A batch could not be made: {first_line(error)}."}
            pieces = []
        wire.send(connection, header, pieces, _give_up)

    def _make(self, request: wire.Message) -> tuple[dict[str, Any], list[wire.Bytes]]:
        header = request.header
        if header.get("release") != self._release:
            raise ConfigError(
                f"A trainer and its workers must have the same release: the trainer has {header.get('release')}, and "
                f"this worker has {self._release}. Install one of them on both."
            )
        epoch, step, first, end = _read_numbers(header)
        whole = self._open(request.payload.tobytes())
        if not first < end <= whole.plan.config.batch_size or whole.plan.config.batch_size % (end - first):
            raise ConfigError(f"Rows must be an equal share of a batch, got {first} to {end}.")
        maker = whole.for_rows(first, end)
        begin = time.perf_counter()
        stored = maker.read(epoch, step)
        made_s = time.perf_counter() - begin
        with self._decoding:
            begin = time.perf_counter()
            batch = maker.decode(stored, self._threads)
            made_s += time.perf_counter() - begin
        parts, pieces = wire.encode_batch(batch)
        return {"kind": "batch", "made_s": made_s, "parts": parts}, pieces

    def _open(self, text: bytes) -> AnyMaker:
        """Returns the maker of a plan, which is opened once for all who ask for it."""
        with self._lock:
            opened = self._makers.setdefault(text, _Opened())
            self._makers.move_to_end(text)
            while len(self._makers) > _MOST_MAKERS:
                self._makers.popitem(last=False)
        with opened.lock:
            if opened.maker is None:
                opened.maker = open_plan(text)
            return opened.maker


def _is_done(made: Future[Any]) -> bool:
    try:
        made.exception(BEAT_S)
    except StillWorking:
        return False
    return True


def _read_numbers(header: Mapping[str, Any]) -> tuple[int, int, int, int]:
    rows = header.get("rows")
    numbers = [header.get("epoch"), header.get("step"), *(rows if isinstance(rows, list) else ())]
    if len(numbers) != 4 or not all(type(number) is int and 0 <= number < 2**62 for number in numbers):
        raise ConfigError(f"A request must have an epoch, a step and rows, got {numbers!r:.100}.")
    epoch, step, first, end = numbers
    return epoch, step, first, end


def _give_up(seconds: float) -> None:
    if seconds > _SEND_LIMIT_S:
        raise TimeoutError(f"nothing was taken for {_SEND_LIMIT_S:g} s")
