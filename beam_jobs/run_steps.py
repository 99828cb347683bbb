"""Runs the steps of a job: on this machine, or by Beam, which is loaded only then."""

from collections.abc import Sequence
from typing import Any

from beam_jobs.plan.step import Step, StepSettings, run_here
from beam_jobs.runners.base import Job, LocalRunner, Runner, ShardObserver
from tfpipe.storage import file_io


def make_runner(beam_args: Sequence[str]) -> Runner:
    """Returns the runner that Beam's arguments name; without any, this machine without Beam.

    Raises:
        ConfigError: Beam does not know the runner or an option.
    """
    if not beam_args:
        return LocalRunner()
    from beam_jobs.runners import choose

    return choose.make_runner(beam_args)


def run_steps(
    job: Job,
    steps: Sequence[Step[Any]],
    settings: StepSettings,
    runner: Runner,
    beam_args: Sequence[str],
    observer: ShardObserver,
) -> None:
    """Runs the steps of a job where its runner says; arguments and errors are those of `beam_jobs.graph.run_steps`."""
    if beam_args:
        from beam_jobs import graph

        graph.run_steps(job, steps, settings, runner, observer)
        return
    with runner.watch(job, observer), file_io.explain_os_errors(f"write to {job.work.output}"):
        run_here(steps, settings.open(), settings)
