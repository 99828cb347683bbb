"""The line that says what is going on: only for people who watch."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CODE = """
import time
from tfpipe.cli.shared.status import status_line
with status_line("Starting", {seconds}) as status:
    status.phase("Best so far 1,116 images/s; trying cycle_length = 16, num_parallel_calls = auto")
    time.sleep(0.3)
"""


def on_a_terminal(code: str) -> str:
    """What a terminal of 60 columns gets on standard error."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "COLUMNS": "60", "TERM": "xterm"}
    done = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=env, stderr=theirs)
    os.close(theirs)
    text = b""
    try:
        while part := os.read(ours, 4096):
            text += part
    except OSError:  # as Linux says that nobody writes any more
        pass
    os.close(ours)
    assert done.wait(20) == 0
    return text.decode()


@pytest.mark.parametrize(("seconds", "clock"), [("12.0", " 12 s left"), ("None", "0:00:0")])
def test_a_long_text_leaves_the_clock_alone(seconds: str, clock: str) -> None:
    text = on_a_terminal(CODE.format(seconds=seconds))
    assert clock in text
    assert "Best so far 1,116 images/s; trying" in text
    assert "num_parallel_calls = auto" not in text


def test_nothing_in_a_log() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(seconds="12.0")], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")
