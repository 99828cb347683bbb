"""What fixes give together, and what it takes if that is too little."""

from dataclasses import replace
from typing import Any

import pytest

from tests.profiler.profiles import PROFILE, make_profile, make_stage, make_step
from tfpipe.profiler.diagnose.diagnosis import can_combine, combine, make_report
from tfpipe.profiler.model import Demand
from tfpipe.profiler.report.text_json import format_combination, format_shortfall
from tfpipe.profiler.types import Combination, Effort, Fix, Shortfall

FLOATS = make_profile(
    config={"image_dtype": "float32"},
    dataset={"records": 1000, "short_side": None},
    option_costs={"uint8": 3000.0, "cached": 3500.0},
)
"""Bytes in place of floats save a quarter of 3.29 ms, a cache of decoded images an eighth and reading, and a cache of
records 200 us of reading."""
DEMAND = Demand(
    cores=4,
    cpu_s={"read": 1e-3, "decode": 2e-3, "other": 1e-3},
    wait_s={"read": 3e-3},
    threads={"read": 8, "decode": 4},
    storage_limit=1000.0,
    take_batch_s=1e-4,
)


def make_fix(demand: Demand = DEMAND, **fields: object) -> Fix:
    return Fix(Effort.OPTION, "", demand, **fields)  # type: ignore[arg-type]


def test_fixes_of_different_demands_save_what_each_saves_alone() -> None:
    """The 0.3 ms that belong to no stage shrink with the stages: by both factors."""
    report = make_report(FLOATS)
    assert [dict(fix.changes) for fix in report.fixes[:3]] == [
        {"image_dtype": "uint8"},
        {"cache": "decoded"},
        {"cache": "bytes"},
    ]
    lighter, unread = 0.25 * 3.29e-3, 0.2e-3
    other_s = 0.3e-3 * (1 - lighter / 3.5e-3) * (1 - unread / 3.5e-3)
    rate = 0.95 * 4 / (3.5e-3 - lighter - unread + other_s)
    assert report.combination is not None
    assert report.combination.fixes == (1, 3)  # 1 and 2 both change what decoding costs
    assert report.combination.predicted_images_per_second == pytest.approx(rate)
    assert report.combination.predicted_idle_fraction == pytest.approx(1 - rate / 4000)
    assert format_combination(report) == "Fixes 1 and 3 together: 1,411 images/s, 65 % idle predicted."


def test_nothing_is_combined_where_one_fix_is_enough() -> None:
    report = make_report(replace(FLOATS, step=make_step(1000, 1300)))
    assert report.fixes[0].predicted_idle_fraction == 0
    assert (report.combination, report.shortfall) == (None, None)
    assert (format_combination(report), format_shortfall(report)) == ("", "")


def test_one_fix_alone_is_no_combination() -> None:
    assert make_report(PROFILE).combination is None


