"""The job on Dask: on a cluster of its own, and on real schedulers and workers, some of which are killed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dask import distributed

from beam_jobs import shard_job
from beam_jobs.config import ShardConfig
from beam_jobs.runners import dask
from beam_jobs.runners.choose import make_runner
from beam_jobs.shard_job import ShardResult
from tests.beam_jobs.commands import check_no_orphans, finish_command, start_command, wait_for
from tests.beam_jobs.datasets import make_dataset, read_tree
from tests.beam_jobs.images import make_jpeg, make_photos, write_files
from tests.beam_jobs.runners.jobs import make_job
from tests.observers import Recorder
from tfpipe.errors import ConfigError, DataError
from tfpipe.format.image_form import ImageForm

GO_ON = "Finished shards are kept; run the same command again to go on."
OPTIONS: dict[str, Any] = {"num_shards": 12, "seed": 5}
SLOW: dict[str, Any] = {**OPTIONS, "form": ImageForm(encoding="jpeg", square=512)}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dask") / "photos"
    write_files(folder, make_photos({"cat": 150, "dog": 130}))
    return Path(write_files(folder, {"cat/bad.jpg": b"bad", "dog/twin.jpg": make_jpeg(3)}))


def run(source: Path, output: Path, address: str | None = None, **options: Any) -> ShardResult:
    args = ["--runner=DaskRunner", *([f"--dask_client_address={address}"] if address else [])]
    return shard_job.run(ShardConfig(str(source), str(output), **options), args)


def test_a_worker_with_threads_makes_the_same_dataset(photos: Path, tmp_path: Path) -> None:
    make_dataset(photos, tmp_path / "straight", **OPTIONS)
    with distributed.LocalCluster(n_workers=1, threads_per_worker=4, dashboard_address="127.0.0.1:0") as cluster:
        assert run(photos, tmp_path / "out", cluster.scheduler_address, **OPTIONS).kept_shards == 0
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "straight")


@pytest.mark.slow
def test_a_cluster_of_this_machine_makes_the_same_dataset(photos: Path, tmp_path: Path) -> None:
    make_dataset(photos, tmp_path / "straight", **OPTIONS)
    observer = Recorder()
    config = ShardConfig(str(photos), str(tmp_path / "out"), workers=2, **OPTIONS)
    result = shard_job.run(config, ["--runner=DaskRunner"], observer)
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "straight")
    assert (result.kept_shards, result.manifest.quarantined) == (0, 1)
    last = observer.progresses[-1]
    assert (last.done, last.bad, last.shards) == (282, 1, 12)


def test_workers_are_refused_with_a_running_cluster() -> None:
    runner = make_runner(["--runner=DaskRunner", "--dask_client_address=tcp://127.0.0.1:1"])
    with pytest.raises(ConfigError) as caught:
        runner.check(ShardConfig("in", "out", workers=2))
    assert str(caught.value) == "`workers` are processes of this machine; a Dask cluster has its own. Leave it out."


def test_a_missing_scheduler_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask, "_CONNECT_WITHIN_S", 0.5)
    runner = make_runner(["--runner=DaskRunner", "--dask_client_address=tcp://127.0.0.1:1"])
    with pytest.raises(DataError) as caught:
        runner.check(ShardConfig("in", "out"))
    assert str(caught.value) == (
        "No Dask scheduler answers at tcp://127.0.0.1:1: Timed out trying to connect to tcp://127.0.0.1:1 after 0.5 s. "
        "Start one with `dask scheduler`."
    )


@pytest.mark.parametrize(
    ("npartitions", "num_shards", "expected"), [((), 12, 12), ((), 10_000, 10_000), ((), 131_072, 9363), (("4",), 9, 3)]
)
def test_no_partition_is_empty(npartitions: tuple[str, ...], num_shards: int, expected: int) -> None:
    args = [f"--dask_npartitions={count}" for count in npartitions]
    runner = make_runner(["--runner=DaskRunner", "--dask_client_address=tcp://x:1", *args])
    with runner.prepare(make_job(num_shards=num_shards)):
        assert runner.options.get_all_options()["npartitions"] == expected


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            distributed.scheduler.KilledWorker("task", SimpleNamespace(address="tcp://a:1"), 3),
            "Several Dask workers died over the same shards: they were killed, or memory ran out. " + GO_ON,
        ),
        (distributed.comm.CommClosedError("x"), "The connection to the Dask scheduler was lost. " + GO_ON),
    ],
)
def test_the_end_of_a_job_is_explained(error: Exception, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    def fail() -> None:
        raise error

    client = SimpleNamespace(cancel=lambda _: ended.append("cancel"), close=lambda: ended.append("close"))
    monkeypatch.setattr(dask, "_is_over", lambda _: True)
    runner = make_runner(["--runner=DaskRunner"])
    runner._result = SimpleNamespace(client=client, futures=[], wait_until_finish=fail)
    with pytest.raises(DataError) as caught:
        runner.wait()
    assert str(caught.value) == sentence
    assert ended == ["cancel", "close"]


class Cluster:
    """A scheduler and workers, each started as its own command in a common folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "scheduler.json"
        self._started: list[subprocess.Popen[bytes]] = []

    def scheduler(self, *before: str) -> subprocess.Popen[bytes]:
        return self._start(*before, "scheduler", "--port", "0", "--host", "127.0.0.1", "--no-dashboard")

    def worker(self, *before: str, nanny: bool = True) -> subprocess.Popen[bytes]:
        return self._start(*before, "worker", "--nthreads", "1", "--no-dashboard", *([] if nanny else ["--no-nanny"]))

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        place = words.index("scheduler" if "scheduler" in words else "worker")
        command = [*words[:place], *([] if place else [sys.executable, "-m", "dask"]), *words[place:]]
        process = subprocess.Popen(
            [*command, "--scheduler-file", str(self._file)],
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    @property
    def address(self) -> str:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with contextlib.suppress(OSError, ValueError):
                return str(json.loads(self._file.read_text())["address"])
            time.sleep(0.05)
        raise AssertionError("no scheduler")

    def pids(self, workers: int) -> list[int]:
        with distributed.Client(self.address, set_as_default=False) as client:
            client.wait_for_workers(workers, timeout=60)
            return sorted(client.run(os.getpid).values())

    def stop(self) -> None:
        for process in self._started[::-1]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def straight(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset that an undisturbed run on this machine makes of the slow job."""
    output = tmp_path_factory.mktemp("dask") / "straight"
    make_dataset(photos, output, **SLOW)
    return output


def act_once_underway(output: Path, act: Callable[[], None]) -> threading.Thread:
    def wait() -> None:
        wait_for(lambda: len([*output.glob(".tfpipe/rows/*.json")]) >= 2, 60)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.slow
def test_another_worker_takes_over_from_a_killed_one(
    photos: Path, straight: Path, tmp_path: Path, cluster: Cluster
) -> None:
    cluster.scheduler()
    cluster.worker()
    cluster.worker()
    first = cluster.pids(2)
    killer = act_once_underway(tmp_path / "out", lambda: os.kill(first[0], signal.SIGKILL))
    result = run(photos, tmp_path / "out", cluster.address, **SLOW)
    killer.join()
    assert read_tree(tmp_path / "out") == read_tree(straight)
    assert result.kept_shards == 0  # what the dead worker had finished was finished by this run
    left = cluster.pids(2)
    assert first[0] not in left
    assert first[1] in left
    # The command line, on the same cluster.
    form = ("--num-shards=12", "--seed=5", "--encoding=jpeg", "--square=512")
    runner = ("--runner=dask", f"--dask-address={cluster.address}")
    code, out, err = finish_command(start_command(photos, tmp_path / "by-command", *form, *runner))
    assert code == 0, err
    assert out.splitlines()[0].startswith("train: 281 records, 12 shards")
    assert read_tree(tmp_path / "by-command") == read_tree(straight)


@pytest.mark.slow
def test_an_interrupted_job_leaves_no_process_and_can_go_on(photos: Path, straight: Path, tmp_path: Path) -> None:
    form = ("--num-shards=12", "--seed=5", "--encoding=jpeg", "--square=512")
    command = start_command(photos, tmp_path / "out", *form, "--runner=dask", "--workers=1")
    act_once_underway(tmp_path / "out", lambda: os.killpg(command.pid, signal.SIGINT)).join()
    code, _, err = finish_command(command)
    assert code == 130, err
    assert re.search(
        r"^Interrupted\. \d+ of 12 shards are finished\. Run the same command again to go on\.$", err, re.M
    )
    assert "Traceback" not in err
    check_no_orphans(command)
    again = start_command(photos, tmp_path / "out", *form, "--runner=dask", "--workers=1")
    wait_for(lambda: [*(tmp_path / "out" / ".tfpipe" / "progress").glob("*")], 60)
    again.kill()
    again.communicate()
    check_no_orphans(again)
    make_dataset(photos, tmp_path / "out", **SLOW)
    assert read_tree(tmp_path / "out") == read_tree(straight)


@pytest.mark.slow
def test_a_cluster_without_workers_ends_the_job(
    photos: Path, straight: Path, tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask, "_LOOK_EVERY_S", 0.5)
    monkeypatch.setattr(dask, "_WORKERS_WITHIN_S", 2)
    cluster.scheduler()
    worker = cluster.worker(nanny=False)
    cluster.pids(1)
    killer = act_once_underway(tmp_path / "out", worker.kill)
    with pytest.raises(DataError) as caught:
        run(photos, tmp_path / "out", cluster.address, **SLOW)
    killer.join()
    assert str(caught.value) == f"The Dask cluster has no worker any more. {GO_ON}"
    with pytest.raises(DataError, match=r"^The Dask cluster at tcp://\S+ has no worker; start one with `dask worker "):
        run(photos, tmp_path / "out", cluster.address, **SLOW)
    cluster.worker(nanny=False)
    cluster.pids(1)
    assert run(photos, tmp_path / "out", cluster.address, **SLOW).kept_shards >= 2
    assert read_tree(tmp_path / "out") == read_tree(straight)


@pytest.mark.slow
def test_a_killed_scheduler_ends_the_job(photos: Path, straight: Path, tmp_path: Path, cluster: Cluster) -> None:
    scheduler = cluster.scheduler()
    cluster.worker(nanny=False)
    cluster.pids(1)
    killer = act_once_underway(tmp_path / "out", scheduler.kill)
    started = time.monotonic()
    with pytest.raises(DataError) as caught:
        run(photos, tmp_path / "out", cluster.address, **SLOW)
    killer.join()
    assert str(caught.value) == f"The connection to the Dask scheduler was lost. {GO_ON}"
    assert time.monotonic() - started < 90
    cluster.stop()  # a worker without its scheduler may still be writing
    make_dataset(photos, tmp_path / "out", **SLOW)
    assert read_tree(tmp_path / "out") == read_tree(straight)


HIDING = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("beam_jobs", "tfpipe"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hide())
sys.argv[0] = "dask"
from dask.__main__ import main
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("who", ["scheduler", "worker"])
def test_machines_without_tfpipe_are_reported(photos: Path, tmp_path: Path, cluster: Cluster, who: str) -> None:
    bare = (sys.executable, "-c", HIDING)
    cluster.scheduler(*(bare if who == "scheduler" else ()))
    cluster.worker(*(bare if who == "worker" else ()), nanny=False)
    cluster.pids(1)
    with pytest.raises(DataError) as caught:
        run(photos, tmp_path / "out", cluster.address, **OPTIONS)
    assert str(caught.value) == (
        "A worker of the cluster could not import beam_jobs. Install the same tfpipe on all of its machines, with the "
        "same extras as here."
    )


def can_mount() -> bool:
    return (
        shutil.which("unshare") is not None and subprocess.run(["unshare", "-m", "true"], check=False).returncode == 0
    )


@pytest.mark.slow
@pytest.mark.skipif(not can_mount(), reason="needs a mount namespace, for a disk that is not shared")
def test_a_disk_that_is_not_shared_is_reported(photos: Path, tmp_path: Path, cluster: Cluster) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    away = f'mount -t tmpfs none {shared} && exec {sys.executable} -m dask "$@"'
    cluster.scheduler()
    cluster.worker("unshare", "-m", "sh", "-c", away, "sh", nanny=False)
    cluster.pids(1)
    with pytest.raises(DataError) as caught:
        run(photos, shared / "out", cluster.address, **OPTIONS)
    assert "does not find the plan in " in str(caught.value)
    assert str(caught.value).endswith(
        "No such file or directory. All workers must reach images and output by the same names: on a disk they share, "
        "or in a bucket."
    )
