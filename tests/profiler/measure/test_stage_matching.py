"""tf.data's nodes and the named stages; how the stages are made is in `test_measure.py`."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfpipe.profiler.measure.stage_matching import kind_of, planned_chain, python_stages, stages_of

PLANNED = [
    ("Prefetch", "prefetch"),
    ("Map", "batch"),
    ("Batch", "batch"),
    ("Map", "augment"),
    ("Map", "decode"),
    ("Map", "parse"),
    ("Shuffle", "shuffle"),
    ("Interleave", "read"),
    ("FlatMap", "list"),
    ("Range", "repeat"),
]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("_ParallelMapDataset", "Map"),
        ("ParallelMapV2", "Map"),
        ("BatchV2", "Batch"),
        ("_BatchDataset", "Batch"),
        ("ParallelInterleaveV4", "Interleave"),
        ("CacheDataset", "Cache"),
        ("MemoryCacheImpl", "Cache"),
        ("_UnbatchDataset", "Unbatch"),
        ("TensorSlice", "TensorSlice"),
    ],
)
def test_both_names(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_as_planned() -> None:
    nodes = ["Prefetch", "ParallelMapV2", "BatchV2", *["ParallelMapV2"] * 3, "Shuffle", "ParallelInterleaveV4"]
    assert stages_of([*nodes, "FlatMap", "Range"], PLANNED) == [stage for _, stage in PLANNED]


def test_what_is_fused_belongs_to_the_earlier_stage() -> None:
    nodes = ["Prefetch", "ParallelMapV2", "MapAndBatch", "ParallelMapV2", "ParallelMapV2", "Shuffle"]
    assert stages_of(nodes, PLANNED) == ["prefetch", "batch", "augment", "decode", "parse", "shuffle"]


def test_what_is_added_belongs_to_its_neighbour() -> None:
    nodes = ["Prefetch", "Model", "Map", "BatchV2", "Prefetch", "Map", "Map", "Map", "Shuffle"]
    assert stages_of(nodes, PLANNED) == [
        *("prefetch", "prefetch", "batch", "batch", "batch", "augment", "decode", "parse", "shuffle"),
    ]


def test_what_is_left_out() -> None:
    planned = [("Map", "batch"), ("Batch", "batch"), ("AssertCardinality", "batch"), ("Range", "list")]
    assert stages_of(["Map", "BatchV2", "Range"], planned) == ["batch", "batch", "list"]


def test_nothing_planned() -> None:
    assert stages_of(["Map"], []) == [""]


def test_python_functions_are_found_wherever_they_run() -> None:
    """Also in a function that a function calls, as inside an interleave."""

    def one(x: tf.Tensor) -> tf.Tensor:
        return tf.numpy_function(lambda value: value, [x], tf.int64)

    def two(x: tf.Tensor) -> tf.Tensor:
        return tf.py_function(lambda value: value, [x], tf.int64)

    numbers = tf.data.Dataset.range(3)
    plain = numbers.map(lambda x: x + 1).batch(2).unbatch()
    mapped = plain.map(one, num_parallel_calls=2)
    nested = mapped.interleave(lambda x: tf.data.Dataset.from_tensors(x).map(two))
    stages = [("list", None, plain), ("own", plain, mapped), ("read", mapped, nested)]
    assert python_stages(stages) == {"own", "read"}


def test_a_stage_that_counts() -> None:
    """`enumerate` zips a counter with the stage before."""
    numbers = tf.data.Dataset.range(3).map(lambda x: x + 1)
    counted = numbers.enumerate().map(lambda i, x: x)
    chain = planned_chain([("list", None, numbers), ("own", numbers, counted)])
    assert chain == [("Map", "own"), ("Zip", "own"), ("Map", "list"), ("Range", "list")]
