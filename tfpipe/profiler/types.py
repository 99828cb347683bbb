"""The frozen dataclasses for what the profiler measures (`Profile`) and concludes (`Report`). Pure.

*Input wait* is the trainer's wait for its next batch. *Idle* is the time in which the accelerator has nothing to work
on, which is shorter if steps are dispatched ahead of the device.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from typing import Any, Literal, TypeAlias

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.profiler.model import Demand

IdleMethod = Literal["loop", "fit", "none", "train", "monitor"]
"""The trainer: a plain loop, `fit` (prefetches a batch), none, the user's own step, or a monitored live training."""
_CROWDED = 0.1  # a report begins with a warning if other programs take at least this share of the cores
_MIN_CORES = 0.1  # the fewest cores that a process is assumed to get, however busy the machine is
FixAction = Literal["set_option", "move_stage", "rewrite_stage", "move_to_device", "cache_before_stage", "write_data"]
"""The kinds of fixes: an option, a user stage's position, code or device, a cache, new data files."""

OptionValue = bool | int | float | str | tuple[str, ...] | None

Activity: TypeAlias = str
ACTIVITIES: tuple[Activity, ...] = (
    *("reading", "decoding", "functions", "collating", "handing over", "other", "waiting"),
    *("storage", "lock", "no core", "idle"),
)
"""The activities of a thread: `functions` is running the user's functions, `waiting` is waiting inside them. The last
four are waits for a file, for Python's lock (the GIL), for a core, and for work."""


@dataclass(frozen=True)
class Spread:
    """A measured value and its spread over the intervals of a run."""

    median: float  # for shares of time the value of the whole run: waits come in bursts, which a median would miss
    low: float  # the 10th percentile of the intervals, or `median` if that is lower
    high: float  # the 90th percentile of the intervals, or `median` if that is higher

    @classmethod
    def from_values(cls, values: Sequence[float], whole: float | None = None) -> Spread:
        """Computes the percentiles of values by linear interpolation, and their median unless `whole` replaces it."""
        deciles = statistics.quantiles(values, n=10, method="inclusive") if len(values) > 1 else [values[0]]
        figure = statistics.median(values) if whole is None else whole
        return cls(figure, min(deciles[0], figure), max(deciles[-1], figure))


@dataclass(frozen=True)
class StageTiming:
    """The measured times and sizes of one stage."""

    name: str
    cpu_us_per_image: float  # in this stage alone, per image that leaves the pipeline
    wait_us_per_image: float = 0.0  # in which a call neither runs nor waits for a core
    parallelism: int = 1  # the most calls that work at once
    bytes_in_per_image: float = 0.0
    bytes_out_per_image: float = 0.0
    locked_us_per_image: float = 0.0  # from one call to the next, if a lock lets one run at a time; else 0
    holds_python_lock: bool = False  # whether that lock is Python's GIL
    elements_out_per_in: float = 1.0  # 0.25 for a filter that drops three of four, 1/64 for batches of 64

    @property
    def waits(self) -> bool:
        """Whether the stage waits longer than it computes."""
        return self.wait_us_per_image > self.cpu_us_per_image


@dataclass(frozen=True)
class Buffer:
    """The items that a stage keeps in memory."""

    stage: str
    what: str  # such as "records"
    number: int
    num_bytes: float


@dataclass(frozen=True)
class Step:
    """The times of one training step, in seconds of the accelerator's clock."""

    begins_s: float  # when the device began with the step's batch
    idle_s: float  # before the step, while the device had nothing to work on
    wait_s: float  # of the host for the batch; the device may still have computed the step before


@dataclass(frozen=True)
class StepTiming:
    """The step time, the idle time and the input wait of the accelerator in steady state."""

    method: IdleMethod  # how the idle time was measured
    steps: int
    images_per_step: int
    step_s: Spread  # compute time without input
    wall_s: float  # of all steps together
    idle_fraction: Spread  # the share of wall time in which the accelerator had no batch
    input_wait_fraction: Spread  # the share of wall time in which the trainer waited for a batch

    @property
    def idle(self) -> float:
        """The share of wall time in which the accelerator had nothing to work on."""
        return self.idle_fraction.median

    @property
    def rate(self) -> float:
        """The images per second that the trainer got."""
        return self.steps * self.images_per_step / self.wall_s

    @property
    def required_rate(self) -> float:
        """The images per second that the accelerator consumes when it never waits."""
        return self.images_per_step / self.step_s.median if self.has_steps else float("inf")

    @property
    def has_steps(self) -> bool:
        """Whether steps take time; without that nobody can say how long an accelerator waits."""
        return self.method != "none"


