"""Measures the processor time and the memory that planning millions of images takes. Files are empty, rows name none.

python tests/benchmarks/plan_scale.py --images 1000000 --images 10000000
python tests/benchmarks/plan_scale.py --archives 40
"""

import csv
import io
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import click

from beam_jobs.config import ShardConfig
from beam_jobs.inputs import folder
from beam_jobs.shard_job import plan_shards
from beam_jobs.shards.output_dir import open_work_dir
from tfpipe.system.host_limits import usable_cpus
from tfpipe.system.progress import Observer, Progress

_CLASSES = 1000
_BYTES = 110_000  # about the size of an image of ImageNet
_SHARDS = 8192
_MEMBERS = 5000
_FILE_ROWS = 1_000_000
_KINDS = ("folder", "csv", "parquet")


def _make_path(i: int) -> str:
    return f"n{i % _CLASSES:08d}/n{i % _CLASSES:08d}_{i:08d}.JPEG"


def _write_folder(path: Path, count: int) -> None:
    """Writes files of a size without content, which takes 25 s of a core a million."""
    for label in range(_CLASSES):
        (path / f"n{label:08d}").mkdir(parents=True, exist_ok=True)
    for i in range(count):
        with (path / _make_path(i)).open("wb") as file:
            file.truncate(_BYTES + i % 1000)


def _write_csv(path: Path, begin: int, end: int) -> None:
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["image", "label"])
        rows.writerows([_make_path(i), f"n{i % _CLASSES:08d}"] for i in range(begin, end))


def _write_parquet(path: Path, begin: int, end: int) -> None:
    """Writes the rows of `_write_csv`, by Arrow's own functions: in Python 100 million would take minutes."""
    import numpy
    import pyarrow
    import pyarrow.compute
    import pyarrow.parquet

    classes = pyarrow.array([f"n{label:08d}" for label in range(_CLASSES)])
    schema = pyarrow.schema([("image", pyarrow.string()), ("label", pyarrow.string())])
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        for first in range(begin, end, 100_000):
            rows = numpy.arange(first, min(first + 100_000, end))
            labels = classes.take(pyarrow.array(rows % _CLASSES))
            numbers = pyarrow.compute.utf8_lpad(pyarrow.array(rows).cast(pyarrow.string()), 8, "0")
            names = pyarrow.compute.binary_join_element_wise(labels, numbers, "_")
            names = pyarrow.compute.binary_join_element_wise(names, ".JPEG", "")
            images = pyarrow.compute.binary_join_element_wise(labels, names, "/")
            writer.write_table(pyarrow.table([images, labels], schema=schema))


def _read_peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def _write_input(folder: Path, kind: str, count: int) -> Path:
    """Writes a folder, or a table in files of a million rows, and returns it or its pattern."""
    if kind == "folder":
        _write_folder(folder, count)
        return folder
    folder.mkdir(exist_ok=True)
    for k, begin in enumerate(range(0, count, _FILE_ROWS)):
        write = _write_csv if kind == "csv" else _write_parquet
        write(folder / f"table-{k:04d}.{kind}", begin, min(begin + _FILE_ROWS, count))
    return folder / f"table-*.{kind}"


def _measure(kind: str, source: str, output: str, count: int) -> dict[str, float | int]:
    """Lists the images, and makes and writes the plan, in this process."""
    in_table = kind != "folder"
    config = ShardConfig(source, output, num_shards=_SHARDS if in_table else None, allow_missing=in_table)
    before, listed, started = _read_peak_mb(), 0.0, time.monotonic()

    class Listing(Observer):
        def progress(self, progress: Progress) -> None:
            nonlocal listed
            listed = time.monotonic() - started

    plan = plan_shards(config, observer=Listing())
    planned = time.monotonic() - started
    with open_work_dir(config, plan) as work:
        written = time.monotonic() - started
        lines_bytes = Path(work.lines_path).stat().st_size
    assert plan.num_images == count
    return {
        "images": count,
        "shards": len(plan.shards),
        "list_s": listed,
        "plan_s": planned - listed,
        "write_s": written - planned,
        "total_s": written,
        "plan_bytes": lines_bytes,
        "before_mb": before,
        "peak_mb": _read_peak_mb(),
        "cpu_s": time.process_time(),
    }


def _index_archives(scratch: Path, count: int) -> None:
    """Reads the same archives by one process and by one per core in turn. The start of the process pool counts."""
    source = scratch / "tars"
    source.mkdir()
    for k in range(count):
        with tarfile.open(source / f"class{k:03d}.tar", "w") as tar:
            for i in range(_MEMBERS):
                info = tarfile.TarInfo(f"{i:06d}.jpg")
                info.size = 1000
                tar.addfile(info, io.BytesIO(bytes(1000)))
    seconds: dict[int, list[float]] = {1: [], usable_cpus(): []}
    for _ in range(3):
        for workers, times in seconds.items():
            started = time.monotonic()
            assert len(folder.list_tree(str(source), workers).images) == count * _MEMBERS
            times.append(time.monotonic() - started)
    for workers, times in seconds.items():
        median = statistics.median(times)
        rate = count * _MEMBERS / median
        spread = f"{min(times):.1f} to {max(times):.1f}"
        print(f"{count} archives of {_MEMBERS:,}, {workers} processes: {median:.1f} s ({spread}), {rate:,.0f} images/s")


@click.command()
@click.option("--images", type=int, multiple=True, default=(1_000_000,), show_default=True)
@click.option("--kind", "kinds", type=click.Choice(_KINDS), multiple=True, default=_KINDS, show_default=True)
@click.option("--archives", type=int, default=0, help="Index this number of tar files instead.")
@click.option("--scratch", type=click.Path(path_type=Path), help="The folder for inputs and plans.")
@click.option("--in-process", nargs=2, hidden=True, help="Source and output of one measurement, in this process.")
def main(
    images: tuple[int, ...],
    kinds: tuple[str, ...],
    archives: int,
    scratch: Path | None,
    in_process: tuple[str, str] | None,
) -> None:
    """Measures each kind of input in a process of its own, whose peak counts. Another process writes the table."""
    if in_process is not None:
        print(json.dumps(_measure(kinds[0], *in_process, images[0])))
        return
    with tempfile.TemporaryDirectory(dir=scratch) as work_dir:
        if archives:
            _index_archives(Path(work_dir), archives)
            return
        for count in images:
            for kind in kinds:
                inputs = Path(work_dir) / "inputs"
                source = _write_input(inputs, kind, count)
                output = Path(work_dir) / "out"
                options = ["--images", str(count), "--kind", kind]
                run = subprocess.run(
                    [sys.executable, __file__, *options, "--in-process", str(source), str(output)],
                    stdout=subprocess.PIPE,
                    check=True,
                    text=True,
                    start_new_session=True,
                )
                result = json.loads(run.stdout)
                shutil.rmtree(output, ignore_errors=True)
                shutil.rmtree(inputs, ignore_errors=True)
                print(
                    f"{kind}: {count:,} images, {result['shards']:,} shards: listed in {result['list_s']:.0f} s, "
                    f"planned in {result['plan_s']:.0f} s, written in {result['write_s']:.0f} s "
                    f"({result['plan_bytes'] / 1e6:,.0f} MB), in all {result['total_s']:.0f} s "
                    f"({result['cpu_s']:.1f} s of a core); "
                    f"peak {result['peak_mb']:,.0f} MB, {result['before_mb']:,.0f} of them before",
                    flush=True,
                )


if __name__ == "__main__":
    main()
