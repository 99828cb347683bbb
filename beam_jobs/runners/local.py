"""Running the graph on this machine: which of Beam's local runners, and what it must be kept from doing.

Since Beam 2.68 the default runner first tries to download a Go program, and waits for ever behind a proxy that
does not answer; `FnApiRunner` is the same local runner without that. Its own worker processes
(`--direct_running_mode=multi_processing`) log to the terminal, and when one is killed it waits for ever.
"""

import contextlib
import logging
import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions
from apache_beam.portability.api import beam_provision_api_pb2
from apache_beam.runners.portability.fn_api_runner.fn_runner import ExtendedProvisionInfo, FnApiRunner
from apache_beam.transforms import environments
from google.protobuf import json_format, struct_pb2

from beam_jobs.runners import dask
from tfpipe.errors import ConfigError, DataError

_logger = logging.getLogger(__name__)
_LOCAL_RUNNERS = (None, "DirectRunner", "FnApiRunner", "SwitchingDirectRunner")
_GRACE_S = 0.5  # for this process to end by itself, when a worker ended because the job is over
_WORKER_THREAD = "run_worker"  # the name that Beam gives the thread which waits for a worker process


def is_local(options: PipelineOptions) -> bool:
    """Whether the graph is to run on this machine by Beam's own Python runner."""
    return options.view_as(StandardOptions).runner in _LOCAL_RUNNERS


def pool_workers(options: PipelineOptions, workers: int) -> int:
    """Processes of the pool inside the step: none where Beam is asked to start workers of its own."""
    return workers if options.view_as(DirectOptions).direct_running_mode == "in_memory" else 0


def local_runner(options: PipelineOptions, workers: int) -> Any:
    """The local runner; reaches for no network."""
    direct = options.view_as(DirectOptions)
    environment = None
    if direct.direct_running_mode != "in_memory" and direct.direct_num_workers == 1:
        direct.direct_num_workers = workers
    if direct.direct_running_mode == "multi_processing":
        # The same as this mode, but for the command, which the runner would choose itself. Beam gives it to a shell;
        # "exec" leaves none between, which Ctrl-C would kill and so make it look like a death.
        command = "exec " + shlex.join([sys.executable, "-m", "beam_jobs.runners.local_beam_worker", str(os.getpid())])
        environment = environments.SubprocessSDKEnvironment.from_command_string(command)
        direct.direct_running_mode = "in_memory"
    harness = struct_pb2.Struct()
    # Above every level: an interrupted worker would print its traceback as critical.
    json_format.ParseDict({"default_sdk_harness_log_level": str(logging.CRITICAL + 1)}, harness)
    info = beam_provision_api_pb2.ProvisionInfo(retrieval_token="unused", pipeline_options=harness)
    return FnApiRunner(environment, provision_info=ExtendedProvisionInfo(info))


@contextlib.contextmanager
def fail_on_worker_death() -> Iterator[None]:
    """Ends the block with a `DataError` when one of Beam's worker processes dies, where Beam would wait for ever."""
    died, over = threading.Event(), threading.Event()
    before = threading.excepthook

    def hook(args: Any) -> None:
        if isinstance(args.exc_value, grpc.RpcError):  # Beam's own threads, cut off from the dead worker
            _logger.debug("Connection to a Beam worker lost", exc_info=args.exc_value)
        elif args.thread is None or args.thread.name != _WORKER_THREAD:
            before(args)
        elif not over.wait(_GRACE_S) and not died.is_set():
            died.set()
            if hasattr(signal, "pthread_kill"):  # wakes the main thread out of its waiting
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            else:
                os.kill(os.getpid(), signal.SIGINT)

    threading.excepthook = hook
    try:
        yield
    except BaseException as error:
        if died.is_set():
            raise DataError(
                "A Beam worker process died: it was killed, or memory ran out. Finished shards are kept; run the same "
                "command again to go on."
            ) from error
        raise
    finally:
        over.set()
        threading.excepthook = before


def parse_options(beam_args: Sequence[str]) -> PipelineOptions:
    """Beam's options. The main session is never pickled: all that workers need lies in modules.

    Raises:
        ConfigError: Beam knows no such option; Beam itself passes over it.
    """
    if any(dask.names_dask(arg.rpartition("=")[2]) for arg in beam_args):
        dask.load_options()
    options = PipelineOptions([*beam_args, "--no_save_main_session"])
    known = options.get_all_options(retain_unknown_options=False)
    unknown = options.get_all_options(retain_unknown_options=True).keys() - known.keys()
    if unknown:
        raise ConfigError(f"Options after -- must be known to Beam, got --{min(unknown)}.")
    return options
