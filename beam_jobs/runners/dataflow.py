"""Running the graph on Google's Dataflow: what must hold first, what the job is given, and how it ends."""

import contextlib
import logging
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from apache_beam.options.pipeline_options import (
    GoogleCloudOptions,
    PipelineOptions,
    SetupOptions,
    StandardOptions,
    TestOptions,
    WorkerOptions,
)
from apache_beam.runners.runner import PipelineState

from beam_jobs.config import ShardConfig
from beam_jobs.runners.base import BEAM_RUNNERS, SubmittedJob
from beam_jobs.runners.wheel import build_wheel
from beam_jobs.shards.work_dir import WorkDir
from tfpipe.errors import ConfigError, DataError, TfpipeError, first_line
from tfpipe.system.extras import importing

_logger = logging.getLogger(__name__)

METRICS_EVERY_S = 5.0
"""The service brings its metrics up to date about as often."""

_GO_ON = "Finished shards are kept; run the same command again to go on."
_MAX_JOB_NAME = 63
_INVALID = "Pipeline has validations errors:"
_LOST = "Job did not reach to a terminal state"
_STATE = re.compile(r"^Dataflow pipeline failed\. State: (\w+), Error:\n(.*)", re.DOTALL)
_REQUEST = re.compile(r"^(?:GET|POST|PUT) \S+: ")  # which a client puts before what the service said
_RAISED = re.compile(r"^[\w.]*(?:Error|Exception): .*", re.MULTILINE)


def is_dataflow(options: PipelineOptions) -> bool:
    """Whether the graph is to run on Dataflow."""
    runner: str | None = options.view_as(StandardOptions).runner
    return runner == BEAM_RUNNERS["dataflow"]


def check_options(config: ShardConfig, options: PipelineOptions) -> None:
    """Refuses what cannot run on Dataflow, before anything is listed.

    Raises:
        ConfigError: An option is missing, or does not go with Dataflow.
        MissingDependencyError: Beam's part for Google Cloud is not installed.
    """
    with importing("The runner for Dataflow", "Beam's part for Google Cloud", "tfpipe[dataflow]"):
        from apache_beam.runners.dataflow.internal import apiclient  # noqa: F401
    cloud = options.view_as(GoogleCloudOptions)
    for name in ("project", "region"):
        if not getattr(cloud, name):
            raise ConfigError(f"Dataflow needs a project and a region to run in; give --{name} too.")
    places = [*config.inputs, config.output, cloud.temp_location, cloud.staging_location]
    for place in places:
        if place is not None and not place.startswith("gs://"):
            raise ConfigError(
                f"Dataflow's machines read and write gs:// only, got {place}. Name a place in a bucket, or run "
                "on this machine."
            )
    if config.workers:
        raise ConfigError("--workers are processes of this machine; on Dataflow it is --max-workers.")
    if cloud.template_location or options.view_as(TestOptions).dry_run:
        raise ConfigError(
            "A job is planned for the images of one run, so it can be neither a template nor a Beam dry "
            "run. Leave --template_location and --dry_run out; --dry-run before -- prints the plan."
        )


@contextlib.contextmanager
def prepared(options: PipelineOptions, work: WorkDir, name: str, num_shards: int) -> Iterator[None]:
    """Completes the options for the block that submits the job, and makes the wheel that is sent with it.

    What the user gave stays. All of it is removed with the working folder, once the dataset is complete.

    Args:
        options: Beam's, changed in place.
        work: The dataset directory under construction.
        name: Of the dataset.
        num_shards: In the plan.
    """
    cloud, setup = options.view_as(GoogleCloudOptions), options.view_as(SetupOptions)
    cloud.temp_location = cloud.temp_location or work.path("dataflow")
    cloud.staging_location = cloud.staging_location or cloud.temp_location
    cloud.job_name = cloud.job_name or _job_name(name)
    machines = options.view_as(WorkerOptions)
    if machines.max_num_workers and not machines.num_workers:
        # All of them at once: the plan knows that there is work for them. The service would have to find that out,
        # and sees shard numbers only, a few bytes each.
        machines.num_workers = min(machines.max_num_workers, num_shards)
    with tempfile.TemporaryDirectory(prefix="tfpipe-") as folder:
        if setup.sdk_location != "container":  # that image brings all it needs
            setup.extra_packages = [*(setup.extra_packages or ()), build_wheel(folder)]
        yield