@dataclass(frozen=True)
class HostUse:
    """The use of the machine's cores, memory and storage while the pipeline ran."""

    cores: int  # available to this process, or to the pipeline under `cpu_budget`
    cpu_fraction: float  # the share of all cores' time that this process used
    peak_memory_bytes: int  # of this process while the pipeline ran
    memory_limit_bytes: int
    storage_bytes_per_second: float  # that the pipeline read
    storage_limit_bytes_per_second: float | None = None  # measured with nothing else running, or None
    trainer_us_per_step: float = 0.0  # processor time of the thread that takes the batches
    other_cpu_fraction: float = 0.0  # the share that other processes used; 0 if unknown, as in a container

    @property
    def is_crowded(self) -> bool:
        """Whether other programs take a notable part of the cores."""
        return self.other_cpu_fraction >= _CROWDED


@dataclass(frozen=True)
class DatasetInfo:
    """The properties of the data and of the pipeline's stages that the diagnosis needs."""

    name: str  # for messages
    records: int | None  # counted by the profiler if there is no manifest; None if that failed
    record_bytes: float  # the mean size of a record in its file
    formats: tuple[str, ...]  # of the images, sorted; empty if unknown
    stored_size: tuple[int, int] | None  # height and width of every image; None if they differ
    mean_size: tuple[float, float] | None  # height and width; None if unknown, or if `stored_size` is known
    short_side: int | None  # of images that are as small as the model allows; None if they are hardly larger
    decoded_size: tuple[int, int]  # height and width of whole decoded images
    cycle_length: int  # files that are read at the same time; with the engine, batches
    by_engine: bool  # whether tfpipe's engine makes the batches; else stages of tf.data do
    shuffled_records: int  # in the shuffle buffer
    own_stages: tuple[str, ...] = ()  # the user's stages or functions
    late_caches: tuple[str, ...] = ()  # user stages that cache augmented images, the last one first
    filters: tuple[str, ...] = ()  # user stages that can drop single images
    unread_features: tuple[str, ...] = ()  # that `tfpipe reshard --drop-feature` can drop, largest first
    unread_share: float = 0.0  # their share of the bytes read
    described: bool = True  # whether there is a manifest
    compression: str = ""  # of the files, if they must be unpacked from their beginning; else empty
    unpacked_record_bytes: float = 0.0  # the mean size of a record in memory
    declared: Mapping[str, Mapping[str, bool | None]] = field(default_factory=dict)  # `random`, `per_image` by stage
    unit: str = "images"  # or "records" where records have no image
    address: str = ""  # the path or URL that opens the dataset, or the pattern of its files


OPTION_COST_STAGES = ("parse", "decode", "augment", "batch")  # whose time `PipelineProfile.option_costs` sums

TriedChange: TypeAlias = str
"""The keys of `PipelineProfile.option_costs`: an image's processor time from `parse` to `batch`, in microseconds.

    now              the config as it is; the engine parses while it reads, so there parsing belongs to `read`
    uint8, device    images handed over as uint8; augmentation on the device
    dct_scaling      decoding at a lower scale where a crop allows it
    cached           decoded images from a cache in memory
    kept             encoded records from a cache in memory, which the engine copies
    smaller          images stored with a short side of `DatasetInfo.short_side`; `smaller_bytes` is the share of a
                     record's bytes that is left
    engine_share     the engine's time from `read` to `batch` as a share of the textbook pipeline's `now`
    seekable         JPEGs with restart markers, of which only the crop is decoded
    batch            small batches, without the stages before a full cache; `large_batch`: `LARGE_BATCH` images each
"""

MOST_THREADS = 64  # the most waiting threads that a fix proposes; the storage is measured with as many

