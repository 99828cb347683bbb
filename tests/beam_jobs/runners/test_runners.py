"""The choice of a runner by Beam's options, what runners do alike, and a runner that tfpipe knows only by its name."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from apache_beam.options.pipeline_options import DirectOptions

from beam_jobs import graph, shard_job
from beam_jobs.config import ShardConfig
from beam_jobs.graph import DirectRunner
from beam_jobs.runners.base import LocalRunner, Runner, RunnerConfig, ShardObserver, SubmittedJob
from beam_jobs.runners.beam_errors import find_error, remove_graph_step, unwrap_errors
from beam_jobs.runners.dataflow import DataflowRunner
from beam_jobs.shard_job import make_runner
from beam_jobs.shards.progress import LIST_EVERY_S
from tests.beam_jobs.commands import wait_for
from tests.beam_jobs.datasets import make_dataset, read_tree
from tests.beam_jobs.images import make_photos, write_files
from tests.beam_jobs.plans import make_job
from tests.refusals import refusal
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.system.host_limits import usable_cpus
from tfpipe.system.progress import POLL_EVERY_S


@pytest.mark.parametrize(
    ("beam_args", "runner_class"),
    [
        ((), LocalRunner),
        (("--runner=DirectRunner",), DirectRunner),
        (("--runner=FnApiRunner",), DirectRunner),
        (("--direct_running_mode=in_memory",), DirectRunner),
        (("--runner", "DataflowRunner"), DataflowRunner),
        (("--runner=apache_beam.runners.dataflow.dataflow_runner.DataflowRunner",), DataflowRunner),
        (("--runner=FlinkRunner",), Runner),
    ],
)
def test_the_name_decides(beam_args: tuple[str, ...], runner_class: type[Runner]) -> None:
    assert type(make_runner(beam_args)) is runner_class


@pytest.mark.parametrize(
    ("beam_arg", "message"),
    [
        ("--runner=SkyRunner", "`runner` must be one that Beam can load, got SkyRunner: Unexpected "),
        (
            "--runner=nowhere.SkyRunner",
            "`runner` must be one that Beam can load, got nowhere.SkyRunner: No module named 'nowhere'.",
        ),
        (
            "--direct_running_mode=multi_processing",
            "`direct_running_mode` must be in_memory or multi_threading, got multi_processing, whose workers all "
            "import Beam. Leave it out; `workers` are processes without Beam.",
        ),
    ],
)
def test_what_cannot_run_is_refused(beam_arg: str, message: str) -> None:
    assert refusal(ConfigError, make_runner, [beam_arg]).startswith(message)


IN_MEMORY = "--runner=DirectRunner"
IN_THREADS = "--direct_running_mode=multi_threading"


def test_the_pool_works_where_beam_does_not() -> None:
    for beam_args in ([], [IN_MEMORY]):
        assert make_runner(beam_args).get_pool_workers(5) == 5
        assert make_runner(beam_args).get_pool_workers(0) == usable_cpus()
    assert make_runner([IN_THREADS]).get_pool_workers(5) == 0


@pytest.mark.parametrize(
    ("beam_args", "workers"), [([IN_THREADS], 3), ([IN_THREADS, "--direct_num_workers=2"], 2), ([IN_MEMORY], 1)]
)
def test_beam_gets_the_number_of_workers(beam_args: list[str], workers: int) -> None:
    runner = make_runner(beam_args)
    runner.get_pool_workers(3)
    runner.make_beam_runner(make_job())
    assert runner.options.view_as(DirectOptions).direct_num_workers == workers


def test_dataflows_options_become_those_of_beam() -> None:
    account, subnetwork = "a@p.iam.gserviceaccount.com", "regions/r/subnetworks/s"
    config = RunnerConfig("dataflow", "p", "r", 7, "n2-standard-4", account, "n", subnetwork, "gs://b/t")
    assert config.beam_args() == (
        *("--runner=DataflowRunner", "--project=p", "--region=r", "--max_num_workers=7"),
        *("--machine_type=n2-standard-4", f"--service_account_email={account}", "--network=n"),
        *(f"--subnetwork={subnetwork}", "--temp_location=gs://b/t"),
    )
    assert isinstance(make_runner(config.beam_args()), DataflowRunner)  # which refuses what Beam does not know
    message = "`max_workers` goes with `runner` dataflow, got `runner` local. Leave one of them out."
    assert refusal(ConfigError, RunnerConfig, max_workers=3) == message


def test_a_submitted_job_has_a_page_and_a_command_to_end_it() -> None:
    job = SubmittedJob("2026-11-21_1", "p", "europe-west4")
    assert job.page == "https://console.cloud.google.com/dataflow/jobs/europe-west4/2026-11-21_1?project=p"
    assert job.cancel_command == "gcloud dataflow jobs cancel 2026-11-21_1 --project=p --region=europe-west4"


@pytest.mark.parametrize(
    ("beam_args", "output", "every_s"),
    [
        ((), "out", POLL_EVERY_S),
        ((), "gs://out", POLL_EVERY_S),  # the workers are on this machine
        (("--runner=FlinkRunner",), "out", POLL_EVERY_S),
        (("--runner=FlinkRunner",), "gs://out", LIST_EVERY_S),
        (("--runner=DataflowRunner",), "gs://out", LIST_EVERY_S),
    ],
)
def test_progress_is_read_where_it_can_be_seen(
    beam_args: tuple[str, ...], output: str, every_s: float, monkeypatch
) -> None:
    runner = make_runner(beam_args)
    monkeypatch.setattr("beam_jobs.runners.base.poll_progress", lambda read, observer, seconds: seconds)
    assert runner.watch(make_job(output), ShardObserver()) == every_s
    assert runner.has_same_codecs is (type(runner) is not DataflowRunner)  # whose image has its own libraries


LACKING = DataError(
    "A worker of the cluster could not import beam_jobs. Install the same tfpipe on all of its machines, with the same "
    "extras as here."
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Traceback\n  x\ntfpipe.errors.DataError: A [b]. [while running 'Write/x']\n\nmore", DataError("A [b].")),
        ("tfpipe.errors.FormatError: bad", FormatError("bad")),
        ("tfpipe.errors.Unheard: bad", DataError("bad")),
        ("ValueError: bad", None),
        ("", None),
        ("ModuleNotFoundError: No module named 'beam_jobs'", LACKING),
        ("Exception: ModuleNotFoundError(\"No module named 'beam_jobs'\")", LACKING),
        ("Traceback\nModuleNotFoundError: No module named 'beam_jobs'\nand so on", LACKING),
    ],
)
def test_errors_that_come_as_text(text: str, expected: Exception | None) -> None:
    error = find_error(text)
    assert (type(error), str(error)) == (type(expected), str(expected))


def test_errors_come_out_of_beam_as_they_went_in() -> None:
    with pytest.raises(KeyboardInterrupt), unwrap_errors():
        raise RuntimeError("KeyboardInterrupt [while running 'Write shards/Write shard']")
    error = remove_graph_step(ConfigError("Wrong [really]. [while running 'Write shards/Write shard']"))
    assert (type(error), str(error)) == (ConfigError, "Wrong [really].")
    with pytest.raises(RuntimeError, match=r"^a bug$"), unwrap_errors():
        raise RuntimeError("a bug")


FAILED = "Dataflow pipeline failed. State: FAILED, Error:\n"
TRACE = """Traceback (most recent call last):
  File "apache_beam/runners/common.py", line 1498, in process
ZeroDivisionError: division by zero

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
RuntimeError: ZeroDivisionError: division by zero [while running 'Write shards/Write shard-ptransform-36']
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (FAILED + TRACE, "ZeroDivisionError: division by zero"),
        (FAILED + "The zone has no machines.\nTry again.", "Dataflow pipeline failed. State: FAILED, Error: The "),
        ("Pipeline has validations errors: \nInvalid ID (p1).\nMore.", "Pipeline has validations errors: Invalid ID "),
        ("Could not upload to gs://out.", "Could not upload to gs://out. Finished shards are kept; run "),
    ],
)
def test_errors_of_a_service_become_one_sentence(text: str, reason: str) -> None:
    with pytest.raises(DataError) as caught, unwrap_errors(explains_all=True):
        raise RuntimeError(text)
    assert str(caught.value).startswith(f"Beam's runner ended the job: {reason}")


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
    monkeypatch.setattr("beam_jobs.shards.job.write_shard", Mock(side_effect=ValueError("no such thing.")))
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
