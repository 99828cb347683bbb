"""Runs a pipeline against a simulated accelerator, measures both, and describes the data and the buffers.

tfpipe's engine has its own clocks.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from tfpipe.engine.ahead import count_decoded
from tfpipe.engine.cache_file import is_filled
from tfpipe.engine.clocks import Clocks, Phase, PhaseTime
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.features import list_stored_features
from tfpipe.engine.host import Host
from tfpipe.engine.plan import BatchPlan, plan_batches
from tfpipe.engine.source import Source, get_source
from tfpipe.errors import ConfigError, DataError, TfpipeError, explain_pipeline_error
from tfpipe.format.manifest import Manifest
from tfpipe.format.schema import CLASS_LABEL, IMAGE_ENCODED, image_schema
from tfpipe.pipeline.build import build_stages
from tfpipe.pipeline.stage import Customize, prefer_textbook
from tfpipe.pipeline.steps import count_batches_read
from tfpipe.pipeline.textbook import count_files_at_once, count_shuffled_records
from tfpipe.pipeline.textbook_choice import is_by_engine
from tfpipe.profiler.measure import option_costs, simulated_accelerator
from tfpipe.profiler.measure.clocks import HostTime, measure_storage_rate, run_function
from tfpipe.profiler.measure.textbook import BuiltStage, TensorFlowPipeline
from tfpipe.profiler.model import NO_IDLE
from tfpipe.profiler.trials import Changes, Run
from tfpipe.profiler.types import LARGE_BATCH, Buffer, DatasetInfo, HostUse, PipelineProfile, StageTiming, Step
from tfpipe.readers.base import seed_transform
from tfpipe.readers.numpy import NumpyBatches
from tfpipe.system import host_limits
from tfpipe.system.options import replace_options
from tfpipe.system.progress import Observer, Progress
from tfpipe.system.units import parse_bytes

Clocked = tuple[Mapping[Phase, PhaseTime], Mapping[Phase, PhaseTime]]
"""The engine's clocks before and after a run."""
_PHASES: tuple[Phase, ...] = ("read", "parse", "decode", "transform", "batch", "batch_transform")
_WAITING_PHASES: tuple[Phase, ...] = ("read", "transform", "batch_transform")  # for storage, or in the user's functions
_EXAMPLES = 16  # images with which a function is run
_SMALL_BATCH = 16  # a larger batch is tried too if batches have at most this many images
_FUNCTIONS = "_py_funcs_used_in_graph"  # an attribute of a graph, in TensorFlow's script_ops.py
_MAX_FILL_S = 40.0  # the seconds in which a trial may fill a cache that a fix proposes: two minutes in all trials
_DROP_S = 1.0  # the seconds to wait for a pipeline's threads to end; only AUTOTUNE's takes longer
_CLEARLY_SMALLER = 0.9
_WORTH_DROPPING = 0.02  # the share of the bytes read below which no fix drops a feature
_WAITING_BATCHES = 2  # the assumed number of prefetched batches if tf.data or the engine chooses it


@dataclass(frozen=True)
class ProfileConfig:
    """The duration of a run.

    Attributes:
        seconds: The seconds to measure; at least two steps in any case.
        max_warm_up_s: The seconds after which the rate counts as settled.
        max_fill_s: The seconds for filling a cache first; if it takes longer, the epoch that fills it is measured.
    """

    seconds: float = 3.0
    max_warm_up_s: float = 4.0
    max_fill_s: float = 20.0


def time_engine(
    clocks: Clocked, hosts: tuple[HostTime, HostTime], images_per_second: float, plan: BatchPlan
) -> tuple[StageTiming, ...]:
    """Returns the timings of the engine's phases, from its clocks before and after a run."""
    before, after = hosts
    images, used_s = images_per_second * (after.at - before.at), after.process - before.process
    # Waits for a core lengthen the time of computing; they are not waits of the phase itself.
    stretch = 1 + max(after.queue - before.queue, 0.0) / used_s if used_s > 0 else 1.0
    reads, threads = count_batches_read(plan), plan.config.max_threads
    calls: dict[Phase, int] = {"read": reads, "parse": reads, "transform": threads * count_decoded(threads)}
    record_bytes, (height, width) = plan.source.record_bytes, plan.image_size
    value_bytes = {"uint8": 1, "bfloat16": 2}.get(plan.config.image_dtype, 4)
    image_bytes = height * width * 3 * value_bytes if plan.source.has_images else record_bytes
    timings = []
    for phase in _PHASES:
        then, now = (times.get(phase, PhaseTime()) for times in clocks)
        cpu_us, wall_us = (1e6 * spent_s / images for spent_s in (now.cpu_s - then.cpu_s, now.wall_s - then.wall_s))
        if wall_us:
            wait_us = max(wall_us - stretch * cpu_us, 0.0) if phase in _WAITING_PHASES else 0.0
            out_bytes = record_bytes if phase in ("read", "parse") else image_bytes
            timing = StageTiming(phase, cpu_us, wait_us, calls.get(phase, threads), bytes_out_per_image=out_bytes)
            timings.append(timing)
    return tuple(timings)