LARGE_BATCH = 64  # the number of images in the larger batch that is tried if batches are small


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The measurements that profiles of pipelines and of loaders have in common."""

    step: StepTiming
    host: HostUse
    images_per_second: float
    first_batch_s: float  # since the start
    buffers: tuple[Buffer, ...] = ()  # the largest first

    @property
    def cpu_limit(self) -> float:
        """The images per second if this pipeline kept all of its cores busy."""
        busy = self.host.cpu_fraction
        return self.images_per_second / busy if busy > 0 else float("inf")

    @property
    def storage_limit(self) -> float | None:
        """The images per second that the storage allows; None if unmeasured, or if the pipeline has read faster."""
        used, most = self.host.storage_bytes_per_second, self.host.storage_limit_bytes_per_second
        return most * self.images_per_second / used if most and used and most >= used else None


@dataclass(frozen=True, kw_only=True)
class PipelineProfile(Profile):
    """The measurements of one run of a pipeline."""

    stages: tuple[StageTiming, ...]  # in the order of the pipeline
    warm_up_s: float  # not included in any other time
    config: PipelineConfig
    dataset: DatasetInfo
    option_costs: Mapping[TriedChange, float] = field(default_factory=dict)  # without changes the config already has
    handover_us: float | None = None  # per image, however cheap the stages are; None: all time outside the stages
    timeline: tuple[Step, ...] = ()  # the first steps; time 0 is the beginning of measuring
    fill_s: float = 0.0  # until the cache is full, if the epoch that fills it was measured
    records_per_image: float = 1.0  # 4 if a filter drops three of four

    @cached_property
    def demand(self) -> Demand:
        """The time that an image needs at each station."""
        host = self.host
        cpu_s = {stage.name: stage.cpu_us_per_image / 1e6 for stage in self.stages}
        # The kernel counts all threads. The stages' sum leaves out the trainer's thread and threads that hand over.
        other_s = max(host.cpu_fraction * host.cores / self.images_per_second - sum(cpu_s.values()), 0.0)
        cpu_s["other"] = other_s
        take_s = min(host.trainer_us_per_step / self.step.images_per_step / 1e6, other_s)
        if self.hands_over_mostly:  # then all time outside the stages is spent per batch
            take_s = other_s
        handover_s = other_s if self.handover_us is None else min(self.handover_us / 1e6, other_s)
        locked_us = {one.name: one.locked_us_per_image for one in self.stages if one.locked_us_per_image}
        wait_s = {
            stage.name: max(stage.wait_us_per_image, locked_us.get(stage.name, 0.0) - stage.cpu_us_per_image) / 1e6
            for stage in self.stages
        }
        # The engine decodes an image and calls the function with it in the same thread.
        has_function = self.dataset.by_engine and {"decode", "transform"} <= set(cpu_s)
        passes: dict[str, tuple[str, ...]] = {"transform": ("decode",)} if has_function else {}
        if not self.dataset.by_engine:  # a waiting call occupies one of tf.data's threads, which all stages share
            decoding: tuple[str, ...] = tuple(name for name in ("parse", "decode", "augment") if name in cpu_s)
            waiting = [stage for stage in self.stages if stage.waits and stage.name in self.dataset.own_stages]
            passes = {stage.name: decoding for stage in waiting if stage.parallelism > 1}
        return Demand(
            cores=max(host.cores * (1 - host.other_cpu_fraction), _MIN_CORES),
            cpu_s=cpu_s,
            wait_s={name: seconds for name, seconds in wait_s.items() if seconds > 0},
            threads={
                stage.name: 1 if stage.name in locked_us else stage.parallelism
                for stage in self.stages
                if not (has_function and stage.name == "decode")
            },
            passes=passes,
            lock_bound=frozenset(locked_us),
            storage_limit=self.storage_limit,
            take_batch_s=take_s,
            handover_s=max(handover_s, take_s),
        )

    @property
    def hands_over_mostly(self) -> bool:
        """Whether handing over small batches takes more processor time than all stages."""
        all_s = self.host.cpu_fraction * self.host.cores / self.images_per_second
        if self.dataset.by_engine:
            stages_s = sum(stage.cpu_us_per_image for stage in self.stages) / 1e6
            return bool(self.stages) and all_s > 2 * stages_s
        saved_us = self.option_costs.get("batch", 0.0) - self.option_costs.get("large_batch", 0.0)
        return all_s < 2 * saved_us / 1e6


@dataclass(frozen=True)
class BatchInfo:
    """The size and the contents of a loader's batch."""

    images: int  # or records without images
    bytes: int  # of its arrays
    dtype: str = ""  # of its largest array; empty if it has none
    shape: tuple[int, ...] = ()  # of its largest array; equal arrays of a list of records count as one
    objects: int = 0  # Python objects that are not arrays

    @property
    def image_size(self) -> tuple[int, int] | None:
        """The height and width, if the largest array holds images."""
        if len(self.shape) != 4:
            return None
        return self.shape[2:] if self.shape[1] in (1, 3, 4) else self.shape[1:3]


