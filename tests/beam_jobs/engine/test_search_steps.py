"""The search for duplicates by tasks: the list that one process would write."""

from __future__ import annotations

from pathlib import Path

import pytest

from beam_jobs.config import ShardConfig
from beam_jobs.engine import search_steps
from beam_jobs.engine.search_steps import (
    count_search_tasks,
    gather_classes,
    gather_duplicates,
    save_shard,
    search_bucket,
)
from beam_jobs.list_and_plan import plan_in_process
from beam_jobs.runners.base import ShardObserver
from beam_jobs.shards.duplicates import find_duplicates
from beam_jobs.shards.output_dir import open_work_dir
from beam_jobs.shards.write_shard import write_shard
from tests.beam_jobs.images import make_jpeg, write_files
from tfpipe.format.shard_stats import merge_stats

TASKS = 3


@pytest.mark.parametrize("kinds", [4, 100])
def test_tasks_find_what_one_process_finds(kinds: int, tmp_path: Path) -> None:
    images = {f"{'cat' if i % 3 else 'dog'}/{i:02d}.jpg": make_jpeg(i % kinds) for i in range(14)}
    images |= {"cat/bad.jpg": b"bad"}
    config = ShardConfig(
        str(write_files(tmp_path / "in", images)),
        str(tmp_path / "out"),
        num_shards=3,
        splits={"train": 0.6, "test": 0.4},
    )
    with open_work_dir(config, plan_in_process(config, ShardObserver())) as work:
        header = work.read_header()
        shards = [write_shard(work, header, number) for number in range(len(header.shards))]
        stripped = [save_shard(work, shard, TASKS) for shard in reversed(shards)]
        for bucket in reversed(range(TASKS)):
            search_bucket(work, header, bucket, TASKS)
        duplicates, lines = gather_duplicates(work, header, shards, TASKS)
        assert (duplicates, lines) == find_duplicates(work, header, shards)
        counted = gather_classes(work, header, stripped, TASKS)
    assert lines.count(b"\n") == (4 if kinds == 4 else 0)
    assert not any(shard.stats.labels for shard in stripped)
    for split in ("train", "test"):
        expected, found = (
            merge_stats(shard.stats for shard in some if shard.file.startswith(split)) for some in (shards, counted)
        )
        assert found == expected
        assert found.labels


def test_few_images_are_searched_by_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (count_search_tasks(0), count_search_tasks(2_000_000), count_search_tasks(2_000_001)) == (0, 0, 2)
    assert count_search_tasks(1_000_000_000) == 500
    monkeypatch.setattr(search_steps, "_RECORDS_PER_TASK", 3)
    assert count_search_tasks(7) == 3
