"""Looks written by hand, costs known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tfpipe.profiler.measure.stage_timings import OUTSIDE, stage_timings
from tfpipe.profiler.measure.tfdata_counters import Node, Sample

PLANNED = [("Batch", "batch"), ("Map", "decode"), ("Interleave", "read"), ("Range", "list")]


def look(second: float, images: int, first: int = 0, cpu_s: float | None = None, queue_s: float = 0.0) -> Sample:
    """After so many images: 10 ms a batch of 10, 2 ms a decode, 0.1 ms a read and 0.4 ms in its open file."""
    nodes = {
        0: Node("Root", (1,), images // 10),
        1: Node("BatchV2", (2,), images // 10, images * 1e-3),
        first + 2: Node(
            "ParallelMapV2", (first + 3,), images, images * 2e-3, 0, images * 100, 2, {"parallelism": 4}, 6
        ),
        first + 3: Node("ParallelInterleaveV4", (first + 4, first + 5), images, images * 1e-4, images * 50),
        first + 4: Node("Range", (), images // 50),
        # What is open: 5 elements have come out of it, and it has something of its own below.
        first + 5: Node("Zip", (first + 6,), 5, 5 * 1e-4),
        first + 6: Node("TFRecord", (), 5, 5 * 3e-4),
    }
    nodes[1] = replace(nodes[1], inputs=(first + 2,))
    return Sample(second, nodes, 0, images * 3.5e-3 / (1 - OUTSIDE) if cpu_s is None else cpu_s, queue_s)


def costs(*samples: Sample) -> dict[str, float]:
    return {stage.name: stage.cpu_us_per_image.median for stage in stage_timings(samples, PLANNED, (), 10)}


def test_costs_by_stage() -> None:
    found = costs(look(1, 100), look(2, 200), look(3, 300))
    assert list(found) == ["list", "read", "decode", "batch"]
    assert found["decode"] == pytest.approx(2000)
    assert found["batch"] == pytest.approx(1000)
    assert found["read"] == pytest.approx(500)


def test_figures_of_a_stage() -> None:
    stages = {stage.name: stage for stage in stage_timings([look(1, 100), look(3, 300)], PLANNED, (), 10)}
    decode = stages["decode"]
    assert decode.images_per_second == stages["batch"].images_per_second == stages["list"].images_per_second == 100
    assert (decode.parallelism, decode.buffer_size, decode.buffer_fill) == (4, 4, 0.5)
    assert (decode.max_parallelism, stages["batch"].max_parallelism) == (6, 1)
    assert decode.bytes_out_per_second == pytest.approx(10_000)
    assert stages["read"].bytes_in_per_second == pytest.approx(5_000)
    assert stages["read"].blocked_fraction == pytest.approx(0, abs=1e-9)


def test_threads_that_wait_for_a_core() -> None:
    """They took twice as long as they ran: so did each stage."""
    cpu = 0.5 * 3.5e-3 / (1 - OUTSIDE)
    samples = [look(i, 100 * i, cpu_s=100 * i * cpu, queue_s=100 * i * cpu) for i in (1, 2)]
    assert costs(*samples)["decode"] == pytest.approx(1000)


def test_what_did_not_run_has_waited_for_files() -> None:
    """Of 0.5 ms that a read took, 0.3 ms is more than the processor can have done."""
    samples = [look(i, 100 * i, cpu_s=100 * i * 3.2e-3 / (1 - OUTSIDE)) for i in (1, 2)]
    read = stage_timings(samples, PLANNED, (), 10)[1]
    assert read.cpu_us_per_image.median == pytest.approx(200)
    assert read.blocked_fraction == pytest.approx(100 * 0.3e-3)
    assert read.wait_us_per_image == pytest.approx(300)


def test_a_python_function_has_waited_first() -> None:
    """Python's lock keeps threads waiting that count as busy: of 2 ms in `decode`, 1.5 ms, and none for files."""
    samples = [look(i, 100 * i, cpu_s=100 * i * 2e-3 / (1 - OUTSIDE)) for i in (1, 2)]
    stages = {stage.name: stage for stage in stage_timings(samples, PLANNED, {"decode"}, 10)}
    assert stages["decode"].python
    assert not stages["read"].python
    assert stages["decode"].cpu_us_per_image.median == pytest.approx(500)
    assert stages["decode"].wait_us_per_image == pytest.approx(1500)
    assert stages["read"].wait_us_per_image == 0
    assert stages["batch"].blocked_fraction is None


def test_counters_that_restart() -> None:
    """An operation made anew counts from 0; what it has counted since is added."""
    found = costs(look(1, 100), look(2, 200), look(3, 60, first=100, cpu_s=260 * 3.5e-3 / (1 - OUTSIDE)))
    assert found["decode"] == pytest.approx(2000)
    stages = stage_timings([look(1, 100), look(2, 200), look(3, 60, first=100)], PLANNED, (), 10)
    assert stages[2].images_per_second == pytest.approx((100 + 60) / 2)


def test_a_stage_that_rests_is_known_by_its_life() -> None:
    """No image was read between the two looks: all of them lay in a buffer."""
    before, after = look(1, 100), look(2, 200)
    resting = replace(after, nodes={**after.nodes, 3: before.nodes[3], 5: before.nodes[5], 6: before.nodes[6]})
    assert costs(before, resting)["read"] == pytest.approx(500, rel=0.2)


def test_too_few_looks() -> None:
    assert stage_timings([look(1, 100)], PLANNED, (), 10) == ()
