"""Real processes, which take numbers instead of batches, so that none has to load TensorFlow."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tfpipe.dataset.load import load_manifest
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import DataError
from tfpipe.profiler.measure.simulated_accelerator import Accelerator
from tfpipe.tuning import pipeline_process
from tfpipe.tuning.pipeline_process import PipelineProcess, TimeIsUpError, build_endless_dataset

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")

ROOT = Path(__file__).resolve().parents[2]
BATCHES = partial(itertools.repeat, 0)
SLOW = partial(map, time.sleep, [0, 0, 3600])
STEP = Accelerator(0.01, 100)
SOON_S = 0.05


def state(pid: int) -> tuple[str, int]:
    """R, S, T (halted), Z (ended) ..., or nothing where the process is gone; and its processor time."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "", 0
    return after_name[0], int(after_name[11]) + int(after_name[12])


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not true():
        assert time.monotonic() < until
        time.sleep(0.02)


def get_pid(process: PipelineProcess) -> int:
    pid = process._process.pid
    assert pid is not None
    return pid


@pytest.fixture
def busy() -> Iterator[PipelineProcess]:
    """One that never waits: as much processor time as it can have."""
    with PipelineProcess(BATCHES, Accelerator(1e-9, 100), max_warm_up_s=SOON_S) as process:
        yield process


def test_a_halted_pipeline_uses_no_processor_time(busy: PipelineProcess) -> None:
    pid = get_pid(busy)
    wait_until(lambda: state(pid)[0] == "T")
    before = state(pid)
    time.sleep(0.2)
    assert state(pid) == before
    turn = busy.turn(0.2)
    assert turn.wall_s >= 0.2
    assert turn.cpu_s > 0
    assert turn.peak_memory_bytes > 2**20
    wait_until(lambda: state(pid)[0] == "T")
    assert state(pid)[1] > before[1]


def test_turns_and_rates_are_those_of_the_accelerator() -> None:
    with PipelineProcess(BATCHES, STEP, 5, max_warm_up_s=0.2) as process:
        # Never faster; slower only where the machine does something else.
        assert 100 < process.start.images_per_second <= 10_000 * 1.001
        assert 0 <= process.start.first_batch_s < process.start_s
        assert process.start_s > 0.2 + 5 * STEP.step_s
        turn = process.turn(0.1)
        assert turn.images % 100 == 0
        assert 100 < turn.images_per_second <= 10_000 * 1.001
        assert process.is_alive
    assert not process.is_alive


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (list, "A pipeline that is compared must not end. Does the dataset hold a whole batch?"),
        (partial(int, "x"), "The pipeline failed: invalid literal for int() with base 10: 'x'."),
        (
            partial(os._exit, 3),
            "A process that was to run a pipeline ended with exit code 3 and did not say why. A script that starts one "
            "must do so below `if __name__ == '__main__':`.",
        ),
    ],
    ids=["ends", "fails", "exits"],
)
def test_what_goes_wrong_is_said(make: Callable[[], object], message: str) -> None:
    with pytest.raises(DataError) as caught:
        PipelineProcess(make, STEP, max_warm_up_s=SOON_S)
    assert str(caught.value) == message


def test_one_that_is_killed_says_so(busy: PipelineProcess) -> None:
    os.kill(get_pid(busy), signal.SIGKILL)
    wait_until(lambda: not busy.is_alive)
    for _ in range(2):
        with pytest.raises(
            DataError, match=r"^A process that ran a pipeline was ended by SIGKILL; most often memory ran"
        ):
            busy.turn(0.1)


def test_the_wait_for_a_start_can_be_given_up() -> None:
    before = children()
    with pytest.raises(TimeIsUpError):
        PipelineProcess(partial(time.sleep, 3600), STEP, deadline=time.monotonic() + 0.2)
    assert children() == before


def test_a_turn_that_takes_too_long_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_process, "_GRACE_S", 0.2)
    with PipelineProcess(SLOW, Accelerator(1e-9, 100), max_warm_up_s=0.0) as slow:
        with pytest.raises(DataError, match=r"^A pipeline gave no batch for 0 s\. Look at its storage"):
            slow.turn(0.01)
        assert not slow.is_alive


def test_a_dataset_that_is_damaged(small_dataset: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(small_dataset, tmp_path / "copy")
    manifest = load_manifest(str(folder))
    shard = manifest.splits["train"].shards[0]
    data = bytearray((folder / shard.file).read_bytes())
    data[60] ^= 1
    (folder / shard.file).write_bytes(data)
    config = PipelineConfig(batch_size=4, image_size=16)
    with pytest.raises(DataError, match=rf"{shard.file}: Record at byte 0 is damaged") as caught:
        PipelineProcess(
            partial(build_endless_dataset, manifest, "train", config), Accelerator(1e-9, 4), max_warm_up_s=SOON_S
        )
    assert "\n" not in str(caught.value)


BATCHES_CODE = "__import__('itertools').repeat(0)"
PARENT = """
import sys, time
from functools import partial
from tfpipe.profiler.measure.simulated_accelerator import Accelerator
from tfpipe.tuning.pipeline_process import PipelineProcess
make = partial(eval, sys.argv[1])
one = PipelineProcess(make, Accelerator(0.01, 100), max_warm_up_s=0.05)
print(one._process.pid, flush=True)
"""


def start_parent(make: str, then: str = "time.sleep(600)") -> tuple[subprocess.Popen[str], int]:
    """A process, in a session of its own, that starts a process; and the process's number."""
    command = [sys.executable, "-c", PARENT + then, make]
    parent = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert parent.stdout is not None
    return parent, int(parent.stdout.readline())


def test_nobody_is_left_when_the_parent_is_killed() -> None:
    parent, pid = start_parent(BATCHES_CODE)
    wait_until(lambda: state(pid)[0] == "T")
    parent.kill()
    parent.communicate()
    wait_until(lambda: state(pid)[0] in ("", "Z"))


def test_nor_where_the_kernel_knows_no_parents_death() -> None:
    """As on macOS: the one that is halted is in a process group that nobody can wake any more, and gets SIGHUP."""
    parent, pid = start_parent(f"(__import__('ctypes').CDLL(None).prctl(1, 0), {BATCHES_CODE})[1]")
    wait_until(lambda: state(pid)[0] == "T")
    parent.kill()
    parent.communicate()
    wait_until(lambda: state(pid)[0] in ("", "Z"))


def test_a_parent_that_forgets_to_close_can_end() -> None:
    parent, pid = start_parent(BATCHES_CODE, "pass")
    _, errors = parent.communicate(timeout=20)
    assert (parent.returncode, errors) == (0, "")
    wait_until(lambda: state(pid)[0] in ("", "Z"))


def children() -> list[str]:
    """Of this process, but for those that only keep book of resources."""
    import multiprocessing

    return [process.name for process in multiprocessing.active_children()]
