"""`tfpipe serve` as a user runs it: real processes."""

import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.beam_jobs.commands import start_command, wait_for
from tests.conftest import Tfpipe
from tests.integrity.made import payload, write_dataset
from tests.refusals import refusal
from tests.system.test_child_process import is_running
from tfpipe.engine.config.pipeline_config import PipelineConfig, ServiceOptions
from tfpipe.errors import ConfigError
from tfpipe.readers.numpy import NumpyBatches
from tfpipe.service import server as module
from tfpipe.service.config import ServiceConfig


class Server:
    """A running `tfpipe serve --json`."""

    def __init__(self, *args: str) -> None:
        self.process = start_command("--root", "/", "--json", *args, command="serve")
        assert self.process.stdout is not None
        self.json: dict[str, Any] = json.loads(self.process.stdout.readline())

    @property
    def pids(self) -> list[int]:
        return [worker["pid"] for worker in self.json["workers"]]

    def end(self, signum: int) -> int:
        os.killpg(self.process.pid, signum) if signum == signal.SIGINT else self.process.send_signal(signum)
        return self.process.wait(10)


@contextmanager
def serve(*args: str) -> Iterator[Server]:
    server = Server("--port", "0", *args)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    """One worker that several tests ask."""
    with serve() as server:
        yield server
        server.end(signal.SIGTERM)


# SIGINT goes to the whole group, as a terminal sends it.
@pytest.mark.parametrize(
    ("signum", "code"),
    [(signal.SIGTERM, 0), (signal.SIGINT, 0), pytest.param(signal.SIGKILL, -9, marks=pytest.mark.slow)],
)
def test_a_signal_ends_all_processes(signum: int, code: int) -> None:
    with serve("--workers", "2" if signum == signal.SIGINT else "1") as server:
        assert all(worker["address"].startswith("127.0.0.1:") for worker in server.json["workers"])
        assert all(map(is_running, server.pids))
        assert server.end(signum) == code
    wait_for(lambda: not any(map(is_running, server.pids)), 0.1 if code == 0 else 5)


def test_a_port_in_use_is_one_sentence(tfpipe: Tfpipe) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = tfpipe("serve", "--port", port, "--root", "/")
    sentence = (
        f"Error: A worker must serve on --port {port} of --host 127.0.0.1, and does not (Address already in use). "
        "If another program has the port, choose another.\n"
    )
    assert done == (1, "", sentence)


def test_workers_are_checked(running: Server, small_dataset: Path, tfpipe: Tfpipe) -> None:
    address = running.json["workers"][0]["address"]
    done = tfpipe("serve-check", address, "--dataset", small_dataset, "--json").ok
    made = f"1 worker made the first and the last record of 'train' of {small_dataset} as this machine does."
    assert done.json == {
        "checks": [
            {"name": "workers", "status": "ok", "found": f"1 worker answers: {address}.", "advice": ""},
            {"name": "reads", "status": "ok", "found": made, "advice": ""},
        ],
        "ok": True,
    }
    done = tfpipe("serve-check", address, "127.0.0.1:9", "--json")
    assert done.code == 1
    workers, reads = done.json["checks"]
    assert workers["found"] == "1 of 2 workers answer; missing: 127.0.0.1:9 (connection refused)."
    assert workers["advice"].startswith("Start it on its machine with: tfpipe serve --root DIR. ")
    assert (workers["status"], reads["status"]) == ("failure", "skipped")


def test_a_dataset_without_train_is_checked_and_files_are_not(running: Server, tmp_path: Path, tfpipe: Tfpipe) -> None:
    address = running.json["workers"][0]["address"]
    data = write_dataset(tmp_path / "made", {"x": [payload(0)], "y": [payload(1)]})
    made = f"1 worker made the first and the last record of 'x' of {data} as this machine does."
    assert tfpipe("serve-check", address, "--dataset", data, "--json").ok.json["checks"][1]["found"] == made
    sentence = f"Error: `tfpipe serve-check` needs a dataset, got {data}/x-*. Make one with `tfpipe index`.\n"
    assert tfpipe("serve-check", address, "--dataset", f"{data}/x-*") == (2, "", sentence)


@pytest.mark.parametrize(("variable", "value"), [("TERM", "dumb"), ("NO_COLOR", "1")])
def test_a_terminal_that_wants_no_color(tfpipe: Tfpipe, monkeypatch, variable: str, value: str) -> None:
    monkeypatch.setattr("click._compat.isatty", lambda stream: True)
    monkeypatch.setenv(variable, value)
    assert "\x1b[" not in tfpipe("serve-check", "127.0.0.1:9").out


