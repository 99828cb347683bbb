"""Runs a pipeline against a simulated accelerator and measures both.

profile = profile_pipeline(manifest, "train", config, Accelerator(step_s=0.045, images_per_step=128))
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.folder_cache.folder import without_cache
from tfpipe.engine.plan import plan_batches
from tfpipe.engine.source import Source, get_source
from tfpipe.errors import explain_pipeline_error
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline.build import build_stages, get_host
from tfpipe.pipeline.stage import Customize, Stages, explain_customize_errors, prefer_textbook
from tfpipe.profiler.diagnose.bottleneck import NO_IDLE, compute_idle_fraction
from tfpipe.profiler.measure.call_costs import measure_behind_costs, measure_call_costs
from tfpipe.profiler.measure.dataset_facts import get_dataset_facts
from tfpipe.profiler.measure.host_usage import HostTime, measure_storage_rate
from tfpipe.profiler.measure.option_costs import measure_option_costs
from tfpipe.profiler.measure.read_costs import measure_read_costs
from tfpipe.profiler.measure.service_use import measure_service, time_taking
from tfpipe.profiler.measure.simulated_accelerator import (
    MIN_WARM_UP_S,
    Accelerator,
    compute_step_timing,
    drive,
    is_settled,
    make_timeline,
)
from tfpipe.profiler.measure.stage_matching import BuiltStage, find_python_stages, list_planned_operations
from tfpipe.profiler.measure.stage_timings import (
    compute_stage_timings,
    compute_stretch,
    count_records_per_image,
    leave_out_false_wait,
)
from tfpipe.profiler.measure.tfdata_counters import Sample, Sampler
from tfpipe.profiler.measure.uncounted_time import ProcessorTime, book_uncounted_time
from tfpipe.profiler.types import CallCosts, HostUse, OptionCosts, Profile, Step, StepTiming
from tfpipe.system import host_limits
from tfpipe.system.progress import Observer, Progress

_DROP_S = 1.0
"""The seconds in which all threads of a pipeline end but that of AUTOTUNE."""


@dataclass(frozen=True)
class ProfileConfig:
    """The duration of a run, and the host whose share of the records it reads.

    Attributes:
        seconds: The seconds to measure; at least two steps in any case.
        max_warm_up_s: The seconds after which the rate counts as settled.
        max_fill_s: The seconds in which a cache in memory may be filled first. If it takes longer, the first epoch is
            measured, which fills it.
        host: The number of the host whose share is read, from 0, and the number of hosts; None for all records.
    """

    seconds: float = 3.0
    max_warm_up_s: float = 4.0
    max_fill_s: float = 20.0
    host: tuple[int, int] | None = None

    @property
    def context(self) -> tf.distribute.InputContext | None:
        """The host among all hosts, as `tf.distribute` describes it; None for one host."""
        if self.host is None:
            return None
        index, count = self.host
        return tf.distribute.InputContext(
            num_input_pipelines=count, input_pipeline_id=index, num_replicas_in_sync=count
        )


def profile_pipeline(
    data: Manifest | Source,
    split: str | None,
    config: PipelineConfig,
    accelerator: Accelerator,
    run_config: ProfileConfig | None = None,
    observer: Observer | None = None,
    customize: Customize | None = None,
) -> Profile:
    """Runs the pipeline of one host with one replica and measures it in steady state.

    The time before the rate has settled is left out, see `is_settled`, and the time in which a cache in memory is
    filled, unless that takes long. A pipeline that ends, as in evaluation, is run again and again.

    Two options of tf.data differ from those of the training. `map_fusion` is off, or `parse`, `decode` and `augment`
    would be one stage. If the processor is the limit, the pipeline then gives some 3 to 6 % less than it can. And where
    the config leaves the number of threads to AUTOTUNE, each map gets one for each core, as AUTOTUNE gives the fused
    map from the first second. Apart, it may give each of them one for more than ten seconds, and the rate is a third
    too low.

    With a `service` the batches come from its workers, and the options are those of the training. The stages then run
    there, so the profile has only what this host does, and the figures of the service. These take about 4 s more.

    Args:
        data: The data, from `load_manifest` or `tfrecord_files`.
        split: Name of a split; None for foreign files.
        config: The pipeline's options. With `tf_data.autotune` off tf.data keeps no counters, and the profile has no
            stages.
        accelerator: The consumer of the batches.
        run_config: The duration of the run, and the host.
        observer: An object that gets the progress of the run.
        customize: A function that changes the stages first, for a trainer that adds stages.

    Raises:
        ConfigError: The pipeline cannot be built, or no worker of its service answers.
        DataError: A record is damaged, or a file cannot be read.
        TfpipeError: Its service gives no batch in time.
    """
    config = prefer_textbook(config, customize)
    run_config = run_config or ProfileConfig()
    context = run_config.context
    with explain_customize_errors(customize):
        apart = not config.service.workers
        stages = build_stages(data, split, config, context, apart=apart, customize=customize)
        built = _build_each(stages)
    facts = replace(get_dataset_facts(data, split, config, built), stage_moves=tuple(stages.list_moves()))
    source = get_source(data, split)
    plan = plan_batches(source, config, get_host(context))
    fill_steps = plan.steps_per_epoch if config.cache != "none" and config.cache_dir is None else 0
    limits = _Limits(run_config, fill_steps)
    observer = observer or Observer()
    service = None
    try:
        batches = _finish(built, stages, config)
        if config.service.workers:  # workers run the stages, and this host only takes the batches
            batches = stages.dataset() if config.training else stages.dataset().repeat()
        started = time.perf_counter()
        run = _run(batches, accelerator, limits, observer)
        timing = compute_step_timing(run.steps, accelerator)
        if config.service.workers:
            observer.phase("Measuring the workers")
            service = measure_service(plan, timing)
    except tf.errors.OpError as error:
        raise explain_pipeline_error(error) from error
    costs = OptionCosts()
    call_costs: dict[str, CallCosts] = {}
    behind_us: dict[str, float] = {}
    if compute_idle_fraction(timing) > NO_IDLE:  # otherwise no change of the pipeline makes the training faster
        costs = measure_option_costs(source, config, facts.short_side, bool(facts.late_caches))
        costs = replace(costs, **measure_read_costs(source, config, facts))
        if any(stage.per_image for stage in stages):
            call_costs = measure_call_costs(config, _build_uncached(data, split, config, customize))
        if any(stage.random is False for stage in stages):
            behind_us = measure_behind_costs(config, _build_uncached(data, split, config, customize))
    if service is None:
        planned, python_stages = list_planned_operations(built), find_python_stages(built)
        timings = compute_stage_timings(run.samples, planned, python_stages, accelerator.images_per_step)
        at_once = plan.replica_batch_size if facts.by_engine else 1
        records_per_image = count_records_per_image(timings, accelerator.images_per_step, at_once)
        if not call_costs:  # these say what a Python function hides
            cpu_us = 1e6 * (run.after.process - run.before.process) / (timing.steps * timing.images_per_step)
            spent = ProcessorTime(cpu_us, compute_stretch(run.samples))
            timings = book_uncounted_time(timings, spent, costs, facts, records_per_image)
        timings = leave_out_false_wait(timings)
    else:
        timings, records_per_image = (time_taking(run.before, run.after, timing, service),), 1.0
    return Profile(
        step=timing,
        stages=timings,
        host=_get_host_use(run, source, config, timing, records_per_image),
        images_per_second=_compute_rate(timing),
        first_batch_s=run.first_batch_at - started,
        warm_up_s=run.steps[0].begins_s - started,
        config=config,
        dataset=facts,
        option_costs=costs,
        call_costs=call_costs,
        behind_us=behind_us,
        timeline=make_timeline(run.steps),
        fill_s=run.missing_steps * timing.wall_s / timing.steps,
        records_per_image=records_per_image,
        host_place=run_config.host,
        service=service,
    )


@dataclass(frozen=True)
class _Limits:
    """The limits of a run.

    Attributes:
        config: The duration that was asked for.
        fill_steps: The number of steps that fill a cache in memory; 0 if there is none.
    """

    config: ProfileConfig
    fill_steps: int


@dataclass(frozen=True)
class _Run:
    """A run of the pipeline in steady state.

    Attributes:
        steps: The steps, beginning with the last one of the warm-up.
        samples: The samples of tf.data's counters.
        before: The processor time at the begin.
        after: The processor time at the end.
        first_batch_at: When the first batch came, by `time.perf_counter`.
        missing_steps: The number of steps after the run that would still fill the cache.
        peak_memory_bytes: The most memory that the process has held since the pipeline began.
    """

    steps: list[Step]
    samples: list[Sample]
    before: HostTime
    after: HostTime
    first_batch_at: float
    missing_steps: int
    peak_memory_bytes: int


def _build_uncached(
    data: Manifest | Source, split: str | None, config: PipelineConfig, customize: Customize | None
) -> Stages:
    """Builds the stages without a cache. There are none if the user's function needs the stage `cache`."""
    try:
        return build_stages(data, split, without_cache(config), apart=True, customize=customize)
    except Exception:  # of the user's function, which may raise anything
        return Stages(())


