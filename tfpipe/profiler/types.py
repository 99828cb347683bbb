"""Everything that the profiler measures and concludes, as plain frozen values. Pure: nothing here loads TensorFlow.

    Profile (StepTiming, StageTiming ..., HostUse, DatasetFacts)               measured
    ServiceDemand -> Bottleneck -> Fix ...                                      concluded
    Report                                                                     both together

*Input wait* is the time in which the trainer waits for its next batch, by the trainer's clock. *Idle* is the time in
which the accelerator has nothing to work on. If steps are dispatched ahead of the device, the wait is longer than the
idle time. Each figure says which of the two it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from typing import Literal, TypeAlias

from tfpipe.engine.config.pipeline_config import PipelineConfig

Trainer = Literal["loop", "fit", "none"]
"""The trainers that a simulated accelerator stands for: a plain loop, which takes a batch and then computes, and Keras'
`fit` on a device with a queue, which takes the next batch while the device computes. With "none" a step takes no time:
batches are taken as fast as they come."""

IdleMethod = Literal["loop", "fit", "none", "monitor"]
"""The ways to measure idle time: with a simulated accelerator that a trainer feeds, or live in a training."""

SIMULATED: tuple[IdleMethod, ...] = ("loop", "fit")
"""The ways with a simulated accelerator."""

_CROWDED = 0.1
"""The share of the cores from which on a report begins with what other programs take."""

_MIN_CORES = 0.1
"""The cores that a process can have at least, however many others run."""

FixAction = Literal[
    "set_option",
    "move_stage",
    "vectorize_stage",
    "rewrite_stage",
    "move_to_device",
    "cache_before_stage",
    "write_data",
    "add_machines",
]
"""The parts that a fix changes: options, the place or the code of a stage of the user's own, the data, the machines."""

OptionValue = bool | int | float | str | tuple[str, ...] | None
"""A value that a fix gives to an option of `PipelineConfig`."""


@dataclass(frozen=True)
class Spread:
    """A figure and its variation over the parts of a run.

    Attributes:
        median: The figure. For stages and a simulated accelerator it is that of the whole run, since waits and images
            come in bursts, which the median of the parts would miss.
        low: The 10th percentile of the parts, or the figure, if a few parts pull it below.
        high: The 90th percentile of the parts, or the figure, if a few parts pull it above.
    """

    median: float
    low: float
    high: float

    @classmethod
    def from_values(cls, values: Sequence[float], whole: float | None = None) -> Spread:
        """Computes the median and the percentiles of at least one value, by linear interpolation.

        Args:
            values: The figures of the parts of a run.
            whole: The figure of the whole run, which replaces the median.
        """
        ordered = sorted(values)

        def percentile(share: float) -> float:
            position = share * (len(ordered) - 1)
            low = int(position)
            high = min(low + 1, len(ordered) - 1)
            return ordered[low] + (ordered[high] - ordered[low]) * (position - low)

        figure = percentile(0.5) if whole is None else whole
        return cls(figure, min(percentile(0.1), figure), max(percentile(0.9), figure))


@dataclass(frozen=True)
class StageTiming:
    """One named stage.

    Attributes:
        name: The stage's name.
        cpu_us_per_image: The processor time in this stage alone for an image that leaves the pipeline, in microseconds.
        wait_us_per_image: The time of a call for each image in which it neither runs nor waits for a core, in
            microseconds: for storage, for a lock, or for somebody else.
        parallelism: The most calls that work at once.
        bytes_in_per_image: The bytes that the stage takes for an image.
        bytes_out_per_image: The bytes that the stage gives for an image.
        hold_us_per_image: The time from one call to the next for each image, in microseconds, if a lock lets one call
            run at a time whatever the threads: found by running the function alone with 1 and 2 threads. None without
            such a lock.
        holds_python_lock: Whether this lock is Python's own.
        elements_out_per_in: The elements that it gave for each that it took: 0.25 for a filter that drops three of
            four, 1/64 where batches of 64 are made. It is 1 up to `read`, which takes files.
    """

    name: str
    cpu_us_per_image: Spread
    wait_us_per_image: float = 0.0
    parallelism: int = 1
    bytes_in_per_image: float = 0.0
    bytes_out_per_image: float = 0.0
    hold_us_per_image: float | None = None
    holds_python_lock: bool = False
    elements_out_per_in: float = 1.0

    @property
    def waits(self) -> bool:
        """Whether it waits for most of its time."""
        return self.wait_us_per_image > self.cpu_us_per_image.median


