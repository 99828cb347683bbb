"""The file of a cache: what is in it, who writes it, and that nothing in it is trusted without its checksums."""

import errno
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import tfpipe
from tests.flipped_bit import flip_bit
from tests.refusals import refusal
from tfpipe.engine import cache_file
from tfpipe.engine.cache_file import CacheFile, is_filled, open_cache_file
from tfpipe.engine.config.pipeline_config import AugmentOptions, PipelineConfig
from tfpipe.engine.parse import join_block
from tfpipe.engine.plan import plan_batches
from tfpipe.engine.source import Source
from tfpipe.errors import ConfigError, DataError
from tfpipe.format.manifest import Manifest
from tfpipe.readers.numpy import NumpyBatches
from tfpipe.system import host_limits

NAME = "image/filename"
STEPS = range(9)  # three epochs of three
HEAD = 4096
KEY = "0" * 64
RECORDS = [bytes([k]) * (k * 700) for k in range(20)]


@pytest.fixture
def source(pets: str) -> Manifest:
    return tfpipe.load_manifest(pets)


def config_of(folder: Path | str, cache: str = "bytes", **options: Any) -> PipelineConfig:
    settings = {"batch_size": 4, "image_size": 14, "decoded_size": 40, "extra_features": (NAME,), **options}
    return PipelineConfig(cache=cache, cache_dir=str(folder), **settings)


def plain(config: PipelineConfig) -> PipelineConfig:
    return replace(config, cache="none", cache_dir=None)


def open_batches(source: Manifest, config: PipelineConfig, **options: Any) -> NumpyBatches:
    return NumpyBatches(source, "train", config, num_threads=2, **options)


def get_file(batches: NumpyBatches) -> CacheFile:
    return batches._maker._cache


def check_equal(got: dict[str, Any], expected: dict[str, Any]) -> None:
    assert got.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(got[name], values, err_msg=name)


def read_all(batches: NumpyBatches) -> list[dict[str, Any]]:
    """Reads some epochs, and waits until what was read is in the file."""
    read = []
    for step in STEPS:
        read.append(batches.read(step))
        get_file(batches).flush()
    return read


def read_source(numbers: np.ndarray, _: Any) -> Any:
    return join_block([RECORDS[number] for number in numbers.tolist()])


def read_nothing(numbers: np.ndarray, _: Any) -> Any:
    raise AssertionError(f"{numbers} are not in the file")


def read(cache: CacheFile, numbers: list[int], source: Any = read_source) -> None:
    """Reads records, which must be those of the source, and waits until they are in the file."""
    block = cache.read_block(np.array(numbers, np.int64), None, source)
    assert block.list_payloads() == [RECORDS[number] for number in numbers]
    cache.flush()


def open_file(tmp_path: Path) -> CacheFile:
    return CacheFile(str(tmp_path / "a.cache"), KEY, len(RECORDS))


def test_records_are_read_once(tmp_path: Path) -> None:
    cache = open_file(tmp_path)
    assert not cache.find(np.arange(20)).any()
    read(cache, [3, 0, 17, 3])
    read(cache, [3, 17, 0, 0], read_nothing)
    read(cache, [4, 17, 0, 4, 9])
    assert np.flatnonzero(cache.find(np.arange(20))).tolist() == [0, 3, 4, 9, 17]
    assert cache.find(np.array([9, 8, 3, 7])).tolist() == [True, False, True, False]
    cache.announce(np.array([9, 8, 3]))
    again = pickle.loads(pickle.dumps(cache))
    read(again, [9, 3, 4], read_nothing)
    frames = sum(24 + len(RECORDS[number]) + 16 for number in (0, 3, 4, 9, 17))  # each once
    assert os.path.getsize(cache.path) == HEAD + 24 * 20 + frames
    read(again, [], read_nothing)


def test_no_flipped_bit_comes_through(tmp_path: Path, caplog) -> None:
    seed = 1805
    generator = random.Random(seed)
    everything = list(range(20))
    read(open_file(tmp_path), everything)
    whole = (tmp_path / "a.cache").read_bytes()
    for at in [0, HEAD - 1, HEAD, HEAD + 9, HEAD + 23, *(generator.randrange(HEAD, len(whole)) for _ in range(60))]:
        (tmp_path / "a.cache").write_bytes(whole)
        flip_bit(tmp_path / "a.cache", at)
        read(open_file(tmp_path), everything)
        read(open_file(tmp_path), everything, read_nothing)  # it was mended
    assert f"The cache {tmp_path}/a.cache is damaged or of another version: it is made anew." in caplog.text
    assert f"in the cache {tmp_path}/a.cache is damaged. Damaged records are read from the source, and" in caplog.text
    for size in (*range(0, HEAD, 1000), *range(HEAD, len(whole), 9001)):  # as after a loss of power
        (tmp_path / "a.cache").write_bytes(whole[:size])
        read(open_file(tmp_path), everything)
        read(open_file(tmp_path), everything, read_nothing)


