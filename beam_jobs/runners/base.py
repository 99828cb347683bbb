"""The runners of the job: the options of each, and the steps that the job takes with one. Loads no Beam."""

import contextlib
from dataclasses import Field, dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any

from beam_jobs.shards.progress import LIST_EVERY_S, read_finished, read_progress
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.storage import file_io
from tfpipe.system.host_limits import usable_cpus
from tfpipe.system.options import Choice, Count, Kind, Text, check_options, option
from tfpipe.system.progress import POLL_EVERY_S, Observer, poll_progress

if TYPE_CHECKING:
    from apache_beam import Pipeline
    from apache_beam.options.pipeline_options import PipelineOptions

    from beam_jobs.config import ShardConfig
    from beam_jobs.plan.plan import Plan
    from beam_jobs.shards.job import Job

LOCAL = "local"
_GROUP = "Clouds"

BEAM_RUNNERS = {"direct": "FnApiRunner", "dataflow": "DataflowRunner"}
"""Beam's name of each runner but the local one, which needs no Beam."""


def _option(beam: str, kind: Kind, metavar: str) -> Any:
    """Returns the dataclass field of an option of Dataflow, whose name in Beam is `beam`."""
    return option(kind, None, group=_GROUP, rare=True, metavar=metavar, metadata={"runner": "dataflow", "beam": beam})


@dataclass(frozen=True)
class RunnerConfig:
    """A runner and its options. An option that is None has the default of Beam or of the service.

    Attributes:
        runner: The runner. `local` is this machine without Beam, `direct` Beam on this machine, with the graph that
            Dataflow runs. "local", "direct" or "dataflow". Default: "local".
        project: The Google Cloud project that pays for the job. Default: None.
        region: The region of the machines, such as `europe-west4`. The best one is the region of the buckets.
            Default: None.
        max_workers: The largest number of machines that the service may start. At least 1. Default: None.
        machine_type: The type of the machines, such as `n2-standard-4`. Default: None.
        service_account: The email of the account under which the machines work. Default: None.
        network: The name of the machines' network. Default: None.
        subnetwork: The subnetwork of the machines, as in `regions/REGION/subnetworks/NAME`. Default: None.
        temp_location: The folder on `gs://` for the files that the machines need to start. None: it lies in the output
            until the dataset is complete. Default: None.

    Raises:
        ConfigError: An option of Dataflow stands beside another runner, or a value is out of range.
    """

    runner: str = option(Choice((LOCAL, *BEAM_RUNNERS)), LOCAL, group=_GROUP)
    project: str | None = _option("project", Text(), "ID")
    region: str | None = _option("region", Text(), "NAME")
    max_workers: int | None = _option("max_num_workers", Count(1), "N")
    machine_type: str | None = _option("machine_type", Text(), "TYPE")
    service_account: str | None = _option("service_account_email", Text(), "EMAIL")
    network: str | None = _option("network", Text(), "NAME")
    subnetwork: str | None = _option("subnetwork", Text(), "PATH")
    temp_location: str | None = _option("temp_location", Text(), "URL")

    def __post_init__(self) -> None:
        check_options(self)
        for item, _ in self._given_options():
            if self.runner != "dataflow":
                raise ConfigError(
                    f"`{item.name}` goes with `runner` dataflow, got `runner` {self.runner}. Leave one of them out."
                )

    def beam_args(self) -> tuple[str, ...]:
        """Returns the options as arguments for Beam; `local` needs none."""
        if self.runner == LOCAL:
            return ()
        arguments = [f"--{item.metadata['beam']}={value}" for item, value in self._given_options()]
        return (f"--runner={BEAM_RUNNERS[self.runner]}", *arguments)

    def _given_options(self) -> list[tuple[Field[Any], Any]]:
        items = [item for item in fields(self) if "runner" in item.metadata]
        return [(item, value) for item in items if (value := getattr(self, item.name)) is not None]


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """A job that a service runs, whether or not this process watches it."""

    id: str  # the service's name for the job
    project: str
    region: str

    @property
    def page(self) -> str:
        """The address of the job's page for a browser."""
        return f"https://console.cloud.google.com/dataflow/jobs/{self.region}/{self.id}?project={self.project}"

    @property
    def cancel_command(self) -> str:
        """The shell command that ends the job."""
        return f"gcloud dataflow jobs cancel {self.id} --project={self.project} --region={self.region}"


class GraphWritten(TfpipeError):
    """A signal that a launcher's work is done, not an error: the graph is written, and a service will run it."""

    exit_code = 0


class ShardObserver(Observer):
    """An observer of the job. While images are listed, `progress` has no total."""

    def plan(self, plan: "Plan") -> None:
        """Receives the plan once, before anything is written."""

    def submitted(self, job: SubmittedJob) -> None:
        """Receives the job that a service now runs. From here on the job does not need this process."""


class Runner:
    """A runner of one job, for any runner that Beam knows. The job calls the methods in their order here."""

    has_same_codecs = True  # whether the workers must have the image libraries of this process
    explains_all = True  # whether every error of Beam becomes a sentence; otherwise unknown ones are bugs of tfpipe

    on_this_machine = False  # whether the workers share a disk with this process, whatever the output

    def __init__(self, options: "PipelineOptions | None" = None) -> None:
        self.options: Any = options
        self._result: Any = None

    def check(self, config: "ShardConfig") -> None:
        """Checks the options before the input is listed; here, that workers elsewhere can write to the output."""
        if config.output.startswith("hf://") and not self.on_this_machine:
            raise ConfigError(
                f"Only this machine writes to Hugging Face, got {config.output} for workers elsewhere. Write to a "
                "bucket, and `tfpipe export` from there."
            )

    def get_pool_workers(self, workers: int) -> int:
        """Returns how many processes each Beam worker starts; 0: the Beam worker writes shards itself."""
        return workers

    def watch(self, job: "Job", observer: ShardObserver) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which the observer is told about the job's progress every few seconds or less."""
        if file_io.is_url(job.work.output) and not self.on_this_machine:  # the workers may have other disks
            return poll_progress(partial(read_finished, job.work, job.header), observer, LIST_EVERY_S)
        return poll_progress(partial(read_progress, job.work, job.header), observer, POLL_EVERY_S)

    def prepare(self, job: "Job") -> contextlib.AbstractContextManager[None]:
        """Returns a context in which the options are complete, so that the job can be submitted and awaited."""
        return contextlib.nullcontext()

    def make_beam_runner(self, job: "Job") -> Any:
        """Returns Beam's runner, or None if Beam finds it by its name in the options."""
        return None

    def submit(self, pipeline: "Pipeline", observer: ShardObserver) -> None:
        """Submits the graph to Beam. A runner on this machine returns when the job is done."""
        self._result = pipeline.run()

    def wait(self) -> None:
        """Waits for the end of the job, and cancels the job when this process is interrupted."""
        try:
            self._result.wait_until_finish()
        except KeyboardInterrupt:
            with contextlib.suppress(Exception):  # each runner has its own client library
                self._result.cancel()
            raise


class LocalRunner(Runner):
    """A job in a pool of processes of this machine."""

    explains_all = False
    on_this_machine = True

    def get_pool_workers(self, workers: int) -> int:
        """Returns the size of the pool: one process for each core by default."""
        return workers or usable_cpus()
