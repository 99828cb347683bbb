"""cedar's SimCLR pipeline as plain tf.data, and as stages of tfpipe; README.md has the details.

python tests/benchmarks/cedar/compare.py IMAGES --rounds 5 --json simclr.json
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.benchmarks.batch_times import PERIOD_S, measure
from tests.benchmarks.shard_speed import make_references

ROOT = Path(__file__).resolve().parents[3]
PLAIN, GREY_FIRST, TFPIPE, MOVED = ROWS = (
    "plain tf.data",
    "plain tf.data, grey first by hand",
    "tfpipe",
    "tfpipe, grey moved",
)


@click.command()
@click.argument("images", type=click.Path(exists=True, file_okay=False))
@click.option("--references", default=6000, show_default=True, help="Hard links to the images, in turns.")
@click.option("--seconds", default=2 * PERIOD_S, show_default=True, help="How long a row is measured in a round.")
@click.option("--rounds", default=5, show_default=True, help="Every row runs once a round, in a new process.")
@click.option("--tmp", type=click.Path(), help="Where the shards are written.  [default: the system's]")
@click.option("--json", "json_file", type=click.Path(), help="Write all runs to this file.")
def main(images: str, references: int, seconds: float, rounds: int, tmp: str | None, json_file: str | None) -> None:
    """Measure the pipelines over the folder IMAGES, in turns, and print the median of each."""
    with tempfile.TemporaryDirectory(dir=tmp) as folder:
        make_references(Path(images), Path(folder, "images"), references)
        _run("tfpipe", "shard", f"{folder}/images", f"{folder}/shards", "--num-shards", "16")
        runs: list[dict[str, Any]] = []
        for _ in range(rounds):
            for row in ROWS:
                child = [sys.executable, __file__, "--child", folder, row, str(seconds)]
                done = subprocess.run(child, cwd=ROOT, capture_output=True, text=True, check=False)
                if done.returncode:
                    raise click.ClickException(f"{row} failed:\n{done.stderr[-2000:]}")
                runs.append({"row": row, **json.loads(done.stdout.splitlines()[-1])})
                click.echo(f"{runs[-1]['images_per_cpu_s']:8,.0f}  {row}", err=True)
    if json_file:
        Path(json_file).write_text(json.dumps({"runs": runs}, indent=1) + "\n")
    click.echo(format_table(runs))


def _run(module: str, *arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, *arguments], cwd=ROOT, stdout=sys.stderr, check=False)
    if done.returncode:
        raise click.ClickException(f"{module} {arguments[0]} failed.")


def format_table(runs: list[dict[str, Any]]) -> str:
    """Returns the median of each row, its range, and the ratio to plain tf.data in the same round."""
    plain = [run for run in runs if run["row"] == PLAIN]
    lines = [f"{'images per CPU-second':>24} {'per second':>11} {'to plain, in the same round':>28}"]
    for row in ROWS:
        mine = [run for run in runs if run["row"] == row]
        cpu = sorted(run["images_per_cpu_s"] for run in mine)
        wall = statistics.median(statistics.mean(run["images_per_s"]) for run in mine)
        ratios = sorted(
            run["images_per_cpu_s"] / other["images_per_cpu_s"] for run, other in zip(mine, plain, strict=True)
        )
        ratio = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
        lines.append(
            f"{statistics.median(cpu):8,.0f} ({cpu[0]:6,.0f}-{cpu[-1]:6,.0f}) {wall:11,.0f} {ratio:>28}   {row}"
        )
    lines.append(f"{len(plain)} rounds, {os.cpu_count()} cores: median (range)")
    return "\n".join(lines)


def child(folder: str, row: str, seconds: str) -> None:
    """Measures one row in this process and prints one JSON line."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tfpipe
    from tests.benchmarks.cedar.simclr import CONFIG, add_moved_simclr, add_simclr, make_plain

    def make_batches() -> Iterator[Any]:
        if row in (PLAIN, GREY_FIRST):
            return iter(make_plain(f"{folder}/shards", row == GREY_FIRST))
        manifest = tfpipe.load_manifest(f"{folder}/shards")
        customize = add_simclr if row == TFPIPE else add_moved_simclr
        return iter(tfpipe.build_stages(manifest, "train", CONFIG, customize=customize).dataset())

    print(json.dumps(asdict(measure(make_batches, CONFIG.batch_size, float(seconds)))))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        main()