@dataclass(frozen=True)
class Held:
    """The memory that a stage holds.

    Attributes:
        stage: The stage's name.
        what: The things that it holds, such as "records".
        number: The number of these.
        num_bytes: The bytes of all of them.
        fill_s: The seconds of work on them before the first batch can come.
    """

    stage: str
    what: str
    number: int
    num_bytes: float
    fill_s: float = 0.0


@dataclass(frozen=True)
class Step:
    """One step, in seconds of the accelerator's clock.

    Attributes:
        begins_s: The time at which the device began to work on the step's batch.
        idle_s: The time before the step in which the device had nothing to work on.
        wait_s: The time in which the host waited for the batch. The device may have been busy for up to one step of it.
    """

    begins_s: float
    idle_s: float
    wait_s: float


@dataclass(frozen=True)
class StepTiming:
    """The accelerator's side in steady state.

    Attributes:
        method: The way in which the idle time was measured.
        steps: The number of measured steps.
        images_per_step: The number of images in the batch of a step.
        step_s: The compute time of a step without its input, in seconds.
        wall_s: The duration of all steps together, in seconds.
        idle_fraction: The share of wall time in which the accelerator had no batch to work on.
        input_wait_fraction: The share of wall time in which the trainer waited for a batch.
    """

    method: IdleMethod
    steps: int
    images_per_step: int
    step_s: Spread
    wall_s: float
    idle_fraction: Spread
    input_wait_fraction: Spread

    @property
    def idle(self) -> float:
        """The share of wall time in which the accelerator had nothing to work on.

        For a simulated accelerator it is exact: the time that was not compute. The median over parts of a run would
        miss waits that come in bursts.
        """
        if self.method in SIMULATED:
            return max(1 - self.steps * self.step_s.median / self.wall_s, 0.0)
        return self.idle_fraction.median

    @property
    def required_rate(self) -> float:
        """The images per second that the accelerator consumes when it never waits."""
        return self.images_per_step / self.step_s.median if self.has_steps else float("inf")

    @property
    def has_steps(self) -> bool:
        """Whether steps take time; without that nobody can say how long an accelerator waits."""
        return self.method != "none"

    def compute_idle(self, rate: float) -> float | None:
        """Returns the share of idle time at a rate; None without steps that take time."""
        return 1 - rate / self.required_rate if self.has_steps else None


@dataclass(frozen=True)
class HostUse:
    """The machine while the pipeline ran.

    Attributes:
        cores: The number of cores that this process may use.
        cpu_fraction: The processor time of this process, as a share of all cores' time.
        peak_memory_bytes: The most memory that this process has held while the pipeline ran.
        memory_limit_bytes: The memory that this process may hold.
        storage_bytes_per_second: The bytes that the pipeline read.
        storage_limit_bytes_per_second: The bytes that the storage gave while nothing else ran; None if that was not
            measured.
        trainer_us_per_step: The processor time of the thread that takes the batches, in microseconds. It is the price
            of taking a batch, without making it.
        other_cpu_fraction: The share of the cores that other processes took; 0 if that is unknown, as in a container.
        budget_cores: The number of cores that `cpu_budget` leaves the pipeline; None without a budget.
    """

    cores: int
    cpu_fraction: float
    peak_memory_bytes: int
    memory_limit_bytes: int
    storage_bytes_per_second: float
    storage_limit_bytes_per_second: float | None = None
    trainer_us_per_step: float = 0.0
    other_cpu_fraction: float = 0.0
    budget_cores: int | None = None

    @property
    def is_crowded(self) -> bool:
        """Whether other programs take a notable part of the cores."""
        return self.other_cpu_fraction >= _CROWDED

    @property
    def pipeline_cores(self) -> int:
        """The number of cores that the pipeline may take."""
        return self.cores if self.budget_cores is None else self.budget_cores

    @property
    def budget_fraction(self) -> float:
        """The processor time of this process, as a share of the cores that the pipeline may take."""
        return self.cpu_fraction * self.cores / self.pipeline_cores


