"""Costs of stages from samples that are written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tfpipe.profiler.diagnose.calibration import UNCOUNTED_CPU_SHARE
from tfpipe.profiler.measure.stage_matching import PlannedOperation
from tfpipe.profiler.measure.stage_timings import (
    compute_stage_timings,
    compute_stretch,
    count_records_per_image,
    leave_out_false_wait,
)
from tfpipe.profiler.measure.tfdata_counters import Node, Sample
from tfpipe.profiler.types import StageTiming

PLANNED = [
    PlannedOperation("Batch", "batch", 10),
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


@pytest.mark.parametrize(("held", "decoded", "wait_us"), [(8, 3, 0), (8, 1, 300), (2, 3, 300)])
def test_files_are_waited_for_unless_records_wait_for_all(held: int, decoded: int, wait_us: float) -> None:
    """Of 10 places for read records 8 are taken, and 1 of 4 for decoded ones: the turn of other files has not come."""
    samples = [make_sample(i, 100 * i, cpu_s=100 * i * 3.2e-3 / (1 - UNCOUNTED_CPU_SHARE)) for i in (1, 2)]
    for i, sample in enumerate(samples):
        read, decode = (
            replace(
                sample.nodes[node], buffered=held, parameters={"max_buffered_elements": size, "parallelism": threads}
            )
            for node, held, size, threads in ((3, held, 10, 1), (2, decoded, 4, 4))
        )
        samples[i] = replace(sample, nodes={**sample.nodes, 2: decode, 3: read})
    timings = compute_stage_timings(samples, PLANNED, (), 10)
    assert timings[1].wait_us_per_image == pytest.approx(300)
    assert leave_out_false_wait(timings)[1].wait_us_per_image == pytest.approx(wait_us)


def test_the_stretch_is_the_time_for_which_threads_waited_for_a_core() -> None:
    samples = [make_sample(1, 100, cpu_s=1.0, queue_s=0.5), make_sample(2, 200, cpu_s=3.0, queue_s=3.5)]
    assert compute_stretch(samples) == 2.5
    assert compute_stretch(samples[::-1]) == compute_stretch(samples[:1]) == 1.0


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


OWN = [*PLANNED[:1], PlannedOperation("Filter", "keep"), *PLANNED[1:]]


def make_chain(second: float, *counts: tuple[str, int, float]) -> Sample:
    """Returns the counters of a chain: each operation's name, its elements, and the time in which it was busy."""
    nodes = {
        number: Node(name, (number + 1,) if number + 1 < len(counts) else (), elements, seconds)
        for number, (name, elements, seconds) in enumerate(counts)
    }
    cpu_s = sum(seconds for _, _, seconds in counts)
    return Sample(second, nodes, 0, cpu_s / (1 - UNCOUNTED_CPU_SHARE), 0.0)


