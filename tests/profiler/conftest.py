"""A profile with figures that are easy to follow by hand; fixtures give the functions that make others of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tfpipe.profiler.types import HostUse, Profile, Spread, StageTiming, StepTiming


def exactly(value: float) -> Spread:
    return Spread(value, value, value)


def stage(name: str, us: float, **more: Any) -> StageTiming:
    return StageTiming(name, exactly(us), **{"images_per_second": 1000.0, **more})


def step(images_per_second: float = 1000.0, required: float = 4000.0) -> StepTiming:
    """Batches of 100 images over 10 s, of an accelerator that would consume `required` images a second."""
    step_s = 100 / required
    steps = round(images_per_second * 10 / 100)
    idle = 1 - steps * step_s / 10
    return StepTiming("simulated", steps, 100, exactly(step_s), 10.0, exactly(idle), exactly(idle))


HOST = HostUse(
    cores=4,
    cpu_fraction=0.95,
    peak_memory_bytes=10**9,
    memory_limit_bytes=16 * 10**9,
    storage_bytes_per_second=100e6,
    storage_limit_bytes_per_second=1000e6,
)

STAGES = (
    stage("list", 10),
    stage("read", 200, parallelism=2, max_parallelism=8),
    stage("parse", 90, parallelism=2),
    stage("decode", 2400, parallelism=4, buffer_size=4, buffer_fill=0.5, bytes_out_per_second=150e6),
    stage("augment", 700, parallelism=4),
    stage("batch", 100),
)
"""3,500 us of a core for each image; the process takes 3,800: 4 cores at 95 %, 1,000 images a second."""

PROFILE = Profile(
    step=step(),
    stages=STAGES,
    host=HOST,
    images_per_second=1000.0,
    first_batch_s=0.5,
    warm_up_s=2.0,
    config={
        "augment": "host",
        "cache": "none",
        "cycle_length": 8,
        "image_dtype": "uint8",
        "image_size": 224,
        "map_fusion": True,
        "prefetch_batches": None,
        "global_batch_size": 100,
        "order": "auto",
        "window_records": 512,
        "training": True,
    },
    dataset={
        "records": 1_000_000,
        "files": 64,
        "record_bytes": 100e3,
        "decoded_size": (256, 256),
        "stored_size": None,
        "mean_size": (375.0, 500.0),
        "short_side": 256,
        "shuffled_records": 8192,
        "exact": True,
    },
    what_if={"now": 4000.0, "device": 4400.0, "cached": 1000.0, "smaller": 2000.0},
)


def changed(**changes: Any) -> Profile:
    """`PROFILE` with other values; those of the config and of the data set are merged, those of the host too."""
    for name in ("config", "dataset", "what_if"):
        if name in changes:
            changes[name] = {**getattr(PROFILE, name), **changes[name]}
    if "host" in changes:
        changes["host"] = replace(HOST, **changes["host"])
    return replace(PROFILE, **changes)


@pytest.fixture
def profile_with() -> Callable[..., Profile]:
    return changed


@pytest.fixture
def stage_of() -> Callable[..., StageTiming]:
    return stage


@pytest.fixture
def step_of() -> Callable[..., StepTiming]:
    return step
