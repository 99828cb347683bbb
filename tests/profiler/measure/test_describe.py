"""The description of data, and the memory that stages hold."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.profiler.profiles import make_profile
from tfpipe.dataset.load import load_manifest
from tfpipe.engine.config.pipeline_config import PipelineConfig, TfDataOptions
from tfpipe.engine.source import tfrecord_files
from tfpipe.format.manifest import Manifest
from tfpipe.integrity.foreign.index import IndexConfig, index
from tfpipe.profiler.measure.describe import describe_dataset, find_buffers
from tfpipe.profiler.measure.textbook import BuiltStage

CONFIG = PipelineConfig(batch_size=4, image_size=8)


@pytest.fixture(scope="module")
def manifest(small_dataset: Path) -> Manifest:
    return load_manifest(str(small_dataset))


def test_a_manifest_knows_records_and_sizes(manifest: Manifest) -> None:
    info = describe_dataset(manifest, "train", CONFIG, [])
    sizes = manifest.splits["train"].sizes
    assert (info.records, info.by_engine) == (12, True)
    assert (info.formats, info.mean_size) == (("JPEG", "PNG"), (sizes.mean_height, sizes.mean_width))
    assert info.short_side == 9  # 8/7 of the model's 8 pixels, where images have 16 and more
    assert info.own_stages == info.late_caches == info.unread_features == ()
    assert (info.unread_share, info.described, info.shuffled_records) == (0, True, 0)
    assert describe_dataset(manifest, "train", replace(CONFIG, image_size=20), []).short_side is None  # hardly larger
    buffer = replace(CONFIG, order="throughput", tf_data=TfDataOptions(shuffle_buffer_size=5))
    assert describe_dataset(manifest, "train", buffer, []).shuffled_records == 5
    assert describe_dataset(manifest, "train", replace(buffer, training=False), []).shuffled_records == 0


def test_foreign_files_know_little(small_dataset: Path) -> None:
    info = describe_dataset(tfrecord_files(f"{small_dataset}/train-*"), None, CONFIG, [])
    assert (info.records, info.by_engine) == (12, False)
    assert (info.formats, info.mean_size, info.short_side) == ((), None, None)


@pytest.mark.parametrize("described", [True, False])
def test_unread_features_and_counts_of_foreign_files(foreign: Any, tmp_path: Path, described: bool) -> None:
    records = [{**record, "blob/a": b"x" * 4000, "blob/b": [1.0] * 2000} for record in foreign.records(0, 8)]
    foreign.write(tmp_path / "train-0.tfrecord", records, "GZIP")
    index(IndexConfig(str(tmp_path)))
    data = load_manifest(str(tmp_path)) if described else tfrecord_files(f"{tmp_path}/train-*")
    info = describe_dataset(data, "train" if described else None, CONFIG, [])
    size = sum(len(foreign.example(record)) for record in records) / 8
    assert info.unread_features == ("blob/b", "blob/a")
    assert info.unread_share == pytest.approx(12_000 / size, abs=0.01)
    assert (info.records, info.described, info.compression) == (8, described, "GZIP")
    assert info.unpacked_record_bytes == pytest.approx(size)
    read = replace(CONFIG, extra_features=("blob/b",))
    assert describe_dataset(data, "train" if described else None, read, []).unread_features == ("blob/a",)


@pytest.mark.parametrize(("training", "number"), [(True, 2000), (False, 400)])
def test_a_shuffle_of_images_holds_several_epochs_of_a_training(training: bool, number: int) -> None:
    """400 records are repeated in front of it in a training, and read once in an evaluation."""
    source = tf.data.Dataset.range(400)
    built = [BuiltStage("mix", source, source.shuffle(2000))]
    profile = make_profile(dataset={"records": 400}, config={"training": training, "prefetch_batches": 0})
    (buffer,) = find_buffers(profile, built, {"mix": 150_000.0})
    assert (buffer.stage, buffer.what, buffer.number, buffer.num_bytes) == ("mix", "elements", number, number * 150_000)
