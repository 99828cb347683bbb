"""`tfpipe serve` as a user runs it: real processes."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tfpipe.data_service import ServiceConfig, Worker

from tests.conftest import Tfpipe
from tfpipe import data_service

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "tfpipe", "serve"]


class Server:
    """A running `tfpipe serve --json`."""

    def __init__(self, *args: str) -> None:
        command = [*COMMAND, "--host", "127.0.0.1", "--json", *args]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
        )
        assert self.process.stdout is not None
        self.json: dict[str, Any] = json.loads(self.process.stdout.readline())

    @property
    def pids(self) -> list[int]:
        return [worker["pid"] for worker in self.json["workers"]]

    def end(self, signum: int) -> int:
        os.killpg(self.process.pid, signum) if signum == signal.SIGINT else self.process.send_signal(signum)
        return self.process.wait(10)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def all_gone(pids: list[int], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not any(map(is_alive, pids)):
            return True
        time.sleep(0.05)
    return False


@pytest.fixture
def start() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def run(*args: str) -> Server:
        servers.append(Server(*args))
        return servers[-1]

    yield run
    for server in servers:
        server.process.kill()
        server.process.wait()


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *args], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


# SIGINT goes to the whole group, as a terminal sends it.
@pytest.mark.parametrize(
    ("signum", "code"),
    [
        (signal.SIGTERM, 0),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in ((signal.SIGKILL, -9), (signal.SIGINT, 0))),
    ],
)
def test_a_signal_ends_all_processes(start, tmp_path: Path, signum: int, code: int) -> None:
    server = start(
        "--port", "0", "--workers", "2" if signum == signal.SIGINT else "1", "--work-dir", str(tmp_path / "j")
    )
    assert any((tmp_path / "j").rglob("*"))
    assert server.json["dispatcher"].startswith("grpc://127.0.0.1:")
    assert all(map(is_alive, server.pids))
    assert server.end(signum) == code
    assert all_gone(server.pids, 0.1 if code == 0 else 5)


def test_a_signal_stops_a_server_wherever_it_arrives() -> None:
    """Also while Python's own code of `Event.wait` holds the event's lock."""
    code = """
import signal, sys, threading
from tfpipe.cli.serve import _stop_on_signals

def send_signal_at_each_line(frame, event, argument):
    if frame.f_code.co_filename == threading.__file__:
        signal.raise_signal(signal.SIGTERM)
        return send_signal_at_each_line

stop = _stop_on_signals()
sys.settrace(send_signal_at_each_line)
stop.wait(0.01)
sys.settrace(None)
assert stop.wait(30)
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=True)


def test_a_port_in_use_is_one_sentence() -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as TensorFlow's servers do
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = run("--port", str(port))
    sentence = f"Error: Port {port} must be free, and is not (address already in use). Choose another --port.\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", sentence)


