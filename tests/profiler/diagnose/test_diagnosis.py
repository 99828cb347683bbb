"""The station that limits a pipeline or a service, by hand-made figures."""

from dataclasses import replace
from typing import Any

import pytest

from tests.profiler.profiles import make_profile, make_stage, make_step
from tfpipe.profiler.diagnose.diagnosis import (
    find_bottleneck,
    make_report,
)
from tfpipe.profiler.types import Bottleneck, PipelineProfile


def find(profile: PipelineProfile) -> Bottleneck:
    return find_bottleneck(profile)


def test_idle_time_is_the_time_that_is_not_compute() -> None:
    step = make_step(images_per_second=1000, required=4000)
    assert (step.required_rate, step.idle) == (4000, pytest.approx(0.75))
    assert replace(step, method="monitor").idle == step.idle_fraction.median


def test_waits_that_come_in_bursts_count() -> None:
    """Half of the wait lies in one of ten parts: the median of the parts would be lower than the truth."""
    step = make_step()
    assert replace(step, idle_fraction=replace(step.idle_fraction, median=0.6)).idle == 0.75


def test_the_demand_of_an_image_at_each_station() -> None:
    demand = make_profile().demand
    assert demand.cpu_s["decode"] == pytest.approx(2.4e-3)
    assert demand.cpu_s["other"] == pytest.approx(0.3e-3)  # 0.95 of 4 cores make 3,800 us at 1,000 images a second
    assert demand.cpu_limit == pytest.approx(4 / 3.8e-3)
    assert demand.get_stage_limit("decode") == pytest.approx(4 / 2.4e-3)
    assert demand.get_stage_limit("read") == pytest.approx(8 / 0.2e-3)
    assert (demand.storage_limit, demand.limit) == (pytest.approx(10_000), demand.cpu_limit)
    assert make_profile().cpu_limit == pytest.approx(1000 / 0.95)


def test_threads_that_the_config_sets_are_a_limit() -> None:
    stages = (make_stage("read", 200, parallelism=3), make_stage("decode", 2400, parallelism=1), make_stage("batch", 1))
    demand = make_profile(stages=stages).demand
    assert (demand.threads["decode"], demand.threads["read"], demand.threads["batch"]) == (1, 3, 1)
    assert demand.get_stage_limit("decode") == pytest.approx(1 / 2.4e-3)


def test_a_storage_limit_that_was_exceeded_is_unknown() -> None:
    host = {"storage_bytes_per_second": 120e6, "storage_limit_bytes_per_second": 100e6}
    assert make_profile(host=host).storage_limit is None


def test_waiting_for_files_is_part_of_reading() -> None:
    read = make_stage("read", 100, parallelism=2, wait_us_per_image=2000.0)
    demand = make_profile(stages=(read,), config={"tf_data.cycle_length": 2}).demand
    assert demand.wait_s["read"] == pytest.approx(2e-3)
    assert demand.get_stage_limit("read") == pytest.approx(2 / 2.1e-3)


def test_busy_cores_are_the_bottleneck() -> None:
    bottleneck = find(make_profile())
    assert bottleneck.stage == "decode"
    assert bottleneck.reason == "The 4 cores are 95% busy, 63% of it in decode: 2,400 µs of a core for each image."
    assert bottleneck.limit_images_per_second == pytest.approx(4 / 3.8e-3)


def test_other_processes_can_take_the_cores() -> None:
    bottleneck = find(make_profile(host={"cpu_fraction": 0.3, "other_cpu_fraction": 0.65}))
    assert bottleneck.stage == "cpu"
    assert bottleneck.reason == "Other processes take 65% of the 4 cores, this pipeline 30%."


def test_busy_storage_is_the_bottleneck() -> None:
    host = {"cpu_fraction": 0.2, "storage_bytes_per_second": 95e6, "storage_limit_bytes_per_second": 100e6}
    bottleneck = find(make_profile(host=host))
    assert (bottleneck.stage, bottleneck.reason) == (
        "storage",
        "The storage gives 95 MB/s of the 100 MB/s that it can.",
    )
    assert bottleneck.limit_images_per_second == pytest.approx(1000 / 0.95)


