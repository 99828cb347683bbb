"""Forked processes find the locks free that threads of their parent held, and read with them."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import tfpipe
from tfpipe.engine import batch, clocks
from tfpipe.readers.numpy import NumpyBatches
from tfpipe.storage import stores
from tfpipe.system.fork_lock import make_fork_lock


def run_in_fork(work: Callable[[], object], seconds: int = 15) -> int:
    """Runs a function in a forked process, and returns its exit code: minus SIGALRM's number if it takes too long."""
    child = os.fork()
    if not child:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(seconds)
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_lock_that_is_held_is_free_after_a_fork() -> None:
    lock = make_fork_lock()
    with lock:
        assert run_in_fork(lambda: lock.acquire()) == 0
        other = threading.Lock()
        with other:
            assert run_in_fork(lambda: other.acquire(), 1) == -signal.SIGALRM  # Python's own is not
    assert run_in_fork(lambda: lock.acquire()) == 0
    assert lock.acquire(blocking=False)


def test_a_forked_process_reads_whatever_its_parents_threads_did(small_dataset: Path) -> None:
    batches = NumpyBatches(tfpipe.load_manifest(str(small_dataset)), "train", batch_size=4, image_size=8)
    with clocks._LOCK, batch._COUNTING, stores._lock, batches._maker.reader._lock:
        assert run_in_fork(lambda: batches.read(1)) == 0


@pytest.mark.slow
def test_forks_while_threads_read(small_dataset: Path) -> None:
    options = {"batch_size": 3, "image_size": 8}
    train = NumpyBatches(str(small_dataset), "train", **options)
    validation = NumpyBatches(str(small_dataset), "validation", training=False, **options)
    ends = threading.Event()

    def keep_reading() -> None:
        while not ends.is_set():
            for _ in train:
                pass

    thread = threading.Thread(target=keep_reading)
    thread.start()
    try:
        assert {run_in_fork(lambda: validation.read(0)) for _ in range(2000)} == {0}
    finally:
        ends.set()
        thread.join()
