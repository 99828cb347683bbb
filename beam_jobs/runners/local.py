"""This machine without Beam, whose import takes 1.2 s: a pool of processes does the tasks of each step."""

from collections.abc import Callable
from functools import partial

from beam_jobs.config import ShardConfig
from beam_jobs.runners.base import Job, Runner
from beam_jobs.shards.progress import read_progress
from tfpipe.system.host_limits import usable_cpus
from tfpipe.system.progress import POLL_EVERY_S, Progress


class LocalRunner(Runner):
    """A job in a pool of processes of this machine."""

    explains_all = False

    def check(self, config: ShardConfig) -> None:
        """Checks nothing: workers on this machine reach all that it reaches."""

    def get_pool_workers(self, workers: int) -> int:
        """Returns the size of the pool: one process for each core by default."""
        return workers or usable_cpus()

    def get_progress_reader(self, job: Job) -> tuple[Callable[[], Progress | None], float]:
        """Returns the reader of the workers' progress: they share a disk with this process, whatever the output."""
        assert job.header is not None
        return partial(read_progress, job.work, job.header), POLL_EVERY_S