def test_slow_reads_are_the_bottleneck() -> None:
    read = make_stage("read", 100, parallelism=2, wait_us_per_image=1900.0)
    bottleneck = find(make_profile(stages=(read,), config={"tf_data.cycle_length": 2}, host={"cpu_fraction": 0.1}))
    assert bottleneck.stage == "read"
    assert bottleneck.reason == (
        "read takes 2,000 µs for each image, 95% of it waiting for storage, and 2 of its calls work at once: 1,000 "
        "images/s, while the cores are 10% busy."
    )
    assert bottleneck.limit_images_per_second == pytest.approx(1000)


def test_a_serial_decode_is_the_bottleneck() -> None:
    stages = (make_stage("read", 50), make_stage("decode", 950))
    profile = make_profile(stages=stages, config={"tf_data.num_parallel_calls": 1}, host={"cpu_fraction": 0.25})
    bottleneck = find(profile)
    assert bottleneck.stage == "decode"
    assert "and 1 of its calls works at once: 1,053 images/s" in bottleneck.reason


def test_without_prefetch_stages_and_accelerator_wait_for_each_other() -> None:
    config = {"prefetch_batches": 0, "tf_data.inject_prefetch": False}
    bottleneck = find(make_profile(stages=(make_stage("decode", 400),), config=config, host={"cpu_fraction": 0.1}))
    assert bottleneck.stage == "prefetch"
    assert bottleneck.reason == (
        "The cores are 10% busy, and no stage is at its limit: no batch is made while the accelerator works."
    )


def test_an_accelerator_that_never_waits_is_the_bottleneck() -> None:
    bottleneck = find(make_profile(step=make_step(1000, 1000)))
    assert (bottleneck.stage, bottleneck.limit_images_per_second) == ("accelerator", 1000)
    assert bottleneck.reason.startswith("The accelerator is never idle: a step takes 100.0 ms")


@pytest.mark.parametrize(
    ("changes", "stage"),
    [({"first_batch_s": 8.0}, "first_batch"), ({"host": {"peak_memory_bytes": 15 * 10**9}}, "memory")],
)
def test_memory_and_a_slow_start_are_named_even_where_the_accelerator_is_busy(changes: dict[str, object], stage: str):
    assert find(make_profile(step=make_step(1000, 1000), **changes)).stage == stage


def test_without_counters_only_the_cores_are_known() -> None:
    busy: PipelineProfile = make_profile(stages=())
    assert find(busy).stage == "cpu"
    assert find(make_profile(stages=(), host={"cpu_fraction": 0.2})).stage == "prefetch"


def test_full_memory_comes_before_all_else() -> None:
    bottleneck = find(make_profile(host={"peak_memory_bytes": 15 * 10**9}))
    assert bottleneck.stage == "memory"
    assert bottleneck.reason == "94% of the memory is taken, 15.0 GB: a little more ends the run."


def test_a_start_that_costs_more_than_an_epoch_is_the_bottleneck() -> None:
    """At 1,000 images a second and three quarters idle, 8,000 records lose 6 s and a million lose 750 s."""
    bottleneck = find(make_profile(first_batch_s=8.0, dataset={"records": 8000}))
    assert (bottleneck.stage, bottleneck.reason) == (
        "first_batch",
        "The first batch took 8.0 s, and the accelerator waits for 6.0 s of an epoch after that.",
    )
    assert find(make_profile(first_batch_s=8.0)).stage == "decode"


