"""Which activity a stack shows, and at which line of the user's code."""

import sysconfig

import pytest

from tfpipe.profiler.loader import windows as module
from tfpipe.profiler.loader.windows import Doing, Frame, classify, is_clock

STDLIB, SITE = sysconfig.get_path("stdlib"), "/venv/lib/python3/site-packages"
USER = Frame("/home/me/train.py", "Photos.load", 31, "image = image.convert('RGB')")
FETCH = Frame(f"{SITE}/torch/utils/data/_utils/fetch.py", "_MapDatasetFetcher.fetch", 54, "data = [self.dataset[idx]]")
WORKER = Frame(f"{SITE}/torch/utils/data/_utils/worker.py", "_worker_loop", 320, "data = fetcher.fetch(index)")
OURS = Frame(module.__file__, "ProbedTarget.__call__", 9, "return self._target()")
PARENT = Frame("/home/me/train.py", "<module>", 99, "main()")

CLOCK = Frame(module.__file__.replace("windows", "probe"), "Probe._note_collection", 8, "now = time.perf_counter()")
TAKES = Frame(module.__file__.replace("windows", "measure"), "drive", 7, "batch, is_new = batches.fetch()")

STACKS = {
    "garbage is collected while the user computes": ([CLOCK, USER, FETCH, WORKER], "functions", True),
    "garbage is collected while a batch is unpacked": (
        [CLOCK, Frame(f"{STDLIB}/multiprocessing/queues.py", "get", 1, "return _ForkingPickler.loads(res)"), TAKES],
        "handing over",
        False,
    ),
    "a batch is freed": ([TAKES, PARENT], "handing over", False),
    "a process begins": ([OURS, PARENT], "other", False),
    "pillow decodes": (
        [Frame(f"{SITE}/PIL/ImageFile.py", "ImageFile.load", 1, "n, err = decoder.decode(b)"), USER],
        "decoding",
        True,
    ),
    "pillow reads": (
        [Frame(f"{SITE}/PIL/ImageFile.py", "ImageFile.load", 2, "s = read(self.decodermaxblock)"), USER],
        "reading",
        True,
    ),
    "pillow resizes": (
        [Frame(f"{SITE}/PIL/Image.py", "Image.resize", 1, "return self._new(self.im.resize(size))"), USER],
        "functions",
        True,
    ),
    "a call of OpenCV": ([USER._replace(text="image = cv2.imdecode(data, 1)"), FETCH], "decoding", True),
    "a file is read": ([USER._replace(text="data = file.read()"), FETCH], "reading", True),
    "the user sleeps": ([USER._replace(text="time.sleep(0.01)"), FETCH], "waiting", True),
    "a lock of the user": ([USER._replace(text="with self.lock:"), FETCH], "waiting", True),
    "the user computes": ([USER, FETCH, WORKER], "functions", True),
    "collates": (
        [Frame(f"{SITE}/torch/utils/data/_utils/collate.py", "collate", 1, "torch.stack(batch)"), FETCH],
        "collating",
        False,
    ),
    "a function inside of a loader's batch": (
        [USER, Frame(f"{SITE}/grain/transformations/batch.py", "__getitem__", 1, "self._parent[i]")],
        "functions",
        True,
    ),
    "packs": (
        [Frame(f"{STDLIB}/multiprocessing/queues.py", "_feed", 1, "obj = _ForkingPickler.dumps(obj)")],
        "handing over",
        False,
    ),
    "waits for an index": (
        [Frame(f"{STDLIB}/multiprocessing/connection.py", "wait", 1, "ready = selector.select(t)"), WORKER],
        "idle",
        False,
    ),
    "serves": ([Frame(f"{STDLIB}/socket.py", "accept", 1, "fd, addr = self._accept()")], "idle", False),
    "between": ([FETCH, WORKER], "other", False),
    "nothing of it": ([], "other", False),
}


@pytest.mark.parametrize("name", STACKS)
def test_the_innermost_frame_that_is_known_decides(name: str) -> None:
    stack, activity, has_place = STACKS[name]
    assert classify(stack) == Doing(activity, "train.py:31 load" if has_place else "")


def test_the_state_of_a_thread() -> None:
    read = [USER._replace(text="data = file.read()"), FETCH]
    pipe = [Frame(f"{STDLIB}/multiprocessing/connection.py", "_recv", 1, "chunk = read(handle, remaining)")]
    place = "train.py:31 load"
    served = [Frame(f"{STDLIB}/socket.py", "recvmsg", 1, "return self.recv(n)"), *pipe]
    assert classify(served, "", "S").activity == "idle"
    assert [classify(read, "", state).activity for state in "RSD"] == ["reading", "storage", "storage"]
    assert classify([USER, FETCH], "", "D") == Doing("storage", place)
    assert [classify(pipe, "", state).activity for state in "RS"] == ["handing over", "idle"]


def test_a_socket_that_carries_a_batch_is_not_read_by_the_user() -> None:
    reads = Frame(f"{STDLIB}/socket.py", "recvmsg", 1, "return self.recv(n)")
    rebuilds = Frame(f"{STDLIB}/multiprocessing/reduction.py", "recv_fds", 1, "msg = sock.recvmsg(1, n)")
    assert classify([reads, rebuilds, TAKES, PARENT]) == Doing("handing over", "")
    assert classify([reads, USER, FETCH]) == Doing("reading", "train.py:31 load")


def test_the_clock_of_a_record() -> None:
    clock = Frame(CLOCK.file, "Probe.read_clock", 3, "words = os.pread(9, 80, 0).split()")
    assert [is_clock(stack) for stack in ([clock, FETCH], [CLOCK, USER], [USER, clock], [])] == [True] + 3 * [False]


def test_frames_of_the_parent_of_a_forked_process_do_not_count() -> None:
    assert classify([FETCH, WORKER, OURS, PARENT]) == Doing("other", "")


def test_the_users_own_collating() -> None:
    stack = [USER, Frame("/home/me/train.py", "make.<locals>.stack_all", 50, "return [pad(x) for x in batch]"), FETCH]
    assert classify(stack, collate="stack_all") == Doing("collating", "train.py:31 load")
    assert classify(stack).activity == "functions"
