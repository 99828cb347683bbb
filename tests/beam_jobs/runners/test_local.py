"""Which runner, how many workers, and what Beam's options must be."""

from __future__ import annotations

import threading
import time

import pytest
from apache_beam.options.pipeline_options import DirectOptions

from beam_jobs.runners.local import fail_on_worker_death, is_local, local_runner, parse_options, pool_workers
from tfpipe.errors import ConfigError, DataError


@pytest.mark.parametrize(
    ("args", "local"),
    [
        ((), True),
        (("--runner=DirectRunner",), True),
        (("--runner=FnApiRunner",), True),
        (("--runner=DataflowRunner",), False),
        (("--runner=FlinkRunner",), False),
    ],
)
def test_is_local(args: tuple[str, ...], local: bool) -> None:
    assert is_local(parse_options(args)) is local


def test_an_option_that_beam_does_not_know() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_options(["--direct_num_worker_typo=2"])
    assert str(caught.value) == "Options after -- must be known to Beam, got --direct_num_worker_typo."


def test_the_pool_works_where_beam_does_not() -> None:
    assert pool_workers(parse_options([]), 5) == 5
    assert pool_workers(parse_options(["--direct_running_mode=multi_processing"]), 5) == 0
    assert pool_workers(parse_options(["--direct_running_mode=multi_threading"]), 5) == 0


@pytest.mark.parametrize(
    ("args", "workers"),
    [
        (["--direct_running_mode=multi_threading"], 3),
        (["--direct_running_mode=multi_threading", "--direct_num_workers=2"], 2),
        ([], 1),
    ],
)
def test_workers_are_handed_to_beam(args: list[str], workers: int) -> None:
    options = parse_options(args)
    local_runner(options, 3)
    assert options.view_as(DirectOptions).direct_num_workers == workers


def test_the_end_of_a_worker_ends_the_wait() -> None:
    def run_worker() -> None:
        raise RuntimeError("Worker subprocess exited with return code -9")

    @fail_on_worker_death()
    def wait() -> None:
        threading.Thread(target=run_worker, name="run_worker").start()
        time.sleep(30)

    started = time.monotonic()
    with pytest.raises(DataError, match=r"^A Beam worker process died: "):
        wait()
    assert time.monotonic() - started < 5


def test_other_errors_and_other_threads_pass() -> None:
    @fail_on_worker_death()
    def fail() -> None:
        thread = threading.Thread(target=lambda: [][0], name="other")
        thread.start()
        thread.join()
        raise ZeroDivisionError

    seen: list[threading.ExceptHookArgs] = []
    before = threading.excepthook
    threading.excepthook = seen.append
    try:
        with pytest.raises(ZeroDivisionError):
            fail()
        assert [args.exc_type for args in seen] == [IndexError]
        assert threading.excepthook == seen.append
    finally:
        threading.excepthook = before
