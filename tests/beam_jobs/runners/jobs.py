"""Planned jobs without images, for what a runner does before and after its work."""

from types import SimpleNamespace
from typing import Any

from beam_jobs.config import ShardConfig
from beam_jobs.runners.base import Job
from beam_jobs.shards.work_dir import WorkDir
from tfpipe.format.image_form import ImageForm


def make_job(output: str = "out", name: str = "pets", num_shards: int = 4, workers: int = 0) -> Job:
    header: Any = SimpleNamespace(form=ImageForm(), shards=())
    return Job(ShardConfig("in", output, workers=workers), WorkDir(output), name, num_shards, header)
