"""How fast `tfpipe.write` is beside a bare loop over `tf.io.TFRecordWriter`, per second of a core.

python tests/benchmarks/write_speed.py --record-bytes 65536 --rounds 5
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np


def make_records(count: int, record_bytes: int) -> Iterator[dict[str, Any]]:
    """Records of one array and a caption; the arrays exist before the clock starts."""
    arrays = [np.random.default_rng(k).standard_normal(record_bytes // 4).astype(np.float32) for k in range(16)]
    return ({"latents": arrays[k % 16], "caption": f"caption {k}"} for k in range(count))


@click.command()
@click.option("--count", type=int, default=10_000, show_default=True, help="Records of each run.")
@click.option("--record-bytes", type=int, default=1 << 16, show_default=True, help="The bytes of a record's array.")
@click.option("--rounds", type=int, default=5, show_default=True, help="Of each, in turns; the median counts.")
@click.option("--one", type=click.Choice(["bare", "write", "threads"]), hidden=True, help="One, in this process.")
def main(count: int, record_bytes: int, rounds: int, one: str | None) -> None:
    """Each in a process of its own, in turns, into a temporary folder."""
    if one is not None:
        print(json.dumps(_time(one, count, record_bytes)))
        return
    times: dict[str, list[list[float]]] = {"bare": [], "write": [], "threads": []}
    for _ in range(rounds):
        for name, seconds in times.items():
            options = ["--count", str(count), "--record-bytes", str(record_bytes), "--one", name]
            command = [sys.executable, __file__, *options]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            seconds.append(json.loads(done.stdout.splitlines()[-1]))
    bare = [statistics.median(one[k] for one in times["bare"]) for k in range(2)]
    for name, seconds in times.items():
        cpu, wall = (statistics.median(one[k] for one in seconds) for k in range(2))
        rates = f"{count / cpu:,.0f} records per CPU-second, {count / wall:,.0f} a second"
        print(f"{name}: {rates}; {bare[0] / cpu:.2f} and {bare[1] / wall:.2f} of the bare loop")


def _time(name: str, count: int, record_bytes: int) -> tuple[float, float]:
    """Returns the seconds of the processor and of the clock."""
    records = make_records(count, record_bytes)
    with tempfile.TemporaryDirectory() as folder:
        if name == "bare":
            return _time_bare(records, folder)
        import tfpipe

        schema = {"latents": tfpipe.Tensor("float32", (record_bytes // 4,)), "caption": tfpipe.Text()}
        write, workers = tfpipe.write, 0 if name == "write" else None
        begin = time.process_time(), time.perf_counter()
        write(records, Path(folder) / "out", schema, num_shards=4, workers=workers)
        return time.process_time() - begin[0], time.perf_counter() - begin[1]


def _time_bare(records: Iterator[dict[str, Any]], folder: str) -> tuple[float, float]:
    import tensorflow as tf

    train, begin = tf.train, (time.process_time(), time.perf_counter())
    with tf.io.TFRecordWriter(f"{folder}/bare.tfrecord") as writer:
        for record in records:
            values = {
                "latents": train.Feature(bytes_list=train.BytesList(value=[record["latents"].tobytes()])),
                "caption": train.Feature(bytes_list=train.BytesList(value=[record["caption"].encode()])),
            }
            writer.write(train.Example(features=train.Features(feature=values)).SerializeToString())
    return time.process_time() - begin[0], time.perf_counter() - begin[1]


if __name__ == "__main__":
    main()
