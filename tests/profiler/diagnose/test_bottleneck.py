"""What limits the rate: hand-made figures, exact answers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tfpipe.profiler.diagnose import bottleneck
from tfpipe.profiler.types import Profile


def test_idle_is_what_is_not_compute(step_of) -> None:
    step = step_of(images_per_second=1000, required=4000)
    assert bottleneck.required_images_per_second(step) == 4000
    assert bottleneck.idle_fraction(step) == pytest.approx(0.75)
    measured_otherwise = replace(step, method="monitor")
    assert bottleneck.idle_fraction(measured_otherwise) == step.idle_fraction.median


def test_bursts_of_waiting_count(step_of) -> None:
    """Half of the wait in one of ten parts: the median of the parts would be lower than the truth."""
    step = step_of()
    assert bottleneck.idle_fraction(replace(step, idle_fraction=replace(step.idle_fraction, median=0.6))) == 0.75


def test_the_model(profile_with) -> None:
    model = bottleneck.model_of(profile_with())
    assert model.cpu_s["decode"] == pytest.approx(2.4e-3)
    assert model.cpu_s["other"] == pytest.approx(0.3e-3)  # 0.95 of 4 cores make 3,800 us at 1,000 images a second
    assert model.cpu_limit == pytest.approx(4 / 3.8e-3)
    assert model.stage_limit("decode") == pytest.approx(4 / 2.4e-3)
    assert model.stage_limit("read") == pytest.approx(8 / 0.2e-3)  # AUTOTUNE may use all of `cycle_length`
    assert model.storage_limit == pytest.approx(10_000)
    assert model.limit == model.cpu_limit
    assert bottleneck.cpu_limit(profile_with()) == pytest.approx(1000 / 0.95)


def test_threads_that_were_asked_for_are_a_limit(profile_with, stage_of) -> None:
    stages = (
        stage_of("read", 200, max_parallelism=3),
        stage_of("decode", 2400, max_parallelism=1),
        stage_of("batch", 1),
    )
    model = bottleneck.model_of(profile_with(stages=stages))
    assert (model.threads["decode"], model.threads["read"], model.threads["batch"]) == (1, 3, 1)
    assert model.stage_limit("decode") == pytest.approx(1 / 2.4e-3)


def test_whole_files_are_read_by_one_thread_each(profile_with) -> None:
    """In an evaluation of files that nobody counted; else parts of files are read, or the next epoch's."""
    few = {"files": 3, "records": None}
    assert bottleneck.model_of(profile_with(dataset=few, config={"training": False})).threads["read"] == 3
    assert bottleneck.model_of(profile_with(dataset=few)).threads["read"] == 8
    assert bottleneck.model_of(profile_with(dataset={"files": 3}, config={"training": False})).threads["read"] == 8


def test_a_limit_that_was_passed_is_none(profile_with) -> None:
    host = {"storage_bytes_per_second": 120e6, "storage_limit_bytes_per_second": 100e6}
    assert bottleneck.storage_limit(profile_with(host=host)) is None


def test_waiting_for_files_is_part_of_reading(profile_with, stage_of) -> None:
    read = stage_of("read", 100, max_parallelism=2, wait_us_per_image=2000.0)
    model = bottleneck.model_of(profile_with(stages=(read,), config={"cycle_length": 2}))
    assert model.wait_s["read"] == pytest.approx(2e-3)
    assert model.stage_limit("read") == pytest.approx(2 / 2.1e-3)


def test_the_cores_are_the_wall(profile_with) -> None:
    found = bottleneck.find_bottleneck(profile_with())
    assert found.stage == "decode"
    assert found.reason == "The 4 cores are 95% busy, 63% of it in decode: 2,400 µs of a core for each image."
    assert found.limit_images_per_second == pytest.approx(4 / 3.8e-3)


def test_others_take_the_cores(profile_with) -> None:
    found = bottleneck.find_bottleneck(profile_with(host={"cpu_fraction": 0.3, "other_cpu_fraction": 0.65}))
    assert found.stage == "cpu"
    assert found.reason == "Other processes take 65% of the 4 cores, this pipeline 30%."


def test_the_storage_is_the_wall(profile_with) -> None:
    host = {"cpu_fraction": 0.2, "storage_bytes_per_second": 95e6, "storage_limit_bytes_per_second": 100e6}
    found = bottleneck.find_bottleneck(profile_with(host=host))
    assert (found.stage, found.reason) == ("storage", "The storage gives 95 MB/s of the 100 MB/s that it can.")
    assert found.limit_images_per_second == pytest.approx(1000 / 0.95)


def test_slow_reads_are_the_wall(profile_with, stage_of) -> None:
    read = stage_of("read", 100, max_parallelism=2, wait_us_per_image=1900.0)
    profile = profile_with(stages=(read,), config={"cycle_length": 2}, host={"cpu_fraction": 0.1})
    found = bottleneck.find_bottleneck(profile)
    assert found.stage == "read"
    assert found.reason == (
        "read takes 2,000 µs for each image, 95% of it waiting for files; its 2 threads are busy 100% of the time, "
        "while the cores are 10% busy."
    )
    assert found.limit_images_per_second == pytest.approx(1000)


