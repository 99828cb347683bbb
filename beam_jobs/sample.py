"""A sample of a job's images, written for real: what it costs is measured, and what it gives can be read.

    sample = take_sample(plan, seed, 400, SHARD_IMAGES, folder)
    costs = write_sample(config, sample, output, processes)

The sample goes through the job's own `write_shard`, in as many processes as the job would have here. The same sample
can be written in several forms, one after another.
"""

import math
import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, cycle, groupby, pairwise
from typing import NamedTuple

import numpy as np

from beam_jobs.config import ShardConfig
from beam_jobs.inputs.unpack import unpack_parts
from beam_jobs.plan.image_ref import list_files
from beam_jobs.plan.plan import Plan, WrittenLines, collect, write_lines
from beam_jobs.plan.scratch import LocalScratch
from beam_jobs.plan.split_and_shard import ShardRange
from beam_jobs.process_pool import map_unordered
from beam_jobs.shards.finish_dataset import finish_dataset
from beam_jobs.shards.plan_file import make_plan_header, write_plan
from beam_jobs.shards.work_dir import PlanHeader, WorkDir, get_part_name
from beam_jobs.shards.write_shard import write_shard
from beam_jobs.storage import job_stores
from tfpipe.errors import DataError
from tfpipe.format.file_names import index_name
from tfpipe.format.record_index import decode_index
from tfpipe.storage import file_io
from tfpipe.system.host_limits import usable_cpus
from tfpipe.writer.written_shard import WrittenShard

SPLIT = "sample"
"""The one split of a sample's dataset."""

_FRESH_IMAGES = 4


@dataclass(frozen=True)
class Sample:
    """The images that were drawn from a plan.

    Attributes:
        plan: The plan of the sample, with shards of its own.
        unpacked: The images in compressed files, as `PlanHeader.unpacked`.
        unpack_s: The seconds that it would take to unpack these files whole, without the writing.
    """

    plan: Plan
    unpacked: Mapping[str, str]
    unpack_s: float


class ImageCost(NamedTuple):
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


class ShardCost(NamedTuple):
    """The measured cost of one shard of the sample.

    Attributes:
        images: The costs of its images.
        overhead_s: The seconds besides those of the images: for opening, closing, the index and the row.
    """

    images: list[ImageCost]
    overhead_s: float


def take_sample(plan: Plan, seed: int, max_images: int, shard_images: Sequence[int], folder: str) -> Sample:
    """Draws random images from all shards of a plan, and unpacks those that lie in compressed files.

    Args:
        plan: The plan of the job.
        seed: The seed of the choice.
        max_images: The number of images to draw, if there are as many.
        shard_images: The sizes of the sample's shards, in turns: small and large ones, so that a fit can tell the cost
            of a shard from the cost of its bytes.
        folder: A local folder for the unpacked images.
    """
    sample = _draw_sample(plan, seed, max_images, shard_images)
    return Sample(sample, *_unpack_sample(sample, file_io.join(folder, "unpacked")))


def write_sample(
    config: ShardConfig, sample: Sample, output: str, processes: int, *, max_s: float = math.inf, keep: bool = False
) -> list[ShardCost]:
    """Writes the shards of a sample, and returns what each has cost.

    Args:
        config: The configuration of the job, with the form of the images.
        sample: The sample.
        output: The local folder to write to.
        processes: The number of processes; more than this machine has cores are not started.
        max_s: The seconds after which no further shard is begun.
        keep: Whether the shards stay and become a whole dataset. Otherwise each is removed once it is written.

    Raises:
        DataError: A file cannot be written, a worker died, or `keep` is given and all images are bad.
    """
    work, header = WorkDir(output), make_plan_header(config, sample.plan)
    header = replace(header, unpacked=dict(sample.unpacked))
    write_plan(work, header, sample.plan)
    deadline = time.monotonic() + max_s

    def iterate_shards() -> Iterator[int]:
        for shard_index in range(len(header.shards)):
            if shard_index and time.monotonic() > deadline:
                return
            yield shard_index

    processes = min(processes, usable_cpus())
    set_up = partial(job_stores.configure, job_stores.get_options())
    shared = work, header, keep
    results = list(map_unordered(_measure_shard, iterate_shards(), processes, shared=shared, set_up=set_up))
    if keep:
        _finish(work, header, [written for _, written in results])
    return [cost for cost, _ in results]