Functions = Mapping[str, Callable[..., Any]]
"""The user's functions in the engine, `transform` and `batch_transform`, as readers without TensorFlow take them."""


class NumpyPipeline:
    """A pipeline of `NumpyBatches` with the user's functions."""

    built: Sequence[BuiltStage] = ()

    def __init__(self, data: Manifest, split: str, config: PipelineConfig, functions: Functions) -> None:
        self.own_stages, self._functions = tuple(functions), functions
        transform, on_batch = functions.get("transform"), functions.get("batch_transform")
        self._batches = NumpyBatches(data, split, config, transform=transform, batch_transform=on_batch)
        self._manifest, self._split, self._config = data, split, config
        self.clocks: Clocks | None = self._batches.clocks

    def open(self) -> Iterator[Any]:
        """Begins to make batches, without end."""
        return itertools.chain.from_iterable(itertools.repeat(self._batches))

    def time_stages(self, profile: PipelineProfile) -> tuple[PipelineProfile, Mapping[str, float]]:
        """Measures each of the user's functions alone on sample images or a sample batch, with 1 thread and with 2."""
        timings = []
        for timing in profile.stages:
            if timing.name in self.own_stages:
                images = self._config.batch_size if timing.name == "batch_transform" else 1
                times = run_function(self._sample(timing.name))
                timing = replace(
                    timing,
                    wait_us_per_image=1e6 * times.wait_s / images,
                    locked_us_per_image=1e6 * times.locked_s / images,
                    holds_python_lock=times.is_pythons,
                )
            timings.append(timing)
        return replace(profile, stages=tuple(timings)), {}

    def _sample(self, name: str) -> Callable[[int], Any]:
        """Returns a call of one of the user's functions on sample images or a sample batch."""
        function, own = self._functions[name], self._functions.get("transform")
        if name == "batch_transform":
            plain = replace(self._config, as_supervised=False)
            batch = NumpyBatches(self._manifest, self._split, plain, transform=own).read(0)
            return lambda _: function({name: value.copy() for name, value in batch.items()})
        seeded = seed_transform(function)
        assert seeded is not None
        images = option_costs.load_images(self._manifest, self._split, self._config, _EXAMPLES)
        return lambda k: seeded(images[k % len(images)].copy(), k)


@contextlib.contextmanager
def _forgetting_functions() -> Iterator[None]:
    """Forgets the functions and the caches of pipelines built in the block, which TensorFlow would keep forever.

    A TensorFlow error of a pipeline is raised as one of tfpipe's errors, with a readable message.
    """
    graph = tf.compat.v1.get_default_graph()
    before = len(getattr(graph, _FUNCTIONS, ()))
    try:
        yield
    except tf.errors.OpError as error:
        raise explain_pipeline_error(error) from error
    finally:
        getattr(graph, _FUNCTIONS, [])[before:] = []
        gc.collect()


