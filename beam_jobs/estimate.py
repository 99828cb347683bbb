"""Estimates what a job will write and how long it will take, from a sample of its images that it really prepares.

The sample is written into a temporary folder, see `sample.py`. The sizes of all sources are known, so a line is fitted
to each image's stored bytes and seconds by the size of its source. The estimate of the stored bytes is nearly exact if
images are kept as they are or stored as raw pixels.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from beam_jobs.config import ShardConfig
from beam_jobs.plan.plan import Plan
from beam_jobs.sample import Sample, ShardCost, take_sample, write_sample
from tfpipe.storage import file_io
from tfpipe.system.host_limits import usable_cpus

SAMPLE_IMAGES = 400
_SAMPLE_S = 20.0
_SHARD_IMAGES = (8, 32)
_NORMAL_95 = 1.96  # standard errors on either side that hold 95 % of a normal distribution
# Beam's import, the start of the pool and of Beam's graph, and the last files: 1 to 3 s on 2 cores, by their load.
START_UP_S = 3.0
_DATAFLOW_START_UP_S = 180.0  # an assumption: it was never measured


@dataclass(frozen=True, slots=True)
class ConfidenceInterval:
    """An estimated number and its 95 % confidence interval, judged from the sample alone.

    Attributes:
        value: The estimate.
        low: The lower end of the interval.
        high: The upper end of the interval.
    """

    value: float
    low: float
    high: float

    def scale(self, factor: float, plus: float = 0.0) -> "ConfidenceInterval":
        """Returns the interval times a factor, plus a constant."""
        return ConfidenceInterval(*(number * factor + plus for number in (self.value, self.low, self.high)))


@dataclass(frozen=True, slots=True)
class Parallelism:
    """The processes that do the work.

    Attributes:
        processes: The number of processes, each on its own core.
        start_up_s: The seconds until they begin. 3 s were measured on a machine with 2 busy cores.
    """

    processes: int
    start_up_s: float = START_UP_S


@dataclass(frozen=True, slots=True)
class Estimate:
    """The expected size and duration of a job.

    Attributes:
        images: The number of planned images.
        sampled: The number of images that were prepared for the estimate.
        bad: The number of sampled images that cannot be read or stored.
        output_bytes: The bytes of all shards.
        cpu_s: The seconds of one core for all images.
        wall_s: The seconds of the whole job, from the command to the manifest.
        serial_s: The part of `wall_s` in which no image is prepared.
        processes: The number of processes that were assumed to work side by side.
    """

    images: int
    sampled: int
    bad: int
    output_bytes: ConfidenceInterval
    cpu_s: ConfidenceInterval
    wall_s: ConfidenceInterval
    serial_s: float
    processes: int


def infer_parallelism(config: ShardConfig, beam_args: Sequence[str]) -> Parallelism:
    """Returns the processes that the job would have: those of this machine, or those of Dataflow's machines.

    Dataflow starts one process per core. The last part of a machine type is its number of cores, as in
    `n2-standard-4`; without a machine type one core is assumed, and three minutes until the machines are there.
    """
    options = dict(arg.removeprefix("--").split("=", 1) for arg in beam_args if arg.startswith("--") and "=" in arg)
    if options.get("runner") != "DataflowRunner":
        return Parallelism(config.workers or usable_cpus())
    machines = options.get("max_num_workers") or options.get("num_workers") or "1"
    cores = options.get("machine_type", "").rpartition("-")[2]
    return Parallelism(int(machines) * (int(cores) if cores.isdecimal() else 1), _DATAFLOW_START_UP_S)


def estimate_job(config: ShardConfig, plan: Plan, planned_s: float, parallelism: Parallelism) -> Estimate:
    """Prepares a few hundred images, for twenty seconds at most, and extrapolates to the whole job.

    Raises:
        DataError: The temporary folder cannot be written, or a worker died.
    """
    with tempfile.TemporaryDirectory(prefix="tfpipe-") as folder, file_io.explain_os_errors(f"write to {folder}"):
        sample = take_sample(plan, config.seed, SAMPLE_IMAGES, _SHARD_IMAGES, folder)
        output = file_io.join(folder, "out")
        costs = write_sample(config, sample, output, parallelism.processes, max_s=_SAMPLE_S)
    return estimate_from_sample(plan, sample, costs, planned_s, parallelism)


def estimate_from_sample(
    plan: Plan, sample: Sample, costs: Sequence[ShardCost], planned_s: float, parallelism: Parallelism
) -> Estimate:
    """Estimates the whole job from a sample that was written.

    Args:
        plan: The plan of the job.
        sample: The sample.
        costs: The costs of its shards.
        planned_s: The seconds that listing and planning took.
        parallelism: The processes that will do the work.
    """
    image_costs = np.array([image for shard in costs for image in shard.images], np.float64)
    totals = plan.num_images, float(plan.num_bytes)
    sizes, stored_bytes, cpu_seconds = image_costs[:, 0], image_costs[:, 1], image_costs[:, 2]
    output_bytes = _estimate_total(sizes, stored_bytes, *totals)
    is_fresh = np.isnan(cpu_seconds)
    timed = np.nan_to_num(image_costs) if is_fresh.all() else image_costs[~is_fresh]
    cpu_s, busy_s = (_estimate_total(timed[:, 0], timed[:, k], *totals) for k in (2, 3))
    per_shard_s, per_byte_s = _fit_overhead(costs)
    busy_s = busy_s.scale(1, len(plan.shards) * per_shard_s + output_bytes.value * per_byte_s)
    # Shards are not divided: in the last round some processes may have none.
    rounds = -(-len(plan.shards) // parallelism.processes)
    serial_s = planned_s + sample.unpack_s + parallelism.start_up_s
    return Estimate(
        images=plan.num_images,
        sampled=len(image_costs),
        bad=int((stored_bytes == 0).sum()),
        output_bytes=output_bytes,
        cpu_s=cpu_s,
        wall_s=busy_s.scale(rounds / len(plan.shards), serial_s),
        serial_s=serial_s,
        processes=parallelism.processes,
    )


def _estimate_total(
    sizes: NDArray[np.float64], values: NDArray[np.float64], num_images: int, num_bytes: float
) -> ConfidenceInterval:
    """Estimates the sum of a value over all images from the values of the sample.

    This is the regression estimator by the sizes of the sources; see Cochran, Sampling Techniques, chapter 7. The
    interval does not cover faults of the sample itself, such as another load of the machine.
    """
    spread = sizes - sizes.mean()
    slope = float(spread @ values / (spread @ spread)) if spread.any() else 0.0
    residuals = values - values.mean() - slope * spread
    mean = values.mean() + slope * (num_bytes / num_images - sizes.mean())
    error = float(np.sqrt((residuals @ residuals) / max(len(values) - 2, 1) / len(values)))
    error *= np.sqrt(max(0.0, 1 - len(values) / num_images))
    value = max(0.0, float(mean)) * num_images
    margin = _NORMAL_95 * error * num_images
    return ConfidenceInterval(value, max(0.0, value - margin), value + margin)


def _fit_overhead(costs: Sequence[ShardCost]) -> tuple[float, float]:
    """Returns the seconds of overhead for each shard, and those for each of its bytes."""
    sizes = np.array([sum(image.stored_bytes for image in shard.images) for shard in costs], np.float64)
    overheads_s = np.array([shard.overhead_s for shard in costs])
    spread = sizes - sizes.mean()
    per_byte_s = max(0.0, float(spread @ overheads_s / (spread @ spread))) if spread.any() else 0.0
    return max(0.0, float(overheads_s.mean() - per_byte_s * sizes.mean())), per_byte_s
