"""The stages of the exact order yield what `tfpipe.order` says, for any number of hosts and from any step on."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import tensorflow as tf

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.source import Source
from tfpipe.format.example import decode_example
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline.plan import read_plan
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.pipeline.stage import without_autograph
from tfpipe.pipeline.stages import _exact_order
from tfpipe.pipeline.stages.list import list_exact
from tfpipe.pipeline.stages.read import read_exact
from tfpipe.pipeline.stages.repeat import repeat_epochs
from tfpipe.system.hash_permutation import EXAMPLE, key_of

BATCH = 16
RECORDS = 257
Seen = list[tuple[int, int, tuple[int, int]]]
"""For each element the id in its payload, the record's number and its seed."""


def plan_of(manifest: Manifest, num_hosts: int = 1, host: int = 0, start_step: int = 0, **options) -> ReadPlan:
    config = PipelineConfig(**{"global_batch_size": BATCH, "seed": 11, **options})
    return ReadPlan(Source.from_manifest(manifest, "train"), config, num_hosts, host, num_hosts, start_step)


def build(plan: ReadPlan) -> tf.data.Dataset:
    dataset = None
    for build_stage in (repeat_epochs, list_exact, read_exact):
        dataset = without_autograph(build_stage(plan)).apply(dataset)
    return dataset


def elements(dataset: tf.data.Dataset, count: int) -> Seen:
    seen: Seen = []
    for (places, payloads), (records, seeds, *_) in dataset.take(count).batch(4096).as_numpy_iterator():
        np.testing.assert_array_equal(places, records)
        ids = [int(decode_example(payload)["id"][0]) for payload in payloads]
        seen += zip(ids, (records % RECORDS).tolist(), map(tuple, seeds.tolist()), strict=True)
    return seen


def expected(plan: ReadPlan, first_step: int, steps: int) -> Seen:
    """Lists the records by `tfpipe.order`, with their numbers counted through all files."""
    seen: Seen = []
    for global_step in range(first_step, first_step + steps):
        epoch, step = plan.order.locate(global_step, plan.global_batch_size)
        shard, record = plan.order.batch(epoch, step, plan.global_batch_size, plan.rows).T
        for number in (plan.source.bases[shard] + record).tolist():
            key = np.uint64(key_of(EXAMPLE, plan.config.seed, epoch, number))
            seen.append((number, number, tuple(key[None].view(np.int32).tolist())))
    return seen


@pytest.mark.parametrize(
    "hosts",
    [
        [(2, 1), (4, 2)],
        pytest.param([(count, host) for count in (2, 4) for host in range(count)], marks=pytest.mark.slow),
    ],
    ids=["some", "all"],
)
def test_every_host_reads_its_part_of_the_order(many: Manifest, hosts: list[tuple[int, int]]) -> None:
    options = {"num_streams": 4, "run_records": 5, "lanes": 4}
    steps = 3 * RECORDS // BATCH
    for num_hosts, host in hosts:
        plan = plan_of(many, num_hosts, host, **options)
        assert elements(build(plan), steps * plan.host_batch_size) == expected(plan, 0, steps)
    # Host after host, each step is the global batch of a single host.
    whole = expected(plan_of(many, **options), 0, steps)
    for num_hosts in (2, 4, 8):
        parts = [expected(plan_of(many, num_hosts, host, **options), 0, steps) for host in range(num_hosts)]
        share = BATCH // num_hosts
        together = [part[step * share :][:share] for step in range(steps) for part in parts]
        assert list(chain(*together)) == whole


LANES = [
    {"run_records": 1},  # records are read one by one
    {"run_records": 3, "lanes": 2},  # a share of two: a lane for each record of a batch
    {"run_records": 3, "lanes": 6},  # lanes for three batches, so that a run may begin within a turn of all lanes
    {"run_records": 16, "lanes": 512},  # no stream has so many runs: all records are left over from lanes
    {"run_records": 5, "lanes": 3, "num_streams": 2},  # a share of eight: two lanes, of which each gives four records
    {"run_records": 6, "lanes": 4, "num_streams": 1, "global_batch_size": 6},  # three lanes, two records in a turn
    {"run_records": 4, "lanes": 1, "num_streams": 2},  # a run has less than a batch's share
]