@_forgetting_functions()
def profile_pipeline(
    data: Manifest | Source,
    split: str | None,
    config: PipelineConfig,
    accelerator: simulated_accelerator.Accelerator,
    run_config: ProfileConfig | None = None,
    observer: Observer | None = None,
    customize: Customize | None = None,
    functions: Functions | None = None,
) -> PipelineProfile:
    """Runs the pipeline of a host with one replica as a training does, and measures it in steady state.

    The engine's own clocks say where its time goes. Stages of tf.data's operations and Python functions are timed
    afterwards, if the accelerator waits at all.
    """
    if config.service.workers:
        advice = "Profile the pipeline without it; `tfpipe.IdleMonitor` says how long a training waits for its workers."
        raise ConfigError(f"A profile must run each stage on this machine, got a `service`. {advice}")
    run_config, observer = run_config or ProfileConfig(), observer or Observer()
    config = prefer_textbook(config, customize)
    pipeline, plan = _open(data, split, config, customize, functions)
    info = replace(describe_dataset(data, split, config, pipeline.built), own_stages=pipeline.own_stages)
    started = time.perf_counter()
    run = _run(pipeline, accelerator, run_config, plan, observer)
    profile = _describe(run, accelerator, started, plan, info)
    if pipeline.clocks is not None:
        profile = replace(profile, stages=time_engine(run.times, run.hosts, profile.images_per_second, plan))
    if profile.step.idle <= NO_IDLE:  # no change makes the training faster
        return replace(profile, buffers=find_buffers(profile, pipeline.built, {}))
    observer.phase("Trying stages and options")
    profile, element_bytes = pipeline.time_stages(profile)
    costs = option_costs.measure_option_costs(plan.source, config, info.short_side, info.unread_features)
    can_grow = config.batch_size <= _SMALL_BATCH and (plan.source.epoch_records or LARGE_BATCH) >= LARGE_BATCH
    if can_grow and isinstance(pipeline, TensorFlowPipeline) and not pipeline.clocks:
        larger = replace(config, batch_size=LARGE_BATCH)
        costs |= pipeline.try_larger_batches(build_stages(data, split, larger, customize=customize))
    storage_rate = profile.host.storage_bytes_per_second * profile.records_per_image
    profile = replace(profile, option_costs=costs, host=replace(profile.host, storage_bytes_per_second=storage_rate))
    return replace(profile, buffers=find_buffers(profile, pipeline.built, element_bytes))


@_forgetting_functions()
def measure_rate(
    data: Manifest | Source,
    split: str | None,
    config: PipelineConfig,
    accelerator: simulated_accelerator.Accelerator,
    run_config: ProfileConfig,
    customize: Customize | None = None,
    functions: Functions | None = None,
) -> tuple[float, float]:
    """Runs the pipeline as `profile_pipeline` does, and returns its rate and the seconds until a cache is full."""
    pipeline, plan = _open(data, split, prefer_textbook(config, customize), customize, functions)
    run = _run(pipeline, accelerator, run_config, plan, Observer())
    return simulated_accelerator.compute_step_timing(run.steps, accelerator).rate, run.fill_s


def make_trial(
    data: Manifest | Source,
    split: str | None,
    config: PipelineConfig,
    accelerator: simulated_accelerator.Accelerator,
    seconds: float,
    customize: Customize | None = None,
) -> Run:
    """Returns a function that starts the pipeline anew with changed options, warms it up, and returns its rate."""
    run_config = ProfileConfig(seconds, max_fill_s=_MAX_FILL_S)

    def run(changes: Changes) -> float:
        try:
            changed: PipelineConfig = replace_options(config, changes)
            step_s = accelerator.step_s * changed.batch_size / accelerator.images_per_step
            scaled = replace(accelerator, step_s=step_s, images_per_step=changed.batch_size)
            rate, fill_s = measure_rate(data, split, changed, scaled, run_config, customize)
        except ConfigError as error:
            raise DataError(str(error)) from error
        if fill_s and changed.cache != config.cache:
            takes = f"The cache takes about {fill_s:,.0f} s to fill"
            raise DataError(f"{takes}, and a trial has {_MAX_FILL_S:.0f} s for it.")
        return rate

    return run


def _open(
    data: Manifest | Source,
    split: str | None,
    config: PipelineConfig,
    customize: Customize | None,
    functions: Functions | None,
) -> tuple[TensorFlowPipeline | NumpyPipeline, BatchPlan]:
    plan = plan_batches(get_source(data, split), config, Host())
    if not functions:
        try:
            return TensorFlowPipeline(build_stages(data, split, config, customize=customize), config), plan
        except Exception as error:  # the user's code may raise anything
            if customize is None or isinstance(error, TfpipeError):
                raise
            raise explain_pipeline_error(error) from error
    given = " and ".join(f"`{name}`" for name in functions)
    if customize is not None:
        raise ConfigError(f"The engine calls {given}, tf.data runs stages of your own. Leave one of them out.")
    if not isinstance(data, Manifest) or split is None or not is_by_engine(plan.source, config):
        raise ConfigError(f"{given} must have batches by their steps: a dataset with a manifest, and `order` auto.")
    return NumpyPipeline(data, split, config, functions), plan


