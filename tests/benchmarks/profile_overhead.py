"""Measures what it costs to watch a training by `IdleMonitor`; README.md has the details.

python tests/benchmarks/profile_overhead.py DATASET --seconds 100
"""

import json
import math
import os
import resource
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

BATCH, SETTLE = 16, 8
TURN_S, WARM_UP_S = 1.0, 4.0
NARROW = 0.01
VARIANTS = ("watch", "iterate")


@dataclass(frozen=True)
class Turn:
    """One pipeline for a while.

    Attributes:
        images_per_cpu_s: The images per second of processor time.
        images_per_wall_s: The images per second by the clock.
    """

    images_per_cpu_s: float
    images_per_wall_s: float


@dataclass(frozen=True)
class Contestant:
    """A pipeline that is measured.

    Attributes:
        batches: The batches.
    """

    batches: Iterator[Any]

    def turn(self, images: int) -> Turn:
        """Takes batches as fast as they come."""
        for _ in range(SETTLE):  # batches that were made while the other had its turn
            next(self.batches)
        cpu, wall = cpu_seconds(), time.perf_counter()
        for _ in range(images // BATCH):
            next(self.batches)
        return Turn(images / (cpu_seconds() - cpu), images / (time.perf_counter() - wall))


@click.command()
@click.argument("dataset", type=click.Path(exists=True, file_okay=False))
@click.option("--only", type=click.Choice(VARIANTS), multiple=True, help="May be given several times.  [default: all]")
@click.option(
    "--seconds", default=100.0, show_default=True, help="For each, at most: ends when the interval is narrow."
)
@click.option("--json", "json_file", type=click.Path(), help="Write all pairs to this file.")
def main(dataset: str, only: tuple[str, ...], seconds: float, json_file: str | None) -> None:
    """Take turns with the pipeline of DATASET as it is and while it is watched, and print the ratio of throughput."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    plain = Contestant(iter(build_pipeline(dataset)))
    images = count_images_in_turn(plain, dataset)
    all_pairs = {}
    for name in only or VARIANTS:
        other = make_contestant(name, dataset)
        for _ in range(math.ceil(WARM_UP_S / TURN_S)):
            other.turn(images)
        all_pairs[name] = run_pairs(plain, other, images, seconds)
        cpu, wall = (compute_interval(all_pairs[name], unit) for unit in ("images_per_cpu_s", "images_per_wall_s"))
        click.echo(
            f"{name:15} per CPU-second {cpu[0]:.4f} ({cpu[1]:.4f} to {cpu[2]:.4f}), "
            f"per second {wall[0]:.4f} ({wall[1]:.4f} to {wall[2]:.4f}), {len(all_pairs[name])} pairs"
        )
    if json_file:
        table = {name: [[asdict(turn) for turn in pair] for pair in pairs] for name, pairs in all_pairs.items()}
        Path(json_file).write_text(json.dumps(table, indent=1) + "\n")


def count_images_in_turn(plain: Contestant, dataset: str) -> int:
    """Returns the images of about a second; of a small dataset whole epochs, so that all turns have the same images."""
    import tfpipe

    records = tfpipe.load_manifest(dataset).splits["train"].records
    rate = 0.0
    begin = time.perf_counter()
    while time.perf_counter() - begin < WARM_UP_S:
        rate = plain.turn(20 * BATCH).images_per_wall_s
    return records * max(1, round(rate * TURN_S / records)) if records < rate * TURN_S else round(rate * TURN_S)


def make_contestant(name: str, dataset: str) -> Contestant:
    """Returns the same pipeline while it is watched."""
    import tfpipe

    monitor = tfpipe.IdleMonitor()
    if name == "iterate":
        return Contestant(monitor.iterate(build_pipeline(dataset)))
    return Contestant(run_steps(monitor, iter(monitor.watch(build_pipeline(dataset)))))


def run_steps(monitor: Any, batches: Iterator[Any]) -> Iterator[Any]:
    """Takes batches out of the monitor's sight, as Keras does."""
    while True:
        with monitor.step():
            batch = next(batches)
        yield batch


def build_pipeline(dataset: str) -> Any:
    """Returns batches of the textbook pipeline, as fast as the processor makes them."""
    import tfpipe

    # A buffer that AUTOTUNE lets grow is filled in the other's turn, and at its cost.
    config = tfpipe.PipelineConfig(batch_size=BATCH, order="throughput", prefetch_batches=2)
    return tfpipe.build_dataset(tfpipe.load_manifest(dataset), "train", config)


def run_pairs(plain: Contestant, other: Contestant, images: int, seconds: float) -> list[tuple[Turn, Turn]]:
    """Runs turns of both in alternating order until the interval is narrow or the time is up."""
    pairs: list[tuple[Turn, Turn]] = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        if len(pairs) % 2:
            second, first = other.turn(images), plain.turn(images)
        else:
            first, second = plain.turn(images), other.turn(images)
        pairs.append((first, second))
        _, low, high = compute_interval(pairs, "images_per_cpu_s")
        if len(pairs) >= 20 and high - low < NARROW:
            break
    return pairs


def compute_interval(pairs: list[tuple[Turn, Turn]], unit: str) -> tuple[float, float, float]:
    """Returns the geometric mean over pairs of the ratio of watched to plain, and its 95 % interval."""
    logs = [math.log(getattr(other, unit) / getattr(plain, unit)) for plain, other in pairs]
    middle = statistics.fmean(logs)
    half = 1.96 * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


def cpu_seconds() -> float:
    """Returns the processor time of all threads of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
