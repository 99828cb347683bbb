"""Runs a pipeline against a simulated accelerator and measures both.

profile = profile_pipeline(manifest, "train", config, Accelerator(step_s=0.045, images_per_step=128))
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import tensorflow as tf

from tfpipe.errors import pipeline_error
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline.build import build_stages
from tfpipe.pipeline.config.pipeline_config import PipelineConfig
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.pipeline.plan.source import Source, get_source
from tfpipe.pipeline.stage import STAGE_NAMES, Customize, Stages, customize_stages
from tfpipe.profiler.diagnose.bottleneck import NO_IDLE, idle_fraction
from tfpipe.profiler.measure import host_usage
from tfpipe.profiler.measure.option_costs import try_changes
from tfpipe.profiler.measure.simulated_accelerator import Accelerator, drive, is_settled, timeline, timing
from tfpipe.profiler.measure.stage_matching import planned_chain, python_stages
from tfpipe.profiler.measure.stage_timings import stage_timings
from tfpipe.profiler.measure.tfdata_counters import Sample, Sampler
from tfpipe.profiler.types import HostUse, Profile, Step, StepTiming
from tfpipe.system import host_limits

SECONDS, MAX_WARM_UP_S = 3.0, 4.0

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
    customize: Customize | None = None,
) -> Profile:
    """Runs the pipeline of one host with one replica and measures it in steady state.

    What comes before the rate has settled is left out: see `accelerator.is_settled`; after `max_warm_up_s` it counts
    as settled. A pipeline that ends, as in evaluation, is run again and again. `map_fusion` is off, or `parse`,
    `decode` and `augment` would be one: where the processor is the limit, the pipeline gives some 6 % less than it can.

    Args:
        data: From `load_manifest` or `tfrecord_files`.
        split: Name of a split; None for foreign files.
        config: Of the pipeline. With `autotune` off tf.data keeps no counters, and there are no stages in the profile.
        accelerator: What takes the batches.
        seconds: How long to measure; at least two steps in any case.
        max_warm_up_s: How long to warm up at most.
        watch: Told how far it is, for people who wait.
        customize: Changes the stages first, as a trainer does that has stages of its own.

    Raises:
        ConfigError: The pipeline cannot be built.
        DataError: A record is damaged, or a file cannot be read.
    """
    source = get_source(data, split)
    stages = customize_stages(build_stages(data, split, replace(config, map_fusion=False)), customize)
    facts = {**_facts(data, split, source, config), "own_stages": _own_stages(stages)}
    made = _build(stages)
    dataset = made[-1][2] if stages.options is None else made[-1][2].with_options(stages.options)
    if not config.training:
        dataset = dataset.repeat()
    names = planned_chain(made), python_stages(made)
    facts["late_caches"] = _late_caches(names[0])
    started = time.perf_counter()
    try:
        seen = _run(dataset, accelerator, seconds, max_warm_up_s, watch)
    except tf.errors.OpError as error:
        raise pipeline_error(error) from error
    own = timing(seen.steps, accelerator)
    tried: dict[str, float] = {}
    if idle_fraction(own) > NO_IDLE:  # else no change of the pipeline makes the training faster
        tried = try_changes(source, config, facts["short_side"], bool(facts["late_caches"]))
    rate = own.steps * own.images_per_step / own.wall_s
    return Profile(
        step=own,
        stages=stage_timings(seen.samples, *names, accelerator.images_per_step),
        host=_host_use(seen.before, seen.after, source, own),
        images_per_second=rate,
        first_batch_s=seen.first_batch_at - started,
        warm_up_s=seen.steps[0].begins_s - started,
        config=asdict(config),
        dataset=facts,
        what_if=tried,
        timeline=timeline(seen.steps),
    )


@dataclass(frozen=True)
class _Seen:
    """A run of the pipeline in steady state; `steps` begins with the last one of the warm-up."""

    steps: list[Step]
    samples: list[Sample]
    before: host_usage.HostTime
    after: host_usage.HostTime
    first_batch_at: float


def _run(
    dataset: tf.data.Dataset, accelerator: Accelerator, seconds: float, max_warm_up_s: float, watch: Watch | None
) -> _Seen:
    """Drives the accelerator. Nothing of the pipeline is left afterwards, whose buffers would fill at others' cost."""
    iterator = iter(dataset)
    arrived: list[float] = []
    with Sampler(lambda: tf.data.experimental.get_model_proto(iterator)) as sampler:
        run = drive(_noting(iterator, arrived), accelerator)
        warm = _warm_up(run, max_warm_up_s, watch)
        before = host_usage.HostTime.now()
        steps = [warm, *_measure(run, warm, seconds, watch)]
        after = host_usage.HostTime.now()
    samples = [sample for sample in sampler.samples if before.at <= sample.at <= after.at]
    return _Seen(steps, samples, before, after, arrived[0])


