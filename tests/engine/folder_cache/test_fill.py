"""The cache in files: its contents, its reuse, and that half a cache is never taken for a whole one."""

import dataclasses
import errno
import fcntl
import hashlib
import io
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.flipped_bit import flip_bit
from tfpipe.dataset.load import load_manifest
from tfpipe.engine.config.augment_config import AugmentOptions
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.folder_cache.fill import fill_cache
from tfpipe.engine.folder_cache.folder import CacheFolder, without_cache
from tfpipe.engine.record_reader import RecordReader
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format.manifest import Manifest
from tfpipe.format.tfrecord import record_footer, record_header, scan_records
from tfpipe.system import host_limits
from tfpipe.system.progress import Observer, Progress

SIDE = 16  # 8/7 of 14
LEVELS = {b"PNG": 0.51, b"JPEG": 9.0}  # Pillow decodes JPEGs a bit otherwise than the native library
REPOSITORY = Path(__file__).parents[3]
CHANGED = {"image/encoded", "image/format", "image/channels", "image/colorspace"}


def config_of(cache: str, folder: Path | str, **options) -> PipelineConfig:
    return PipelineConfig(batch_size=4, image_size=14, cache=cache, cache_dir=str(folder), **options)


class Notes(Observer):
    def __init__(self, calls: list[tuple[int, int | None]]) -> None:
        self.calls = calls

    def progress(self, progress: Progress) -> None:
        self.calls.append((progress.done, progress.total))


