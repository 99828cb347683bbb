"""How fast `tfpipe shard` writes, beside other ways to do it on this machine; README.md has the details.

python tests/benchmarks/shard_speed.py IMAGES --references 5000 --rounds 3
"""

import ctypes
import json
import os
import platform
import resource
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import cycle, islice
from pathlib import Path

import click

sys.path.insert(0, os.path.dirname(__file__))
from shard_contestants import CONTESTANTS, NUM_SHARDS, ONLY_IF_ASKED, TFPIPE, command

_SAMPLE_EVERY_S = 0.05
_PSS_EVERY = 4  # samples: the kernel walks a process' whole page table for it
_PR_SET_CHILD_SUBREAPER = 36
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_ROOT = Path(__file__).parents[2]
_ENV = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))}
_VERSIONS = ("pillow", "apache-beam", "tensorflow", "tensorflow-datasets")


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one contestant. Times of all of its processes, in seconds."""

    name: str
    images: int
    wall_s: float
    cpu_s: float
    peak_bytes: int
    """Proportional set size of all processes together, so that shared pages count once."""
    peak_worker_bytes: int
    """Resident set of the largest process that handles images."""

    @property
    def per_second(self) -> float:
        """Images per second of wall time, start-up included."""
        return self.images / self.wall_s

    @property
    def per_cpu_second(self) -> float:
        """Images per second of processor time: hardly moved by what else the machine does."""
        return self.images / self.cpu_s


class MemorySampler(threading.Thread):
    """Watches the memory of a process and all of its descendants until it is stopped."""

    def __init__(self, root: int) -> None:
        super().__init__(daemon=True)
        self._root, self._stopped = root, threading.Event()
        self.peak_bytes = self.peak_root_bytes = self.peak_child_bytes = 0

    def run(self) -> None:
        sample = 0
        while not self._stopped.wait(_SAMPLE_EVERY_S):
            pids = _descendants(self._root)
            self.peak_root_bytes = max(self.peak_root_bytes, _rss_bytes(self._root))
            self.peak_child_bytes = max([self.peak_child_bytes, *map(_rss_bytes, pids)])
            if sample % _PSS_EVERY == 0:
                self.peak_bytes = max(self.peak_bytes, sum(map(_pss_bytes, [self._root, *pids])))
            sample += 1

    def stop(self) -> None:
        """Ends the watch."""
        self._stopped.set()
        self.join()


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:  # the process has ended
        return ""


def _descendants(pid: int) -> list[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    children = [int(child) for thread in threads for child in _read(f"/proc/{pid}/task/{thread}/children").split()]
    return [one for child in children for one in (child, *_descendants(child))]


def _rss_bytes(pid: int) -> int:
    fields = _read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * _PAGE_BYTES if fields else 0


def _pss_bytes(pid: int) -> int:
    lines = [line for line in _read(f"/proc/{pid}/smaps_rollup").splitlines() if line.startswith("Pss:")]
    return int(lines[0].split()[1]) * 1024 if lines else 0


def adopt_orphans() -> None:
    """Makes processes whose parent ends before them children of this one, so that their time is counted.

    multiprocessing's fork server, and with it all of its workers' time, outlives the process that began it.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def run_once(name: str, images: Path, output: Path, resize_short: int, log: Path) -> Run:
    """Runs a contestant, checks that it wrote every image, and removes what it wrote."""
    wanted = sum(len(names) for _, _, names in os.walk(images))
    return run_command(name, command(name, images, output, resize_short), wanted, output, log)


def run_command(name: str, arguments: Sequence[str], wanted: int, output: Path, log: Path) -> Run:
    """Runs a command that writes `wanted` records to `output`, checks that it did, and removes them."""
    output.mkdir()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with log.open("ab") as out:
        start = time.perf_counter()
        process = subprocess.Popen(arguments, stdout=out, stderr=out, env=_ENV)
        sampler = MemorySampler(process.pid)
        sampler.start()
        code = process.wait()
        wall_s = time.perf_counter() - start
    sampler.stop()
    while True:  # adopted processes, whose time is counted once they are waited for
        try:
            os.wait()
        except ChildProcessError:
            break
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if code != 0:
        raise click.ClickException(f"{name} ended with {code}:\n{log.read_text(errors='replace')[-2000:]}")
    written = sum(map(_count_records, output.rglob("*.tfrecord*")))
    if written != wanted:
        raise click.ClickException(f"{name} wrote {written} of {wanted} records.")
    shutil.rmtree(output)
    os.sync()  # so that no run pays for another's unwritten pages
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    largest = sampler.peak_child_bytes if name in (*TFPIPE, "pool") else sampler.peak_root_bytes
    return Run(name, wanted, wall_s, cpu_s, sampler.peak_bytes, largest)


def _count_records(path: Path) -> int:
    """Records of a TFRecord file, by their lengths alone."""
    records, at, end = 0, 0, path.stat().st_size
    with path.open("rb") as file:
        while at < end:
            file.seek(at)
            (length,) = struct.unpack("<Q", file.read(8))
            at += length + 16
            records += 1
    return records


