"""How fast records are read by their numbers: one at a time and in batches.

python tests/benchmarks/random_access.py --rounds 5
python tests/benchmarks/random_access.py --batch 256 --beside ../another_checkout
"""

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
NUM_SHARDS = 8
_OTHER_BYTES = 330  # of a record beside its image

Read = Callable[[list[int]], Any]


def prepare_dataset(folder: Path, num_records: int, record_bytes: int) -> None:
    """Writes the files unless an earlier run did, and reads them all into memory."""
    if not (folder / "dataset" / "manifest.json").exists():
        make_dataset(folder, num_records, record_bytes)
    for path in folder.rglob("*record*"):
        if path.is_file():
            path.read_bytes()


def make_dataset(folder: Path, num_records: int, record_bytes: int) -> None:
    """Writes records of random bytes as TFRecord shards and, if array_record is installed, as ArrayRecord files too."""
    sys.path.insert(0, str(ROOT))
    from tests.integrity.made import payload, write_dataset

    rng = np.random.default_rng(0)
    shards: dict[str, list[bytes]] = {}
    for shard in range(NUM_SHARDS):
        numbers = range(num_records * shard // NUM_SHARDS, num_records * (shard + 1) // NUM_SHARDS)
        images = [
            rng.bytes(max(int(record_bytes * scale) - _OTHER_BYTES, 1)) for scale in rng.uniform(0.8, 1.2, len(numbers))
        ]
        rows = [payload(k, encoded=image, format="JPEG") for k, image in zip(numbers, images, strict=True)]
        shards[f"train:{shard}" if shard else "train"] = rows
    if importlib.util.find_spec("array_record"):
        from array_record.python.array_record_module import ArrayRecordWriter

        (folder / "array_record").mkdir()
        for shard, rows in enumerate(shards.values()):
            writer = ArrayRecordWriter(str(folder / "array_record" / f"{shard:05d}.array_record"), "group_size:1")
            for row in rows:
                writer.write(row)
            writer.close()
    write_dataset(folder / "dataset", shards)


def open_tfpipe(folder: Path, what: str) -> tuple[int, Read]:
    """Opens the TFRecord shards: decoded records, or the bytes of them."""
    from tfpipe.readers.data_source import data_source

    source = data_source(str(folder / "dataset"), "train")
    reader: Any = source._reader
    reads: dict[str, Read] = {
        "record": lambda numbers: [source[k] for k in numbers],
        # A release without batches reads a view.
        "records": getattr(source, "__getitems__", None) or (lambda numbers: list(source[numbers])),
        "payload": lambda numbers: [reader.read_payload(k) for k in numbers],
        "payloads": getattr(reader, "read_payloads", None) or (lambda numbers: list(map(reader.read_payload, numbers))),
    }
    return len(source), reads[what]


def open_array_record(folder: Path, what: str) -> tuple[int, Read]:
    """Opens the ArrayRecord files, which give bytes."""
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    source = ArrayRecordDataSource(sorted(str(path) for path in (folder / "array_record").iterdir()))
    return len(source), source.__getitems__ if what == "payloads" else lambda numbers: [source[k] for k in numbers]


def measure(folder: Path, row: str, batch: int, seconds: float) -> dict[str, float]:
    """Reads batches of random numbers for some seconds, after a batch of every shard that opens its file."""
    library, what = row.split(", ")
    count, read = (open_array_record if library == "array_record" else open_tfpipe)(folder, what)
    rng = np.random.default_rng(os.getpid())
    batches = [rng.integers(0, count, batch).tolist() for _ in range(256)]
    read(list(range(0, count, max(count // batch, 1))))
    num_batches, started, cpu_started = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - started < seconds:
        read(batches[num_batches % len(batches)])
        num_batches += 1
    wall_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu_started
    return {"per_s": num_batches * batch / wall_s, "per_cpu_s": num_batches * batch / cpu_s}


def list_rows() -> list[str]:
    """Lists what this machine can measure."""
    rows = [f"tfpipe, {what}" for what in ("record", "records", "payload", "payloads")]
    if importlib.util.find_spec("array_record"):
        rows += ["array_record, payload", "array_record, payloads"]
    return rows


@click.command()
@click.option("--records", default=300_000, show_default=True, help="Records of the dataset.")
@click.option("--record-bytes", default=1200, show_default=True, help="The mean size of a record.")
@click.option("--batch", default=1024, show_default=True, help="Random numbers of a batch.")
@click.option("--seconds", default=2.0, show_default=True, help="How long each is measured in a round.")
@click.option("--rounds", default=5, show_default=True, help="Of each, in turns; the medians count.")
@click.option("--data", type=click.Path(), help="Where the files are kept.  [default: a new folder]")
@click.option("--beside", type=click.Path(exists=True), help="Another checkout of tfpipe, measured in the same turns.")
@click.option("--json", "json_path", type=click.Path(), help="Write the figures of every round there.")
@click.option("--one", hidden=True, help="The row to measure in this process.")
def main(
    records: int,
    record_bytes: int,
    batch: int,
    seconds: float,
    rounds: int,
    data: str | None,
    beside: str | None,
    json_path: str | None,
    one: str | None,
) -> None:
    """Measure each in a process of its own, in turns, with all files in memory."""
    if one is not None:
        click.echo(json.dumps(measure(Path(str(data)), one, batch, seconds)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(data or temporary)
        folder.mkdir(exist_ok=True)
        prepare_dataset(folder, records, record_bytes)
        checkouts = {"": ROOT, **({"beside: ": Path(beside).resolve()} if beside else {})}
        rows = [(name, row) for row in list_rows() for name in checkouts if not name or row.startswith("tfpipe, ")]
        figures: dict[str, list[dict[str, float]]] = {name + row: [] for name, row in rows}
        for _ in range(rounds):
            for name, row in rows:
                options = ["--data", str(folder), "--batch", str(batch), "--seconds", str(seconds), "--one", row]
                paths = [str(checkouts[name]), *filter(None, [os.environ.get("PYTHONPATH")])]
                done = subprocess.run(
                    [sys.executable, __file__, *options],
                    check=True,
                    stdout=subprocess.PIPE,
                    text=True,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                )
                figures[name + row].append(json.loads(done.stdout))
    for name, rates in figures.items():
        per_s, per_cpu_s = (statistics.median(rate[key] for rate in rates) for key in ("per_s", "per_cpu_s"))
        click.echo(f"{name:36} {per_s:11,.0f} records/s {per_cpu_s:11,.0f} per CPU-second")
    if json_path:
        Path(json_path).write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
