"""How long short commands take, and the first batch of a new process: wall and processor time, all processes together.

python tests/benchmarks/start_speed.py --rounds 7
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

SAMPLE = Path(__file__).resolve().parents[2] / "sample_data"
FIRST_BATCH = "import sys, tfpipe; next(iter(tfpipe.NumpyBatches(sys.argv[1], 'train', batch_size=64, image_size=64)))"


@click.command()
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True)
def main(rounds: int) -> None:
    """Runs each command in turns with the others; prints medians, and the least and the most."""
    with tempfile.TemporaryDirectory() as folder:
        tfpipe, out = [sys.executable, "-m", "tfpipe"], f"{folder}/out"
        rows = {
            "tfpipe --help": [*tfpipe, "--help"],
            "tfpipe shard sample_data": [*tfpipe, "shard", str(SAMPLE), out],
            "tfpipe inspect": [*tfpipe, "inspect", out],
            "the first NumPy batch": [sys.executable, "-c", FIRST_BATCH, out],
        }
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in rows}
        for _ in range(rounds + 1):  # the first round warms up
            shutil.rmtree(out, ignore_errors=True)
            for name, command in rows.items():
                times[name].append(_time(command))
        for name, each in times.items():
            wall, cpu = (sorted(values) for values in zip(*each[1:], strict=True))
            shown = [f"{statistics.median(row):.2f} s ({row[0]:.2f}-{row[-1]:.2f})" for row in (wall, cpu)]
            click.echo(f"{name:26} {shown[0]}, {shown[1]} of a core")


def _time(command: list[str]) -> tuple[float, float]:
    before, started = os.times(), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    wall, after = time.perf_counter() - started, os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return wall, spent


if __name__ == "__main__":
    main()
