"""Planned jobs without images, for what a runner does before and after its work."""

from types import SimpleNamespace

from beam_jobs.shards.job import Job
from beam_jobs.shards.work_dir import WorkDir


def make_job(output: str = "out", name: str = "pets", num_shards: int = 4) -> Job:
    job = Job(WorkDir(output), "", {})
    vars(job)["header"] = SimpleNamespace(name=name, shards=[SimpleNamespace(images=1)] * num_shards)
    return job