def test_a_fix_beyond_those_that_are_shown_goes_by_its_options() -> None:
    report = make_report(FLOATS)
    report = replace(
        report,
        fixes=(*report.fixes[:2], *[report.fixes[1]] * 3, report.fixes[2]),
        combination=Combination((1, 6), 1370.0, 0.66),
    )
    assert format_combination(report).startswith("Fixes 1 and cache = 'bytes' together:")


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        (make_fix(changes={"cache": "bytes"}), make_fix(changes={"cache": "decoded"}), False),
        (make_fix(changes={"cache": "bytes"}), make_fix(changes={"cache": "bytes", "seed": 1}), True),
        (make_fix(action="add_machines"), make_fix(), False),
        (make_fix(action="move_stage", stage="cats"), make_fix(action="rewrite_stage", stage="cats"), False),
        (
            make_fix(replace(DEMAND, cpu_s={**DEMAND.cpu_s, "decode": 1e-3})),
            make_fix(replace(DEMAND, cpu_s={**DEMAND.cpu_s, "decode": 1.5e-3})),
            False,
        ),
        (
            make_fix(replace(DEMAND, cpu_s={**DEMAND.cpu_s, "decode": 1e-3})),
            make_fix(replace(DEMAND, cpu_s={**DEMAND.cpu_s, "decode": 1.5e-3}), action="move_stage", stage="cats"),
            True,
        ),
        (
            make_fix(replace(DEMAND, threads={"read": 16, "decode": 4})),
            make_fix(replace(DEMAND, cpu_s={**DEMAND.cpu_s, "read": 5e-4})),
            True,
        ),
        (make_fix(replace(DEMAND, storage_limit=None)), make_fix(replace(DEMAND, storage_limit=2000.0)), False),
        (make_fix(replace(DEMAND, wait_s={})), make_fix(replace(DEMAND, wait_s={"read": 1e-3})), False),
    ],
)
def test_fixes_go_together_where_their_savings_do_not_overlap(first: Fix, second: Fix, together: bool) -> None:
    assert can_combine(first, second, DEMAND) == can_combine(second, first, DEMAND) == together


def test_each_demand_gets_the_factors_of_both() -> None:
    faster = replace(
        DEMAND,
        cpu_s={"read": 1e-3, "decode": 1e-3, "cache": 5e-4, "other": 5e-4},
        threads={"read": 8},
        take_batch_s=5e-5,
    )
    wider = replace(DEMAND, wait_s={"read": 1e-3}, threads={"read": 16, "decode": 4}, storage_limit=3000.0)
    both = combine(make_fix(faster, changes={"cache": "decoded"}), make_fix(wider, changes={"seed": 1}), DEMAND)
    assert both.demand == Demand(
        cores=4,
        cpu_s=both.demand.cpu_s,
        wait_s={"read": pytest.approx(1e-3)},
        threads={"read": 16},
        storage_limit=3000.0,
        take_batch_s=pytest.approx(5e-5),
    )
    assert both.demand.cpu_s == pytest.approx({"read": 1e-3, "decode": 1e-3, "cache": 5e-4, "other": 5e-4})
    assert both.changes == {"cache": "decoded", "seed": 1}


def test_a_bound_beside_the_demand_grows_with_the_demand_of_the_other_fix() -> None:
    """Batches that are made beside the step take as long as before, or half with the other fix."""
    half = replace(DEMAND, cpu_s={name: seconds / 2 for name, seconds in DEMAND.cpu_s.items()}, storage_limit=None)
    prefetch = make_fix(max_images_per_second=600.0, efficiency=1.0)
    assert DEMAND.limit == pytest.approx(1000)
    assert half.limit == pytest.approx(2000)
    assert prefetch.compute_rate(500.0, DEMAND) == pytest.approx(600)
    assert combine(prefetch, make_fix(half), DEMAND).compute_rate(500.0, DEMAND) == pytest.approx(1200)


def test_the_shortfall_says_how_many_cores_or_machines_it_takes() -> None:
    report = make_report(PROFILE)
    (best,) = (fix.predicted_images_per_second for fix in report.fixes if fix.action == "write_data")
    image_us = 0.95 * 4 / best * 1e6
    assert report.shortfall == Shortfall(
        best_images_per_second=best,
        stage=None,
        machines=3,
        cores=9,
        storage_bytes_per_second=None,
        cpu_us_per_image=pytest.approx(image_us),
        affordable_cpu_us_per_image=pytest.approx(950),
        raw_images=False,
    )
    assert format_shortfall(report) == (
        "No fix here reaches 4,000 images/s; the best gives 1,994. The rest needs about 5 more cores, or `tfpipe "
        "serve` on 3 machines like this one. On these cores an image may take 950 µs, and would take 1,905."
    )


