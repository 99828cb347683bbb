"""Runs a pipeline against a simulated accelerator and measures both.

profile = profile_pipeline(manifest, "train", config, Accelerator(step_s=0.045, images_per_step=128))
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

import tensorflow as tf

from tfpipe import machine
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline.build import build_stages
from tfpipe.pipeline.config import PipelineConfig
from tfpipe.pipeline.plan import ReadPlan
from tfpipe.pipeline.source import Source, as_source
from tfpipe.pipeline.stages import Stage, Stages
from tfpipe.profiler import host
from tfpipe.profiler.accelerator import Accelerator, Step, drive, is_settled, timing
from tfpipe.profiler.model import HostUse, Profile
from tfpipe.profiler.sampling import Sampler
from tfpipe.profiler.stage_nodes import planned_chain
from tfpipe.profiler.stage_timings import stage_timings

SECONDS, MAX_WARM_UP_S = 5.0, 5.0

Watch = Callable[[str, float], None]
"""Is told after each step what is done, "warm-up" or "measure", and for how many seconds it has been."""


def profile_pipeline(
    data: Manifest | Source,
    split: str | None,
    config: PipelineConfig,
    accelerator: Accelerator,
    seconds: float = SECONDS,
    max_warm_up_s: float = MAX_WARM_UP_S,
    watch: Watch | None = None,
) -> Profile:
    """Runs the pipeline of one host with one replica and measures it in steady state.

    What comes before the rate has settled is left out: see `accelerator.is_settled`; after `max_warm_up_s` it counts
    as settled. A pipeline that ends, as in evaluation, is run again and again. `map_fusion` is off, or `parse`,
    `decode` and `augment` would be one: where the processor is the limit, the pipeline gives some 6 % less than it can.

    Args:
        data: From `load_manifest` or `foreign_files`.
        split: Name of a split; None for foreign files.
        config: Of the pipeline. With `autotune` off tf.data keeps no counters, and there are no stages in the profile.
        accelerator: What takes the batches.
        seconds: How long to measure; at least two steps in any case.
        max_warm_up_s: How long to warm up at most.
        watch: Told how far it is, for people who wait.

    Raises:
        ConfigError: The pipeline cannot be built.
        tf.errors.OpError: A record is damaged, or a file cannot be read.
    """
    source = as_source(data, split)
    stages = build_stages(data, split, replace(config, map_fusion=False))
    dataset, planned = _build(stages)
    if not config.training:
        dataset = dataset.repeat()
    started = time.perf_counter()
    iterator = iter(dataset)
    arrived: list[float] = []
    with Sampler(lambda: tf.data.experimental.get_model_proto(iterator)) as sampler:
        run = drive(_noting(iterator, arrived), accelerator)
        warm = _warm_up(run, max_warm_up_s, watch)
        before = host.HostTime.now()
        steps = [warm, *_measure(run, warm, seconds, watch)]
        after = host.HostTime.now()
    samples = [sample for sample in sampler.samples if before.at <= sample.at <= after.at]
    own = timing(steps, accelerator)
    rate = own.steps * own.images_per_step / own.wall_s
    return Profile(
        step=own,
        stages=stage_timings(samples, planned, accelerator.images_per_step),
        host=_host_use(before, after, source, rate),
        images_per_second=rate,
        first_batch_s=arrived[0] - started,
        warm_up_s=warm.begins - started,
        config=asdict(config),
        dataset=_facts(data, split, source, config),
    )


def _build(stages: Stages) -> tuple[tf.data.Dataset, list[tuple[str, str]]]:
    """The dataset, and what each stage consists of."""
    made: list[tuple[str, Any, Any]] = []

    def watched(stage: Stage) -> Stage:
        def apply(before: Any) -> Any:
            made.append((stage.name, before, stage.apply(before)))
            return made[-1][2]

        return replace(stage, apply=apply)

    dataset = Stages([watched(stage) for stage in stages], stages.options).dataset()
    return dataset, planned_chain(made)


def _noting(iterator: Iterator[Any], arrived: list[float]) -> Iterator[Any]:
    """Writes down when the first batch came, and keeps none of them alive."""
    for _ in iterator:
        if not arrived:
            arrived.append(time.perf_counter())
        yield None


def _warm_up(run: Iterator[Step], most_s: float, watch: Watch | None) -> Step:
    """Returns the step with which the steady state begins."""
    begins: list[float] = []
    for step in run:
        begins.append(step.begins)
        passed = step.begins - begins[0]
        if watch:
            watch("warm-up", passed)
        if passed >= most_s or is_settled(begins):
            return step
    raise AssertionError("a pipeline that repeats has no end")


def _measure(run: Iterator[Step], first: Step, seconds: float, watch: Watch | None) -> Iterator[Step]:
    for step in run:
        yield step
        passed = step.begins - first.begins
        if watch:
            watch("measure", passed)
        if passed >= seconds:
            return


def _host_use(before: host.HostTime, after: host.HostTime, source: Source, images_per_second: float) -> HostUse:
    cores = machine.usable_cpus()
    own, others = after.fractions_since(before, cores)
    return HostUse(
        cores=cores,
        cpu_fraction=own,
        other_cpu_fraction=others,
        peak_memory_bytes=host.peak_memory_bytes(),
        memory_limit_bytes=machine.memory_limit_bytes(),
        storage_bytes_per_second=images_per_second * source.record_bytes,
        storage_limit_bytes_per_second=host.storage_rate(source.files),
    )


def _facts(data: Manifest | Source, split: str | None, source: Source, config: PipelineConfig) -> dict[str, Any]:
    """What advice needs to know of the data."""
    plan = ReadPlan.of(source, config, None, 0)
    mean_size = None
    if isinstance(data, Manifest) and split is not None and source.images.size is None:
        sizes = data.splits[split].sizes
        mean_size = (sizes.mean_height, sizes.mean_width)
    return {
        "name": source.name,
        "records": source.num_records,
        "files": len(source.files),
        "record_bytes": source.record_bytes,
        "formats": sorted(source.images.formats),
        "stored_size": source.images.size,
        "mean_size": mean_size,
        "decoded_size": plan.decoded_size,
        "exact": plan.exact,
    }
