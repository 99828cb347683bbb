"""The process that fills a cache in files while its source is read: no failure of it ends the training."""

import logging
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.conftest import PATH_OF_REPOSITORY
from tests.engine.folder_cache.conftest import end_fillings
from tests.engine.folder_cache.test_batch import (
    check_equal,
    copy_shard,
    count_cached,
    fill,
    folder_of,
    nobody_fills,
    open_batches,
)
from tests.engine.folder_cache.test_fill import files_in
from tests.flipped_bit import flip_bit
from tests.system.test_child_process import is_running
from tfpipe.dataset.load import load_manifest
from tfpipe.engine.batch import BatchMaker
from tfpipe.engine.folder_cache import fill_process
from tfpipe.engine.folder_cache.fill import fill_locked
from tfpipe.engine.folder_cache.fill_process import Filling
from tfpipe.engine.folder_cache.folder import CacheFolder
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format.manifest import Manifest
from tfpipe.format.tfrecord import scan_records
from tfpipe.readers.numpy import NumpyBatches
from tfpipe.system import host_limits

WITHIN_S = 120.0  # a process of low priority, on a machine whose cores are all taken


def wait_until(is_so: Callable[[], Any]) -> None:
    end = time.monotonic() + WITHIN_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


def get_filling() -> Filling:
    (filling,) = fill_process._fillings.values()
    return filling


def get_process() -> subprocess.Popen[bytes]:
    wait_until(lambda: get_filling().process is not None)
    process = get_filling().process
    assert process is not None
    return process


def can_lock(folder: CacheFolder, within_s: float = 0.5) -> bool:
    locked = threading.Event()

    def lock() -> None:
        with folder.lock():
            locked.set()

    threading.Thread(target=lock, daemon=True).start()
    return locked.wait(within_s)


def damage(source: Manifest) -> str:
    shard = Path(source.directory, source.splits["train"].shards[1].file)
    with open(shard, "rb") as file:
        offset, payload = list(scan_records(file))[2]
    flip_bit(shard, offset + 12 + len(payload) // 2)
    return f"record 2 of {shard} (byte {offset})"


def test_another_process_fills_the_cache_at_low_priority(source: Manifest, tmp_path: Path, caplog, monkeypatch) -> None:
    caplog.set_level(logging.INFO, "tfpipe")
    started: list[subprocess.Popen[bytes]] = []
    may_fill = threading.Event()

    class Recorded(subprocess.Popen):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self)

    def dumps(task: object) -> bytes:
        assert may_fill.wait(WITHIN_S)
        return pickle.dumps(task)

    # The process waits for its task until the test has looked at it, however busy the machine is.
    monkeypatch.setattr(fill_process, "pickle", SimpleNamespace(dumps=dumps))
    monkeypatch.setattr(subprocess, "Popen", Recorded)
    filled, live = (folder_of(source, tmp_path / name) for name in ("filled", "live"))
    fill(filled)
    expected = [open_batches(filled).read(step) for step in range(4)]
    caplog.clear()
    batches = open_batches(live)
    check_equal(batches.read(0), expected[0])
    assert not os.path.exists(live.manifest_path)
    wait_until(lambda: started)
    (process,) = started
    wait_until(lambda: os.getpriority(os.PRIO_PROCESS, process.pid) > os.getpriority(os.PRIO_PROCESS, 0))
    assert os.getpgid(process.pid) == process.pid  # a terminal's Ctrl-C is not for it
    may_fill.set()
    wait_until(lambda: not fill_process._fillings)
    for step in range(4):
        check_equal(batches.read(step), expected[step])
    assert count_cached(batches) == 12
    assert f"Filled the cache in {live.path}: 12 images" in caplog.text
    assert not [record for record in caplog.records if record.levelno > logging.INFO]
    assert files_in(live.path) == files_in(filled.path)
    assert isinstance(open_batches(live)._maker, BatchMaker)


