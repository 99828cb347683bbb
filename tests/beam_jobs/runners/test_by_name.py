"""The job by a runner that tfpipe knows only by its name: Beam's portable runner, with Beam's own job service."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from beam_jobs import graph, shard_job
from beam_jobs.config import ShardConfig
from beam_jobs.shard_job import make_runner
from tests.beam_jobs.commands import wait_for
from tests.beam_jobs.datasets import make_dataset, read_tree
from tests.beam_jobs.images import make_photos, write_files
from tests.refusals import refusal
from tfpipe.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def portable(tmp_path_factory) -> Iterator[list[str]]:
    """The arguments for a job service that runs; this process is its worker."""
    folder = tmp_path_factory.mktemp("service")
    port, main = folder / "port", "apache_beam.runners.portability.local_job_service_main"
    process = subprocess.Popen(
        [sys.executable, "-m", main, "--port_file", port, "--staging_dir", folder / "staging"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_for(port.exists, 60)
        yield ["--runner=PortableRunner", f"--job_endpoint=localhost:{port.read_text()}", "--environment_type=LOOPBACK"]
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


@pytest.fixture
def config(tmp_path: Path) -> ShardConfig:
    source = write_files(tmp_path / "in", make_photos({"cat": 5, "dog": 4}) | {"cat/bad.jpg": b"bad"})
    return ShardConfig(str(source), str(tmp_path / "out"), num_shards=3)


def test_any_runner_of_beam_makes_the_same_dataset(config: ShardConfig, tmp_path: Path, portable: list[str]) -> None:
    make_dataset(config.input, tmp_path / "straight", num_shards=3)
    assert shard_job.run(config, portable).kept_shards == 0
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "straight")


def test_a_failing_worker_is_one_sentence(config: ShardConfig, tmp_path: Path, portable: list[str], monkeypatch):
    def fail(*_: Any) -> None:
        raise ValueError("no such thing.")

    monkeypatch.setattr("beam_jobs.shards.job.write_shard", fail)
    assert refusal(DataError, shard_job.run, config, portable) == (
        "Beam's runner ended the job: ValueError: no such thing. Finished shards are kept; run the same command again "
        "to go on."
    )


def test_a_runner_that_leaves_out_a_step_is_reported(config: ShardConfig, monkeypatch) -> None:
    monkeypatch.setattr(graph, "add_steps", lambda *_: None)
    assert refusal(DataError, shard_job.run, config, ["--runner=DirectRunner"]) == (
        "A job must end with manifest.json, but Beam's runner ended it without. Run the same command again with "
        "another runner."
    )


def test_workers_elsewhere_do_not_write_to_hugging_face() -> None:
    check = make_runner(["--runner=FlinkRunner"]).check
    assert refusal(ConfigError, check, ShardConfig("in", "hf://datasets/me/photos")) == (
        "Only this machine writes to Hugging Face, got hf://datasets/me/photos for workers elsewhere. Write to a "
        "bucket, and `tfpipe export` from there."
    )
