"""The station that limits a pipeline, by hand-made figures; demands, and spreads of figures."""

from dataclasses import replace
from typing import Any

import pytest

from tests.profiler.profiles import make_profile, make_stage, make_step
from tfpipe.profiler.diagnose.diagnosis import find_bottleneck
from tfpipe.profiler.model import Demand
from tfpipe.profiler.types import Spread


def test_the_demand_of_an_image_at_each_station() -> None:
    demand = make_profile().demand
    assert demand.cpu_s["decode"] == pytest.approx(2.4e-3)
    assert demand.cpu_s["other"] == pytest.approx(0.3e-3)  # 0.95 of 4 cores make 3,800 us at 1,000 images a second
    assert demand.cpu_limit == pytest.approx(4 / 3.8e-3)
    assert demand.get_stage_limit("decode") == pytest.approx(4 / 2.4e-3)
    assert demand.get_stage_limit("read") == pytest.approx(8 / 0.2e-3)
    assert (demand.storage_limit, demand.limit) == (pytest.approx(10_000), demand.cpu_limit)
    assert make_profile().cpu_limit == pytest.approx(1000 / 0.95)

    exceeded = {"storage_bytes_per_second": 120e6, "storage_limit_bytes_per_second": 100e6}
    assert make_profile(host=exceeded).storage_limit is None  # so nobody knows it
    read = make_stage("read", 100, parallelism=3, wait_us_per_image=2000.0)  # waiting for files is part of it
    demand = make_profile(stages=(read, make_stage("decode", 2400, parallelism=1))).demand
    assert (demand.threads, demand.wait_s["read"]) == ({"read": 3, "decode": 1}, pytest.approx(2e-3))
    assert demand.get_stage_limit("decode") == pytest.approx(1 / 2.4e-3)
    assert demand.get_stage_limit("read") == pytest.approx(3 / 2.1e-3)


SLOW_READ = make_stage("read", 100, parallelism=2, wait_us_per_image=1900.0)
PYTHON = make_stage("jitter", 900, holds_python_lock=True, parallelism=4, locked_us_per_image=1000.0)
LOCKED = make_stage("ask", 50, parallelism=4, wait_us_per_image=900.0, locked_us_per_image=1000.0)
LOOKUP = make_stage("lookup", 100, parallelism=4, wait_us_per_image=3800.0)
MANY_READ = (make_stage("read", 1500, parallelism=8), make_stage("decode", 800, parallelism=2))
"""They are hardly busy, but reading takes most of the cores' time."""
AUGMENT = make_stage("augment", 1000, parallelism=8)
BUSY = make_step(1000, 1000)
FULL = {"peak_memory_bytes": 15 * 10**9}
UNBUFFERED = {"prefetch_batches": 0, "tf_data.inject_prefetch": False}
STORAGE = {"cpu_fraction": 0.2, "storage_bytes_per_second": 95e6, "storage_limit_bytes_per_second": 100e6}

BOTTLENECKS: dict[str, tuple[dict[str, Any], str, str]] = {
    "busy cores": ({}, "decode", "The 4 cores are 95% busy, 63% of it in decode: 2,400 µs of a core for each image."),
    "others": (
        {"host": {"cpu_fraction": 0.3, "other_cpu_fraction": 0.65}},
        "cpu", "Other processes take 65% of the 4 cores, this pipeline 30%.",
    ),
    "storage": ({"host": STORAGE}, "storage", "The storage gives 95 MB/s of the 100 MB/s that it can."),
    "slow reads": (
        {"stages": (SLOW_READ,), "host": {"cpu_fraction": 0.1}},
        "read", "read takes 2,000 µs for each image, 95% of it waiting for storage, and 2 of its calls work at once: "
        "1,000 images/s, while the cores are 10% busy.",
    ),
    "serial decode": (
        {"stages": (make_stage("read", 50), make_stage("decode", 950)), "host": {"cpu_fraction": 0.25}},
        "decode", "and 1 of its calls works at once: 1,053 images/s",
    ),
    "no prefetch": (
        {"stages": (make_stage("decode", 400),), "config": UNBUFFERED, "host": {"cpu_fraction": 0.1}},
        "prefetch", "10% busy, and no stage is at its limit: no batch is made while the accelerator works.",
    ),
    "accelerator": ({"step": BUSY}, "accelerator", "The accelerator is never idle: a step takes 100.0 ms"),
    "late start of a busy one": ({"step": BUSY, "first_batch_s": 8.0}, "first_batch", "The first batch took 8.0 s"),
    "memory of a busy one": ({"step": BUSY, "host": FULL}, "memory", "94% of the memory is taken, 15.0 GB"),
    "memory": ({"host": FULL}, "memory", "94% of the memory is taken, 15.0 GB: a little more ends the run."),
    "late start": (  # at 1,000 images a second and three quarters idle, 8,000 records lose 6 s
        {"first_batch_s": 8.0, "dataset": {"records": 8000}},
        "first_batch", "The first batch took 8.0 s, and the accelerator waits for 6.0 s of an epoch after that.",
    ),
    "late start of many": ({"first_batch_s": 8.0}, "decode", "The 4 cores are 95% busy"),
    "cores are nearest": (
        {"stages": MANY_READ, "host": {"cpu_fraction": 0.7}},
        "read", "The cores are 70% busy, and no stage is at its limit: read takes most of them.",
    ),
    "a stage is nearest": (
        {"stages": MANY_READ, "host": {"cpu_fraction": 0.3}},
        "decode", "no stage is at its limit: decode is nearest, 40% of what it can give.",
    ),
    "hand-over": (  # of 2.8 ms of the cores for an image, the stages take 1 ms
        {"stages": (AUGMENT,), "host": {"cpu_fraction": 0.7}, "dataset": {"by_engine": False}},
        "batch", "64% of it in handing over batches: 180,000 µs of a core for each batch of 100.",
    ),
    "python": (
        {"stages": (make_stage("decode", 500, parallelism=4), PYTHON), "host": {"cpu_fraction": 0.4}},
        "jitter", "jitter is a Python function that holds Python's lock: 1,000 µs for each image, so 1,000 images/s "
        "with any number of threads.",
    ),
    "lock": (
        {"stages": (LOCKED,), "host": {"cpu_fraction": 0.1}},
        "ask", "ask waits behind a lock of its own that one call holds at a time: 1,000 µs",
    ),
    "waits": (
        {"stages": (LOOKUP,), "host": {"cpu_fraction": 0.1}},
        "lookup", "lookup takes 3,900 µs for each image, 97% of it waiting for something else, and 4 of ",
    ),
    "no counters": ({"stages": ()}, "cpu", "The 4 cores are 95% busy."),
    "no counters, quiet": ({"stages": (), "host": {"cpu_fraction": 0.2}}, "prefetch", "no batch is made while"),
}  # fmt: skip