def submitted_job(result: Any, options: PipelineOptions) -> SubmittedJob:
    """Names the job for those who watch it elsewhere."""
    cloud = options.view_as(GoogleCloudOptions)
    return SubmittedJob(result.job_id(), cloud.project, cloud.region)


@contextlib.contextmanager
def explain_errors(find_ours: Callable[[str], TfpipeError | None]) -> Iterator[None]:
    """Turns what the service, its clients and the job's end raise into one sentence.

    Args:
        find_ours: Finds an error of ours in a traceback.

    Raises:
        ConfigError: Beam finds an option invalid.
        DataError: Anything else.
    """
    from apache_beam.runners.dataflow.dataflow_runner import DataflowRuntimeException
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError

    try:
        with _quiet_threads():
            yield
    except TfpipeError:
        raise
    except DataflowRuntimeException as error:
        raise find_ours(str(error)) or DataError(_why_it_ended(str(error))) from error
    except (GoogleAPIError, GoogleAuthError, OSError) as error:
        said = _REQUEST.sub("", first_line(error))
        raise DataError(f"Dataflow could not be given the job: {said}.") from error
    except ValueError as error:
        if not str(error).startswith(_INVALID):
            raise
        invalid = first_line(ValueError(str(error)[len(_INVALID) :]))
        raise ConfigError(f"Dataflow cannot take these options: {invalid}.") from error
    except AssertionError as error:
        if not str(error).startswith(_LOST):
            raise
        raise DataError(
            "Dataflow could not be asked about the job any more; it goes on. When it has ended, run the same command "
            "again: finished shards are kept."
        ) from error


@contextlib.contextmanager
def _quiet_threads() -> Iterator[None]:
    """Keeps the thread in which Beam asks for the job's state from printing why it could not."""
    before = threading.excepthook
    threading.excepthook = lambda args: _logger.debug("A thread of Beam's ended", exc_info=args.exc_value)
    try:
        yield
    finally:
        threading.excepthook = before


def wait(result: Any) -> None:
    """Waits for a job's end; the runner's own wait says nothing of one that was cancelled before it began to look.

    Raises:
        DataError: It did not end well.
    """
    state = result.wait_until_finish()
    if state != PipelineState.DONE:
        raise DataError(_ended_early(state))


def _ended_early(state: str) -> str:
    return f"The Dataflow job was ended before it was done (it is {state.lower()}). {_GO_ON}"


def _why_it_ended(text: str) -> str:
    """A sentence about a job that did not end well."""
    found = _STATE.match(text)
    state, reason = (found[1], found[2]) if found else ("FAILED", text)
    if state != "FAILED":
        return _ended_early(state)
    raised = _RAISED.findall(reason)  # the innermost comes first, then where Beam caught it
    said = raised[0] if raised else first_line(RuntimeError(reason))
    return f"The Dataflow job failed: {said.rstrip('.')[:300]}. {_GO_ON}"


def _job_name(dataset: str) -> str:
    """`tfpipe-NAME-20261121-093000`, of lower-case letters, digits and dashes, as the service wants it."""
    moment = time.strftime("%Y%m%d-%H%M%S")
    word = re.sub("[^a-z0-9]+", "-", dataset.lower()).strip("-")
    room = _MAX_JOB_NAME - len(f"tfpipe--{moment}")
    return "-".join(part for part in ("tfpipe", word[:room].rstrip("-"), moment) if part)