class StartedService:
    """A service that is ready at once, and ends at once."""

    tokens: ClassVar[list[str]] = []

    def __init__(self, config: ServiceConfig, token: str) -> None:
        self.tokens.append(token)
        self.addresses = tuple(f"{config.host}:{config.port + i}" for i in range(config.workers))

    def __enter__(self) -> "StartedService":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run_until(self, is_stopped: Callable[[], bool]) -> None:
        assert not is_stopped()


@pytest.fixture
def started(monkeypatch) -> Iterator[type[StartedService]]:
    """Starts no process, and puts back the handlers of signals that the command replaces."""
    monkeypatch.setattr(module, "Service", StartedService)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield StartedService
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("started")
def test_what_people_read(tfpipe: Tfpipe) -> None:
    done = tfpipe("serve", "--root", "/data", "--workers", 2)
    assert (done.code, done.err) == (0, "")
    assert done.lines == [
        "2 workers: 127.0.0.1:5050, 127.0.0.1:5051",
        'Trainers      PipelineConfig(service=ServiceOptions(workers=["127.0.0.1:5050", "127.0.0.1:5051"]), ...)',
        '  or in TOML  service.workers = ["127.0.0.1:5050", "127.0.0.1:5051"]',
        "Only this machine reaches 127.0.0.1; others need --host 0.0.0.0.",
    ]


def test_a_token_is_made_and_printed_where_others_reach_the_workers(started, tfpipe: Tfpipe, monkeypatch) -> None:
    done = tfpipe("serve", "--root", "/data", "--host", "10.0.0.6")
    token = started.tokens[-1]
    assert len(token) == 32
    assert done.lines[3:] == [f"Token         TFPIPE_SERVICE_TOKEN={token}  (for Python, in a file: token_file=)"]
    monkeypatch.setenv("TFPIPE_SERVICE_TOKEN", "ours")
    done = tfpipe("serve", "--root", "/data", "--host", "10.0.0.6")
    assert started.tokens[-1] == "ours"
    assert "ours" not in done.out


@pytest.mark.parametrize("words", ["serve --root /", "serve-check 127.0.0.1:9"])
def test_a_token_that_no_client_can_send(words: str, tfpipe: Tfpipe, monkeypatch) -> None:
    monkeypatch.setenv("TFPIPE_SERVICE_TOKEN", "p\xe4\xdf")
    monkeypatch.setattr("tfpipe.service.config.token", "")  # the command sets it, and later tests must not get it
    sentence = "TFPIPE_SERVICE_TOKEN must hold a token of printable ASCII in one line, no BOM."
    assert tfpipe(*words.split()) == (2, "", f"Error: {sentence}\n")


def test_workers_ask_for_the_token_of_the_environment(small_dataset: Path, tfpipe: Tfpipe, monkeypatch) -> None:
    monkeypatch.setenv("TFPIPE_SERVICE_TOKEN", "ours")
    with serve() as server:
        address = server.json["workers"][0]["address"]
        assert tfpipe("serve-check", address, "--dataset", small_dataset).code == 0
        monkeypatch.setenv("TFPIPE_SERVICE_TOKEN", "others")
        done = tfpipe("serve-check", address, "--json")
    found = f"0 of 1 worker answer; missing: {address} (the token is missing or wrong)."
    assert (done.code, done.json["checks"][0]["found"]) == (1, found)
    advice = "Put the token that it prints into the --token-file, or TFPIPE_SERVICE_TOKEN for a command."
    assert done.json["checks"][0]["advice"] == advice


def test_others_reach_no_workers_without_a_token() -> None:
    sentence = "Workers on `host` 0.0.0.0, which others reach, need a token, got none."
    assert refusal(ConfigError, module.Service, ServiceConfig(root=("/",), host="0.0.0.0")) == sentence


def test_a_worker_loads_no_tensorflow(running: Server, small_dataset: Path) -> None:
    address = running.json["workers"][0]["address"]
    config = PipelineConfig(batch_size=4, image_size=8, service=ServiceOptions(workers=(address,)))
    NumpyBatches(small_dataset, "train", config).read(0)
    if sys.platform == "linux":
        assert "tensorflow" not in Path(f"/proc/{running.pids[0]}/maps").read_text()
