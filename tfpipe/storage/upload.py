"""The writer of one object: one request for a small one, parts for a large one, and nothing after an error.

obstore sends parts that it takes from an iterator, and removes them where the iterator fails. So it runs in a thread,
and what is written goes there by a queue.
"""

import contextlib
import io
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from queue import Full, Queue
from typing import Any

from tfpipe.errors import DataError
from tfpipe.storage.failures import explain

PART_BYTES = 16 * 2**20
"""The least bytes that a writer collects before it sends them: above 5 MiB, the least of all stores."""

_MOST_PARTS = 10_000  # no store takes more of Google's and Amazon's
_PART_UNIT = 2**20
_LOOK_EVERY_S = 0.1


class _Aborted(Exception):
    """The block that writes the object ended with an error."""


class Upload(io.BufferedIOBase):
    """A writer of one object.

    Args:
        url: The object.
        put: The function that makes an object of bytes.
        put_parts: The function that makes an object of an iterator over parts, and of the bytes of a part.
        expected_bytes: About the size of the object. Parts are larger for an object above 78 GiB, up to twice of this.
    """

    def __init__(
        self,
        url: str,
        put: Callable[[bytes], Any],
        put_parts: Callable[[Iterator[bytes], int], Any],
        expected_bytes: int = 0,
    ) -> None:
        super().__init__()
        self._url = url
        needed = -(-2 * expected_bytes // _MOST_PARTS)
        self._part_bytes = max(PART_BYTES, -(-needed // _PART_UNIT) * _PART_UNIT)
        self._num_parts = self._written = 0
        self._put, self._put_parts = put, put_parts
        self._buffer = bytearray()
        self._parts: Queue[bytes | _Aborted | None] = Queue(1)
        self._sent: Future[Any] | None = None

    def writable(self) -> bool:
        """Returns True."""
        return True

    def write(self, data: Any) -> int:
        """Takes bytes, and sends those that fill a part."""
        self._buffer += data
        self._written += len(data)
        while len(self._buffer) >= self._part_bytes:
            self._hand_over(bytes(self._buffer[: self._part_bytes]))
            del self._buffer[: self._part_bytes]
            self._num_parts += 1
            if self._num_parts == _MOST_PARTS:
                most = self._num_parts * self._part_bytes / 2**30
                raise DataError(f"{self._url} would have more than {most:,.0f} GiB. Write more shards, each smaller.")
        return len(data)

    def tell(self) -> int:
        """Returns the number of bytes that were written."""
        return self._written

    def complete(self) -> None:
        """Makes the object appear."""
        if self._sent is None:
            self._put(bytes(self._buffer))
            return
        if self._buffer:
            self._hand_over(bytes(self._buffer))
        self._hand_over(None)
        self._wait(self._sent)

    def abort(self) -> None:
        """Removes the parts."""
        if self._sent is not None:
            with contextlib.suppress(Exception):  # a rule of the bucket can remove parts that stay
                self._hand_over(_Aborted())
                self._sent.result()

    def _hand_over(self, part: bytes | _Aborted | None) -> None:
        if self._sent is None:
            self._sent = Future()
            threading.Thread(target=self._send, args=(self._sent,), name="tfpipe-upload", daemon=True).start()
        while not self._sent.done():
            with contextlib.suppress(Full):
                return self._parts.put(part, timeout=_LOOK_EVERY_S)
        self._wait(self._sent)  # raises the error that ended the upload before its end

    def _wait(self, sent: Future[Any]) -> None:
        with explain(self._url):
            sent.result()

    def _send(self, sent: Future[Any]) -> None:
        try:
            sent.set_result(self._put_parts(self._take_parts(), self._part_bytes))
        except BaseException as error:
            sent.set_exception(error)

    def _take_parts(self) -> Iterator[bytes]:
        while (part := self._parts.get()) is not None:
            if isinstance(part, _Aborted):
                raise part
            yield part
