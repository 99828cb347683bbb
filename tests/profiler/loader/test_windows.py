"""From the lines of a probe to what a process did."""

import json
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from tfpipe.profiler.loader import probe
from tfpipe.profiler.loader.windows import make_use, read_uses

USER, WAIT = ["/home/me/train.py", "load", 7], [f"{sysconfig.get_path('stdlib')}/queue.py", "get", 1]
READ = [f"{sysconfig.get_path('stdlib')}/zipfile.py", "read", 1]


def make_line(at: float, cpu: float, counts: list[Any] = [], **more: Any) -> dict[str, Any]:  # noqa: B006
    stacks = {"0": [USER], "1": [WAIT], "2": [READ, USER]} if at == 0 else {}
    line = {
        "at": at,
        "cpu": cpu,
        "threads": {},
        "main": 9,
        "bytes": 0,
        "collecting": cpu / 4,
        "counts": counts,
        "stacks": stacks,
        "records": [],
        "files": [],
    }
    return line | more


def test_shares_of_a_window() -> None:
    lines = [
        make_line(0.0, 0.0),
        make_line(1.0, 0.5, [[9, 0, "R", 50], [9, 1, "S", 30], [9, 2, "S", 20]]),
        make_line(9.0, 8.0, [[9, 0, "R", 99]]),
    ]
    use = make_use(5, lines, 0.0, 2.0)
    assert use is not None
    assert (use.pid, use.wall_s, use.cpu_s, use.collecting_s) == (5, 1.0, 0.5, 0.125)
    assert use.seconds == pytest.approx({"functions": 0.5, "storage": 0.2, "idle": 0.3})
    assert use.functions == (("train.py:7 load", "functions", 0.5), ("train.py:7 load", "storage", 0.2))
    assert make_use(5, lines, 20.0, 30.0) is None


def test_threads_that_neither_run_nor_wait_for_a_core_wait_for_the_lock() -> None:
    counts = [[9, 0, "R", 100], [8, 0, "R", 100]]
    last = make_line(1.0, 1.0, counts, threads={"9": [500_000_000, 100_000_000, 1], "8": [400_000_000, 0, 1]})
    use = make_use(5, [make_line(0.0, 0.0), last], 0.0, 2.0)
    assert use is not None
    assert (use.seconds, use.pool_s) == (
        pytest.approx({"functions": 0.9, "lock": 1.0, "no core": 0.1}),
        pytest.approx(0.1),
    )
    alone = make_use(5, [make_line(0.0, 0.0), {**last, "counts": counts[:1]}], 0.0, 2.0)
    assert alone is not None
    assert alone.sum("lock") == 0.0


def test_a_thread_that_only_waits_for_the_lock_does_not_work() -> None:
    """The main thread computes all the time, and the other one, which reads, has the lock for a tenth of it."""
    last = make_line(
        1.0, 1.0, [[9, 0, "R", 10], [8, 2, "R", 10]], threads={"9": [900_000_000, 0], "8": [100_000_000, 0]}
    )
    use = make_use(5, [make_line(0.0, 0.0), last], 0.0, 2.0)
    assert use is not None
    assert use.seconds == pytest.approx({"functions": 0.9, "reading": 0.1, "lock": 1.0})


def test_threads_that_live_shortly_share_the_processor_time_that_was_not_read() -> None:
    """Four threads live for a quarter of the window each, side by side with the main thread, which waits for them."""
    counts = [[9, 1, "S", 100], *([number, 0, "R", 25] for number in range(1, 5))]
    use = make_use(5, [make_line(0.0, 0.0), make_line(1.0, 0.6, counts, threads={"9": [1, 1]})], 0.0, 2.0)
    assert use is not None
    assert use.seconds == pytest.approx({"functions": 0.6, "lock": 0.4}, abs=1e-6)
    assert use.pool_s == pytest.approx(0.0, abs=1e-6)


def test_the_clock_of_a_record_counts_as_the_rest_of_its_thread() -> None:
    counts = [[9, 0, "R", 30], [9, 2, "S", 10], [9, 3, "R", 60]]
    line = make_line(0.0, 0.0)
    line["stacks"] |= {"3": [[str(Path(probe.__file__)), "Probe.read_clock", 1]]}
    use = make_use(5, [line, make_line(1.0, 0.8, counts)], 0.0, 2.0)
    assert use is not None
    assert use.seconds == pytest.approx({"functions": 0.75, "storage": 0.25})


def test_a_main_thread_that_waits_for_its_threads_does_nothing_itself() -> None:
    counts = [[9, 1, "S", 100], [8, 0, "R", 80], [8, 1, "S", 20]]
    use = make_use(5, [make_line(0.0, 0.0), make_line(1.0, 0.8, counts)], 0.0, 2.0)
    assert use is not None
    assert use.sum("idle") == pytest.approx(0.2)


def test_a_file_that_was_cut_off(tmp_path: Path) -> None:
    lines = [make_line(0.0, 0.0), make_line(1.0, 1.0, records=[[0.5, "12"], [0.1, "3"]], files=["/a.jpg"], bytes=7)]
    (tmp_path / "77.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"at": 2.0, "cp')
    use = read_uses(tmp_path, 0.0, 9.0)[77]
    assert (use.record_s, use.slowest, use.files, use.bytes) == ((0.5, 0.1), "12", ("/a.jpg",), 7)
