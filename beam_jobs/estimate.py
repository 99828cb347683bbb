"""What a job will write and how long it will take, from a sample of its images that is really prepared.

The sample goes through `write_shard` in as many processes as the job would have here, into a temporary folder. What
an image's bytes and seconds have to do with the size of its source is fitted by a line, since the sizes of all
sources are known: stored bytes then are known nearly exactly where they are kept, and where they are raw pixels.
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
from beam_jobs.inputs.archive import open_unpacked
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
# Small and large ones by turns: what a shard costs besides its images then tells itself from what its bytes cost.
_BATCHES = (8, 32)
_FRESH_IMAGES = 4
_NORMAL_95 = 1.96  # standard errors on either side that hold 95 % of a normal distribution
# Beam's import, the start of the pool and of Beam's graph, and the last files: 1 to 3 s on 2 cores, by their load.
START_UP_S = 3.0
_DATAFLOW_START_UP_S = 180.0  # not measured: nothing here can start one


@dataclass(frozen=True, slots=True)
class Guess:
    """A number that is not known: `value`, and the interval that holds it 95 times in 100 by what the sample says."""

    value: float
    low: float
    high: float

    def scaled(self, factor: float, plus: float = 0.0) -> "Guess":
        """The same times a factor, and something added."""
        return Guess(*(one * factor + plus for one in (self.value, self.low, self.high)))


@dataclass(frozen=True, slots=True)
class Parallel:
    """Who does the work: so many processes, each on a core, and the seconds until they begin."""

    processes: int
    start_up_s: float = START_UP_S


@dataclass(frozen=True, slots=True)
class Estimate:
    """What is to be expected of a job.

    Attributes:
        images: All that are planned.
        sampled: So many of them were prepared.
        bad: So many of these cannot be read or stored.
        output_bytes: Of all shards.
        cpu_s: Seconds of one core for all images.
        wall_s: Of the whole job, from the command to the manifest.
        serial_s: The part of it in which no image is prepared.
        processes: How many were assumed to work side by side.
    """

    images: int
    sampled: int
    bad: int
    output_bytes: Guess
    cpu_s: Guess
    wall_s: Guess
    serial_s: float
    processes: int


def parallel_of(config: ShardConfig, beam_args: Sequence[str]) -> Parallel:
    """Who would do the work: this machine's processes, or the machines of Dataflow that were asked for.

    Dataflow starts one process a core; a machine type tells its cores by its last part, as `n2-standard-4` does, and
    is taken for one core where none is named. Its machines are taken to be there after three minutes.
    """
    options = dict(arg.removeprefix("--").split("=", 1) for arg in beam_args if arg.startswith("--") and "=" in arg)
    if options.get("runner") != "DataflowRunner":
        return Parallel(config.workers or usable_cpus())
    machines = options.get("max_num_workers") or options.get("num_workers") or "1"
    cores = options.get("machine_type", "").rpartition("-")[2]
    return Parallel(int(machines) * (int(cores) if cores.isdecimal() else 1), _DATAFLOW_START_UP_S)


class _Measured(NamedTuple):
    """One image of the sample; `stored_bytes` is 0 for a bad one, a time NaN where it does not count."""

    source_bytes: int
    stored_bytes: int
    cpu_s: float
    wall_s: float


class _Batch(NamedTuple):
    images: list[_Measured]
    rest_s: float
    """Seconds besides those of the images: opening, closing, the index and the row."""


def estimate_job(config: ShardConfig, plan: Plan, planned_s: float, parallel: Parallel) -> Estimate:
    """Prepares some hundred images, for twenty seconds at most, and concludes from them to all.

    Args:
        config: What was planned.
        plan: All of it.
        planned_s: How long listing and planning took.
        parallel: Who will do the work.

    Raises:
        DataError: The temporary folder cannot be written, or a worker died.
    """
    with tempfile.TemporaryDirectory(prefix="tfpipe-") as folder, filesystem.explain_os_errors(f"write to {folder}"):
        started = time.monotonic()
        sample = _sample(plan, config.seed)
        work, header = WorkDir(filesystem.join(folder, "out")), make_plan_header(config, sample)
        unpacked, unpack_s = _unpack_sample(header, sample, filesystem.join(folder, "unpacked"))
        header = replace(header, unpacked=unpacked)
        write_plan(work, header, sample)
        # Each line is made twice, for the fingerprint and for the file, in the job as here.
        lines_s = (time.monotonic() - started - unpack_s) / sample.num_images * plan.num_images
        batches = list(_measure_all(work, header, min(parallel.processes, usable_cpus())))
    return _conclude(plan, batches, planned_s + lines_s + unpack_s, parallel)


def _sample(plan: Plan, seed: int) -> Plan:
    """A plan of some images of all shards, in shards that no name tells."""
    bounds = list(accumulate(len(shard.images) for shard in plan.shards))
    wanted = random.Random(seed).sample(range(bounds[-1]), min(SAMPLE_IMAGES, bounds[-1]))
    which = np.searchsorted(bounds, wanted, side="right").tolist()
    images = np.array(
        [plan.shards[k].images[at - bounds[k]] for k, at in zip(which, wanted, strict=True)], np.int64
    )  # a shard ends at its bound, so the index counts from its end
    cuts, sizes = [0], cycle(_BATCHES)
    while cuts[-1] < len(images):
        cuts.append(min(cuts[-1] + next(sizes), len(images)))
    shards = [
        ShardPlan("sample", k, len(cuts) - 1, images[begin:end], 0) for k, (begin, end) in enumerate(pairwise(cuts))
    ]
    return replace(plan, shards=tuple(shards))


def _unpack_sample(header: PlanHeader, plan: Plan, folder: str) -> tuple[dict[str, str], float]:
    """Takes the planned images out of compressed tar files, and nothing else.

    Returns:
        `PlanHeader.unpacked`, with files in `folder` that have holes, so that the images stand at their places; and
        the seconds that unpacking these archives whole would take, without the writing.
    """
    unpacked: dict[str, str] = {}
    seconds = 0.0
    places: dict[str, set[tuple[int, int]]] = {location: set() for location in plan.listing.unpack}
    for image in (image for shard in plan.shards for image in plan.lines(shard)):
        if image.location.file in places:
            places[image.location.file].add((image.location.offset, image.size))
    os.makedirs(folder, exist_ok=True)
    for location in filter(places.__getitem__, places):
        started = time.monotonic()
        unpacked[location] = filesystem.join(folder, f"{len(unpacked)}.tar")
        with open_unpacked(filesystem.join(header.root, location)) as tar, open(unpacked[location], "wb") as out:
            for offset, size in sorted(places[location]):
                tar.seek(offset)
                out.seek(offset)
                out.write(tar.read(size))
            whole = plan.listing.images.get_end(location)
            seconds += (time.monotonic() - started) * whole / max(1, tar.tell())
    return unpacked, seconds * len(places) / max(1, len(unpacked))


def _measure_all(work: WorkDir, header: PlanHeader, processes: int) -> Iterator[_Batch]:
    until = time.monotonic() + _SAMPLE_S

    def batches() -> Iterator[int]:
        for k in range(len(header.shards)):
            if k and time.monotonic() > until:
                return
            yield k

    set_up = partial(filesystem.configure, filesystem.configured())
    yield from map_unordered(_measure, batches(), processes, shared=(work, header), set_up=set_up)


_done_before = 0  # images in this process: the first ones pay for what is loaded when it is first needed


def _measure(work: WorkDir, header: PlanHeader, shard: int) -> _Batch:
    """Writes one batch."""
    global _done_before
    found: list[tuple[int, float, float, bool]] = []
    started, cpu = time.perf_counter(), time.process_time()

    def meter(source_bytes: int, wall_s: float, kind: str | None) -> None:
        nonlocal cpu
        before, cpu = cpu, time.process_time()
        found.append((source_bytes, cpu - before, wall_s, kind is None))

    row = write_shard(work, header, shard, meter)
    rest_s = time.perf_counter() - started - sum(wall_s for _, _, wall_s, _ in found)
    index = decode_index(filesystem.read_bytes(work.target(index_name(row.file))), row.bytes, row.records)
    stored = iter(index[:, 1].tolist())
    images = []
    for source_bytes, cpu_s, wall_s, good in found:
        fresh = _done_before < _FRESH_IMAGES
        times = (float("nan"),) * 2 if fresh else (cpu_s, wall_s)
        images.append(_Measured(source_bytes, next(stored) if good else 0, *times))
        _done_before += 1
    filesystem.remove(work.target(row.file))  # the sample of large images should not fill a disk
    return _Batch(images, rest_s)


def _conclude(plan: Plan, batches: Sequence[_Batch], serial_s: float, parallel: Parallel) -> Estimate:
    measured = np.array([image for batch in batches for image in batch.images], np.float64)
    total = plan.num_images, float(plan.num_bytes)
    sizes, stored = measured[:, 0], measured[:, 1]
    output_bytes = _total(sizes, stored, *total)
    timed = measured[~np.isnan(measured[:, 2])] if not np.isnan(measured[:, 2]).all() else np.nan_to_num(measured)
    cpu_s, busy_s = (_total(timed[:, 0], timed[:, k], *total) for k in (2, 3))
    per_shard_s, per_byte_s = _rest(batches)
    busy_s = busy_s.scaled(1, len(plan.shards) * per_shard_s + output_bytes.value * per_byte_s)
    # Shards are whole: the last round may leave processes without one.
    rounds = -(-len(plan.shards) // parallel.processes)
    serial_s += parallel.start_up_s
    return Estimate(
        images=plan.num_images,
        sampled=len(measured),
        bad=int((stored == 0).sum()),
        output_bytes=output_bytes,
        cpu_s=cpu_s,
        wall_s=busy_s.scaled(rounds / len(plan.shards), serial_s),
        serial_s=serial_s,
        processes=parallel.processes,
    )


def _total(sizes: NDArray[np.float64], values: NDArray[np.float64], num_images: int, num_bytes: float) -> Guess:
    """The sum over all images of what is known of some: the regression estimator, by the sizes of the sources.

    See Cochran, Sampling Techniques, chapter 7. The interval leaves out what is wrong with the sample itself, such as
    another load of the machine.
    """
    spread = sizes - sizes.mean()
    slope = float(spread @ values / (spread @ spread)) if spread.any() else 0.0
    residuals = values - values.mean() - slope * spread
    mean = values.mean() + slope * (num_bytes / num_images - sizes.mean())
    error = float(np.sqrt((residuals @ residuals) / max(len(values) - 2, 1) / len(values)))
    error *= np.sqrt(max(0.0, 1 - len(values) / num_images))
    value = max(0.0, float(mean)) * num_images
    margin = _NORMAL_95 * error * num_images
    return Guess(value, max(0.0, value - margin), value + margin)


def _rest(batches: Sequence[_Batch]) -> tuple[float, float]:
    """Seconds that a shard costs besides its images: for each one, and for each byte."""
    sizes = np.array([sum(image.stored_bytes for image in batch.images) for batch in batches], np.float64)
    rest_s = np.array([batch.rest_s for batch in batches])
    spread = sizes - sizes.mean()
    per_byte_s = max(0.0, float(spread @ rest_s / (spread @ spread))) if spread.any() else 0.0
    return max(0.0, float(rest_s.mean() - per_byte_s * sizes.mean())), per_byte_s
