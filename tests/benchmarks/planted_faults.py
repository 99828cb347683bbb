"""Plants faults in real pipelines, and prints what the profiler says and whether its first fix gives what it promised.

python tests/benchmarks/planted_faults.py [--only NAME] [--json]
python tests/benchmarks/planted_faults.py --loader           # the same for loaders of PyTorch and Grain
"""

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.profiler.faults.cases import FAULTS
from tests.profiler.faults.loader_cases import FAULTS as LOADER_FAULTS
from tests.profiler.faults.run_in_process import run_fault, run_loader_fault


@click.command()
@click.option("--only", multiple=True, help="Only this fault; may be given several times.")
@click.option("--data", type=click.Path(), help="Where the images and shards are kept.  [default: a new folder]")
@click.option("--loader", is_flag=True, help="Plant the faults of loaders.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(only: tuple[str, ...], data: str | None, loader: bool, as_json: bool) -> None:
    """Run each fault in a process of its own, for a minute or two."""
    faults = list(LOADER_FAULTS if loader else FAULTS)
    unknown = set(only) - set(faults)
    if unknown:
        raise click.UsageError(f"There is no fault {', '.join(sorted(unknown))}; there are {', '.join(faults)}.")
    results: list[dict[str, Any]] = []
    if loader:
        with tempfile.TemporaryDirectory() as folder:
            for name in only or faults:
                results.append(run_loader_fault(name, Path(data or folder)))
                if not as_json:
                    click.echo(format_loader_result(results[-1]))
        print_loader_summary(results, as_json)
        return
    with tempfile.TemporaryDirectory() as folder:
        for name in only or FAULTS:
            results.append(run_fault(name, Path(data or folder)))
            if not as_json:
                click.echo(format_result(results[-1]))
    errors = [abs(result["ratio"] - 1) for result in results if result.get("ratio")]
    median = statistics.median(errors) if errors else None
    if as_json:
        click.echo(json.dumps({"faults": results, "median_error": median}))
        return
    right = sum(result["right_stage"] and result["right_fix"] for result in results)
    click.echo(f"{right} of {len(results)} have the right bottleneck and the right first fix.")
    if median is not None:
        click.echo(f"Median of |measured / predicted - 1|: {median:.1%}; the largest: {max(errors):.1%}.")


def print_loader_summary(results: list[dict[str, Any]], as_json: bool) -> None:
    """Prints how many walls and first fixes were right, and how far the predictions were from what was measured."""
    errors = [abs(result["measured"] / result["predicted"] - 1) for result in results if "measured" in result]
    median = statistics.median(errors) if errors else None
    if as_json:
        click.echo(json.dumps({"faults": results, "median_error": median}))
        return
    walls = sum(result["right_wall"] for result in results)
    fixes = sum(result["right_fix"] for result in results)
    helps = sum(result["measured"] > 1 for result in results if "measured" in result)
    click.echo(
        f"{walls} of {len(results)} have the right bottleneck, {fixes} the right first fix; {helps} of {len(errors)} "
        "that were tried help."
    )
    if median is not None:
        click.echo(f"Median of |measured / predicted - 1|: {median:.1%}; the largest: {max(errors):.1%}.")


def format_loader_result(result: dict[str, Any]) -> str:
    """Returns the result of a loader's fault as a few lines."""
    wall, fix = ("" if result[key] else " (WRONG)" for key in ("right_wall", "right_fix"))
    text = f"{result['fault']}: {result['wall']}{wall}. {result['proof']}\n    first fix: {result['fix']}{fix}"
    if "measured" in result:
        text += f"\n    predicted x {result['predicted']:.2f}, measured x {result['measured']:.2f}"
    return text


def format_result(result: dict[str, Any]) -> str:
    """Returns the result of a fault as a few lines."""
    marks = [
        f"{result[key]}{'' if result[f'right_{kind}'] else ' (WRONG)'}"
        for kind, key in (("stage", "stage"), ("fix", "fix"))
    ]
    text = (
        f"{result['fault']}: the bottleneck is {marks[0]}. {result['proof']}\n"
        f"    {result['before']:,.0f} images/s; first fix: {marks[1]}"
    )
    if "ratio" in result:
        text += (
            f"\n    predicted {result['predicted']:,.0f}, measured {result['measured']:,.0f} images/s: "
            f"{result['ratio']:.2f}"
        )
    return text


if __name__ == "__main__":
    main()
