"""A job of a million tiny images, in tar files, from the command to the manifest: rate, memory, and where time goes.

python tests/benchmarks/million_images.py --images 1000000 --workers 2
"""

import io
import json
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import click
import numpy as np
import psutil
from PIL import Image

_TARS = 100
_LOOK_EVERY_S = 0.1


def _write_tars(folder: Path, count: int) -> None:
    """JPEGs of 32 by 32 pixels, no two alike: a comment of eight bytes tells them apart."""
    folder.mkdir(parents=True)
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)).save(buffer, "JPEG", quality=75)
    jpeg = buffer.getvalue()
    for k in range(_TARS):
        with tarfile.open(folder / f"class{k:03d}.tar", "w") as tar:
            for i in range(count * k // _TARS, count * (k + 1) // _TARS):
                data = jpeg[:2] + b"\xff\xfe\x00\x0a" + i.to_bytes(8, "big") + jpeg[2:]
                info = tarfile.TarInfo(f"{i:08d}.jpg")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


@dataclass
class _Watched:
    """What is seen of a run from outside; seconds since its start."""

    planned_s: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0
    launcher_mb: float = 0.0
    worker_mb: float = 0.0
    processes: int = 0
    cpu_s: dict[int, float] = field(default_factory=dict)
    rows: int = 0


def _watch(run: subprocess.Popen[str], output: Path, started: float) -> _Watched:
    """Looks at the processes and at the working folder until the run ends."""
    seen, launcher = _Watched(), psutil.Process(run.pid)
    while run.poll() is None:
        now = time.monotonic() - started
        try:
            seen.launcher_mb = max(seen.launcher_mb, launcher.memory_info().rss / 1e6)
            below = launcher.children(recursive=True)
            seen.processes = max(seen.processes, len(below))
            for one in below:
                seen.worker_mb = max(seen.worker_mb, one.memory_info().rss / 1e6)
                seen.cpu_s[one.pid] = sum(one.cpu_times()[:2])
        except psutil.NoSuchProcess:
            pass
        work = output / ".tfpipe"
        if not seen.planned_s and (work / "plan.json").exists():
            seen.planned_s = now
        if not seen.first_s and (work / "tmp").exists():
            seen.first_s = now
        rows = len(list((work / "rows").glob("*.json"))) if (work / "rows").exists() else 0
        if rows > seen.rows:
            seen.rows, seen.last_s = rows, now
        time.sleep(_LOOK_EVERY_S)
    return seen


@click.command()
@click.option("--images", type=int, default=1_000_000, show_default=True)
@click.option("--workers", type=int, multiple=True, default=(2,), show_default=True)
@click.option("--shard-size", default="16MiB", show_default=True)
@click.option("--scratch", type=click.Path(path_type=Path), help="Where images and dataset are written.")
def main(images: int, workers: tuple[int, ...], shard_size: str, scratch: Path | None) -> None:
    """Makes the tar files, then a dataset of them for each number of workers."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        source = Path(folder) / "tars"
        _write_tars(source, images)
        for count in workers:
            output = Path(folder) / f"out{count}"
            _run(source, output, count, shard_size)


def _run(source: Path, output: Path, workers: int, shard_size: str) -> None:
    options = ["--workers", str(workers), "--shard-size", shard_size, "--json"]
    command = [sys.executable, "-m", "tfpipe", "shard", str(source), str(output), *options]
    started = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as run:
        seen = _watch(run, output, started)
        assert run.stdout is not None
        result = json.loads(run.stdout.read())
    wall_s = time.monotonic() - started
    images = sum(split["records"] for split in result["splits"].values())
    shards = sum(split["shards"] for split in result["splits"].values())
    writing_s = seen.last_s - seen.first_s
    # All processes below the launcher that did more than start: the pool's.
    busy_s = sum(sorted(seen.cpu_s.values())[-workers:])
    print(f"{images:,} images, {shards} shards, {workers} workers: {wall_s:.1f} s, {images / wall_s:,.0f} images/s")
    print(
        f"  planned after {seen.planned_s:.1f} s, first shard begun after {seen.first_s:.1f} s, last one done after "
        f"{seen.last_s:.1f} s, finished after {wall_s:.1f} s"
    )
    print(f"  writing: {images / writing_s:,.0f} images/s, workers on a core {busy_s / writing_s / workers:.0%} of it")
    print(
        f"  outside image work: {(wall_s - writing_s) / wall_s:.1%}; between plan and first shard, which is the ",
        end="",
    )
    print(f"engine's start: {seen.first_s - seen.planned_s:.1f} s")
    print(f"  peak memory: launcher {seen.launcher_mb:.0f} MB, a worker {seen.worker_mb:.0f} MB", flush=True)


if __name__ == "__main__":
    main()
