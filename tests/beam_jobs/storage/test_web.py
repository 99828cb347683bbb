"""Images on the web: a server on loopback that is late, fails, lies and leads elsewhere."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from beam_jobs.storage.web import WebLimits, WebOptions, WebStore
from tests.beam_jobs.datasets import make_dataset, read_records
from tests.beam_jobs.images import make_jpeg
from tests.conftest import Tfpipe
from tfpipe.errors import ConfigError
from tfpipe.storage import file_io

SHORT = WebLimits(10_000, total_s=0.6, connect_s=1.0, silent_s=0.4, redirects=3, attempts=3, first_pause_s=0.01)


class Site(ThreadingHTTPServer):
    """A web server whose paths say what it does.

    Attributes:
        seen: How often each path was asked for.
        busiest: The most images at once.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.seen: Counter[str] = Counter()
        self.now = self.busiest = 0
        self.lock = threading.Lock()

    def handle_error(self, *_: Any) -> None:
        """Says nothing of a client that has closed its connection."""

    @property
    def url(self) -> str:
        """The URL of the server, without a slash at the end."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Site

    def do_GET(self) -> None:
        with self.server.lock:
            self.server.seen[self.path] += 1
        self.answer(*self.path.strip("/").split("/"))

    def answer(self, kind: str, value: str = "") -> None:
        if kind == "image":
            site = self.server
            with site.lock:
                site.now += 1
                site.busiest = max(site.busiest, site.now)
            time.sleep(0.02)
            with site.lock:
                site.now -= 1
            self.send(200, make_jpeg(int(value.partition(".")[0])))
        elif kind == "status":
            self.send(int(value), b"no")
        elif kind == "passing":  # the first answers are 503
            self.send(503 if self.server.seen[self.path] <= int(value) else 200, b"at last")
        elif kind == "redirect":
            self.send(302, b"x" * 100, Location=f"/redirect/{int(value) - 1}" if int(value) else "/status/200")
        elif kind == "loop":
            self.send(301, b"", Location=self.path)
        elif kind == "away":
            self.send(302, b"", Location="file:///etc/passwd")
        elif kind == "silent":
            time.sleep(2)
        elif kind == "drip":
            self.send(200, b"", length=1000)
            for _ in range(100):
                self.wfile.write(b"x")
                time.sleep(0.05)
        elif kind == "short":
            self.send(200, b"half", length=8)
            self.close_connection = True
        elif kind == "large":
            self.send(200, b"", length=10**9)
        elif kind == "endless":
            self.send(200, b"", length=None)
            for _ in range(100):
                self.wfile.write(b"1000\r\n" + bytes(4096) + b"\r\n")

    def send(self, status: int, data: bytes, length: int | None = -1, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if length is None:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(len(data) if length < 0 else length))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture(scope="module")
def server() -> Iterator[Site]:
    with Site() as site:
        threading.Thread(target=site.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield site
        site.shutdown()


@pytest.fixture
def site(server: Site) -> Site:
    server.seen.clear()
    server.busiest = 0
    return server


def make_store(*flags: str) -> WebStore:
    return WebStore(WebOptions(list(flags or ("--allow_private_hosts",))), SHORT)


def fail(store: WebStore, url: str) -> str:
    with pytest.raises(OSError, match=r".") as error:
        store.read(url)
    return str(error.value)


def test_images_are_fetched(site: Site) -> None:
    store = make_store()
    assert store.read(f"{site.url}/image/7.jpg") == make_jpeg(7)
    assert store.read(f"{site.url}/redirect/2") == b"no"
    assert store.read(f"{site.url}/passing/2") == b"at last"
    assert site.seen["/passing/2"] == 3


@pytest.mark.parametrize(
    ("path", "reason", "requests"),
    [
        ("status/404", "HTTP status 404", 1),
        ("status/503", "HTTP status 503", 3),
        ("redirect/3", "is redirected more than 3 times", 1),
        ("loop/1", "is redirected more than 3 times", 4),
        ("away/1", "is redirected to file:///etc/passwd, which is not on the web", 1),
        ("silent/1", "the host does not answer in time", 3),
        ("drip/1", "only ", 1),
        ("short/1", "the answer broke off after 4 bytes", 3),
        ("large/1", "1,000,000,000 bytes are more than the 10,000 that are fetched", 1),
        ("endless/1", "more than 10,000 bytes, which is all that is fetched", 1),
    ],
)
def test_what_cannot_be_had_has_a_reason(site: Site, path: str, reason: str, requests: int) -> None:
    found = fail(make_store(), f"{site.url}/{path}")
    assert found == reason or (reason == "only " and found.endswith(" bytes came in 0.6 s"))
    assert site.seen[f"/{path}"] == requests


def test_hosts_that_cannot_be_reached() -> None:
    store = make_store()
    assert fail(store, "http://127.0.0.1:9/a.jpg") == "the host cannot be reached"
    assert fail(store, "http://no-such-host.invalid/a.jpg") == "the host cannot be reached"
    assert fail(store, f"http://{'a' * 70}.com/a.jpg").startswith("not a URL that can be fetched (")


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_private_host_hears_nothing(site: Site, scheme: str) -> None:
    url = f"{site.url}/image/7.jpg".replace("http", scheme)
    assert fail(make_store("--requests_per_host=2"), url) == (
        "127.0.0.1 is 127.0.0.1, which is not a public address; allow it with --allow-private-hosts"
    )
    named = url.replace("127.0.0.1", "localhost")
    assert fail(make_store("--requests_per_host=2"), named).startswith("localhost is ")
    assert not site.seen


def test_only_images_may_be_there() -> None:
    with pytest.raises(ConfigError) as error:
        file_io.check_stores(["https://example.com/table.csv"])
    assert str(error.value) == (
        "Only the images that a table names may be on the web, got https://example.com/table.csv. Download a table or "
        "an archive first."
    )
    store = make_store()
    for refused in (
        lambda: store.read("http://a/b", 1),
        lambda: store.write("http://a/b", b""),
        lambda: store.size("http://a/b"),
        lambda: store.delete(["http://a/b"]),
    ):
        with pytest.raises(OSError, match=r"^http://a/b can only be read as a whole$"):
            refused()


def write_table(folder: Path, urls: list[str]) -> Path:
    path = folder / "table.jsonl"
    path.write_text("".join(json.dumps({"image": url, "label": "cat"}) + "\n" for url in urls))
    return path


def test_a_table_of_urls_becomes_a_dataset(site: Site, tmp_path: Path) -> None:
    urls = [f"{site.url}/image/{k}.jpg" for k in range(40)] + [f"{site.url}/status/404", f"{site.url}/status/200"]
    table = write_table(tmp_path, urls)
    manifest = make_dataset(table, tmp_path / "out", shuffle=False, allow_private_hosts=True, requests_per_host=3)
    assert site.busiest == 3
    assert manifest.splits["train"].records == 40
    records = read_records(tmp_path / "out")
    assert sorted(record["image/encoded"][0] for record in records) == sorted(make_jpeg(k) for k in range(40))
    lines = [
        json.loads(line) for line in (tmp_path / "out" / "quarantine" / "quarantined.jsonl").read_text().splitlines()
    ]
    assert [(line["path"], line["kind"], line["reason"]) for line in lines] == [
        (urls[41], "bad", lines[0]["reason"]),
        (urls[40], "unreadable", "cannot be read: HTTP status 404"),
    ]


def test_worker_processes_get_the_options(site: Site, tmp_path: Path, tfpipe: Tfpipe) -> None:
    table = write_table(tmp_path, [f"{site.url}/image/{k}.jpg" for k in range(6)])
    options = ("--num-shards", 2, "--workers", 2, "--max-bad", 0)
    done = tfpipe("shard", table, tmp_path / "out", *options)
    assert done.code != 0
    assert "which is not a public address; allow it with --allow-private-hosts" in done.err
    done = tfpipe("shard", table, tmp_path / "out", *options, "--allow-private-hosts")
    assert done.code == 0, done.err
    assert len(read_records(tmp_path / "out")) == 6
