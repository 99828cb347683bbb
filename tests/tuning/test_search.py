"""The search's logic, with a fake clock and trials whose gains are known."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.observers import Recorder
from tests.profiler.profiles import make_fix
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.config.service_options import ServiceOptions
from tfpipe.engine.config.tf_data_options import TfDataOptions
from tfpipe.errors import ConfigError, DataError
from tfpipe.profiler.measure.simulated_accelerator import Accelerator
from tfpipe.system import host_limits
from tfpipe.system.options import replace_options
from tfpipe.system.progress import Observer
from tfpipe.tuning import search
from tfpipe.tuning.paired_benchmark import Interval
from tfpipe.tuning.pipeline_process import TimeIsUpError
from tfpipe.tuning.trials import Confirmed, PipelineJob, Trial

CONFIG = PipelineConfig(batch_size=100, tf_data=TfDataOptions(num_parallel_calls=1))


class FakeJob(PipelineJob):
    """Has no data; every cache needs the same limit, or none."""

    cache_bytes: str | None = None

    def find_cache_bytes(self, config: PipelineConfig, free_bytes: int) -> str | None:
        return None if config.cache == "none" else FakeJob.cache_bytes


JOB = FakeJob(cast("Any", None), None, Accelerator(1e-9, 100))
NOTHING = Interval(1.0, 1.0, 1.0)
PROFILE_S, START_S, TRIAL_S = 9.0, 4.0, 11.0


class FakeTrials:
    """Knows what each config gives; a trial, a start and a confirmation take a known time."""

    now = 0.0
    rate: Callable[[PipelineConfig], float]
    confirms = True

    def __init__(self, job: PipelineJob, config: PipelineConfig, deadline: float) -> None:
        FakeTrials.now += START_S
        assert FakeTrials.now < deadline
        self.job = job
        self.first, self.config = config, config
        self.trials: list[Trial] = []
        self.images_per_second = FakeTrials.rate(config)
        self.first_start_s, self.start_s, self.turn_s = START_S, START_S, 0.5

    def attempt(self, changes: Any, until: float) -> Trial:
        assert FakeTrials.now < until
        FakeTrials.now = min(FakeTrials.now + TRIAL_S, until)
        rate = FakeTrials.rate(replace_options(self.config, changes))
        kept = rate > self.images_per_second
        gain = rate / self.images_per_second
        self.trials.append(Trial(changes, rate, Interval(gain, gain, gain), kept))
        if kept:
            self.config, self.images_per_second = replace_options(self.config, changes), rate
        return self.trials[-1]

    def confirm(self, until: float) -> Confirmed:
        assert FakeTrials.now + 2 * START_S + 7 < until
        FakeTrials.now += 2 * START_S + 7
        now, before = FakeTrials.rate(self.config), FakeTrials.rate(self.first)
        if not self.confirms:
            self.config, now = self.first, before
        return Confirmed(Interval(now / before, now / before, now / before), before, now)

    def __enter__(self) -> FakeTrials:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def tune(monkeypatch: pytest.MonkeyPatch):
    """Searches with the rates of configs; returns the result, and the phases that the observer was told.

    The profiler's fixes are a cache, twice as many files and twice as long blocks, unless a test says others.
    """

    def run(
        rate: Callable[[PipelineConfig], float],
        config: PipelineConfig = CONFIG,
        seconds: float = 1e6,
        may_change: bool = False,
        job: PipelineJob = JOB,
        advice: tuple[dict[str, Any], ...] | None = None,
        confirms: bool = True,
    ) -> tuple[search.Tuned, list[str]]:
        def advise(job: PipelineJob, best: PipelineConfig, input_may_change: bool) -> Any:
            FakeTrials.now += PROFILE_S
            cycle, block = best.tf_data.cycle_length or 8, best.tf_data.block_length
            steps = ({"cache": "bytes"}, {"tf_data.cycle_length": 2 * cycle}, {"tf_data.block_length": 2 * block})
            return steps if advice is None else advice

        FakeTrials.now, FakeTrials.confirms = 1000.0, confirms
        FakeTrials.rate = staticmethod(rate)  # type: ignore[assignment]
        monkeypatch.setattr(search, "Trials", FakeTrials)
        monkeypatch.setattr(search, "_get_advice", advise)
        monkeypatch.setattr(search, "time", SimpleNamespace(monotonic=lambda: FakeTrials.now))
        monkeypatch.setattr(host_limits, "usable_cpus", lambda: 4)
        observer = Recorder()
        return search.tune(job, config, seconds, may_change, observer), observer.phases

    return run


def by_cycle(config: PipelineConfig) -> float:
    return 100.0 * (config.tf_data.cycle_length or 8) + (500 if config.tf_data.num_parallel_calls is None else 0)


def all_alike(_: PipelineConfig) -> float:
    return 1000.0


def test_it_climbs_until_nothing_helps(tune) -> None:
    tuned, said = tune(lambda config: by_cycle(config) if (config.tf_data.cycle_length or 8) <= 64 else 1.0)
    assert tuned.config.tf_data == TfDataOptions(cycle_length=64)
    assert (tuned.before_images_per_second, tuned.after_images_per_second) == (800, 6900)
    assert tuned.gain.ratio == pytest.approx(6900 / 800)
    assert tuned.finished
    assert tuned.trials[0].changes == {"tf_data.num_parallel_calls": None}
    assert said[:4] == [
        "Starting the pipeline",
        "Best so far 800 images/s; trying tf_data.num_parallel_calls = auto",
        "Best so far 1,300 images/s; profiling",
        "Best so far 1,300 images/s; trying cache = 'bytes'",
    ]
    assert said[-1] == "Best so far 6,900 images/s; measuring it against where it began"


def test_nothing_is_tried_twice(tune) -> None:
    tuned, _ = tune(lambda config: by_cycle(config) if (config.tf_data.cycle_length or 8) <= 64 else 1.0)
    seen, best = [CONFIG], CONFIG
    for trial in tuned.trials:
        seen.append(replace_options(best, trial.changes))
        best = seen[-1] if trial.kept else best
    assert len(set(seen)) == len(seen)


def test_the_profilers_fixes_are_tried_as_far_as_they_may_change_the_input(tune) -> None:
    advice = ({"image_dtype": "uint8"}, {"tf_data.cycle_length": 32}, {}, {"tf_data.cycle_length": None})
    config = replace(CONFIG, tf_data=TfDataOptions(), image_dtype="float32")
    tuned, _ = tune(by_cycle, config, 120, advice=advice)
    assert [trial.changes for trial in tuned.trials][:2] == [{"tf_data.cycle_length": 32}]
    assert tuned.config.image_dtype == "float32"
    tuned, _ = tune(by_cycle, config, 120, may_change=True, advice=advice)
    assert [trial.changes for trial in tuned.trials][:2] == [{"image_dtype": "uint8"}, {"tf_data.cycle_length": 32}]


@pytest.mark.parametrize("seconds", [45, 60, 90, 120, 300])
def test_it_keeps_to_its_time_and_uses_it(tune, seconds: float) -> None:
    tuned, _ = tune(lambda config: by_cycle(config) + config.tf_data.block_length, seconds=seconds)
    assert tuned.seconds <= seconds
    assert tuned.seconds == FakeTrials.now - 1000
    assert tuned.trials
    assert not tuned.finished
    if seconds > 60:
        # What is left is less than a trial and what the confirmation keeps in reserve.
        assert seconds - tuned.seconds < START_S + 7 + 0.2 * (2 * START_S + 7) + 1


def test_a_cache_that_does_not_fit_is_tried_with_what_fits(tune, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeJob, "cache_bytes", "812MiB")
    tuned, _ = tune(lambda config: 2000.0 if config.cache_bytes == "812MiB" else 1000.0)
    assert (tuned.config.cache, tuned.config.cache_bytes) == ("bytes", "812MiB")
    assert [trial.changes for trial in tuned.trials].count({"cache": "bytes", "cache_bytes": "812MiB"}) == 1


def test_nothing_better_is_the_beginning(tune) -> None:
    tuned, _ = tune(all_alike)
    assert (tuned.config, tuned.gain, tuned.finished) == (CONFIG, NOTHING, True)
    assert tuned.before_images_per_second == tuned.after_images_per_second == 1000
    assert len(tuned.trials) == 4


def test_what_is_not_confirmed_is_the_beginning(tune) -> None:
    tuned, _ = tune(by_cycle, seconds=120, confirms=False)
    assert any(trial.kept for trial in tuned.trials)
    assert (tuned.config, tuned.gain) == (CONFIG, NOTHING)
    assert tuned.before_images_per_second == tuned.after_images_per_second == 800


def test_an_accelerator_that_is_never_idle_needs_nothing(tune) -> None:
    job = PipelineJob(cast("Any", None), None, Accelerator(0.1, 100))
    tuned, said = tune(all_alike, job=job)
    assert (tuned.trials, tuned.finished, tuned.config) == ((), True, CONFIG)
    assert said == ["Starting the pipeline"]


def test_as_json(tune) -> None:
    tuned, _ = tune(lambda config: by_cycle(config) if (config.tf_data.cycle_length or 8) <= 8 else 1.0, seconds=60)
    document = json.loads(json.dumps(search.to_json(tuned, CONFIG), allow_nan=False))
    assert {name: document[name] for name in ("version", "changes", "images_per_second_before", "finished")} == {
        "version": 1,
        "changes": {"tf_data.num_parallel_calls": None},
        "images_per_second_before": 800.0,
        "finished": False,
    }
    assert document["gain"] == {"ratio": 1.625, "low": 1.625, "high": 1.625}
    assert document["trials"][0] == {
        "changes": {"tf_data.num_parallel_calls": None},
        "images_per_second": 1300.0,
        "gain": {"ratio": 1.625, "low": 1.625, "high": 1.625},
        "kept": True,
        "note": "",
    }


def test_what_cannot_be_searched() -> None:
    with pytest.raises(ConfigError, match=r"^A search needs at least 45 s, got 20\.$"):
        search.tune(JOB, CONFIG, 20, False, Observer())
    served = PipelineConfig(batch_size=100, service=ServiceOptions(workers=("localhost:5000",)))
    with pytest.raises(ConfigError, match="`service` must be left out to tune"):
        search.tune(JOB, served, 60, False, Observer())


def test_a_beginning_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    class Waiting:
        def __init__(self, job: PipelineJob, config: PipelineConfig, deadline: float) -> None:
            assert deadline == 45
            raise TimeIsUpError

    monkeypatch.setattr(search, "Trials", Waiting)
    monkeypatch.setattr(search, "time", SimpleNamespace(monotonic=lambda: 0.0))
    with pytest.raises(DataError, match="The pipeline was not warm when the time was up"):
        search.tune(JOB, CONFIG, 45, False, Observer())


def test_a_fix_that_changes_values_is_advised_only_where_the_input_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    fixes = (
        make_fix({"cache": "decoded"}, "But the values differ.", 2000, 0.1, keeps_values=False),
        make_fix({"tf_data.cycle_length": 16}, "More reads at once.", 1500, 0.2),
    )
    monkeypatch.setattr(search, "profile_pipeline", lambda *_, **__: None)
    monkeypatch.setattr(search, "make_report", lambda _: SimpleNamespace(fixes=fixes))
    assert search._get_advice(JOB, CONFIG, input_may_change=False) == [{"tf_data.cycle_length": 16}]
    assert search._get_advice(JOB, CONFIG, input_may_change=True) == [fix.changes for fix in fixes]
