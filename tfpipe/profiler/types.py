"""The values that the profiler measures (`Profile`) and concludes (`Report`), plain and frozen. Pure.

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
"""A loop, `fit`, which takes the next batch while the device computes, no steps, the user's own, or a live training."""
_CROWDED = 0.1  # the share of the cores from which on a report begins with what other programs take
_MIN_CORES = 0.1  # the cores that a process can have at least, however many others run
FixAction = Literal["set_option", "move_stage", "rewrite_stage", "move_to_device", "cache_before_stage", "write_data"]
"""The parts that a fix changes: options, the place or the code of a stage of the user's own, the data."""

OptionValue = bool | int | float | str | tuple[str, ...] | None

Activity: TypeAlias = str
ACTIVITIES: tuple[Activity, ...] = (
    *("reading", "decoding", "functions", "collating", "handing over", "other", "waiting"),
    *("storage", "lock", "no core", "idle"),
)
"""The activities of a thread: `functions` are the user's, `waiting` happens in them; the last four are waits for a
file, for Python's lock, for a core, and for work."""


@dataclass(frozen=True)
class Spread:
    """A figure and its variation over the parts of a run."""

    median: float  # of a run in parts it is that of the whole run: waits come in bursts, which a median would miss
    low: float  # the 10th percentile of the parts, or the figure if that is lower
    high: float  # the 90th percentile of the parts, or the figure if that is higher

    @classmethod
    def from_values(cls, values: Sequence[float], whole: float | None = None) -> Spread:
        """Computes the median, which `whole` replaces, and the percentiles of values, by linear interpolation."""
        deciles = statistics.quantiles(values, n=10, method="inclusive") if len(values) > 1 else [values[0]]
        figure = statistics.median(values) if whole is None else whole
        return cls(figure, min(deciles[0], figure), max(deciles[-1], figure))


@dataclass(frozen=True)
class StageTiming:
    """One named stage."""

    name: str
    cpu_us_per_image: float  # in this stage alone, for an image that leaves the pipeline
    wait_us_per_image: float = 0.0  # in which a call neither runs nor waits for a core
    parallelism: int = 1  # the most calls that work at once
    bytes_in_per_image: float = 0.0
    bytes_out_per_image: float = 0.0
    hold_us_per_image: float | None = None  # from call to call, if a lock lets one run at a time whatever the threads
    holds_python_lock: bool = False  # whether this lock is Python's own
    elements_out_per_in: float = 1.0  # 0.25 for a filter that drops three of four, 1/64 for batches of 64

    @property
    def waits(self) -> bool:
        """Whether it waits for most of its time."""
        return self.wait_us_per_image > self.cpu_us_per_image


@dataclass(frozen=True)
class Held:
    """The memory that a stage holds."""

    stage: str
    what: str  # such as "records"
    number: int
    num_bytes: float


@dataclass(frozen=True)
class Step:
    """One step, in seconds of the accelerator's clock."""

    begins_s: float  # when the device began with the step's batch
    idle_s: float  # before the step, in which the device had nothing to work on
    wait_s: float  # of the host for the batch; the device may have been busy for up to one step of it


@dataclass(frozen=True)
class StepTiming:
    """The accelerator's side in steady state."""

    method: IdleMethod  # how the idle time was measured
    steps: int
    images_per_step: int
    step_s: Spread  # compute time without input
    wall_s: float  # of all steps together
    idle_fraction: Spread  # of wall time, in which the accelerator had no batch
    input_wait_fraction: Spread  # of wall time, in which the trainer waited for a batch

    @property
    def idle(self) -> float:
        """The share of wall time in which the accelerator had nothing to work on; exact if it is simulated."""
        if self.method in ("loop", "fit", "train"):
            return max(1 - self.steps * self.step_s.median / self.wall_s, 0.0)
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
    """The machine while the pipeline ran."""

    cores: int  # that this process may use, or that `cpu_budget` leaves the pipeline
    cpu_fraction: float  # of all cores' time, by this process
    peak_memory_bytes: int  # of this process while the pipeline ran
    memory_limit_bytes: int
    storage_bytes_per_second: float  # that the pipeline read
    storage_limit_bytes_per_second: float | None = None  # while nothing else ran; None if not measured
    trainer_us_per_step: float = 0.0  # processor time of the thread that takes the batches: the price of a batch
    other_cpu_fraction: float = 0.0  # by other processes; 0 if unknown, as in a container

    @property
    def is_crowded(self) -> bool:
        """Whether other programs take a notable part of the cores."""
        return self.other_cpu_fraction >= _CROWDED