def files_in(folder: str | Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def whole_caches(folder: Path) -> list[Path]:
    return [path.parent for path in folder.glob("*/manifest.json")]


def shards_of(manifest: Manifest, split: str = "train") -> list[Path]:
    return [Path(manifest.directory, shard.file) for shard in manifest.splits[split].shards]


def test_a_copy_has_the_bytes_of_the_source(source: Manifest, tmp_path: Path) -> None:
    cached = fill_cache(source, "train", config_of("bytes", tmp_path / "cache"))
    assert [path.read_bytes() for path in shards_of(cached)] == [path.read_bytes() for path in shards_of(source)]
    assert cached.splits == {"train": source.splits["train"]}
    assert cached.fingerprint == source.fingerprint
    loaded = load_manifest(cached.directory)
    assert loaded == cached
    assert loaded.directory == cached.directory
    assert len(RecordReader(cached.directory, cached, "train")) == 12  # the index is there


def resize_slowly(image: np.ndarray, side: int) -> np.ndarray:
    """Resizes bilinearly with half-pixel centers, one axis after the other."""
    values = image.astype(np.float64)
    for axis in (0, 1):
        count = values.shape[axis]
        at = np.clip((np.arange(side) + 0.5) * count / side - 0.5, 0, count - 1)
        lower = np.floor(at).astype(int)
        weight = (at - lower).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
        upper = np.minimum(lower + 1, count - 1)
        values = values.take(lower, axis) * (1 - weight) + values.take(upper, axis) * weight
    return values


def test_decoded_records_have_the_pixels_of_the_images(source: Manifest, tmp_path: Path) -> None:
    cached = fill_cache(source, "train", config_of("decoded", tmp_path / "cache"))
    assert load_manifest(cached.directory) == cached
    assert cached.image["encoding"] == "raw"
    assert cached.image["square"] == SIDE
    info, before = cached.splits["train"], source.splits["train"]
    assert info.formats == {"RAW": 12}
    assert (info.class_counts, info.sizes) == (before.class_counts, before.sizes)
    assert [shard.records for shard in info.shards] == [shard.records for shard in before.shards]
    for shard, path in zip(info.shards, shards_of(cached), strict=True):
        assert shard.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    old, new = RecordReader(source.directory, source, "train"), RecordReader(cached.directory, cached, "train")
    for one, other in zip(old, new, strict=True):
        expected = resize_slowly(np.array(Image.open(io.BytesIO(one["image/encoded"][0])).convert("RGB")), SIDE)
        pixels = np.frombuffer(other["image/encoded"][0], np.uint8).reshape(SIDE, SIDE, 3)
        assert np.abs(pixels - expected).max() <= LEVELS[one["image/format"][0]]
        assert other["image/format"] == [b"RAW"]
        for name in one.keys() - CHANGED:
            np.testing.assert_array_equal(other[name], one[name])
        assert one.keys() == other.keys()
    # Raw images of that size stay as they are.
    again = fill_cache(cached, "train", config_of("decoded", tmp_path / "again"))
    assert [path.read_bytes() for path in shards_of(again)] == [path.read_bytes() for path in shards_of(cached)]


@pytest.mark.parametrize("cache", ["bytes", "decoded"])
def test_a_whole_one_is_taken_without_a_look_at_the_source(source: Manifest, tmp_path: Path, cache: str) -> None:
    config = config_of(cache, tmp_path / "cache")
    calls: list[tuple[int, int | None]] = []
    cached = fill_cache(source, "train", config, Notes(calls))
    assert calls[-1] == (12, 12)
    assert calls == sorted(calls)
    before = files_in(cached.directory)
    shutil.rmtree(source.directory)
    calls.clear()
    # How crops are drawn, and the batch, change nothing in it.
    other = dataclasses.replace(config, batch_size=8, seed=7, augment="device", training=False)
    assert fill_cache(source, "train", other, Notes(calls)) == cached
    assert files_in(cached.directory) == before
    assert not calls


def test_other_contents_get_a_folder_of_their_own(source: Manifest, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    decoded = config_of("decoded", folder)
    places = [
        fill_cache(source, "train", config).directory
        for config in (
            config_of("bytes", folder),
            decoded,
            dataclasses.replace(decoded, decoded_size=20),
            dataclasses.replace(decoded, augment_options=AugmentOptions(dct_scaling=False)),
        )
    ]
    places.append(fill_cache(source, "validation", decoded).directory)
    places.append(fill_cache(dataclasses.replace(source, fingerprint="of others"), "train", decoded).directory)
    assert len(set(places)) == len(whole_caches(folder)) == 6
    assert all(load_manifest(place).directory == place for place in places)


def test_none_is_filled_through_a_link(source: Manifest, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "mine").touch()
    config = config_of("bytes", tmp_path / "cache")
    place = Path(CacheFolder(source, "train", config).path)
    place.parent.mkdir()
    place.symlink_to(tmp_path / "outside")
    with pytest.raises(DataError) as caught:
        fill_cache(source, "train", config)
    assert str(caught.value) == (
        f"Nothing is written through a link to another folder, and {place} leads to {tmp_path}/outside. Put the folder "
        "itself in its place, or remove the link."
    )
    assert files_in(tmp_path / "outside") == {"mine": b""}


@pytest.mark.parametrize("damage", ["shard", "cut", "index", "manifest"])
def test_a_damaged_one_is_filled_anew(source: Manifest, tmp_path: Path, damage: str) -> None:
    config = config_of("bytes", tmp_path / "cache")
    cached = fill_cache(source, "train", config)
    before = files_in(cached.directory)
    shard = shards_of(cached)[1]
    if damage == "shard":
        shard.unlink()
    elif damage == "cut":
        os.truncate(shard, 100)
    elif damage == "index":
        next(Path(cached.directory, "index").iterdir()).unlink()
    else:
        Path(cached.directory, "manifest.json").write_text("{")
    assert fill_cache(source, "train", config) == cached
    assert files_in(cached.directory) == before


# Half a cache

FILL = """
import os, signal, sys, time
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.folder_cache.fill import fill_cache
from tfpipe.engine.folder_cache.folder import CacheFolder
from tfpipe.dataset.load import load_manifest
from tfpipe.engine.config.augment_config import AugmentOptions
from tfpipe.system.progress import Observer

manifest, folder = load_manifest(sys.argv[1]), sys.argv[2]

class Marker(Observer):
    def __init__(self, path):
        self.path = path

    def progress(self, progress):
        open(self.path, "w").close()

def fill(cache, name, observer=None):
    config = PipelineConfig(batch_size=4, image_size=14, cache=cache, cache_dir=f"{folder}/{name}")
    fill_cache(manifest, "train", config, observer)

def before_fsync(function):
    real = os.fsync
    def fsync(descriptor):
        function()
        return real(descriptor)
    os.fsync = fsync

def in_child(function):
    child = os.fork()
    if not child:
        try:
            function()
        finally:
            os._exit(0)
    return child

def fill_and_die(cache, moment):
    left = list(range(moment))
    before_fsync(lambda: left.pop() and None or left or os.kill(os.getpid(), signal.SIGKILL))
    fill(cache, f"{cache}-{moment}")

def fill_slowly(number):
    before_fsync(lambda: time.sleep(0.1))
    fill("bytes", "both", Marker(f"{folder}/filled-{number}"))

for cache, moments in (("bytes", (1, 2, 4, 5, 8, 9)), ("decoded", (2, 8))):
    for moment in moments:
        _, status = os.waitpid(in_child(lambda: fill_and_die(cache, moment)), 0)
        assert os.WIFSIGNALED(status), (cache, moment, status)
for child in [in_child(lambda n=n: fill_slowly(n)) for n in range(3)]:
    os.waitpid(child, 0)
"""


def test_killed_and_simultaneous_fillers_leave_whole_caches(source: Manifest, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [sys.executable, "-c", FILL, source.directory, str(tmp_path)]
    subprocess.run(command, env=environment, check=True, timeout=120)
    assert len(list(tmp_path.glob("filled-*"))) == 1
    undisturbed = {}
    for cache in ("bytes", "decoded"):
        undisturbed[cache] = files_in(fill_cache(source, "train", config_of(cache, tmp_path / cache)).directory)
    folders = [path for path in tmp_path.glob("*-*") if path.is_dir()]
    assert len(folders) == 8
    for folder in folders:
        cache = folder.name.split("-")[0]
        for whole in whole_caches(folder):
            assert files_in(whole) == undisturbed[cache]
        assert files_in(fill_cache(source, "train", config_of(cache, folder)).directory) == undisturbed[cache]
        assert not list(folder.rglob("*.tmp"))
    (both,) = whole_caches(tmp_path / "both")
    assert files_in(both) == undisturbed["bytes"]


@pytest.mark.parametrize("cache", ["bytes", "decoded"])
def test_the_next_one_keeps_whole_shards_and_clears_the_rest(source: Manifest, tmp_path: Path, cache: str) -> None:
    config = config_of(cache, tmp_path / "cache")
    cached = fill_cache(source, "train", config)
    before = files_in(cached.directory)
    folder = Path(cached.directory)
    (folder / "manifest.json").unlink()
    first, second = shards_of(cached)
    inode = first.stat().st_ino
    second.rename(f"{second}.tmp")
    (folder / "index" / f"{second.stem}.idx.tmp").write_bytes(b"0 ")
    assert fill_cache(source, "train", config) == cached
    assert files_in(folder) == before
    assert first.stat().st_ino == inode


def test_a_kept_copy_is_checked(source: Manifest, tmp_path: Path) -> None:
    config = config_of("bytes", tmp_path / "cache")
    cached = fill_cache(source, "train", config)
    flip_bit(shards_of(cached)[0], 50)
    Path(cached.directory, "manifest.json").unlink()
    fill_cache(source, "train", config)
    assert [path.read_bytes() for path in shards_of(cached)] == [path.read_bytes() for path in shards_of(source)]


def test_others_wait_and_say_so_once(source: Manifest, tmp_path: Path, caplog) -> None:
    config = config_of("bytes", tmp_path / "cache")
    shutil.rmtree(fill_cache(source, "train", config).directory)
    (lock,) = (tmp_path / "cache").glob(".lock-*")
    caplog.set_level(logging.INFO, "tfpipe")
    with open(lock, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        thread = threading.Thread(target=fill_cache, args=(source, "train", config))
        thread.start()
        deadline = time.monotonic() + 20
        while "Waiting for another process" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not whole_caches(tmp_path / "cache")
    thread.join(20)
    assert caplog.text.count("Waiting") == 1
    assert len(whole_caches(tmp_path / "cache")) == 1


@pytest.mark.parametrize(("cache", "numbers"), [("bytes", r".* KB"), ("decoded", r"15\.5 KB")])
def test_a_disk_that_is_too_small_is_refused(source: Manifest, tmp_path: Path, monkeypatch, cache: str, numbers: str):
    monkeypatch.setattr(host_limits, "free_disk_bytes", lambda _: 2000)
    with pytest.raises(ConfigError, match=rf"needs {numbers} in .*cache, and 2\.0 KB are free there\. Free some"):
        fill_cache(source, "train", config_of(cache, tmp_path / "cache"))
    assert not whole_caches(tmp_path / "cache")


@pytest.mark.parametrize("cache", ["bytes", "decoded"])
def test_a_disk_that_gets_full_is_one_sentence(source: Manifest, tmp_path: Path, monkeypatch, cache: str) -> None:
    calls: list[int] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) >= 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    config = config_of(cache, tmp_path / "cache")
    with pytest.raises(
        DataError, match=r"^Could not write the cache in .*: No space left on device\. Free some space and run again"
    ):
        fill_cache(source, "train", config)
    assert not whole_caches(tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.tmp"))
    monkeypatch.undo()
    assert fill_cache(source, "train", config).splits["train"].records == 12


@pytest.mark.parametrize(("cache", "max_bad_records"), [("bytes", 0), ("bytes", 9), ("decoded", 9)])
def test_a_flipped_bit_is_found_and_named(source: Manifest, tmp_path: Path, cache: str, max_bad_records: int) -> None:
    shard = shards_of(source)[1]
    with open(shard, "rb") as file:
        offset, payload = list(scan_records(file))[2]
    flip_bit(shard, offset + 12 + len(payload) // 2)
    config = config_of(cache, tmp_path / "cache", max_bad_records=max_bad_records)
    with pytest.raises(FormatError) as caught:
        fill_cache(source, "train", config)
    text = str(caught.value)
    assert text.startswith("Every record must be whole to be cached")
    assert str(shard) in text
    assert "ecord 2 " in text
    assert f"byte {offset}" in text
    assert "Copy that file again" in text
    assert not whole_caches(tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.tmp"))


def test_an_image_that_cannot_be_decoded_is_named(source: Manifest, tmp_path: Path) -> None:
    shard = shards_of(source)[0]
    with open(shard, "rb") as file:
        records = list(scan_records(file))
    offset, payload = records[3]
    image = RecordReader(source.directory, source, "train")[3]["image/encoded"][0]
    payload = payload.replace(image, bytes(len(image)))
    frame = record_header(len(payload)) + payload + record_footer(payload)
    data = shard.read_bytes()
    shard.write_bytes(data[:offset] + frame + data[offset + len(frame) :])
    with pytest.raises(FormatError) as caught:
        fill_cache(source, "train", config_of("decoded", tmp_path / "cache"))
    assert f"record 3 of {shard} (byte {offset}) is not: its image cannot be used, " in str(caught.value)
    assert "{{" not in str(caught.value)
    assert "[Op" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "cache", "sentence"),
    [
        (lambda path: path.unlink(), "bytes", r"train-00001-of-00002\.tfrecord is missing\. Copy"),
        (lambda path: path.unlink(), "decoded", r"train-00001-of-00002\.tfrecord is missing\. Copy"),
        (lambda path: os.truncate(path, 99), "bytes", r"must have [\d,]+ bytes, as its manifest says, got 99\. Copy"),
        (lambda path: path.write_bytes(path.read_bytes() * 2), "bytes", r"must have [\d,]+ bytes, as its.*Copy"),
        (
            lambda path: path.write_bytes(b"".join(other_frames(path))),
            "bytes",
            r"must have the SHA-256 of its manifest",
        ),
    ],
)
def test_another_file_than_the_manifest_says(source: Manifest, tmp_path: Path, change, cache: str, sentence: str):
    change(shards_of(source)[1])
    with pytest.raises((FormatError, DataError), match=sentence):
        fill_cache(source, "train", config_of(cache, tmp_path / "cache"))
    assert not whole_caches(tmp_path / "cache")


def other_frames(path: Path) -> list[bytes]:
    """Records with another last byte each, and checksums that fit."""
    with open(path, "rb") as file:
        payloads = [data[:-1] + bytes([data[-1] ^ 1]) for _, data in scan_records(file)]
    return [record_header(len(data)) + data + record_footer(data) for data in payloads]


def test_a_missing_index_is_named(source: Manifest, tmp_path: Path) -> None:
    Path(source.directory, "index", "train-00000-of-00002.idx").unlink()
    for cache in ("bytes", "decoded"):
        with pytest.raises(FormatError, match=r"train-00000-of-00002\.idx is missing\. Copy"):
            fill_cache(source, "train", config_of(cache, tmp_path / "cache"))


def test_options_that_cannot_be_used(source: Manifest, tmp_path: Path) -> None:
    config = config_of("decoded", tmp_path / "cache")
    with pytest.raises(ConfigError, match=r"square `decoded_size`, got 16 x 20: .* Set `decoded_size` to 20"):
        fill_cache(source, "train", dataclasses.replace(config, decoded_size=(16, 20)))
    with pytest.raises(ConfigError, match="local folder as `cache_dir`, got 'decoded' and 'gs://a/b'"):
        fill_cache(source, "train", dataclasses.replace(config, cache_dir="gs://a/b"))
    with pytest.raises(ConfigError, match="got 'none' and None"):
        fill_cache(source, "train", without_cache(config))
    with pytest.raises(ConfigError, match="no split 'test'"):
        fill_cache(source, "test", config)
    assert not (tmp_path / "cache").exists()


def test_a_folder_that_cannot_be_made(source: Manifest, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        DataError, match=r"^Could not write the cache in .*: Not a directory\. Give another `cache_dir`\."
    ):
        fill_cache(source, "train", config_of("bytes", tmp_path / "file" / "cache"))


def test_any_name_of_a_dataset_stays_below_the_folder(source: Manifest, tmp_path: Path) -> None:
    named = dataclasses.replace(source, name="../../été: 1/…")
    cached = fill_cache(named, "train", config_of("bytes", tmp_path / "cache"))
    assert Path(cached.directory).parent == tmp_path / "cache"
    assert cached.name == named.name
