"""A cache that is filled while its source is read: equal batches from both, and no failure ends the training."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import PATH_OF_REPOSITORY
from tfpipe.distribution import distribute_dataset
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.source import Source
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format.manifest import Manifest
from tfpipe.format.tfrecord import scan_records
from tfpipe.open_dataset import load_manifest
from tfpipe.pipeline.build import build_dataset, build_stages
from tfpipe.pipeline.file_cache import fill_process, live_fill
from tfpipe.pipeline.file_cache.cache import fill_cache, fill_locked
from tfpipe.pipeline.file_cache.cache_folder import CacheFolder, without_cache
from tfpipe.pipeline.file_cache.live_fill import LiveFill, close_all
from tfpipe.pipeline.file_cache.read_cache import plan_cached_read
from tfpipe.pipeline.plan import read_plan
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.system import host_limits
from tfpipe.system.progress import Observer

WITHIN_S = 280.0  # a process of low priority, on a machine whose cores are all taken, loads TensorFlow first
NAME = "image/filename"

Batch = dict[str, np.ndarray]


def folder_of(source: Manifest, place: Path, cache: str = "decoded", **options: Any) -> CacheFolder:
    """The cache of a config with decoded records so large that their own size would give another order."""
    config = {"global_batch_size": 4, "image_size": 14, "decoded_size": 160, "extra_features": (NAME,), **options}
    return CacheFolder(source, "train", PipelineConfig(cache=cache, cache_dir=str(place), **config))


def build(cache: CacheFolder) -> tf.data.Dataset:
    return build_dataset(cache.manifest, cache.split, cache.config)


def fill(cache: CacheFolder) -> Manifest:
    return fill_cache(cache.manifest, cache.split, cache.config)


@contextlib.contextmanager
def nobody_fills(cache: CacheFolder) -> Iterator[None]:
    """Holds the lock, so that no process is started."""
    os.makedirs(cache.parent, exist_ok=True)
    with cache.lock():
        yield


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + WITHIN_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


def get_fill() -> LiveFill:
    (fill,) = live_fill._running.values()
    return fill


def count_cached(fill: LiveFill) -> int:
    """The entries of the variable that name a place in the cache, of 12 records and 2 shards."""
    return int((fill.reading.places.numpy() >= 0).sum())


def take(batches: Iterator[Batch], count: int) -> list[Batch]:
    return list(islice(batches, count))


def assert_equal(got: list[Batch], expected: list[Batch]) -> None:
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def copy_shard(whole: Manifest, cache: CacheFolder, number: int) -> None:
    """Puts a complete shard of one cache into another, as the filling process does: the index first."""
    shard = cache.info.shards[number]
    Path(cache.path, "index").mkdir(parents=True, exist_ok=True)
    for path in (cache.index_path(shard), cache.shard_path(shard)):
        shutil.copy(Path(whole.directory, Path(path).relative_to(cache.path)), f"{path}.tmp")
        os.replace(f"{path}.tmp", path)


# The same batches


@pytest.mark.parametrize(
    ("cache", "options"),
    [
        pytest.param("bytes", {}, marks=pytest.mark.slow),
        ("decoded", {}),
        pytest.param("decoded", {"augment": "device"}, marks=pytest.mark.slow),
        pytest.param("decoded", {"augment": "none", "on_bad_record": "skip"}, marks=pytest.mark.slow),
        pytest.param("decoded", {"order": "throughput", "deterministic": True}, marks=pytest.mark.slow),
    ],
)
def test_training_reads_the_same_before_during_and_after_filling(
    source: Manifest, tmp_path: Path, cache: str, options: dict[str, Any]
) -> None:
    # Little is read ahead, so that soon after the last shard nothing is read from the source.
    options |= {"cycle_length": 2, "prefetch_batches": 1, "autotune": False}
    filled = folder_of(source, tmp_path / "filled", cache, **options)
    live = folder_of(source, tmp_path / "live", cache, **options)
    whole = fill(filled)
    expected = take(build(filled).as_numpy_iterator(), 50)
    if "order" not in options:
        uncached = build_dataset(source, "train", without_cache(filled.config)).as_numpy_iterator()
        assert [batch[NAME].tolist() for batch in take(uncached, 9)] == [batch[NAME].tolist() for batch in expected[:9]]
    with nobody_fills(live):
        dataset = build(live)
        assert dataset.element_spec == build(filled).element_spec
        batches = dataset.as_numpy_iterator()
        assert_equal(take(batches, 8), expected[:8])
        fill_of_it = get_fill()
        assert count_cached(fill_of_it) == 0
        copy_shard(whole, live, 1)
        wait_until(lambda: count_cached(fill_of_it) > 0)
        assert 0 < count_cached(fill_of_it) < 12
        assert_equal(take(batches, 12), expected[8:20])
        assert fill_locked(live, Observer()).splits == whole.splits
    wait_until(lambda: not live_fill._running)
    assert count_cached(fill_of_it) == 14
    assert_equal(take(batches, 20), expected[20:40])
    shutil.rmtree(source.directory)
    assert_equal(take(batches, 10), expected[40:])


@pytest.mark.parametrize("cache", ["bytes", "decoded"])
def test_evaluation_reads_the_same_before_and_after_filling(source: Manifest, tmp_path: Path, cache: str) -> None:
    filled, live = (folder_of(source, tmp_path / name, cache, training=False) for name in ("filled", "live"))
    fill(filled)
    expected = list(build(filled).as_numpy_iterator())
    with nobody_fills(live):
        dataset = build(live)
        assert_equal(list(dataset.as_numpy_iterator()), expected)
        fill_locked(live, Observer())
    wait_until(lambda: not live_fill._running)
    shutil.rmtree(source.directory)
    assert_equal(list(dataset.as_numpy_iterator()), expected)


def test_the_order_is_that_of_the_source(source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_plan, "_MIN_RUNS_OF_A_LANE", 1e-6)  # or runs of so few records would have one in any case
    cache = folder_of(source, tmp_path)
    plan = ReadPlan(cache.source, without_cache(cache.config))
    with nobody_fills(cache):
        filling = plan_cached_read(plan, cache, fill_first=False)
        fill_locked(cache, Observer())
    whole = plan_cached_read(plan, cache, fill_first=True)
    assert filling.filling is not None
    assert whole.filling is None
    assert filling.order == whole.order == plan.order
    assert filling.config == whole.config
    assert filling.cycle_length == whole.cycle_length
    assert ReadPlan(Source.from_manifest(fill(cache), "train"), without_cache(cache.config)).order != plan.order


def test_a_pipeline_under_a_strategy_shares_the_filling(source: Manifest, tmp_path: Path) -> None:
    cache = folder_of(source, tmp_path / "cache", extra_features=())
    strategy = tf.distribute.MirroredStrategy(["/CPU:0"])
    with nobody_fills(cache):
        expected = next(iter(build(cache)))
        with strategy.scope():
            batch = next(iter(distribute_dataset(strategy, source, "train", cache.config)))
            stages = build_stages(source, "train", cache.config, fill_first=False)
        assert "filled meanwhile" in stages[0].reason
        assert type(get_fill().reading.places).__name__ == "ResourceVariable"
        np.testing.assert_array_equal(batch["image"], expected["image"])


# The process


@pytest.mark.slow
def test_another_process_fills_the_cache_at_low_priority(
    source: Manifest, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    caplog.clear()
    batches = build(live).as_numpy_iterator()
    take(batches, 4)
    assert not os.path.exists(live.manifest_path)
    wait_until(lambda: bool(started))
    (process,) = started
    wait_until(lambda: os.getpriority(os.PRIO_PROCESS, process.pid) > os.getpriority(os.PRIO_PROCESS, 0))
    assert os.getpgid(process.pid) == process.pid  # a terminal's Ctrl-C is not for it
    may_fill.set()
    wait_until(lambda: not live_fill._running)
    take(batches, 4)
    assert f"Filled the cache in {live.path}: 12 images" in caplog.text
    assert not [record for record in caplog.records if record.levelno > logging.INFO]
    assert files_in(live.path) == files_in(filled.path)


def files_in(folder: str) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def test_a_process_that_ends_leaves_the_filling_to_the_next_one(
    source: Manifest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tfpipe")
    cache = folder_of(source, tmp_path)
    with nobody_fills(cache):
        build(cache)
        wait_until(lambda: "Another process fills the cache" in caplog.text)
        time.sleep(0.6)
        assert get_fill().process is None
    wait_until(lambda: get_fill().process is not None)
    assert caplog.text.count("Another process") == 1


@pytest.mark.slow
def test_training_goes_on_when_the_process_is_killed(
    source: Manifest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filled, live = (folder_of(source, tmp_path / name) for name in ("filled", "live"))
    whole = fill(filled)
    copy_shard(whole, live, 0)
    kept = live.shard_path(live.info.shards[0])
    inode = os.stat(kept).st_ino
    expected = take(build(filled).as_numpy_iterator(), 12)
    batches = build(live).as_numpy_iterator()
    wait_until(lambda: get_fill().process is not None)
    os.kill(get_fill().process.pid, signal.SIGKILL)
    assert_equal(take(batches, 6), expected[:6])
    wait_until(lambda: "is not filled any further" in caplog.text)
    assert "from the source: Its process was ended by SIGKILL" in caplog.text
    assert_equal(take(batches, 6), expected[6:])
    build(live)  # of an evaluation, say: the same filling, and no second process
    time.sleep(0.6)
    assert get_fill().process is None
    assert caplog.text.count("is not filled") == 1
    assert fill(live).splits == whole.splits  # the lock is free
    assert os.stat(kept).st_ino == inode
    wait_until(lambda: not live_fill._running)


@pytest.mark.slow
def test_a_damaged_record_is_a_warning_and_is_left_out_of_training(
    source: Manifest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = folder_of(source, tmp_path / "cache", training=False, on_bad_record="skip")
    shard = Path(source.directory, source.splits["train"].shards[1].file)
    with open(shard, "rb") as file:
        offset, payload = list(scan_records(file))[2]
    flip_a_bit(shard, offset + 12 + len(payload) // 2)
    dataset = build(cache)
    wait_until(lambda: "is not filled any further" in caplog.text)
    assert f"Every record must be whole to be cached, and record 2 of {shard} (byte {offset}) is not" in caplog.text
    assert "Traceback" not in caplog.text
    assert sum(int(batch["mask"].sum()) for batch in dataset.as_numpy_iterator()) == 11


def flip_a_bit(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


PARENT = """
import sys, time
from tfpipe.open_dataset import load_manifest
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.pipeline.file_cache.cache_folder import CacheFolder
from tfpipe.pipeline.file_cache.fill_process import FillProcess