def test_a_frame_of_another_record_is_not_taken(tmp_path: Path) -> None:
    cache = CacheFile(str(tmp_path / "a.cache"), KEY, 3)
    read(cache, [0, 1])
    with open(cache.path, "r+b") as file:  # the entry of 2 points at the frame of 1, as after a loss of power
        file.seek(HEAD + 24)
        entry = file.read(24)
        file.seek(HEAD + 48)
        file.write(entry)
    assert cache.find(np.arange(3)).all()
    read(cache, [2, 1])
    read(cache, [2, 1], read_nothing)


def test_a_slow_disk_holds_nobody_up(tmp_path: Path, monkeypatch) -> None:
    cache, may_write = open_file(tmp_path), threading.Event()
    write = CacheFile._write

    def write_late(self: CacheFile, *arguments: Any) -> None:
        assert may_write.wait(60)
        write(self, *arguments)

    monkeypatch.setattr(CacheFile, "_write", write_late)
    for number in range(12):
        cache.read_block(np.array([number]), None, read_source)
    may_write.set()
    cache.flush()
    there = int(cache.find(np.arange(20)).sum())
    assert 3 <= there <= 4  # that wait, and perhaps one that is being written
    read(cache, list(range(20)))
    read(cache, list(range(20)), read_nothing)


def test_what_cannot_be_written_is_said_once(tmp_path: Path, monkeypatch, caplog) -> None:
    cache = open_file(tmp_path)
    read(cache, [1, 2])
    refused = OSError(errno.EROFS, "Read-only file system", cache.path)
    monkeypatch.setattr(cache_file, "lock_file", Mock(side_effect=refused))
    again = open_file(tmp_path)
    read(again, [2, 1], read_nothing)
    assert not caplog.text
    for _ in range(3):
        read(again, [2, 3])
    assert [record.getMessage() for record in caplog.records] == [
        f"Could not write to the cache {cache.path}: Read-only file system. What the cache lacks is read from the "
        "source."
    ]
    os.remove(cache.path)
    assert refusal(DataError, open_file, tmp_path) == (
        f"Could not open the cache {cache.path}: Read-only file system. Give another `cache_dir`."
    )


def test_a_file_that_is_removed_is_not_written_to(tmp_path: Path, caplog) -> None:
    cache = open_file(tmp_path)
    read(cache, [1])
    os.remove(cache.path)
    read(cache, [1], read_nothing)
    read(cache, [2])
    assert caplog.messages == [
        f"The cache {cache.path} was removed or made anew by another program. What the cache lacks is read from the "
        "source."
    ]
    read(open_file(tmp_path), [2])
    read(open_file(tmp_path), [2], read_nothing)
    read(cache, [1], read_nothing)


FULL = """
import logging, resource, sys
from pathlib import Path
import numpy as np
from tests.engine.test_cache_file import open_file, read
from tfpipe.engine.cache_file import CacheFile
logging.basicConfig(format="%(message)s")
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
cache = open_file(Path(sys.argv[1]))
read(cache, [1, 2, 3])
read(cache, [17, 18, 19])
read(cache, [4])
print(np.flatnonzero(cache.find(np.arange(20))).tolist())
"""


def run(code: str, *arguments: Any, **options: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment, **pipes, **options)


def test_a_full_disk_stops_the_filling_and_nothing_else(tmp_path: Path) -> None:
    said, warned = run(FULL, tmp_path).communicate(timeout=120)
    assert said == "[1, 2, 3]\n"
    assert warned == (
        f"Could not write to the cache {tmp_path}/a.cache: File too large. What the cache lacks is read from the "
        "source.\n"
    )
    frames = sum(24 + len(RECORDS[number]) + 16 for number in (1, 2, 3))
    assert os.path.getsize(tmp_path / "a.cache") == HEAD + 24 * 20 + frames  # what was cut off is gone
    read(open_file(tmp_path), [1, 2, 3], read_nothing)
    read(open_file(tmp_path), list(range(20)))


# Whole datasets


