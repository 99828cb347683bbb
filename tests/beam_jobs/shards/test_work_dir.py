"""The working folder: its paths, the plan's header, and the notes about finished shards."""

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from beam_jobs.shards.work_dir import PlanHeader, PlannedShard, WorkDir
from tfpipe.errors import FormatError
from tfpipe.format.manifest import ShardInfo
from tfpipe.format.shard_stats import ShardStats
from tfpipe.writer.written_shard import WrittenShard

SHARDS = (PlannedShard("train", 0, 2, 3, 0, 10), PlannedShard("train", 1, 2, 2, 10, 20))


@pytest.fixture
def work(tmp_path: Path) -> WorkDir:
    return WorkDir(str(tmp_path))


@pytest.fixture
def written() -> WrittenShard:
    stats = ShardStats()
    stats.add("JPEG", 20, 30, label=1)
    stats.add("PNG", 10, 40, label=0)
    stats.changed = Counter({"resized": 1})
    return WrittenShard(ShardInfo(SHARDS[0].file, 2, 300, "0" * 64), stats, [{"path": "bad.jpg", "kind": "bad"}], 1)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b'{"form": {"encoding": "gif"}}'])
def test_a_damaged_header(data: bytes) -> None:
    with pytest.raises(FormatError, match=r"^The plan of an earlier run cannot be read \(.*\)\.$"):
        PlanHeader.loads(data)


def test_only_this_run_knows_that_a_shard_was_kept(work: WorkDir, written: WrittenShard) -> None:
    work.save_written(replace(written, kept=True))
    assert work.find_written(written.info.file) == written


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b"null", b'{"file": 1, "records": 1, "sizes": []}'])
def test_a_note_that_cannot_be_read_is_no_note(work: WorkDir, written: WrittenShard, data: bytes) -> None:
    os.makedirs(work.path("rows"))
    Path(work.path("rows", f"{written.info.file}.json")).write_bytes(data)
    assert work.find_written(written.info.file) is None
