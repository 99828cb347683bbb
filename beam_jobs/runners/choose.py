"""Chooses a runner by its name in Beam's options."""

from collections.abc import Sequence

from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.runners.runner import create_runner

from beam_jobs.runners.base import Runner
from beam_jobs.runners.dataflow import DataflowRunner
from beam_jobs.runners.direct import DirectRunner
from tfpipe.errors import ConfigError, first_line

_RUNNERS: dict[str | None, type[Runner]] = {
    None: DirectRunner,
    "DirectRunner": DirectRunner,
    "FnApiRunner": DirectRunner,
    "SwitchingDirectRunner": DirectRunner,
    "DataflowRunner": DataflowRunner,
}


def make_runner(beam_args: Sequence[str]) -> Runner:
    """Returns the runner that `--runner` names in Beam's arguments; without it, Beam's own of this machine.

    Raises:
        ConfigError: Beam does not know the runner or an option.
    """
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