@dataclass(frozen=True)
class DatasetFacts:
    """The facts about the data and its stages that the diagnosis needs."""

    name: str  # as messages show it
    records: int | None  # counted for the profile in files without a manifest; None if that failed
    record_bytes: float  # the mean size in its file
    formats: tuple[str, ...]  # sorted; empty if unknown
    stored_size: tuple[int, int] | None  # height and width of every image; None if they differ
    mean_size: tuple[float, float] | None  # None if unknown, or if `stored_size` says more
    short_side: int | None  # that images could be stored with; None if they are hardly larger
    decoded_size: tuple[int, int]  # height and width of whole decoded images
    cycle_length: int  # files that are read side by side; of batches, if the engine reads them
    by_engine: bool  # not by stages of TensorFlow's operations
    shuffled_records: int  # held in memory to be shuffled
    own_stages: tuple[str, ...] = ()
    late_caches: tuple[str, ...] = ()  # own stages that cache augmented images, the last one first
    filters: tuple[str, ...] = ()  # own stages that can drop single images
    unread_features: tuple[str, ...] = ()  # those that `tfpipe reshard --drop-feature` can leave out, largest first
    unread_share: float = 0.0  # of the bytes read
    described: bool = True  # whether there is a manifest
    compression: str = ""  # of every file, if it is unpacked from its beginning; else empty
    unpacked_record_bytes: float = 0.0  # the mean size in memory
    declared: Mapping[str, Mapping[str, bool | None]] = field(default_factory=dict)  # as `tfpipe.Stage`, by its name
    unit: str = "images"  # or "records" where records have no image
    address: str = ""  # to open the dataset again, or the pattern of files


OPTION_COST_STAGES = ("parse", "decode", "augment", "batch")  # whose time `Profile.option_costs` adds up

TriedChange: TypeAlias = str
"""The changes whose costs are measured: the processor time of an image from `parse` to `batch`, in microseconds.

    now              the config as it is; the engine parses what it reads at once, so there parsing is a part of `read`
    uint8, device    images handed over as bytes; augmentation on the device
    dct_scaling      decoding at a lower scale where a crop allows it
    cached           decoded images that are fetched from memory
    kept             fetching records from the memory of a cache, as they are stored: the engine copies each
    smaller          images stored with a short side of `DatasetFacts.short_side`; `smaller_bytes` is the share of a
                     record's bytes that is left
    engine_share     the share of all from `read` to `batch` that the engine needs in place of the textbook pipeline
    seekable         JPEGs with restart markers: no more of them is decoded than a crop
    batch            small batches from the last full cache on; `large_batch` are those of `LARGE_BATCH` images
"""

MOST_THREADS = 64  # the threads that a fix lets wait at once, at most: with as many the storage is measured

