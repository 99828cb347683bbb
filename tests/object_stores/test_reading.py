"""Datasets of gs:// and s3://, read by every reader: what comes equals what a local copy gives, byte for byte."""

import gc
import itertools
import json
import pickle
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from tests.beam_jobs.commands import run_python
from tests.beam_jobs.datasets import read_tree
from tests.layers.growth import append, draw_more, find_part, list_names
from tests.object_stores.conftest import Amazon
from tests.object_stores.folder_store import FolderStore, serve_to_this_process
from tests.refusals import refusal
from tfpipe import PipelineConfig, add_column, build_dataset, load_manifest
from tfpipe.engine import batch
from tfpipe.engine.open_maker import open_maker
from tfpipe.engine.plan import plan_batches
from tfpipe.engine.source import get_source
from tfpipe.errors import ConfigError, DataError, FormatError, first_line
from tfpipe.fields import Values
from tfpipe.integrity.verify import VerifyConfig, verify
from tfpipe.layers.delete import delete_records
from tfpipe.pipeline.build import build_stages
from tfpipe.readers.data_source import data_source
from tfpipe.storage import stores

CONFIG = PipelineConfig(batch_size=4, image_size=16, seed=3)


_READ = """
import itertools, json, sys
from dataclasses import replace
import tfpipe
from tfpipe.storage import stores
stores._has_obstore = lambda: False  # TensorFlow's own client is tested here
def read(place):
    manifest = tfpipe.load_manifest(place)
    config = tfpipe.PipelineConfig(batch_size=4, seed=3, extra_features=("image/filename",))
    evaluation = tfpipe.build_dataset(manifest, "train", replace(config, training=False))
    stages = tfpipe.build_stages(manifest, "train", config, start_step=2)
    trained = [batch["image/filename"].numpy() for batch in itertools.islice(stages.dataset(), 24)]
    return [
        [[float(x) for x in batch["image"].numpy().sum(axis=(1, 2, 3))] for batch in evaluation],
        stages[0].settings["order"],
        [len(names) for names in trained],
        sorted({name.decode() for names in trained for name in names}),
    ]
print(json.dumps([read(place) for place in sys.argv[1:]]))
"""


@pytest.fixture
def copy(small_dataset: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_dataset, tmp_path / "photos"))


@pytest.fixture
def store(copy: Path, monkeypatch) -> Iterator[FolderStore]:
    """A store that holds the copy under gs://data/photos."""
    with serve_to_this_process(copy.parent, monkeypatch) as store:
        yield store


@pytest.fixture
def bucket(amazon: Amazon, small_dataset: Path) -> Iterator[str]:
    stores.configure()
    yield amazon.put(amazon.new(), read_tree(small_dataset))
    stores.configure()


def read(place: str | Path, config: PipelineConfig, steps: int, split: str = "train", begin: int = 0) -> list[Any]:
    dataset = build_dataset(load_manifest(str(place)), split, config, start_step=begin)
    return [{name: np.array(value) for name, value in batch.items()} for batch in itertools.islice(dataset, steps)]


def list_values(dataset: str | Path, feature: str) -> list[Any]:
    return [record.features[feature].tolist() for record in data_source(str(dataset), "train")]


def assert_equal(left: list[Any], right: list[Any]) -> None:
    assert len(left) == len(right) > 0
    for one, other in zip(left, right, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            np.testing.assert_array_equal(np.asarray(value), np.asarray(other[name]), err_msg=name)


SLOW_OPTIONS = ({"cache": "decoded"}, {"extra_features": ("image/filename",)}, {"augment": "device"})


@pytest.mark.parametrize(
    "options", [{}, {"cache": "bytes"}, *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW_OPTIONS)], ids=str
)
def test_training_in_tensorflow(store: FolderStore, copy: Path, options: dict[str, Any]) -> None:
    config = replace(CONFIG, **options)
    local = replace(config, order="exact")
    assert_equal(read("gs://data/photos", config, 7), read(copy, local, 7))
    if config.cache == "none":
        assert_equal(read("gs://data/photos", config, 2, begin=5), read(copy, local, 7)[5:])


