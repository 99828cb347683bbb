"""Real `tfpipe` commands as processes: started, awaited, killed, and searched for what they leave behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[2]

POOL_DIED = (
    "A worker process died: it was killed, or memory ran out. Finished shards are kept; run the same command again to "
    "go on, with fewer --workers if memory was short."
)
T = TypeVar("T")
Ran = subprocess.CompletedProcess[str]


def start_command(*args: object, command: str = "shard", **options: Any) -> subprocess.Popen[str]:
    """Starts `python -m tfpipe COMMAND ARGS` in a session of its own, so that all of its processes can be found."""
    return subprocess.Popen(
        [sys.executable, "-m", "tfpipe", command, *map(str, args)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )


def run_python(*words: object, cwd: Path = ROOT, seconds: float = 240, **environment: str) -> Ran:
    """Runs this Python with further variables in the environment, and waits for its end."""
    command, variables = [sys.executable, *map(str, words)], {**os.environ, **environment}
    return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=seconds, check=False)


def finish_command(process: subprocess.Popen[str], seconds: float = 60) -> tuple[int, str, str]:
    """Waits for what `start_command` started; returns its exit code, standard output and standard error."""
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out, err


def list_processes(session: int) -> list[int]:
    """Returns the ids of a session's processes, without those that have ended and were not waited for."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] not in "ZX":
                pids.append(int(entry.name))
    return pids


def read_command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def wait_for(condition: Callable[[], T], seconds: float = 20.0) -> T:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"nothing within {seconds} s")


def check_no_orphans(process: subprocess.Popen[str]) -> None:
    """Sees that all processes of a killed run end by themselves; else they would write beside the next run."""
    try:
        wait_for(lambda: not list_processes(process.pid), 5)
    except AssertionError:
        orphans = {pid: read_command_line(pid) for pid in list_processes(process.pid)}
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
        raise AssertionError(f"still there: {orphans}") from None
