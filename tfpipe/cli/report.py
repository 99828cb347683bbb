"""`tfpipe report`: the facts that a report of an error needs."""

import json
import os

import click

from tfpipe.cli.shared.command import command
from tfpipe.cli.shared.inputs import open_files, read_config
from tfpipe.cli.shared.params import config_file_option


@command("Print versions, machine and options for a bug report.")
@click.argument("dataset", required=False)
@config_file_option
def report(dataset: str | None, config: str | None, as_json: bool) -> None:
    """Print the versions, the machine, the options and, with DATASET, its facts, to be pasted into a bug report.

    It holds no paths, no names of hosts, datasets or classes, and no free text. It needs no TensorFlow.
    """
    from tfpipe.doctor.report import format_report, make_report

    data = None if dataset is None else open_files(dataset)
    facts = make_report(os.environ, None if config is None else read_config(config, None), data)
    click.echo(json.dumps(facts) if as_json else format_report(facts))
