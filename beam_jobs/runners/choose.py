"""Chooses a runner by its name in Beam's options."""

from collections.abc import Sequence

from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

from beam_jobs.runners.base import Runner
from beam_jobs.runners.dask import DaskRunner, load_dask_options
from beam_jobs.runners.dataflow import DataflowRunner
from beam_jobs.runners.direct import DirectRunner
from beam_jobs.runners.portable import PortableRunner
from tfpipe.errors import ConfigError

_RUNNERS: dict[str | None, type[Runner]] = {
    None: DirectRunner,
    "DirectRunner": DirectRunner,
    "FnApiRunner": DirectRunner,
    "SwitchingDirectRunner": DirectRunner,
    "DataflowRunner": DataflowRunner,
    "DaskRunner": DaskRunner,
    "PortableRunner": PortableRunner,
}


def make_runner(beam_args: Sequence[str]) -> Runner:
    """Returns the runner that `--runner` names in Beam's arguments; without it, Beam's own of this machine.

    Raises:
        ConfigError: Beam does not know an option.
        MissingDependencyError: The runner needs a package that is not installed.
    """
    # Beam knows the options of Dask's runner only once that is imported.
    if any(_class_name(argument.rpartition("=")[2]) == "DaskRunner" for argument in beam_args):
        load_dask_options()
    options = _parse_options(beam_args)
    runner: str | None = options.view_as(StandardOptions).runner
    return _RUNNERS.get(runner and _class_name(runner), Runner)(options)


def _class_name(runner: str) -> str:
    """Returns the name of a runner's class; Beam also takes the whole path of the class."""
    return runner.rpartition(".")[2]


def _parse_options(beam_args: Sequence[str]) -> PipelineOptions:
    # The main session need not be pickled: all that workers need lies in modules.
    options = PipelineOptions([*beam_args, "--no_save_main_session"])
    known_options = options.get_all_options(retain_unknown_options=False)
    unknown_options = options.get_all_options(retain_unknown_options=True).keys() - known_options.keys()
    if unknown_options:  # Beam itself would ignore it
        raise ConfigError(f"Options after -- must be known to Beam, got --{min(unknown_options)}.")
    return options
