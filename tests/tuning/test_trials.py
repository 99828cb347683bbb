"""The best pipeline and its candidates, whose rates are known; and once with real pipelines."""

from __future__ import annotations

import pickle
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.observers import Recorder
from tests.profiler.profiles import make_fix
from tfpipe.dataset.load import load_manifest
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.source import tfrecord_files
from tfpipe.errors import ConfigError, DataError
from tfpipe.profiler.measure.simulated_accelerator import Accelerator
from tfpipe.profiler.types import Spread
from tfpipe.system import host_limits
from tfpipe.tuning import paired_benchmark
from tfpipe.tuning.paired_benchmark import Interval
from tfpipe.tuning.trials import PipelineJob, Trial, Trials, try_fixes

CONFIG = PipelineConfig(batch_size=100)


def by_cycle(config: PipelineConfig) -> float:
    """Returns a rate that grows with the files that are read at once, until it fails."""
    if config.tf_data.cycle_length == 13:
        raise DataError("Unlucky.")
    return 1000.0 * (config.tf_data.cycle_length or 8) / 8


def test_what_is_better_is_kept_and_the_rest_is_not(fake_job) -> None:
    job = fake_job(by_cycle)
    with Trials(job, CONFIG) as trials:
        worse = trials.attempt({"tf_data.cycle_length": 4})
        assert (worse.images_per_second, worse.kept, trials.config) == (500, False, CONFIG)
        better = trials.attempt({"tf_data.cycle_length": 16})
        assert better == Trial({"tf_data.cycle_length": 16}, 2000, Interval(*[pytest.approx(2.0)] * 3), True)
        same = trials.attempt({"tf_data.block_length": 32})
        assert (same.kept, same.gain) == (False, Interval(*[pytest.approx(1.0)] * 3))
        assert trials.config.tf_data.cycle_length == 16
        assert trials.images_per_second == 2000
        assert trials.trials == [worse, better, same]
        # Two processes at most: a candidate beside the best.
        assert [runner.closed for _, runner in job.runners] == [True, True, False, True]
    assert all(runner.closed for _, runner in job.runners)


def test_what_cannot_be_tried_says_why(fake_job, monkeypatch: pytest.MonkeyPatch) -> None:
    job = fake_job(by_cycle, records=200_000)
    with Trials(job, CONFIG) as trials:
        for changes, until, note in (
            ({"tf_data.cycle_length": 13}, 1e9, "Unlucky."),
            ({"tf_data.cycle_length": 0}, 1e9, "`cycle_length` must be at least 1, got 0."),
            ({"tf_data.cycle_length": 16}, 0.0, "There was no time left."),
            ({"cache": "bytes"}, 1e9, "The cache takes about 200 s to fill, and 120 s are left for it."),
        ):
            assert trials.attempt(changes, until) == Trial(changes, None, None, False, note)
        trials.attempt({"tf_data.cycle_length": 4})
        monkeypatch.setattr(host_limits, "available_memory_bytes", lambda: 5 * 10**7)
        note = "The best so far takes 100.0 MB; for a second one 50.0 MB are free."
        assert trials.attempt({"tf_data.cycle_length": 16}).note == note
        assert trials.config == CONFIG
        assert not job.runners[0][1].closed


def test_a_best_pipeline_that_dies_is_started_again(fake_job) -> None:
    job = fake_job(by_cycle)
    with Trials(job, CONFIG) as trials:
        job.runners[0][1].dies_in_turn = 3
        assert trials.attempt({"tf_data.cycle_length": 16}).note == "It died."
        assert trials.attempt({"tf_data.cycle_length": 16}).kept
        assert [config.tf_data.cycle_length or 8 for config, _ in job.runners] == [8, 16, 8, 16]


def test_a_cache_of_the_best_pipeline_is_filled_by_its_candidates_too(fake_job) -> None:
    job = fake_job(lambda config: 5000.0 if config.cache == "bytes" else 1000.0, records=10_000)
    with Trials(job, CONFIG) as trials:
        assert trials.attempt({"cache": "bytes"}).kept
        assert job.count_steps_to_fill(trials.config) == 100
    real = PipelineJob(cast("Any", None), None, Accelerator(1e-9, 100))
    files = PipelineConfig(batch_size=100, cache="bytes", cache_dir="/tmp/cache")
    assert (real.count_steps_to_fill(CONFIG), real.count_steps_to_fill(files)) == (0, 0)


def test_a_cache_that_does_not_fit_gets_a_limit(small_dataset: Path) -> None:
    manifest = load_manifest(str(small_dataset))
    job = PipelineJob(manifest, "train", Accelerator(1e-9, 100))
    config = PipelineConfig(batch_size=4, cache="bytes")
    needed = manifest.splits["train"].bytes
    assert job.find_cache_bytes(config, 2 * needed) is None
    assert job.find_cache_bytes(config, needed) == "1MiB"
    large = replace(config, cache="decoded", decoded_size=8000)
    assert job.find_cache_bytes(large, 10**9) == f"{4 * 10**8 // 2**20}MiB"
    for other in ({"cache": "none"}, {"cache_bytes": "1MiB"}, {"cache_dir": "/tmp/cache"}):
        assert job.find_cache_bytes(replace(large, **other), 10**9) is None


