"""Where the job runs: the engine that a command names, and its options as Beam's own arguments. Without Beam."""

from dataclasses import Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from tfpipe.errors import ConfigError
from tfpipe.system.progress import Observer

if TYPE_CHECKING:
    from beam_jobs.plan.split_and_shard import Plan

BEAM_RUNNERS = {
    "direct": "FnApiRunner",
    "dataflow": "DataflowRunner",
    "dask": "DaskRunner",
    "portable": "PortableRunner",
}
"""Beam's name for each engine."""


def _option(engine: str, beam: str) -> Any:
    """An option of one engine, and what Beam calls it."""
    return field(default=None, metadata={"engine": engine, "beam": beam})


@dataclass(frozen=True)
class Engine:
    """An engine with its options; None: Beam's or the service's default.

    Attributes:
        runner: One of `BEAM_RUNNERS`; `direct` is this machine.
        project: Google Cloud project that pays for the job.
        region: Where its machines stand, such as `europe-west4`; best where the buckets are.
        max_workers: As many machines as the service may start.
        machine_type: Such as `n2-standard-4`.
        service_account: Email of the account that the machines work as.
        network: Name of the network that they are in.
        subnetwork: Its subnetwork, as in `regions/REGION/subnetworks/NAME`.
        temp_location: Folder on `gs://` for what is handed to the machines; None: in OUTPUT, until the dataset is
            complete.
        dask_address: Of a cluster's scheduler, as in `tcp://HOST:8786`; None: a cluster of worker processes on this
            machine, for the time of the job.
        job_endpoint: `HOST:PORT` of a job service.
        worker_pool: `HOST:PORT` where the job service starts workers, by Beam's `worker_pool_main`; None: this process
            is the worker.
    """

    runner: str = "direct"
    project: str | None = _option("dataflow", "project")
    region: str | None = _option("dataflow", "region")
    max_workers: int | None = _option("dataflow", "max_num_workers")
    machine_type: str | None = _option("dataflow", "machine_type")
    service_account: str | None = _option("dataflow", "service_account_email")
    network: str | None = _option("dataflow", "network")
    subnetwork: str | None = _option("dataflow", "subnetwork")
    temp_location: str | None = _option("dataflow", "temp_location")
    dask_address: str | None = _option("dask", "dask_client_address")
    job_endpoint: str | None = _option("portable", "job_endpoint")
    worker_pool: str | None = _option("portable", "environment_config")

    def __post_init__(self) -> None:
        for one, _ in self._given():
            if one.metadata["engine"] != self.runner:
                raise ConfigError(
                    f"--{one.name.replace('_', '-')} goes with --runner {one.metadata['engine']}, "
                    f"got --runner {self.runner}. Leave one of them out."
                )
        if self.max_workers is not None and self.max_workers < 1:
            raise ConfigError(f"`max_workers` must be at least 1, got {self.max_workers}.")

    def beam_args(self) -> tuple[str, ...]:
        """The same as arguments for Beam; none for this machine."""
        if self.runner == "direct":
            return ()
        options = [f"--{one.metadata['beam']}={value}" for one, value in self._given()]
        if self.runner == "portable":
            options.append(f"--environment_type={'EXTERNAL' if self.worker_pool else 'LOOPBACK'}")
        return (f"--runner={BEAM_RUNNERS[self.runner]}", *options)

    def _given(self) -> list[tuple[Field[Any], Any]]:
        options = [one for one in fields(self) if "engine" in one.metadata]
        return [(one, value) for one in options if (value := getattr(self, one.name)) is not None]


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """A job that runs elsewhere, whether or not this process looks on."""

    id: str
    project: str
    region: str

    @property
    def page(self) -> str:
        """Where a browser shows it."""
        return f"https://console.cloud.google.com/dataflow/jobs/{self.region}/{self.id}?project={self.project}"

    @property
    def cancel_command(self) -> str:
        """How to end it."""
        return f"gcloud dataflow jobs cancel {self.id} --project={self.project} --region={self.region}"


class ShardObserver(Observer):
    """An object that the job tells what it does. While it lists images, `progress` has no total."""

    def plan(self, plan: "Plan") -> None:
        """Takes in the plan, once, before anything is written."""

    def submitted(self, job: SubmittedJob) -> None:
        """Takes in the job that a service now runs. From here on it goes on without this process."""