def _finish(work: WorkDir, header: PlanHeader, shards: Sequence[WrittenShard]) -> None:
    """Makes a dataset of the shards. Any number of images may be bad: the job itself judges whether there are too many.

    Raises:
        DataError: All images are bad.
    """
    images = sum(shard.images for shard in header.shards)
    if not any(shard.info.records for shard in shards):
        bad = shards[0].left_out[0]
        raise DataError(
            f"One of {images} sampled images must be good, but all are bad, the first {bad['path']}: {bad['reason']}."
        )
    finish_dataset(work, header, shards, images)


def _draw_sample(plan: Plan, seed: int, max_images: int, shard_images: Sequence[int]) -> Plan:
    """Returns a plan of random images from all shards, in new shards."""
    ends = list(accumulate(shard.images for shard in plan.shards))
    positions = random.Random(seed).sample(range(ends[-1]), min(max_images, ends[-1]))
    shards = np.searchsorted(ends, positions, side="right").tolist()
    lines = [b""] * len(positions)
    for shard, drawn in groupby(sorted(range(len(positions)), key=shards.__getitem__), shards.__getitem__):
        of_shard = plan.read_encoded(plan.shards[shard])
        for k in drawn:
            lines[k] = of_shard[positions[k] - ends[shard]]  # negative: it counts from the end of the shard
    cuts, sizes = [0], cycle(shard_images)
    while cuts[-1] < len(lines):
        cuts.append(min(cuts[-1] + next(sizes), len(lines)))
    scratch, written = LocalScratch(), list[WrittenLines]()
    with scratch.create(get_part_name(0)) as out:
        for number, (begin, end) in enumerate(pairwise(cuts)):
            place = written[-1].shard.end if written else 0
            shard_range = ShardRange(SPLIT, number, len(cuts) - 1, begin, end)
            written.append(write_lines(out, 0, place, shard_range, lines[begin:end], 0))
    return collect(plan.listing, written, plan.class_counts, scratch)


def _unpack_sample(plan: Plan, folder: str) -> tuple[dict[str, str], float]:
    """Copies the sampled images out of compressed tar files and shards, and nothing else.

    Returns:
        `PlanHeader.unpacked`, with sparse files in `folder` that hold the images at their offsets; and the seconds
        that it would take to unpack these archives whole, without the writing.
    """
    unpacked: dict[str, str] = {}
    unpack_s = 0.0
    ranges: dict[str, set[tuple[int, int]]] = {archive: set() for archive in plan.listing.unpack}  # offsets and sizes
    for image in (image for shard in plan.shards for image in plan.read_lines(shard)):
        mask = image.mask_ref
        for file in (*list_files(image), *([] if mask is None else [mask.as_image])):
            if file.location.file in ranges:
                ranges[file.location.file].add((file.location.offset, file.size))
    os.makedirs(folder, exist_ok=True)
    for archive in filter(ranges.__getitem__, ranges):
        started = time.monotonic()
        unpacked[archive] = file_io.join(folder, f"{len(unpacked)}.tar")
        with open(unpacked[archive], "wb") as out:
            unpack_parts(plan.listing, archive, ranges[archive], out)
        unpack_s += time.monotonic() - started
    return unpacked, unpack_s * len(ranges) / max(1, len(unpacked))


# The images that this process has prepared. The first ones pay for what is loaded when it is first needed.
_num_prepared = 0


def _measure_shard(work: WorkDir, header: PlanHeader, keep: bool, shard_index: int) -> tuple[ShardCost, WrittenShard]:
    """Writes one shard of the sample, and removes it unless it is to be kept."""
    global _num_prepared
    readings: list[tuple[int, float, float, bool]] = []
    started, cpu = time.perf_counter(), time.process_time()

    def meter(source_bytes: int, wall_s: float, bad_kind: str | None) -> None:
        nonlocal cpu
        before, cpu = cpu, time.process_time()
        readings.append((source_bytes, cpu - before, wall_s, bad_kind is None))

    written = write_shard(work, header, shard_index, meter)
    overhead_s = time.perf_counter() - started - sum(wall_s for _, _, wall_s, _ in readings)
    index_bytes = file_io.read_whole(work.target(index_name(written.info.file)))
    record_bytes = iter(decode_index(index_bytes, written.info.bytes, written.info.records)[:, 1].tolist())
    costs = []
    for source_bytes, cpu_s, wall_s, is_good in readings:
        times = (float("nan"),) * 2 if _num_prepared < _FRESH_IMAGES else (cpu_s, wall_s)
        costs.append(ImageCost(source_bytes, next(record_bytes) if is_good else 0, *times))
        _num_prepared += 1
    if not keep:  # a sample of large images should not fill a disk
        file_io.remove(work.target(written.info.file))
    return ShardCost(costs, overhead_s), written
