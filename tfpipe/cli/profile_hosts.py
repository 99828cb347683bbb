"""`tfpipe profile --hosts`: which host of a training is late, at which stage, and what the others lose."""

import json
from collections.abc import Sequence

import click

from tfpipe.cli.shared.outputs import write_file
from tfpipe.profiler.hosts.compare import compare_hosts
from tfpipe.profiler.hosts.read import read_hosts
from tfpipe.profiler.report.hosts_text_json import find_largest_idle, to_json, to_text


def show_hosts(paths: Sequence[str], as_json: bool, html: str | None) -> float:
    """Reads the files of all hosts, compares them, and prints the report.

    Args:
        paths: Files, the folder of a run, or a folder of files.
        as_json: Whether to print JSON.
        html: The file for a page; None writes none.

    Returns:
        The largest share of time in which the accelerators of a host wait.
    """
    report = compare_hosts(*read_hosts(paths))
    click.echo(json.dumps(to_json(report), allow_nan=False) if as_json else to_text(report), nl=as_json)
    if html is not None:
        from tfpipe.profiler.report.html import render_hosts

        write_file(html, render_hosts(report).encode())
        click.echo(f"Wrote {html}.", err=True)
    return find_largest_idle(report)