def _build(stages: Stages) -> list[tuple[str, Any, Any]]:
    """Of each stage its name, the dataset before it and the one after."""
    made: list[tuple[str, Any, Any]] = []
    dataset = None
    for stage in stages:
        made.append((stage.name, dataset, stage.apply(dataset)))
        dataset = made[-1][2]
    return made


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
        begins.append(step.begins_s)
        passed = step.begins_s - begins[0]
        if watch:
            watch("warm-up", passed)
        if passed >= most_s or is_settled(begins):
            return step
    raise AssertionError("a pipeline that repeats has no end")


def _measure(run: Iterator[Step], first: Step, seconds: float, watch: Watch | None) -> Iterator[Step]:
    for step in run:
        yield step
        passed = step.begins_s - first.begins_s
        if watch:
            watch("measure", passed)
        if passed >= seconds:
            return


def _host_use(before: host_usage.HostTime, after: host_usage.HostTime, source: Source, step: StepTiming) -> HostUse:
    cores, rate = host_limits.usable_cpus(), step.steps * step.images_per_step / step.wall_s
    own, others = after.fractions_since(before, cores)
    return HostUse(
        cores=cores,
        cpu_fraction=own,
        other_cpu_fraction=others,
        trainer_us_per_step=(after.thread - before.thread) / step.steps * 1e6,
        peak_memory_bytes=host_usage.peak_memory_bytes(),
        memory_limit_bytes=host_limits.memory_limit_bytes(),
        storage_bytes_per_second=rate * source.record_bytes,
        storage_limit_bytes_per_second=host_usage.storage_rate(source.files),
    )


def _late_caches(planned: Sequence[tuple[str, str]]) -> list[str]:
    """Stages of users' own that keep what `augment` has made, from the last operation back to the source."""
    places = [place for place, (_, stage) in enumerate(planned) if stage == "augment"]
    behind = planned[: places[0]] if places else []
    return [stage for kind, stage in behind if kind == "Cache" and stage not in STAGE_NAMES]


def _own_stages(stages: Stages) -> list[str]:
    """Names that are no stage of this project's."""
    return [name for name in stages.names if name not in STAGE_NAMES]


def _shuffled_records(plan: ReadPlan) -> int:
    """Held in memory to be permuted: a buffer, or a window while the next one is read."""
    if not plan.config.training:
        return 0
    if not plan.exact:
        return plan.shuffle_records
    return 2 * len(plan.streams) * min(plan.order.window_records, plan.order.records_per_stream)


def _short_side(mean_size: tuple[float, float] | None, config: PipelineConfig) -> int | None:
    """With which images could be stored that are clearly larger than the model needs them: 8/7 of its own side."""
    if mean_size is None:
        return None
    wanted = round(max(config.size) * 8 / 7)
    return wanted if wanted < 0.9 * min(mean_size) else None


def _facts(data: Manifest | Source, split: str | None, source: Source, config: PipelineConfig) -> dict[str, Any]:
    """What advice needs to know of the data."""
    plan = ReadPlan.for_host(source, config, None, 0)
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
        "short_side": _short_side(mean_size, config),
        "decoded_size": plan.decoded_size,
        "exact": plan.exact,
        "shuffled_records": _shuffled_records(plan),
    }
