"""The end of a large job by tasks: the lists and the class counts that one process would write."""

import random
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from beam_jobs.config import ShardConfig
from beam_jobs.make_plan import plan_shards
from beam_jobs.plan import split_and_shard
from beam_jobs.plan.scratch import LocalScratch, Scratch
from beam_jobs.plan.step import add_results
from beam_jobs.shards import search_steps
from beam_jobs.shards.finish_dataset import finish_dataset, list_end_steps, write_lists
from beam_jobs.shards.output_dir import open_work_dir
from beam_jobs.shards.search_steps import (
    GatheredShards,
    OpenJob,
    count_search_tasks,
    load_shards,
    save_rows,
    save_shard,
)
from beam_jobs.shards.work_dir import WorkDir
from beam_jobs.shards.write_shard import write_shard
from tests.beam_jobs.datasets import make_dataset, read_tree
from tests.beam_jobs.images import make_jpeg, write_files
from tfpipe.format import file_names
from tfpipe.format.manifest import ShardInfo
from tfpipe.format.shard_stats import ShardStats, merge_stats
from tfpipe.storage import file_io
from tfpipe.writer.written_shard import WrittenShard

TASKS = 3
SPLITS = {"train": 0.6, "test": 0.4}


def write_images(folder: Path, kinds: int) -> Path:
    images = {f"{'cat' if i % 3 else 'dog'}/{i:02d}.jpg": make_jpeg(i % kinds) for i in range(14)}
    return write_files(folder, images | {f"cat/bad{i}.jpg": b"bad %d" % i for i in range(4)})


def run_tasks(end: OpenJob) -> None:
    for step in list_end_steps():
        results = [step.run(end, number) for number in reversed(range(step.count_tasks(end)))]
        step.finish(end, reduce(add_results, results, None))


def read_lists(work: WorkDir) -> dict[str, bytes]:
    return {
        str(path.relative_to(work.output)): path.read_bytes()
        for path in Path(work.output).rglob("*.jsonl")
        if ".tfpipe" not in path.parts
    }


@pytest.fixture
def config(tmp_path: Path, request) -> ShardConfig:
    source = write_images(tmp_path / "in", request.param)
    return ShardConfig(str(source), str(tmp_path / "out"), num_shards=5, splits=SPLITS, max_bad=4)


@pytest.fixture
def end(config: ShardConfig) -> Iterator[tuple[OpenJob, list[WrittenShard]]]:
    with open_work_dir(config, plan_shards(config)) as work:
        header = work.read_header()
        shards = [write_shard(work, header, number) for number in range(len(header.shards))]
        yield OpenJob(work, header, TASKS, Scratch(work.path("end"))), shards


@pytest.mark.parametrize("part_bytes", [file_names.LIST_PART_BYTES, 300, 50])
@pytest.mark.parametrize("piece_lines", [250_000, 1])
@pytest.mark.parametrize("config", [1, 4, 100], indirect=True)
def test_tasks_write_what_one_process_writes(end, piece_lines, part_bytes, monkeypatch):
    job, shards = end
    monkeypatch.setattr(file_names, "LIST_PART_BYTES", part_bytes)
    monkeypatch.setattr(split_and_shard, "PART_IMAGES", piece_lines)
    one = OpenJob(job.work, job.header, 1, LocalScratch())
    save_rows(one, shards)
    run_tasks(one)
    duplicates = write_lists(one)
    expected = read_lists(job.work)
    for name in expected:
        file_io.remove(job.work.target(name))
    file_io.write_file(job.work.target("duplicates.00500.jsonl"), b"of an earlier run", makes_folders=True)

    save_rows(job, [save_shard(job, shard) for shard in reversed(shards)])
    run_tasks(job)
    assert write_lists(job) == duplicates
    assert read_lists(job.work) == expected
    assert ("quarantine/quarantined.00001.jsonl" in expected) == (part_bytes < 400)
    for split in SPLITS:
        counts, counted = (
            merge_stats(shard.stats for shard in some if shard.info.file.startswith(split))
            for some in (shards, load_shards(job))
        )
        assert counted == counts
        assert counted.labels


@pytest.mark.parametrize("config", [4], indirect=True)
def test_shards_travel_without_the_classes_that_tasks_count(end: tuple[OpenJob, list[WrittenShard]]) -> None:
    job, shards = end
    assert any(shard.stats.labels for shard in shards)
    assert not any(save_shard(job, shard).stats.labels for shard in shards)


@pytest.mark.parametrize("config", [4], indirect=True)
def test_a_run_that_was_killed_between_two_parts_goes_on(config: ShardConfig, tmp_path: Path, monkeypatch) -> None:
    """Whatever lists were written when it ended, the next run writes those of an undisturbed one."""
    monkeypatch.setattr(file_names, "LIST_PART_BYTES", 300)
    make_dataset(Path(config.input), tmp_path / "straight", num_shards=5, splits=SPLITS, max_bad=4)
    create = file_io.create

    def run(last_part: int | None) -> None:
        parts: list[str] = []

        def crash(path: str, temporary: str | None = None, **options: Any) -> Any:
            if path.endswith(".jsonl"):
                parts.append(path)
                if len(parts) - 1 == last_part:
                    raise KeyboardInterrupt
            return create(path, temporary, **options)

        with open_work_dir(config, plan_shards(config)) as work:
            header = work.read_header()
            job = OpenJob(work, header, TASKS, Scratch(work.path("end")))
            written = (write_shard(work, header, number) for number in range(len(header.shards)))
            save_rows(job, [save_shard(job, shard) for shard in written])
            run_tasks(job)
            with monkeypatch.context() as patch:
                patch.setattr(file_io, "create", crash)
                finish_dataset(work, header, load_shards(job), 4, job)

    for last_part in (0, 1, 3):
        with pytest.raises(KeyboardInterrupt):
            run(last_part)
        assert not (tmp_path / "out" / "manifest.json").exists()
    run(None)
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "straight")
    assert len(list((tmp_path / "out").rglob("*.jsonl"))) > 4


def test_few_images_are_searched_by_one_process(monkeypatch) -> None:
    assert (count_search_tasks(0), count_search_tasks(2_000_000), count_search_tasks(2_000_001)) == (0, 0, 2)
    assert count_search_tasks(1_000_000_000) == 500
    monkeypatch.setattr(search_steps, "_RECORDS_PER_TASK", 3)
    assert count_search_tasks(7) == 3


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
        random.Random(seed).shuffle(shards)
        first, second = GatheredShards(), GatheredShards()
        for shard in shards[::2]:
            first += shard
        for shard in shards[1::2]:
            second += shard
        first += second
        gathered = first.list_shards()
        assert [shard.info.file for shard in gathered] == sorted(shard.info.file for shard in shards)
        for split in "ab":
            given = [shard for shard in shards if shard.info.file.startswith(split)]
            rows = [shard for shard in gathered if shard.info.file.startswith(split)]
            assert merge_stats(shard.stats for shard in rows) == merge_stats(shard.stats for shard in given)
            assert [bool(shard.stats.labels) for shard in rows if shard.info.records] == [True] + [False] * (
                sum(shard.info.records > 0 for shard in given) - 1
            )
        assert [(shard.num_left_out, shard.left_out) for shard in gathered] == [(k, []) for k in (0, 1, 2) * 2]
