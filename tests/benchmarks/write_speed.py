"""How fast `tfpipe.write` is beside a bare loop over `tf.io.TFRecordWriter`, per second of a core.

python tests/benchmarks/write_speed.py --record-bytes 65536 --rounds 5

With `--beside FOLDER` two others follow: img2dataset's own TFRecord writer, from a folder that
`pip install --target FOLDER --no-deps img2dataset webdataset fsspec braceexpand` made, and a script of one process that
stores tensors as MaxDiffusion's does, by `tf.io.serialize_tensor`.
"""

import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np

Times = tuple[float, float]
"""The seconds of the processor and of the clock."""


def make_records(count: int, record_bytes: int) -> Iterator[dict[str, Any]]:
    """Records of one array and a caption; the arrays exist before the clock starts."""
    arrays = [np.random.default_rng(k).standard_normal(record_bytes // 4).astype(np.float32) for k in range(16)]
    return ({"latents": arrays[k % 16], "caption": f"caption {k}"} for k in range(count))


def make_images(count: int, record_bytes: int) -> Iterator[dict[str, Any]]:
    """Records of an encoded image and a caption. No writer looks into the image, so its bytes are random."""
    images = [np.random.default_rng(k).bytes(record_bytes) for k in range(16)]
    return ({"key": f"{k:09}", "jpg": images[k % 16], "txt": f"caption {k}"} for k in range(count))


@click.command()
@click.option("--count", type=int, default=10_000, show_default=True, help="Records of each run.")
@click.option("--record-bytes", type=int, default=1 << 16, show_default=True, help="The bytes of an array or image.")
@click.option("--rounds", type=int, default=5, show_default=True, help="Of each, in turns; the median counts.")
@click.option("--beside", metavar="FOLDER", help="Also run img2dataset's writer, which lies here, and a script.")
@click.option("--one", hidden=True, help="One, in this process.")
def main(count: int, record_bytes: int, rounds: int, beside: str | None, one: str | None) -> None:
    """Each in a process of its own, in turns, into a temporary folder."""
    if one is not None:
        print(json.dumps(_time(one, count, record_bytes, beside or "")))
        return
    options = ["--count", str(count), "--record-bytes", str(record_bytes), *(["--beside", beside] if beside else [])]
    names = [*ARRAYS, *IMAGES] if beside else [name for name in ARRAYS if name != "script"]
    times: dict[str, list[list[float]]] = {name: [] for name in names}
    for _ in range(rounds):
        for name, seconds in times.items():
            command = [sys.executable, __file__, *options, "--one", name]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            seconds.append(json.loads(done.stdout.splitlines()[-1]))
    for base, group in (("bare", ARRAYS), ("img2dataset", IMAGES)):
        for name in group:
            if name in times:
                _report(name, base, times, count)


def _report(name: str, base: str, times: dict[str, list[list[float]]], count: int) -> None:
    """Prints the medians. A ratio is the median over the turns, because both of a turn ran beside the same work."""
    cpu, wall = (statistics.median(one[k] for one in times[name]) for k in range(2))
    pairs = list(zip(times[base], times[name], strict=True))
    ratios = [statistics.median(first[k] / second[k] for first, second in pairs) for k in range(2)]
    rates = f"{count / cpu:,.0f} records per CPU-second, {count / wall:,.0f} a second"
    print(f"{name}: {rates}; {ratios[0]:.2f} and {ratios[1]:.2f} of {base}")


def _time(name: str, count: int, record_bytes: int, beside: str) -> Times:
    with tempfile.TemporaryDirectory() as folder:
        if name in IMAGES:
            return IMAGES[name](make_images(count, record_bytes), folder, beside)
        return ARRAYS[name](make_records(count, record_bytes), folder, record_bytes)


def _stop(begin: Times) -> Times:
    return time.process_time() - begin[0], time.perf_counter() - begin[1]


def _start() -> Times:
    return time.process_time(), time.perf_counter()


def _time_write(records: Iterator[dict[str, Any]], folder: str, record_bytes: int, workers: int | None = 0) -> Times:
    import tfpipe

    schema = {"latents": tfpipe.fields.Tensor("float32", (record_bytes // 4,)), "caption": tfpipe.fields.Text()}
    write, begin = tfpipe.write, _start()
    write(records, Path(folder) / "out", schema, num_shards=4, workers=workers)
    return _stop(begin)


def _time_threads(records: Iterator[dict[str, Any]], folder: str, record_bytes: int) -> Times:
    return _time_write(records, folder, record_bytes, None)


def _time_bare(records: Iterator[dict[str, Any]], folder: str, _: int) -> Times:
    return _time_examples(records, folder, lambda array: array.tobytes())


def _time_script(records: Iterator[dict[str, Any]], folder: str, _: int) -> Times:
    import tensorflow as tf

    return _time_examples(records, folder, lambda array: tf.io.serialize_tensor(array).numpy())


def _time_examples(records: Iterator[dict[str, Any]], folder: str, encode: Callable[[Any], bytes]) -> Times:
    import tensorflow as tf

    train = tf.train
    encode(np.zeros(1, np.float32))  # TensorFlow starts at its first operation
    begin = _start()
    with tf.io.TFRecordWriter(f"{folder}/bare.tfrecord") as writer:
        for record in records:
            values = {
                "latents": train.Feature(bytes_list=train.BytesList(value=[encode(record["latents"])])),
                "caption": train.Feature(bytes_list=train.BytesList(value=[record["caption"].encode()])),
            }
            writer.write(train.Example(features=train.Features(feature=values)).SerializeToString())
    return _stop(begin)


def _time_write_images(records: Iterator[dict[str, Any]], folder: str, _: str) -> Times:
    import tfpipe

    schema = {"key": tfpipe.fields.Text(), "jpg": tfpipe.fields.Values("bytes"), "txt": tfpipe.fields.Text()}
    write, begin = tfpipe.write, _start()
    write(records, Path(folder) / "out", schema, num_shards=4, workers=0)
    return _stop(begin)


def _time_img2dataset(records: Iterator[dict[str, Any]], folder: str, beside: str) -> Times:
    """Its writer also writes the key and the caption to a Parquet file."""
    import pyarrow

    sys.path.append(beside)
    sys.modules["tensorflow_io"] = types.ModuleType("tensorflow_io")  # it only adds file systems to TensorFlow
    spec = importlib.util.spec_from_file_location("img2dataset_writer", Path(beside) / "img2dataset" / "writer.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    fields = [("key", pyarrow.string()), ("caption", pyarrow.string())]
    writer = module.TFRecordSampleWriter(0, folder, True, 5, pyarrow.schema(fields), "jpg")
    begin = _start()
    for record in records:
        meta = {"key": record["key"], "caption": record["txt"]}
        writer.write(record["jpg"], record["key"], record["txt"], meta)
    writer.close()
    return _stop(begin)


ARRAYS: dict[str, Callable[[Iterator[dict[str, Any]], str, int], Times]] = {
    "bare": _time_bare,
    "write": _time_write,
    "threads": _time_threads,
    "script": _time_script,
}
"""The writers of arrays, the one that others are compared with first."""

IMAGES: dict[str, Callable[[Iterator[dict[str, Any]], str, str], Times]] = {
    "img2dataset": _time_img2dataset,
    "write images": _time_write_images,
}
"""The writers of encoded images."""


if __name__ == "__main__":
    main()
