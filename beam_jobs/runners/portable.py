"""The runner for a job service (`--runner=PortableRunner`): Beam's own service, or the service of a cluster."""

import contextlib
import logging
import re
from collections.abc import Iterator
from typing import Any

import grpc
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions

from beam_jobs.config import ShardConfig
from beam_jobs.runners.base import Job, Runner
from beam_jobs.runners.beam_errors import GO_ON, find_error, find_raised
from tfpipe.errors import ConfigError, DataError, first_line
from tfpipe.system.host_limits import usable_cpus

_CONNECT_WITHIN_S = 10
_MAX_JOB_S = 30 * 24 * 3600
_EMBEDDED = "embed"  # Beam's word for a job service in this process
_FAILED = re.compile(r"^Pipeline \S+ failed in state (\w+): (.*)", re.DOTALL)
_WORKER_LOST = "Channel closed prematurely"
_CONNECTION_DETAILS = re.compile(r'^\s*details = "(.*)"$', re.MULTILINE)  # in an error of gRPC


class PortableRunner(Runner):
    """A job on a job service. Its worker is a thread of this process ("loopback") or a process of a worker pool."""

    def __init__(self, options: PipelineOptions) -> None:
        super().__init__(options)
        self._portable_options = options.view_as(PortableOptions)

    def check(self, config: ShardConfig) -> None:
        """Checks that the job service answers.

        Raises:
            ConfigError: No job service is named, or its workers cannot reach the output.
            DataError: The job service does not answer.
        """
        endpoint = self._portable_options.job_endpoint
        if not endpoint:
            raise ConfigError("The portable runner needs a job service to run on; give `job_endpoint` HOST:PORT.")
        if endpoint == _EMBEDDED:
            return
        self.check_shared(config)
        with grpc.insecure_channel(endpoint) as channel:
            try:
                grpc.channel_ready_future(channel).result(timeout=_CONNECT_WITHIN_S)
            except grpc.FutureTimeoutError as error:
                raise DataError(
                    f"No job service answers at {endpoint}. Start Beam's own with: python -m "
                    "apache_beam.runners.portability.local_job_service_main --port PORT"
                ) from error

    def get_pool_workers(self, workers: int) -> int:
        """Returns the processes of the one worker; in this process one for each core by default."""
        is_loopback = self._portable_options.environment_type == "LOOPBACK"
        return workers or (usable_cpus() if is_loopback else 0)

    @contextlib.contextmanager
    def prepare(self, job: Job) -> Iterator[None]:
        """Lets the job take long, and silences Beam's log in the block.

        Raises:
            DataError: The job failed or was ended, a worker died, or the job service is gone.
        """
        # After this time, a minute by default, Beam stops watching the job, which also ends the job's workers.
        timeout_s = self._portable_options.job_server_timeout or 0
        self._portable_options.job_server_timeout = max(timeout_s, _MAX_JOB_S)
        root_logger, no_output = logging.getLogger(), logging.NullHandler()
        root_logger.addHandler(no_output)  # without one, Beam's logging would open a handler on the terminal
        root_logger.addFilter(_is_not_from_job)
        try:
            yield
        except grpc.RpcError as error:
            raise DataError(f"The connection to the job service was lost. {GO_ON}") from error
        except RuntimeError as error:
            failure = _FAILED.match(str(error))
            if failure is None:
                raise
            state, text = failure.groups()
            raise find_error(text) or DataError(f"{_explain_end(state, text)} {GO_ON}") from error
        finally:
            root_logger.removeFilter(_is_not_from_job)
            root_logger.removeHandler(no_output)

    def wait(self) -> list[Any]:
        """Waits for the end of the job, and cancels the job when this process is interrupted."""
        try:
            return super().wait()
        except KeyboardInterrupt:
            with contextlib.suppress(grpc.RpcError):
                self._result.cancel()
            raise


def _explain_end(state: str, text: str) -> str:
    """Returns a sentence about a job that ended in `state` with the service's message `text`."""
    if state != "FAILED":
        return f"The job was ended before it was done (it is {state.lower()})."
    if _WORKER_LOST in text:
        return "A Beam worker process died: it was killed, or memory ran out."
    reasons = _CONNECTION_DETAILS.findall(text) or find_raised(text)
    reason = reasons[-1] if reasons else first_line(RuntimeError(text))
    return f"The job failed: {reason.rstrip('.')[:300]}."


def _is_not_from_job(record: logging.LogRecord) -> bool:
    """Returns False for messages of the job. Beam logs them with tracebacks, and also raises them as an error."""
    return record.module != "portable_runner"
