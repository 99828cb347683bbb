"""Writes the shards of a job by a Beam graph, on any runner."""

from collections.abc import Sequence
from dataclasses import replace

import apache_beam as beam

from beam_jobs.job_steps import JobConfig, finish
from beam_jobs.runners.base import Job, Runner, ShardObserver
from beam_jobs.runners.beam_errors import unwrap_errors
from beam_jobs.runners.choose import make_runner
from beam_jobs.storage import filesystem
from beam_jobs.transforms import build_graph, build_search_graph
from tfpipe.system.progress import poll_progress


def write_by_beam(
    job: Job, settings: JobConfig, runner: Runner, beam_args: Sequence[str], observer: ShardObserver
) -> None:
    """Runs the Beam graph to its end, and makes the dataset complete.

    Args:
        job: The job, with its plan.
        settings: The settings of the steps.
        runner: The runner, which is used for this graph only.
        beam_args: Arguments for Beam.
        observer: The observer of the job's progress.

    Raises:
        DataError: The output cannot be written, too many images are bad, or a worker died.
    """
    read, every_s = runner.get_progress_reader(job)
    with poll_progress(read, observer, every_s), unwrap_errors(), runner.prepare(job):
        pipeline = beam.Pipeline(runner=runner.make_beam_runner(job), options=runner.options)
        build_graph(pipeline, job.num_tasks, settings, whole=runner.runs_whole_graph)
        runner.submit(pipeline, observer)
        written_shards = runner.wait()
    if not runner.runs_whole_graph:
        if settings.search_tasks:
            _search_duplicates(job, settings, beam_args, observer)
        with filesystem.explain_os_errors(f"write to {job.work.output}"):
            finish(written_shards, settings)


def _search_duplicates(job: Job, settings: JobConfig, beam_args: Sequence[str], observer: ShardObserver) -> None:
    """Runs the tasks that search for duplicates, for a runner that spreads only what it finds in the graph."""
    runner = make_runner(beam_args)  # anew for every graph, because preparing a graph changes the options
    with unwrap_errors(), runner.prepare(replace(job, num_tasks=settings.search_tasks)):
        pipeline = beam.Pipeline(runner=runner.make_beam_runner(job), options=runner.options)
        build_search_graph(pipeline, settings)
        runner.submit(pipeline, observer)
        runner.wait()
