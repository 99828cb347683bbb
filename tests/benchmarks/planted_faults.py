"""Plants faults in real pipelines and prints what the profiler says, and whether following it gives what it promised.

python tests/benchmarks/planted_faults.py [--only NAME] [--json]
"""

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).parents[1] / "profiler" / "faults"))

from planting import FAULTS, run_fault


@click.command()
@click.option("--only", multiple=True, help="Only this fault; may be given several times.")
@click.option("--data", type=click.Path(), help="Where the images and shards are kept.  [default: a new folder]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(only: tuple[str, ...], data: str | None, as_json: bool) -> None:
    """Each fault in a process of its own, a minute or two each."""
    unknown = set(only) - set(FAULTS)
    if unknown:
        raise click.UsageError(f"There is no fault {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}.")
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in only or FAULTS:
            found.append(run_fault(name, Path(data or folder)))
            if not as_json:
                click.echo(line(found[-1]))
    errors = [abs(one["ratio"] - 1) for one in found if one.get("ratio")]
    median = statistics.median(errors) if errors else None
    if as_json:
        click.echo(json.dumps({"faults": found, "median_error": median}))
        return
    right = sum(one["right_stage"] and one["right_fix"] for one in found)
    click.echo(f"{right} of {len(found)} have the right wall and the right first fix.")
    if median is not None:
        click.echo(f"Median of |measured / predicted - 1|: {median:.1%}; the largest: {max(errors):.1%}.")


def line(one: dict[str, Any]) -> str:
    """A fault as a few lines."""
    marks = [
        f"{one[key]}{'' if one[f'right_{kind}'] else ' (WRONG)'}" for kind, key in (("stage", "stage"), ("fix", "fix"))
    ]
    text = (
        f"{one['fault']}: the wall is {marks[0]}. {one['proof']}\n"
        f"    {one['before']:,.0f} images/s; first fix: {marks[1]}"
    )
    if "ratio" in one:
        text += (
            f"\n    predicted {one['predicted']:,.0f}, measured {one['measured']:,.0f} images/s: {one['ratio']:.2f}; "
            f"first batch {one['first_batch_s'][0]:.1f} s, then {one['first_batch_s'][1]:.1f} s"
        )
    return text


if __name__ == "__main__":
    main()
