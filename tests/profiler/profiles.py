"""A profile with figures that are easy to follow by hand, and functions that make others of it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.profiler.types import (
    DatasetInfo,
    Effort,
    Fix,
    HostUse,
    OptionValue,
    PipelineProfile,
    Spread,
    StageTiming,
    StepTiming,
)
from tfpipe.system.options import replace_options


def make_spread(value: float) -> Spread:
    return Spread(value, value, value)


def make_stage(name: str, us: float, **changes: Any) -> StageTiming:
    """Returns a stage that costs `us` microseconds of a core for each image."""
    return StageTiming(name, us, **changes)


def make_step(images_per_second: float = 1000.0, required: float = 4000.0) -> StepTiming:
    """Returns batches of 100 images over 10 s, of an accelerator that would consume `required` images a second."""
    step_s = 100 / required
    steps = round(images_per_second * 10 / 100)
    idle = 1 - steps * step_s / 10
    return StepTiming("loop", steps, 100, make_spread(step_s), 10.0, make_spread(idle), make_spread(idle))


HOST = HostUse(
    cores=4,
    cpu_fraction=0.95,
    peak_memory_bytes=10**9,
    memory_limit_bytes=16 * 10**9,
    storage_bytes_per_second=100e6,
    storage_limit_bytes_per_second=1000e6,
)

STAGES = (
    *(make_stage("list", 10, parallelism=4), make_stage("read", 200, parallelism=8)),
    *(make_stage("parse", 90, parallelism=4), make_stage("decode", 2400, parallelism=4, bytes_out_per_image=150e3)),
    *(make_stage("augment", 700, parallelism=4), make_stage("batch", 100, parallelism=4)),
)
"""The stages take 3,500 us of a core for each image, and the process takes 3,800: 1,000 images/s on 4 cores at 95 %."""

PROFILE = PipelineProfile(
    step=make_step(),
    stages=STAGES,
    host=HOST,
    images_per_second=1000.0,
    first_batch_s=0.5,
    warm_up_s=2.0,
    config=PipelineConfig(batch_size=100),
    dataset=DatasetInfo(
        name="'train' of /data/flowers",
        records=1_000_000,
        record_bytes=100e3,
        formats=("JPEG",),
        stored_size=None,
        mean_size=(375.0, 500.0),
        short_side=256,
        decoded_size=(256, 256),
        cycle_length=8,
        by_engine=True,
        shuffled_records=8192,
        address="/data/flowers",
    ),
    option_costs={"now": 4000.0, "device": 4400.0, "cached": 1000.0, "smaller": 2000.0, "smaller_bytes": 0.5},
    handover_us=0.0,
)


def make_profile(**changes: Any) -> PipelineProfile:
    """Returns `PROFILE` with other values; those of its parts may be given as dictionaries, with dots in names."""
    for name in ("config", "dataset", "host"):
        if isinstance(part := changes.get(name), dict):
            changes[name] = replace_options(getattr(PROFILE, name), part)
    costs = {**PROFILE.option_costs, **changes.pop("option_costs", {})}
    return replace(PROFILE, **changes, option_costs={name: cost for name, cost in costs.items() if cost is not None})


def make_fix(changes: Mapping[str, OptionValue], reason: str, rate: float, idle: float, **fields: Any) -> Fix:
    return Fix(
        fields.pop("effort", Effort.OPTION),
        reason,
        changes=changes,
        predicted_images_per_second=rate,
        predicted_idle_fraction=idle,
        **fields,
    )