@pytest.mark.parametrize(
    ("cores_busy", "stage", "why"),
    [(0.7, "read", "read takes most of them"), (0.3, "decode", "decode is nearest, 40% of what it can give")],
)
def test_where_nothing_is_busy_all_the_time_the_busiest_station_counts(cores_busy: float, stage: str, why: str) -> None:
    """Many threads read, so they are hardly busy, but reading takes most of the cores' time."""
    stages = (make_stage("read", 1500, parallelism=8), make_stage("decode", 800, parallelism=2))
    bottleneck = find(make_profile(stages=stages, host={"cpu_fraction": cores_busy}))
    assert bottleneck.stage == stage
    assert bottleneck.reason == f"The cores are {cores_busy:.0%} busy, and no stage is at its limit: {why}."


def test_handing_over_that_takes_more_than_all_stages_is_named() -> None:
    """Of 2.8 ms of the cores for an image, the stages take 1 ms."""
    profile = make_profile(stages=(make_stage("augment", 1000, parallelism=8),), host={"cpu_fraction": 0.7})
    bottleneck = find(replace(profile, dataset=replace(profile.dataset, by_engine=False)))
    assert (bottleneck.stage, bottleneck.reason) == (
        "batch",
        "The cores are 70% busy, 64% of it in handing over batches: 180,000 µs of a core for each batch of 100.",
    )


def test_a_python_function_that_holds_the_lock_has_one_core() -> None:
    own = make_stage("jitter", 900, holds_python_lock=True, parallelism=4, hold_us_per_image=1000.0)
    stages = (make_stage("decode", 500, parallelism=4), own)
    assert find(make_profile(stages=stages, host={"cpu_fraction": 0.4})) == Bottleneck(
        "jitter",
        "jitter is a Python function that holds Python's lock: 1,000 µs for each image, 100% of the time. So it gives "
        "1,000 images/s with any number of threads, as a run with 1 and with 2 showed.",
        pytest.approx(1000),
    )


def test_a_function_that_waits_behind_its_own_lock_is_no_case_for_threads() -> None:
    own = make_stage("ask", 50, parallelism=4, wait_us_per_image=900.0, hold_us_per_image=1000.0)
    bottleneck = find(make_profile(stages=(own,), host={"cpu_fraction": 0.1}))
    assert bottleneck.stage == "ask"
    assert bottleneck.reason.startswith("ask waits behind a lock of its own that one call holds at a time: 1,000 µs")


def test_the_slowest_stage_is_named_beside_other_programs_too() -> None:
    """Others take most of the cores, and the function waits all the same."""
    own = make_stage("ask", 100, parallelism=2, wait_us_per_image=1900.0)
    stages = (make_stage("decode", 100, parallelism=4), own)
    assert find(make_profile(stages=stages, host={"cpu_fraction": 0.1, "other_cpu_fraction": 0.8})).stage == "ask"


def test_a_python_function_that_waits_is_not_bound_by_the_lock() -> None:
    python_stage = make_stage("lookup", 100, parallelism=4, wait_us_per_image=3800.0)
    bottleneck = find(make_profile(stages=(python_stage,), host={"cpu_fraction": 0.1}))
    assert bottleneck.stage == "lookup"
    assert bottleneck.reason.startswith(
        "lookup takes 3,900 µs for each image, 97% of it waiting for something else, and 4 of "
    )


def test_threads_of_a_function_in_the_engine_decode_as_well() -> None:
    function = make_stage("transform", 100, parallelism=4, wait_us_per_image=3800.0)
    profile = make_profile(stages=(make_stage("decode", 900, parallelism=4), function), host={"cpu_fraction": 0.26})
    assert profile.demand.passes == {"transform": ("decode",)}
    assert list(profile.demand.threads) == ["transform"]
    bottleneck = find(profile)
    assert bottleneck.stage == "transform"
    assert bottleneck.reason.startswith(
        "decode and transform take 4,800 µs for each image, 79% of it waiting for something else, and 4 of its calls "
    )


