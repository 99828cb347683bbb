"""Measures what it costs to watch a training by `IdleMonitor`, and a loader's processes; README.md has the details.

python tests/benchmarks/profile_overhead.py DATASET --seconds 100
python tests/benchmarks/profile_overhead.py --loader IMAGES
"""

import contextlib
import json
import math
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
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
        workers: The numbers of the processes that make them, beside this one.
        watching: A function that returns the context of a turn.
    """

    batches: Iterator[Any]
    workers: tuple[int, ...] = ()
    watching: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext

    def turn(self, images: int) -> Turn:
        """Takes batches as fast as they come."""
        with self.watching():
            for _ in range(SETTLE):  # batches that were made while the other had its turn
                next(self.batches)
            cpu, wall = cpu_seconds(self.workers), time.perf_counter()
            for _ in range(images // BATCH):
                next(self.batches)
            return Turn(images / (cpu_seconds(self.workers) - cpu), images / (time.perf_counter() - wall))


@click.command()
@click.argument("dataset", type=click.Path(exists=True, file_okay=False), required=False)
@click.option("--loader", "images", type=click.Path(exists=True, file_okay=False), help="Watch a DataLoader of JPEGs.")
@click.option("--only", type=click.Choice(VARIANTS), multiple=True, help="May be given several times.  [default: all]")
@click.option(
    "--seconds", default=100.0, show_default=True, help="For each, at most: ends when the interval is narrow."
)
@click.option("--json", "json_file", type=click.Path(), help="Write all pairs to this file.")
def main(dataset: str | None, images: str | None, only: tuple[str, ...], seconds: float, json_file: str | None) -> None:
    """Take turns with the pipeline of DATASET as it is and while it is watched, and print the ratio of throughput."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if (dataset is None) == (images is None):
        raise click.UsageError("Give one of DATASET and --loader.")
    all_pairs = {}
    if images is not None:
        with tempfile.TemporaryDirectory() as folder:
            others = [make_loader(images, folder, is_watched) for is_watched in (False, True)]
            count = round(max(other.turn(20 * BATCH).images_per_wall_s for other in others) * TURN_S)
            all_pairs["loader"] = run_pairs(*others, count, seconds)
            for other in others:
                other.batches._shutdown_workers()  # type: ignore[attr-defined]
    else:
        assert dataset is not None
        plain = Contestant(iter(build_pipeline(dataset)))
        count = count_images_in_turn(plain, dataset)
        for name in only or VARIANTS:
            other = make_contestant(name, dataset)
            for _ in range(math.ceil(WARM_UP_S / TURN_S)):
                other.turn(count)
            all_pairs[name] = run_pairs(plain, other, count, seconds)
    for name in all_pairs:
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


def make_loader(images: str, folder: str, is_watched: bool) -> Contestant:
    """Returns a DataLoader without end, or the same while its processes are watched."""
    import torch
    from idle_by_profile import Photos

    from tfpipe.profiler.loader.probe import Probe, watching_processes

    photos: Any = Photos(images)
    sampler = torch.utils.data.RandomSampler(photos, replacement=True, num_samples=10**9)
    with watching_processes(Path(folder)) if is_watched else contextlib.nullcontext():
        batches: Any = iter(
            torch.utils.data.DataLoader(photos, BATCH, sampler=sampler, num_workers=os.cpu_count() or 1)
        )

    @contextlib.contextmanager
    def watching() -> Iterator[None]:
        probe = Probe(Path(folder))
        probe.start()
        yield
        probe.stop()

    pids = tuple(worker.pid for worker in batches._workers)
    return Contestant(batches, pids, watching if is_watched else contextlib.nullcontext)


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


def cpu_seconds(workers: tuple[int, ...] = ()) -> float:
    """Returns the processor time of all threads of this process, and of others."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    threads = (path for pid in workers for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return usage.ru_utime + usage.ru_stime + sum(int(path.read_text().split()[0]) for path in threads) / 1e9


if __name__ == "__main__":
    main()
