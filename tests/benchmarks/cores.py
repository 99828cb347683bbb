"""How a reader's images per CPU-second change with the cores that it may use, and with more threads than cores.

python tests/benchmarks/cores.py DATASET --cores 1,2 --threads 16
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import click

_BATCH, _SIZE, _WARM_UP = 256, 224, 8
_ROOT = Path(__file__).parents[2]
_ENV = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))}


@click.command()
@click.argument("dataset")
@click.option("--cores", default="1,2", show_default=True, help="The numbers of cores to try.")
@click.option("--threads", type=int, default=16, show_default=True, help="The threads of the last row, on all cores.")
@click.option("--seconds", type=float, default=5.0, show_default=True, help="The time of a row.")
@click.option("--rounds", type=int, default=1, show_default=True)
def main(dataset: str, cores: str, threads: int, seconds: float, rounds: int) -> None:
    """Measures each reader in processes of their own, in turns, and prints a line for each."""
    counts = [int(count) for count in cores.split(",")]
    for _ in range(rounds):
        for reader in ("NumPy", "JAX", "PyTorch"):
            for dtype in ("uint8", "float32"):
                for used, wanted in [*((count, count) for count in counts), (counts[-1], threads)]:
                    row = [reader, dtype, used, wanted, dataset, seconds]
                    command = [sys.executable, __file__, "--row", json.dumps(row)]
                    subprocess.run(command, env=_ENV, check=True)


def measure(reader: str, dtype: str, cores: int, threads: int, dataset: str, seconds: float) -> None:
    """Takes batches on the first `cores` cores of this process, and prints what they cost."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    batches = chain.from_iterable(repeat(_open(reader, dtype, threads, dataset)))
    for _ in islice(batches, _WARM_UP):
        pass
    count, before, begin = 0, resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    while time.perf_counter() - begin < seconds:
        next(batches)
        count += _BATCH
    wall_s, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_SELF)
    user_s, system_s = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    cpu_s = user_s + system_s
    print(
        f"{reader:8} {dtype:8} {cores:3} cores {threads:3} threads  {count / wall_s:7,.0f} images/s  "
        f"{count / cpu_s:6,.0f} per CPU-second  {system_s / cpu_s:4.0%} of it in the system",
        flush=True,
    )
    os._exit(0)  # threads make batches ahead, and nobody waits for them


def _open(reader: str, dtype: str, threads: int, dataset: str) -> Any:
    import tfpipe
    from tfpipe.system import host_limits

    host_limits.usable_cpus = lambda *_: threads  # the readers ask it for their number of threads
    config = tfpipe.PipelineConfig(batch_size=_BATCH, image_size=_SIZE, training=True, image_dtype=dtype)
    readers = {"NumPy": tfpipe.NumpyBatches, "JAX": tfpipe.JaxBatches, "PyTorch": tfpipe.TorchBatches}
    images = readers[reader](dataset, "train", config)
    return tfpipe.data_loader(images) if reader == "PyTorch" else images


if __name__ == "__main__":
    if sys.argv[1:2] == ["--row"]:
        measure(*json.loads(sys.argv[2]))
    main()
