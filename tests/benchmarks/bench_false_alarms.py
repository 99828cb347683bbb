"""Whether `tfpipe bench` raises a false alarm, and whether it notices a slower pipeline; README.md has the details.

python tests/benchmarks/bench_false_alarms.py DATASET --repeats 20 --json alarms.json
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

SLOWER = {"one thread": "cpu_budget = 0.001\n", "larger images": "image_size = 448\n"}
"""Options with which the pipeline must fail the build."""
FAIL_BELOW = 0.9


@click.command()
@click.argument("dataset", type=click.Path(exists=True, path_type=Path))
@click.option("--repeats", default=20, show_default=True, help="How often the pipeline is compared with itself.")
@click.option("--runs", default=5, show_default=True, help="Starts of the pipeline in each comparison.")
@click.option("--batch", default=64, show_default=True, help="Images in a batch.")
@click.option("--json", "output", type=click.Path(path_type=Path), help="Write every row there.")
def main(dataset: Path, repeats: int, runs: int, batch: int, output: Path | None) -> None:
    """Measure a base of DATASET's pipeline, then compare the same and slower ones with it."""
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder, "base.json")
        common = ["bench", str(dataset), "--runs", str(runs)]
        _tfpipe(*common, "--batch-size", str(batch), "--output", str(base))
        rows = []
        print(f"{'what':<20}{'ratio':>7}{'low':>7}{'high':>7}  {'alarm':<6}{'images/s':>9}  load")
        for number in range(repeats + len(SLOWER)):
            name = "itself" if number < repeats else list(SLOWER)[number - repeats]
            config = Path(folder, "config.toml")
            config.write_text(f"batch_size = {batch}\n{SLOWER.get(name, '')}")
            rows.append(_compare([*common, "--config", str(config), "--compare", str(base)], name))
            print(_line(rows[-1]), flush=True)
    alarms = sum(row["alarm"] for row in rows if row["what"] == "itself")
    noticed = sum(row["alarm"] for row in rows if row["what"] != "itself")
    print(f"{alarms} false alarms in {repeats}, {noticed} of {len(SLOWER)} slower pipelines noticed")
    if output is not None:
        output.write_text(json.dumps(rows, indent=2) + "\n")


def _compare(command: list[str], name: str) -> dict[str, Any]:
    started, load = time.monotonic(), os.getloadavg()[0]
    code, text = _tfpipe(*command, "--fail-below", str(FAIL_BELOW), "--json")
    found = json.loads(text)
    return {
        "what": name,
        **found["comparison"]["ratio"],
        "alarm": code == 1,
        "images_per_second": found["images_per_second"]["ratio"],
        "load": (load + os.getloadavg()[0]) / 2,
        "seconds": time.monotonic() - started,
    }


def _line(row: dict[str, Any]) -> str:
    ratio = "".join(f"{row[name]:7.3f}" for name in ("ratio", "low", "high"))
    alarm = "yes" if row["alarm"] else "no"
    return f"{row['what']:<20}{ratio}  {alarm:<6}{row['images_per_second']:9,.0f}  {row['load']:.1f}"


def _tfpipe(*args: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tfpipe", *args], stdout=subprocess.PIPE, text=True, timeout=1200, check=False
    )
    if done.returncode not in (0, 1) or not done.stdout:
        raise SystemExit(f"tfpipe {' '.join(args)} ended with exit code {done.returncode}.")
    return done.returncode, done.stdout


if __name__ == "__main__":
    main()
