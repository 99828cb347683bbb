"""Matching tf.data's nodes to the named stages; `test_profile.py` does so with real pipelines."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfpipe.profiler.measure.stage_matching import (
    BuiltStage,
    Match,
    PlannedOperation,
    find_python_stages,
    get_operation_kind,
    list_planned_operations,
    match_stages,
)

PLANNED = [
    PlannedOperation("Prefetch", "prefetch"),
    PlannedOperation("Map", "batch"),
    PlannedOperation("Batch", "batch"),
    PlannedOperation("Map", "augment"),
    PlannedOperation("Map", "decode"),
    PlannedOperation("Map", "parse"),
    PlannedOperation("Shuffle", "shuffle"),
    PlannedOperation("Interleave", "read"),
    PlannedOperation("FlatMap", "list"),
    PlannedOperation("Range", "repeat"),
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
        ("_RepeatDataset", "Repeat"),
        ("ForeverRepeat", "Repeat"),
        ("FiniteRepeat", "Repeat"),
    ],
)
def test_a_class_and_its_node_are_of_the_same_kind(name: str, kind: str) -> None:
    assert get_operation_kind(name) == kind


def list_stages(nodes: list[str], planned: list[PlannedOperation]) -> list[str]:
    return [match.stage for match in match_stages(nodes, planned)]


def test_nodes_in_the_planned_order_match() -> None:
    nodes = ["Prefetch", "ParallelMapV2", "BatchV2", *["ParallelMapV2"] * 3, "Shuffle", "ParallelInterleaveV4"]
    assert list_stages([*nodes, "FlatMap", "Range"], PLANNED) == [operation.stage for operation in PLANNED]


def test_a_fused_operation_belongs_to_the_earlier_stage() -> None:
    nodes = ["Prefetch", "ParallelMapV2", "MapAndBatch", "ParallelMapV2", "ParallelMapV2", "Shuffle"]
    assert list_stages(nodes, PLANNED) == ["prefetch", "batch", "augment", "decode", "parse", "shuffle"]


def test_a_fused_batch_gives_the_elements_of_the_later_stage() -> None:
    """The node works for both stages. The elements that leave it are batches, of the size that was planned."""
    planned = [PlannedOperation("Batch", "eights", 8), PlannedOperation("Map", "augment"), PLANNED[4]]
    matches = match_stages(["MapAndBatch", "ParallelMapV2"], planned)
    assert matches == [Match("augment", "eights", 8), Match("decode", "decode", None)]


def test_the_size_of_a_batch_is_planned() -> None:
    numbers = tf.data.Dataset.range(3)
    batches = numbers.batch(2, drop_remainder=True).padded_batch(5).batch(tf.random.uniform([], 1, 3, tf.int64))
    parallel = batches.batch(7, num_parallel_calls=2).unbatch().filter(lambda x: True)
    chain = list_planned_operations([BuiltStage("list", None, numbers), BuiltStage("own", numbers, parallel)])
    assert [each.batch_size for each in chain if each.kind.endswith("Batch")][::3] == [7, 2]
    assert [(each.kind, each.batch_size) for each in chain if each.kind == "PaddedBatch"] == [("PaddedBatch", 5)]
    assert {each.batch_size for each in chain if each.kind in ("Filter", "Unbatch", "Range")} == {None}


def test_a_map_that_changes_nothing_is_no_operation() -> None:
    """tf.data does not run it either; a map that changes places, leaves out or computes something does run."""
    pairs = tf.data.Dataset.range(3).map(lambda x: (x, x + 1))
    named = pairs.map(lambda one, other: {"a": one, "b": other})
    assert list_planned_operations([BuiltStage("own", pairs, named)]) == []
    for changed in (
        pairs.map(lambda one, other: {"b": one, "a": other}),
        pairs.map(lambda one, other: one),
        pairs.map(lambda one, other: (one, other + 1)),
    ):
        assert [each.kind for each in list_planned_operations([BuiltStage("own", pairs, changed)])] == ["Map"]


def test_an_added_operation_belongs_to_its_neighbor() -> None:
    nodes = ["Prefetch", "Model", "Map", "BatchV2", "Prefetch", "Map", "Map", "Map", "Shuffle"]
    assert list_stages(nodes, PLANNED) == [
        *("prefetch", "prefetch", "batch", "batch", "batch", "augment", "decode", "parse", "shuffle"),
    ]


def test_an_operation_may_be_left_out() -> None:
    kinds = {"Map": "batch", "Batch": "batch", "AssertCardinality": "batch", "Range": "list"}
    planned = [PlannedOperation(kind, stage) for kind, stage in kinds.items()]
    assert list_stages(["Map", "BatchV2", "Range"], planned) == ["batch", "batch", "list"]


def test_without_a_plan_no_stage_is_known() -> None:
    assert match_stages(["Map"], []) == [Match("", "", None)]


def test_python_functions_are_found_wherever_they_run() -> None:
    """A function that another one calls, as inside an interleave, counts too."""

    def stateful(x: tf.Tensor) -> tf.Tensor:
        return tf.numpy_function(lambda value: value, [x], tf.int64)

    def eager(x: tf.Tensor) -> tf.Tensor:
        return tf.py_function(lambda value: value, [x], tf.int64)

    numbers = tf.data.Dataset.range(3)
    plain = numbers.map(lambda x: x + 1).batch(2).unbatch()
    mapped = plain.map(stateful, num_parallel_calls=2)
    nested = mapped.interleave(lambda x: tf.data.Dataset.from_tensors(x).map(eager))
    stages = [BuiltStage("list", None, plain), BuiltStage("own", plain, mapped), BuiltStage("read", mapped, nested)]
    assert find_python_stages(stages) == {"own", "read"}


def test_the_counter_of_enumerate_is_not_followed() -> None:
    """`enumerate` zips a counter with the stage before."""
    numbers = tf.data.Dataset.range(3).map(lambda x: x + 1)
    counted = numbers.enumerate().map(lambda i, x: x)
    chain = list_planned_operations([BuiltStage("list", None, numbers), BuiltStage("own", numbers, counted)])
    assert [(each.kind, each.stage) for each in chain] == [
        ("Map", "own"),
        ("Zip", "own"),
        ("Map", "list"),
        ("Range", "list"),
    ]