@pytest.mark.parametrize(
    "options",
    [pytest.param(lanes, marks=pytest.mark.slow) if k in (1, 3, 4, 5) else lanes for k, lanes in enumerate(LANES)],
    ids=str,
)
def test_any_number_of_hosts_reads_its_rows_from_any_step_on(many: Manifest, options: dict) -> None:
    """Some of the hosts cut the turn of a lane: then two hosts read its run, and each leaves some records out."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    batch = plan_of(many, **options).global_batch_size
    for num_hosts in [count for count in range(2, batch + 1) if batch % count == 0]:
        start, host = rng.randrange(RECORDS // batch), rng.randrange(num_hosts)
        plan = plan_of(many, num_hosts, host, start_step=start, **options)
        steps = 3 + (plan.steps_per_epoch or 0) - start  # into the next epoch
        seen = elements(build(plan), steps * plan.host_batch_size)
        assert seen == expected(plan, start, steps), f"host {host} of {num_hosts} from step {start}"


@pytest.mark.parametrize("options", LANES, ids=str)
def test_from_any_step_on_the_records_are_those_of_the_order(many: Manifest, options: dict) -> None:
    per_epoch = plan_of(many, **options).steps_per_epoch
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    start = random.Random(seed).randrange(1, 2 * per_epoch)
    plan = plan_of(many, start_step=start, **options)
    seen = elements(build(plan), 2 * per_epoch * plan.global_batch_size)
    assert seen == expected(plan, start, 2 * per_epoch), f"from step {start}"


@pytest.mark.slow
@pytest.mark.parametrize("early_bytes", [0, 2**30])
def test_lanes_with_many_runs_are_read_track_after_track(
    many: Manifest, monkeypatch: pytest.MonkeyPatch, early_bytes: int
) -> None:
    """With a large record no track is opened before the one before it ends; the order is the same."""
    monkeypatch.setattr(_exact_order, "_TRACK_RUNS", 2)
    monkeypatch.setattr(read_plan, "_EARLY_BYTES", early_bytes)
    two_streams = {"run_records": 3, "lanes": 8, "num_streams": 2}
    two_records_in_a_turn = {"run_records": 6, "lanes": 4, "num_streams": 1, "global_batch_size": 6}
    for options in (two_streams, two_records_in_a_turn):
        for start in (0, 5):
            plan = plan_of(many, start_step=start, **options)
            assert plan.order.turns_per_lane > 2 * plan.order.turns_per_run
            assert plan.tracks_ahead == (2 * plan.cycle_length if early_bytes else 0)
            count = 2 * plan.steps_per_epoch
            assert elements(build(plan), count * plan.global_batch_size) == expected(plan, start, count)


@pytest.mark.parametrize("options", LANES, ids=str)
def test_the_first_tracks_are_those_of_the_graph(
    many: Manifest, monkeypatch: pytest.MonkeyPatch, options: dict
) -> None:
    """Also where the parts have different numbers of runs: tracks have up to two."""
    monkeypatch.setattr(_exact_order, "_TRACK_RUNS", 2)
    plan = plan_of(many, start_step=21, **options)
    epoch = plan.start[0]
    listed = _exact_order.list_tracks(plan, tf.data.Dataset.range(epoch, epoch + 1))
    assert list_runs(_exact_order.list_first_tracks(plan)) == list_runs(listed)


def list_runs(tracks: tf.data.Dataset) -> list[list[tuple[int, int]]]:
    """Lists the first record and the count of every run of each track."""
    runs = [np.atleast_2d(np.stack(track, axis=-1)).tolist() for track in tracks.as_numpy_iterator()]
    return [[(first, count) for first, count in track if count] for track in runs]


@pytest.mark.parametrize("options", LANES, ids=str)
def test_each_record_at_most_once_an_epoch(many: Manifest, options: dict) -> None:
    plan = plan_of(many, **options)
    per_epoch = plan.steps_per_epoch
    batch = plan.global_batch_size
    assert per_epoch == plan.order.records_per_stream * plan.order.num_streams // batch
    seen = expected(plan, 0, 3 * per_epoch)
    epochs = [seen[epoch * per_epoch * batch :][: per_epoch * batch] for epoch in range(3)]
    for part in epochs:
        assert max(Counter(number for _, number, _ in part).values()) == 1
        assert len(part) == per_epoch * batch
        assert RECORDS - len(part) < batch + plan.order.num_streams * plan.order.turn_records
    assert len({seed for part in epochs for _, _, seed in part}) == 3 * per_epoch * batch  # each epoch's own
    assert epochs[0] != epochs[1]


def test_two_runs_are_equal_and_another_seed_is_another_order(many: Manifest) -> None:
    plan, count = plan_of(many), 16 * BATCH
    dataset = build(plan)
    first, again = (elements(dataset, count) for _ in range(2))
    assert first == again == expected(plan, 0, 16)
    other_plan = plan_of(many, seed=12)
    other = elements(build(other_plan), count)
    assert other == expected(other_plan, 0, 16)
    assert [number for _, number, _ in other] != [number for _, number, _ in first]
    shared = {number: seed for _, number, seed in first}
    assert all(shared.get(number) != seed for _, number, seed in other)


@pytest.mark.parametrize(
    ("options", "run", "lanes", "turn"),
    [
        ({"run_records": 5, "lanes": 7, "num_streams": 2}, 4, 4, 2),  # of a share of eight four lanes give two each
        ({"run_records": 5, "lanes": 17, "num_streams": 2}, 5, 16, 1),  # two shares
        ({"run_records": 5, "lanes": 3, "num_streams": 1}, 8, 2, 8),  # no run is shorter than a turn
        ({"run_records": 1, "lanes": 100}, 1, 1, 1),
    ],
)
def test_lanes_and_runs_are_rounded_to_fit_a_batch(
    many: Manifest, options: dict, run: int, lanes: int, turn: int
) -> None:
    order = plan_of(many, **options).order
    assert (order.run_records, order.lanes, order.turn_records) == (run, lanes, turn)


@pytest.mark.parametrize(
    ("record_bytes", "batch", "run", "lanes", "turn"),
    [
        (1_200, 64, 16, 16, 1),  # small records: lanes for two batches
        (1_200, 8192, 32, 32, 32),  # a large batch: each lane gives a run to each
        (25_000, 256, 16, 32, 1),
        (110_000, 64, 4, 8, 1),  # a run of 400 KB
        (110_000, 1024, 4, 32, 4),
        (300_000, 256, 1, 1, 1),  # more would take more memory
        (2_000_000, 64, 1, 1, 1),
    ],
)
def test_runs_and_lanes_follow_from_the_size_of_records(
    many: Manifest, record_bytes: float, batch: int, run: int, lanes: int, turn: int
) -> None:
    source = replace(Source.from_manifest(many, "train"), record_bytes=record_bytes, shard_records=(1_000_000,))
    order = ReadPlan(source, PipelineConfig(global_batch_size=batch)).order
    assert (order.run_records, order.lanes, order.turn_records) == (run, lanes, turn)