def test_it_waits_for_another_process(source: Manifest, tmp_path: Path, caplog) -> None:
    caplog.set_level(logging.INFO, "tfpipe")
    folder = folder_of(source, tmp_path)
    with nobody_fills(folder):
        open_batches(folder)
        open_batches(folder)  # of an evaluation, say: the same filling
        wait_until(lambda: "Waiting for another process that fills the cache" in caplog.text)
        assert get_filling().process is None
    wait_until(lambda: not fill_process._fillings)
    assert folder.find() is not None
    assert caplog.text.count("Waiting") == 1


def test_training_goes_on_when_the_process_is_killed(source: Manifest, tmp_path: Path, caplog, monkeypatch) -> None:
    filled, live = (folder_of(source, tmp_path / name) for name in ("filled", "live"))
    whole = fill(filled)
    copy_shard(whole, live, 0)
    kept = live.shard_path(live.info.shards[0])
    inode = os.stat(kept).st_ino
    expected = [open_batches(filled).read(step) for step in range(4)]
    monkeypatch.setattr(fill_process, "pickle", SimpleNamespace(dumps=lambda task: time.sleep(1) or pickle.dumps(task)))
    batches = open_batches(live)
    os.kill(get_process().pid, signal.SIGKILL)
    wait_until(lambda: "is not filled any further" in caplog.text)
    assert "from the source: Its process was ended by SIGKILL" in caplog.text
    for step in range(4):
        check_equal(batches.read(step), expected[step])
    open_batches(live)  # the same filling, and no second process
    assert get_filling().process is not None
    assert not get_filling().is_alive()
    assert caplog.text.count("is not filled") == 1
    assert fill(live).splits == whole.splits  # the lock is free
    assert os.stat(kept).st_ino == inode
    check_equal(batches.read(3), expected[3])
    assert count_cached(batches) == 12


@pytest.mark.parametrize("cache", ["bytes", "decoded"])
def test_a_damaged_record_is_a_warning_and_is_left_out_of_training(source: Manifest, tmp_path, caplog, cache: str):
    folder = folder_of(source, tmp_path / "cache", cache, training=False, max_bad_records=100)
    place = damage(source)
    batches = open_batches(folder)
    wait_until(lambda: "is not filled any further" in caplog.text)
    assert f"Every record must be whole to be cached, and {place} is not: it is damaged" in caplog.text
    assert "Traceback" not in caplog.text
    assert sum(int(batch["mask"].sum()) for batch in batches) == 11
    with pytest.raises(FormatError, match="is damaged"):
        list(open_batches(folder_of(source, tmp_path / "cache", cache, training=False)))


PARENT = """
import sys, time
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.folder_cache import fill_process
from tfpipe.readers.numpy import NumpyBatches

class Slowly:
    def dumps(task):
        time.sleep(60)

fill_process.pickle = Slowly
config = PipelineConfig(batch_size=4, image_size=14, decoded_size=160, cache="decoded", cache_dir=sys.argv[2])
batches = NumpyBatches(sys.argv[1], "train", config)
(filling,) = fill_process._fillings.values()
while filling.process is None:
    time.sleep(0.01)
print(filling.process.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_the_process_ends_with_its_parent_and_frees_the_lock(source: Manifest, tmp_path: Path) -> None:
    folder = folder_of(source, tmp_path, extra_features=())
    environment = {**os.environ, "PYTHONPATH": PATH_OF_REPOSITORY}
    command = [sys.executable, "-c", PARENT, source.directory, str(tmp_path)]
    parent = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert not can_lock(folder)
    assert is_running(pid)
    parent.kill()
    parent.wait()
    wait_until(lambda: not is_running(pid))
    wait_until(lambda: can_lock(folder))


SCRIPT = """
import sys
import tfpipe
from tfpipe.readers.numpy import NumpyBatches

print("begins", flush=True)
config = tfpipe.PipelineConfig(batch_size=4, decoded_size=1600, cache="decoded", cache_dir=sys.argv[2])
next(iter(NumpyBatches(sys.argv[1], "train", config)))
assert "tensorflow" not in sys.modules
"""


def test_a_plain_script_ends_while_its_cache_is_filled(source: Manifest, tmp_path: Path) -> None:
    """It has no `if __name__ == "__main__":`, so nothing may import it again."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": PATH_OF_REPOSITORY}
    command = [sys.executable, str(script), source.directory, str(tmp_path / "cache")]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert (ran.stdout, ran.stderr) == ("begins\n", "")
    assert can_lock(folder_of(source, tmp_path / "cache", image_size=224, decoded_size=1600), within_s=10)


