"""The choice of a runner by Beam's options."""

import pytest
from apache_beam.options.pipeline_options import DirectOptions

from beam_jobs.runners.base import LocalRunner, Runner
from beam_jobs.runners.choose import DirectRunner
from beam_jobs.runners.dataflow import DataflowRunner
from beam_jobs.shard_job import make_runner
from tests.beam_jobs.runners.jobs import make_job
from tests.refusals import refusal
from tfpipe.errors import ConfigError
from tfpipe.system.host_limits import usable_cpus


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