def make_filtered(second: float, decoded: int, kept: int, held: int = 0) -> Sample:
    """Returns the counters where a filter follows `decode`, which takes 2 ms; `held` are read and not yet decoded."""
    batches = kept // 10
    return make_chain(
        second,
        *(("Root", batches, 0.0), ("BatchV2", batches, 0.0), ("Filter", kept, decoded * 1e-5)),
        *(("ParallelMapV2", decoded, decoded * 2e-3), ("ParallelInterleaveV4", decoded + held, decoded * 5e-4)),
        ("Range", decoded // 50, 0.0),
    )


def time_stages(*samples: Sample, planned: list[PlannedOperation] = OWN) -> dict[str, StageTiming]:
    return {stage.name: stage for stage in compute_stage_timings(samples, planned, (), 10)}


def test_what_a_filter_drops_costs_the_images_that_stay() -> None:
    """Of four images one stays, so the work for four is done for each."""
    stages = time_stages(make_filtered(1, 400, 100), make_filtered(2, 800, 200), make_filtered(3, 1200, 300))
    assert stages["keep"].elements_out_per_in == pytest.approx(0.25)
    assert stages["batch"].elements_out_per_in == pytest.approx(0.1)
    assert [stages[name].elements_out_per_in for name in ("list", "read", "decode")] == [1, 1, 1]
    assert stages["decode"].cpu_us_per_image.median == pytest.approx(8000)
    assert stages["read"].cpu_us_per_image.median == pytest.approx(2000)
    assert stages["keep"].cpu_us_per_image.median == pytest.approx(40)
    assert {round(stage.images_per_second) for stage in stages.values()} == {100}
    assert count_records_per_image(list(stages.values()), 10, 1) == pytest.approx(4)


def test_no_stages_take_a_record_for_each_image() -> None:
    assert count_records_per_image((), 10, 1) == 1


def test_what_lies_in_a_buffer_is_not_dropped() -> None:
    """A map, a shuffle or a prefetch that holds more and more elements gives as many as it takes."""
    stages = time_stages(make_filtered(1, 400, 100), make_filtered(2, 800, 200, held=300))
    assert stages["decode"].elements_out_per_in == 1
    assert stages["read"].images_per_second == pytest.approx((800 + 300 - 400) / 4)


def test_a_few_elements_are_compared_over_the_whole_life() -> None:
    """Within the measured time 12 of 40 stayed; since the beginning it were 120 of 480."""
    stages = time_stages(make_filtered(1, 440, 108), make_filtered(2, 480, 120))
    assert stages["keep"].elements_out_per_in == pytest.approx(0.25)
    whole = time_stages(make_filtered(1, 400, 100), make_filtered(2, 401, 101))
    assert whole["keep"].elements_out_per_in == pytest.approx(101 / 401)


def test_an_element_on_its_way_is_not_dropped() -> None:
    stages = time_stages(make_filtered(1, 100, 100), make_filtered(2, 202, 200))
    assert stages["keep"].elements_out_per_in == 1


def test_one_element_may_become_many() -> None:
    """Each decoded image gives four views: an image that leaves takes a quarter of the work."""
    planned = [*PLANNED[:1], PlannedOperation("FlatMap", "views"), *PLANNED[1:]]

    def make(second: float, decoded: int) -> Sample:
        batches = decoded * 4 // 10
        return make_chain(
            second,
            *(("Root", batches, 0.0), ("BatchV2", batches, 0.0), ("FlatMap", decoded * 4, decoded * 4e-4)),
            *(("ParallelMapV2", decoded, decoded * 2e-3), ("ParallelInterleaveV4", decoded, 0.0), ("Range", 1, 0.0)),
        )

    stages = time_stages(make(1, 100), make(2, 200), planned=planned)
    assert stages["views"].elements_out_per_in == pytest.approx(4)
    assert stages["decode"].cpu_us_per_image.median == pytest.approx(500)
    assert stages["views"].cpu_us_per_image.median == pytest.approx(100)
    assert count_records_per_image(list(stages.values()), 10, 1) == pytest.approx(0.25)
    assert count_records_per_image(list(stages.values()), 10, 8) == pytest.approx(2)


def test_batches_may_be_made_first() -> None:
    """`parse` collects records into batches; whatever comes behind it takes and gives batches."""
    planned = [PlannedOperation("Map", "decode"), PlannedOperation("Batch", "parse", 10), *PLANNED[2:]]

    def make(second: float, read: int) -> Sample:
        batches = read // 10
        return make_chain(
            second,
            *(("Root", batches, 0.0), ("ParallelMapV2", batches, read * 2e-3), ("BatchV2", batches, read * 1e-4)),
            *(("ParallelInterleaveV4", read, read * 5e-4), ("Range", 1, 0.0)),
        )

    stages = time_stages(make(1, 100), make(2, 200), planned=planned)
    assert {name: stage.elements_out_per_in for name, stage in stages.items()} == {
        **{"list": 1, "read": 1, "decode": 1},
        "parse": pytest.approx(0.1),
    }
    assert [round(stages[name].cpu_us_per_image.median) for name in ("read", "parse", "decode")] == [500, 100, 2000]


def test_a_stage_that_is_fused_away_still_changes_the_number() -> None:
    """tf.data makes one operation of `decode` and of batches of 8, which a later stage takes apart."""
    planned = [
        *(PlannedOperation("Batch", "batch", 10), PlannedOperation("Unbatch", "apart")),
        *(PlannedOperation("Batch", "eights", 8), *PLANNED[1:]),
    ]

    def make(second: float, decoded: int) -> Sample:
        return make_chain(
            second,
            *(("Root", decoded // 10, 0.0), ("BatchV2", decoded // 10, 0.0), ("Unbatch", decoded, 0.0)),
            *(("MapAndBatch", decoded // 8, decoded * 2e-3), ("ParallelInterleaveV4", decoded, 0.0)),
            ("Range", 1, 0.0),
        )

    stages = time_stages(make(1, 80), make(2, 400), planned=planned)
    assert list(stages) == ["list", "read", "decode", "eights", "apart", "batch"]
    assert [stage.elements_out_per_in for stage in stages.values()] == pytest.approx([1, 1, 1, 1 / 8, 8, 0.1])
    assert stages["decode"].cpu_us_per_image.median == pytest.approx(2000)
    assert stages["eights"].cpu_us_per_image.median == 0


def test_work_between_two_batches_counts() -> None:
    """A slow stage gives a batch every third part, and works in all of them: each image takes 30 ms."""
    planned = [PlannedOperation("Batch", "batch", 10), PlannedOperation("Map", "blur"), *PLANNED[2:]]
    samples = [
        make_chain(
            i * 0.1,
            *(("Root", i // 3, 0.0), ("MapAndBatch", i // 3, i * 0.1)),
            *(("ParallelInterleaveV4", i * 10 // 3, 0.0), ("Range", 1, 0.0)),
        )
        for i in range(11)
    ]
    cost = time_stages(*samples, planned=planned)["blur"].cpu_us_per_image
    assert cost.median == pytest.approx(1.0 / 30 * 1e6)
    assert cost.low == pytest.approx(30e3)
    assert cost.low <= cost.median <= cost.high
