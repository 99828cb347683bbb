"""The activity that a stack shows, and what a process did in a window of time."""

import json
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from tfpipe.profiler.loader import probe
from tfpipe.profiler.loader import windows as module
from tfpipe.profiler.loader.windows import Frame, classify, is_clock, make_use, read_uses

STDLIB, SITE = sysconfig.get_path("stdlib"), "/venv/lib/python3/site-packages"
USER = Frame("/home/me/train.py", "Photos.load", 31, "image = image.convert('RGB')")
FETCH = Frame(f"{SITE}/torch/utils/data/_utils/fetch.py", "_MapDatasetFetcher.fetch", 54, "data = [self.dataset[idx]]")
WORKER = Frame(f"{SITE}/torch/utils/data/_utils/worker.py", "_worker_loop", 320, "data = fetcher.fetch(index)")
OURS = Frame(module.__file__, "run_probed", 9, "return target()")
PARENT = Frame("/home/me/train.py", "<module>", 99, "main()")

CLOCK = Frame(module.__file__.replace("windows", "probe"), "Probe._note_collection", 8, "now = time.perf_counter()")
TAKES = Frame(module.__file__.replace("windows", "measure"), "drive", 7, "batch, is_new = batches.fetch()")

RECEIVES = Frame(f"{STDLIB}/socket.py", "recvmsg", 1, "return self.recv(n)")
LOAD, PILLOW, PIPES = "ImageFile.load", f"{SITE}/PIL", f"{STDLIB}/multiprocessing"

STACKS = {
    "garbage is collected while the user computes": ([CLOCK, USER, FETCH, WORKER], "functions", True),
    "garbage is collected while a batch is unpacked": (
        [CLOCK, Frame(f"{PIPES}/queues.py", "get", 1, "return _ForkingPickler.loads(res)"), TAKES],
        "handing over", False,
    ),
    "a batch is freed": ([TAKES, PARENT], "handing over", False),
    "a process begins": ([OURS, PARENT], "other", False),
    "pillow decodes": (
        [Frame(f"{PILLOW}/ImageFile.py", LOAD, 1, "n, err = decoder.decode(b)"), USER], "decoding", True,
    ),
    "pillow reads": (
        [Frame(f"{PILLOW}/ImageFile.py", LOAD, 2, "s = read(self.decodermaxblock)"), USER], "reading", True,
    ),
    "pillow resizes": (
        [Frame(f"{PILLOW}/Image.py", "Image.resize", 1, "return self._new(self.im.resize(size))"), USER],
        "functions", True,
    ),
    "a call of OpenCV": ([USER._replace(text="image = cv2.imdecode(data, 1)"), FETCH], "decoding", True),
    "a file is read": ([USER._replace(text="data = file.read()"), FETCH], "reading", True),
    "the user reads a socket": ([RECEIVES, USER, FETCH], "reading", True),
    "the user sleeps": ([USER._replace(text="time.sleep(0.01)"), FETCH], "waiting", True),
    "a lock of the user": ([USER._replace(text="with self.lock:"), FETCH], "waiting", True),
    "the user computes": ([USER, FETCH, WORKER], "functions", True),
    "collates": (
        [Frame(f"{SITE}/torch/utils/data/_utils/collate.py", "collate", 1, "torch.stack(batch)"), FETCH],
        "collating", False,
    ),
    "a function inside of a loader's batch": (
        [USER, Frame(f"{SITE}/grain/transformations/batch.py", "__getitem__", 1, "self._parent[i]")], "functions", True,
    ),
    "packs": ([Frame(f"{PIPES}/queues.py", "_feed", 1, "obj = _ForkingPickler.dumps(obj)")], "handing over", False),
    "a socket carries a batch": (
        [RECEIVES, Frame(f"{PIPES}/reduction.py", "recv_fds", 1, "msg = sock.recvmsg(1, n)"), TAKES, PARENT],
        "handing over", False,
    ),
    "waits for an index": (
        [Frame(f"{PIPES}/connection.py", "wait", 1, "ready = selector.select(t)"), WORKER], "idle", False,
    ),
    "serves": ([Frame(f"{STDLIB}/socket.py", "accept", 1, "fd, addr = self._accept()")], "idle", False),
    "between": ([FETCH, WORKER], "other", False),
    "a forked process, whose parent's frames do not count": ([FETCH, WORKER, OURS, PARENT], "other", False),
    "nothing of it": ([], "other", False),
}  # fmt: skip


@pytest.mark.parametrize("name", STACKS)
def test_the_innermost_frame_that_is_known_decides(name: str) -> None:
    stack, activity, has_place = STACKS[name]
    assert classify(stack) == (activity, "train.py:31 load" if has_place else "")


