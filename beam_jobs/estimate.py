"""Estimates what a job will write and how long it will take, from a sample of its images that it really prepares.

The sample goes through `write_shard` into a temporary folder, in as many processes as the job would have here. The
sizes of all sources are known, so a line is fitted to each image's stored bytes and seconds by the size of its source.
The estimate of the stored bytes is nearly exact if images are kept as they are or stored as raw pixels.
"""

import os
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, cycle, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from beam_jobs.config import ShardConfig
from beam_jobs.inputs.unpack import unpack_parts
from beam_jobs.plan.split_and_shard import Plan, ShardPlan
from beam_jobs.process_pool import map_unordered
from beam_jobs.shards.plan_file import make_plan_header, write_plan
from beam_jobs.shards.work_dir import PlanHeader, WorkDir
from beam_jobs.shards.write_shard import write_shard
from beam_jobs.storage import filesystem
from tfpipe.format.file_names import index_name
from tfpipe.format.record_index import decode_index
from tfpipe.system.host_limits import usable_cpus

SAMPLE_IMAGES = 400
_SAMPLE_S = 20.0
# Small and large shards in turn, so that a fit can tell the cost of a shard from the cost of its bytes.
_SHARD_IMAGES = (8, 32)
_FRESH_IMAGES = 4
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


class _ImageCost(NamedTuple):
    """The measured cost of one sampled image.

    Attributes:
        source_bytes: The bytes of the source.
        stored_bytes: The bytes of the record; 0 for a bad image.
        cpu_s: The seconds of a core; NaN if they must not count.
        wall_s: The seconds that passed; NaN if they must not count.
    """

    source_bytes: int
    stored_bytes: int
    cpu_s: float
    wall_s: float


class _ShardCost(NamedTuple):
    """The measured cost of one shard of the sample.

    Attributes:
        images: The costs of its images.
        overhead_s: The seconds besides those of the images: for opening, closing, the index and the row.
    """

    images: list[_ImageCost]
    overhead_s: float


def estimate_job(config: ShardConfig, plan: Plan, planned_s: float, parallelism: Parallelism) -> Estimate:
    """Prepares a few hundred images, for twenty seconds at most, and extrapolates to the whole job.

    Args:
        config: The configuration of the job.
        plan: The plan of the job.
        planned_s: The seconds that listing and planning took.
        parallelism: The processes that will do the work.

    Raises:
        DataError: The temporary folder cannot be written, or a worker died.
    """
    with tempfile.TemporaryDirectory(prefix="tfpipe-") as folder, filesystem.explain_os_errors(f"write to {folder}"):
        started = time.monotonic()
        sample = _draw_sample(plan, config.seed)
        work, header = WorkDir(filesystem.join(folder, "out")), make_plan_header(config, sample)
        unpacked, unpack_s = _unpack_sample(header, sample, filesystem.join(folder, "unpacked"))
        header = replace(header, unpacked=unpacked)
        write_plan(work, header, sample)
        # The job makes each line twice, for the fingerprint and for the file, and so does this sample.
        lines_s = (time.monotonic() - started - unpack_s) / sample.num_images * plan.num_images
        costs = list(_measure_shards(work, header, min(parallelism.processes, usable_cpus())))
    return _extrapolate(plan, costs, planned_s + lines_s + unpack_s, parallelism)


def _draw_sample(plan: Plan, seed: int) -> Plan:
    """Returns a plan of random images from all shards, in new shards."""
    ends = list(accumulate(len(shard.images) for shard in plan.shards))
    positions = random.Random(seed).sample(range(ends[-1]), min(SAMPLE_IMAGES, ends[-1]))
    shard_indices = np.searchsorted(ends, positions, side="right").tolist()
    images = np.array(
        # The difference is negative: it counts from the end of the shard.
        [plan.shards[k].images[position - ends[k]] for k, position in zip(shard_indices, positions, strict=True)],
        np.int64,
    )
    cuts, sizes = [0], cycle(_SHARD_IMAGES)
    while cuts[-1] < len(images):
        cuts.append(min(cuts[-1] + next(sizes), len(images)))
    shards = [
        ShardPlan("sample", k, len(cuts) - 1, images[begin:end], 0) for k, (begin, end) in enumerate(pairwise(cuts))
    ]
    return replace(plan, shards=tuple(shards))


