"""Reading in throughput order and in evaluation: every record once, whatever is read side by side."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.source import Source
from tfpipe.errors import ConfigError
from tfpipe.format.example import decode_example
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.pipeline.stage import without_autograph
from tfpipe.pipeline.stages.list import list_exact, list_files, list_once
from tfpipe.pipeline.stages.read import read_exact, read_files, read_once
from tfpipe.pipeline.stages.repeat import repeat_epochs
from tfpipe.pipeline.stages.shuffle import shuffle_buffer

RECORDS = 257


def plan_of(manifest: Manifest, num_hosts: int = 1, host: int = 0, start_step: int = 0, **options) -> ReadPlan:
    config = PipelineConfig(**{"global_batch_size": 8, "order": "throughput", **options})
    return ReadPlan(Source.from_manifest(manifest, "train"), config, num_hosts, host, num_hosts, start_step)


def numbers(dataset: tf.data.Dataset) -> list[int]:
    """Lists the numbers of the records, and checks that each payload is its own."""
    record_numbers: list[int] = []
    for (places, payloads), (records, _) in dataset.batch(4096).as_numpy_iterator():
        np.testing.assert_array_equal(places, records)
        assert [int(decode_example(payload)["id"][0]) for payload in payloads] == records.tolist()
        record_numbers += records.tolist()
    return record_numbers


def read_epochs(plan: ReadPlan, epochs: int) -> tf.data.Dataset:
    listed = without_autograph(list_files(plan)).apply(repeat_epochs(plan).apply(None).take(epochs))
    return without_autograph(read_files(plan)).apply(listed)


@pytest.mark.parametrize("on_bad_record", ["raise", "skip"])
def test_throughput_order_has_every_record_once_an_epoch(many: Manifest, on_bad_record: str) -> None:
    plan = plan_of(many, on_bad_record=on_bad_record, block_length=3, deterministic=True)
    dataset = read_epochs(plan, 2)
    seen = numbers(dataset)
    assert Counter(seen) == dict.fromkeys(range(RECORDS), 2)
    assert seen[:RECORDS] != seen[RECORDS:]
    assert seen == numbers(dataset)


def test_two_hosts_share_the_files_between_them(many: Manifest) -> None:
    parts = [numbers(read_epochs(plan_of(many, 2, host), 1)) for host in range(2)]
    assert sorted(parts[0] + parts[1]) == list(range(RECORDS))
    with pytest.raises(ConfigError) as caught:
        list_files(plan_of(many, 9, 0, global_batch_size=9)).apply(None)
    assert str(caught.value) == (
        f"9 input pipelines but only 8 files in 'train' of {many.directory}. Write 9 or more shards, or read in exact "
        "order, which shares out records."
    )


def test_seeds_are_those_of_the_exact_order(many: Manifest) -> None:
    def seeds(plan: ReadPlan, dataset: tf.data.Dataset) -> dict[int, tuple[int, int]]:
        return {
            int(record) % RECORDS: tuple(seed.tolist()) for _, (record, seed) in dataset.take(100).as_numpy_iterator()
        }

    by_files = seeds(plan := plan_of(many), read_epochs(plan, 1))
    plan = plan_of(many, order="exact")
    dataset = None
    for build_stage in (repeat_epochs, list_exact, read_exact):
        dataset = without_autograph(build_stage(plan)).apply(dataset)
    in_order = seeds(plan, dataset)
    both = by_files.keys() & in_order.keys()
    assert both
    assert {number: by_files[number] for number in both} == {number: in_order[number] for number in both}


def test_the_buffer_draws_from_one_epoch(many: Manifest) -> None:
    plan = plan_of(many)  # 256 MiB would hold the 257 records a thousand times
    seen = numbers(without_autograph(shuffle_buffer(plan)).apply(read_epochs(plan, 2)))
    assert Counter(seen) == dict.fromkeys(range(RECORDS), 2)
    assert np.mean(np.abs(np.diff(seen))) > RECORDS / 5  # of a permutation a third


@pytest.mark.parametrize("block_lengths", [(1, 4, 1000), pytest.param((4, 1000, 1), marks=pytest.mark.slow)], ids=str)
def test_evaluation_reads_each_record_once_in_the_order_of_the_files(
    many: Manifest, block_lengths: tuple[int, ...]
) -> None:
    """Each of three hosts reads blocks of another length, which changes nothing."""
    seen: list[int] = []
    for host, block_length in enumerate(block_lengths):
        plan = plan_of(many, 3, host, training=False, block_length=block_length, global_batch_size=3)
        part = numbers(without_autograph(read_once(plan)).apply(list_once(plan).apply(None)))
        assert len(part) == plan.evaluation_records
        seen += part
    assert seen == list(range(RECORDS))