@pytest.mark.slow
def test_tensorflows_own_client_reads_in_throughput_order(store: FolderStore, copy: Path) -> None:
    """In that order a run goes on with any records; an evaluation is that of a local copy."""
    done = run_python("-c", _READ, "gs://data/photos", copy, TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")
    assert done.returncode == 0, done.stderr[-3000:]
    remote, local = json.loads(done.stdout.splitlines()[-1])
    assert (remote.pop(1), local.pop(1)) == ("throughput", "exact")
    assert remote == local
    evaluation, batches, names = remote
    assert ([len(sums) for sums in evaluation], batches, len(names)) == ([4] * 3, [4] * 24, 12)


def test_columns_come_with_their_records(store: FolderStore, copy: Path) -> None:
    add_column(copy, "place", lambda record: [record.index, 7], Values("int64", (2,)))
    for options in ({}, {"training": False, "batch_size": 2}):
        config = replace(CONFIG, extra_features=("place", "image/filename"), **options)
        assert_equal(read("gs://data/photos", config, 6), read(copy, replace(config, order="exact"), 6))
    places = list_values("gs://data/photos", "place")
    assert places[7] == [7, 7]
    assert places == list_values(copy, "place")
    assert verify("gs://data/photos", VerifyConfig(quick=True, workers=0)).damaged == []
    file = f"{find_part(copy, 'column')}/train-00000-of-00002.tfrecord"
    Path(copy, file).write_bytes(b"")
    damaged = verify("gs://data/photos", VerifyConfig(quick=True, workers=0)).damaged
    assert {damage.file for damage in damaged} == {file}


def test_layers_are_read_and_appended_in_a_bucket(bucket: str, amazon: Amazon, copy: Path, tmp_path: Path) -> None:
    append(copy, draw_more(tmp_path / "more"))
    delete_records(str(copy), [list_names(copy)[k] for k in (2, 13)])
    add_column(copy, "index", lambda record: record.index, Values("int64"))
    grown = amazon.put(amazon.new(), read_tree(copy))
    assert_equal(read(grown, CONFIG, 6), read(copy, replace(CONFIG, order="exact"), 6))
    assert list_values(grown, "index") == list_values(copy, "index")
    assert verify(grown, VerifyConfig(quick=True, workers=0)).damaged == []
    append(bucket, tmp_path / "more", num_shards=2)
    assert list_names(bucket) == list_names(f"{copy}@2")
    assert list_names(f"{bucket}@1") == list_names(f"{copy}@1")
    with pytest.raises(ConfigError, match=r"^A dataset is read from a local directory, got "):
        delete_records(bucket, ["a"])


def test_a_column_is_added_in_a_bucket(bucket: str, amazon: Amazon, copy: Path) -> None:
    """One that a killed run left unfinished is not there yet, and the same call completes it."""

    def count(record: Any) -> int:
        return int(record.index)

    def fail(record: Any) -> int:
        if record.split == "validation":
            raise RuntimeError("no memory")
        return count(record)

    fail.__qualname__ = count.__qualname__  # the same job
    assert "RuntimeError: no memory" in refusal(DataError, add_column, bucket, "index", fail, Values("int64"))
    base = f"{bucket.split('/', 3)[3]}/"
    assert any("/.tfpipe-write/rows/train-" in name for name in amazon.names() if name.startswith(f"{base}columns/"))
    assert load_manifest(bucket).columns == ()
    add_column(bucket, "index", count, Values("int64"))
    add_column(str(copy), "index", count, Values("int64"))
    assert amazon.tree(f"{bucket}/columns") == read_tree(copy / "columns")
    assert list_values(bucket, "index") == [[k] for k in range(12)]
    assert amazon.get(f"{base}catalog") == Path(copy, "catalog").read_bytes()
    with pytest.raises(ConfigError, match=r"has a feature 'index' in its column 'index'\. Give the new one another"):
        add_column(bucket, "index", count, Values("int64"))
    add_column(bucket, "index", lambda record: -1, Values("int64"), replace=True)
    assert list_values(bucket, "index") == [[-1]] * 12
    left = {name.removeprefix(base).rpartition("/")[0] for name in amazon.names() if name.startswith(f"{base}columns/")}
    assert left == {find_part(bucket, "column"), f"{find_part(bucket, 'column')}/index"}


def test_the_stage_says_what_reads(store: FolderStore) -> None:
    stages = build_stages(load_manifest("gs://data/photos"), "train", CONFIG)
    assert "reader=obstore" in str(stages)
    assert "one call reads the records of a batch, each from its place" in str(stages)


def test_the_engine_asks_for_a_block_at_once(store: FolderStore, monkeypatch) -> None:
    """Each of two rows reads two blocks of three records; the second row reads its first block in two pieces."""
    config = replace(CONFIG, batch_size=2, block_records=3)
    plan = plan_batches(get_source(load_manifest("gs://data/photos"), "train"), config)
    maker = open_maker(plan)
    assert maker.block_steps == 3
    steps = [maker.plan.list_numbers(0, step) for step in range(6)]
    rows = np.stack(steps, axis=1)
    begins = np.diff(rows, axis=1, prepend=-9) != 1
    begins |= rows == 6  # of the second file
    store.log.clear()
    for step, numbers in enumerate(steps):
        maker.announce(numbers, steps[step : step + maker.block_steps])
        maker.read(0, step, numbers)
    assert len([request for request in store.log if request.path.endswith("tfrecord")]) <= begins.sum() < rows.size
    monkeypatch.setattr(batch, "_MOST_BLOCK_BYTES", 5 * plan.source.record_bytes)  # two batches and a half
    assert open_maker(plan).block_steps == 2


def test_what_tensorflow_would_have_to_read(bucket: str) -> None:
    manifest = load_manifest(bucket)
    assert refusal(ConfigError, build_dataset, manifest, "train", replace(CONFIG, order="throughput")) == (
        f"TensorFlow must read {bucket}/train-00000-of-00002.tfrecord, because `order` is throughput, and it cannot. "
        "Leave that out, or copy the dataset to a local disk."
    )


def test_s3_is_refused_without_a_client(small_dataset: Path, monkeypatch) -> None:
    """TensorFlow has none for s3://."""
    stores.configure()
    monkeypatch.setattr(stores, "can_read", lambda url: False)
    sentence = (
        r"^TensorFlow cannot read s3:// URLs, got s3://data/out.*\. Copy the dataset to a local disk or to gs://, "
        r"install tfpipe\[cloud\], or mount the bucket as a folder and name that\.$"
    )
    with pytest.raises(DataError, match=sentence):
        load_manifest("s3://data/out")
    manifest = replace(load_manifest(str(small_dataset)), directory="s3://data/out")
    with pytest.raises(DataError, match=sentence):
        build_dataset(manifest, "train", PipelineConfig(batch_size=2))


def test_what_needed_tensorflow_once(bucket: str, small_dataset: Path, tmp_path: Path) -> None:
    for options in ({"max_bad_records": 100}, {"cache": "bytes", "cache_bytes": 4000}):
        config = replace(CONFIG, **options)
        assert_equal(read(bucket, config, 5), read(small_dataset, config, 5))
    cached = replace(CONFIG, cache="bytes", cache_dir=str(tmp_path / "bytes"))
    for begin in (3, 0):
        assert_equal(read(bucket, cached, 5 - begin, begin=begin), read(small_dataset, CONFIG, 5)[begin:])
    decoded = replace(CONFIG, cache="decoded", cache_dir=str(tmp_path / "decoded"))
    assert_equal(read(bucket, decoded, 5), read(bucket, decoded, 5))


def test_a_public_bucket_needs_no_credentials(amazon: Amazon, bucket: str, monkeypatch, tmp_path: Path) -> None:
    """Without credentials requests are not signed."""
    ask = Mock(wraps=amazon.proxy.ask)
    monkeypatch.setattr(amazon.proxy, "ask", ask)
    assert load_manifest(bucket).splits["train"].records == 12
    for name in amazon.keys:
        if name != "AWS_EC2_METADATA_DISABLED":
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    name = f"{bucket.removeprefix('s3://data/')}/manifest.json"
    amazon._client.put_object_acl(Bucket="data", Key=name, ACL="public-read")
    stores.configure()
    assert load_manifest(bucket).splits["train"].records == 12
    signed = ["authorization" in headers for _, _, headers, _ in (call.args for call in ask.mock_calls)]
    assert signed == [True] * 2 + [False] * 2  # the manifest and the catalog


def test_a_store_that_denies(amazon: Amazon, bucket: str, caplog) -> None:
    amazon.proxy.harm = lambda _: 403
    with pytest.raises(DataError, match=r"manifest\.json cannot be read: Permission denied, the store says: HTTP"):
        load_manifest(bucket)
    amazon.proxy.harm = lambda seen: 403 if seen.path.endswith("/catalog") else None
    assert load_manifest(bucket).splits["train"].records == 12
    (told,) = (record.getMessage() for record in caplog.records if record.name == "tfpipe.dataset.dataset_files")
    assert told.startswith(f"{bucket} is read without columns and layers, which cannot be looked up: {bucket}/catalog ")


@pytest.mark.parametrize("chosen", [[5], [3, 0, 11, 4, 3], list(range(12))])
def test_records_by_their_numbers(store: FolderStore, copy: Path, chosen: list[int]) -> None:
    remote, local = data_source("gs://data/photos", "train"), data_source(str(copy), "train")
    assert len(remote) == len(local) == 12
    assert [record.encoded for record in remote[chosen]] == [record.encoded for record in local[chosen]]
    assert [record.label for record in remote[chosen]] == [record.label for record in local[chosen]]
    assert pickle.loads(pickle.dumps(remote))[-1].encoded == local[-1].encoded


def _make_pytorch(directory: str, config: PipelineConfig, **options: Any) -> Any:
    from tfpipe.readers.torch import TorchBatches, data_loader

    return data_loader(TorchBatches(load_manifest(directory), "train", config), **options)


def _make_jax(directory: str, config: PipelineConfig) -> Any:
    from tfpipe.readers.jax import JaxBatches

    return JaxBatches(load_manifest(directory), "train", config)


def take(loader: Any, count: int) -> list[Any]:
    """Takes batches over several epochs."""
    return list(itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), count))


