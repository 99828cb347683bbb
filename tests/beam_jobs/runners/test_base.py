"""The options of each runner as Beam's arguments, and where the runners differ."""

import pytest

from beam_jobs.runners.base import RunnerConfig, SubmittedJob
from beam_jobs.runners.dataflow import DataflowRunner
from beam_jobs.shard_job import make_runner
from beam_jobs.shards.progress import LIST_EVERY_S
from tests.beam_jobs.runners.jobs import make_job
from tests.refusals import refusal
from tfpipe.errors import ConfigError
from tfpipe.system.progress import POLL_EVERY_S


def test_dataflows_options_become_those_of_beam() -> None:
    config = RunnerConfig(
        runner="dataflow",
        project="p",
        region="r",
        max_workers=7,
        machine_type="n2-standard-4",
        service_account="a@p.iam.gserviceaccount.com",
        network="n",
        subnetwork="regions/r/subnetworks/s",
        temp_location="gs://b/t",
    )
    assert config.beam_args() == (
        *("--runner=DataflowRunner", "--project=p", "--region=r", "--max_num_workers=7"),
        *("--machine_type=n2-standard-4", "--service_account_email=a@p.iam.gserviceaccount.com", "--network=n"),
        *("--subnetwork=regions/r/subnetworks/s", "--temp_location=gs://b/t"),
    )
    assert isinstance(make_runner(config.beam_args()), DataflowRunner)  # which refuses what Beam does not know


def test_an_option_of_another_runner_is_refused() -> None:
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
def test_progress_is_read_where_it_can_be_seen(beam_args: tuple[str, ...], output: str, every_s: float) -> None:
    assert make_runner(beam_args).get_progress_reader(make_job(output))[1] == every_s


@pytest.mark.parametrize(
    ("beam_args", "expected"), [((), True), (("--runner=DataflowRunner",), False), (("--runner=FlinkRunner",), True)]
)
def test_dataflow_has_its_own_image_libraries(beam_args: tuple[str, ...], expected: bool) -> None:
    assert make_runner(beam_args).has_same_codecs is expected
