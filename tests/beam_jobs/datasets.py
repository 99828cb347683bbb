"""Datasets made in this process, and how they are read back."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from beam_jobs.config import ShardConfig
from beam_jobs.inputs.recognize import list_input
from beam_jobs.plan.listing import Listing
from beam_jobs.plan.plan import Plan
from beam_jobs.shard_job import plan_shards
from beam_jobs.shards.finish_dataset import finish_dataset
from beam_jobs.shards.output_dir import open_work_dir
from beam_jobs.shards.write_shard import write_shard
from tests.beam_jobs.images import make_jpeg, write_files
from tests.refusals import refusal
from tfpipe.errors import DataError, TfpipeError
from tfpipe.format.example import decode_example
from tfpipe.format.image_form import ImageForm
from tfpipe.format.manifest import Manifest
from tfpipe.format.tfrecord import scan_records


def make_dataset(source: Path | str, output: Path | str, **options: Any) -> Manifest:
    config = ShardConfig(str(source), str(output), **options)
    return write_plan(config, plan_shards(config))


def write_plan(config: ShardConfig, plan: Plan) -> Manifest:
    with open_work_dir(config, plan) as work:
        header = work.read_header()
        return finish_dataset(work, header, [write_shard(work, header, k) for k in range(len(header.shards))])


def list_source(source: Path | str, **options: Any) -> Listing:
    return list_input(ShardConfig(str(source), "/out", **options))


def refuse_source(source: Path | str, kind: type[TfpipeError] = DataError, **options: Any) -> str:
    """Returns what is said of an input that is refused."""
    return refusal(kind, list_source, source, **options)


def make_seekable_dataset(images: Mapping[str, bytes], output: Path, **options: Any) -> Manifest:
    """Makes a dataset with `seekable` of JPEGs that have the restart markers already."""
    source = write_files(output.with_name(f"{output.name}-images"), images)
    return make_dataset(source, output, form=ImageForm(seekable=True), **options)


def make_seekable_photos(count: int, seed: int = 0) -> dict[str, bytes]:
    """Returns different JPEGs of classes `cat` and `dog`, each with restart markers at the chosen interval."""
    names = [f"{'cat' if i % 2 else 'dog'}/{i:03d}.jpg" for i in range(count)]
    return {name: make_jpeg(1000 * seed + i, restart_marker_blocks=2) for i, name in enumerate(names)}


def join_datasets(datasets: Sequence[Path | str], output: Path | str, **options: Any) -> Manifest:
    """Makes a dataset of the records of finished datasets, with `options` of `ShardConfig`."""
    return make_dataset(datasets[0], output, datasets=tuple(map(str, datasets)), **options)


def read_tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def read_payloads(output: Path, split: str = "train") -> list[bytes]:
    payloads: list[bytes] = []
    for path in sorted(output.glob(f"{split}-*.tfrecord")):
        with path.open("rb") as file:
            payloads += [payload for _, payload in scan_records(file)]
    return payloads


def read_records(output: Path, split: str = "train") -> list[dict[str, Any]]:
    return [decode_example(payload) for payload in read_payloads(output, split)]


def read_images(output: Path, split: str = "train") -> dict[str, bytes]:
    """Returns the stored images of a split by file name, in the order of the records."""
    return {os.fsdecode(r["image/filename"][0]): bytes(r["image/encoded"][0]) for r in read_records(output, split)}


def read_quarantine(output: Path) -> list[dict[str, Any]]:
    return [*map(json.loads, (output / "quarantine" / "quarantined.jsonl").read_text().splitlines())]


def parse_with_tensorflow(output: Path, spec: Mapping[str, Any], split: str = "train") -> list[dict[str, Any]]:
    import tensorflow as tf

    files = sorted(map(str, output.glob(f"{split}-*.tfrecord")))
    records = [tf.io.parse_single_example(payload, dict(spec)) for payload in tf.data.TFRecordDataset(files)]
    return [{name: value.numpy() for name, value in record.items()} for record in records]
