"""The choice of a runner by Beam's options."""

from __future__ import annotations

import sys

import pytest

from beam_jobs.run_steps import make_runner
from beam_jobs.runners.base import Runner, RunnerConfig
from beam_jobs.runners.dask import DaskRunner
from beam_jobs.runners.dataflow import DataflowRunner
from beam_jobs.runners.direct import DirectRunner
from beam_jobs.runners.local import LocalRunner
from beam_jobs.runners.portable import PortableRunner
from tfpipe.errors import ConfigError, MissingDependencyError


@pytest.mark.parametrize(
    ("beam_args", "runner_class"),
    [
        ((), LocalRunner),
        (("--runner=DirectRunner",), DirectRunner),
        (("--runner=FnApiRunner",), DirectRunner),
        (("--direct_running_mode=in_memory",), DirectRunner),
        (("--runner", "DataflowRunner"), DataflowRunner),
        (("--runner=DaskRunner",), DaskRunner),
        (("--runner=apache_beam.runners.dask.dask_runner.DaskRunner",), DaskRunner),
        (("--runner=PortableRunner",), PortableRunner),
        (("--runner=FlinkRunner",), Runner),
    ],
)
def test_the_name_decides(beam_args: tuple[str, ...], runner_class: type[Runner]) -> None:
    assert type(make_runner(beam_args)) is runner_class


@pytest.mark.parametrize(
    ("config", "runner_class"),
    [
        (RunnerConfig(), LocalRunner),
        (RunnerConfig("direct"), DirectRunner),
        (RunnerConfig("dask", dask_address="tcp://h:1"), DaskRunner),
        (RunnerConfig("portable", job_endpoint="h:1", worker_pool="p:2"), PortableRunner),
        (
            RunnerConfig(
                "dataflow",
                project="p",
                region="r",
                max_workers=7,
                machine_type="m",
                service_account="a",
                network="n",
                subnetwork="s",
                temp_location="t",
            ),
            DataflowRunner,
        ),
    ],
)
def test_beam_knows_all_our_options(config: RunnerConfig, runner_class: type[Runner]) -> None:
    assert type(make_runner(config.beam_args())) is runner_class


def test_an_option_that_beam_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        make_runner(["--direct_num_worker_typo=2"])
    assert str(caught.value) == "Options after -- must be known to Beam, got --direct_num_worker_typo."


def test_without_dask_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dask.distributed", None)
    with pytest.raises(MissingDependencyError) as caught:
        make_runner(["--runner=DaskRunner"])
    assert (
        str(caught.value)
        == "The runner for Dask needs Dask. Install it with: pip install '.[dask]' in a checkout of tfpipe."
    )