def test_a_dead_dispatcher_is_one_sentence() -> None:
    done = run("--dispatcher", "grpc://127.0.0.1:9")
    assert done.returncode == 2
    assert done.stderr == (
        "Error: --dispatcher must name a running dispatcher, got grpc://127.0.0.1:9, which does not answer "
        "(connection refused). Start one with: tfpipe serve\n"
    )


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (
            ["--dispatcher", "grpc://a:1", "--dispatcher-only"],
            "--dispatcher runs only workers, and --dispatcher-only runs none. Leave one of them out.",
        ),
        (
            ["--dispatcher", "grpc://a:1", "--port", "1"],
            "--port is the port of a new dispatcher, and --dispatcher names a running one. Leave one of them out.",
        ),
        (["--dispatcher", "a:1"], "--dispatcher must be like grpc://host:5050, got 'a:1'."),
        (
            ["--dispatcher-only", "--workers", "2"],
            "--dispatcher-only excludes --workers, got 2. Leave one of them out.",
        ),
        (
            ["--check", "a:1", "--workers", "2"],
            "--check excludes --workers. Leave one of them out.",
        ),
        (
            ["--dataset", "d"],
            "--dataset names what --check reads. Give --check HOST:PORT too, or leave it out.",
        ),
        (["--image", "a"], "A service on this machine excludes --image. Leave one of them out."),
        (["--kubernetes"], "--image must be the name of a container image, got ''."),
        (["--kubernetes", "--image", "a", "--workers", "0"], "--workers must be at least 1, got 0."),
        (["--kubernetes", "--image", "a", "--host", "b"], "--kubernetes excludes --host. Leave one of them out."),
        (
            ["--kubernetes", "--image", "a", "--worker-memory", "much"],
            "--worker-memory must be like 8, 500m or 16Gi, got 'much'.",
        ),
        (["--workers", "-1"], "--workers must be at least 0, got -1."),
        (["--port", "65536"], "--port must be from 0 to 65535, got 65536."),
        (
            ["--worker-port", "65535", "--workers", "2"],
            "--worker-port must be from 0 to 65534, got 65535.",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_option_ends_with_2(
    tfpipe: Tfpipe, monkeypatch: pytest.MonkeyPatch, args: list[str], sentence: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # the command changes it, and the log level
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    assert tfpipe("serve", *args) == (2, "", f"Error: {sentence}\n")


@pytest.fixture
def signal_handlers() -> Iterator[None]:
    """Puts back the handlers that the command replaces."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class StartedService:
    """A service that is ready at once, and ends at once."""

    dispatcher = "grpc://127.0.0.1:5051"

    def __init__(self, config: ServiceConfig) -> None:
        self.config = config
        self.workers = [Worker(5052 + i, f"127.0.0.1:{5052 + i}") for i in range(config.workers)]
        self.known_workers = tuple(worker.address for worker in self.workers)

    def __enter__(self) -> "StartedService":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run_until(self, stop: threading.Event) -> None:
        assert not stop.is_set()


@pytest.mark.parametrize(
    ("args", "workers", "others"),
    [
        (["--dispatcher-only"], "no worker here", "tfpipe serve --dispatcher grpc://127.0.0.1:5051"),
        (
            ["--workers", 2],
            "2 workers: 127.0.0.1:5052, 127.0.0.1:5053",
            "name their workers here with --worker-address HOST:PORT",
        ),
    ],
)
@pytest.mark.usefixtures("signal_handlers")
def test_what_people_read(
    tfpipe: Tfpipe, monkeypatch: pytest.MonkeyPatch, args: list[object], workers: str, others: str
) -> None:
    monkeypatch.setattr(data_service, "Service", StartedService)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # the command changes it, and the log level
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    done = tfpipe("serve", "--host", "127.0.0.1", "--port", 0, *args)
    assert (done.code, done.err) == (0, "")
    assert done.lines == [
        f"Dispatcher grpc://127.0.0.1:5051, {workers}",
        'Trainers        PipelineConfig(service="grpc://127.0.0.1:5051", ...)',
        '  or in TOML    service = "grpc://127.0.0.1:5051"',
        f"Other machines  {others}",
        "Only this machine reaches 127.0.0.1; for others name it with --host.",
    ]


def test_help_and_a_missing_tensorflow_need_no_tensorflow() -> None:
    code = """
import importlib.util, sys
sys.argv = ["tfpipe", "serve", *sys.argv[1:]]
sys.modules["tensorflow"] = None
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "tensorflow" else find(name, *more)
from tfpipe.cli.main import main
main()
"""
    for args, exit_code, text in (
        (["--help"], 0, "Run a tf.data service"),
        ([], 1, "Error: `tfpipe serve` needs TensorFlow. Install it with: pip install 'tfpipe[tensorflow]'.\n"),
    ):
        command = [sys.executable, "-c", code, *args]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == exit_code
        assert text in done.stdout + done.stderr
