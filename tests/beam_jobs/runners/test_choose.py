"""The choice of a runner by Beam's options."""

import pytest

from beam_jobs.run_steps import make_runner
from beam_jobs.runners.base import LocalRunner, Runner
from beam_jobs.runners.choose import DirectRunner
from beam_jobs.runners.dataflow import DataflowRunner
from tfpipe.errors import ConfigError


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


def test_an_option_that_beam_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        make_runner(["--direct_num_worker_typo=2"])
    assert str(caught.value) == "Options after -- must be known to Beam, got --direct_num_worker_typo."


def test_a_runner_that_beam_cannot_load_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^`runner` must be one that Beam can load, got SkyRunner: Unexpected "):
        make_runner(["--runner=SkyRunner"])
    with pytest.raises(ConfigError) as caught:
        make_runner(["--runner=nowhere.SkyRunner"])
    assert (
        str(caught.value)
        == "`runner` must be one that Beam can load, got nowhere.SkyRunner: No module named 'nowhere'."
    )
