"""The display of checks: a line for each check as soon as it is done, and a summary line at the end."""

import json
import os
import shutil
import textwrap
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NoReturn

import click

from tfpipe.cli.shared.command import name_options
from tfpipe.cli.shared.console import clean_line
from tfpipe.errors import SENTENCE_END
from tfpipe.system.units import human_count

_STYLES: dict[str, Any] = {"ok": {"fg": "green"}, "warning": {"fg": "yellow"}, "failure": {"fg": "red", "bold": True}}
_INDENT = 23  # the column at which findings begin


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
    """Prints checks, with options in place of config fields, and exits: with code 1 if a check failed."""
    results, running = [], click.get_current_context().command
    for one in checks:
        check = replace(one, found=name_options(one.found, running), advice=name_options(one.advice, running))
        results.append(check)
        if not as_json:
            width = max(shutil.get_terminal_size().columns - _INDENT, 20)
            texts = [check.found, *([f"→ {check.advice}"] if check.advice else [])]
            lines = [line for text in texts for line in textwrap.wrap(clean_line(text), width, break_on_hyphens=False)]
            status = click.style(f"{check.status:9}", **_STYLES.get(check.status, {"dim": True}))
            text = status + click.style(f"{check.name:14}", bold=True) + f"\n{' ' * _INDENT}".join(lines)
            click.echo(text, color=False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None)
    passed = all(check.status != "failure" for check in results)
    if as_json:
        click.echo(json.dumps({"checks": [asdict(check) for check in results], "ok": passed}))
    else:
        counts = Counter(check.status for check in results)
        warnings, failures = human_count(counts["warning"], "warning"), human_count(counts["failure"], "failure")
        skipped = f", {counts['skipped']} skipped" if counts["skipped"] else ""
        click.echo(f"{'Ready' if passed else 'Not ready'}: {counts['ok']} ok, {warnings}, {failures}{skipped}.")
    raise SystemExit(0 if passed else 1)
