"""How long `tfpipe append` of a thousand images takes beside sharding them alone, and what layers cost a reader.

python -m tests.benchmarks growth_speed FOLDER --images 100000 --more 1000 --rounds 5
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
from PIL import Image

import tfpipe
from tfpipe.readers.numpy import NumpyBatches

_SIDE_PX = 32
_READS = 20


def draw(folder: Path, count: int, seed: int) -> Path:
    """Draws images of ten classes, unless they are there."""
    rng = np.random.default_rng(seed)
    for k in range(count):
        path = folder / str(k % 10) / f"{seed}-{k}.jpg"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (_SIDE_PX, _SIDE_PX, 3), np.uint8)).save(path)
    return folder


def run(*args: object) -> float:
    """Runs `tfpipe ...` in a process of its own, and returns its seconds."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "tfpipe", *map(str, args)], check=True, capture_output=True)
    return time.perf_counter() - started


def measure(work: Callable[[], object]) -> float:
    """Returns the milliseconds of a call, the median of some."""
    times = []
    for _ in range(_READS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return 1e3 * statistics.median(times)


def read(dataset: str) -> None:
    """Reads some batches without decoding them anew: the labels alone."""
    batches = NumpyBatches(dataset, "train", tfpipe.PipelineConfig(batch_size=256, image_size=_SIDE_PX, augment="none"))
    for step in range(4):
        batches.read(step)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--images", default=100_000, show_default=True, help="Of the dataset.")
@click.option("--more", default=1000, show_default=True, help="To append in each round.")
@click.option("--rounds", default=5, show_default=True, help="In turns; the median counts.")
def main(folder: Path, images: int, more: int, rounds: int) -> None:
    """Times the commands, each in a process of its own, and opening and reading in this one."""
    large = folder / "large"
    if not large.exists():
        print(f"shard {images:,}: {run('shard', draw(folder / 'first', images, 0), large):.1f} s")
    plain = (measure(lambda: tfpipe.load_manifest(str(large))), measure(lambda: read(str(large))))
    alone, appended = [], []
    for number in range(rounds):
        source = draw(folder / f"more-{number}", more, number + 1)
        alone.append(run("shard", source, folder / f"alone-{number}"))
        appended.append(run("append", large, source))
    names = folder / "names.txt"
    names.write_text("".join(f"{k % 10}/0-{k}.jpg\n" for k in range(10)))
    deleted = run("delete", large, names)
    layered = (measure(lambda: tfpipe.load_manifest(str(large))), measure(lambda: read(str(large))))
    ratio = statistics.median(b / a for a, b in zip(alone, appended, strict=True))
    print(f"shard {more:,} alone: {statistics.median(alone):.2f} s, append: {statistics.median(appended):.2f} s")
    print(f"append is {ratio:.2f} times shard; delete of 10 names: {deleted:.2f} s")
    print(f"open: {plain[0]:.2f} ms without layers, {layered[0]:.2f} ms with {rounds + 1}")
    print(f"read 4 batches: {plain[1]:.1f} ms without layers, {layered[1]:.1f} ms with {rounds + 1}")


if __name__ == "__main__":
    main()