def _unpack_sample(header: PlanHeader, plan: Plan, folder: str) -> tuple[dict[str, str], float]:
    """Copies the sampled images out of compressed tar files and shards, and nothing else.

    Returns:
        `PlanHeader.unpacked`, with sparse files in `folder` that hold the images at their offsets; and the seconds
        that it would take to unpack these archives whole, without the writing.
    """
    unpacked: dict[str, str] = {}
    unpack_s = 0.0
    ranges: dict[str, set[tuple[int, int]]] = {archive: set() for archive in plan.listing.unpack}  # offsets and sizes
    for image in (image for shard in plan.shards for image in plan.lines(shard)):
        if image.location.file in ranges:
            ranges[image.location.file].add((image.location.offset, image.size))
    os.makedirs(folder, exist_ok=True)
    for archive in filter(ranges.__getitem__, ranges):
        started = time.monotonic()
        unpacked[archive] = filesystem.join(folder, f"{len(unpacked)}.tar")
        with open(unpacked[archive], "wb") as out:
            end = unpack_parts(plan.listing, archive, ranges[archive], out)
        whole_bytes = plan.listing.images.get_end(archive)
        unpack_s += (time.monotonic() - started) * whole_bytes / max(1, end)
    return unpacked, unpack_s * len(ranges) / max(1, len(unpacked))


def _measure_shards(work: WorkDir, header: PlanHeader, processes: int) -> Iterator[_ShardCost]:
    """Yields the costs of the sample's shards, until the time is up."""
    deadline = time.monotonic() + _SAMPLE_S

    def iterate_shards() -> Iterator[int]:
        for shard_index in range(len(header.shards)):
            if shard_index and time.monotonic() > deadline:
                return
            yield shard_index

    set_up = partial(filesystem.configure, filesystem.get_options())
    yield from map_unordered(_measure_shard, iterate_shards(), processes, shared=(work, header), set_up=set_up)


# The images that this process has prepared. The first ones pay for what is loaded when it is first needed.
_num_prepared = 0


def _measure_shard(work: WorkDir, header: PlanHeader, shard_index: int) -> _ShardCost:
    """Writes one shard of the sample, and removes it."""
    global _num_prepared
    readings: list[tuple[int, float, float, bool]] = []
    started, cpu = time.perf_counter(), time.process_time()

    def meter(source_bytes: int, wall_s: float, bad_kind: str | None) -> None:
        nonlocal cpu
        before, cpu = cpu, time.process_time()
        readings.append((source_bytes, cpu - before, wall_s, bad_kind is None))

    written = write_shard(work, header, shard_index, meter)
    overhead_s = time.perf_counter() - started - sum(wall_s for _, _, wall_s, _ in readings)
    index_bytes = filesystem.read_bytes(work.target(index_name(written.file)))
    record_bytes = iter(decode_index(index_bytes, written.bytes, written.records)[:, 1].tolist())
    costs = []
    for source_bytes, cpu_s, wall_s, is_good in readings:
        times = (float("nan"),) * 2 if _num_prepared < _FRESH_IMAGES else (cpu_s, wall_s)
        costs.append(_ImageCost(source_bytes, next(record_bytes) if is_good else 0, *times))
        _num_prepared += 1
    filesystem.remove(work.target(written.file))  # a sample of large images should not fill a disk
    return _ShardCost(costs, overhead_s)


def _extrapolate(plan: Plan, costs: Sequence[_ShardCost], serial_s: float, parallelism: Parallelism) -> Estimate:
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
    serial_s += parallelism.start_up_s
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

    Args:
        sizes: The size of each sampled image's source in bytes.
        values: The value of each sampled image.
        num_images: The number of all images.
        num_bytes: The bytes of all sources.
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


def _fit_overhead(costs: Sequence[_ShardCost]) -> tuple[float, float]:
    """Returns the seconds of overhead for each shard, and those for each of its bytes."""
    sizes = np.array([sum(image.stored_bytes for image in shard.images) for shard in costs], np.float64)
    overheads_s = np.array([shard.overhead_s for shard in costs])
    spread = sizes - sizes.mean()
    per_byte_s = max(0.0, float(spread @ overheads_s / (spread @ spread))) if spread.any() else 0.0
    return max(0.0, float(overheads_s.mean() - per_byte_s * sizes.mean())), per_byte_s
