"""Processes that end with the one that started them, and Ctrl-C that they do not see."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.beam_jobs.commands import wait_for
from tests.conftest import ROOT
from tfpipe.system.child_process import defer_interrupts

OF_MULTIPROCESSING = """
import multiprocessing, sys, time
from tfpipe.system.child_process import die_with_parent

def child(pipe):
    die_with_parent()
    pipe.send(multiprocessing.current_process().pid)
    time.sleep(60)

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    here, there = context.Pipe()
    context.Process(target=child, args=(there,), daemon=True).start()
    print(here.recv(), flush=True)
    time.sleep(60)
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_child_ends_with_its_killed_parent(tmp_path: Path, method: str) -> None:
    script, environment = tmp_path / "parent.py", {**os.environ, "PYTHONPATH": str(ROOT)}
    script.write_text(OF_MULTIPROCESSING)
    command = [sys.executable, str(script), method]
    parent = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert is_running(child)
    with parent:
        parent.kill()
    wait_for(lambda: not is_running(child))


def interrupt(strike: Callable[[], object], steps: list[str]) -> None:
    with defer_interrupts():
        strike()
        steps.append("block")
    steps.append("after")


def test_interrupts_come_after_the_block() -> None:
    steps: list[str] = []
    with pytest.raises(KeyboardInterrupt):  # of this very thread: nobody can say when another one would get it
        interrupt(lambda: signal.raise_signal(signal.SIGINT), steps)
    assert steps == ["block"]


def test_interrupts_that_another_thread_receives_come_after_the_block_too() -> None:
    steps: list[str] = []
    stop = threading.Event()
    other = threading.Thread(target=stop.wait, daemon=True)
    other.start()
    arrived, announce = socket.socketpair()
    announce.setblocking(False)

    def strike() -> None:
        signal.pthread_kill(other.ident or 0, signal.SIGINT)
        assert arrived.recv(1) == bytes([signal.SIGINT])  # Python writes it when the other thread has the signal

    before = signal.set_wakeup_fd(announce.fileno())
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupt(strike, steps)
    finally:
        signal.set_wakeup_fd(before)
        stop.set()
        arrived.close()
        announce.close()
    assert steps == ["block"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_process_that_starts_in_the_block_gets_no_interrupt() -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGINT); print('done')"
    with defer_interrupts():
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.communicate(timeout=60)[0] == "done\n"