@dataclass(frozen=True)
class OwnStage:
    """The facts that a stage of the user's own declares, see `tfpipe.Stage`; None where it says nothing.

    Attributes:
        random: Whether it draws anew in each epoch.
        per_image: Whether it treats each image for itself.
    """

    random: bool | None = None
    per_image: bool | None = None


@dataclass(frozen=True)
class DatasetFacts:
    """The facts about the data and its stages that the diagnosis needs.

    Attributes:
        name: The dataset's name, as messages show it.
        records: The number of records in all files; None if nobody counted them.
        files: The number of files.
        record_bytes: The mean size of a record in its file.
        formats: The image formats in the files, sorted; empty if they are unknown.
        stored_size: The height and width of every image; None if images differ.
        mean_size: The mean height and width; None if they are unknown, or if `stored_size` says more.
        short_side: The short side with which images could be stored, in pixels; None if they are hardly larger than the
            model needs.
        decoded_size: The height and width of whole decoded images.
        cycle_length: The number of files that are read side by side; of batches, if the engine reads them.
        exact: Whether training reads in the exact order of `tfpipe.engine.order`.
        by_engine: Whether the engine makes the batches, each from records that one call reads from their places. If
            not, stages of TensorFlow's operations do.
        shuffled_records: The number of records that are held in memory to be shuffled.
        own_stages: The names of the stages that the user has put in.
        late_caches: The names of the user's stages that cache augmented images, the last one first.
        filters: The names of the user's stages that can drop single images.
        unread_features: The features that take up bytes and are not read, the largest one first; only those that
            `tfpipe reshard --drop-feature` can leave out.
        unread_share: The share of the bytes read that these features take.
        foreign: Whether another program wrote the files.
        described: Whether there is a manifest.
        compression: The compression of every file; empty for none.
        counted_records: The number of records in files without a manifest, counted for the profile; None if it is not
            known.
        unpacked_record_bytes: The mean size of a record in memory.
        stage_moves: The moves of the user's stages that are allowed and leave less to do, see `Stages.list_moves`.
        declared: The facts that each of the user's stages declares, by name.
        unit: The word for what a batch has many of: "images", or "records" where records have no image.
        address: The text that opens the dataset again, or the pattern of files without a manifest.
    """

    name: str
    records: int | None
    files: int
    record_bytes: float
    formats: tuple[str, ...]
    stored_size: tuple[int, int] | None
    mean_size: tuple[float, float] | None
    short_side: int | None
    decoded_size: tuple[int, int]
    cycle_length: int
    exact: bool
    by_engine: bool
    shuffled_records: int
    own_stages: tuple[str, ...] = ()
    late_caches: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()
    unread_features: tuple[str, ...] = ()
    unread_share: float = 0.0
    foreign: bool = False
    described: bool = True
    compression: str = ""
    counted_records: int | None = None
    unpacked_record_bytes: float = 0.0
    stage_moves: tuple[str, ...] = ()
    declared: Mapping[str, OwnStage] = field(default_factory=dict)
    unit: str = "images"
    address: str = ""


OPTION_COST_STAGES = ("parse", "decode", "augment", "batch")
"""The stages whose processor time `Profile.option_costs` adds up."""

TriedChange: TypeAlias = str
"""The changes whose costs are measured: the processor time of an image from `parse` to `batch`, in microseconds.

    now              the config as it is; the engine parses what it reads at once, so there parsing is a part of `read`
    uint8, device    images handed over as bytes; augmentation on the device
    dct_scaling      decoding at a lower scale where a crop allows it
    cached           decoded images that are fetched from memory; `cached_device` with augmentation on the device
    smaller          images stored with a short side of `DatasetFacts.short_side`, and as `smaller_bytes` the share of a
                     record's bytes that is left
    engine_share     the engine in place of the textbook pipeline: the share that is left of all from `read` to `batch`
    seekable         JPEGs with restart markers: the native library decodes no more of them than a crop
    read             reading a record from a local file in memory, which `now` has not; `read_without_unread` leaves out
                     `DatasetFacts.unread_features`, `read_unpacked` reads a file that is not compressed
    batch            small batches from the last full cache on, and taking them; `large_batch` are those of
                     `LARGE_BATCH` images
"""

MOST_THREADS = 64
"""The threads that a fix lets wait at once, at most: with as many the storage is measured."""

LARGE_BATCH = 64
"""The number of images in a batch that is tried beside a small one."""