def test_a_serial_decode_is_the_wall(profile_with, stage_of) -> None:
    stages = (stage_of("read", 50), stage_of("decode", 950))
    profile = profile_with(stages=stages, config={"num_parallel_calls": 1}, host={"cpu_fraction": 0.25})
    found = bottleneck.find_bottleneck(profile)
    assert found.stage == "decode"
    assert "its 1 thread is busy 95% of the time" in found.reason


def test_without_prefetch_one_waits_for_the_other(profile_with, stage_of) -> None:
    config = {"prefetch_batches": 0, "inject_prefetch": False}
    profile = profile_with(stages=(stage_of("decode", 400),), config=config, host={"cpu_fraction": 0.1})
    found = bottleneck.find_bottleneck(profile)
    assert found.stage == "prefetch"
    assert found.reason == (
        "The cores are 10% busy and no stage all the time: no batch is made while the accelerator works."
    )


def test_an_accelerator_that_never_waits(profile_with, step_of) -> None:
    profile = profile_with(step=step_of(1000, 1000))
    found = bottleneck.find_bottleneck(profile)
    assert (found.stage, found.limit_images_per_second) == ("accelerator", 1000)
    assert found.reason.startswith("The accelerator is never idle: a step takes 100.0 ms")


@pytest.mark.parametrize(
    ("changes", "stage"),
    [({"first_batch_s": 8.0}, "first_batch"), ({"host": {"peak_memory_bytes": 15 * 10**9}}, "memory")],
)
def test_what_threatens_a_busy_accelerator(profile_with, step_of, changes: dict[str, object], stage: str) -> None:
    assert bottleneck.find_bottleneck(profile_with(step=step_of(1000, 1000), **changes)).stage == stage


def test_without_counters_the_cores_are_all_that_is_known(profile_with) -> None:
    busy: Profile = profile_with(stages=())
    assert bottleneck.find_bottleneck(busy).stage == "cpu"
    assert bottleneck.find_bottleneck(profile_with(stages=(), host={"cpu_fraction": 0.2})).stage == "prefetch"


def test_memory_comes_before_all_else(profile_with) -> None:
    found = bottleneck.find_bottleneck(profile_with(host={"peak_memory_bytes": 15 * 10**9}))
    assert found.stage == "memory"
    assert found.reason == "94% of the memory is taken, 15.0 GB: a little more ends the run."


def test_a_start_that_costs_more_than_an_epoch(profile_with) -> None:
    """1,000 images a second, idle for three quarters: of 8,000 records that is 6 s, of a million 750 s."""
    found = bottleneck.find_bottleneck(profile_with(first_batch_s=8.0, dataset={"records": 8000}))
    assert (found.stage, found.reason) == (
        "first_batch",
        "The first batch took 8.0 s, and the accelerator is idle for 6.0 s of an epoch.",
    )
    assert bottleneck.find_bottleneck(profile_with(first_batch_s=8.0)).stage == "decode"


def test_a_python_function_has_one_core(profile_with, stage_of) -> None:
    """It keeps Python's lock for 0.9 s of every second; that its threads wait for the lock is no demand."""
    own = stage_of("jitter", 900, python=True, max_parallelism=4, wait_us_per_image=2000.0)
    profile = profile_with(stages=(stage_of("decode", 500, max_parallelism=4), own), host={"cpu_fraction": 0.4})
    found = bottleneck.find_bottleneck(profile)
    assert found.stage == "jitter"
    assert found.limit_images_per_second == pytest.approx(1 / 0.9e-3)
    assert found.reason == (
        "jitter runs a Python function for 900 µs for each image; Python's lock gives it one core whatever its "
        "threads, and that is busy 90% of the time."
    )


def test_a_python_function_that_waits(profile_with, stage_of) -> None:
    own = stage_of("lookup", 100, python=True, max_parallelism=4, wait_us_per_image=3800.0)
    profile = profile_with(stages=(own,), host={"cpu_fraction": 0.1})
    found = bottleneck.find_bottleneck(profile)
    assert found.stage == "lookup"
    assert found.reason.startswith("lookup takes 3,900 µs for each image, 97% of it waiting for something else; its 4 ")


def test_taking_a_batch_is_its_cost(profile_with, stage_of) -> None:
    """10 ms of the trainer's thread for each batch of 100: 100 us for an image, which no stage accounts for."""
    model = bottleneck.model_of(profile_with(host={"trainer_us_per_step": 10_000.0}))
    assert model.cpu_s["batch"] == pytest.approx(200e-6)
    assert model.cpu_s["other"] == pytest.approx(200e-6)
