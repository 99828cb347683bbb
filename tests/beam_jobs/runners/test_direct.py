"""The runners of this machine: who does the work."""

import pytest
from apache_beam.options.pipeline_options import DirectOptions

from beam_jobs.run_steps import make_runner
from tests.beam_jobs.runners.jobs import make_job
from tfpipe.system.host_limits import usable_cpus

IN_MEMORY = "--runner=DirectRunner"
IN_THREADS = "--direct_running_mode=multi_threading"
IN_PROCESSES = "--direct_running_mode=multi_processing"


def test_the_pool_works_where_beam_does_not() -> None:
    for beam_args in ([], [IN_MEMORY]):
        assert make_runner(beam_args).get_pool_workers(5) == 5
        assert make_runner(beam_args).get_pool_workers(0) == usable_cpus()
    assert make_runner([IN_PROCESSES]).get_pool_workers(5) == 0
    assert make_runner([IN_THREADS]).get_pool_workers(5) == 0


@pytest.mark.parametrize(
    ("beam_args", "workers"), [([IN_THREADS], 3), ([IN_THREADS, "--direct_num_workers=2"], 2), ([IN_MEMORY], 1)]
)
def test_beam_gets_the_number_of_workers(beam_args: list[str], workers: int) -> None:
    runner = make_runner(beam_args)
    runner.make_beam_runner(make_job(workers=3))
    assert runner.options.view_as(DirectOptions).direct_num_workers == workers


def test_a_pool_of_beams_processes_needs_no_pool_of_ours_afterwards_either() -> None:
    runner = make_runner([IN_PROCESSES])
    runner.make_beam_runner(make_job(workers=3))  # changes the mode that Beam sees
    assert runner.get_pool_workers(3) == 0
