"""The fixes of a profile: hand-made figures, exact predictions."""

import re
from dataclasses import replace
from typing import Any

import pytest

from tests.profiler.profiles import PROFILE, make_profile, make_stage, make_step
from tfpipe.profiler.diagnose.diagnosis import find_bottleneck, find_fixes
from tfpipe.profiler.diagnose.proposals import propose
from tfpipe.profiler.types import Buffer, Effort, Fix, OptionValue, PipelineProfile
from tfpipe.system.options import get_value, replace_options

INDEX_FIRST = (
    "tfpipe index /data/flowers --output /data/flowers-index, then tfpipe reshard /data/flowers-index /data/flowers-new"
)
STAGES_S = 3.5e-3
"""The time of an image in all stages of `PROFILE`. Further 0.3 ms belong to no stage; 4 cores are 95 % busy."""
MADE_S = 3.29e-3
"""The part of it from `parse` to `batch`."""


def list_fixes(profile: PipelineProfile) -> tuple[Fix, ...]:
    return find_fixes(profile, find_bottleneck(profile))


def list_changes(profile: PipelineProfile) -> list[dict[str, OptionValue]]:
    return [dict(fix.changes) for fix in list_fixes(profile)]


def get_fixes(profile: PipelineProfile, action: str) -> list[Fix]:
    return [fix for fix in list_fixes(profile) if fix.action == action]


def predict_rate(stages_s: float) -> float:
    """Returns the images per second when the stages take this time; the 0.3 ms beside them are in proportion."""
    return 0.95 * 4 / (stages_s * (1 + 0.3e-3 / STAGES_S))


NEW_SHARDS = "tfpipe reshard /data/flowers /data/flowers-new"
SQUARES = {"stored_size": (500, 500), "mean_size": None, "address": "gs://b/my ds@cats"}
RAW = {**SQUARES, "address": "/data/flowers", "formats": ("RAW",)}
CACHED = 0.01e-3 + MADE_S / 2
"""An image of a cache that saves reading and half of the rest, as `cached` costs half of what an image does now."""
PART = 12e9 / (100_000 * 256 * 256 * 3)
"""The share of 100,000 decoded images, 19.7 GB, that fits into the 12 GB which a cache may take of 15 GB."""
READS_MUCH = (make_stage("read", 700), *(stage for stage in PROFILE.stages if stage.name != "read"))
"""Stages that take 4,000 us for an image, 700 of them to read it."""
UNREAD = {"unread_features": ("blob/mask", "a depth"), "unread_share": 0.9}
LEFT_OUT = "--drop-feature blob/mask --drop-feature 'a depth'"
FULL_STORAGE = {
    "host": {"storage_bytes_per_second": 99e6, "storage_limit_bytes_per_second": 100e6, "cpu_fraction": 0.3},
    "dataset": {"unread_features": ("blob",), "unread_share": 0.5},
}