@dataclass(frozen=True)
class CallCosts:
    """The processor time of an image in a stage of the user's own, by the images that a call of its function gets.

    Attributes:
        one_us: The time with a call for each image, in microseconds.
        many_us: The time with a call for `IMAGES_PER_CALL` images, in microseconds for each image.
        entry: The argument of `Stages.vectorize` that makes such calls.
        same_values: Whether both gave exactly the same for the images of the sample.
    """

    one_us: float
    many_us: float
    entry: str
    same_values: bool


@dataclass(frozen=True)
class WorkerTiming:
    """A worker of a service while all workers make as many batches as they can.

    Attributes:
        address: The address, host:port.
        images_per_second: The images that it gives in a second.
        busy_fraction: The share of the time in which it makes batches; the rest it waits for the network or the
            trainer.
    """

    address: str
    images_per_second: float
    busy_fraction: float


@dataclass(frozen=True)
class ServiceUse:
    """The service that made the batches.

    Attributes:
        workers: The workers.
        local_fraction: The share of the batches that the trainer made itself (the service's `share`).
        batch_bytes: The mean size of a batch, in bytes.
        wire_bytes_per_second: The bytes of batches that came from workers during the run.
    """

    workers: tuple[WorkerTiming, ...]
    local_fraction: float
    batch_bytes: float
    wire_bytes_per_second: float

    @property
    def images_per_second(self) -> float:
        """The images per second that all workers and this host can make."""
        remote = sum(worker.images_per_second for worker in self.workers)
        return remote / (1 - self.local_fraction) if self.local_fraction < 1 else float("inf")


@dataclass(frozen=True)
class ServiceDemand:
    """The time that an image needs at each station: the cores, each stage's threads, the storage.

    Attributes:
        cores: The number of cores that this process can have; other processes may take some.
        cpu_s: The processor time of an image by stage, in seconds. "other" is the time that no stage accounts for.
        wait_s: The time of an image by stage, in seconds, in which a thread neither runs nor waits for another stage.
            It waits for files, or inside a user's function.
        threads: The number of threads that each stage can have at most. A stage that is left out is not a limit.
        passes: The stages that the threads of a stage pass through before it with the same image, by its name.
        lock_bound: The stages in which a lock lets one call run at a time.
        storage_limit: The images per second that the storage gives; None if it is not a limit.
        take_batch_s: The part of `cpu_s["other"]` in which the trainer's thread takes batches. It is the price of a
            batch, not of the images in it.
        handover_s: The part of `cpu_s["other"]` that is the same for every image, however cheap the stages are.
    """

    cores: float
    cpu_s: Mapping[str, float]
    wait_s: Mapping[str, float] = field(default_factory=dict)
    threads: Mapping[str, float] = field(default_factory=dict)
    passes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lock_bound: frozenset[str] = frozenset()
    storage_limit: float | None = None
    take_batch_s: float = 0.0
    handover_s: float = 0.0

    @property
    def cpu_limit(self) -> float:
        """The images per second that the cores allow."""
        total_s = sum(self.cpu_s.values())
        return self.cores / total_s if total_s > 0 else float("inf")

    @property
    def limit(self) -> float:
        """The images per second that all stations together allow."""
        storage = float("inf") if self.storage_limit is None else self.storage_limit
        return min(self.cpu_limit, storage, *(self.get_stage_limit(name) for name in self.threads))

    def get_stage_limit(self, name: str) -> float:
        """Returns the images per second that the threads of a stage allow.

        Where they pass through other stages too, they do most of the work, and wait for each other at the cores.
        """
        cpu_s, wait_s = self.get_service_s(name)
        if name not in self.threads or cpu_s + wait_s <= 0:
            return float("inf")
        if not self.passes.get(name) or name in self.lock_bound or not (cpu_s and wait_s):
            return self.threads[name] / (cpu_s + wait_s)
        return _compute_closed_rate(
            int(self.threads[name]), wait_s, cpu_s, self.cores * cpu_s / sum(self.cpu_s.values())
        )

    def get_service_s(self, name: str) -> tuple[float, float]:
        """Returns the processor time and the wait of an image in the threads of a stage, in seconds."""
        stages = (name,) if name in self.lock_bound else (*self.passes.get(name, ()), name)
        return sum(self.cpu_s.get(stage, 0.0) for stage in stages), sum(self.wait_s.get(stage, 0.0) for stage in stages)

    def scale(self, cpu: Mapping[str, float], wait: Mapping[str, float] | None = None) -> ServiceDemand:
        """Returns the demand with a factor for the times of some stages.

        Args:
            cpu: The factors of processor times by stage.
            wait: The factors of waits by stage; None if these stay.
        """
        cpu_s = {name: seconds * cpu.get(name, 1.0) for name, seconds in self.cpu_s.items()}
        wait_s = {name: seconds * (wait or {}).get(name, 1.0) for name, seconds in self.wait_s.items()}
        return replace(self, cpu_s=cpu_s, wait_s=wait_s)

    def widen(self, name: str, threads: float) -> ServiceDemand:
        """Returns the demand with at least this number of threads for a stage."""
        return replace(self, threads={**self.threads, name: max(threads, self.threads.get(name, 1))})

    def read_less(self, left: float) -> ServiceDemand:
        """Returns the demand with this share of the bytes to read: of the wait for them, and of the storage."""
        limit = None if self.storage_limit is None else self.storage_limit / left
        return replace(self.scale({}, {"read": left}), storage_limit=limit)

    def without_reading(self, cpu_s: Mapping[str, float]) -> ServiceDemand:
        """Returns a demand that does not read. A stage without processor time is not a limit, and waits for nothing."""
        threads = {name: count for name, count in self.threads.items() if cpu_s.get(name)}
        wait_s = {name: seconds for name, seconds in self.wait_s.items() if name != "read" and cpu_s.get(name)}
        return replace(self, cpu_s=cpu_s, wait_s=wait_s, storage_limit=None, threads=threads)


