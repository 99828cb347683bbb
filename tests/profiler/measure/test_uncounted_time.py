"""The time that tf.data's counters miss, and the stages that get it: hand-made figures, exact answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.profiler.profiles import PROFILE, STAGES, make_stage
from tfpipe.profiler.measure.uncounted_time import ProcessorTime, book_uncounted_time
from tfpipe.profiler.types import OptionCosts, Spread, StageTiming


def book(
    cpu_us: float,
    costs: OptionCosts,
    stages: tuple[StageTiming, ...] = STAGES,
    records: float = 1.0,
    stretch: float = 1.0,
    **dataset: Any,
) -> dict[str, float]:
    facts = replace(PROFILE.dataset, **dataset)
    booked = book_uncounted_time(stages, ProcessorTime(cpu_us, stretch), costs, facts, records)
    assert [stage.name for stage in booked] == [stage.name for stage in stages]
    return {stage.name: stage.cpu_us_per_image.median for stage in booked}


COUNTED = {stage.name: stage.cpu_us_per_image.median for stage in STAGES}
"""3,500 µs in all, of which 3,290 are from `parse` to `batch`."""


def test_a_few_percent_stay_uncounted() -> None:
    assert book(3500 * 1.19, OptionCosts(read=232.0), stretch=2.0) == COUNTED


def test_nothing_is_booked_if_threads_had_cores_and_reading_was_not_tried() -> None:
    assert book(7000.0, OptionCosts(now=9000.0)) == COUNTED


def test_all_stages_but_reading_get_time_back_that_was_divided_away() -> None:
    """They were divided by 2: 3,300 us of them can be 5,000, but not 9,800."""
    booked = book(5200 * 1.19, OptionCosts(read=232.0), stretch=2.0)
    assert booked == {name: pytest.approx(us if name == "read" else us * 5000 / 3300) for name, us in COUNTED.items()}
    assert sum(book(10_000 * 1.19, OptionCosts(), stretch=2.0).values()) == pytest.approx(200 + 2 * 3300)


def test_threads_that_unpack_files_count_as_reading() -> None:
    assert book(7000.0, OptionCosts(read=348.0))["read"] == pytest.approx(300)


def test_what_is_left_of_reading_by_the_clock_is_a_wait_for_files() -> None:
    """Read took 2 x 200 us by the clock. All others were divided by 2, and should have been divided by 1.25."""
    spent, costs = ProcessorTime((3300 * 1.6 + 200) * 1.19, 2.0), OptionCosts(read=232.0)
    read = book_uncounted_time(STAGES, spent, costs, PROFILE.dataset, 1.0)[1]
    assert read.wait_us_per_image == pytest.approx(400 - 200 * 1.25)
    assert read.blocked_fraction == pytest.approx(150e-6 * read.images_per_second / read.parallelism)
    assert book_uncounted_time(STAGES, spent, OptionCosts(), PROFILE.dataset, 1.0)[1] == STAGES[1]


def test_no_more_is_booked_than_is_missing() -> None:
    booked = book(3700 * 1.19, OptionCosts(read=9000.0))
    assert booked == {**COUNTED, "read": pytest.approx(400)}


def test_all_records_that_make_an_image_count() -> None:
    assert book(20_000.0, OptionCosts(read=348.0), records=2.0)["read"] == pytest.approx(600)


BLUR = replace(make_stage("blur", 8000), cpu_us_per_image=Spread(8000.0, 6000.0, 10_000.0))


def test_reading_keeps_at_most_twice_what_it_cost_and_its_bytes() -> None:
    stages = (STAGES[0], make_stage("read", 900), *STAGES[2:])
    booked = book(4200 * 1.19, OptionCosts(read=116.0), stages, stretch=2.0)
    assert booked["read"] == pytest.approx(250)  # 100 KB more are 50 µs
    assert sum(booked.values()) == pytest.approx(4200)  # the rest was counted too low elsewhere
    assert book(4200 * 1.19, OptionCosts(read=500.0), stages)["read"] == 900


def test_reading_that_was_not_counted_at_all_gets_its_cost() -> None:
    stages = (make_stage("read", 0), *STAGES[2:])
    assert book(7000.0, OptionCosts(read=348.0), stages)["read"] == pytest.approx(300)


def test_a_stage_that_has_more_time_than_was_spent_gives_it_back() -> None:
    stages = (*STAGES[:5], BLUR, STAGES[5])
    booked = book(10_000.0, OptionCosts(), stages, own_stages=("blur",))
    assert booked == {**COUNTED, "blur": pytest.approx(10_000 / 1.19 - 3500)}
    assert book(11_600.0, OptionCosts(), stages, own_stages=("blur",))["blur"] == 8000


@pytest.mark.parametrize(("threads", "wait_us"), [(8, 11_500 - 3_000 / 1.19), (7, 0.0)])
def test_time_that_was_given_back_is_waiting_if_the_threads_have_it(threads: int, wait_us: float) -> None:
    """A stage of 8 ms at 1,000 images/s keeps 8 threads busy."""
    blur = replace(BLUR, parallelism=threads)
    (*_, booked) = book_uncounted_time(
        (*STAGES, blur), ProcessorTime(3000.0, 1.0), OptionCosts(), replace(PROFILE.dataset, own_stages=("blur",)), 1.0
    )
    assert booked.wait_us_per_image == pytest.approx(min(wait_us, 8000))
    assert booked.cpu_us_per_image.median == 0


def test_threads_of_its_own_belong_to_a_stage_that_computes_much() -> None:
    stages = (*STAGES[:5], BLUR, STAGES[5])
    booked = book(20_000 * 1.19, OptionCosts(), stages, own_stages=("blur",))
    assert sum(booked.values()) == pytest.approx(20_000)
    assert booked["blur"] == pytest.approx(8000 + 20_000 - 11_500)


def test_a_spread_stays_around_its_mean() -> None:
    facts = replace(PROFILE.dataset, own_stages=("blur",))
    (blur,) = book_uncounted_time((BLUR,), ProcessorTime(16_000 * 1.19, 1.0), OptionCosts(), facts, 1.0)
    assert blur.cpu_us_per_image == Spread(pytest.approx(16_000), pytest.approx(12_000), pytest.approx(20_000))


def test_a_cheap_stage_and_one_that_waits_get_nothing() -> None:
    cheap = (*STAGES, make_stage("own", 100))
    assert book(20_000.0, OptionCosts(), cheap, own_stages=("own",))["own"] == 100
    waits = (*STAGES, make_stage("own", 3000, python=True, wait_us_per_image=5000.0))
    assert book(20_000.0, OptionCosts(), waits, own_stages=("own",))["own"] == 3000


def test_a_python_function_that_computes_gets_it_too() -> None:
    computes = (*STAGES, make_stage("own", 3000, python=True, wait_us_per_image=500.0))
    assert book(7000 * 1.19, OptionCosts(), computes, own_stages=("own",))["own"] == pytest.approx(3500)