def make_references(images: Path, target: Path, references: int) -> None:
    """Fills `target` with class folders of links to the images, in turns: hard links where it can."""
    found = sorted(path for path in images.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    if not found:
        raise click.ClickException(f"{images} holds no .jpg, .jpeg or .png files.")
    link: Callable[[Path, Path], None] = os.link
    if found[0].stat().st_dev != target.parent.stat().st_dev:
        link = os.symlink
    for k, path in enumerate(islice(cycle(found), references)):
        folder = target / path.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        link(path.absolute(), folder / f"{k:07}{path.suffix}")


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Shows the median, and the smallest and largest value if there are several."""
    low, middle, high = min(values), statistics.median(values), max(values)
    shown = f"{middle:,.{digits}f}"
    return shown if len(values) == 1 else f"{shown} ({low:,.{digits}f}-{high:,.{digits}f})"


def table(runs: Sequence[Run]) -> str:
    """Medians with the smallest and largest value; ratios are of runs of the same round."""
    by_name: dict[str, list[Run]] = {}
    for one in runs:
        by_name.setdefault(one.name, []).append(one)
    head = ["", "wall s", "images/s", "images/CPU-s", "peak MB", "worker MB", "x pool", "x pool, CPU"]
    rows = [head, ["---"] * len(head)]
    for name, mine in by_name.items():
        row = [
            name,
            spread([one.wall_s for one in mine], 1),
            spread([one.per_second for one in mine]),
            spread([one.per_cpu_second for one in mine]),
            spread([one.peak_bytes / 2**20 for one in mine]),
            spread([one.peak_worker_bytes / 2**20 for one in mine]),
        ]
        pools = by_name.get("pool", [])
        both = list(zip(mine, pools, strict=False))
        row.append(spread([a.per_second / b.per_second for a, b in both], 2) if both else "")
        row.append(spread([a.per_cpu_second / b.per_cpu_second for a, b in both], 2) if both else "")
        rows.append(row)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def plot(runs: Sequence[Run], path: Path, title: str) -> None:
    """Bars of images per second and of peak memory."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(one.name for one in runs))[::-1]
    figure, axes = pyplot.subplots(1, 2, sharey=True, figsize=(10, 0.45 * len(names) + 1.2), layout="constrained")
    values: list[Callable[[Run], float]] = [lambda one: one.per_second, lambda one: one.peak_bytes / 2**20]
    for axis, label, value in zip(axes, ("images/s", "peak memory, MB"), values, strict=True):
        middles = [statistics.median(value(one) for one in runs if one.name == name) for name in names]
        bars = axis.barh(
            names, middles, color=["#1a6e5c" if name.startswith("tfpipe") else "#b8b8b8" for name in names]
        )
        axis.bar_label(bars, fmt="{:,.0f}", padding=3)
        axis.set_xlabel(label)
        axis.margins(x=0.18)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize="medium")
    figure.savefig(path, dpi=150)


@click.command(help=__doc__)
@click.argument("images", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--references", type=click.IntRange(NUM_SHARDS), default=5000, show_default=True, help="Images to write.")
@click.option("--resize-short", type=click.IntRange(0), default=0, metavar="PX", help="Reduce to this short side.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Runs of each, in turns.")
@click.option("--only", multiple=True, type=click.Choice(list(CONTESTANTS)), help="This contestant; repeat for more.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write every run to this file.")
@click.option("--plot", "plot_path", type=click.Path(path_type=Path), help="Draw the medians into this PNG file.")
@click.option(
    "--tmp", type=click.Path(exists=True, path_type=Path), help="Where to write, once over and cleared again."
)
def main(
    images: Path,
    references: int,
    resize_short: int,
    rounds: int,
    only: tuple[str, ...],
    json_path: Path | None,
    plot_path: Path | None,
    tmp: Path | None,
) -> None:
    """The benchmark."""
    adopt_orphans()
    versions = ", ".join(f"{name} {version(name)}" for name in _VERSIONS)
    title = f"{references:,} images, {NUM_SHARDS} shards, short side {resize_short or 'kept'}"
    cores = f"{len(os.sched_getaffinity(0))} cores ({platform.machine()})"
    where = f"{cores}, Python {platform.python_version()}, {versions}"
    click.echo(f"{title}\n{where}")
    runs = []
    with tempfile.TemporaryDirectory(prefix="tfpipe-speed-", dir=tmp) as folder:
        source = Path(folder, "images")
        make_references(images, source, references)
        for turn in range(rounds):
            for name in only or [name for name in CONTESTANTS if name not in ONLY_IF_ASKED]:
                one = run_once(name, source, Path(folder, "out"), resize_short, Path(folder, "log.txt"))
                click.echo(f"{turn + 1} {name}: {one.wall_s:.1f} s, {one.cpu_s:.1f} CPU-s", err=True)
                runs.append(one)
    click.echo(table(runs))
    if json_path:
        json_path.write_text(json.dumps({"title": title, "machine": where, "runs": [asdict(one) for one in runs]}))
    if plot_path:
        plot(runs, plot_path, f"{title}\n{where}")


if __name__ == "__main__":
    main()
