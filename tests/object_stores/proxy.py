"""A proxy on loopback between a client and an emulator. It records every request and can break some of them."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple, TypeAlias

Fault: TypeAlias = int | float | str | None
"""An HTTP status to answer; seconds to wait; "drop": no answer; "cut": half of one; "lost": done, but no answer."""

Harm = Callable[["Seen"], Fault]

_HOP = {"transfer-encoding", "connection", "content-length", "server", "date", "expect", "keep-alive"}


class Seen(NamedTuple):
    """A request as the proxy saw it."""

    number: int
    method: str
    path: str
    range: str
    fault: Fault = None


class Proxy:
    """A proxy that forwards HTTP/1.1 to `target` (host and port) until it is stopped.

    Args:
        target: The emulator.
        tls: For clients that are told to use this as their HTTPS proxy: what it calls itself then.
    """

    def __init__(self, target: tuple[str, int], tls: ssl.SSLContext | None = None) -> None:
        self.log: list[Seen] = []
        self.harm: Harm = lambda _: None
        self.target, self.tls = target, tls
        self._lock = threading.Lock()

        class Handler(_Handler):
            proxy = self

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
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


class _Handler(BaseHTTPRequestHandler):
    proxy: Proxy
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
        assert self.proxy.tls is not None
        self.send_response(200, "Connection established")
        self.end_headers()
        self.wfile.flush()
        try:
            self.connection = self.proxy.tls.wrap_socket(self.connection, server_side=True)
        except OSError:
            self.close_connection = True
            return
        self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb")
        self.close_connection = False
        while not self.close_connection:
            self.handle_one_request()

    def _forward(self) -> None:
        body = self._body()
        seen = self.proxy.note(self.command, self.path, self.headers.get("Range", ""))
        fault = seen.fault
        if isinstance(fault, float):
            time.sleep(fault)
        elif isinstance(fault, int):
            self._answer(fault, [("Retry-After", "0")], b"")
            return
        elif fault == "drop":
            self._hang_up()
            return
        response, data = self._ask(body)
        if fault == "lost":
            self._hang_up()
        else:
            headers = [(name, self._own(value)) for name, value in response.getheaders() if name.lower() not in _HOP]
            self._answer(
                response.status, headers, data, cut=fault == "cut", length=response.getheader("Content-Length")
            )

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

    def _ask(self, body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        connection = http.client.HTTPConnection(*self.proxy.target, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
        connection.request(self.command, self.path, body or (b"" if self.command in ("POST", "PUT") else None), headers)
        response = connection.getresponse()
        data = response.read()
        connection.close()
        return response, data

    def _own(self, value: str) -> str:
        """Returns a header in which the emulator names itself, as for the rest of an upload, with the proxy's name."""
        base_url = "https://storage.googleapis.com" if self.proxy.tls else self.proxy.url
        return value.replace("http://{}:{}".format(*self.proxy.target), base_url)

    def _answer(
        self,
        status: int,
        headers: list[tuple[str, str]],
        data: bytes,
        cut: bool = False,
        length: str | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", (length or "0") if self.command == "HEAD" else str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if cut else data)
        self.wfile.flush()
        if cut:
            self._hang_up()

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


def now_and_then(*faults: Fault, every: int = 7) -> Harm:
    """Returns a rule that breaks each `every`-th request by one fault after another, never two in a row."""

    def harm(seen: Seen) -> Fault:
        turn, place = divmod(seen.number, every)
        return faults[turn % len(faults)] if place == every - 1 else None

    return harm