def _build_each(stages: Stages) -> list[BuiltStage]:
    """Builds the stages one after the other."""
    built: list[BuiltStage] = []
    dataset = None
    for stage in stages:
        built.append(BuiltStage(stage.name, dataset, stage.apply(dataset), stage.random, stage.per_image))
        dataset = built[-1].dataset
    return built


def _finish(built: list[BuiltStage], stages: Stages, config: PipelineConfig) -> tf.data.Dataset:
    """Returns the last stage's dataset, repeated without end, with the options of all stages."""
    dataset = built[-1].dataset
    options = stages.make_options()
    if options is not None:
        dataset = dataset.with_options(options)
    return dataset if config.training else dataset.repeat()


def _run(dataset: tf.data.Dataset, accelerator: Accelerator, limits: _Limits, observer: Observer) -> _Run:
    """Drives the accelerator.

    It leaves nothing of the pipeline behind, because its threads would go on filling buffers.
    """
    earlier_peak = host_limits.peak_memory_bytes()  # of a program that loaded something else before
    held: list[Any] = [iter(dataset)]
    arrivals: list[float] = []
    with Sampler(lambda: tf.data.experimental.get_model_proto(held[0])) as sampler:
        steps = _CountedSteps(drive(_note_first(held[0], arrivals), accelerator))
        _fill_cache(steps, limits, observer)
        last_of_warm_up = _warm_up(steps, limits.config.max_warm_up_s, observer)
        before = HostTime.now()
        measured = [last_of_warm_up, *_measure(steps, last_of_warm_up, limits, observer)]
        after = HostTime.now()
    peak_bytes = host_limits.peak_memory_bytes_since(earlier_peak)
    taken, samples = steps.count, [sample for sample in sampler.samples if before.at <= sample.at <= after.at]
    held.append(steps)
    del steps
    _drop(held)
    missing = max(limits.fill_steps - taken, 0)
    return _Run(measured, samples, before, after, arrivals[0], missing, peak_bytes)


