"""Which worker may take part in a job."""

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from beam_jobs.config import ShardConfig
from beam_jobs.make_plan import plan_shards
from beam_jobs.shards.job_steps import WorkerCheck
from beam_jobs.shards.output_dir import open_work_dir
from beam_jobs.shards.work_dir import WorkDir
from tests.beam_jobs.images import make_photos, write_files
from tfpipe._version import __version__
from tfpipe.errors import DataError
from tfpipe.images.normalize import get_codec_versions

HOST = socket.gethostname()
SHARE = "All workers must reach images and output by the same names: on a disk they share, or in a bucket."


@pytest.fixture
def work(tmp_path: Path) -> Iterator[WorkDir]:
    source = write_files(tmp_path / "in", make_photos({"cat": 4}))
    config = ShardConfig(str(source), str(tmp_path / "out"), num_shards=2)
    with open_work_dir(config, plan_shards(config)) as work:
        yield work


def test_the_same_versions_and_the_plan(work: WorkDir) -> None:
    header = work.read_header()
    worker_check = WorkerCheck.make(header)
    assert worker_check.versions == {"tfpipe": __version__, **get_codec_versions()}
    assert worker_check.open_plan(work) == header


def test_workers_that_bring_their_own_image_libraries(work: WorkDir) -> None:
    assert WorkerCheck.make(work.read_header(), codecs=False).versions == {"tfpipe": __version__}


@pytest.mark.parametrize(
    ("name", "worker_version"), [("tfpipe", __version__), ("pillow", get_codec_versions()["pillow"])]
)
def test_another_version(work: WorkDir, name: str, worker_version: str) -> None:
    header = work.read_header()
    with pytest.raises(DataError) as caught:
        WorkerCheck(header.fingerprint, {**WorkerCheck.make(header).versions, name: "0"}).open_plan(work)
    assert str(caught.value) == (
        f"All workers must have {name} 0, as the process that planned the job has, but the one on {HOST} has "
        f"{worker_version}. Install the same versions there."
    )


def test_a_library_that_is_not_there(work: WorkDir) -> None:
    with pytest.raises(DataError, match=rf"must have x 1, .* but the one on {HOST} has none\."):
        WorkerCheck(work.read_header().fingerprint, {"x": "1"}).open_plan(work)


def test_a_disk_that_is_not_shared(work: WorkDir, tmp_path: Path) -> None:
    worker_check = WorkerCheck.make(work.read_header())
    with pytest.raises(DataError) as caught:
        worker_check.open_plan(WorkDir(str(tmp_path / "elsewhere")))
    place = tmp_path / "elsewhere" / ".tfpipe"
    assert str(caught.value) == (
        f"The worker on {HOST} does not find the plan in {place}: No such file or directory. {SHARE}"
    )


def test_a_disk_that_holds_the_plan_of_another_job(work: WorkDir, tmp_path: Path) -> None:
    shutil.copytree(work.base, tmp_path / "other" / ".tfpipe")
    with pytest.raises(DataError) as caught:
        WorkerCheck("f", {}).open_plan(WorkDir(str(tmp_path / "other")))
    assert str(caught.value) == (
        f"The worker on {HOST} finds another job's plan in {tmp_path / 'other' / '.tfpipe'}. {SHARE}"
    )