def test_calls_that_wait_keep_the_threads_of_tf_data_which_decode_as_well() -> None:
    own = make_stage("lookup", 100, parallelism=4, wait_us_per_image=3800.0)
    stages = (make_stage("decode", 900, parallelism=4), own)
    profile = make_profile(
        stages=stages, host={"cpu_fraction": 0.26}, dataset={"by_engine": False, "own_stages": ("lookup",)}
    )
    assert (profile.demand.passes, profile.demand.threads) == ({"lookup": ("decode",)}, {"decode": 4, "lookup": 4})
    assert find(profile).reason.startswith("decode and lookup take 4,800 µs for each image, 79% of it waiting for ")
    # Behind a lock one call after another waits; without it four threads wait, and decode, side by side.
    locked = replace(own, hold_us_per_image=3900.0)
    demand = replace(profile, stages=(stages[0], locked)).demand
    assert demand.limit == pytest.approx(1e6 / 3900)
    assert 4e6 / 5300 < replace(demand, threads={"lookup": 4}, lock_bound=frozenset()).limit < 4e6 / 4800


def test_taking_a_batch_is_a_part_of_the_hand_over() -> None:
    """10 ms of the trainer's thread for each batch of 100 are 100 us for an image, which no stage accounts for."""
    demand = make_profile(host={"trainer_us_per_step": 10_000.0}).demand
    assert (demand.cpu_s["batch"], demand.cpu_s["other"]) == (pytest.approx(100e-6), pytest.approx(300e-6))
    assert (demand.take_batch_s, demand.handover_s) == (pytest.approx(100e-6), pytest.approx(100e-6))
    assert make_profile(handover_us=None).demand.handover_s == pytest.approx(300e-6)


def test_handing_over_small_batches_of_the_engine_is_no_stages_fault() -> None:
    """3 of 4 cores' time is in no stage: a larger batch shares it among more images."""
    profile = make_profile(stages=(make_stage("decode", 1000, parallelism=4),), host={"cpu_fraction": 1.0})
    images = profile.step.images_per_step
    bottleneck = find(profile)
    assert bottleneck.stage == "batch"
    other_us = 4e6 / profile.images_per_second - 1000
    assert bottleneck.reason == (
        f"The 4 cores are 100% busy, {other_us / (other_us + 1000):.0%} of it in handing over batches: "
        f"{other_us * images:,.0f} µs of a core for each batch of {images}."
    )
    assert profile.demand.take_batch_s == pytest.approx(other_us / 1e6)
    quiet = make_profile(stages=(make_stage("decode", 200, parallelism=4),), host={"cpu_fraction": 0.5})
    assert find(quiet).reason.startswith("The cores are 50% busy, 90% of it in handing over batches: ")


SERVED = {"service.workers": ("a:1", "b:1")}


def make_served(**changes: Any) -> PipelineProfile:
    return make_profile(config=SERVED, stages=(), **({"host": {"cpu_fraction": 0.2}} | changes))


def test_too_few_workers_are_counted() -> None:
    report = make_report(make_served())
    assert report.bottleneck.reason == (
        "The 2 workers give 1,000 images/s, and the accelerator needs 4,000: it takes 8 like them."
    )
    assert (report.bottleneck.stage, report.bottleneck.limit_images_per_second) == ("service", 1000)
    [fix] = report.fixes
    assert (fix.action, fix.predicted_images_per_second, fix.predicted_idle_fraction) == ("add_machines", 4000, 0)
    assert fix.instruction == "Run 8 workers like these with `tfpipe serve`, in place of 2."


def test_a_host_that_is_busy_with_taking_batches() -> None:
    report = make_report(make_served(host={"cpu_fraction": 0.97}))
    assert (report.bottleneck.stage, report.fixes) == ("cpu", ())
    assert report.bottleneck.reason == "This host's 4 cores are 97% busy with taking batches."


def test_an_accelerator_that_never_waits_needs_no_fix() -> None:
    report = make_report(make_served(step=make_step(1000, 1000)))
    assert (report.bottleneck.stage, report.fixes) == ("accelerator", ())