def _drop(held: list[Any]) -> None:
    """Drops the last references to an iterator, and returns when its threads have ended.

    All of them end at once but AUTOTUNE's. It may not hear that it is cancelled, and sleeps on for as long as the
    pipeline has run, up to a minute. It only sleeps, so nobody waits for it here.
    """
    thread = threading.Thread(target=held.clear, name="drop iterator")
    thread.start()
    thread.join(timeout=_DROP_S)


class _CountedSteps(Iterator[Step]):
    """An iterator of steps that knows how many were taken."""

    def __init__(self, steps: Iterator[Step]) -> None:
        self._steps = steps
        self.count = 0

    def __next__(self) -> Step:
        step = next(self._steps)
        self.count += 1
        return step


def _note_first(iterator: Iterator[Any], arrivals: list[float]) -> Iterator[None]:
    """Yields once for each batch, notes when the first one came, and keeps no batch alive."""
    for _ in iterator:
        if not arrivals:
            arrivals.append(time.perf_counter())
        yield None


def _fill_cache(steps: _CountedSteps, limits: _Limits, observer: Observer) -> None:
    """Takes the steps that fill a cache in memory, unless that would take too long."""
    if not limits.fill_steps:
        return
    observer.phase("Filling the cache")
    first = next(steps)
    for step in steps:
        passed_s = step.begins_s - first.begins_s
        observer.progress(Progress(steps.count, limits.fill_steps, "steps"))
        needed_s = passed_s / (steps.count - 1) * limits.fill_steps
        too_long = passed_s >= MIN_WARM_UP_S and needed_s > limits.config.max_fill_s
        if steps.count >= limits.fill_steps or too_long:
            return


def _warm_up(steps: Iterator[Step], max_s: float, observer: Observer) -> Step:
    """Returns the step with which the steady state begins."""
    observer.phase("Warming up")
    begins: list[float] = []
    for step in steps:
        begins.append(step.begins_s)
        passed_s = step.begins_s - begins[0]
        observer.progress(Progress(round(passed_s), unit="s"))
        if passed_s >= max_s or is_settled(begins):
            return step
    raise AssertionError("a pipeline that repeats has no end")


def _measure(steps: _CountedSteps, first: Step, limits: _Limits, observer: Observer) -> Iterator[Step]:
    """Yields the steps of the steady state, and the one with which the time is up.

    It never goes on from the epoch that fills a cache into the next one, which is another pipeline.
    """
    seconds, filling = limits.config.seconds, steps.count < limits.fill_steps
    observer.phase(f"Measuring for {seconds:g} s")
    for step in steps:
        yield step
        passed_s = step.begins_s - first.begins_s
        observer.progress(Progress(round(passed_s), round(seconds), "s"))
        if passed_s >= seconds or (filling and steps.count >= limits.fill_steps):
            return


def _get_host_use(
    run: _Run, source: Source, profiled: PipelineConfig, timing: StepTiming, records_per_image: float
) -> HostUse:
    cores = host_limits.usable_cpus()
    process, others = run.after.compute_fractions(run.before, cores)
    return HostUse(
        cores=cores,
        cpu_fraction=process,
        other_cpu_fraction=others,
        budget_cores=None if profiled.cpu_budget is None else profiled.max_threads,
        trainer_us_per_step=(run.after.thread - run.before.thread) / timing.steps * 1e6,
        peak_memory_bytes=run.peak_memory_bytes,
        memory_limit_bytes=host_limits.memory_limit_bytes(),
        storage_bytes_per_second=_compute_rate(timing) * records_per_image * source.record_bytes,
        # The workers of a service have storage of their own.
        storage_limit_bytes_per_second=None if profiled.service.workers else measure_storage_rate(source.files),
    )


def _compute_rate(timing: StepTiming) -> float:
    """Returns the images per second that the accelerator took."""
    return timing.steps * timing.images_per_step / timing.wall_s
