"""Measures the cost of profiling a pipeline; README.md has the details.

python tests/benchmarks/profile_overhead.py DATASET --seconds 100
"""

import json
import math
import os
import resource
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

BATCH, SETTLE = 16, 8
TURN_S, WARM_UP_S = 1.0, 4.0
NARROW = 0.01
VARIANTS = ("sampler", "watch", "iterate", "map_fusion off")


@dataclass(frozen=True)
class Turn:
    """One pipeline for a while.

    Attributes:
        images_per_cpu_s: The images per second of processor time.
        images_per_wall_s: The images per second by the clock.
    """

    images_per_cpu_s: float
    images_per_wall_s: float


class SamplerTime:
    """The sampler, with the processor time of its thread and of the process: that has no noise of the machine in it."""

    def __init__(self, read_model: Callable[[], Any]) -> None:
        self.read_model, self.thread_s, self.process_s = read_model, 0.0, 0.0

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Samples for one turn."""
        from tfpipe.profiler.measure.tfdata_counters import Sampler

        before_s = cpu_seconds()
        with Sampler(self.read_model):
            thread = next(thread for thread in threading.enumerate() if thread.name == "tfpipe-sampler")
            assert thread.ident is not None
            clock = time.pthread_getcpuclockid(thread.ident)
            yield
            self.thread_s += time.clock_gettime(clock)
        self.process_s += cpu_seconds() - before_s


@dataclass(frozen=True)
class Contestant:
    """A pipeline that is measured.

    Attributes:
        batches: The batches.
        beside: A context in which each turn runs, such as a sampler.
    """

    batches: Iterator[Any]
    beside: Callable[[], AbstractContextManager[Any]] = nullcontext

    def turn(self, images: int) -> Turn:
        """Takes batches as fast as they come."""
        with self.beside():
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
    """Take turns with the pipeline of DATASET as it is and while it is profiled, and print the ratio of throughput."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    plain = Contestant(iter(build_pipeline(dataset)))
    images = count_images_in_turn(plain, dataset)
    all_pairs = {}
    for name in only or VARIANTS:
        other = make_contestant(name, dataset, plain)
        for _ in range(math.ceil(WARM_UP_S / TURN_S)):
            other.turn(images)
        all_pairs[name] = run_pairs(plain, other, images, seconds)
        cpu, wall = (compute_interval(all_pairs[name], unit) for unit in ("images_per_cpu_s", "images_per_wall_s"))
        click.echo(
            f"{name:15} per CPU-second {cpu[0]:.4f} ({cpu[1]:.4f} to {cpu[2]:.4f}), "
            f"per second {wall[0]:.4f} ({wall[1]:.4f} to {wall[2]:.4f}), {len(all_pairs[name])} pairs"
        )
        if isinstance(sampler := getattr(other.beside, "__self__", None), SamplerTime):
            click.echo(f"{'':15} its thread took {sampler.thread_s / sampler.process_s:.3%} of the process's CPU time")
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


def make_contestant(name: str, dataset: str, plain: Contestant) -> Contestant:
    """Returns the same pipeline while it is profiled."""
    import tensorflow as tf

    import tfpipe

    if name == "sampler":
        return replace(plain, beside=SamplerTime(lambda: tf.data.experimental.get_model_proto(plain.batches)).beside)
    if name == "map_fusion off":
        return Contestant(iter(build_pipeline(dataset, map_fusion=False)))
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


def build_pipeline(dataset: str, map_fusion: bool = True) -> Any:
    """Returns batches of the textbook pipeline, whose stages tf.data counts, as fast as the processor makes them."""
    import tfpipe

    # A buffer that AUTOTUNE lets grow is filled in the other's turn, and at its cost.
    options = tfpipe.TfDataOptions(map_fusion=map_fusion)
    config = tfpipe.PipelineConfig(batch_size=BATCH, order="throughput", prefetch_batches=2, tf_data=options)
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
    """Returns the geometric mean over pairs of the ratio of profiled to plain, and its 95 % interval."""
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
