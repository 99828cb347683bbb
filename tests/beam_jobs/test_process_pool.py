"""The process pool: results, errors, and an end within seconds when a worker or the parent dies."""

import math
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from beam_jobs import job_stores
from beam_jobs.process_pool import map_in_order, map_unordered
from tests.beam_jobs.commands import POOL_DIED, ROOT, run_python
from tests.refusals import refusal
from tfpipe.errors import DataError
from tfpipe.system import process_pool


def test_results_come_in_any_order_or_in_that_of_the_items() -> None:
    assert sorted(map_unordered(abs, range(-30, 0), 2)) == list(range(1, 31))
    assert list(map_unordered(abs, [], 2)) == []
    assert list(map_in_order(abs, range(-30, 0), 2)) == list(range(30, 0, -1))


def test_items_are_taken_as_workers_are_free() -> None:
    """Not all at once: stopping early must leave little behind."""
    taken_items = []

    def items() -> Any:
        for i in range(1000):
            taken_items.append(i)
            yield i

    results = map_unordered(abs, items(), 2)
    next(results)
    assert len(taken_items) < 20
    results.close()
    assert process_pool.running == set()


def test_an_error_of_the_function_passes_unchanged() -> None:
    with pytest.raises(ValueError, match=r"math domain error|expected a nonnegative input"):
        list(map_unordered(math.sqrt, [4.0, -1.0], 1))
    assert process_pool.running == set()


def test_workers_get_shared_arguments(monkeypatch) -> None:
    paths = map_unordered(os.path.join, ["x", "y"], 1, shared=("a", "b"))
    assert sorted(paths) == [os.path.join("a", "b", "x"), os.path.join("a", "b", "y")]
    assert list(map_unordered(os.path.join, ["x"], 0, shared=("a",))) == [os.path.join("a", "x")]
    monkeypatch.setattr(job_stores, "_beam_args", ())
    job_stores.configure(["--s3_region_name=here"])
    (options,) = map_unordered(_read_options, [None], 1)
    assert options == ("--s3_region_name=here",)


def _read_options(_: None) -> tuple[str, ...]:
    return job_stores.get_options()


@pytest.mark.parametrize("count", [1, 2])
def test_a_killed_worker_ends_the_work(count: int) -> None:
    started = time.monotonic()
    nothing = [signal.SIGCONT] * 5
    results = map_unordered(signal.raise_signal, [*nothing, signal.SIGKILL, *nothing], count)
    assert refusal(DataError, list, results) == POOL_DIED
    assert time.monotonic() - started < 10
    assert process_pool.running == set()


INTERRUPTED = """
import signal, sys, time
from multiprocessing.process import BaseProcess
from beam_jobs.process_pool import map_unordered

start = BaseProcess.start

def start_and_interrupt(self):
    start(self)
    signal.raise_signal(signal.SIGINT)

if __name__ == "__main__":
    BaseProcess.start = start_and_interrupt
    try:
        list(map_unordered(time.sleep, [30] * 4, 2))
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_an_interrupt_leaves_no_process_that_has_just_been_started(tmp_path: Path) -> None:
    """It would not find its parent's semaphores, and print a traceback."""
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED)
    run = run_python(script, PYTHONPATH=str(ROOT))
    assert (run.stdout, run.stderr, run.returncode) == ("interrupted\n", "", 0)
