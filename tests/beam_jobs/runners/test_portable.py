"""The job by a real job service, with workers in this process or in processes of their own."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apache_beam.options.pipeline_options import PortableOptions

from beam_jobs import shard_job
from beam_jobs.config import ShardConfig
from beam_jobs.runners import portable
from beam_jobs.runners.choose import make_runner
from beam_jobs.shard_job import ShardResult
from tests.beam_jobs.commands import (
    check_no_orphans,
    finish_command,
    list_processes,
    read_command_line,
    start_command,
    wait_for,
)
from tests.beam_jobs.datasets import make_dataset, read_tree
from tests.beam_jobs.images import make_jpeg, make_photos, write_files
from tests.beam_jobs.runners.jobs import make_job
from tfpipe.errors import ConfigError, DataError
from tfpipe.format.image_form import ImageForm

GO_ON = "Finished shards are kept; run the same command again to go on."
OPTIONS: dict[str, Any] = {"num_shards": 12, "seed": 5, "workers": 2}
SLOW: dict[str, Any] = {**OPTIONS, "workers": 0, "form": ImageForm(encoding="jpeg", square=512)}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("portable") / "photos"
    write_files(folder, make_photos({"cat": 150, "dog": 130}))
    return Path(write_files(folder, {"cat/bad.jpg": b"bad", "dog/twin.jpg": make_jpeg(3)}))


def start(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """Starts a process of Beam. Its workers are plain `python`, so the folder of this one comes first in PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.Popen(
        [sys.executable, "-m", *words],
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def stop(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)


@pytest.fixture(scope="module")
def job_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running job service; yields its address."""
    folder = tmp_path_factory.mktemp("service")
    port = folder / "port"
    main = "apache_beam.runners.portability.local_job_service_main"
    process = start(folder, main, "--port_file", str(port), "--staging_dir", str(folder / "staging"))
    try:
        wait_for(port.exists, 60)
        yield f"localhost:{port.read_text()}"
    finally:
        stop(process)


@pytest.fixture
def worker_pool(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """A running worker pool; yields its address and the id of its session."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    process = start(tmp_path, "apache_beam.runners.worker.worker_pool_main", f"--service_port={port}")
    try:
        yield f"localhost:{port}", process.pid
    finally:
        stop(process)


def reach(address: str) -> None:
    def answers() -> bool:
        host, _, port = address.rpartition(":")
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) == 0

    wait_for(answers, 60)


def run(source: Path, output: Path, job_service: str, worker_pool: str = "", **options: Any) -> ShardResult:
    where = f"--environment_config={worker_pool}" if worker_pool else ""
    kind = "EXTERNAL" if worker_pool else "LOOPBACK"
    args = ["--runner=PortableRunner", f"--job_endpoint={job_service}", f"--environment_type={kind}", where]
    return shard_job.run(ShardConfig(str(source), str(output), **options), [*filter(None, args)])


def test_this_process_can_be_the_worker(photos: Path, tmp_path: Path, job_service: str) -> None:
    make_dataset(photos, tmp_path / "straight", **OPTIONS)
    result = run(photos, tmp_path / "out", job_service, **OPTIONS)
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "straight")
    assert (result.kept_shards, result.manifest.quarantined) == (0, 1)


@pytest.mark.slow
def test_an_error_of_tfpipe_stays_as_it_is(photos: Path, tmp_path: Path, job_service: str) -> None:
    with pytest.raises(DataError, match=r"^At most 0 of 282 images may be bad, got 1, the first cat/bad\.jpg: "):
        run(photos, tmp_path / "out", job_service, max_bad=0, **OPTIONS)


def test_a_missing_job_service_is_reported_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, photos: Path, tmp_path: Path
) -> None:
    monkeypatch.setattr(portable, "_CONNECT_WITHIN_S", 0.5)
    with pytest.raises(DataError) as caught:
        run(photos, tmp_path / "out", "localhost:1", **OPTIONS)
    assert str(caught.value) == (
        "No job service answers at localhost:1. Start Beam's own with: python -m "
        "apache_beam.runners.portability.local_job_service_main --port PORT"
    )
    assert not (tmp_path / "out").exists()


def test_a_job_service_must_be_named() -> None:
    with pytest.raises(ConfigError) as caught:
        make_runner(["--runner=PortableRunner"]).check(ShardConfig("in", "out"))
    assert str(caught.value) == "The portable runner needs a job service to run on; give `job_endpoint` HOST:PORT."


def test_workers_elsewhere_do_not_write_to_hugging_face() -> None:
    for endpoint in (
        "--runner=PortableRunner --job_endpoint=x:1",
        "--runner=DaskRunner --dask_client_address=tcp://x:1",
    ):
        with pytest.raises(ConfigError) as caught:
            make_runner(endpoint.split()).check(ShardConfig("in", "hf://datasets/me/photos"))
        assert str(caught.value) == (
            "Only this machine writes to Hugging Face, got hf://datasets/me/photos for workers elsewhere. Write to a "
            "bucket, and `tfpipe export` from there."
        )


def test_a_job_may_take_longer_than_a_minute() -> None:
    runner = make_runner(["--runner=PortableRunner", "--job_endpoint=x:1"])
    with runner.prepare(make_job()):
        assert runner.options.view_as(PortableOptions).job_server_timeout == 30 * 24 * 3600


