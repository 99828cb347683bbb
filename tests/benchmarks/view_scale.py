"""The seconds and the memory of `tfpipe view` over millions of rows, each call in a process of its own.

python -m tests.benchmarks view_scale FOLDER --millions 10
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

import tfpipe
from tfpipe import fields
from tfpipe.format import file_names, manifest_json
from tfpipe.format.manifest import Manifest

_SHARDS, _RECORDS, _SIDE_PX = 10, 10_000, 4
VIEWS = {
    "label": ("label_id = 3",),
    "several columns": ("label in ('a', 'b') and bytes > 10 and width = 4",),
    "sample": ("--sample", "10%"),
    "class_balanced": ("label_id < 8", "--weights", "class_balanced"),
}
"""The arguments of each call."""


def make_records(shard: int) -> Iterator[dict[str, Any]]:
    """Yields the records of a shard: tiny random images of ten classes, with their names."""
    rng = np.random.default_rng(shard)
    for k in range(_RECORDS):
        image = rng.integers(0, 256, (_SIDE_PX, _SIDE_PX, 3), np.uint8)
        yield {"image": image, "label": int(rng.integers(10)), "name": f"{shard:03}/{k:06}"}


def link_copies(manifest: Manifest, copies: int, output: Path) -> None:
    """Makes a dataset with the shards of `train` several times, as further names of the same files."""
    source, info = Path(manifest.directory), manifest.splits["train"]
    (output / file_names.INDEX_DIR).mkdir(parents=True)
    shards = []
    for shard in info.shards * copies:
        name = file_names.shard_name("train", len(shards), len(info.shards) * copies)
        for get_name in (str, file_names.index_name, file_names.info_name):
            os.link(source / get_name(shard.file), output / get_name(name))
        shards.append(shard._replace(file=name))
    counts = {"formats": {name: count * copies for name, count in info.formats.items()}}
    whole = replace(info, shards=tuple(shards), class_counts=tuple(n * copies for n in info.class_counts), **counts)
    (output / file_names.MANIFEST).write_text(manifest_json.dumps(replace(manifest, splits={"train": whole})))


def run(*args: object) -> tuple[float, float]:
    """Runs `tfpipe ...`, and returns its seconds and its largest memory in MB."""
    program = "import resource,sys; from tfpipe.cli.main import main\ntry: main()\nfinally: print(resource.getrusage("
    program += "resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, args)], check=True, text=True, stdout=subprocess.DEVNULL, stderr=-1
    )
    return time.perf_counter() - started, int(done.stderr.split()[-1]) / 1024


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--millions", default=10, show_default=True, help="Of rows.")
@click.option("--rounds", default=3, show_default=True, help="The fastest counts.")
def main(folder: Path, millions: int, rounds: int) -> None:
    """Times each view."""
    base, large = folder / "base", folder / f"{millions}m"
    if not base.exists():
        schema = {"image": fields.Image(), "label": fields.Label(tuple("abcdefghij")), "name": fields.Text()}
        tfpipe.write(make_records, base, schema, num_shards=_SHARDS, workers=0, key="name")
    if not large.exists():
        link_copies(tfpipe.load_manifest(str(base)), millions * 10**6 // (_SHARDS * _RECORDS), large)
    for name, args in VIEWS.items():
        runs = [run("view", large, *args, "--name", f"v{k}-{os.getpid()}-{name.split()[0]}") for k in range(rounds)]
        size = max(path.stat().st_size for path in (large / "views").iterdir())
        print(f"{name:16}{min(runs)[0]:6.1f} s{max(mb for _, mb in runs):8.0f} MB; the largest file {size:,} bytes")


if __name__ == "__main__":
    main()
