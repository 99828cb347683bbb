"""An outside judge: DLIO's simulated ResNet-50 training, fed by DLIO's own TensorFlow reader and by tfpipe, in turns.

It is a comparison of two readers on one machine, and not a submission to MLPerf Storage. README.md has the details.

python tests/benchmarks/dlio/judge.py --python dlio/bin/python --data /tmp/dlio_data --rounds 3 --json judge.json
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.benchmarks.dlio.dlio_run import BATCH, H100_STEP_S, READERS, Dlio, DlioError, Reader, Search, get_step_s

_FAST_EPOCHS = (2, 8)  # two runs differ by as many epochs, and by nothing else


@click.command()
@click.option("--python", default="dlio/bin/python", show_default=True, help="The interpreter of DLIO's environment.")
@click.option("--data", required=True, type=click.Path(path_type=Path), help="Where DLIO's files are made and kept.")
@click.option("--files", default=24, show_default=True, help="How many files of 1,251 samples DLIO makes: 143 MB each.")
@click.option("--epochs", default=3, show_default=True, help="Epochs of a training.")
@click.option("--rounds", default=3, show_default=True, help="Searches of each reader, in turns; the medians count.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the figures of every run there.")
def main(python: str, data: Path, files: int, epochs: int, rounds: int, json_path: Path | None) -> None:
    """Search the shortest step that each reader keeps 90 % utilized."""
    dlio = Dlio(python, data.resolve(), files)
    try:
        versions = dlio.read_versions()
        dlio.generate()
        index = [sys.executable, "-m", "tfpipe", "index", str(data / "train"), "--output", str(data / "tfpipe")]
        subprocess.run(index, check=True, stdout=subprocess.DEVNULL)
        results = [measure_round(dlio, epochs, number) for number in range(rounds)]
    except DlioError as error:
        raise click.ClickException(str(error)) from None
    if json_path:
        json_path.write_text(json.dumps({"versions": versions, "rounds": results}, indent=1) + "\n")
    click.echo(", ".join(f"{name} {version}" for name, version in versions.items()))
    click.echo(format_table(results))


def measure_round(dlio: Dlio, epochs: int, round_number: int) -> dict[Reader, dict[str, Any]]:
    """Measures both readers once, in turns; which one comes first alternates."""
    readers = READERS if round_number % 2 == 0 else READERS[::-1]
    result: dict[Reader, dict[str, Any]] = {reader: {"runs": []} for reader in readers}

    def make_search(reader: Reader) -> Search:
        def is_fed(number: int) -> bool:
            run = dlio.train(reader, get_step_s(number), epochs)
            result[reader]["runs"].append({"step_s": get_step_s(number), **asdict(run)})
            click.echo(
                f"{reader:6} {1e3 * get_step_s(number):6.1f} ms a step: {run.utilization:.1%} utilized", err=True
            )
            return run.is_fed

        return Search(is_fed)

    searches = {reader: make_search(reader) for reader in readers}
    while not all(search.is_done for search in searches.values()):
        for search in searches.values():
            if not search.is_done:
                search.go_on()
    for reader, search in searches.items():
        if search.fed < 0:
            raise DlioError(f"{reader} does not feed one simulated H100. Use a machine that is quieter, or faster.")
        result[reader]["step_s"] = get_step_s(search.fed)
    for reader in readers:
        short, long = (dlio.train(reader, 0, count) for count in _FAST_EPOCHS)
        result[reader]["runs"].append({"step_s": 0, **asdict(long)})
        samples = (_FAST_EPOCHS[1] - _FAST_EPOCHS[0]) * dlio.num_samples
        result[reader] |= {
            "samples_per_s": long.samples_per_s,
            "samples_per_cpu_s": samples / (long.cpu_s - short.cpu_s),
        }
    return result


def format_table(results: list[dict[Reader, dict[str, Any]]]) -> str:
    """Returns the medians of all rounds and their ranges as a table, and the ratios of the medians."""
    lines = [
        f"{'':7}{'shortest step at 90 %':>24} {'simulated H100s':>16} {'samples/s of a run without steps':>36} "
        f"{'per CPU-second':>26}"
    ]
    medians: dict[Reader, dict[str, float]] = {}
    for reader in READERS:
        rounds = [result[reader] for result in results]
        values = {key: sorted(one[key] for one in rounds) for key in ("step_s", "samples_per_s", "samples_per_cpu_s")}
        medians[reader] = {key: statistics.median(found) for key, found in values.items()}
        steps, step_s = values["step_s"], medians[reader]["step_s"]
        text = f"{reader:7}{f'{1e3 * step_s:.1f} ms ({1e3 * steps[0]:.1f}-{1e3 * steps[-1]:.1f})':>24}"
        text += f" {H100_STEP_S / step_s:16.1f}"
        for key, width in (("samples_per_s", 36), ("samples_per_cpu_s", 26)):
            middle = medians[reader][key]
            text += f" {f'{middle:,.0f} ({values[key][0]:,.0f}-{values[key][-1]:,.0f})':>{width}}"
        lines.append(text)
    own, ours = medians["DLIO"], medians["tfpipe"]
    lines.append(
        f"tfpipe feeds {own['step_s'] / ours['step_s']:.2f} times as many accelerators, reads "
        f"{ours['samples_per_s'] / own['samples_per_s']:.2f} times as many samples a second, and "
        f"{ours['samples_per_cpu_s'] / own['samples_per_cpu_s']:.2f} times as many a CPU-second."
    )
    others = statistics.median(run["others"] for result in results for one in result.values() for run in one["runs"])
    lines.append(
        f"Batches of {BATCH}; medians of {len(results)} rounds (ranges). Other processes took {others:.0%} of the "
        "cores in the median run. A comparison, not a submission."
    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