def test_tracebacks_of_the_job_stay_out_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    record = logging.LogRecord("root", logging.ERROR, "/x/portable_runner.py", 1, "Traceback", (), None)
    other = logging.LogRecord("root", logging.ERROR, "/x/other.py", 1, "Disk full", (), None)
    with make_runner(["--runner=PortableRunner"]).prepare(make_job()):
        logging.getLogger().handle(record)
        logging.getLogger().handle(other)
    assert caplog.messages == ["Disk full"]


@pytest.mark.parametrize(
    ("state", "text", "sentence"),
    [
        ("CANCELLED", "unknown error", f"The job was ended before it was done (it is cancelled). {GO_ON}"),
        (
            "FAILED",
            "Traceback\nRuntimeError: Channel closed prematurely.",
            f"A Beam worker process died: it was killed, or memory ran out. {GO_ON}",
        ),
        (
            "FAILED",
            'x._InactiveRpcError: <RPC that terminated with:\n\tdetails = "failed to connect: refused"\n>',
            f"The job failed: failed to connect: refused. {GO_ON}",
        ),
        (
            "FAILED",
            "Traceback\n  File\nValueError: no such thing.\n",
            f"The job failed: ValueError: no such thing. {GO_ON}",
        ),
        ("FAILED", "tfpipe.errors.DataError: Ours.", "Ours."),
        (
            "FAILED",
            "ModuleNotFoundError: No module named 'beam_jobs'\n",
            "A worker of the cluster could not import beam_jobs. Install the same tfpipe on all of its machines, with "
            "the same extras as here.",
        ),
    ],
)
def test_the_end_of_a_job_is_explained(state: str, text: str, sentence: str) -> None:
    runner = make_runner(["--runner=PortableRunner"])
    with pytest.raises(DataError) as caught, runner.prepare(make_job()):
        raise RuntimeError(f"Pipeline job-1 failed in state {state}: {text}")
    assert str(caught.value) == sentence


@pytest.mark.slow
def test_a_worker_pool_survives_a_killed_worker(
    photos: Path, tmp_path: Path, job_service: str, worker_pool: tuple[str, int]
) -> None:
    address, session = worker_pool
    reach(address)
    make_dataset(photos, tmp_path / "straight", **SLOW)

    def kill() -> None:
        wait_for(lambda: len([*(tmp_path / "out").glob(".tfpipe/rows/*.json")]) >= 2, 60)
        (worker,) = (pid for pid in list_processes(session) if "SdkHarness" in read_command_line(pid))
        os.kill(worker, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(DataError) as caught:
        run(photos, tmp_path / "out", job_service, address, **SLOW)
    killer.join()
    assert str(caught.value) == f"A Beam worker process died: it was killed, or memory ran out. {GO_ON}"
    # The same command goes on, here with two processes in the worker.
    finished = len([*(tmp_path / "out").glob(".tfpipe/rows/*.json")])
    result = run(photos, tmp_path / "out", job_service, address, **{**SLOW, "workers": 2})
    assert 2 <= result.kept_shards == finished < 12
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "straight")
    # And the command line, which this test's own process has no part in.
    form = ("--num-shards=12", "--seed=5", "--encoding=jpeg", "--square=512")
    runner = ("--runner=portable", f"--job-endpoint={job_service}", f"--worker-pool={address}")
    code, out, err = finish_command(start_command(photos, tmp_path / "by-command", *form, *runner))
    assert code == 0, err
    assert out.splitlines()[0].startswith("train: 281 records, 12 shards")
    assert read_tree(tmp_path / "by-command") == read_tree(tmp_path / "straight")


@pytest.mark.slow
def test_an_interrupted_job_leaves_no_process_and_can_go_on(photos: Path, tmp_path: Path, job_service: str) -> None:
    form = ("--num-shards=12", "--seed=5", "--encoding=jpeg", "--square=512")
    command = start_command(photos, tmp_path / "out", *form, "--runner=portable", f"--job-endpoint={job_service}")
    wait_for(lambda: len([*(tmp_path / "out").glob(".tfpipe/rows/*.json")]) >= 2, 60)
    os.killpg(command.pid, signal.SIGINT)
    code, _, err = finish_command(command)
    assert code == 130, err
    assert re.search(
        r"^Interrupted\. \d+ of 12 shards are finished\. Run the same command again to go on\.$", err, re.M
    )
    assert "Traceback" not in err
    check_no_orphans(command)
    assert run(photos, tmp_path / "out", job_service, **{**SLOW, "workers": 2}).kept_shards >= 2
    make_dataset(photos, tmp_path / "straight", **SLOW)
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "straight")


@pytest.mark.slow
def test_a_killed_pool_process_ends_the_job(photos: Path, tmp_path: Path, job_service: str) -> None:
    options = {**SLOW, "workers": 2}
    form = ("--num-shards=12", "--seed=5", "--encoding=jpeg", "--square=512")
    runner = ("--workers=2", "--runner=portable", f"--job-endpoint={job_service}")
    command = start_command(photos, tmp_path / "out", *form, *runner)
    wait_for(lambda: len([*(tmp_path / "out").glob(".tfpipe/rows/*.json")]) >= 2, 60)
    os.kill(max(pid for pid in list_processes(command.pid) if "forkserver" in read_command_line(pid)), signal.SIGKILL)
    code, _, err = finish_command(command)
    assert code == 1
    assert err.splitlines()[-1].startswith("Error: A worker process died: it was killed, or memory ran out. Finished")
    check_no_orphans(command)
    assert run(photos, tmp_path / "out", job_service, **options).kept_shards >= 2
    make_dataset(photos, tmp_path / "straight", **SLOW)
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "straight")
