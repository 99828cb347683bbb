"""An indexed dataset in the pipeline: the exact order, a run that resumes at any step, and labels from 0."""

import dataclasses
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.flipped_bit import flip_bit
from tests.refusals import refusal
from tfpipe.dataset.load import load_manifest
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.order import Order
from tfpipe.engine.source import Source, tfrecord_files
from tfpipe.errors import ConfigError, FormatError
from tfpipe.format.manifest import Manifest
from tfpipe.integrity.foreign.index import IndexConfig, index
from tfpipe.pipeline.build import build_dataset, build_stages

IDS = PipelineConfig(batch_size=8, augment="none", image_size=8, extra_features=("id",), block_records=3)


@pytest.fixture(scope="module")
def indexed(foreign, tmp_path_factory) -> Manifest:
    return index(IndexConfig(str(foreign.imagenet(tmp_path_factory.mktemp("imagenet"))))).manifest


@pytest.fixture(scope="module")
def packed(foreign, tmp_path_factory) -> Manifest:
    return index(IndexConfig(str(foreign.imagenet(tmp_path_factory.mktemp("packed"), "GZIP")))).manifest


def ids(data: object, split: str | None, config: PipelineConfig, steps: int, start_step: int = 0, **host) -> list:
    context = tf.distribute.InputContext(**host) if host else None
    dataset = build_dataset(data, split, config, context, start_step).take(steps)  # type: ignore[arg-type]
    return [batch["id"].numpy().tolist() for batch in dataset]


def flat(batches: list[list[int]]) -> list[int]:
    return list(chain.from_iterable(batches))


def order_of(steps: int, first_step: int = 0) -> list[list[int]]:
    """Lists the ids of each step's batch by `tfpipe.engine.order`."""
    order = Order(40, 8, 3, IDS.seed)
    return [order.list_numbers(*order.locate(step)).tolist() for step in range(first_step, first_step + steps)]


def test_global_batches_are_those_of_the_exact_order_and_labels_count_from_0(indexed: Manifest) -> None:
    assert (indexed.label_base, indexed.label_names) == (1, ("1", "2", "3"))
    config = dataclasses.replace(IDS, one_hot=True, extra_features=("id", "image/class/label"))
    batches = list(build_dataset(indexed, "train", config).take(10).as_numpy_iterator())
    assert [batch["id"].tolist() for batch in batches] == order_of(10)
    for batch in batches:
        assert batch["label"].shape == (8, 3)  # one-hot has a place for each
        labels = np.argmax(batch["label"], axis=1)
        assert labels.tolist() == (batch["id"] % 3).tolist()
        assert batch["image/class/label"].tolist() == (labels + 1).tolist()
        assert batch["label"].sum() == 8


@pytest.mark.parametrize(
    ("augment", "cache"),
    [
        ("host", "none"),
        ("device", "bytes"),
        ("host", "decoded"),
        pytest.param("device", "none", marks=pytest.mark.slow),
        pytest.param("host", "bytes", marks=pytest.mark.slow),
        pytest.param("device", "decoded", marks=pytest.mark.slow),
    ],
)
def test_every_record_is_evaluated_once(indexed: Manifest, augment, cache) -> None:
    size = 8 if augment == "device" else None
    config = dataclasses.replace(IDS, training=False, augment=augment, cache=cache, decoded_size=size)
    batches = list(build_dataset(indexed, "validation", config))
    found = [i for b in batches for i, m in zip(b["id"].numpy(), b["mask"].numpy(), strict=True) if m]
    assert found == list(range(40, 47))


def test_sizes_come_from_the_headers_and_a_cache_in_files_is_refused(indexed: Manifest, tmp_path: Path) -> None:
    images = Source.from_manifest(indexed, "train").images
    assert (images.formats, images.size) == ({"JPEG", "PNG"}, None)
    assert not Source.from_manifest(indexed, "train").has_sizes
    with pytest.raises(ConfigError, match="A cache in files needs a dataset that tfpipe wrote"):
        build_dataset(indexed, "train", dataclasses.replace(IDS, cache="bytes", cache_dir=str(tmp_path)))


def test_a_damaged_record_is_left_out_with_skip(foreign, tmp_path: Path) -> None:
    folder = foreign.imagenet(tmp_path)
    index(IndexConfig(str(folder)))
    path = folder / "train-00001-of-00004"
    flip_bit(path, path.stat().st_size // 2)
    config = dataclasses.replace(IDS, max_bad_records=2)
    rows = flat(ids(load_manifest(str(folder)), "train", config, 4))
    assert len(rows) == 32
    assert len(set(rows)) == 31  # another record takes the place of the damaged one
    assert "train-00001-of-00004" in refusal(tf.errors.OpError, ids, load_manifest(str(folder)), "train", IDS, 5)
    foreign.write(folder / "train-00000-of-00004", foreign.records(0, 3))
    with pytest.raises(FormatError, match=r"train-00000-of-00004 must have .* bytes, .* run `tfpipe index` again\."):
        build_dataset(load_manifest(str(folder)), "train", IDS)


@pytest.mark.parametrize("cache", ["none", "bytes", "decoded"])
def test_compressed_files_are_read_in_throughput_order(packed: Manifest, cache) -> None:
    assert packed.compression == "GZIP"
    config = dataclasses.replace(IDS, cache=cache)
    assert "throughput" in str(build_stages(packed, "train", IDS))
    found = flat(ids(packed, "train", config, 15))  # the shuffle buffer mixes epochs, so some come late
    assert set(found) <= set(range(40))
    assert len(set(found)) > 25


def test_exact_order_of_compressed_files_is_refused(packed: Manifest) -> None:
    assert refusal(ConfigError, build_dataset, packed, "train", dataclasses.replace(IDS, order="exact")) == (
        f"`order` exact must know where each record lies, and the files of 'train' of {packed.directory} are GZIP "
        "compressed, and are read from their beginning only. Use order='throughput', or write the files anew by "
        "`tfpipe reshard --opaque`."
    )
    with pytest.raises(
        ConfigError, match=r"`max_bad_records` is 100: that is for batches by their steps, and .* are GZIP"
    ):
        build_dataset(packed, "train", dataclasses.replace(IDS, max_bad_records=100))


@pytest.mark.parametrize(
    "cache", ["bytes", pytest.param("none", marks=pytest.mark.slow), pytest.param("decoded", marks=pytest.mark.slow)]
)
def test_compressed_files_are_evaluated_once(packed: Manifest, cache) -> None:
    batches = list(build_dataset(packed, "validation", dataclasses.replace(IDS, training=False, cache=cache)))
    assert [i for b in batches for i in b["id"].numpy()[b["mask"].numpy()]] == list(range(40, 47))


def test_compressed_files_cannot_be_shared_out_for_evaluation(packed: Manifest) -> None:
    config = dataclasses.replace(IDS, training=False)
    with pytest.raises(ConfigError, match="Evaluation on 2 hosts needs to know where each record lies"):
        ids(packed, "validation", config, 1, num_input_pipelines=2, input_pipeline_id=0, num_replicas_in_sync=2)


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
def test_files_by_a_pattern_are_unpacked_by_their_first_bytes(foreign, tmp_path: Path, compression) -> None:
    source = tfrecord_files(str(foreign.imagenet(tmp_path, compression) / "train-*"))
    assert source.compression == compression
    assert sorted(flat(ids(source, None, dataclasses.replace(IDS, training=False), 5))) == list(range(40))