def test_the_state_of_a_thread_and_what_the_user_collates() -> None:
    read = [USER._replace(text="data = file.read()"), FETCH]
    pipe = [Frame(f"{STDLIB}/multiprocessing/connection.py", "_recv", 1, "chunk = read(handle, remaining)")]
    assert classify([RECEIVES, *pipe], "", "S")[0] == "idle"
    assert [classify(read, "", state)[0] for state in "RSD"] == ["reading", "storage", "storage"]
    assert classify([USER, FETCH], "", "D") == ("storage", "train.py:31 load")
    assert [classify(pipe, "", state)[0] for state in "RS"] == ["handing over", "idle"]
    stack = [USER, Frame("/home/me/train.py", "make.<locals>.stack_all", 50, "return [pad(x) for x in batch]"), FETCH]
    assert classify(stack, collate="stack_all") == ("collating", "train.py:31 load")
    assert classify(stack)[0] == "functions"
    clock = Frame(CLOCK.file, "Probe.read_clock", 3, "words = os.pread(9, 80, 0).split()")
    assert [is_clock(stack) for stack in ([clock, FETCH], [CLOCK, USER], [USER, clock], [])] == [True] + 3 * [False]


def test_libraries_in_another_folder(tmp_path: Path) -> None:
    """As `pip install --target` puts them."""
    for name in ("numpy", "numpy/_core", "numpy-2.4.0.dist-info", "mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    stack = Frame(f"{tmp_path}/numpy/_core/shape_base.py", "stack", 465, "return _nx.concatenate(expanded_arrays)")
    assert classify([stack, WORKER]) == ("other", "")
    assert classify([stack._replace(file=f"{tmp_path}/mine/a.py"), WORKER]) == ("functions", "a.py:465 stack")


LINE, WAIT, READ = (
    ["/home/me/train.py", "load", 7],
    [f"{STDLIB}/queue.py", "get", 1],
    [f"{STDLIB}/zipfile.py", "read", 1],
)
STACKS_OF_LINES = {"0": [LINE], "1": [WAIT], "2": [READ, LINE], "3": [[probe.__file__, "Probe.read_clock", 1]]}
Counts = list[list[Any]]
"""The main thread is 9; of each thread a stack, its state, and how often it was seen."""


def make_line(at: float, cpu: float, counts: Counts | None = None, **more: Any) -> dict[str, Any]:
    """Returns a line of a probe; the first one tells the stacks."""
    line = {"at": at, "cpu": cpu, "threads": {}, "main": 9, "bytes": 0, "collecting": cpu / 4, "counts": counts or []}
    return line | {"stacks": {} if at else STACKS_OF_LINES, "records": [], "files": []} | more


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


BOTH_RUN = {"9": [500_000_000, 100_000_000, 1], "8": [400_000_000, 0, 1]}
ONE_RUNS = {"9": [900_000_000, 0], "8": [100_000_000, 0]}
WINDOWS: dict[str, tuple[float, Counts, dict[str, list[int]], dict[str, float], float]] = {
    "threads that neither run nor wait for a core wait for the lock": (
        1.0, [[9, 0, "R", 100], [8, 0, "R", 100]], BOTH_RUN, {"functions": 0.9, "lock": 1.0, "no core": 0.1}, 0.1,
    ),
    "a thread alone waits for no lock": (1.0, [[9, 0, "R", 100]], BOTH_RUN, {"functions": 0.9, "no core": 0.1}, 0.1),
    # The main thread computes all the time, and the other one, which reads, has the lock for a tenth of it.
    "a thread that only waits for the lock does not work": (
        1.0, [[9, 0, "R", 10], [8, 2, "R", 10]], ONE_RUNS, {"functions": 0.9, "reading": 0.1, "lock": 1.0}, 0.0,
    ),
    # Four threads live for a quarter of the window each, side by side with the main thread, which waits for them.
    "threads that live shortly share the processor time that was not read": (
        0.6, [[9, 1, "S", 100], *([number, 0, "R", 25] for number in range(1, 5))], {"9": [1, 1]},
        {"functions": 0.6, "lock": 0.4}, 0.0,
    ),
    "the clock of a record counts as the rest of its thread": (
        0.8, [[9, 0, "R", 30], [9, 2, "S", 10], [9, 3, "R", 60]], {}, {"functions": 0.75, "storage": 0.25}, 0.05,
    ),
    "a main thread that waits for its threads does nothing itself": (
        0.8, [[9, 1, "S", 100], [8, 0, "R", 80], [8, 1, "S", 20]], {}, {"functions": 0.8, "idle": 0.2}, 0.0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WINDOWS)
def test_what_threads_do_in_a_window(name: str) -> None:
    cpu_s, counts, threads, seconds, pool_s = WINDOWS[name]
    use = make_use(5, [make_line(0.0, 0.0), make_line(1.0, cpu_s, counts, threads=threads)], 0.0, 2.0)
    assert use is not None
    assert use.seconds == pytest.approx(seconds, abs=1e-6)
    assert use.pool_s == pytest.approx(pool_s, abs=1e-6)


def test_a_file_that_was_cut_off(tmp_path: Path) -> None:
    lines = [make_line(0.0, 0.0), make_line(1.0, 1.0, records=[[0.5, "12"], [0.1, "3"]], files=["/a.jpg"], bytes=7)]
    (tmp_path / "77.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"at": 2.0, "cp')
    use = read_uses(tmp_path, 0.0, 9.0)[77]
    assert (use.record_s, use.slowest, use.files, use.bytes) == ((0.5, 0.1), "12", ("/a.jpg",), 7)