def _describe(
    run: _Run, accelerator: simulated_accelerator.Accelerator, started: float, plan: BatchPlan, info: DatasetInfo
) -> PipelineProfile:
    timing = simulated_accelerator.compute_step_timing(run.steps, accelerator)
    config, every = plan.config, host_limits.usable_cpus()
    cores = every if config.cpu_budget is None else config.max_threads
    before, after = run.hosts
    process, others = after.compute_fractions(before, every)
    return PipelineProfile(
        step=timing,
        stages=(),
        host=HostUse(
            cores=cores,
            cpu_fraction=process * every / cores,
            other_cpu_fraction=max(1 - (1 - others) * every / cores, 0.0),  # others may take what the budget leaves
            trainer_us_per_step=(after.thread - before.thread) / timing.steps * 1e6,
            peak_memory_bytes=run.peak_memory_bytes,
            memory_limit_bytes=host_limits.memory_limit_bytes(),
            storage_bytes_per_second=timing.rate * plan.source.record_bytes,
            storage_limit_bytes_per_second=measure_storage_rate(plan.source.files),
        ),
        images_per_second=timing.rate,
        first_batch_s=run.first.begins_s - started,
        warm_up_s=run.steps[0].begins_s - started,
        config=config,
        dataset=info,
        timeline=simulated_accelerator.make_timeline(run.steps),
        fill_s=run.fill_s,
    )


def find_late_caches(stages: Sequence[BuiltStage]) -> tuple[str, ...]:
    """Returns the user's stages that cache augmented images, the last one first."""
    names = [stage.name for stage in stages]
    after = stages[names.index("augment") + 1 :] if "augment" in names else []
    return tuple(stage.name for stage in reversed(after) if stage.is_own and "Cache" in stage.kinds)


def describe_dataset(
    data: Manifest | Source, split: str | None, config: PipelineConfig, stages: Sequence[BuiltStage]
) -> DatasetInfo:
    """Returns the properties of a pipeline's data and stages; reads a few records."""
    source = get_source(data, split)
    plan, by_engine = plan_batches(source, config), is_by_engine(source, config)
    payloads = option_costs.sample_records(source, [feature.name for feature in plan.features])
    kept = set(image_schema(labeled=True, boxes=False, box_labels=False).names)  # tfpipe's own features
    if not isinstance(data, Manifest) or data.foreign is not None:
        kept -= {IMAGE_ENCODED, CLASS_LABEL}
    unread = option_costs.measure_unread(payloads, kept.union(list_stored_features(plan.source, plan.features)))
    unread = {name: share for name, share in unread.items() if share >= _WORTH_DROPPING and name in source.schema}
    counted = option_costs.count_records(source) if source.num_records is None else None
    own = [stage for stage in stages if stage.is_own]
    unpacked_bytes = counted[1] if counted else source.record_bytes
    if source.compression and payloads and not counted:
        unpacked_bytes = sum(map(len, payloads)) / len(payloads)
    mean_size = None
    if isinstance(data, Manifest) and split is not None and source.images.size is None:
        sizes = data.splits[split].sizes
        mean_size = (sizes.mean_height, sizes.mean_width)
    size, short_side = mean_size or (source.images.size if by_engine else None), round(max(config.size) * 8 / 7)
    is_larger = size is not None and short_side < _CLEARLY_SMALLER * min(size)
    return DatasetInfo(
        name=source.name,
        address=data.address if isinstance(data, Manifest) else source.name,
        records=counted[0] if counted else source.num_records,
        record_bytes=source.record_bytes,
        formats=tuple(sorted(source.images.formats)),
        stored_size=source.images.size,
        mean_size=mean_size,
        short_side=short_side if is_larger else None,  # 8/7 of the model's input
        decoded_size=plan.decoded_size,
        cycle_length=count_batches_read(plan) if by_engine else count_files_at_once(plan),
        by_engine=by_engine,
        shuffled_records=count_shuffled_records(plan) if config.training and not by_engine else 0,
        own_stages=tuple(stage.name for stage in own),
        declared={stage.name: {"random": stage.random, "per_image": stage.per_image} for stage in own},
        late_caches=find_late_caches(stages),
        filters=tuple(stage.name for stage in own if stage.can_drop),
        unread_features=tuple(unread),
        unread_share=sum(unread.values()),
        described=isinstance(data, Manifest),
        compression="" if source.shard_records is not None else source.compression,
        unpacked_record_bytes=unpacked_bytes,
        unit=source.unit,
    )


