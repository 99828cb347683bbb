"""How fast workers of `tfpipe serve` on this machine give a trainer its batches, beside reading here: README.md has the
details.

python tests/benchmarks/service_speed.py DATASET --batch-size 256 --batches 10
"""

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from tfpipe import NumpyBatches, PipelineConfig, ServiceOptions

_WARM_UP = 6


def _read_cpu_s(pids: Sequence[int]) -> float:
    texts = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(text[11]) + int(text[12]) for text in texts) / os.sysconf("SC_CLK_TCK")


def _time_batches(
    dataset: Path, config: PipelineConfig, batches: int, pids: Sequence[int]
) -> tuple[float, float, float]:
    """Returns batches/s, and the milliseconds of processor time a batch of this process and of the workers."""
    reader = NumpyBatches(str(dataset), "train", config)
    passes = itertools.chain.from_iterable(itertools.repeat(reader))
    list(itertools.islice(passes, _WARM_UP))
    begin, here, there = time.perf_counter(), _read_cpu_s([os.getpid()]), _read_cpu_s(pids)
    for _ in itertools.islice(passes, batches):
        pass
    wall_s = time.perf_counter() - begin
    here, there = (_read_cpu_s([os.getpid()]) - here, _read_cpu_s(pids) - there)
    return batches / wall_s, 1000 * here / batches, 1000 * there / batches


@click.command(help=__doc__)
@click.argument("dataset", type=click.Path(exists=True, path_type=Path))
@click.option("--batches", default=10, show_default=True, help="Batches that are timed.")
@click.option("--batch-size", default=256, show_default=True)
def main(dataset: Path, batches: int, batch_size: int) -> None:
    """The first row is without a service."""
    click.echo("| workers | batches/s | trainer, ms of CPU a batch | workers, ms of CPU a batch |\n|---|---|---|---|")
    for count in (0, 1, 2):
        command = [sys.executable, "-m", "tfpipe", "serve", "--root", "/", "--port", "0", "--json"]
        with subprocess.Popen([*command, "--workers", str(max(count, 1))], stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            workers = json.loads(server.stdout.readline())["workers"][:count]
            addresses = tuple(worker["address"] for worker in workers)
            config = PipelineConfig(batch_size=batch_size, service=ServiceOptions(workers=addresses))
            figures = _time_batches(dataset, config, batches, [worker["pid"] for worker in workers])
            click.echo(f"| {count} | {figures[0]:.2f} | {figures[1]:.1f} | {figures[2]:.1f} |")
            server.terminate()


if __name__ == "__main__":
    main()
