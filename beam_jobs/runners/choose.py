"""Chooses a runner by its name in Beam's options: that of Dataflow, or Beam's own of this machine, `FnApiRunner`.

Beam's default runner first tries to download a Go program, and waits forever behind a proxy that does not answer.
"""

import logging
from collections.abc import Sequence
from typing import Any

from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions
from apache_beam.portability.api import beam_provision_api_pb2
from apache_beam.runners.portability.fn_api_runner.fn_runner import ExtendedProvisionInfo, FnApiRunner
from apache_beam.runners.runner import create_runner
from google.protobuf import json_format, struct_pb2

from beam_jobs.runners.base import LocalRunner, Runner
from beam_jobs.runners.dataflow import DataflowRunner
from beam_jobs.shards.job import Job
from tfpipe.errors import ConfigError, first_line

_SILENT = str(logging.CRITICAL + 1)  # an interrupted worker would print its traceback as critical


class DirectRunner(LocalRunner):
    """A graph on this machine. A pool of processes writes the shards, unless Beam's options ask for workers of Beam."""

    def __init__(self, options: PipelineOptions) -> None:
        super().__init__(options)
        mode = options.view_as(DirectOptions).direct_running_mode
        if mode == "multi_processing":
            raise ConfigError(
                "`direct_running_mode` must be in_memory or multi_threading, got multi_processing, whose workers all "
                "import Beam. Leave it out; `workers` are processes without Beam."
            )
        self._in_memory, self._workers = mode == "in_memory", 0

    def get_pool_workers(self, workers: int) -> int:
        """Returns the size of the pool: one process for each core by default, 0 if Beam starts workers."""
        self._workers = super().get_pool_workers(workers)
        return self._workers if self._in_memory else 0

    def make_beam_runner(self, job: Job) -> Any:
        """Returns a runner that uses no network."""
        direct = self.options.view_as(DirectOptions)
        if not self._in_memory and direct.direct_num_workers == 1:
            direct.direct_num_workers = self._workers
        harness_options = struct_pb2.Struct()
        json_format.ParseDict({"default_sdk_harness_log_level": _SILENT}, harness_options)
        info = beam_provision_api_pb2.ProvisionInfo(retrieval_token="unused", pipeline_options=harness_options)
        return FnApiRunner(provision_info=ExtendedProvisionInfo(info))


_RUNNERS: dict[str | None, type[Runner]] = {
    None: DirectRunner,
    "DirectRunner": DirectRunner,
    "FnApiRunner": DirectRunner,
    "SwitchingDirectRunner": DirectRunner,
    "DataflowRunner": DataflowRunner,
}


def make_runner(beam_args: Sequence[str]) -> Runner:
    """Returns the runner that `--runner` names in Beam's arguments; without it, Beam's own of this machine."""
    # The main session need not be pickled: all that workers need lies in modules.
    options = PipelineOptions([*beam_args, "--no_save_main_session"])
    name: str | None = options.view_as(StandardOptions).runner
    runner_class = _RUNNERS.get(name and name.rpartition(".")[2], Runner)  # Beam also takes the whole path of a class
    if name and runner_class is Runner:
        try:
            create_runner(name)  # its import also registers its options
        except (ValueError, ImportError, AttributeError) as error:
            raise ConfigError(f"`runner` must be one that Beam can load, got {name}: {first_line(error)}.") from error
    known_options = options.get_all_options(retain_unknown_options=False)
    unknown_options = options.get_all_options(retain_unknown_options=True).keys() - known_options.keys()
    if unknown_options:  # Beam itself would ignore it
        raise ConfigError(f"Options after -- must be known to Beam, got --{min(unknown_options)}.")
    return runner_class(options)
