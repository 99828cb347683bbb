"""Another batch size in a run: it begins with an epoch."""

from __future__ import annotations

from typing import Any

import pytest

from tfpipe import change_batch_size
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.source import Source, tfrecord_files
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline.plan.read_plan import ReadPlan


@pytest.mark.parametrize(("step", "size", "first"), [(0, 8, 0), (16, 8, 32), (48, 250, 3), (48, 16, 48)])
def test_an_epoch_begins_with_any_size(many: Manifest, step: int, size: int, first: int) -> None:
    """The dataset has 257 records: 16 steps of 16."""
    config = PipelineConfig(global_batch_size=16, seed=3)
    new, begin = change_batch_size(many, "train", config, step, size)
    assert begin == first
    assert new == PipelineConfig(global_batch_size=size, seed=3)
    assert ReadPlan(Source.from_manifest(many, "train"), new, start_step=begin).start == (step // 16, 0)


@pytest.mark.parametrize(
    ("options", "step", "sentence"),
    [
        (
            {"global_batch_size": 16},
            5,
            "Another batch size must begin with an epoch, got step 5, which is step 5 of epoch 0. Finish this epoch of "
            "16 steps, and go on with global_batch_size=8 from start_step=32.",
        ),
        (
            {"global_batch_size": 16},
            50,
            "Another batch size must begin with an epoch, got step 50, which is step 2 of epoch 3. Finish this epoch "
            "of 16 steps, and go on with global_batch_size=8 from start_step=128.",
        ),
        (
            {"per_replica_batch_size": 16},
            5,
            "`global_batch_size` must be given, got `per_replica_batch_size`. Multiply it by the replicas.",
        ),
        (
            {"global_batch_size": 16, "order": "throughput"},
            5,
            "Only a run in exact order can go on with another batch size, got throughput order.",
        ),
        (
            {"global_batch_size": 258},
            0,
            "`global_batch_size` must be at most the 257 records of an epoch, got 258. Use 257 or less, or more data.",
        ),
    ],
)
def test_what_cannot_go_on(many: Manifest, options: dict[str, Any], step: int, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        change_batch_size(many, "train", PipelineConfig(**options), step, 8)
    assert str(caught.value) == sentence


def test_files_without_an_index_have_no_exact_order(foreign: Any) -> None:
    with pytest.raises(ConfigError, match=r"^Only a run in exact order can go on"):
        change_batch_size(tfrecord_files(str(foreign / "train-*")), None, PipelineConfig(global_batch_size=2), 0, 4)
