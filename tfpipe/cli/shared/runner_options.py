"""Where a job runs: the options that `shard`, `reshard` and `merge` share."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import click

from beam_jobs.prices import Prices
from beam_jobs.runners.base import BEAM_RUNNERS, RunnerConfig
from tfpipe.cli.shared.params import all_options
from tfpipe.errors import ConfigError

engine_options = all_options(
    click.option(
        "--runner",
        type=click.Choice(list(BEAM_RUNNERS)),
        default=RunnerConfig.runner,
        show_default=True,
        help="Where the job runs: direct is this machine.",
    ),
    click.option("--project", metavar="ID", help="Dataflow: project of Google Cloud."),
    click.option("--region", help="Dataflow: such as europe-west4; where the buckets are."),
    click.option("--max-workers", type=int, metavar="N", help="Dataflow: so many machines.  [default: up to it]"),
    click.option("--machine-type", metavar="TYPE", help="Dataflow: such as n2-standard-4."),
    click.option("--service-account", metavar="EMAIL", help="Dataflow: whom the machines work as."),
    click.option("--network", metavar="NAME", help="Dataflow: network of the machines."),
    click.option("--subnetwork", metavar="PATH", help="Dataflow: as regions/REGION/subnetworks/NAME."),
    click.option("--temp-location", metavar="URL", help="Dataflow: folder on gs://.  [default: in OUTPUT]"),
    click.option("--dask-address", metavar="URL", help="Dask: tcp://HOST:PORT.  [default: a cluster on this machine]"),
    click.option("--job-endpoint", metavar="HOST:PORT", help="Portable: a job service of Beam's."),
    click.option("--worker-pool", metavar="HOST:PORT", help="Portable: Beam's worker pool.  [default: this process]"),
    click.option("--print-command", is_flag=True, help="Print the job as a command for a scheduler and stop."),
)
"""Adds the options to a command."""


@dataclass(frozen=True)
class HowToRun:
    """What a command was told about running its job.

    Attributes:
        beam_args: All arguments for Beam, those of the engine first.
        dry_run: Plan only.
        print_command: Print the job as a command only.
        as_json: Print one JSON object.
        prices: For the cost of a dry run.
    """

    beam_args: tuple[str, ...]
    dry_run: bool
    print_command: bool
    as_json: bool
    prices: Prices

    @classmethod
    def take(cls, options: dict[str, Any], beam_args: Sequence[str]) -> "HowToRun":
        """Takes what is its own out of a command's options.

        Raises:
            ConfigError: Options do not go together.
        """
        runner = RunnerConfig(**{one.name: options.pop(one.name) for one in fields(RunnerConfig)})
        named = next((arg for arg in beam_args if arg.split("=")[0] == "--runner"), None)
        if runner.runner != RunnerConfig.runner and named is not None:
            raise ConfigError(
                f"--runner {runner.runner} and {named} after -- exclude each other. Leave one of them out."
            )
        flags = {name: options.pop(name) for name in ("dry_run", "print_command", "as_json")}
        prices = Prices(*(options.pop(f"price_{name}") for name in ("per_vcpu_hour", "per_gib_month")))
        if prices != Prices() and not flags["dry_run"]:
            raise ConfigError("Prices are for --dry-run, which estimates a cost. Add it, or leave them out.")
        return cls((*runner.beam_args(), *beam_args), **flags, prices=prices)
