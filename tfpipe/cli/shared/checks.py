"""Checks as people read them: a line for each as soon as it is done, then one line on all of them."""

import json
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn

import click

from tfpipe.cli.shared.console import clean_line, new_console
from tfpipe.system.units import human_count

if TYPE_CHECKING:
    from rich.console import Console

    from tfpipe.doctor.result import Check

_STYLES = {"ok": "green", "warning": "yellow", "failure": "bold red", "skipped": "dim"}
_NAME_WIDTH = 12


def show_checks(checks: "Iterable[Check]", as_json: bool) -> NoReturn:
    """Prints checks, and exits: with code 1 if one of them failed."""
    console = new_console()
    results = []
    for check in checks:
        results.append(check)
        if not as_json:
            _print_check(console, check)
    passed = all(check.status != "failure" for check in results)
    if as_json:
        click.echo(json.dumps({"checks": [check.to_json() for check in results], "ok": passed}))
    else:
        counts = Counter(check.status for check in results)
        warnings, failures = human_count(counts["warning"], "warning"), human_count(counts["failure"], "failure")
        skipped = f", {counts['skipped']} skipped" if counts["skipped"] else ""
        console.print(f"{'Ready' if passed else 'Not ready'}: {counts['ok']} ok, {warnings}, {failures}{skipped}.")
    raise SystemExit(0 if passed else 1)


def _print_check(console: "Console", check: "Check") -> None:
    """Prints what was found, and below it what to do about it."""
    from rich.table import Table
    from rich.text import Text

    line = Table.grid(padding=(0, 2, 0, 0))
    line.add_column(width=max(map(len, _STYLES)), no_wrap=True)
    line.add_column(width=_NAME_WIDTH, no_wrap=True)
    line.add_column(overflow="fold")
    text = Text(clean_line(check.found))
    if check.advice:
        text.append(f"\n→ {clean_line(check.advice)}", "dim" if check.status == "ok" else "")
    line.add_row(Text(check.status, _STYLES[check.status]), Text(check.name, "bold"), text)
    console.print(line)
