"""How long a dataset of very many shards takes to open: the first batch of a new process, and its memory.

python tests/benchmarks/many_shards.py --shards 100000

The shards are links to a few files of 10,000 records, so 100,000 of them stand for a billion records.
"""

import io
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
import numpy as np
from PIL import Image

import tfpipe

_RECORDS = 10_000
_LINKS = 50_000  # of one file; file systems have a limit near 65,000


def _write_shard(folder: Path) -> Path:
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(buffer, "JPEG")
    records = ({"image": buffer.getvalue(), "label": k % 10} for k in range(_RECORDS))
    schema = {"image": tfpipe.fields.Image(), "label": tfpipe.fields.Label(tuple(map(str, range(10))))}
    tfpipe.write(records, folder / "one", schema, num_shards=1)
    return folder / "one"


def _link_shards(one: Path, output: Path, count: int) -> None:
    (output / "index").mkdir(parents=True)
    manifest = json.loads((one / "manifest.json").read_text())
    split = manifest["splits"]["train"]
    (shard,) = split["shards"]
    name = Path(shard["file"]).stem
    split["shards"] = []
    for k in range(count):
        if k % _LINKS == 0:
            files = {}
            for path in (one / f"{name}.tfrecord", one / "index" / f"{name}.idx"):
                files[path.suffix] = output / path.relative_to(one).parent / f"source{k}{path.suffix}"
                shutil.copy(path, files[path.suffix])
        linked = f"train-{k:05d}-of-{count:05d}"
        os.link(files[".tfrecord"], output / f"{linked}.tfrecord")
        os.link(files[".idx"], output / "index" / f"{linked}.idx")
        split["shards"].append({**shard, "file": f"{linked}.tfrecord"})
    for key in ("records", "bytes"):
        split[key] *= count
    split |= {"num_shards": count, "formats": {"JPEG": split["records"]}}
    split["class_counts"] = [number * count for number in split["class_counts"]]
    (output / "manifest.json").write_text(json.dumps(manifest))


def _open(dataset: str) -> None:
    """Takes a batch, and prints the seconds, those of a core, and the megabytes that it took."""
    started = time.perf_counter()
    next(iter(tfpipe.NumpyBatches(dataset, "train", batch_size=256, image_size=8)))
    wall_s = time.perf_counter() - started
    memory_kb = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    memory_mb = int(memory_kb[1]) / 1e3 if memory_kb else 0.0
    print(json.dumps([wall_s, time.process_time(), memory_mb]))


@click.command()
@click.option("--shards", default=100_000, show_default=True, help="The number of shards.")
@click.option("--rounds", default=3, show_default=True, help="The new processes that open the dataset.")
@click.option("--open", "dataset", hidden=True, help="Open this dataset in this process.")
def main(shards: int, rounds: int, dataset: str | None) -> None:
    """Open a dataset of many shards."""
    if dataset is not None:
        _open(dataset)
        return
    with tempfile.TemporaryDirectory() as folder:
        one = _write_shard(Path(folder))
        _link_shards(one, Path(folder, "many"), shards)
        for name in ("one", "many"):
            command = [sys.executable, __file__, "--open", str(Path(folder, name))]
            runs = [json.loads(subprocess.check_output(command)) for _ in range(rounds)]
            wall_s, cpu_s, memory_mb = map(statistics.median, zip(*runs, strict=True))
            print(f"{name}: first batch after {wall_s:.2f} s, {cpu_s:.2f} CPU-s, {memory_mb:.0f} MB")


if __name__ == "__main__":
    main()