LIMITS = {"busy cores": 4 / 3.8e-3, "storage": 1000 / 0.95, "slow reads": 1000, "accelerator": 1000, "python": 1000}


@pytest.mark.parametrize("name", BOTTLENECKS)
def test_the_bottleneck_and_its_proof(name: str) -> None:
    changes, stage, reason = BOTTLENECKS[name]
    found = find_bottleneck(make_profile(**changes))
    assert (found.stage, reason in found.reason) == (stage, True), found
    if name in LIMITS:
        assert found.limit_images_per_second == pytest.approx(LIMITS[name])


DECODE_AS_WELL = "take 4,800 µs for each image, 79% of it waiting for something else, and 4 of its calls "


def test_threads_of_a_function_in_the_engine_decode_as_well() -> None:
    function = make_stage("transform", 100, parallelism=4, wait_us_per_image=3800.0)
    profile = make_profile(stages=(make_stage("decode", 900, parallelism=4), function), host={"cpu_fraction": 0.26})
    assert profile.demand.passes == {"transform": ("decode",)}
    assert list(profile.demand.threads) == ["transform"]
    bottleneck = find_bottleneck(profile)
    assert bottleneck.stage == "transform"
    assert bottleneck.reason.startswith(f"decode and transform {DECODE_AS_WELL}")


def test_calls_that_wait_keep_the_threads_of_tf_data_which_decode_as_well() -> None:
    own = make_stage("lookup", 100, parallelism=4, wait_us_per_image=3800.0)
    stages = (make_stage("decode", 900, parallelism=4), own)
    dataset = {"by_engine": False, "own_stages": ("lookup",)}
    profile = make_profile(stages=stages, host={"cpu_fraction": 0.26}, dataset=dataset)
    assert (profile.demand.passes, profile.demand.threads) == ({"lookup": ("decode",)}, {"decode": 4, "lookup": 4})
    assert find_bottleneck(profile).reason.startswith(f"decode and lookup {DECODE_AS_WELL}")
    # Behind a lock one call after another waits; without it four threads wait, and decode, side by side.
    locked = replace(own, locked_us_per_image=3900.0)
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
    bottleneck = find_bottleneck(profile)
    assert (bottleneck.stage, bottleneck.reason) == (
        "batch", "The 4 cores are 100% busy, 75% of it in handing over batches: 300,000 µs of a core for each batch of "
        "100."
    )  # fmt: skip
    assert profile.demand.take_batch_s == pytest.approx(3e-3)
    quiet = make_profile(stages=(make_stage("decode", 200, parallelism=4),), host={"cpu_fraction": 0.5})
    assert find_bottleneck(quiet).reason.startswith("The cores are 50% busy, 90% of it in handing over batches: ")


def test_a_spread_has_the_median_and_both_percentiles() -> None:
    assert Spread.from_values([3.0]) == Spread(3, 3, 3)
    assert Spread.from_values([float(i) for i in range(11)]) == Spread(5, 1, 9)
    # The figure of the whole takes the median's place. It lies inside: a few parts can make up most of a run.
    assert Spread.from_values([1.0, 2.0], 2.5) == Spread(2.5, 1.1, 2.5)
    assert Spread.from_values([1.0, 2.0], 0.5) == Spread(0.5, 0.5, 1.9)


def test_threads_that_wait_and_compute_share_the_cores() -> None:
    """On one core an image waits 1 s and computes for 1 s: by mean value analysis 1/2, 4/5, 15/16 and so on a second.

    With two threads the second one finds half an image at the core, so it takes 1.5 s there: 2 / 2.5.
    """
    demand = Demand(1, {"decode": 0.75, "ask": 0.25}, {"ask": 1.0}, {"ask": 1}, {"ask": ("decode",)})
    rates = [demand.widen("ask", threads).limit for threads in (1, 2, 3, 64)]
    assert rates == pytest.approx([1 / 2, 4 / 5, 15 / 16, 1.0], rel=1e-9)


def test_threads_have_the_time_of_one_stage_or_of_a_lock() -> None:
    demand = Demand(4, {"decode": 0.75, "ask": 0.25}, {"ask": 1.0}, {"ask": 1})
    assert (demand.limit, demand.widen("ask", 8).limit) == (1 / 1.25, 4)  # at last that of the cores
    passes = {"ask": ("decode",)}
    demand = Demand(4, {"decode": 5.0, "ask": 0.25}, {"ask": 1.0}, {"ask": 1}, passes, frozenset({"ask"}))
    assert demand.get_service_s("ask") == (0.25, 1.0)
    assert demand.get_stage_limit("ask") == 1 / 1.25
