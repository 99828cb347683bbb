"""Changes and fixes that are tried in turns: with rates that are known, and with a real pipeline."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.observers import Recorder
from tests.profiler.profiles import make_fix, make_profile
from tfpipe.dataset.load import load_manifest
from tfpipe.engine.cache import BytesCache
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError
from tfpipe.profiler.measure import profile, simulated_accelerator
from tfpipe.profiler.measure.profile import ProfileConfig, make_trial, measure_rate
from tfpipe.profiler.measure.simulated_accelerator import Accelerator
from tfpipe.profiler.trials import compare, try_fixes
from tfpipe.profiler.types import Bottleneck, Fix, Report, Spread

CONFIG, FAST = PipelineConfig(batch_size=100), Accelerator(0.01, 100)


def test_one_spoiled_turn_changes_nothing() -> None:
    rates: Iterator[float] = iter((120.0, 100.0, 100.0, 12.0, 120.0, 100.0))  # other work took the fourth
    gain, rate = compare(lambda _: next(rates), {}, {"fast": 1})
    assert (gain.median, rate) == (pytest.approx(1.2), 120)


@pytest.fixture
def runs(monkeypatch) -> list[tuple[Accelerator, PipelineConfig]]:
    """Lets pipelines run at known rates, and returns their accelerators and configs."""
    seen: list[tuple[Accelerator, PipelineConfig]] = []

    def measure(_data: Any, _split: Any, config: PipelineConfig, accelerator: Accelerator, *_: Any) -> Any:
        seen.append((accelerator, config))
        if config.prefetch_batches == 13:
            raise ConfigError("Unlucky.")
        rate = 1000.0 * (config.tf_data.cycle_length or 8) / 8 / (config.prefetch_batches or 1)
        rate *= 1.02 if config.seed else 1
        return (rate, 0.0) if config.cache == "none" else (5 * rate, 200.0)

    monkeypatch.setattr(profile, "measure_rate", measure)
    return seen


def try_known(
    *fixes: Fix, config: PipelineConfig = CONFIG, enough: float = float("inf")
) -> tuple[Report, dict[str, Any], Recorder]:
    report, recorder = Report(make_profile(), Bottleneck("decode", "", 1.0), fixes), Recorder()
    data: Any = None
    return *try_fixes(report, make_trial(data, None, config, FAST, 1.5), recorder, enough), recorder


def test_fixes_are_tried_in_order_and_keep_what_they_were(runs: list[tuple[Accelerator, PipelineConfig]]) -> None:
    fixes = (
        make_fix({"tf_data.cycle_length": 16}, "More reads at once.", 1500, 0.2),
        make_fix({}, "More cores.", 4000, 0.0, instruction="Take a larger host."),
        make_fix({"prefetch_batches": 13}, "Bad luck.", 1500, 0.2),
        make_fix({"prefetch_batches": 4}, "Fewer.", 1500, 0.2),
        make_fix({"tf_data.cycle_length": 32}, "Still more reads.", 1600, 0.2),
        make_fix({"seed": 1}, "Hardly more.", 1600, 0.2),
    )
    report, kept, recorder = try_known(*fixes)
    tried = [(fix.measured_images_per_second, fix.kept) for fix in report.fixes]
    assert tried == [(2000, True), (None, None), (None, None), (500, False), (None, None), (2040, False)]
    assert report.fixes[0].measured_gain == Spread(2.0, 2.0, 2.0)
    assert (report.fixes[1], report.after_images_per_second) == (fixes[1], 2000)
    assert kept == {"tf_data.cycle_length": 16}
    assert recorder.phases == [f"Trying {fixes[k].name}" for k in (0, 2, 3, 5)]
    assert recorder.notes == ["Not tried: prefetch_batches = 13. Unlucky."]
    # A drift that is even cancels out.
    assert [config.tf_data.cycle_length for _, config in runs[:6]] == [16, None, None, 16, 16, None]


@pytest.mark.usefixtures("runs")
def test_nothing_more_is_tried_with_a_rate_that_is_enough() -> None:
    more, fewer = make_fix({"tf_data.cycle_length": 16}, "", 1500, 0.2), make_fix({"seed": 1}, "", 1500, 0.2)
    report, kept, _ = try_known(more, fewer, enough=1950)
    assert ([fix.kept for fix in report.fixes], kept) == ([True, None], more.changes)
    assert try_known(more, enough=950)[1] == {}


@pytest.mark.usefixtures("runs")
def test_a_cache_that_takes_long_to_fill_is_tried_only_where_there_is_one() -> None:
    cache = make_fix({"cache": "bytes"}, "Nothing is read.", 1500, 0.2)
    report, kept, recorder = try_known(cache)
    assert (report.fixes, kept) == ((cache,), {})
    fault = "The cache takes about 200 s to fill, and a trial has 40 s for it."
    assert recorder.notes == [f"Not tried: cache = 'bytes'. {fault}"]
    faster = make_fix({"tf_data.cycle_length": 16}, "More reads at once.", 1500, 0.2)
    assert try_known(faster, config=PipelineConfig(batch_size=100, cache="bytes"))[0].fixes[0].kept


def test_another_batch_size_computes_in_proportion(runs: list[tuple[Accelerator, PipelineConfig]]) -> None:
    try_known(make_fix({"batch_size": 400}, "Larger.", 1500, 0.2))
    assert [accelerator for accelerator, _ in runs[:2]] == [Accelerator(0.04, 400), FAST]


@pytest.mark.slow
@pytest.mark.parametrize("order", ["auto", "throughput"])
def test_a_cache_is_filled_in_each_turn(small_dataset: Path, monkeypatch, order: str) -> None:
    monkeypatch.setattr(simulated_accelerator, "MIN_WARM_UP_S", 0.1)
    config = PipelineConfig(batch_size=4, image_size=16, cache="bytes", order=order)
    for _ in range(2):
        rate, fill_s = measure_rate(
            load_manifest(str(small_dataset)), "train", config, Accelerator(0.02, 4), ProfileConfig(0.3, 0.3)
        )
        assert 0 < rate < 201
        assert fill_s == 0
        assert not any(type(value) is BytesCache for value in gc.get_objects())  # the next turn needs the memory