def _compute_closed_rate(threads: int, wait_s: float, cpu_s: float, cores: float) -> float:
    """Returns the images per second of threads of which each waits for one image, then computes, again and again.

    It is the mean value analysis of a closed network (M. Reiser and S. S. Lavenberg, Journal of the ACM 27(2), 1980),
    with the cores as one core that is as fast as all and a delay (A. Seidmann et al., Large Scale Systems 12, 1987).

    Args:
        threads: The number of threads.
        wait_s: The seconds that an image waits.
        cpu_s: The seconds that it computes.
        cores: The cores that the threads share.
    """
    share_s, rate, queue = cpu_s / cores, 0.0, 0.0
    for count in range(1, max(threads, 1) + 1):
        at_cores_s = share_s * (1 + queue)
        rate = count / (wait_s + max(cpu_s - share_s, 0.0) + at_cores_s)
        queue = rate * at_cores_s
    return rate


@dataclass(frozen=True)
class Profile:
    """All figures that one run measured.

    Attributes:
        step: The accelerator's side.
        stages: The stages in the order of the pipeline.
        host: The machine during the run.
        images_per_second: The images that the pipeline gave.
        first_batch_s: The seconds from the start until the first batch.
        warm_up_s: The seconds of warming up, which no figure above includes.
        config: The options that the pipeline ran with.
        dataset: The data that was read.
        option_costs: The costs of the changes that were tried. One that the config has already is not among them.
        call_costs: The costs of the user's own stages that declare `per_image`, by name; those that were tried.
        held: The memory that stages hold, the most bytes first.
        handover_us: The processor time of handing elements from stage to stage for an image, in microseconds: the
            part of the time that no stage accounts for which no cheaper stage saves. None: all of it.
        timeline: The first measured steps in a row. Time 0 is the beginning of measuring. Empty if steps are not seen
            one by one.
        fill_s: The seconds until the cache is full, if the figures are of the epoch that fills it. 0: it was
            full, or there is none.
        records_per_image: The records that are taken for an image that leaves the pipeline; 4 if a filter drops three
            of four.
        service: The service that made the batches; None if this host did. With a service `stages` has what this
            host does: it takes the batches.
    """

    step: StepTiming
    stages: tuple[StageTiming, ...]
    host: HostUse
    images_per_second: float
    first_batch_s: float
    warm_up_s: float
    config: PipelineConfig
    dataset: DatasetFacts
    option_costs: Mapping[TriedChange, float] = field(default_factory=dict)
    call_costs: Mapping[str, CallCosts] = field(default_factory=dict)
    held: tuple[Held, ...] = ()
    handover_us: float | None = None
    timeline: tuple[Step, ...] = ()
    fill_s: float = 0.0
    records_per_image: float = 1.0
    service: ServiceUse | None = None

    @property
    def cpu_limit(self) -> float:
        """The images per second that the cores which the pipeline may take would give if they did nothing else."""
        busy = self.host.budget_fraction
        return self.images_per_second / busy if busy > 0 else float("inf")

    @property
    def storage_limit(self) -> float | None:
        """The images per second that the storage gives.

        It is None if the storage was not measured, or if the pipeline has just read faster than that.
        """
        used, most = self.host.storage_bytes_per_second, self.host.storage_limit_bytes_per_second
        return most * self.images_per_second / used if most and used and most >= used else None

    @cached_property
    def demand(self) -> ServiceDemand:
        """The time that an image needs at each station."""
        host = self.host
        cpu_s = {stage.name: stage.cpu_us_per_image.median / 1e6 for stage in self.stages}
        # The kernel counts all threads. The stages' sum leaves out threads that hand over, and the trainer's own.
        other_s = max(host.cpu_fraction * host.cores / self.images_per_second - sum(cpu_s.values()), 0.0)
        cpu_s["other"] = other_s
        take_s = min(host.trainer_us_per_step / self.step.images_per_step / 1e6, other_s)
        if self.hands_over_mostly:  # the stages of the engine get whole batches
            take_s = other_s
        handover_s = other_s if self.handover_us is None else min(self.handover_us / 1e6, other_s)
        holds = {stage.name: stage.hold_us_per_image for stage in self.stages if stage.hold_us_per_image is not None}
        wait_s = {
            stage.name: max(stage.wait_us_per_image, holds.get(stage.name, 0.0) - stage.cpu_us_per_image.median) / 1e6
            for stage in self.stages
        }
        # The engine decodes an image and calls the function with it in the same thread.
        has_function = self.dataset.by_engine and {"decode", "transform"} <= set(cpu_s)
        passes: dict[str, tuple[str, ...]] = {"transform": ("decode",)} if has_function else {}
        if not self.dataset.by_engine:  # a call that waits keeps one of tf.data's threads, which all calls share
            decoding: tuple[str, ...] = tuple(name for name in ("parse", "decode", "augment") if name in cpu_s)
            waiting = [stage for stage in self.stages if stage.waits and stage.name in self.dataset.own_stages]
            passes = {stage.name: decoding for stage in waiting if stage.parallelism > 1}
        return ServiceDemand(
            cores=max(min(host.cores * (1 - host.other_cpu_fraction), host.pipeline_cores), _MIN_CORES),
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
            stages_s = sum(stage.cpu_us_per_image.median for stage in self.stages) / 1e6
            return bool(self.stages) and all_s > 2 * stages_s
        saved_us = self.option_costs.get("batch", 0.0) - self.option_costs.get("large_batch", 0.0)
        return all_s < 2 * saved_us / 1e6


@dataclass(frozen=True)
class Bottleneck:
    """The part of the pipeline, or of the machine, that limits the rate.

    Attributes:
        stage: A stage's name, or "storage", "cpu", "memory", "first_batch" or "accelerator"; with a service
            also "service" or "wire".
        reason: A sentence with the numbers that prove it.
        limit_images_per_second: The rate that it allows.
    """

    stage: str
    reason: str
    limit_images_per_second: float


class Effort(IntEnum):
    """The effort that a fix takes.

    Attributes:
        WASTE: The user's own stages change places, so that work for nothing is left out, and the trainer sees no
            difference.
        OPTION: The config changes, and the trainer sees no difference.
        VISIBLE_OPTION: The config changes, which affects the trainer, its memory or a line of the user's code.
        NEW_SHARDS: The shards are written again.
        REWRITE: The user makes a stage of their own cheaper, by how much nobody knows.
        MORE_MACHINES: Further machines make batches.
    """

    WASTE = -1
    OPTION = 0
    VISIBLE_OPTION = 1
    NEW_SHARDS = 2
    REWRITE = 3
    MORE_MACHINES = 4


@dataclass(frozen=True)
class Fix:
    """A change, and the rate that it gives.

    Attributes:
        effort: The effort that it takes.
        reason: A sentence that says why it helps.
        demand: The demand of the pipeline that has it; None if it does not raise the rate.
        changes: The options of `PipelineConfig` and their new values; empty where the data or the machine must change.
        instruction: A command or a sentence that says what to do if `changes` is empty, or besides the changes.
        action: The kind of the change.
        stage: The stage of the user's own that changes; None if there is none.
        keeps_values: Whether the trainer's input stays the same by what was measured. `--apply` does not try a fix with
            which a stage's values were found to differ.
        max_images_per_second: The rate that it cannot exceed, if `demand` does not say so.
        efficiency: The share of its bound that it reaches; None: the share that the measured pipeline reached.
        predicted_images_per_second: The predicted rate.
        predicted_idle_fraction: The predicted share of idle time; None without steps that take time.
        measured_images_per_second: The rate in turns, on top of the fixes kept before; None if it was not tried.
        measured_gain: The factor by which the rate grew from turn to turn; None if it was not tried.
        kept: Whether the gain was above the noise; None if it was not tried.
    """

    effort: Effort
    reason: str
    demand: ServiceDemand | None = None
    changes: Mapping[str, OptionValue] = field(default_factory=dict)
    instruction: str = ""
    action: FixAction = "set_option"
    stage: str | None = None
    keeps_values: bool = True
    max_images_per_second: float = float("inf")
    efficiency: float | None = None
    predicted_images_per_second: float = 0.0
    predicted_idle_fraction: float | None = 0.0
    measured_images_per_second: float | None = None
    measured_gain: Spread | None = None
    kept: bool | None = None

    @property
    def is_sure(self) -> bool:
        """Whether it changes this host or its data, was measured, and leaves the trainer's input as it is."""
        guessed = self.demand is None or self.effort is Effort.REWRITE
        return not guessed and self.action != "add_machines" and self.keeps_values


@dataclass(frozen=True)
class Combination:
    """Several fixes together.

    Attributes:
        fixes: The numbers of the fixes in the report, from 1.
        predicted_images_per_second: The predicted rate with all of them.
        predicted_idle_fraction: The predicted share of idle time with all of them; None without steps that take time.
    """

    fixes: tuple[int, ...]
    predicted_images_per_second: float
    predicted_idle_fraction: float | None


@dataclass(frozen=True)
class Shortfall:
    """The needs of an accelerator that no fix on this host satisfies.

    Attributes:
        best_images_per_second: The predicted rate with the best fixes of this host, or the measured one without any.
        stage: The stage that is too slow however many cores there are; None if there is none.
        machines: The number of machines like this one that would make the images with `tfpipe serve`, with the best
            fixes but without a cache; None if the pipeline cannot be served.
        cores: The number of cores that would do on this host, with the best fixes; None if these are enough, or if a
            stage is too slow whatever the cores.
        storage_bytes_per_second: The rate that the storage would need; None if it is fast enough, or not measured.
        cpu_us_per_image: The processor time of an image with the best fixes, in microseconds.
        affordable_cpu_us_per_image: The processor time of an image that these cores could afford.
        raw_images: Whether raw pixels in the shards would do, without any fix.
    """

    best_images_per_second: float
    stage: str | None
    machines: int | None
    cores: int | None
    storage_bytes_per_second: float | None
    cpu_us_per_image: float
    affordable_cpu_us_per_image: float
    raw_images: bool


@dataclass(frozen=True)
class Report:
    """A profile and the conclusions from it.

    Attributes:
        profile: The measured figures.
        bottleneck: The part that limits the rate.
        fixes: The changes that help, the best one first.
        combination: The fixes that give most together; None if one alone gives as much.
        shortfall: The needs of the accelerator if no fix on this host satisfies them; None if one does.
        after_images_per_second: The rate with every fix that was kept, when the last of them was tried; None if
            no fix was tried.
        price_per_day: The price of a day's idle time; None if no price per hour was given.
    """

    profile: Profile
    bottleneck: Bottleneck
    fixes: tuple[Fix, ...] = ()
    combination: Combination | None = None
    shortfall: Shortfall | None = None
    after_images_per_second: float | None = None
    price_per_day: float | None = None

    @property
    def idle_after_fixes(self) -> float:
        """The share of idle time after the fixes that were tried and kept; without any, the measured share."""
        if self.after_images_per_second is None:
            return self.profile.step.idle
        return max(1 - self.after_images_per_second / self.profile.step.required_rate, 0.0)
