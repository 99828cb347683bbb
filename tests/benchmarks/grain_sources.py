"""How fast Grain gets records from tfpipe's source, from ArrayRecord, and from its own reader of TFRecords.

pip install grain array_record
python tests/benchmarks/grain_sources.py --rounds 5
python tests/benchmarks/grain_sources.py --records 6000 --record-bytes 110000 --batch 64

Each gives the bytes of the image and the class of every record. Grain's own reader of TFRecords reads a file from its
beginning, so it has no shuffle and no record by its number.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[2]
ROWS = {
    "tfpipe, read_batch": True,
    "tfpipe, one by one": True,
    "ArrayRecord, one by one": True,
    "Grain's TFRecord reader, in order": False,
}
"""The sources, and whether each is shuffled."""


def parse(payload: bytes) -> dict[str, Any]:
    from tfpipe.format.example import decode_example

    features: Any = decode_example(payload)
    return {"image": features["image/encoded"][0], "label": features["image/class/label"][0]}


def keep_list(elements: Any) -> list[Any]:
    return list(elements)


def make_pipeline(folder: Path, row: str, batch: int) -> Any:
    import grain

    from tfpipe.readers.grain import RecordSource

    source = RecordSource(folder / "dataset", "train", decode=False)
    if row == "tfpipe, read_batch":
        numbers = grain.MapDataset.range(len(source)).shuffle(seed=1).repeat()
        return numbers.batch(batch).map(source.read_batch).to_iter_dataset()
    if row == "tfpipe, one by one":
        records = grain.MapDataset.source(source).shuffle(seed=1).repeat()
        return records.batch(batch, batch_fn=keep_list).to_iter_dataset()
    if row == "ArrayRecord, one by one":
        paths = sorted(str(path) for path in (folder / "array_record").iterdir())
        records = grain.MapDataset.source(grain.sources.ArrayRecordDataSource(paths)).shuffle(seed=1).repeat()
        return records.map(parse).batch(batch, batch_fn=keep_list).to_iter_dataset()
    paths = sorted(str(path) for path in (folder / "dataset").glob("*.tfrecord"))
    files = grain.MapDataset.source(paths).repeat().map(grain.experimental.TFRecordIterDataset)
    records = grain.experimental.InterleaveIterDataset(files, cycle_length=len(paths))
    return records.map(parse).batch(batch, batch_fn=keep_list)


def measure(folder: Path, row: str, batch: int, workers: int, seconds: float) -> dict[str, float]:
    """Reads batches for some seconds, after twenty that start threads and processes and open the files."""
    import grain
    from absl import flags

    flags.FLAGS.mark_as_parsed()
    pipeline = make_pipeline(folder, row, batch)
    if workers:
        options = grain.multiprocessing.MultiprocessingOptions(num_workers=workers)
        pipeline = pipeline.mp_prefetch(options)
    batches: Iterator[Any] = iter(pipeline)
    for _ in range(20):
        next(batches)
    num_batches, started, cpu_started = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - started < seconds:
        next(batches)
        num_batches += 1
    wall_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu_started
    return {"per_s": num_batches * batch / wall_s, "per_cpu_s": num_batches * batch / cpu_s}


@click.command()
@click.option("--records", default=100_000, show_default=True, help="Records of the dataset.")
@click.option("--record-bytes", default=1200, show_default=True, help="The mean size of a record.")
@click.option("--batch", default=256, show_default=True, help="Records of a batch.")
@click.option("--workers", default=0, show_default=True, help="Worker processes of Grain; 0: threads alone.")
@click.option("--seconds", default=3.0, show_default=True, help="How long each is measured in a round.")
@click.option("--rounds", default=5, show_default=True, help="Of each, in turns; the medians count.")
@click.option("--data", type=click.Path(), help="Where the files are kept.  [default: a new folder]")
@click.option("--one", hidden=True, help="The row to measure in this process.")
def main(
    records: int,
    record_bytes: int,
    batch: int,
    workers: int,
    seconds: float,
    rounds: int,
    data: str | None,
    one: str | None,
) -> None:
    """Measure each in a process of its own, in turns, with all files in memory."""
    sys.path[:0] = [str(ROOT)]
    if one is not None:
        click.echo(json.dumps(measure(Path(str(data)), one, batch, workers, seconds)))
        return
    from tests.benchmarks.random_access import prepare_dataset

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(data or temporary)
        folder.mkdir(exist_ok=True)
        prepare_dataset(folder, records, record_bytes)
        figures: dict[str, list[dict[str, float]]] = {row: [] for row in ROWS}
        for _ in range(rounds):
            for row in ROWS:
                options = ["--data", str(folder), "--batch", str(batch), "--workers", str(workers)]
                command = [sys.executable, __file__, *options, "--seconds", str(seconds), "--one", row]
                environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
                figures[row].append(json.loads(done.stdout))
    for row, rates in figures.items():
        per_s, per_cpu_s = (statistics.median(rate[key] for rate in rates) for key in ("per_s", "per_cpu_s"))
        cpu = "" if workers else f" {per_cpu_s:11,.0f} per CPU-second"  # that of worker processes is not known here
        order = "shuffled" if ROWS[row] else "in order"
        click.echo(f"{row:36} {order:9} {per_s:11,.0f} records/s{cpu}")


if __name__ == "__main__":
    main()