@pytest.mark.parametrize("make", [lambda *args: _make_pytorch(*args, num_workers=0), _make_jax], ids=["PyTorch", "JAX"])
def test_other_frameworks(store: FolderStore, copy: Path, make: Callable[..., Any]) -> None:
    for options in ({}, {"block_records": 2}, {"training": False, "batch_size": 2}):
        config = replace(CONFIG, **options)
        assert_equal(take(make("gs://data/photos", config), 7), take(make(str(copy), config), 7))


@pytest.mark.slow
def test_workers_of_pytorch_begin_anew(store: FolderStore, copy: Path) -> None:
    """A forked worker could not read: so they are not forked, unless somebody asks for it."""
    loader = _make_pytorch("gs://data/photos", CONFIG, num_workers=2)
    assert_equal(take(loader, 4), take(_make_pytorch(str(copy), CONFIG, num_workers=0), 4))


def test_a_forked_worker_of_pytorch_is_refused(store: FolderStore) -> None:
    forked = _make_pytorch("gs://data/photos", CONFIG, num_workers=1, start_method="fork")
    assert "A forked process cannot read gs://data/photos" in refusal(DataError, next, iter(forked))
    gc.collect()  # ends the workers: without the store PyTorch waits for each of them for five seconds


@pytest.mark.parametrize("framework", ["TensorFlow", "JAX"])
def test_a_damaged_record_is_named(store: FolderStore, copy: Path, framework: str) -> None:
    shard = copy / "train-00000-of-00002.tfrecord"
    data = bytearray(shard.read_bytes())
    data[200] ^= 1
    shard.write_bytes(data)
    with pytest.raises(Exception, match=r"[Rr]ecord") as remote:
        take(_make_jax("gs://data/photos", CONFIG), 3) if framework == "JAX" else read("gs://data/photos", CONFIG, 3)
    with pytest.raises(Exception, match=r"[Rr]ecord") as local:
        take(_make_jax(str(copy), CONFIG), 3) if framework == "JAX" else read(copy, CONFIG, 3)
    assert first_line(remote.value).replace("gs://data/photos", str(copy)) == first_line(local.value)


def test_a_missing_file_is_named(store: FolderStore, copy: Path) -> None:
    (copy / "train-00001-of-00002.tfrecord").unlink()
    sentence = "gs://data/photos/train-00001-of-00002.tfrecord is missing. Copy the dataset again."
    assert refusal(FormatError, read, "gs://data/photos", CONFIG, 1) == sentence
    source = data_source("gs://data/photos", "train")
    with pytest.raises(FormatError, match=r"train-00001-of-00002\.tfrecord is missing\. Copy the dataset again"):
        source[11]