def test_killed_again_and_again_it_is_whole_in_the_end(source: Manifest, tmp_path: Path) -> None:
    filled, live = (folder_of(source, tmp_path / name, decoded_size=800) for name in ("filled", "live"))
    fill(filled)
    expected = open_batches(filled).read(0)
    generator = np.random.default_rng(0)
    for _ in range(6):
        check_equal(open_batches(live).read(0), expected)
        if not fill_process._fillings:
            break
        time.sleep(generator.uniform(0.1, 0.6))
        end_fillings()
    fill(live)
    assert files_in(live.path) == files_in(filled.path)
    assert load_manifest(live.path).splits == load_manifest(filled.path).splits


def test_copies_of_a_maker_look_at_the_cache_and_fill_nothing(source: Manifest, tmp_path: Path) -> None:
    filled, live = (folder_of(source, tmp_path / name) for name in ("filled", "live"))
    whole = fill(filled)
    expected = open_batches(filled)
    with nobody_fills(live):
        maker = open_batches(live)._maker
        copy_shard(whole, live, 1)
        check_equal(maker.make(0, 0), expected.read(0))
        fill_process._fillings.clear()
        copied = pickle.loads(pickle.dumps(maker))
        copy_shard(whole, live, 0)
        shutil.rmtree(source.directory)
        check_equal(copied.make(0, 1), expected.read(1))
        np.testing.assert_array_equal(copied.for_rows(1, 3).make(0, 1)["image"], expected.read(1)["image"][1:3])
    assert not fill_process._fillings


def test_a_damaged_cache_gives_no_shard_until_it_is_emptied(source: Manifest, tmp_path: Path, caplog) -> None:
    folder = folder_of(source, tmp_path)
    fill(folder)
    os.truncate(folder.shard_path(folder.info.shards[1]), 100)
    with nobody_fills(folder):
        batches = open_batches(folder)
        assert "is filled anew: train-00001-of-00002.tfrecord is not whole." in caplog.text
        batches.read(0)
        assert count_cached(batches) == 0
        fill_locked(folder)
        batches.read(0)
        assert count_cached(batches) == 12


def test_damage_in_the_cache_is_placed_there(source: Manifest, tmp_path: Path) -> None:
    filled, live = (folder_of(source, tmp_path / name) for name in ("filled", "live"))
    whole = fill(filled)
    flip_bit(Path(filled.shard_path(filled.info.shards[0])), 5000)
    with nobody_fills(live):
        copy_shard(whole, live, 0)
        batches = open_batches(live)
        with pytest.raises(FormatError, match=rf"^{live.path}/train-00000.*: Record at byte 0 is damaged"):
            [batches.read(step) for step in range(3)]


def test_what_cannot_be_filled_is_refused_before_a_process_is_started(source: Manifest, tmp_path: Path, monkeypatch):
    folder = folder_of(source, tmp_path / "cache")
    with pytest.raises(ConfigError, match="square `decoded_size`"):
        open_batches(folder_of(source, tmp_path / "cache", decoded_size=(16, 20)))
    with pytest.raises(ConfigError, match="`batch_size` must be at most"):
        open_batches(folder_of(source, tmp_path / "cache", batch_size=16))
    (tmp_path / "file").write_text("")
    with pytest.raises(
        DataError, match=r"^Could not write the cache in .*: Not a directory\. Give another `cache_dir`"
    ):
        open_batches(folder_of(source, tmp_path / "file" / "cache"))
    monkeypatch.setattr(host_limits, "free_disk_bytes", lambda _: 2000)
    with pytest.raises(ConfigError, match=r"needs .* in .*cache, and 2\.0 KB are free there\. Free some"):
        open_batches(folder)
    shutil.rmtree(source.directory)
    with pytest.raises(FormatError, match="is missing"):
        NumpyBatches(source, "train", folder.config)
    assert not fill_process._fillings
