"""Checks whether a worker may take part in a job: it must see the plan, and write the same bytes as the others."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass

from beam_jobs.shards.work_dir import PlanHeader, WorkDir
from tfpipe._version import __version__
from tfpipe.errors import DataError
from tfpipe.images.normalize import get_codec_versions

_SHARE = "All workers must reach images and output by the same names: on a disk they share, or in a bucket."


@dataclass(frozen=True)
class WorkerCheck:
    """The check that the process that planned a job hands to its workers.

    Attributes:
        fingerprint: The fingerprint of the plan. A disk that is not shared may hold another plan under the same path.
        versions: The version of each package that decides the bytes of a shard.
    """

    fingerprint: str
    versions: Mapping[str, str]

    @classmethod
    def make(cls, header: PlanHeader, *, codecs: bool = True) -> "WorkerCheck":
        """Returns the check for a plan that was made in this process.

        Args:
            header: The header of the plan.
            codecs: Whether workers must have the image libraries of this process. This is not needed if all of them
                have the same ones anyway.
        """
        return cls(header.fingerprint, _get_versions() if codecs else get_planner_versions())

    def open_plan(self, work: WorkDir) -> PlanHeader:
        """Returns the header of the plan, in a worker.

        Raises:
            DataError: The worker has other versions, or does not see this plan.
        """
        check_versions(self.versions)
        host = socket.gethostname()
        try:
            header = work.read_header()
        except OSError as error:
            raise DataError(
                f"The worker on {host} does not find the plan in {work.base}: {error.strerror or error}. {_SHARE}"
            ) from error
        if header.fingerprint != self.fingerprint:
            raise DataError(f"The worker on {host} finds another job's plan in {work.base}. {_SHARE}")
        return header


def check_versions(versions: Mapping[str, str]) -> None:
    """Checks that this worker has the packages of the process that started the job."""
    worker_versions = _get_versions()
    for name, version in versions.items():
        if worker_versions.get(name) != version:
            raise DataError(
                f"All workers must have {name} {version}, as the process that planned the job has, but the one on "
                f"{socket.gethostname()} has {worker_versions.get(name, 'none')}. Install the same versions there."
            )


def get_planner_versions() -> dict[str, str]:
    """Returns the version of each package that decides the plan."""
    return {"tfpipe": __version__}


def _get_versions() -> dict[str, str]:
    return {**get_planner_versions(), **get_codec_versions()}