def test_the_shortfall_counts_all_fixes_together_and_no_cache_on_other_machines() -> None:
    report = make_report(FLOATS)
    assert report.combination is not None
    assert report.shortfall is not None
    assert report.shortfall.best_images_per_second == report.combination.predicted_images_per_second
    assert report.shortfall.cores == 12  # 4 x 4,000 / 1,411
    assert report.shortfall.machines == 4  # 4,000 / 1,307


def test_storage_that_is_too_slow_is_named_with_the_rate_that_it_takes() -> None:
    profile = make_profile(
        dataset={"short_side": None, "records": None},
        option_costs={"now": None},
        host={"storage_limit_bytes_per_second": 110e6, "cpu_fraction": 0.3},
    )
    report = make_report(profile)
    assert report.bottleneck.stage == "storage"
    assert report.shortfall is not None
    assert report.shortfall.storage_bytes_per_second == pytest.approx(400e6)
    # The stages take 3.5 ms, and nothing else was counted.
    assert report.shortfall.cores == 14
    assert format_shortfall(report).startswith(
        "No fix here reaches 4,000 images/s; this pipeline gives 1,000. The rest needs about 10 more cores and storage "
        "of 400.0 MB/s in place of 110.0 MB/s, or `tfpipe serve` on 4 machines like this one."
    )


def test_a_stage_that_no_core_makes_faster_is_named() -> None:
    stages = (*PROFILE.stages[:3], make_stage("decode", 900, parallelism=1), *PROFILE.stages[4:])
    profile = make_profile(stages=stages, host={"cpu_fraction": 0.6}, option_costs={"now": None})
    report = make_report(replace(profile, dataset=replace(profile.dataset, short_side=None)))
    assert report.shortfall is not None
    assert (report.shortfall.stage, report.shortfall.cores) == ("decode", None)
    assert format_shortfall(report).endswith(
        "The stage decode is too slow for that however many cores there are. The rest needs `tfpipe serve` on 4 "
        "machines like this one."
    )


@pytest.mark.parametrize(("cached_us", "raw"), [(400.0, True), (3000.0, False)])
def test_raw_pixels_are_named_where_their_cost_is_low_enough(cached_us: float, raw: bool) -> None:
    profile = make_profile(option_costs={"cached": cached_us}, host={"storage_limit_bytes_per_second": 4e9})
    report = make_report(profile)
    assert report.shortfall is not None
    assert report.shortfall.raw_images == raw
    assert ("or raw pixels in the shards (`tfpipe shard --encoding raw`)." in format_shortfall(report)) == raw


def test_raw_pixels_need_storage_that_gives_them() -> None:
    """4,000 images of 256 x 256 x 3 bytes are 786 MB/s."""
    for limit, enough in ((700e6, False), (900e6, True)):
        profile = make_profile(option_costs={"cached": 400.0}, host={"storage_limit_bytes_per_second": limit})
        shortfall = make_report(profile).shortfall
        assert shortfall is not None
        assert shortfall.raw_images == enough


@pytest.mark.parametrize(
    "changes",
    [{"config": {"cache": "bytes"}}, {"dataset": {"by_engine": False}}, {"dataset": {"own_stages": ("blur",)}}],
)
def test_machines_are_left_out_where_the_pipeline_cannot_be_served(changes: dict[str, Any]) -> None:
    shortfall = make_report(make_profile(**changes)).shortfall
    assert shortfall is not None
    assert shortfall.machines is None


def test_an_accelerator_that_is_busy_lacks_nothing() -> None:
    report = make_report(make_profile(step=make_step(1000, 1000)))
    assert (report.combination, report.shortfall) == (None, None)


def test_the_demand_of_a_profile_without_stages_is_that_of_the_process() -> None:
    profile = make_profile(stages=(), option_costs={"now": None}, dataset={"short_side": None})
    assert profile.demand.cpu_s == {"other": pytest.approx(3.8e-3)}
    shortfall = make_report(profile).shortfall
    assert shortfall is not None
    assert shortfall.cores == 16
