"""Estimates what a job will write and how long it will take, from a sample that goes through the job's own code.

The sizes of all sources are known, so one line is fitted to the stored bytes by source size, one to the seconds.
"""

import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise, takewhile

import numpy as np

from beam_jobs.config import ShardConfig
from beam_jobs.plan.plan import Plan
from beam_jobs.process_pool import map_unordered
from beam_jobs.shards.output_dir import make_plan_header, write_plan
from beam_jobs.shards.work_dir import PlanHeader, WorkDir
from beam_jobs.shards.write_shard import write_shard
from tfpipe.format.file_names import index_name
from tfpipe.format.record_index import decode_index
from tfpipe.storage import file_io
from tfpipe.system.host_limits import usable_cpus

SAMPLE_IMAGES = 400
_SAMPLE_S = 20.0
_SHARD_IMAGES = (8, 32)  # alternately, so that a fit can separate the fixed seconds of a shard from those of its bytes
# Beam's import, the start of the pool and of Beam's graph, and the last files: 1 to 3 s on 2 cores, by their load.
START_UP_S = 3.0
_DATAFLOW_START_UP_S = 180.0  # an assumption: it was never measured


@dataclass(frozen=True, slots=True)
class Estimate:
    """The expected size and duration of a job."""

    sampled: int
    bad: int  # of the sampled ones
    output_bytes: float
    wall_s: float  # from the command to the manifest
    workers: int  # processes, or threads of the command for a small job


def estimate_job(config: ShardConfig, plan: Plan, planned_s: float, beam_args: Sequence[str]) -> Estimate | None:
    """Prepares a few hundred images, for twenty seconds at most, and extrapolates to the whole job.

    It returns None for files that are compressed as a whole, since no sample of their images can be read alone.
    """
    if plan.listing.unpack:
        return None
    processes, start_up_s = infer_processes(config, beam_args)
    if plan.fits_threads(config, beam_args):
        start_up_s = 0.0
    with tempfile.TemporaryDirectory(prefix="tfpipe-") as folder, file_io.explain_os_errors(f"write to {folder}"):
        sample = _draw_sample(plan, config.seed)
        header = make_plan_header(config, sample)
        work, deadline = WorkDir(file_io.join(folder, "out")), time.monotonic() + _SAMPLE_S
        write_plan(work, header, sample)
        numbers = takewhile(lambda number: not number or time.monotonic() < deadline, range(len(header.shards)))
        costs = list(map_unordered(_measure_shard, numbers, min(processes, usable_cpus()), shared=(work, header)))
    sizes = [image[:2] for images, _ in costs for image in images]
    # The first image of a shard is left out: its seconds may include the imports of the process.
    timed = [(source_bytes, wall_s) for images, _ in costs for source_bytes, _, wall_s in images[1:] or images]
    output_bytes = extrapolate(sizes, plan.num_bytes, plan.num_images)
    images_s = extrapolate(timed, plan.num_bytes, plan.num_images)
    stored = [(sum(stored_bytes for _, stored_bytes, _ in images), overhead_s) for images, overhead_s in costs]
    shards_s = extrapolate(stored, output_bytes, len(plan.shards))
    # Shards are not divided: in the last round some processes may have none.
    rounds = -(-len(plan.shards) // processes)
    return Estimate(
        sampled=len(sizes),
        bad=sum(stored_bytes == 0 for _, stored_bytes in sizes),
        output_bytes=output_bytes,
        wall_s=planned_s + start_up_s + (images_s + shards_s) * rounds / len(plan.shards),
        workers=processes,
    )


def infer_processes(config: ShardConfig, beam_args: Sequence[str]) -> tuple[int, float]:
    """Returns how many processes the job would run, here or on Dataflow, and the seconds that their start takes.

    Dataflow starts one process per core. A machine type ends with its number of cores, as in `n2-standard-4`; without
    a machine type one core is assumed. The start is assumed to take three minutes there.
    """
    options = dict(arg.removeprefix("--").split("=", 1) for arg in beam_args if arg.startswith("--") and "=" in arg)
    if options.get("runner") != "DataflowRunner":
        return config.workers or usable_cpus(), START_UP_S
    machines = options.get("max_num_workers") or options.get("num_workers") or "1"
    cores = options.get("machine_type", "").rpartition("-")[2]
    return int(machines) * (int(cores) if cores.isdecimal() else 1), _DATAFLOW_START_UP_S


def extrapolate(sample: Sequence[tuple[float, float]], total: float, count: int) -> float:
    """Fits a line to (size, value) of a sample, and returns the sum of the values of `count` items of `total` size.

    This is the regression estimator; see Cochran, Sampling Techniques, chapter 7.
    """
    sizes, values = np.array(sample, np.float64).T
    spread = sizes - sizes.mean()
    slope = float(spread @ values / (spread @ spread)) if spread.any() else 0.0
    return max(0.0, float(values.mean() + slope * (total / count - sizes.mean()))) * count


def _draw_sample(plan: Plan, seed: int) -> Plan:
    """Returns a plan of random images from all shards, in small shards of their own."""
    positions = random.Random(seed).sample(range(plan.num_images), min(SAMPLE_IMAGES, plan.num_images))
    cuts, sizes = [0], cycle(_SHARD_IMAGES)
    while cuts[-1] < len(positions):
        cuts.append(min(cuts[-1] + next(sizes), len(positions)))
    shards = [("sample", number, len(cuts) - 1, end - begin) for number, (begin, end) in enumerate(pairwise(cuts))]
    return Plan.make(plan.listing, plan.images, plan.order[positions], shards, plan.class_counts)


def _measure_shard(work: WorkDir, header: PlanHeader, shard_index: int) -> tuple[list[tuple[int, int, float]], float]:
    """Writes one shard of the sample, and removes it: a sample of large images should not fill a disk.

    Returns for each image the bytes of its source and of its record (0 for a bad image), and its seconds; and the
    seconds that the shard takes besides, for opening, closing, the index and the row about it.
    """
    readings: list[tuple[int, float, str | None]] = []
    started = time.perf_counter()
    written = write_shard(work, header, shard_index, lambda *reading: readings.append(reading))
    overhead_s = time.perf_counter() - started - sum(wall_s for _, wall_s, _ in readings)
    index_bytes = file_io.read_whole(work.result(index_name(written.info.file)))
    record_bytes = iter(decode_index(index_bytes, written.info.bytes, written.info.records)[:, 1].tolist())
    file_io.remove(work.result(written.info.file))
    return [(size, 0 if bad else next(record_bytes), wall_s) for size, wall_s, bad in readings], overhead_s
