"""A job that writes the shards of a plan: which process may take part, what is gathered, and a disk that is full."""

import errno
import pickle
import random
import shutil
import socket
from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from operator import iadd
from pathlib import Path
from unittest.mock import Mock

import pytest

from beam_jobs import shard_job
from beam_jobs.config import ShardConfig
from beam_jobs.shard_job import plan_shards
from beam_jobs.shards.job import GatheredShards, Job
from beam_jobs.shards.output_dir import open_work_dir
from beam_jobs.shards.work_dir import WorkDir
from tests.beam_jobs.images import make_photos, write_files
from tests.refusals import refusal
from tfpipe._version import __version__
from tfpipe.errors import DataError
from tfpipe.format.manifest import ShardInfo
from tfpipe.format.shard_stats import ShardStats, merge_stats
from tfpipe.images.normalize import get_codec_versions
from tfpipe.writer.written_shard import WrittenShard

HOST = socket.gethostname()
SHARE = "All workers must reach images and output by the same names: on a disk they share, or in a bucket."


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    source = write_files(tmp_path / "in", make_photos({"cat": 4}))
    config = ShardConfig(str(source), str(tmp_path / "out"), num_shards=2)
    with open_work_dir(config, plan_shards(config)) as work:
        header = work.read_header()
        yield Job(work, header.fingerprint, header.versions)


def test_it_travels_without_the_plan(job: Job) -> None:
    before = pickle.dumps(job)
    assert len(job.header.shards) == 2
    assert pickle.dumps(job) == before
    assert pickle.loads(before).header == job.header


@pytest.mark.parametrize(
    ("name", "worker_version"), [("tfpipe", __version__), ("pillow", get_codec_versions()["pillow"])]
)
def test_another_version(job: Job, name: str, worker_version: str) -> None:
    other = replace(job, versions={**job.versions, name: "0"})
    assert refusal(DataError, lambda: other.header) == (
        f"All workers must have {name} 0, as the process that planned the job has, but the one on {HOST} has "
        f"{worker_version}. Install the same versions there."
    )


def test_a_disk_that_is_not_shared_or_holds_the_plan_of_another_job(job: Job, tmp_path: Path) -> None:
    other = replace(job, work=WorkDir(str(tmp_path / "elsewhere")))
    place = tmp_path / "elsewhere" / ".tfpipe"
    message = f"The worker on {HOST} does not find the plan in {place}: No such file or directory. {SHARE}"
    assert refusal(DataError, lambda: other.header) == message
    shutil.copytree(job.work.base, tmp_path / "other" / ".tfpipe")
    other = Job(WorkDir(str(tmp_path / "other")), "f", {})
    message = f"The worker on {HOST} finds another job's plan in {tmp_path / 'other' / '.tfpipe'}. {SHARE}"
    assert refusal(DataError, lambda: other.header) == message


def describe_shard(split: str, k: int, labels: dict[int, int]) -> WrittenShard:
    stats = ShardStats()
    for label, count in labels.items():
        for _ in range(count):
            stats.add("JPEG", 10 + k, 20, label)
    file, lines = f"{split}-0000{k}-of-00003.tfrecord", [{"path": str(k)}] * k
    return WrittenShard(ShardInfo(file, stats.images, 100, "0" * 64), stats, lines, k)


def test_class_counts_are_those_of_the_split_in_any_order() -> None:
    shards = [describe_shard("a", 0, {}), describe_shard("a", 1, {0: 2, 7: 1}), describe_shard("a", 2, {7: 4})]
    shards += [describe_shard("b", k, {k: 1}) for k in range(3)]
    for seed in range(5):
        mixed = random.Random(seed).sample(shards, len(shards))
        first, second = (reduce(iadd, mixed[k::2], GatheredShards()) for k in range(2))
        gathered = iadd(first, second).list_shards()
        assert [(shard.info.file, shard.num_left_out, shard.left_out) for shard in gathered] == [
            (shard.info.file, shard.num_left_out, []) for shard in shards
        ]
        for rows, given, counted in ((gathered[:3], shards[:3], 1), (gathered[3:], shards[3:], 0)):
            assert merge_stats(shard.stats for shard in rows) == merge_stats(shard.stats for shard in given)
            assert [bool(shard.stats.labels) for shard in rows] == [k == counted for k in range(3)]


def test_a_disk_that_is_full_at_the_end_is_one_sentence(tmp_path: Path, monkeypatch) -> None:
    config = ShardConfig(str(write_files(tmp_path / "in", make_photos({"cat": 2}))), str(tmp_path / "out"), workers=1)
    full = OSError(errno.ENOSPC, "No space left on device")
    with monkeypatch.context() as patch:
        patch.setattr("beam_jobs.shards.job.finish_dataset", Mock(side_effect=full))
        message = refusal(DataError, shard_job.run, config)
    assert message == (
        f"Could not write to {tmp_path / 'out'}: No space left on device. Free some and run the same command again."
    )
    assert shard_job.run(config).kept_shards == 1
