"""How fast one worker of `tfpipe serve` gives a trainer on the same machine its batches: README.md has the details.

python tests/benchmarks/service_speed.py DATASET --batches 20
"""

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import click

from tfpipe import NumpyBatches, PipelineConfig, ServiceOptions

_WARM_UP, _BATCH = 6, 64


def _read_cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


@click.command(help=__doc__)
@click.argument("dataset", type=click.Path(exists=True, path_type=Path))
@click.option("--batches", default=20, show_default=True, help=f"Batches of {_BATCH} images that are timed.")
def main(dataset: Path, batches: int) -> None:
    """The CPU time is that of the trainer's process and of the worker's."""
    command = [sys.executable, "-m", "tfpipe", "serve", "--root", "/", "--port", "0", "--threads", "2", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        worker = json.loads(server.stdout.readline())["workers"][0]
        pids = (os.getpid(), int(worker["pid"]))
        config = PipelineConfig(batch_size=_BATCH, service=ServiceOptions(workers=(worker["address"],)))
        reader = NumpyBatches(str(dataset), "train", config)
        passes = itertools.chain.from_iterable(itertools.repeat(reader))
        list(itertools.islice(passes, _WARM_UP))
        begin, before = time.perf_counter(), list(map(_read_cpu_s, pids))
        list(itertools.islice(passes, batches))
        wall_s = time.perf_counter() - begin
        trainer_s, worker_s = (after - first for after, first in zip(map(_read_cpu_s, pids), before, strict=True))
        images = batches * _BATCH
        click.echo("| images/s | images per CPU-second | trainer, ms of CPU a batch | worker, ms of CPU a batch |")
        click.echo("|---|---|---|---|")
        both_s = trainer_s + worker_s
        figures = (images / wall_s, images / both_s, 1000 * trainer_s / batches, 1000 * worker_s / batches)
        click.echo(f"| {' | '.join(f'{figure:,.1f}' for figure in figures)} |")
        server.terminate()


if __name__ == "__main__":
    main()
