"""The steps of a job on this machine."""

import errno
from pathlib import Path
from typing import Any

import pytest

from beam_jobs import shard_job
from beam_jobs.config import ShardConfig
from tests.beam_jobs.images import make_photos, write_files
from tfpipe.errors import DataError


def test_a_disk_that_is_full_at_the_end_is_one_sentence(tmp_path: Path, monkeypatch) -> None:
    def fill_disk(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    config = ShardConfig(str(write_files(tmp_path / "in", make_photos({"cat": 2}))), str(tmp_path / "out"), workers=1)
    with monkeypatch.context() as patch:
        patch.setattr("beam_jobs.shards.job_steps.finish_dataset", fill_disk)
        with pytest.raises(DataError) as caught:
            shard_job.run(config)
    assert str(caught.value) == (
        f"Could not write to {tmp_path / 'out'}: No space left on device. Free some and run the same command again."
    )
    assert shard_job.run(config).kept_shards == 1
