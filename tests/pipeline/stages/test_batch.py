"""Batches as a trainer gets them: labels, masks, and equally many batches on every host."""

import numpy as np
import pytest
import tensorflow as tf

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline.build import build_dataset
from tfpipe.pipeline.stages import masked_sum

EVALUATION = {"training": False, "image_size": 8, "batch_size": 8}


def first(manifest: Manifest, split: str = "train", **options):
    return next(build_dataset(manifest, split, PipelineConfig(**{**EVALUATION, **options})).as_numpy_iterator())


def test_labels(few: Manifest) -> None:
    batch = first(few)
    assert batch["label"].dtype == np.int32
    assert batch["label"].tolist() == [i % 3 for i in range(8)]
    batch = first(few, one_hot=True)
    assert batch["label"].dtype == np.float32
    np.testing.assert_array_equal(batch["label"], np.eye(3)[np.arange(8) % 3])


def test_tuples(few: Manifest) -> None:
    image, label, mask = first(few, "validation", as_supervised=True, batch_size=6)
    assert (image.shape, label.tolist(), mask.tolist()) == ((6, 8, 8, 3), [0, 1, 2, 0, 1, 2], [1.0] * 6)
    assert mask.dtype == np.float32
    inputs, _, mask = first(
        few, "validation", as_supervised=True, augment="device", extra_features=("id",), batch_size=10
    )
    assert set(inputs) == {"image", "crop", "flip", "id"}
    assert inputs["image"].shape == (8, 9, 9, 3)  # in its true size
    assert mask.tolist() == [1.0] * 8
    batch = first(few, "validation", augment="device", extra_features=("id",), batch_size=10)
    middle, whole = [0, 2 / 14, 0.9, 11 / 14], [0, 0, 1, 1]  # 9 x 9 of 10 x 14 pixels; and where no record is
    np.testing.assert_array_equal(batch["crop"], np.float32([middle] * 8 + [whole] * 2))
    assert not batch["flip"].any()
    inputs, label = first(few, as_supervised=True, augment="device", training=True)
    assert set(inputs) == {"image", "crop", "flip"}
    assert (inputs["crop"].shape, inputs["crop"].dtype) == ((8, 4), np.float32)
    assert (inputs["flip"].shape, inputs["flip"].dtype) == ((8,), np.uint8)
    assert label.shape == (8,)


@pytest.mark.parametrize("order", ["exact", "throughput"])
def test_pairs_of_one_replica_have_each_record_once_and_nothing_else(few: Manifest, context, order: str) -> None:
    config = PipelineConfig(**EVALUATION, as_supervised=True, order=order, extra_features=("id", "pair"))
    one = build_dataset(few, "train", config)
    assert int(one.cardinality()) in (3, tf.data.UNKNOWN_CARDINALITY)
    assert [(x["id"].tolist(), y.shape, mask.tolist()) for x, y, mask in one.as_numpy_iterator()] == [
        (list(range(first, end)), (end - first,), [1.0] * (end - first)) for first, end in ((0, 8), (8, 16), (16, 23))
    ]
    for hosts, replicas in ((1, 2), (2, 2)):
        batches = build_dataset(few, "train", config, context(hosts, 0, replicas)).as_numpy_iterator()
        assert {len(mask) for _, _, mask in batches} == {4}


def test_a_host_with_several_replicas_has_a_batch_for_each(few: Manifest, context) -> None:
    config = PipelineConfig(**{**EVALUATION, "batch_size": 12}, extra_features=("id",))
    hosts = [build_dataset(few, "train", config, context(2, host, 4)) for host in range(2)]
    assert [dataset.cardinality() for dataset in hosts] == [4, 4]  # two steps
    batches = [batch for dataset in hosts for batch in dataset.as_numpy_iterator()]
    assert [len(batch["id"]) for batch in batches] == [3] * 8
    assert sorted(int(i) for batch in batches for i in batch["id"][batch["mask"]]) == list(range(23))


def test_training_is_endless(few: Manifest) -> None:
    dataset = build_dataset(few, "train", PipelineConfig(batch_size=4, image_size=8))
    assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    assert dataset.element_spec["image"] == tf.TensorSpec([4, 8, 8, 3], tf.uint8)
    assert dataset.element_spec["label"] == tf.TensorSpec([4], tf.int32)
    assert set(dataset.element_spec) == {"image", "label"}


def test_the_mean_over_real_examples() -> None:
    values = tf.constant([1.0, 3.0, np.nan, np.inf])
    for mask in (tf.constant([True, True, False, False]), tf.constant([1.0, 1.0, 0.0, 0.0])):
        total, count = masked_sum(values, mask)
        assert (float(total), float(count)) == (4.0, 2.0)
        assert total.dtype == count.dtype == tf.float32
    total, count = masked_sum(tf.constant([True, False, True]), tf.constant([True, True, False]))
    assert (float(total), float(count)) == (1.0, 2.0)
    total, count = masked_sum(tf.constant([7, 9]), tf.constant([False, False]))
    assert (float(total), float(count)) == (0.0, 0.0)
