"""Writes the shards of a job by a Beam graph, on any runner."""

from collections.abc import Sequence

import apache_beam as beam

from beam_jobs.engine.list_files import list_end_steps
from beam_jobs.job_steps import JobConfig, begin_end, finish, finish_end
from beam_jobs.runners.base import Job, Runner, ShardObserver
from beam_jobs.runners.beam_errors import unwrap_errors
from beam_jobs.shards.gather_rows import GatheredShards
from beam_jobs.step_graph import run_steps
from beam_jobs.storage import filesystem
from beam_jobs.transforms import build_graph
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
    if runner.runs_whole_graph:
        return
    with filesystem.explain_os_errors(f"write to {job.work.output}"):
        if settings.search_tasks:
            begin_end(GatheredShards(written_shards), settings)
            del written_shards  # the end of the job loads them again
            run_steps(job, list_end_steps(), settings, beam_args, observer)
            finish_end(settings)
        else:
            finish(written_shards, settings)
