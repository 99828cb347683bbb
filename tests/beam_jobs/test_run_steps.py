"""The steps of a job on this machine."""

import errno
from pathlib import Path
from typing import Any

import pytest
from apache_beam.options.pipeline_options import DirectOptions

from beam_jobs import shard_job
from beam_jobs.config import ShardConfig
from beam_jobs.run_steps import make_runner
from tests.beam_jobs.images import make_photos, write_files
from tests.beam_jobs.runners.jobs import make_job
from tfpipe.errors import DataError
from tfpipe.system.host_limits import usable_cpus


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


IN_MEMORY = "--runner=DirectRunner"
IN_THREADS = "--direct_running_mode=multi_threading"
IN_PROCESSES = "--direct_running_mode=multi_processing"


def test_the_pool_works_where_beam_does_not() -> None:
    for beam_args in ([], [IN_MEMORY]):
        assert make_runner(beam_args).get_pool_workers(5) == 5
        assert make_runner(beam_args).get_pool_workers(0) == usable_cpus()
    assert make_runner([IN_PROCESSES]).get_pool_workers(5) == 0
    assert make_runner([IN_THREADS]).get_pool_workers(5) == 0


@pytest.mark.parametrize(
    ("beam_args", "workers"), [([IN_THREADS], 3), ([IN_THREADS, "--direct_num_workers=2"], 2), ([IN_MEMORY], 1)]
)
def test_beam_gets_the_number_of_workers(beam_args: list[str], workers: int) -> None:
    runner = make_runner(beam_args)
    runner.make_beam_runner(make_job(workers=3))
    assert runner.options.view_as(DirectOptions).direct_num_workers == workers


def test_a_pool_of_beams_processes_needs_no_pool_of_ours_afterwards_either() -> None:
    runner = make_runner([IN_PROCESSES])
    runner.make_beam_runner(make_job(workers=3))  # changes the mode that Beam sees
    assert runner.get_pool_workers(3) == 0
