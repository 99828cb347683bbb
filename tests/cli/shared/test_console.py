"""Text that is safe to print."""

import os
import pty
import subprocess
import sys
from pathlib import Path

from tests.conftest import Tfpipe
from tfpipe.cli.shared.console import clean_line, clean_text


def test_file_names_cannot_control_the_terminal() -> None:
    assert clean_line("a\x1b[31mb\nc\tü") == "a\ufffd[31mb\ufffdc\ufffdü"
    assert clean_text("a\x9b31m\n- b\r\u202e") == "a\ufffd31m\n- b\ufffd\ufffd"


def test_errors_cannot_control_the_terminal(tfpipe: Tfpipe, tmp_path: Path) -> None:
    odd = f"{tmp_path}/a\x1b]0;owned\x07"
    shown = f"{tmp_path}/a\ufffd]0;owned\ufffd"
    done = tfpipe("shard", odd, f"{tmp_path}/out")
    assert done.code == 1
    assert done.err.endswith(f" archive; {shown} does not exist.\n")
    done = tfpipe("inspect", "--\x1b[31m")
    assert done.code == 2
    assert "\x1b" not in done.err


ROOT = Path(__file__).resolve().parents[3]
CODE = """
import time
from tfpipe.cli.shared.console import status_line
with status_line("Starting") as status:
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


def test_a_long_text_leaves_the_clock_alone() -> None:
    text = on_a_terminal(CODE)
    assert "0:00:0" in text
    assert "Best so far 1,116 images/s; trying" in text
    assert "num_parallel_calls = auto" not in text


def test_nothing_in_a_log() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