config = PipelineConfig(global_batch_size=4, cache="decoded", cache_dir=sys.argv[2])
cache = CacheFolder(load_manifest(sys.argv[1]), "train", config)
with cache.try_lock() as lock:
    process = FillProcess(cache, lock.fileno())
print(process.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_the_process_ends_with_its_parent_and_frees_the_lock(source: Manifest, tmp_path: Path) -> None:
    cache = folder_of(source, tmp_path, image_size=224, decoded_size=None)
    environment = {**os.environ, "PYTHONPATH": PATH_OF_REPOSITORY}
    command = [sys.executable, "-c", PARENT, source.directory, str(tmp_path)]
    parent = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert cache.try_lock() is None
    assert is_running(pid)
    parent.kill()
    parent.wait()
    wait_until(lambda: not is_running(pid))
    locks: list[Any] = []
    wait_until(lambda: locks.append(cache.try_lock()) or locks[-1] is not None)  # its threads end after the process
    locks[-1].close()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


# Damage and refusals


def test_a_damaged_cache_gives_no_shard_until_it_is_emptied(
    source: Manifest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = folder_of(source, tmp_path)
    fill(cache)
    os.truncate(cache.shard_path(cache.info.shards[1]), 100)
    with nobody_fills(cache):
        batches = build(cache).as_numpy_iterator()
        assert "is filled anew: train-00001-of-00002.tfrecord is not whole." in caplog.text
        time.sleep(0.6)
        assert count_cached(get_fill()) == 0
        take(batches, 4)
        fill_locked(cache, Observer())
    wait_until(lambda: not live_fill._running)
    take(batches, 4)


def test_damage_in_the_cache_is_placed_there(source: Manifest, tmp_path: Path) -> None:
    filled, live = (folder_of(source, tmp_path / name) for name in ("filled", "live"))
    whole = fill(filled)
    flip_a_bit(Path(filled.shard_path(filled.info.shards[0])), 5000)
    with nobody_fills(live):
        copy_shard(whole, live, 0)
        batches = build(live)
        wait_until(lambda: count_cached(get_fill()) > 0)
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"record 0 of {live.path}/train-00000.* is damaged"):
            take(batches.as_numpy_iterator(), 12)


def test_what_cannot_be_filled_is_refused_before_a_process_is_started(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = folder_of(source, tmp_path / "cache")
    with pytest.raises(ConfigError, match="square `decoded_size`"):
        build(folder_of(source, tmp_path / "cache", decoded_size=(16, 20)))
    with pytest.raises(ConfigError, match="`global_batch_size` must be at most"):
        build(folder_of(source, tmp_path / "cache", global_batch_size=16))
    (tmp_path / "file").write_text("")
    with pytest.raises(
        DataError, match=r"^Could not write the cache in .*: Not a directory\. Give another `cache_dir`"
    ):
        build(folder_of(source, tmp_path / "file" / "cache"))
    monkeypatch.setattr(host_limits, "free_disk_bytes", lambda _: 2000)
    with pytest.raises(ConfigError, match=r"needs .* in .*cache, and 2\.0 KB are free there\. Free some"):
        build(cache)
    shutil.rmtree(source.directory)
    with pytest.raises(FormatError, match="is missing"):
        build(cache)
    assert not live_fill._running


def test_the_cache_is_filled_first_where_it_has_to_be(source: Manifest, tmp_path: Path) -> None:
    timed = folder_of(source, tmp_path / "timed")
    assert "filled before the first step" in build_stages(source, "train", timed.config)[0].reason
    assert timed.find() is not None
    # The source has another value of this feature than the cache.
    changed = folder_of(source, tmp_path / "changed", extra_features=("image/format",))
    batch = next(build(changed).as_numpy_iterator())
    assert set(batch["image/format"].tolist()) == {b"RAW"}
    assert changed.find() is not None
    assert not live_fill._running


SCRIPT = """
import sys
import tfpipe

print("begins", flush=True)
config = tfpipe.PipelineConfig(global_batch_size=4, cache="decoded", cache_dir=sys.argv[2])
batches = iter(tfpipe.build_dataset(tfpipe.load_manifest(sys.argv[1]), "train", config))
next(batches)
"""


@pytest.mark.slow
def test_a_plain_script_ends_while_its_cache_is_filled(source: Manifest, tmp_path: Path) -> None:
    """It has no `if __name__ == "__main__":`, so nothing may import it again."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": PATH_OF_REPOSITORY, "TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [sys.executable, str(script), source.directory, str(tmp_path / "cache")]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert ran.stdout == "begins\n"
    assert "Traceback" not in ran.stderr
    assert "warning" not in ran.stderr.lower().replace("warning: all log messages before", "")
    cache = folder_of(source, tmp_path / "cache", image_size=224, decoded_size=None)
    assert cache.find() is None
    lock = cache.try_lock()
    assert lock is not None
    lock.close()


@pytest.mark.slow
def test_killed_again_and_again_it_is_whole_in_the_end(source: Manifest, tmp_path: Path) -> None:
    filled, live = (folder_of(source, tmp_path / name, decoded_size=800) for name in ("filled", "live"))
    fill(filled)
    expected = take(build(filled).as_numpy_iterator(), 4)
    generator = np.random.default_rng(0)
    for _ in range(6):
        assert_equal(take(build(live).as_numpy_iterator(), 4), expected)
        if not live_fill._running:
            break
        wait_until(lambda: not live_fill._running or get_fill().process is not None)
        time.sleep(generator.uniform(2.0, 6.0))
        for fill_of_it in list(live_fill._running.values()):
            if fill_of_it.process is not None:
                os.kill(fill_of_it.process.pid, signal.SIGKILL)
        close_all()
    fill(live)
    assert files_in(live.path) == files_in(filled.path)
    assert load_manifest(live.path).splits == load_manifest(filled.path).splits
