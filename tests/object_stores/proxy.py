"""Servers on loopback, a proxy before an emulator among them. They record every request and can break some."""

import contextlib
import http.client
import json
import re
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple, TypeAlias
from xml.sax.saxutils import escape

Fault: TypeAlias = int | float | str | None
"""An HTTP status to answer; seconds to wait; "drop": no answer; "cut": half of one; "lost": done, but no answer."""

Harm = Callable[["Seen"], Fault]

_HOP = {"transfer-encoding", "connection", "content-length", "server", "date", "expect", "keep-alive"}
_PACED_BYTES = 2**18
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_ENTRY = (
    "<Contents><Key>{}</Key><Size>{}</Size><ETag>1</ETag><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
    "</Contents>"
)


class Answer(NamedTuple):
    """What a store answers."""

    status: int
    headers: list[tuple[str, str]]
    data: bytes
    length: str | None = None


def answer_json(value: object, status: int = 200) -> Answer:
    return Answer(status, [("Content-Type", "application/json")], json.dumps(value).encode())


def answer_xml(document: str, status: int = 200) -> Answer:
    return Answer(status, [("Content-Type", "application/xml")], document.encode())


def answer_list(sizes: Iterable[tuple[str, int]], folders: Iterable[str]) -> Answer:
    """Lists objects and the folders beside them, as Amazon does and Google in its XML interface."""
    entries = "".join(_ENTRY.format(escape(name), size) for name, size in sizes)
    entries += "".join(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in folders)
    return answer_xml(f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>")


def answer_object(
    size: int, read: Callable[[int, int], bytes], headers: dict[str, str], described: list[tuple[str, str]]
) -> Answer:
    """Answers with an object, or the range of it that is asked for. `read` gets the bytes between two offsets."""
    if (match := _RANGE.fullmatch(headers.get("range", ""))) is None:
        return Answer(200, described, read(0, size), str(size))
    begin, end = int(match[1]), min(int(match[2] or size) + 1, size)
    if begin >= size:
        return Answer(416, [], b"")
    return Answer(206, [*described, ("Content-Range", f"bytes {begin}-{end - 1}/{size}")], read(begin, end))


class Seen(NamedTuple):
    """A request as the proxy saw it."""

    number: int
    method: str
    path: str
    range: str
    fault: Fault = None


class Server:
    """A server of HTTP/1.1 on loopback, until it is stopped."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.log: list[Seen] = []
        self.harm: Harm = lambda _: None
        self.bytes_per_s: float | None = None
        self.tls = tls
        self._lock = threading.Lock()

        class Handler(_Handler):
            server_of = self

        self._server = _Listener(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def reset(self) -> None:
        """Forgets all requests and faults."""
        self.log.clear()
        self.harm = lambda _: None

    def note(self, method: str, path: str, byte_range: str) -> Seen:
        with self._lock:
            seen = Seen(len(self.log), method, path, byte_range)
            seen = seen._replace(fault=self.harm(seen))
            self.log.append(seen)
        return seen

    def ask(self, command: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        """Finds the answer to a request that is not broken. The names of headers have small letters."""
        raise NotImplementedError


class Proxy(Server):
    """A proxy that forwards requests to `target` (host and port)."""

    def __init__(self, target: tuple[str, int]) -> None:
        super().__init__()
        self.target = target
        self._lock_conditions = threading.Lock()  # the emulator looks first and writes then

    def ask(self, command: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        """Asks the emulator, again if it fails: its threads disturb each other once in a thousand requests."""
        is_conditional = not {"if-match", "if-none-match"}.isdisjoint(headers)
        with self._lock_conditions if is_conditional else contextlib.nullcontext():
            for _ in range(2):
                try:
                    if (answer := self._ask_once(command, path, headers, body)).status < 500:
                        return answer
                except (OSError, http.client.HTTPException):
                    pass
            return self._ask_once(command, path, headers, body)

    def _ask_once(self, command: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        connection = http.client.HTTPConnection(*self.target, timeout=60)
        connection.request(command, path, body or (b"" if command in ("POST", "PUT") else None), headers)
        response = connection.getresponse()
        data = response.read()
        connection.close()
        kept = [(name, self._own(value)) for name, value in response.getheaders() if name.lower() not in _HOP]
        return Answer(response.status, kept, data, response.getheader("Content-Length"))

    def _own(self, value: str) -> str:
        """Returns a header in which the emulator names itself, as for the rest of an upload, with the proxy's name."""
        return value.replace("http://{}:{}".format(*self.target), self.url)


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256  # with five, a client that comes with fifty connections at once waits a second

    def handle_error(self, request: object, client_address: object) -> None:
        """Says nothing of a client that ends while it is answered; it prints any other error."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server_of: Server
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def log_message(self, *args: object) -> None:
        pass

    def handle_expect_100(self) -> bool:
        going_on = super().handle_expect_100()
        self.wfile.flush()  # Amazon's client waits a second for this
        return going_on

    def do_CONNECT(self) -> None:
        """Answers CONNECT, the request for an HTTPS tunnel, and then serves in the place of the real host."""
        assert self.server_of.tls is not None
        self.send_response(200, "Connection established")
        self.end_headers()
        self.wfile.flush()
        try:
            self.connection = self.server_of.tls.wrap_socket(self.connection, server_side=True)
        except OSError:
            self.close_connection = True
            return
        self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb")
        self.close_connection = False
        while not self.close_connection:
            self.handle_one_request()

    def _forward(self) -> None:
        body = self._body()
        fault = self.server_of.note(self.command, self.path, self.headers.get("Range", "")).fault
        if isinstance(fault, float):
            time.sleep(fault)
        elif isinstance(fault, int):
            self._answer(Answer(fault, [("Retry-After", "0")], b""))
            return
        elif fault == "drop":
            self._hang_up()
            return
        headers = {name.lower(): value for name, value in self.headers.items() if name.lower() not in _HOP}
        answer = self.server_of.ask(self.command, self.path, headers, body)
        if fault == "lost":
            self._hang_up()
        else:
            self._answer(answer, cut=fault == "cut")

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_PATCH = _forward  # noqa: N815  # the names that are called

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []  # TensorFlow's client says a length, too; the chunks are what counts
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, answer: Answer, cut: bool = False) -> None:
        data = answer.data
        self.send_response(answer.status)
        for name, value in answer.headers:
            self.send_header(name, value)
        self.send_header("Content-Length", (answer.length or "0") if self.command == "HEAD" else str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self._send(data[: len(data) // 2] if cut else data)
        self.wfile.flush()
        if cut:
            self._hang_up()

    def _send(self, data: bytes) -> None:
        """Sends a body, no faster than the server's rate for one stream."""
        rate, begun = self.server_of.bytes_per_s, time.perf_counter()
        if rate is None:
            self.wfile.write(data)
            return
        for start in range(0, len(data), _PACED_BYTES):
            part = data[start : start + _PACED_BYTES]
            time.sleep(max(begun + (start + len(part)) / rate - time.perf_counter(), 0))
            self.wfile.write(part)

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


def now_and_then(*faults: Fault, every: int = 7) -> Harm:
    """Returns a rule that breaks each `every`-th request by one fault after another, never two in a row."""

    def harm(seen: Seen) -> Fault:
        turn, place = divmod(seen.number, every)
        return faults[turn % len(faults)] if place == every - 1 else None

    return harm
