"""Datasets to export, and what their records hold."""

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.beam_jobs.datasets import make_dataset, read_records
from tests.beam_jobs.images import make_jpeg, make_png, write_files
from tests.integrity.damaged import framed
from tfpipe.format.example import encode_example

Features = dict[str, Any]


def write_foreign(path: Path, records: Iterable[dict[str, Any]], compression: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = framed([encode_example(record) for record in records])
    path.write_bytes(gzip.compress(data) if compression else data)


def make_photo_table(folder: Path) -> Path:
    """Writes 9 images and a table of them with classes, splits, boxes and three further columns."""
    rows = []
    for i in range(9):
        name = f"photos/{i}.{'png' if i % 4 == 3 else 'jpg'}"
        write_files(folder, {name: make_png(i) if i % 4 == 3 else make_jpeg(i)})
        sides = [round(0.1 * k, 1) for k in range(i % 3)]
        row = {"image": name, "label": ("owl", "cat", "dog")[i % 3], "split": "test" if i > 6 else "train"}
        ends = [x + 0.1 for x in sides]
        row |= dict.fromkeys(("xmin", "ymin"), sides) | dict.fromkeys(("xmax", "ymax"), ends)
        row |= {"box_label": list(range(i % 3)), "caption": f"Größe {i}", "scores": [i / 10, 0.5], "views": i}
        rows.append(row)
    table = folder / "photos.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return table


def make_photo_dataset(folder: Path) -> Path:
    """Writes the dataset of `make_photo_table`: classes owl, cat, dog; `train` in 3 shards."""
    table = make_photo_table(folder)
    (folder / "labels.txt").write_text("owl\ncat\ndog\n")
    make_dataset(table, folder / "dataset", labels=str(folder / "labels.txt"), num_shards=3)
    return folder / "dataset"


def describe_records(dataset: Path, split: str) -> list[Features]:
    """Returns what each record says, without its place: the name and the order of images change on the way."""
    records = []
    for features in read_records(dataset, split):
        values = {
            name: feature if isinstance(feature, list) else [] if feature is None else feature.tolist()
            for name, feature in features.items()
        }
        del values["image/filename"]
        records.append(values)
    return sorted(records, key=lambda values: values["image/encoded"])
