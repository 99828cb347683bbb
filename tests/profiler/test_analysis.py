"""What limits the rate: hand-made figures, exact answers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tfpipe.profiler import analysis
from tfpipe.profiler.model import Profile


def test_idle_is_what_is_not_compute(step_of) -> None:
    step = step_of(images_per_second=1000, required=4000)
    assert analysis.required_images_per_second(step) == 4000
    assert analysis.idle_fraction(step) == pytest.approx(0.75)
    measured_otherwise = replace(step, method="monitor")
    assert analysis.idle_fraction(measured_otherwise) == step.idle_fraction.median


def test_bursts_of_waiting_count(step_of) -> None:
    """Half of the wait in one of ten parts: the median of the parts would be lower than the truth."""
    step = step_of()
    assert analysis.idle_fraction(replace(step, idle_fraction=replace(step.idle_fraction, median=0.6))) == 0.75


def test_the_model(profile_with) -> None:
    model = analysis.model_of(profile_with())
    assert model.cpu_s["decode"] == pytest.approx(2.4e-3)
    assert model.cpu_s["other"] == pytest.approx(0.3e-3)  # 0.95 of 4 cores make 3,800 us at 1,000 images a second
    assert model.cpu_limit == pytest.approx(4 / 3.8e-3)
    assert model.stage_limit("decode") == pytest.approx(4 / 2.4e-3)
    assert model.stage_limit("read") == pytest.approx(8 / 0.2e-3)  # AUTOTUNE may use all of `cycle_length`
    assert model.storage_limit == pytest.approx(10_000)
    assert model.limit == model.cpu_limit
    assert analysis.cpu_limit(profile_with()) == pytest.approx(1000 / 0.95)


def test_threads_that_were_asked_for_are_a_limit(profile_with) -> None:
    model = analysis.model_of(profile_with(config={"num_parallel_calls": 1, "read_parallel_calls": 3}))
    assert (model.threads["decode"], model.threads["read"], model.threads["batch"]) == (1, 3, 1)
    assert model.stage_limit("decode") == pytest.approx(1 / 2.4e-3)


def test_waiting_for_files_is_part_of_reading(profile_with, stage_of) -> None:
    """2 threads wait half of the time: 1 second a second, at 500 images a second 2 ms for each."""
    read = stage_of("read", 100, images_per_second=500.0, parallelism=2, blocked_fraction=0.5)
    model = analysis.model_of(profile_with(stages=(read,), config={"cycle_length": 2}))
    assert model.wait_s["read"] == pytest.approx(2e-3)
    assert model.stage_limit("read") == pytest.approx(2 / 2.1e-3)


def test_the_cores_are_the_wall(profile_with) -> None:
    found = analysis.find_bottleneck(profile_with())
    assert found.stage == "decode"
    assert found.reason == "The 4 cores are 95% busy, 63% of it in decode: 2,400 µs of a core for each image."
    assert found.limit_images_per_second == pytest.approx(4 / 3.8e-3)


def test_others_take_the_cores(profile_with) -> None:
    found = analysis.find_bottleneck(profile_with(host={"cpu_fraction": 0.3, "other_cpu_fraction": 0.65}))
    assert found.stage == "cpu"
    assert found.reason == "Other processes take 65% of the 4 cores, this pipeline 30%."


def test_the_storage_is_the_wall(profile_with) -> None:
    host = {"cpu_fraction": 0.2, "storage_bytes_per_second": 95e6, "storage_limit_bytes_per_second": 100e6}
    found = analysis.find_bottleneck(profile_with(host=host))
    assert (found.stage, found.reason) == ("storage", "The storage gives 95 MB/s of the 100 MB/s that it can.")
    assert found.limit_images_per_second == pytest.approx(1000 / 0.95)


def test_slow_reads_are_the_wall(profile_with, stage_of) -> None:
    read = stage_of("read", 100, parallelism=2, blocked_fraction=0.95)
    profile = profile_with(stages=(read,), config={"cycle_length": 2}, host={"cpu_fraction": 0.1})
    found = analysis.find_bottleneck(profile)
    assert found.stage == "read"
    assert found.reason == (
        "read takes 2,000 µs for each image, 95% of it waiting for files; its 2 threads are busy 100% of the time, "
        "while the cores are 10% busy."
    )
    assert found.limit_images_per_second == pytest.approx(1000)


def test_a_serial_decode_is_the_wall(profile_with, stage_of) -> None:
    stages = (stage_of("read", 50), stage_of("decode", 950))
    profile = profile_with(stages=stages, config={"num_parallel_calls": 1}, host={"cpu_fraction": 0.25})
    found = analysis.find_bottleneck(profile)
    assert found.stage == "decode"
    assert "its 1 thread is busy 95% of the time" in found.reason


def test_without_prefetch_one_waits_for_the_other(profile_with, stage_of) -> None:
    config = {"prefetch_batches": 0, "inject_prefetch": False}
    profile = profile_with(stages=(stage_of("decode", 400),), config=config, host={"cpu_fraction": 0.1})
    found = analysis.find_bottleneck(profile)
    assert found.stage == "prefetch"
    assert found.reason == (
        "The cores are 10% busy and no stage all the time: no batch is made while the accelerator works."
    )


def test_an_accelerator_that_never_waits(profile_with, step_of) -> None:
    profile = profile_with(step=step_of(1000, 1000))
    found = analysis.find_bottleneck(profile)
    assert (found.stage, found.limit_images_per_second) == ("accelerator", 1000)
    assert found.reason.startswith("The accelerator is never idle: a step takes 100.0 ms")


@pytest.mark.parametrize(
    ("changes", "stage"),
    [({"first_batch_s": 8.0}, "first_batch"), ({"host": {"peak_memory_bytes": 15 * 10**9}}, "memory")],
)
def test_what_threatens_a_busy_accelerator(profile_with, step_of, changes: dict[str, object], stage: str) -> None:
    assert analysis.find_bottleneck(profile_with(step=step_of(1000, 1000), **changes)).stage == stage


def test_without_counters_the_cores_are_all_that_is_known(profile_with) -> None:
    busy: Profile = profile_with(stages=())
    assert analysis.find_bottleneck(busy).stage == "cpu"
    assert analysis.find_bottleneck(profile_with(stages=(), host={"cpu_fraction": 0.2})).stage == "prefetch"
