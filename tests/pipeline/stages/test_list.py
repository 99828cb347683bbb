"""Lists of runs: cut for reading, and in the order in which a cache needs them."""

from __future__ import annotations

import numpy as np

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.source import Source
from tfpipe.format.manifest import Manifest
from tfpipe.order import expand_runs
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.pipeline.stages.list import first_use_numbers, split_runs


def test_runs_are_cut_and_stay_the_same_records() -> None:
    runs = np.array([[0, 3, 10], [2, 0, 1], [5, 7, 8]])
    pieces = split_runs(runs, 4)
    assert pieces.tolist() == [[0, 3, 4], [0, 7, 4], [0, 11, 2], [2, 0, 1], [5, 7, 4], [5, 11, 4]]
    np.testing.assert_array_equal(expand_runs(pieces), expand_runs(runs))
    assert split_runs(runs, 16).tolist() == runs.tolist()


def test_a_cache_is_filled_in_the_order_of_its_use(many: Manifest) -> None:
    config = PipelineConfig(global_batch_size=8, num_streams=2, lanes=4, run_records=3)
    for num_hosts, host, start_step in ((1, 0, 0), (2, 1, 37)):
        plan = ReadPlan(Source.from_manifest(many, "train"), config, num_hosts, host, num_hosts, start_step)
        first, others = first_use_numbers(plan)
        numbers = first % 257
        assert sorted([*numbers, *others]) == list(range(257))
        epoch, step = plan.start
        batches = [plan.order.batch(epoch, later, 8, plan.rows).T for later in range(step, plan.steps_per_epoch or 0)]
        expected = np.concatenate([plan.source.bases[shard] + record for shard, record in batches])
        np.testing.assert_array_equal(numbers, expected)
        assert first.max() >= 257  # one run goes on from the last record to the first
        assert (np.diff(others) > 0).all()
