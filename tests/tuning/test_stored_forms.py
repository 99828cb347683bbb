"""The forms that are compared, the arithmetic of their speeds, and the turns of their pipelines."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from tests.observers import Recorder
from tfpipe.dataset.load import load_manifest
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.format.image_form import ImageForm
from tfpipe.profiler.measure.simulated_accelerator import Accelerator
from tfpipe.system import host_limits
from tfpipe.tuning import stored_forms
from tfpipe.tuning.paired_benchmark import Interval, Turn
from tfpipe.tuning.stored_forms import (
    Candidate,
    Speed,
    choose_batch_size,
    compute_speed,
    list_candidates,
    measure_forms,
)

CONFIG = PipelineConfig(batch_size=4, image_size=224)
LIMITS: dict[str, Any] = {"quality": 90, "max_pixels": 10**6}
FORM = ImageForm(**LIMITS)


def test_every_form_has_a_pipeline_that_fits_it() -> None:
    candidates = list_candidates(FORM, CONFIG, "both", has_native_library=True)
    assert [(one.name, one.crop, one.keeps_crops, one.caches_decoded) for one in candidates] == [
        ("original", "host", True, False),
        ("seekable", "host", True, False),
        ("short side 256", "host", False, False),
        ("square JPEG 256", "host", False, False),
        ("raw 256", "host", False, False),
        ("original, cached at 256", "host", False, True),
        ("original", "device", False, False),
        ("square JPEG 256", "device", False, False),
        ("raw 256", "device", False, False),
        ("original, cached at 256", "device", False, True),
    ]
    assert [one.form for one in candidates[:6]] == [
        FORM,
        ImageForm(**LIMITS, seekable=True),
        ImageForm(**LIMITS, resize_short=256, seekable=True),
        ImageForm(**LIMITS, encoding="jpeg", square=256),
        ImageForm(**LIMITS, encoding="raw", square=256),
        FORM,
    ]
    assert {one.form for one in candidates[6:]} <= {one.form for one in candidates[:6]}


def test_without_the_native_library_no_form_has_restart_markers() -> None:
    candidates = list_candidates(FORM, CONFIG, "both", has_native_library=False)
    assert len(candidates) == 9
    assert not any(one.form.seekable for one in candidates)


def test_the_place_of_the_crop_may_be_fixed() -> None:
    host, device = (list_candidates(FORM, CONFIG, crop, has_native_library=True) for crop in ("host", "device"))
    assert (len(host), {one.crop for one in host}) == (6, {"host"})
    assert (len(device), {one.crop for one in device}) == (4, {"device"})


@pytest.mark.parametrize(
    ("records", "batch_size"), [(1, 1), (2, 1), (3, 1), (4, 2), (12, 4), (100, 32), (128, 64), (1000, 64)]
)
def test_a_batch_takes_half_of_the_sample_at_most(records: int, batch_size: int) -> None:
    assert choose_batch_size(records) == batch_size


def test_the_speed_is_that_of_all_turns_together() -> None:
    turns = [Turn(1000, 1.0, 2.0, 0), Turn(1200, 1.0, 1.5, 0), Turn(800, 0.5, 0.5, 0)]
    assert compute_speed(turns) == Speed(Interval(750.0, 500.0, 1600.0), 1200.0)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, runner: Any) -> list[str]:
    """Puts stand-ins in the place of processes; `tests/cli/test_advise.py` runs real ones. Returns what they do."""
    log: list[str] = []

    class Process(runner):  # type: ignore[misc]
        def __init__(self, make_dataset: Any, accelerator: Accelerator, steps_to_fill: int) -> None:
            *_, config = make_dataset.args
            self.name = f"{config.cache} {config.augment}"
            log.append(f"{self.name}: {accelerator.images_per_step} images, {steps_to_fill} steps to fill")
            super().__init__(2000.0 if config.cache == "decoded" else 500.0)

        def turn(self, seconds: float) -> Turn:
            log.append(f"{self.name}: {seconds:g} s")
            return cast("Turn", super().turn(seconds))

        def close(self) -> None:
            log.append(f"{self.name}: closed")
            super().close()

    monkeypatch.setattr(stored_forms, "PipelineProcess", Process)
    monkeypatch.setattr(stored_forms, "ROUNDS", 2)
    return log


def measure_two(small_dataset: Path) -> tuple[list[Speed], list[str]]:
    """Measures two candidates; returns their speeds and the phases."""
    form, observer = ImageForm(), Recorder()
    candidates = [
        Candidate("original", form, keeps_crops=True),
        Candidate("cached", form, {"cache": "decoded", "augment": "device"}),
    ]
    config = PipelineConfig(batch_size=256, image_size=16)
    datasets = {form: load_manifest(str(small_dataset))}
    return measure_forms(candidates, datasets, "train", config, observer), observer.phases


def test_pipelines_take_turns_and_a_cache_is_full_before_the_first(
    small_dataset: Path, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_limits, "available_memory_bytes", lambda: 2**31)
    speeds, phases = measure_two(small_dataset)
    assert log == [
        "none host: 256 images, 0 steps to fill",
        "decoded device: 256 images, 1 steps to fill",
        *("none host: 1.536 s", "decoded device: 1 s"),
        *("decoded device: 1 s", "none host: 1.536 s"),
        *("decoded device: closed", "none host: closed"),
    ]
    assert [speed.images_per_second for speed in speeds] == [500.0, 2000.0]
    assert [speed.images_per_cpu_second.ratio for speed in speeds] == pytest.approx([500 / 1.5, 2000 / 1.5])
    assert phases == [
        "Starting the pipeline of original, crop on the host",
        "Starting the pipeline of cached, crop on the device",
        "Measuring 2 pipelines in turns, round 1 of 2",
        "Measuring 2 pipelines in turns, round 2 of 2",
    ]


def test_with_little_memory_one_pipeline_runs_after_the_other(
    small_dataset: Path, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_limits, "available_memory_bytes", lambda: 2**30)
    speeds, _ = measure_two(small_dataset)
    assert [line for line in log if line.endswith("closed")] == [log[3], log[7]]
    assert [speed.images_per_second for speed in speeds] == [500.0, 2000.0]
