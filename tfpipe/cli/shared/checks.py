"""Checks as people read them: a line for each as soon as it is done, then one line on all of them."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal, NoReturn

import click

from tfpipe.cli.shared.console import clean_line, new_console
from tfpipe.errors import SENTENCE_END
from tfpipe.system.units import human_count

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {"ok": "green", "warning": "yellow", "failure": "bold red", "skipped": "dim"}
_NAME_WIDTH = 12


@dataclass(frozen=True)
class Check:
    """The result of one check: what was found, and what to do about it, if anything."""

    name: str
    status: Literal["ok", "warning", "failure", "skipped"]
    found: str
    advice: str = ""


def fail_check(name: str, error: BaseException) -> Check:
    """Returns a failed check for an error. The error's first sentence is the finding, the rest is the advice."""
    finding, *advice = SENTENCE_END.split(str(error).strip(), maxsplit=1)
    return Check(name, "failure", finding, *advice)


def show_checks(checks: Iterable[Check], as_json: bool) -> NoReturn:
    """Prints checks, and exits: with code 1 if one of them failed."""
    console = new_console()
    results = []
    for check in checks:
        results.append(check)
        if not as_json:
            _print_check(console, check)
    passed = all(check.status != "failure" for check in results)
    if as_json:
        click.echo(json.dumps({"checks": [asdict(check) for check in results], "ok": passed}))
    else:
        counts = Counter(check.status for check in results)
        warnings, failures = human_count(counts["warning"], "warning"), human_count(counts["failure"], "failure")
        skipped = f", {counts['skipped']} skipped" if counts["skipped"] else ""
        console.print(f"{'Ready' if passed else 'Not ready'}: {counts['ok']} ok, {warnings}, {failures}{skipped}.")
    raise SystemExit(0 if passed else 1)


def _print_check(console: "Console", check: Check) -> None:
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