LARGE_BATCH = 64  # the number of images in a batch that is tried beside a small one


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The figures that every profile has, of a pipeline or of a loader."""

    step: StepTiming
    host: HostUse
    images_per_second: float
    first_batch_s: float  # from the start
    held: tuple[Held, ...] = ()  # the most bytes first

    @property
    def cpu_limit(self) -> float:
        """The images per second that the cores which the pipeline may take would give if they did nothing else."""
        busy = self.host.cpu_fraction
        return self.images_per_second / busy if busy > 0 else float("inf")

    @property
    def storage_limit(self) -> float | None:
        """The images per second that the storage gives; None if it was not measured, or has just given more."""
        used, most = self.host.storage_bytes_per_second, self.host.storage_limit_bytes_per_second
        return most * self.images_per_second / used if most and used and most >= used else None


@dataclass(frozen=True, kw_only=True)
class PipelineProfile(Profile):
    """The figures that one run of a pipeline measured."""

    stages: tuple[StageTiming, ...]  # in the order of the pipeline
    warm_up_s: float  # which no other figure includes
    config: PipelineConfig
    dataset: DatasetFacts
    option_costs: Mapping[TriedChange, float] = field(default_factory=dict)  # without what the config has already
    handover_us: float | None = None  # for an image, however cheap the stages are; None: all that no stage accounts for
    timeline: tuple[Step, ...] = ()  # the first steps; time 0 is the beginning of measuring
    fill_s: float = 0.0  # until the cache is full, if the figures are of the epoch that fills it
    records_per_image: float = 1.0  # 4 if a filter drops three of four

    @cached_property
    def demand(self) -> Demand:
        """The time that an image needs at each station."""
        host = self.host
        cpu_s = {stage.name: stage.cpu_us_per_image / 1e6 for stage in self.stages}
        # The kernel counts all threads. The stages' sum leaves out threads that hand over, and the trainer's own.
        other_s = max(host.cpu_fraction * host.cores / self.images_per_second - sum(cpu_s.values()), 0.0)
        cpu_s["other"] = other_s
        take_s = min(host.trainer_us_per_step / self.step.images_per_step / 1e6, other_s)
        if self.hands_over_mostly:  # the stages of the engine get whole batches
            take_s = other_s
        handover_s = other_s if self.handover_us is None else min(self.handover_us / 1e6, other_s)
        holds = {stage.name: stage.hold_us_per_image for stage in self.stages if stage.hold_us_per_image is not None}
        wait_s = {
            stage.name: max(stage.wait_us_per_image, holds.get(stage.name, 0.0) - stage.cpu_us_per_image) / 1e6
            for stage in self.stages
        }
        # The engine decodes an image and calls the function with it in the same thread.
        has_function = self.dataset.by_engine and {"decode", "transform"} <= set(cpu_s)
        passes: dict[str, tuple[str, ...]] = {"transform": ("decode",)} if has_function else {}
        if not self.dataset.by_engine:  # a call that waits keeps one of tf.data's threads, which all calls share
            decoding: tuple[str, ...] = tuple(name for name in ("parse", "decode", "augment") if name in cpu_s)
            waiting = [stage for stage in self.stages if stage.waits and stage.name in self.dataset.own_stages]
            passes = {stage.name: decoding for stage in waiting if stage.parallelism > 1}
        return Demand(
            cores=max(host.cores * (1 - host.other_cpu_fraction), _MIN_CORES),
            cpu_s=cpu_s,
            wait_s={name: seconds for name, seconds in wait_s.items() if seconds > 0},
            threads={
                stage.name: 1 if stage.name in holds else stage.parallelism
                for stage in self.stages
                if not (has_function and stage.name == "decode")
            },
            passes=passes,
            lock_bound=frozenset(holds),
            storage_limit=self.storage_limit,
            take_batch_s=take_s,
            handover_s=max(handover_s, take_s),
        )

    @property
    def hands_over_mostly(self) -> bool:
        """Whether handing over small batches outweighs all else."""
        all_s = self.host.cpu_fraction * self.host.cores / self.images_per_second
        if self.dataset.by_engine:
            stages_s = sum(stage.cpu_us_per_image for stage in self.stages) / 1e6
            return bool(self.stages) and all_s > 2 * stages_s
        saved_us = self.option_costs.get("batch", 0.0) - self.option_costs.get("large_batch", 0.0)
        return all_s < 2 * saved_us / 1e6


@dataclass(frozen=True)
class BatchFacts:
    """A batch of the loader."""

    images: int  # or other records
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
    pool_s: float = 0.0  # processor time of threads that know no Python, such as OpenCV's
    seconds: Mapping[Activity, float] = field(default_factory=dict)  # of all threads; in "idle" none had work
    functions: tuple[tuple[str, Activity, float], ...] = ()  # place, activity, seconds, most first
    bytes: int = 0  # that it read
    record_s: tuple[float, ...] = ()  # the time of each record, where known
    slowest: str = ""  # the name of the record that took longest
    files: tuple[str, ...] = ()  # some of the image files that it opened
    collecting_s: float = 0.0  # in which Python looked for garbage

    def sum(self, *activities: Activity) -> float:
        """Returns the seconds of some activities."""
        return math.fsum(self.seconds.get(name, 0.0) for name in activities)

    @property
    def working_s(self) -> float:
        """The time of all threads that had work and a core, or waited for something else than a core."""
        return math.fsum(self.seconds.values()) - self.sum("idle", "no core")

    @property
    def time_scale(self) -> float:
        """The share of a thread's second that counts as time of this process: its threads share that."""
        return min((self.wall_s - self.sum("idle")) / max(self.working_s + self.sum("no core"), 1e-9), 1.0)

    def time_share(self, *activities: Activity) -> float:
        """Returns the share of some activities in the time of this process, as reports show it."""
        return math.fsum(
            self.seconds.get(name, 0.0) * (1.0 if name == "idle" else self.time_scale) for name in activities
        ) / max(self.wall_s, 1e-9)