def find_buffers(
    profile: PipelineProfile, built: Sequence[BuiltStage], element_bytes: Mapping[str, float]
) -> tuple[Buffer, ...]:
    """Returns the items that the stages keep in memory, the largest first."""
    buffers: list[Buffer] = []
    config, dataset = profile.config, profile.dataset
    records = dataset.records
    for stage in built:
        number, size = stage.count_buffered(), element_bytes.get(stage.name, dataset.record_bytes)
        if stage.name == "shuffle":
            buffers.append(Buffer(stage.name, "records", dataset.shuffled_records, dataset.shuffled_records * size))
        elif stage.is_own and number:
            # In training the records repeat before this stage, so elements of several epochs fill its buffer.
            number = number if config.training else min(number, records or number)
            buffers.append(Buffer(stage.name, "elements", number, number * size))
    batches = _WAITING_BATCHES if config.prefetch_batches is None else config.prefetch_batches
    images = [stage.bytes_out_per_image for stage in profile.stages if stage.name in ("decode", "batch", "transform")]
    if batches and images:
        size = images[-1] * profile.step.images_per_step
        buffers.append(Buffer("prefetch", "batches", batches, batches * size))
    if config.cache != "none" and config.cache_dir is None:
        height, width = dataset.decoded_size
        image_bytes = height * width * 3 if config.cache == "decoded" else dataset.record_bytes
        num_bytes = (records or 0) * image_bytes
        if config.cache_bytes is not None:
            num_bytes = min(num_bytes, parse_bytes(config.cache_bytes, "cache_bytes"))
        buffers.append(Buffer("cache", "records" if config.cache == "bytes" else "images", records or 0, num_bytes))
    return tuple(sorted(buffers, key=lambda each: -each.num_bytes))


@dataclass(frozen=True)
class _Run:
    """A run of the pipeline in steady state."""

    first: Step  # the first step of all
    steps: list[Step]  # beginning with the last one of the warm-up
    times: Clocked  # the engine's clocks
    hosts: tuple[HostTime, HostTime]
    fill_s: float  # until the cache is full
    peak_memory_bytes: int  # since the pipeline began


def _run(
    pipeline: TensorFlowPipeline | NumpyPipeline,
    accelerator: simulated_accelerator.Accelerator,
    config: ProfileConfig,
    plan: BatchPlan,
    observer: Observer,
) -> _Run:
    """Fills a cache if there is one, warms up, measures the steps of the accelerator, and frees the whole pipeline."""
    fill_steps = plan.steps_per_epoch if plan.config.cache != "none" and not is_filled(plan) else 0
    earlier_peak = host_limits.peak_memory_bytes()  # this process may have used more memory before
    steps = enumerate(simulated_accelerator.drive(pipeline.open(), accelerator), 1)
    references: list[Any] = [steps]
    clocks = pipeline.clocks or Clocks()
    count, first = next(steps)
    if fill_steps > 1:
        observer.phase("Filling the cache")
        for count, step in steps:
            passed_s = step.begins_s - first.begins_s
            observer.progress(Progress(count, fill_steps, "steps"))
            all_s = passed_s / (count - 1) * fill_steps
            too_long = passed_s >= simulated_accelerator.MIN_WARM_UP_S and all_s > config.max_fill_s
            if count >= fill_steps or too_long:
                break
    is_filling, begins = count < fill_steps, [] if fill_steps else [first.begins_s]
    observer.phase("Warming up")
    for _, begin in steps:
        begins.append(begin.begins_s)
        passed_s = begin.begins_s - begins[0]
        observer.progress(Progress(round(passed_s), unit="s"))
        if passed_s >= config.max_warm_up_s or simulated_accelerator.is_settled(begins):
            break
    measured = [begin]
    observer.phase(f"Measuring for {config.seconds:g} s")
    times, before = clocks.read(), HostTime.now()
    for count, step in steps:
        measured.append(step)
        passed_s = step.begins_s - begin.begins_s
        observer.progress(Progress(round(passed_s), round(config.seconds), "s"))
        # Measuring ends with the epoch that fills a cache: the next one reads from it, which is another pipeline.
        if passed_s >= config.seconds or (is_filling and count >= fill_steps):
            break
    hosts, both = (before, HostTime.now()), (times, clocks.read())
    peak_bytes = host_limits.peak_memory_bytes_since(earlier_peak)
    del steps
    # Drops the last references to the iterator, and goes on when all its threads but a sleeping AUTOTUNE have ended.
    thread = threading.Thread(target=references.clear, name="drop iterator")
    thread.start()
    thread.join(timeout=_DROP_S)
    fill_s = max(fill_steps - count, 0) * (measured[-1].begins_s - begin.begins_s) / (len(measured) - 1)
    return _Run(first, measured, both, hosts, fill_s, peak_bytes)