def test_the_result_is_confirmed_in_new_processes(fake_job) -> None:
    job = fake_job(by_cycle)
    with Trials(job, CONFIG) as trials:
        with pytest.raises(ConfigError, match="There is no change to confirm: none was kept"):
            trials.confirm()
        trials.attempt({"tf_data.cycle_length": 16})
        assert trials.confirm() == (Interval(*[pytest.approx(2.0)] * 3), 1000, 2000)
        assert [config.tf_data.cycle_length or 8 for config, _ in job.runners] == [8, 16, 16, 8]
        assert all(runner.closed for _, runner in job.runners)
        assert trials.config.tf_data.cycle_length == 16


@pytest.mark.parametrize("how", ["slower", "dead", "late"])
def test_what_is_not_confirmed_is_not_the_result(fake_job, how: str) -> None:
    started = []

    def lucky_once(config: PipelineConfig) -> float:
        started.append(config)
        if len(started) > 2 and config.tf_data.cycle_length == 16:
            if how == "dead":
                raise DataError("It died.")
            return 1000.0 if how == "slower" else 2000.0
        return by_cycle(config)

    with Trials(fake_job(lucky_once), CONFIG) as trials:
        assert trials.attempt({"tf_data.cycle_length": 16}).kept
        confirmed = trials.confirm(0.0 if how == "late" else time.monotonic() + 1000)
        assert confirmed == (Interval(1.0, 1.0, 1.0), *[1000 if how == "slower" else 2000] * 2)
        assert trials.config == CONFIG


def test_another_batch_size_computes_in_proportion() -> None:
    job = PipelineJob(cast("Any", None), None, Accelerator(0.1, 100))
    assert job.get_accelerator(PipelineConfig(batch_size=400)) == Accelerator(0.4, 400)
    assert job.get_accelerator(PipelineConfig(batch_size=50)) == Accelerator(0.05, 50)


def test_fixes_are_tried_in_order_and_keep_what_they_were(fake_job) -> None:
    fixes = (
        make_fix({"tf_data.cycle_length": 16}, "More reads at once.", 1500, 0.2),
        make_fix({}, "More cores.", 4000, 0.0, instruction="Take a larger host."),
        make_fix({"tf_data.cycle_length": 13}, "Bad luck.", 1500, 0.2),
        make_fix({"tf_data.cycle_length": 4}, "Fewer.", 1500, 0.2),
    )
    observer = Recorder()
    with Trials(fake_job(by_cycle), CONFIG) as trials:
        done = try_fixes(trials, fixes, observer)
    assert observer.phases == ["More reads at once.", "Bad luck.", "Fewer."]
    assert [(fix.measured_images_per_second, fix.kept) for fix in done] == [
        (2000, True),
        (None, None),
        (None, False),
        (500, False),
    ]
    assert done[0].measured_gain == Spread(*[pytest.approx(2.0)] * 3)
    assert done[1] == fixes[1]
    assert trials.config.tf_data.cycle_length == 16


def test_a_fix_that_was_found_to_change_values_is_not_tried(fake_job) -> None:
    fix = make_fix({"tf_data.cycle_length": 16}, "But the values differ.", 1500, 0.2, keeps_values=False)
    with Trials(fake_job(by_cycle), CONFIG) as trials:
        assert try_fixes(trials, [fix], Recorder()) == (fix,)
        assert trials.config == CONFIG


@pytest.mark.slow
def test_real_pipelines(small_dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired_benchmark, "MIN_TURN_S", 0.05)
    config = PipelineConfig(batch_size=4, image_size=16, cache="bytes", order="throughput")
    job = PipelineJob(load_manifest(str(small_dataset)), "train", Accelerator(0.02, 4))
    assert job.count_steps_to_fill(config) == 3
    with Trials(job, config) as trials:
        trial = trials.attempt({"tf_data.cycle_length": 4})
    # Both give what the accelerator takes, 200 images a second.
    assert trial.gain is not None, trial.note
    assert 0 < trial.gain.low <= trial.gain.ratio <= trial.gain.high
    assert trial.images_per_second is not None
    assert trial.images_per_second <= 201


def test_data_reach_the_other_process_as_they_are(small_dataset: Path) -> None:
    manifest, source = load_manifest(str(small_dataset)), tfrecord_files(str(small_dataset / "train-*"))
    assert pickle.loads(pickle.dumps(manifest)) == manifest
    assert pickle.loads(pickle.dumps(source)) == source