@dataclass(frozen=True)
class Drive:
    """A loop over the loader's batches, with a step behind each."""

    batches: int
    wall_s: float
    restart_s: float = 0.0  # of waiting for the first batch of a further epoch
    epochs: int = 0  # further ones that began
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LoaderProfile(Profile):
    """The figures of a loader that its user made. `host` has those of `free`."""

    kind: str  # such as "PyTorch DataLoader"
    options: Mapping[str, Any]  # those that a fix can change
    batch: BatchFacts
    free: Drive  # as fast as batches come
    workers: tuple[ProcessUse, ...]  # in `free`
    main: ProcessUse  # in `free`, while it fetched batches
    restart_s: float  # to start the workers at the beginning of an epoch, if they do not stay
    steps_per_epoch: int | None = None
    cores: float = 1.0  # that threads get, measured: 1.3 where two threads share one core
    hop_s: float = 0.0  # processor time to hand a batch of arrays from process to process
    draft_s: float | None = None  # to decode an image in the smallest size that is enough; None if none is smaller
    torch_threads: int = 1  # where this process makes the batches; else 1

    @property
    def makers(self) -> tuple[ProcessUse, ...]:
        """The processes that make batches: the workers, or this one."""
        return self.workers or (self.main,)

    @property
    def cpu_limit(self) -> float:
        """The images per second that the cores would give if they did nothing else."""
        return self.free_rate / self.host.cpu_fraction if self.host.cpu_fraction > 0 else float("inf")

    @property
    def used_cores(self) -> float:
        """The cores that the loader gets."""
        return self.host.cpu_fraction * self.host.cores

    @property
    def delay(self) -> float:
        """The share of a core's wait in the time of the makers' threads that have work."""
        delay_s = sum(use.sum("no core") for use in self.makers)
        return delay_s / max(delay_s + sum(use.working_s for use in self.makers), 1e-9)

    @property
    def num_workers(self) -> int:
        """The worker processes at a time; `workers` may hold those of several epochs."""
        asked = self.options.get("num_workers") or self.options.get("workers")
        return min(asked or len(self.workers), len(self.workers))

    @property
    def free_rate(self) -> float:
        """The images per second of the loop without steps."""
        return self.batch.images * self.free.batches / self.free.wall_s

    def share(self, *activities: Activity) -> float:
        """Returns the share of some activities in the time of the makers, without waits for work or a core."""
        return sum(use.sum(*activities) for use in self.makers) / max(sum(use.working_s for use in self.makers), 1e-9)

    def time_share(self, *activities: Activity) -> float:
        """Returns the share of some activities in all time of the makers, as reports show it."""
        all_s = sum(use.wall_s for use in self.makers)
        return sum(use.time_share(*activities) * use.wall_s for use in self.makers) / max(all_s, 1e-9)


@dataclass(frozen=True)
class Bottleneck:
    """The part of the pipeline, or of the machine, that limits the rate."""

    stage: str  # a stage, "storage", "cpu", "memory", "first_batch", or "accelerator"; or of a loader
    reason: str  # the numbers that prove it
    limit_images_per_second: float = float("inf")
    where: str = ""  # in a loader: the user's line, the activity, or the record that it comes from


class Effort(IntEnum):
    """The effort that a fix takes."""

    WASTE = -1  # work for nothing is left out
    OPTION = 0  # the trainer sees no difference
    VISIBLE_OPTION = 1  # it affects the trainer, its memory or a line of the user's code
    NEW_SHARDS = 2
    REWRITE = 3  # the user makes a stage of their own cheaper, by how much nobody knows


@dataclass(frozen=True)
class Fix:
    """A change, and the rate that it gives."""

    effort: Effort
    reason: str
    demand: Demand | None = None  # of the pipeline that has it; None if it does not raise the rate
    changes: Mapping[str, OptionValue] = field(default_factory=dict)  # empty where data or machines must change
    instruction: str = ""  # a command or a sentence, alone or besides the changes
    action: FixAction = "set_option"
    stage: str | None = None  # of the user's own that changes
    max_images_per_second: float = float("inf")  # if `demand` does not say so
    efficiency: float | None = None  # of its bound; None: as the measured pipeline
    predicted_images_per_second: float = 0.0
    predicted_idle_fraction: float | None = 0.0  # None without steps that take time
    measured_images_per_second: float | None = None  # in turns, on top of the fixes kept before
    measured_gain: Spread | None = None  # the factor from turn to turn
    kept: bool | None = None  # whether the gain was above the noise

    @property
    def name(self) -> str:
        """The instruction, or else the options with their values."""
        return self.instruction or ", ".join(f"{name} = {_to_text(value)}" for name, value in self.changes.items())

    def predict(self, profile: Profile, demand: Demand) -> Fix:
        """Returns this fix with the rate and the idle share that it gives; an accelerator takes no more than it can.

        `demand` is that of the profile's pipeline as it is.
        """
        changed, efficiency = (self.demand or demand).scale_other(demand), self.efficiency
        if changed.limit == changed.cpu_limit and demand.limit < demand.cpu_limit and efficiency is None:
            efficiency = 1.0  # the efficiency at another bound says nothing about the bound of the cores
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
