"""The options of `shard`, `reshard` and `merge` for the runner, the place where the job runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from beam_jobs.runners.base import RunnerConfig
from tfpipe.cli.shared.config_option import config_option, take
from tfpipe.cli.shared.params import all_options
from tfpipe.errors import ConfigError

runner_options = all_options(
    config_option(RunnerConfig, "runner", "Where the job runs; local means this machine, direct Beam on it."),
    config_option(RunnerConfig, "project", metavar="ID"),
    config_option(RunnerConfig, "region", metavar="NAME"),
    config_option(RunnerConfig, "max_workers", metavar="N", default="the service decides"),
    config_option(RunnerConfig, "machine_type", metavar="TYPE"),
    config_option(RunnerConfig, "service_account", metavar="EMAIL"),
    config_option(RunnerConfig, "network", metavar="NAME"),
    config_option(RunnerConfig, "subnetwork", metavar="PATH"),
    config_option(RunnerConfig, "temp_location", metavar="URL", default="in OUTPUT"),
)
"""Adds the options to a command."""
print_command_option = click.option(
    "--print-command", is_flag=True, help="Print the job as one command line, for a scheduler to run, and stop."
)


def refuse_path(beam_args: Sequence[str], expected: str, advice: str = "") -> None:
    """Refuses a path among the arguments for Beam.

    Args:
        beam_args: The arguments behind the paths of a command.
        expected: The begin of a sentence, as in "INPUT and OUTPUT must be two paths, got a third".
        advice: A further sentence.

    Raises:
        ConfigError: There is a path.
    """
    if beam_args and not beam_args[0].startswith("-"):
        text = f"{expected}, {beam_args[0]!r}. Write options for Beam after --. {advice}"
        raise ConfigError(text.rstrip())


@dataclass(frozen=True)
class RunArgs:
    """The options of a command for the run of its job.

    Attributes:
        beam_args: All arguments for Beam, those of the runner first.
        dry_run: Whether to plan only.
        print_command: Whether to print the job as a command only.
        as_json: Whether to print one JSON object.
    """

    beam_args: tuple[str, ...]
    dry_run: bool
    print_command: bool
    as_json: bool

    @classmethod
    def take(cls, options: dict[str, Any], beam_args: Sequence[str]) -> "RunArgs":
        """Removes its options from a command's options.

        Raises:
            ConfigError: Options do not go together.
        """
        runner = RunnerConfig(**take(RunnerConfig, options))
        named = next((arg for arg in beam_args if arg.split("=")[0] == "--runner"), None)
        if runner.runner != RunnerConfig.runner and named is not None:
            raise ConfigError(
                f"--runner {runner.runner} and {named} after -- exclude each other. Leave one of them out."
            )
        flags = {name: options.pop(name, False) for name in ("dry_run", "print_command", "as_json")}
        if options["num_shards"] is not None and options["shard_size_bytes"] is not None:
            raise ConfigError("--num-shards and --shard-size exclude each other. Leave one of them out.")
        if flags["print_command"] and (flags["dry_run"] or flags["as_json"]):
            raise ConfigError("--print-command prints one line and stops. Leave out --dry-run and --json.")
        return cls((*runner.beam_args(), *beam_args), **flags)
