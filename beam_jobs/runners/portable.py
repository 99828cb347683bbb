"""Running the graph by a job service (`--runner=PortableRunner`): Beam's own, or that of a cluster."""

import contextlib
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions, StandardOptions

from beam_jobs.runners.base import BEAM_RUNNERS
from tfpipe.errors import ConfigError, DataError, TfpipeError, first_line

_CONNECT_WITHIN_S = 10
_LONGEST_JOB_S = 30 * 24 * 3600
_EMBEDDED = "embed"  # a job service in this process
_GO_ON = "Finished shards are kept; run the same command again to go on."
_FAILED = re.compile(r"^Pipeline \S+ failed in state (\w+): (.*)", re.DOTALL)
_WORKER_LOST = "Channel closed prematurely"
_DETAILS = re.compile(r'^\s*details = "(.*)"$', re.MULTILINE)  # of a connection, in an error of gRPC
_RAISED = re.compile(r"^[\w.]*(?:Error|Exception): .*", re.MULTILINE)


def is_portable(options: PipelineOptions) -> bool:
    """Whether the graph is to be handed to a job service."""
    runner: str | None = options.view_as(StandardOptions).runner
    return runner == BEAM_RUNNERS["portable"]


def check_options(options: PipelineOptions) -> None:
    """Looks whether there is a job service, before anything is listed.

    Raises:
        ConfigError: None is named.
        DataError: It does not answer.
    """
    endpoint = options.view_as(PortableOptions).job_endpoint
    if not endpoint:
        raise ConfigError("The portable runner needs a job service to run on; give --job-endpoint HOST:PORT.")
    if endpoint == _EMBEDDED:
        return
    with grpc.insecure_channel(endpoint) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=_CONNECT_WITHIN_S)
        except grpc.FutureTimeoutError as error:
            raise DataError(
                f"No job service answers at {endpoint}. Start Beam's own with: python -m "
                "apache_beam.runners.portability.local_job_service_main --port PORT"
            ) from error


def is_loopback(options: PipelineOptions) -> bool:
    """Whether the job's one worker is a thread of this process."""
    return bool(options.view_as(PortableOptions).environment_type == "LOOPBACK")


@contextlib.contextmanager
def prepared(options: PipelineOptions, find_ours: Callable[[str], TfpipeError | None]) -> Iterator[None]:
    """Completes the options for the block that submits the job and waits, and keeps what Beam logs in it silent.

    Args:
        options: Beam's, changed in place.
        find_ours: Finds an error of ours in a traceback.

    Raises:
        DataError: The job failed or was ended, a worker died, or the job service is gone.
    """
    portable = options.view_as(PortableOptions)
    # Beam also ends its looking on after this time, a minute by default, and with it the job's workers.
    portable.job_server_timeout = max(portable.job_server_timeout or 0, _LONGEST_JOB_S)
    root, nothing = logging.getLogger(), logging.NullHandler()
    root.addHandler(nothing)  # else Beam's logging on the root logger would open one on the terminal
    root.addFilter(_is_not_of_the_job)
    try:
        yield
    except grpc.RpcError as error:
        raise DataError(f"The connection to the job service was lost. {_GO_ON}") from error
    except RuntimeError as error:
        found = _FAILED.match(str(error))
        if found is None:
            raise
        raise find_ours(found[2]) or DataError(f"{_why_it_ended(found[1], found[2])} {_GO_ON}") from error
    finally:
        root.removeFilter(_is_not_of_the_job)
        root.removeHandler(nothing)


def wait(result: Any) -> None:
    """Waits for the job's end, and cancels it when this process is interrupted; `result` is what Beam's `run` gave."""
    try:
        result.wait_until_finish()
    except KeyboardInterrupt:
        with contextlib.suppress(grpc.RpcError):
            result.cancel()
        raise


def _why_it_ended(state: str, text: str) -> str:
    if state != "FAILED":
        return f"The job was ended before it was done (it is {state.lower()})."
    if _WORKER_LOST in text:
        return "A Beam worker process died: it was killed, or memory ran out."
    found = _DETAILS.findall(text) or _RAISED.findall(text)
    return f"The job failed: {(found[-1] if found else first_line(RuntimeError(text))).rstrip('.')[:300]}."


def _is_not_of_the_job(record: logging.LogRecord) -> bool:
    """Beam hands on the job's messages, tracebacks included, which come as an error too."""
    return record.module != "portable_runner"
