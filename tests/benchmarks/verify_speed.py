"""How fast `tfpipe verify --quick` is beside reading the same files with a SHA-256 per core.

python tests/benchmarks/verify_speed.py DATASET --rounds 5
"""

import hashlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import click

from tfpipe.dataset.load import load_manifest
from tfpipe.integrity.verify import VerifyConfig, verify
from tfpipe.system import process_pool
from tfpipe.system.host_limits import usable_cpus

_BUFFER_BYTES = 1 << 20


def hash_file(path: str) -> str:
    """Reads one file whole, with its SHA-256."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(_BUFFER_BYTES))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


@click.command()
@click.argument("dataset")
@click.option("--rounds", type=int, default=5, show_default=True, help="Of each, in turns; the median counts.")
@click.option("--one", type=click.Choice(["hash", "verify"]), hidden=True, help="One of the two, in this process.")
def main(dataset: str, rounds: int, one: str | None) -> None:
    """Both in processes of their own, in turns: in one of them, then in one a core, whose start counts."""
    manifest = load_manifest(dataset)
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    num_bytes, paths = sum(shard.bytes for shard in shards), [str(Path(dataset) / shard.file) for shard in shards]
    if one is not None:
        print(json.dumps(_time(one, dataset, paths)))
        return
    times: dict[str, list[list[float]]] = {"hash": [], "verify": []}
    for path in paths:
        hash_file(path)  # into memory
    for _ in range(rounds):
        for name, seconds in times.items():
            command = [sys.executable, __file__, dataset, "--one", name]
            seconds.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    for k, where in enumerate(("one process", f"{usable_cpus()} processes")):
        medians = {name: statistics.median(one[k] for one in seconds) for name, seconds in times.items()}
        speeds = ", ".join(f"{name} {num_bytes / seconds / 1e6:,.0f} MB/s" for name, seconds in medians.items())
        records = sum(shard.records for shard in shards)
        ratio = medians["hash"] / medians["verify"]
        print(f"{where}: {speeds}, ratio {ratio:.2f} ({records:,} records of {num_bytes / records / 1e3:,.1f} KB)")


def _time(what: str, dataset: str, paths: list[str]) -> list[float]:
    """Seconds in this process, and in one process a core with their start."""
    if what == "hash":
        return [_seconds(lambda: list(map(hash_file, paths))), _seconds(lambda: _hash_all(paths))]
    return [_seconds(lambda: _check(dataset, 0)), _seconds(lambda: _check(dataset, None))]


def _hash_all(paths: list[str]) -> None:
    with ProcessPoolExecutor(usable_cpus(), process_pool.context()) as pool:
        list(pool.map(hash_file, paths))


def _check(dataset: str, count: int | None) -> None:
    assert not verify(dataset, VerifyConfig(quick=True, workers=count)).damaged


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