@dataclass(frozen=True)
class ProcessUse:
    """The work of one process in a window of time."""

    pid: int
    wall_s: float  # the length of the window
    cpu_s: float = 0.0
    pool_s: float = 0.0  # processor time of threads that never run Python, such as OpenCV's
    seconds: Mapping[Activity, float] = field(default_factory=dict)  # of all threads; "idle": none had work
    functions: tuple[tuple[str, Activity, float], ...] = ()  # (line of user code, activity, seconds), longest first
    bytes: int = 0  # that it read
    record_s: tuple[float, ...] = ()  # the time of each record, where known
    slowest: str = ""  # the name of the record that took longest
    files: tuple[str, ...] = ()  # some of the image files that it opened
    collecting_s: float = 0.0  # in Python's garbage collector

    def sum(self, *activities: Activity) -> float:
        """Adds up the seconds of some activities."""
        return math.fsum(self.seconds.get(name, 0.0) for name in activities)

    @property
    def working_s(self) -> float:
        """The seconds of all threads in all activities but `idle` and `no core`."""
        return math.fsum(self.seconds.values()) - self.sum("idle", "no core")

    @property
    def time_scale(self) -> float:
        """The factor from seconds of threads to seconds of the process: below 1 if threads work at the same time."""
        return min((self.wall_s - self.sum("idle")) / max(self.working_s + self.sum("no core"), 1e-9), 1.0)

    def time_share(self, *activities: Activity) -> float:
        """Returns the share of this process' wall time that some activities take, as reports show it."""
        return math.fsum(
            self.seconds.get(name, 0.0) * (1.0 if name == "idle" else self.time_scale) for name in activities
        ) / max(self.wall_s, 1e-9)


@dataclass(frozen=True)
class Drive:
    """The measurements of a loop over the loader's batches, with or without a step after each."""

    batches: int
    wall_s: float
    restart_s: float = 0.0  # waits for the first batches of epochs after the first
    epochs: int = 0  # that began after the first one
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LoaderProfile(Profile):
    """The measurements of a loader that the user made; `host` is that of the loop `free`."""

    kind: str  # such as "PyTorch DataLoader"
    options: Mapping[str, Any]  # that a fix can change
    batch: BatchInfo
    free: Drive  # the loop without steps, as fast as batches come
    workers: tuple[ProcessUse, ...]  # during `free`
    main: ProcessUse  # the trainer's process, during `free`
    restart_s: float  # to start the workers at the beginning of an epoch, if they do not stay
    steps_per_epoch: int | None = None
    cores: float = 1.0  # the measured speedup of many threads over one: 1.3 where two share one core
    hop_s: float = 0.0  # processor time to hand a batch of arrays from process to process
    draft_s: float | None = None  # to decode an image in the smallest size that is enough; None if none is smaller
    torch_threads: int = 1  # if this process makes the batches; else 1

    @property
    def makers(self) -> tuple[ProcessUse, ...]:
        """The processes that make batches: the workers, or without workers the trainer's process."""
        return self.workers or (self.main,)

    @property
    def cpu_limit(self) -> float:
        """The images per second if this loader kept all cores busy."""
        return self.free_rate / self.host.cpu_fraction if self.host.cpu_fraction > 0 else float("inf")

    @property
    def used_cores(self) -> float:
        """The mean number of cores that the loader keeps busy."""
        return self.host.cpu_fraction * self.host.cores

    @property
    def delay(self) -> float:
        """The share of waits for a core in the time in which the makers' threads have work."""
        delay_s = sum(use.sum("no core") for use in self.makers)
        return delay_s / max(delay_s + sum(use.working_s for use in self.makers), 1e-9)

    @property
    def num_workers(self) -> int:
        """The number of worker processes at one time; `workers` may hold those of several epochs."""
        asked = self.options.get("num_workers") or self.options.get("workers")
        return min(asked or len(self.workers), len(self.workers))

    @property
    def free_rate(self) -> float:
        """The images per second of the loop without steps."""
        return self.batch.images * self.free.batches / self.free.wall_s

    def share(self, *activities: Activity) -> float:
        """Returns the share of some activities in the makers' time, of which waits for work or a core are left out."""
        return sum(use.sum(*activities) for use in self.makers) / max(sum(use.working_s for use in self.makers), 1e-9)

    def time_share(self, *activities: Activity) -> float:
        """Returns the share of the makers' wall time that some activities take, as reports show it."""
        all_s = sum(use.wall_s for use in self.makers)
        return sum(use.time_share(*activities) * use.wall_s for use in self.makers) / max(all_s, 1e-9)


