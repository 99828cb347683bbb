"""Another batch size in the middle of a run: each record of the epoch still comes at most once."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest

from tfpipe import build_dataset, change_batch_size
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.source import get_source
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.system.hash_permutation import IntArray

LANES = {"num_streams": 2, "run_records": 4, "lanes": 8}


def get_order(data: Manifest, config: PipelineConfig, steps: range) -> IntArray:
    """The records of some steps of the first epoch: int64 [steps, streams, share], numbered through all shards."""
    plan = ReadPlan(get_source(data, "train"), config)
    batches = [plan.order.batch(0, step, plan.global_batch_size) for step in steps]
    numbers = [plan.order.shard_starts[batch[:, 0]] + batch[:, 1] for batch in batches]
    streams = plan.order.num_streams
    return np.reshape(numbers, (len(steps), streams, plan.global_batch_size // streams))


@pytest.mark.parametrize(
    ("options", "sizes", "step", "begin"),
    [
        ({"num_streams": 2}, (12, 18), 3, 2),  # single records: any size goes on, without a gap
        ({"num_streams": 2}, (12, 16), 3, 3),  # 36 images are no multiple of 16, so 12 are left out
        (LANES, (16, 8), 5, 10),
        (LANES, (16, 4), 1, 4),
        (LANES, (4, 16), 3, 1),
        (LANES, (16, 8), 0, 0),
    ],
    ids=str,
)
def test_an_epoch_goes_on(
    many: Manifest, options: dict[str, Any], sizes: tuple[int, int], step: int, begin: int
) -> None:
    old = PipelineConfig(global_batch_size=sizes[0], **options)
    new, first = change_batch_size(many, "train", old, step, sizes[1])
    assert first == begin
    assert new.global_batch_size == sizes[1]
    steps = ReadPlan(get_source(many, "train"), new).steps_per_epoch
    before, after = get_order(many, old, range(step)), get_order(many, new, range(first, steps))
    gone = before.ravel().tolist()
    assert len({*gone, *after.ravel().tolist()}) == len(gone) + after.size
    # Each stream goes on where the old batches would have gone on.
    streams = np.concatenate(get_order(many, old, range(257 // sizes[0] - 1)), axis=1)
    share, left_out = sizes[1] // 2, begin * sizes[1] // 2
    np.testing.assert_array_equal(after[0], streams[:, left_out : left_out + share])


def test_the_pipeline_gives_these_batches(many: Manifest) -> None:
    old = PipelineConfig(global_batch_size=16, augment="none", image_size=4, extra_features=("id",), **LANES)
    new, first = change_batch_size(many, "train", old, 18, 8)
    assert first == 36  # 16 steps of 16 make an epoch, and 32 of 8
    wanted = [build_dataset(many, "train", old, start_step=step).take(1) for step in (18, 19)]
    ids = np.stack([next(iter(batch))["id"].numpy() for batch in wanted]).reshape(2, 2, 2, 4)
    got = [batch["id"] for batch in islice(build_dataset(many, "train", new, start_step=first).as_numpy_iterator(), 4)]
    np.testing.assert_array_equal(np.reshape(got, (2, 2, 2, 4)), ids.swapaxes(1, 2))


def test_a_later_epoch_counts_its_steps_anew(many: Manifest) -> None:
    config = PipelineConfig(global_batch_size=16, num_streams=2)
    new, first = change_batch_size(many, "train", config, 16 * 3 + 2, 8)
    assert first == 32 * 3 + 4
    assert (new.num_streams, new.run_records, new.lanes) == (2, 1, 1)
    # At an epoch's end nothing is left of it.
    assert change_batch_size(many, "train", config, 16 * 3 - 1, 250)[1] == 3


@pytest.mark.parametrize(
    ("options", "size", "sentence"),
    [
        (
            {"global_batch_size": 16, **LANES},
            32,
            r"^Within an epoch, a batch of 32 must take its records in turn from the lanes from which one of 16 takes "
            r"them \(2 streams of 8 lanes\), and it does not\. Change at the end of an epoch: "
            r"global_batch_size=32 with start_step=8\.$",
        ),
        (
            {"global_batch_size": 16, "num_streams": 4},
            18,
            r"^The global batch size must be a multiple of the 4 streams, got 18\.",
        ),
        ({"per_replica_batch_size": 16}, 8, r"^`global_batch_size` must be given, got `per_replica_batch_size`\."),
        (
            {"global_batch_size": 16, "order": "throughput"},
            8,
            r"^Only a run in exact order can .*, got throughput order\.$",
        ),
    ],
)
def test_what_cannot_go_on(many: Manifest, options: dict[str, Any], size: int, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        change_batch_size(many, "train", PipelineConfig(**options), 5, size)
