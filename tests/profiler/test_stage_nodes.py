"""tf.data's nodes and the named stages; how the stages are made is in `test_measure.py`."""

from __future__ import annotations

import pytest

from tfpipe.profiler.stage_nodes import kind_of, stages_of

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
