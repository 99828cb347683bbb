"""Costs of stages from samples that are written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tfpipe.profiler.diagnose.calibration import UNCOUNTED_CPU_SHARE
from tfpipe.profiler.measure.stage_matching import PlannedOperation
from tfpipe.profiler.measure.stage_timings import compute_stage_timings
from tfpipe.profiler.measure.tfdata_counters import Node, Sample

PLANNED = [
    PlannedOperation("Batch", "batch"),
    PlannedOperation("Map", "decode"),
    PlannedOperation("Interleave", "read"),
    PlannedOperation("Range", "list"),
]


def make_sample(second: float, images: int, first: int = 0, cpu_s: float | None = None, queue_s: float = 0.0) -> Sample:
    """Returns the counters after some images: each took 1 ms in the batch, 2 ms to decode, 0.5 ms to read."""
    nodes = {
        0: Node("Root", (1,), images // 10),
        1: Node("BatchV2", (2,), images // 10, images * 1e-3),
        first + 2: Node(
            "ParallelMapV2", (first + 3,), images, images * 2e-3, 0, images * 100, 2, {"parallelism": 4}, 6
        ),
        first + 3: Node("ParallelInterleaveV4", (first + 4, first + 5), images, images * 1e-4, images * 50),
        first + 4: Node("Range", (), images // 50),
        # An open file: 5 elements have come out of it, and it has an input of its own.
        first + 5: Node("Zip", (first + 6,), 5, 5 * 1e-4),
        first + 6: Node("TFRecord", (), 5, 5 * 3e-4),
    }
    nodes[1] = replace(nodes[1], inputs=(first + 2,))
    return Sample(second, nodes, 0, images * 3.5e-3 / (1 - UNCOUNTED_CPU_SHARE) if cpu_s is None else cpu_s, queue_s)


def get_costs(*samples: Sample) -> dict[str, float]:
    return {stage.name: stage.cpu_us_per_image.median for stage in compute_stage_timings(samples, PLANNED, (), 10)}


def test_each_stage_has_its_own_cost() -> None:
    costs = get_costs(make_sample(1, 100), make_sample(2, 200), make_sample(3, 300))
    assert list(costs) == ["list", "read", "decode", "batch"]
    assert costs["decode"] == pytest.approx(2000)
    assert costs["batch"] == pytest.approx(1000)
    assert costs["read"] == pytest.approx(500)


def test_a_stage_has_its_rates_threads_and_buffer() -> None:
    stages = {
        stage.name: stage
        for stage in compute_stage_timings([make_sample(1, 100), make_sample(3, 300)], PLANNED, (), 10)
    }
    decode = stages["decode"]
    assert decode.images_per_second == stages["batch"].images_per_second == stages["list"].images_per_second == 100
    assert (decode.parallelism, decode.buffer_size, decode.buffer_fill) == (4, 4, 0.5)
    assert (decode.max_parallelism, stages["batch"].max_parallelism) == (6, 1)
    assert decode.bytes_out_per_second == pytest.approx(10_000)
    assert stages["read"].bytes_in_per_second == pytest.approx(5_000)
    assert stages["read"].blocked_fraction == pytest.approx(0, abs=1e-9)


def test_waiting_for_a_core_is_not_a_cost() -> None:
    """Threads took twice as long as they ran, and so did each stage."""
    cpu = 0.5 * 3.5e-3 / (1 - UNCOUNTED_CPU_SHARE)
    samples = [make_sample(i, 100 * i, cpu_s=100 * i * cpu, queue_s=100 * i * cpu) for i in (1, 2)]
    assert get_costs(*samples)["decode"] == pytest.approx(1000)


def test_time_that_nobody_ran_was_a_wait_for_files() -> None:
    """A read took 0.5 ms, of which the processor cannot have done 0.3 ms."""
    samples = [make_sample(i, 100 * i, cpu_s=100 * i * 3.2e-3 / (1 - UNCOUNTED_CPU_SHARE)) for i in (1, 2)]
    read = compute_stage_timings(samples, PLANNED, (), 10)[1]
    assert read.cpu_us_per_image.median == pytest.approx(200)
    assert read.blocked_fraction == pytest.approx(100 * 0.3e-3)
    assert read.wait_us_per_image == pytest.approx(300)


def test_time_that_nobody_ran_was_first_a_wait_of_python() -> None:
    """Threads that wait for Python's lock count as busy: 1.5 ms of the 2 ms in `decode`. No time is left for files."""
    samples = [make_sample(i, 100 * i, cpu_s=100 * i * 2e-3 / (1 - UNCOUNTED_CPU_SHARE)) for i in (1, 2)]
    stages = {stage.name: stage for stage in compute_stage_timings(samples, PLANNED, {"decode"}, 10)}
    assert stages["decode"].python
    assert not stages["read"].python
    assert stages["decode"].cpu_us_per_image.median == pytest.approx(500)
    assert stages["decode"].wait_us_per_image == pytest.approx(1500)
    assert stages["read"].wait_us_per_image == 0
    assert stages["batch"].blocked_fraction is None


def test_counters_that_restart_are_added() -> None:
    """An operation that is made anew counts from 0, and all its counts are added."""
    costs = get_costs(
        make_sample(1, 100),
        make_sample(2, 200),
        make_sample(3, 60, first=100, cpu_s=260 * 3.5e-3 / (1 - UNCOUNTED_CPU_SHARE)),
    )
    assert costs["decode"] == pytest.approx(2000)
    stages = compute_stage_timings(
        [make_sample(1, 100), make_sample(2, 200), make_sample(3, 60, first=100)], PLANNED, (), 10
    )
    assert stages[2].images_per_second == pytest.approx((100 + 60) / 2)


def test_a_stage_that_rests_is_measured_by_its_whole_life() -> None:
    """No image was read between the two samples: all of them lay in a buffer."""
    before, after = make_sample(1, 100), make_sample(2, 200)
    resting = replace(after, nodes={**after.nodes, 3: before.nodes[3], 5: before.nodes[5], 6: before.nodes[6]})
    assert get_costs(before, resting)["read"] == pytest.approx(500, rel=0.2)


def test_one_sample_is_too_few() -> None:
    assert compute_stage_timings([make_sample(1, 100)], PLANNED, (), 10) == ()