@dataclass(frozen=True)
class Bottleneck:
    """The stage, activity or resource that limits the rate."""

    stage: str  # a stage, "storage", "cpu", "memory", "first_batch", "accelerator"; a loader has other names
    reason: str  # the numbers that prove it
    limit_images_per_second: float = float("inf")
    where: str = ""  # for a loader: the line of user code, the activity or the record at fault


class Effort(IntEnum):
    """The effort that a fix takes."""

    WASTE = -1  # useless work is left out
    OPTION = 0  # the trainer sees no difference
    VISIBLE_OPTION = 1  # the trainer, its memory or a line of user code changes
    NEW_SHARDS = 2
    REWRITE = 3  # the user makes their code cheaper, by an unknown amount


@dataclass(frozen=True)
class Fix:
    """A proposed change, and the rate that it gives."""

    effort: Effort
    reason: str
    demand: Demand | None = None  # of the pipeline with the fix; None if the fix does not raise the rate
    changes: Mapping[str, OptionValue] = field(default_factory=dict)  # empty where data or machines must change
    instruction: str = ""  # a command or a sentence, alone or besides the changes
    action: FixAction = "set_option"
    stage: str | None = None  # the user stage that changes
    max_images_per_second: float = float("inf")  # a limit that `demand` does not include
    efficiency: float | None = None  # the reached share of the demand's limit; None: as measured
    predicted_images_per_second: float = 0.0
    predicted_idle_fraction: float | None = 0.0  # None without steps that take time
    measured_images_per_second: float | None = None  # on top of the fixes that were kept before
    measured_gain: Spread | None = None  # the factors between turns without the fix and with it
    kept: bool | None = None  # whether the gain was above the noise

    @property
    def name(self) -> str:
        """The instruction, or else the options with their values."""
        return self.instruction or ", ".join(f"{name} = {_to_text(value)}" for name, value in self.changes.items())

    def predict(self, profile: Profile, demand: Demand) -> Fix:
        """Returns this fix with its predicted rate, which is at most the accelerator's, and its predicted idle share.

        `demand` is that of the measured pipeline.
        """
        changed, efficiency = (self.demand or demand).scale_other(demand), self.efficiency
        if changed.limit == changed.cpu_limit and demand.limit < demand.cpu_limit and efficiency is None:
            efficiency = 1.0  # the efficiency at another limit says nothing about the limit of the cores
        if efficiency is None:
            efficiency = profile.images_per_second / demand.limit if demand.limit > 0 else 1.0
        required = profile.step.required_rate
        rate = min(efficiency * changed.limit, self.max_images_per_second, required)
        idle = 1 - rate / required if profile.step.has_steps else None
        return replace(self, predicted_images_per_second=rate, predicted_idle_fraction=idle)


def _to_text(value: object) -> str:
    return "auto" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)


@dataclass(frozen=True)
class Report:
    """A profile and the conclusions from it."""

    profile: Profile
    bottleneck: Bottleneck
    fixes: tuple[Fix, ...] = ()  # the best one first
    after_images_per_second: float | None = None  # with every fix that was kept; None if none was tried
    price_per_day: float | None = None  # of idle time

    @property
    def idle_after_fixes(self) -> float:
        """The share of idle time after the fixes that were tried and kept; without any, the measured share."""
        if self.after_images_per_second is None:
            return self.profile.step.idle
        return max(1 - self.after_images_per_second / self.profile.step.required_rate, 0.0)
