"""Which form is best, from figures written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tfpipe.format.image_form import ImageForm
from tfpipe.tuning.form_advice import FormFigures, choose_forms
from tfpipe.tuning.paired_benchmark import Interval
from tfpipe.tuning.stored_forms import Candidate, Speed


def make_form(name: str, rate: float, stored_bytes: float, *, keeps: bool = False, cached: bool = False) -> FormFigures:
    """Makes the figures of a form for 1,000 images/s, without prices."""
    candidate = Candidate(name, ImageForm(), {"cache": "decoded"} if cached else {}, keeps_crops=keeps)
    return FormFigures(
        candidate=candidate,
        speed=Speed(Interval(rate, rate, rate), rate),
        cores=1000 / rate,
        stored_bytes=stored_bytes,
        read_bytes_per_second=0.0,
        memory_bytes=1e9 if cached else 0.0,
        fits_memory=True,
        write_s=1.0,
        storage_price=None,
        cores_price=None,
    )


ORIGINAL = make_form("original", 1000, 100, keeps=True)
SEEKABLE = make_form("seekable", 1500, 99, keeps=True)
SHORT = make_form("short", 2000, 40)
CACHED = make_form("cached", 8000, 100, cached=True)


def add_prices(form: FormFigures, per_byte: float | None, per_core: float | None) -> FormFigures:
    return replace(
        form,
        storage_price=None if per_byte is None else form.stored_bytes * per_byte,
        cores_price=None if per_core is None else form.cores * per_core,
    )


def test_without_prices_the_fewest_cores_decide() -> None:
    advice = choose_forms([ORIGINAL, SEEKABLE, SHORT, CACHED])
    assert (advice.keeping_crops, advice.of_all, advice.by_price) == (SEEKABLE, CACHED, False)
    assert advice.fastest_to_slowest == 8.0


@pytest.mark.parametrize(
    ("per_byte", "per_core", "best", "by_price"),
    [
        (1.0, 1.0, "short", True),  # 40.5 against 100.125 for the cache
        (0.001, 100.0, "cached", True),  # 12.6 against 50.04
        (1.0, None, "cached", False),
        (None, 1.0, "cached", False),
    ],
)
def test_both_prices_together_decide(per_byte: float | None, per_core: float | None, best: str, by_price: bool) -> None:
    advice = choose_forms([add_prices(form, per_byte, per_core) for form in (ORIGINAL, SEEKABLE, SHORT, CACHED)])
    assert (advice.of_all.candidate.name, advice.by_price) == (best, by_price)
    assert advice.keeping_crops is not None
    assert advice.keeping_crops.candidate.name == "seekable"


def test_a_price_is_that_of_storage_and_cores() -> None:
    assert add_prices(SHORT, 0.5, 3.0).price == 21.5
    assert add_prices(SHORT, 0.5, None).price is None


@pytest.mark.parametrize(("rate", "best"), [(2039, "small"), (2041, "large")])
def test_of_forms_that_are_the_same_within_2_percent_the_smaller_one_is_best(rate: float, best: str) -> None:
    advice = choose_forms([make_form("large", rate, 50), make_form("small", 2000, 40)])
    assert advice.of_all.candidate.name == best


def test_a_cache_that_does_not_fit_is_not_chosen() -> None:
    assert choose_forms([ORIGINAL, SHORT, replace(CACHED, fits_memory=False)]).of_all == SHORT


def test_no_form_may_keep_the_crops() -> None:
    assert choose_forms([SHORT, CACHED]).keeping_crops is None