# The pipeline reached 95 % of its bound, and so it will again.
FIXES: dict[str, tuple[dict[str, Any], dict[str, OptionValue] | str, float | None]] = {
    "bytes in place of floats, which leave three quarters from `parse` to `batch`": (
        {"config": {"image_dtype": "float32"}, "option_costs": {"uint8": 3000.0}},
        {"image_dtype": "uint8"}, predict_rate(STAGES_S - 0.25 * MADE_S),
    ),
    "crops on the device, which leave half of it": (
        {"option_costs": {"device": 2000.0}},
        {"augment": "device", "image_dtype": "uint8"}, predict_rate(STAGES_S - 0.5 * MADE_S),
    ),
    "a cache of decoded images": (
        {"dataset": {"records": 1000}, "option_costs": {"cached": 2000.0}},
        {"cache": "decoded"}, predict_rate(CACHED),
    ),
    "a part of a cache": (
        {"dataset": {"records": 100_000}, "option_costs": {"cached": 2000.0}},
        {"cache": "decoded", "cache_bytes": "11444MiB"}, predict_rate((1 - PART) * STAGES_S + PART * CACHED),
    ),
    "half of the bytes are read, as the sample showed": (
        {}, f"{NEW_SHARDS} --resize-short 256", predict_rate(0.01e-3 + 0.5 * (0.2e-3 + MADE_S)),
    ),
    "squares": ({"dataset": SQUARES}, "tfpipe reshard 'gs://b/my ds@cats' 'gs://b/my ds-new' --square 256", None),
    "raw squares": ({"dataset": RAW}, f"{NEW_SHARDS} --encoding raw --square 256", None),
    "restart markers": (
        {"dataset": {"short_side": None}, "option_costs": {"seekable": 3000.0}},
        f"{NEW_SHARDS} --seekable", predict_rate(STAGES_S - 0.25 * MADE_S),
    ),
    "reading takes 700 of 4,000 us, for ten times the bytes that are left": (
        {"stages": READS_MUCH, "dataset": UNREAD}, f"{NEW_SHARDS} {LEFT_OUT}", 1000 * 4000 / (4000 - 630),
    ),
    "foreign files": (
        {"stages": READS_MUCH, "dataset": {**UNREAD, "described": False}},
        f"{INDEX_FIRST} {LEFT_OUT}", 1000 * 4000 / (4000 - 630),
    ),
    "waiting for the storage falls with the bytes": (
        {"stages": (make_stage("read", 100),), **FULL_STORAGE}, f"{NEW_SHARDS} --drop-feature blob", 2000,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FIXES)
def test_predictions_follow_the_demands(name: str) -> None:
    changes, expected, rate = FIXES[name]
    profile = make_profile(**changes)
    fix = next(fix for fix in list_fixes(profile) if expected in (fix.changes, fix.instruction))
    if rate is not None:
        assert fix.predicted_images_per_second == pytest.approx(rate)
        assert fix.predicted_idle_fraction == pytest.approx(1 - rate / profile.step.required_rate)
    if "cache" in expected or "image_dtype" in expected:
        assert expected not in list_changes(PROFILE)


def test_what_helps_nothing_is_not_proposed() -> None:
    assert {"cache": "decoded"} in list_changes(make_profile(dataset={"records": 60_000}))
    assert not any("cache" in changes for changes in list_changes(PROFILE))  # a million images are too many
    textbook = make_profile(dataset={"records": 100_000, "by_engine": False})
    assert not any("cache_bytes" in changes for changes in list_changes(textbook))
    assert get_fixes(make_profile(dataset={"short_side": None}), "write_data") == []
    for few in ({"unread_share": 0.05}, {"unread_features": (), "unread_share": 0.0}):
        fixes = list_fixes(make_profile(stages=READS_MUCH, dataset={**UNREAD, **few}))
        assert not any("--drop-feature" in fix.instruction for fix in fixes)
    (fix,) = get_fixes(PROFILE, "write_data")
    assert fix.reason == "Images of 500 x 375 on average are stored for a model that sees 224."
    (fix,) = get_fixes(make_profile(config={"image_size": 64}, dataset={"short_side": 73}), "write_data")
    assert fix.reason == "Images of 500 x 375 on average are stored for a model that sees 64."


def test_handing_over_costs_a_small_image_what_it_costs_a_large_one() -> None:
    """Of 1 ms beside the stages' 3.5 ms, 0.6 ms are hand-overs, and the rest is in proportion to the stages."""
    busy = PROFILE.host.cpu_fraction
    profile = make_profile(
        images_per_second=busy * 4 / 4.5e-3,
        config={"image_dtype": "float32"},
        option_costs={"uint8": 400.0},
        handover_us=600.0,
    )
    demand = STAGES_S - 0.9 * MADE_S
    expected = busy * 4 / (demand + 0.4e-3 * demand / STAGES_S + 0.6e-3)
    assert next(
        fix for fix in list_fixes(profile) if "image_dtype" in fix.changes
    ).predicted_images_per_second == pytest.approx(expected)


def test_a_cache_of_records_costs_what_copying_them_out_of_it_takes() -> None:
    """Reading takes 0.2 ms, and copying 0.15 ms; of 200,000 records of 100 kB, 60 % fit into 12 GB."""
    for records, share in ((1000, 1.0), (200_000, 0.6)):
        profile = make_profile(dataset={"records": records}, option_costs={"cached": None, "kept": 150.0})
        now = STAGES_S + 0.3e-3
        read_s = share * 0.15e-3 + (1 - share) * 0.2e-3
        demand = next(fix.demand for fix in propose(profile, find_bottleneck(profile)) if "cache" in fix.changes)
        assert demand is not None
        assert demand.cpu_s["read"] == pytest.approx(read_s)
        assert sum(demand.cpu_s.values()) == pytest.approx(now - 0.2e-3 + read_s)


def test_a_cache_does_not_shorten_what_a_stage_behind_it_waits_for() -> None:
    """A call waits 4 ms on 4 threads: 1,000 images/s, whatever is kept in memory."""
    ask = make_stage("ask", 10, wait_us_per_image=4000.0, parallelism=4)
    for records in (1000, 300_000):  # the second cache keeps a part
        profile = make_profile(stages=(*PROFILE.stages, ask), dataset={"records": records, "own_stages": ("ask",)})
        assert not any("cache" in changes for changes in list_changes(profile))


def test_what_was_not_tried_is_not_proposed() -> None:
    profile = make_profile(dataset={"records": 1000}, option_costs={"now": None})
    assert {name for changes in list_changes(profile) for name in changes} == {"cache"}
    assert {"cache": "decoded"} not in list_changes(profile)


TEXTBOOK: dict[str, Any] = {"by_engine": False}
ONE_CALL: dict[str, Any] = {"tf_data.num_parallel_calls": 1}

SLOW_READ = make_stage("read", 100, parallelism=2, wait_us_per_image=1900.0)
NO_PREFETCH: dict[str, Any] = {"prefetch_batches": 0, "tf_data.inject_prefetch": False}


def make_own(name: str, us: float, busy: float, engine: bool = False, **stage: Any) -> PipelineProfile:
    dataset = {"own_stages": (name,), **({} if engine else TEXTBOOK)}
    return make_profile(stages=(make_stage(name, us, **stage),), dataset=dataset, host={"cpu_fraction": busy})


FIRST_FIXES: dict[str, tuple[PipelineProfile, dict[str, OptionValue] | str, float]] = {
    "serial decoding": (
        make_profile(
            stages=(make_stage("read", 50, parallelism=8), make_stage("decode", 950)),
            **{"config": ONE_CALL, "dataset": TEXTBOOK, "host": {"cpu_fraction": 0.25}, "step": make_step(1000, 9000)},
        ),
        {"tf_data.num_parallel_calls": None}, 4000,
    ),
    # At 2 ms for each image 4,000 a second need 8 at once; a quarter more makes 16 in powers of two.
    "slow reads": (
        make_profile(stages=(SLOW_READ,), dataset={"cycle_length": 2, **TEXTBOOK}, host={"cpu_fraction": 0.02}),
        {"tf_data.cycle_length": 16, "tf_data.read_parallel_calls": 16}, 4000,
    ),
    # The trainer waits for 75 ms of every 100 ms: no batch of 100 images is made faster than that.
    "prefetch": (
        make_profile(stages=(make_stage("decode", 400),), config=NO_PREFETCH, host={"cpu_fraction": 0.1}),
        {"prefetch_batches": None}, 100 / 0.075,
    ),
    "waits behind a lock": (
        make_own("ask", 50, 0.1, parallelism=2, wait_us_per_image=900.0, locked_us_per_image=1000.0),
        "Take the lock out of the stage ask, or hold it for a shorter time: threads do not help.", 2000,
    ),
    "python": (
        make_own("jitter", 900, 0.35, holds_python_lock=True, parallelism=4, locked_us_per_image=900.0),
        "Write the stage jitter with TensorFlow's operations, do its work on the accelerator", 4000,
    ),
    "python of the engine": (
        make_own("transform", 900, 0.35, True, holds_python_lock=True, parallelism=4, locked_us_per_image=900.0),
        "Let the function `transform` call operations that let go of Python's ", 4000,
    ),
    "computes behind a lock": (
        make_own("transform", 900, 0.25, True, parallelism=4, locked_us_per_image=1000.0),
        "Take the lock out of the function `transform`, or hold it for a shorter time.", 4000,
    ),
    "a function of the engine waits": (
        make_own("transform", 100, 0.025, True, parallelism=4, wait_us_per_image=3900.0),
        "Give your reader `num_threads=16`.", 4000,
    ),
    # At 4 ms for each image 4,000 a second need 16 at once; a quarter more makes 32 in powers of two.
    "a stage waits": (
        make_own("lookup", 100, 0.025, parallelism=4, wait_us_per_image=3900.0),
        {"tf_data.private_threadpool_size": 32}, 4000,
    ),
    "a serial stage": (
        replace(make_own("noise", 950, 0.25, True), step=make_step(1000, 9000)),
        "Give the map of the stage noise `num_parallel_calls=tf.data.AUTOTUNE`.", 4000,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FIRST_FIXES)
def test_the_first_fix(name: str) -> None:
    profile, expected, rate = FIRST_FIXES[name]
    first = list_fixes(profile)[0]
    if isinstance(expected, str):
        assert (first.instruction[: len(expected)], first.changes) == (expected, {})
    else:
        assert first.changes == expected
    assert first.predicted_images_per_second == pytest.approx(rate)


@pytest.mark.parametrize(
    ("data", "order", "action", "changes", "instruction"),
    [
        ({"described": False, "records": None}, "auto", "write_data", {}, "tfpipe index /data/flowers"),
        ({"described": False, "records": None, "compression": "GZIP"}, "auto", "write_data", {}, INDEX_FIRST),
        ({"compression": "GZIP"}, "auto", "write_data", {}, "tfpipe reshard /data/flowers /data/flowers-new"),
        ({}, "throughput", "set_option", {"order": "auto"}, ""),
    ],
)
def test_an_evaluation_that_waits_for_one_file_goes_to_the_engine(data, order, action, changes, instruction):
    """A batch of 100 images has 10 MB, and 900 us become 900 x 2,097,152 / 10,000,000 of two threads."""
    read = make_stage("read", 100, wait_us_per_image=900.0)
    profile = make_profile(
        stages=(read,),
        dataset={**TEXTBOOK, **data},
        config={"training": False, "order": order},
        host={"cpu_fraction": 0.02},
        step=make_step(1000, 10_000),
    )
    fix = list_fixes(profile)[0]
    assert (fix.action, fix.changes, fix.instruction) == (action, changes, instruction)
    assert fix.predicted_images_per_second == pytest.approx(2 / (100e-6 + 900e-6 * 2**21 / 10e6), rel=0.06)


@pytest.mark.parametrize(
    ("data", "config", "changes", "instruction"),
    [
        ({}, {"order": "throughput"}, {"order": "auto"}, ""),
        ({}, {"order": "throughput", **ONE_CALL}, {"order": "auto", "tf_data.num_parallel_calls": None}, ""),
        ({"described": False}, {}, {}, "tfpipe index /data/flowers"),
    ],
)
def test_training_by_the_engine(data, config, changes, instruction):
    """Half of the time from `parse` to `batch`, and then no time for reading, which has 0.2 ms now."""
    profile = make_profile(dataset={**TEXTBOOK, **data}, config=config, option_costs={"engine_share": 0.5})
    fix = next(fix for fix in list_fixes(profile) if "engine" in fix.reason)
    assert (fix.changes, fix.instruction) == (changes, instruction)
    assert fix.effort is (Effort.NEW_SHARDS if instruction else Effort.VISIBLE_OPTION)
    assert fix.predicted_images_per_second == pytest.approx(predict_rate(STAGES_S - 0.5 * MADE_S - 0.2e-3))


def test_stages_of_the_users_own_behind_batch_stay_behind_the_engine() -> None:
    *before, batch = PROFILE.stages
    stages, costs = (*before, make_stage("blur", 1), batch, make_stage("mixup", 1)), {"engine_share": 0.5}
    for names, expected in ((("mixup",), [{"order": "exact"}]), (("mixup", "blur"), [])):
        dataset, config = {**TEXTBOOK, "own_stages": names}, {"order": "throughput"}
        profile = make_profile(stages=stages, dataset=dataset, config=config, option_costs=costs)
        assert [dict(fix.changes) for fix in list_fixes(profile) if "engine" in fix.reason] == expected


def test_a_fix_that_gives_little_stands_behind_one_that_gives_much() -> None:
    """New shards take more effort than any option, but give much more images than a cache of a few records."""
    data = {"unread_features": ("blob",), "unread_share": 0.9, "short_side": None}
    stages = (make_stage("read", 3500, parallelism=8), *(stage for stage in PROFILE.stages if stage.name != "read"))
    costs = {"now": 3290.0, "device": 1000.0}
    fixes = list_fixes(make_profile(stages=stages, dataset=data, option_costs=costs, images_per_second=540.0))
    assert [(fix.action, next(iter(fix.changes), None)) for fix in fixes] == [
        ("set_option", "augment"),
        ("write_data", None),
        ("set_option", "cache"),
    ]
    gains = [fix.predicted_images_per_second - 540 for fix in fixes]
    assert gains[1] > gains[0] > 3 * gains[2]


@pytest.mark.parametrize(("read_us", "rates"), [(100, [319, 3307]), (3400, [211, 586])])
def test_an_option_that_is_worth_it_stands_before_new_shards_that_give_more(read_us: int, rates: list[int]) -> None:
    """Gains multiply: five like the first would give more than the shards. The second gives a fifth at least."""
    stages = (make_stage("read", read_us), make_stage("decode", 6000, parallelism=1), make_stage("augment", 100))
    costs = {"now": 6100.0, "smaller": 300.0, "device": None, "dct_scaling": None, "uint8": None, "cached": None}
    profile = make_profile(
        stages=stages,
        config=ONE_CALL,
        host={"cores": 2.0, "cpu_fraction": 0.52},
        option_costs=costs,
        dataset={"records": None, **TEXTBOOK},
        images_per_second=166.0,
    )
    first, second, *_ = list_fixes(profile)
    assert first.changes == {"tf_data.num_parallel_calls": None}
    assert second.instruction.endswith(" --resize-short 256")
    assert [round(fix.predicted_images_per_second) for fix in (first, second)] == rates


def test_caches_of_uncounted_files_are_sized_by_what_was_counted() -> None:
    data = {"records": 1000, "unpacked_record_bytes": 300e3}
    profile = make_profile(dataset=data, option_costs={"cached": 3900.0, "smaller": None})
    reasons = " ".join(fix.reason for fix in list_fixes(profile) if "cache" in fix.changes)
    assert re.findall(r"[\d.]+ MB", reasons) == ["300.0 MB", "196.6 MB"]


def test_memory_is_freed_where_most_is_held_and_a_late_first_batch_needs_a_smaller_buffer() -> None:
    large = Buffer("prefetch", "batches", 50, 1e9), Buffer("shuffle", "records", 8192, 0.82e9)
    buffers = (*large, Buffer("own", "elements", 1, 1))
    first, second = list_fixes(make_profile(buffers=buffers, host={"peak_memory_bytes": 15 * 10**9}))[:2]
    assert (first.changes, first.predicted_images_per_second) == ({"prefetch_batches": 2}, 1000)
    assert second.changes == {"tf_data.shuffle_buffer_size": 2048}
    profile = make_profile(step=make_step(1000, 1000), dataset={"by_engine": False, "shuffled_records": 4000})
    assert list_fixes(profile) == ()  # the accelerator is busy
    assert [fix.changes for fix in list_fixes(replace(profile, first_batch_s=8.0))] == [
        {"tf_data.shuffle_buffer_size": 1000}
    ]


def test_a_shuffle_of_decoded_images_moves_in_front_of_decoding() -> None:
    buffers = (Buffer("mix", "elements", 2000, 301e6),)
    profile = make_profile(buffers=buffers, dataset={"own_stages": ("mix",)})
    (fix,) = get_fixes(profile, "move_stage")
    assert (fix.stage, re.findall(r"[\d.]+ MB", fix.reason)) == ("mix", ["301.0 MB", "200.0 MB"])
    assert get_fixes(replace(profile, buffers=(replace(buffers[0], num_bytes=1e6),)), "move_stage") == []


def test_a_stage_that_widens_values_goes_to_the_device() -> None:
    """Eight bytes for one: without it, what stands behind it copies an eighth."""
    widen = make_stage("widen", 400, parallelism=4, bytes_in_per_image=150e3, bytes_out_per_image=1200e3)
    *before, batch = PROFILE.stages
    stages = (*before, widen, replace(batch, cpu_us_per_image=800.0))
    profile = make_profile(stages=stages, dataset={"own_stages": ("widen",)}, images_per_second=800.0)
    fix = next(fix for fix in list_fixes(profile) if fix.stage == "widen")
    assert (fix.action, fix.effort) == ("move_to_device", Effort.WASTE)
    total_s, left_s = 0.95 * 4 / 800, 4.6e-3 - 0.4e-3 - 0.7e-3
    assert fix.predicted_images_per_second == pytest.approx(0.95 * 4 / (left_s + (total_s - 4.6e-3) * left_s / 4.6e-3))


def test_a_cache_behind_augmentation_moves_before_it() -> None:
    data = {"own_stages": ["kept"], "late_caches": ["kept"], "records": 1000}
    profile = make_profile(stages=(make_stage("kept", 3500, parallelism=4),), dataset=data)
    (fix,) = get_fixes(profile, "rewrite_stage")
    assert (fix.changes, fix.stage) == ({"cache": "decoded"}, "kept")
    assert fix.predicted_images_per_second == pytest.approx(predict_rate(1e-3))
    (fix,) = get_fixes(replace(profile, records_per_image=2.0), "rewrite_stage")  # two records are taken for an image
    assert fix.predicted_images_per_second == pytest.approx(predict_rate(2e-3))


def make_small_batches(decode_us: float = 2100, host: Any = None, **changes: Any) -> PipelineProfile:
    """Returns batches of two images, each of which takes 100 ms of the trainer's thread."""
    stages = (make_stage("decode", decode_us, parallelism=4), make_stage("batch", 80, parallelism=1))
    host = {"trainer_us_per_step": 100e3, **(host or {})}
    return make_profile(stages=stages, config={"batch_size": 2}, host=host, **changes)


def test_what_batches_of_two_sizes_cost_says_what_a_larger_one_gives() -> None:
    """A batch costs 5.12 ms and an image 0.24 ms: 2.8 ms for one in a batch of 2, 0.32 ms for one in a batch of 64."""
    data, costs = {"records": 100_000, "by_engine": False}, {"batch": 2800.0, "large_batch": 320.0}
    profile = make_small_batches(dataset=data, option_costs=costs)
    fix = next(fix for fix in list_fixes(profile) if "batch_size" in fix.changes)
    size, demand = fix.changes["batch_size"], profile.demand
    assert isinstance(size, int)
    assert fix.demand is not None
    left = (240 + 5120 / size) / 2800
    assert fix.demand.cpu_s == pytest.approx({name: left * cost for name, cost in demand.cpu_s.items()})
    assert fix.predicted_images_per_second > 2 * profile.images_per_second


@pytest.mark.parametrize(("cores_busy", "reached"), [(0.95, 0.95), (0.6, 1.0)])
def test_larger_batches_keep_cores_busy_that_wait_for_small_ones(cores_busy: float, reached: float) -> None:
    host = {"cpu_fraction": cores_busy}
    profile = make_small_batches(4000 * cores_busy - 1080, host, step=make_step(1000, 9000))
    fix = next(fix for fix in list_fixes(profile) if "batch_size" in fix.changes)
    assert fix.demand is not None
    assert fix.predicted_images_per_second == pytest.approx(reached * fix.demand.limit)


def test_a_batch_of_few_images_grows_to_a_power_of_two_and_leaves_four_in_an_epoch() -> None:
    """A quarter of the work is done once for each batch: 32 times as many images leave a hundredth of it.

    1,001 records make 4 batches of 250, and the power of two below is 128.
    """
    assert {"batch_size": 64} in list_changes(make_small_batches())
    assert {"batch_size": 64} in list_changes(make_small_batches(dataset={"records": 1001}))
    assert {"batch_size": 4} in list_changes(make_small_batches(dataset={"records": 21}))
    assert "batch_size" not in str(list_changes(make_small_batches(dataset={"records": 15})))


def test_every_change_is_an_option() -> None:
    slow = {"image_dtype": "float32", "tf_data.map_fusion": False, "augment_options.dct_scaling": False}
    tried = {"uint8": 3500.0, "device": 2000.0, "dct_scaling": 3000.0}
    profiles = [
        make_profile(config=slow, dataset={"records": 1000, "by_engine": False}, option_costs=tried),
        make_profile(dataset={"records": 200_000}),
        *(profile for profile, _, _ in FIRST_FIXES.values()),
    ]
    all_changes = [(profile, changes) for profile in profiles for changes in list_changes(profile)]
    assert {name for _, changes in all_changes for name in changes} == {
        *("augment", "cache", "cache_bytes", "tf_data.cycle_length", "image_dtype", "tf_data.num_parallel_calls"),
        *("prefetch_batches", "tf_data.read_parallel_calls", "augment_options.dct_scaling"),
        "tf_data.private_threadpool_size",
    }
    for profile, changes in all_changes:
        changed = replace_options(profile.config, changes)
        assert {name: get_value(changed, name) for name in changes} == changes
        assert (changed != profile.config) is bool(changes)


def make_filtered(share: float, filters: tuple[str, ...] = ("keep",), **changes: Any) -> PipelineProfile:
    """Returns `PROFILE` with a filter behind `augment` that passes on this share of the images."""
    *before, batch = PROFILE.stages
    keep = make_stage("keep", 40, elements_out_per_in=share)
    dataset = {**changes.pop("dataset", {}), "own_stages": ("keep",), "filters": filters}
    return make_profile(stages=(*before, keep, batch), dataset=dataset, **changes)


@pytest.mark.parametrize(("image_us", "handover_us", "left"), [(3800, 0.0, 1.0), (5000, 1000.0, 11 / 17)])
def test_images_are_dropped_before_they_are_decoded(image_us: float, handover_us: float, left: float) -> None:
    """Three of four images are decoded and augmented for nothing; they are still read, parsed and looked at.

    `read`, `parse`, `decode` and `augment` gave four each and the filter one: 17. Then it is 4 + 4 + 1 + 1 + 1.
    """
    rate = 0.95 * 4e6 / image_us
    first = list_fixes(make_filtered(0.25, images_per_second=rate, handover_us=handover_us))[0]
    assert (first.changes, first.action, first.stage) == ({}, "move_stage", "keep")
    assert first.instruction == (
        "Filter before `decode`, on the label or the image's header, and not in the stage keep."
    )
    before_us = STAGES_S * 1e6 + 40
    after_us = before_us - 0.75 * (2400 + 700)
    expected_us = after_us * (image_us - handover_us) / before_us + left * handover_us
    assert first.predicted_images_per_second == pytest.approx(0.95 * 4e6 / expected_us)


def make_blurred(
    random: bool | None = None, per_image: bool | None = None, required: float = 3000.0, **changes: Any
) -> PipelineProfile:
    """Returns a pipeline of 1,000 images/s on 4 cores with an own stage between `decode` and `augment`."""
    decode, augment = (make_stage(name, 300, parallelism=4) for name in ("decode", "augment"))
    blur = make_stage("blur", 3000, parallelism=4, bytes_out_per_image=150e3)
    dataset = {
        "own_stages": ("blur",),
        "declared": {"blur": {"random": random, "per_image": per_image}},
        "records": 1000,
    }
    return make_profile(stages=(decode, blur, augment), dataset=dataset, step=make_step(1000, required), **changes)


def test_costly_work_of_an_own_stage_goes_to_the_accelerator_or_is_work_for_the_user() -> None:
    fix = list_fixes(make_blurred())[0]
    assert (fix.action, fix.stage, fix.changes) == ("move_to_device", "blur", {})
    assert (fix.reason[:14], fix.instruction[-7:]) == ("blur takes 79%", "533 µs.")
    assert fix.predicted_images_per_second == 3000
    assert "cheaper" not in list_fixes(make_blurred(required=9000.0))[0].instruction
    first = list_fixes(make_blurred(per_image=False))[0]
    assert (first.action, first.predicted_images_per_second) == ("rewrite_stage", 3000)
    assert "for 300 µs for each image in place of 3,000." in first.instruction
    (rewritten,) = get_fixes(make_blurred(per_image=False, required=9000.0), "rewrite_stage")
    assert rewritten.predicted_images_per_second == pytest.approx(0.95 * 4 / (0.9e-3 * (1 + 0.2 / 3.6)))
    for helped in (make_blurred(), make_blurred(per_image=False, random=False)):
        assert "rewrite_stage" not in [fix.action for fix in list_fixes(helped)]


def test_an_own_stage_that_repeats_itself_is_cached() -> None:
    (fix,) = get_fixes(make_blurred(random=False), "cache_before_stage")
    assert (fix.stage, fix.instruction) == ("augment", "Put a stage that caches right behind blur.")
    assert fix.reason.endswith(": 150.0 MB of memory.")
    for random in (True, None):
        assert get_fixes(make_blurred(random), "cache_before_stage") == []


def test_a_fix_that_leaves_no_time_which_was_measured_has_no_prediction() -> None:
    """A cache behind the last stage leaves what nobody measured, and without a step nothing else bounds the rate."""
    stages = (make_stage("decode", 400, parallelism=4), make_stage("blur", 3600, parallelism=4))
    dataset = {"own_stages": ("blur",), "by_engine": False, "records": 1000}
    profile = make_profile(stages=stages, dataset=dataset, host={"cpu_fraction": 1.0})
    profile = replace(profile, dataset=replace(profile.dataset, declared={"blur": {"random": False}}))
    (fix,) = get_fixes(profile, "cache_before_stage")
    assert fix.predicted_images_per_second == profile.step.required_rate
    without_steps = replace(profile, step=replace(profile.step, method="none"))
    assert get_fixes(without_steps, "cache_before_stage") == []
    assert get_fixes(without_steps, "move_to_device") != []


def test_what_leaves_most_of_the_gap_comes_behind_what_closes_it() -> None:
    fixes = list_fixes(make_blurred(option_costs={"now": 1000.0, "dct_scaling": 100.0}))
    assert [fix.action for fix in fixes] == ["move_to_device", "set_option"]
    assert fixes[1].predicted_images_per_second == pytest.approx(0.95 * 4 / (3.06e-3 * (1 + 0.2 / 3.6)))
    hardly = list_fixes(make_blurred(option_costs={"now": 1000.0, "dct_scaling": 750.0}))
    assert [fix.action for fix in hardly] == ["move_to_device"]


def test_work_for_nothing_goes_before_a_cache_if_it_is_much() -> None:
    """A cache would give more, and take memory for images that nobody sees."""
    first, second = list_fixes(make_filtered(0.25, dataset={"records": 1000}))[:2]
    assert (first.action, second.changes) == ("move_stage", {"cache": "decoded"})
    assert second.predicted_images_per_second > first.predicted_images_per_second
    little = list_fixes(make_filtered(0.88, dataset={"records": 1000}))
    assert little[0].changes == {"cache": "decoded"}
    assert [fix.stage for fix in little if fix.action == "move_stage"] == ["keep"]


def test_a_filter_is_not_moved_for_nothing() -> None:
    """It passes on nearly all, stands before `decode` or behind `batch`, or only makes batches."""
    keep = make_stage("keep", 40, elements_out_per_in=0.25)
    info = {"filters": ("keep",)}
    early = make_profile(stages=(*PROFILE.stages[:3], keep, *PROFILE.stages[3:]), dataset=info)
    late = make_profile(stages=(*PROFILE.stages, keep), dataset=info)
    for profile in (make_filtered(0.95), make_filtered(0.25, filters=()), early, late, make_profile(stages=(keep,))):
        assert "move_stage" not in [fix.action for fix in list_fixes(profile)]
