"""Whether a worker may take part in a job: it must see the plan, and write the bytes that any other would write."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass

from beam_jobs.shards.work_dir import PlanHeader, WorkDir
from tfpipe._version import __version__
from tfpipe.errors import DataError
from tfpipe.images.normalize import codec_versions

_SHARE = "All workers must reach images and output by the same names: on a disk they share, or in a bucket."


@dataclass(frozen=True)
class Agreement:
    """What the process that planned a job tells its workers about it.

    Attributes:
        fingerprint: Of the plan. A disk that is not shared may hold the plan of another job under the same path.
        versions: Of what decides the bytes of a shard.
    """

    fingerprint: str
    versions: Mapping[str, str]

    @classmethod
    def on(cls, header: PlanHeader, *, codecs: bool = True) -> "Agreement":
        """The agreement on a plan that was made here.

        Args:
            header: The plan's.
            codecs: Ask for the same image libraries too; False: workers all have the same ones, but others than here.
        """
        return cls(header.fingerprint, _versions() if codecs else {"tfpipe": __version__})

    def open_plan(self, work: WorkDir) -> PlanHeader:
        """The plan, read by a worker.

        Raises:
            DataError: The worker has other versions, or does not see this plan.
        """
        here, host = _versions(), socket.gethostname()
        for name, version in self.versions.items():
            if here.get(name) != version:
                raise DataError(
                    f"All workers must have {name} {version}, as the process that planned the job has, but the one on "
                    f"{host} has {here.get(name, 'none')}. Install the same versions there."
                )
        try:
            header = work.read_header()
        except OSError as error:
            raise DataError(
                f"The worker on {host} does not find the plan in {work.base}: {error.strerror or error}. {_SHARE}"
            ) from error
        if header.fingerprint != self.fingerprint:
            raise DataError(f"The worker on {host} finds another job's plan in {work.base}. {_SHARE}")
        return header


def _versions() -> dict[str, str]:
    return {"tfpipe": __version__, **codec_versions()}