@pytest.mark.parametrize("cache", ["bytes", "decoded"])
def test_the_second_epoch_needs_no_source(source: Manifest, tmp_path: Path, cache: str) -> None:
    config = config_of(tmp_path / "cache", cache)
    batches = open_batches(source, config)
    assert not is_filled(batches._maker.plan)
    expected = read_all(batches)
    assert is_filled(batches._maker.plan)
    if cache == "bytes":
        for step in STEPS:
            check_equal(open_batches(source, plain(config)).read(step), expected[step])
    again = open_batches(source, config)
    for path in Path(source.directory).rglob("*"):
        if path.is_file():
            os.truncate(path, 0)
    for step in STEPS:
        check_equal(again.read(step), expected[step])
        check_equal(batches.read(step), expected[step])
    (file,) = (tmp_path / "cache").iterdir()
    assert file.name.endswith(".cache")


KILLED = """
import sys
import tfpipe
from tests.engine.test_cache_file import config_of, open_batches
source, folder, cache = sys.argv[1:]
batches = open_batches(tfpipe.load_manifest(source), config_of(folder, cache, decoded_size=800))
print("ready", flush=True)
while True:
    for batch in batches:
        pass
"""


@pytest.mark.parametrize("cache", [pytest.param("bytes", marks=pytest.mark.slow), "decoded"])
def test_killed_at_any_moment_it_holds_nothing_wrong(source: Manifest, tmp_path: Path, cache: str) -> None:
    config = config_of(tmp_path / "killed", cache, decoded_size=800)
    expected = read_all(open_batches(source, replace(config, cache_dir=str(tmp_path / "whole"))))
    seed = 77
    generator = random.Random(seed)
    for _ in range(3):
        process = run(KILLED, source.directory, tmp_path / "killed", cache)
        assert process.stdout.readline() == "ready\n"
        time.sleep(generator.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        batches = open_batches(source, config)
        check_equal(batches.read(0), expected[0])
        get_file(batches).flush()
    for step, batch in enumerate(read_all(open_batches(source, config))):
        check_equal(batch, expected[step])
    assert is_filled(batches._maker.plan)


def get_path(source: Manifest, config: PipelineConfig) -> str:
    return open_cache_file(plan_batches(Source.from_manifest(source, "train"), config)).path


def test_other_content_is_another_file(source: Manifest, tmp_path: Path) -> None:
    decoded = config_of(tmp_path, "decoded")
    same = [
        decoded,
        replace(decoded, image_dtype="float32", batch_size=3, seed=5, extra_features=()),
        replace(decoded, training=False, augment_options=AugmentOptions(flip=False), image_size=35),
    ]
    others = [
        config_of(tmp_path, "bytes"),
        replace(decoded, decoded_size=(40, 41)),
        replace(decoded, augment_options=AugmentOptions(antialias=True)),
        replace(decoded, augment_options=AugmentOptions(dct_scaling=False)),
        replace(decoded, cache_dir=str(tmp_path / "other")),
    ]
    assert len({get_path(source, config) for config in same}) == 1
    grown = replace(source, fingerprint="1" * 64)
    paths = {get_path(source, config) for config in (decoded, *others)} | {get_path(grown, decoded)}
    assert len(paths) == len(others) + 2


def test_a_damaged_record_of_the_source(source: Manifest, tmp_path: Path) -> None:
    flip_bit(Path(source.directory, "train-00000-of-00002.tfrecord"), 1000)
    for cache in ("bytes", "decoded"):
        config = config_of(tmp_path / "cache", cache, max_bad_records=1)
        first, second = (read_all(open_batches(source, config)) for _ in range(2))
        for step, batch in enumerate(first):
            check_equal(second[step], batch)
        if cache == "bytes":
            for step, batch in enumerate(first):
                check_equal(open_batches(source, plain(config)).read(step), batch)
        assert not is_filled(plan_batches(Source.from_manifest(source, "train"), config))


def test_what_a_cache_in_files_excludes(source: Manifest, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    found = refusal(DataError, open_batches, source, config_of(tmp_path / "file" / "cache"))
    assert found.startswith(f"Could not open the cache {tmp_path}/file/cache/")
    assert found.endswith(": Not a directory. Give another `cache_dir`.")
    monkeypatch.setattr(host_limits, "free_disk_bytes", lambda _: 2000)
    assert refusal(ConfigError, open_batches, source, config_of(tmp_path / "cache", "decoded")) == (
        f"The cache of 'train' of {source.directory} needs 63.9 KB in {tmp_path}/cache, and 2.0 KB are free there. "
        "Free some, use a smaller `decoded_size`, or give another `cache_dir`."
    )
    assert not (tmp_path / "cache").exists()
