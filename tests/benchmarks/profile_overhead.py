"""What profiling costs a pipeline; README.md has the details.

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
    """One pipeline, for a while."""

    images_per_cpu_s: float
    images_per_wall_s: float


class OwnTime:
    """The sampler, and the processor time of its thread beside that of the process: no machine's noise is in it."""

    def __init__(self, model: Callable[[], Any]) -> None:
        self.model, self.thread_s, self.process_s = model, 0.0, 0.0

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Samples for one turn."""
        from tfpipe.profiler.measure.tfdata_counters import Sampler

        process = cpu_seconds()
        with Sampler(self.model):
            thread = next(one for one in threading.enumerate() if one.name == "tfpipe-sampler")
            assert thread.ident is not None
            clock = time.pthread_getcpuclockid(thread.ident)
            yield
            self.thread_s += time.clock_gettime(clock)
        self.process_s += cpu_seconds() - process


@dataclass(frozen=True)
class Contestant:
    """Batches, and what goes on beside them."""

    batches: Iterator[Any]
    beside: Callable[[], AbstractContextManager[Any]] = nullcontext

    def turn(self, images: int) -> Turn:
        """Takes batches as fast as they come."""
        with self.beside():
            for _ in range(SETTLE):  # what was made while others had their turn
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
    plain = Contestant(iter(pipeline(dataset)))
    images = images_in_a_turn(plain, dataset)
    found = {}
    for name in only or VARIANTS:
        other = contestant(name, dataset, plain)
        for _ in range(math.ceil(WARM_UP_S / TURN_S)):
            other.turn(images)
        found[name] = pairs(plain, other, images, seconds)
        cpu, wall = (interval(found[name], unit) for unit in ("images_per_cpu_s", "images_per_wall_s"))
        click.echo(
            f"{name:15} per CPU-second {cpu[0]:.4f} ({cpu[1]:.4f} to {cpu[2]:.4f}), "
            f"per second {wall[0]:.4f} ({wall[1]:.4f} to {wall[2]:.4f}), {len(found[name])} pairs"
        )
        if isinstance(own := getattr(other.beside, "__self__", None), OwnTime):
            click.echo(f"{'':15} its thread took {own.thread_s / own.process_s:.3%} of the process's CPU time")
    if json_file:
        table = {name: [[asdict(one) for one in pair] for pair in both] for name, both in found.items()}
        Path(json_file).write_text(json.dumps(table, indent=1) + "\n")


def images_in_a_turn(plain: Contestant, dataset: str) -> int:
    """As many as take a second: whole epochs of a small dataset, so that all turns have the same images."""
    import tfpipe

    records = tfpipe.load_manifest(dataset).splits["train"].records
    rate = 0.0
    begin = time.perf_counter()
    while time.perf_counter() - begin < WARM_UP_S:
        rate = plain.turn(20 * BATCH).images_per_wall_s
    return records * max(1, round(rate * TURN_S / records)) if records < rate * TURN_S else round(rate * TURN_S)


def contestant(name: str, dataset: str, plain: Contestant) -> Contestant:
    """The same pipeline while it is profiled."""
    import tensorflow as tf

    import tfpipe

    if name == "sampler":
        return replace(plain, beside=OwnTime(lambda: tf.data.experimental.get_model_proto(plain.batches)).beside)
    if name == "map_fusion off":
        return Contestant(iter(pipeline(dataset, map_fusion=False)))
    monitor = tfpipe.IdleMonitor()
    if name == "iterate":
        return Contestant(monitor.iterate(pipeline(dataset)))
    return Contestant(steps(monitor, iter(monitor.watch(pipeline(dataset)))))


def steps(monitor: Any, batches: Iterator[Any]) -> Iterator[Any]:
    """A loop that takes its batches out of the monitor's sight, as Keras does."""
    while True:
        with monitor.step():
            batch = next(batches)
        yield batch


def pipeline(dataset: str, **options: Any) -> Any:
    """Batches of decoded and augmented images, as fast as the processor makes them."""
    import tfpipe

    # A buffer that AUTOTUNE lets grow is filled in the other's turn, and at its cost.
    config = tfpipe.PipelineConfig(global_batch_size=BATCH, prefetch_batches=2, **options)
    return tfpipe.build_dataset(tfpipe.load_manifest(dataset), "train", config)


def pairs(plain: Contestant, other: Contestant, images: int, seconds: float) -> list[tuple[Turn, Turn]]:
    """Turns of both, in alternating order, until the interval is narrow or the time is up."""
    done: list[tuple[Turn, Turn]] = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        if len(done) % 2:
            second, first = other.turn(images), plain.turn(images)
        else:
            first, second = plain.turn(images), other.turn(images)
        done.append((first, second))
        if len(done) >= 20 and (low_high := interval(done, "images_per_cpu_s"))[2] - low_high[1] < NARROW:
            break
    return done


def interval(done: list[tuple[Turn, Turn]], unit: str) -> tuple[float, float, float]:
    """Ratio of profiled to plain, its geometric mean and 95 % interval, over pairs."""
    logs = [math.log(getattr(other, unit) / getattr(plain, unit)) for plain, other in done]
    middle = statistics.fmean(logs)
    half = 1.96 * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


def cpu_seconds() -> float:
    """Processor time of all threads of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
