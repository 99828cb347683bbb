"""The options of each runner as Beam's arguments."""

from __future__ import annotations

import pytest

from beam_jobs.runners.base import RunnerConfig, SubmittedJob
from tfpipe.errors import ConfigError


def test_this_machine_needs_no_arguments() -> None:
    assert RunnerConfig().beam_args() == ()


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
        "--runner=DataflowRunner",
        "--project=p",
        "--region=r",
        "--max_num_workers=7",
        "--machine_type=n2-standard-4",
        "--service_account_email=a@p.iam.gserviceaccount.com",
        "--network=n",
        "--subnetwork=regions/r/subnetworks/s",
        "--temp_location=gs://b/t",
    )


def test_dasks_options_become_those_of_beam() -> None:
    assert RunnerConfig("dask").beam_args() == ("--runner=DaskRunner",)
    assert RunnerConfig("dask", dask_address="tcp://h:1").beam_args() == (
        "--runner=DaskRunner",
        "--dask_client_address=tcp://h:1",
    )


def test_options_of_a_job_service_become_those_of_beam() -> None:
    assert RunnerConfig("portable", job_endpoint="h:1").beam_args() == (
        "--runner=PortableRunner",
        "--job_endpoint=h:1",
        "--environment_type=LOOPBACK",
    )
    assert RunnerConfig("portable", job_endpoint="h:1", worker_pool="p:2").beam_args() == (
        "--runner=PortableRunner",
        "--job_endpoint=h:1",
        "--environment_config=p:2",
        "--environment_type=EXTERNAL",
    )


def test_an_option_of_another_runner_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        RunnerConfig(max_workers=3)
    assert str(caught.value) == "`max_workers` goes with `runner` dataflow, got `runner` direct. Leave one of them out."


def test_zero_workers_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^`max_workers` must be at least 1, got 0\.$"):
        RunnerConfig(runner="dataflow", max_workers=0)


def test_a_submitted_job_has_a_page_and_a_command_to_end_it() -> None:
    job = SubmittedJob("2026-11-21_1", "p", "europe-west4")
    assert job.page == "https://console.cloud.google.com/dataflow/jobs/europe-west4/2026-11-21_1?project=p"
    assert job.cancel_command == "gcloud dataflow jobs cancel 2026-11-21_1 --project=p --region=europe-west4"
