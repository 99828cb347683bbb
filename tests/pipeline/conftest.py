"""Tiny datasets in which every record differs from the others, written in milliseconds without the job."""

import hashlib
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.beam_jobs.images import save_image
from tests.integrity.damaged import framed
from tests.integrity.made import write_shards
from tfpipe.dataset.load import load_manifest
from tfpipe.format import file_names, manifest_json
from tfpipe.format.example import encode_example
from tfpipe.format.manifest import ImageSizes, Manifest, SplitInfo
from tfpipe.format.schema import FeatureSpec, image_schema

SHARDS = (37, 0, 61, 5, 80, 1, 50, 23)
"""The records of each shard of `many`: 257 in all, which no batch divides."""
EXTRA = (
    FeatureSpec("id", "int64", ()),
    FeatureSpec("words", "bytes", None),
    FeatureSpec("marks", "int64", None),
    FeatureSpec("pair", "float", (2,)),
)
SCHEMA = image_schema(labeled=True, boxes=True, box_labels=False, extra=EXTRA)
CLASSES = ("cat", "dog", "owl")


def values_of(number: int) -> dict[str, Any]:
    """The features of record `number`; its image is 10 x 14, JPEG, and its color goes up with the number."""
    y, x = np.mgrid[0:10, 0:14]
    pixels = np.stack([x * 9 + number % 100, y * 12 + number % 70, np.full_like(x, number % 256)], axis=-1)
    boxes = number % 4
    sides = {side: [0.125 * (i + 1) for i in range(boxes)] for side in ("xmin", "xmax", "ymin", "ymax")}
    return {
        "image/encoded": save_image(Image.fromarray(pixels.astype(np.uint8)), "JPEG"),
        "image/format": "JPEG",
        "image/height": 10,
        "image/width": 14,
        "image/channels": 3,
        "image/colorspace": "RGB",
        "image/filename": f"{number}.jpg",
        "image/sha256": "0" * 64,
        "image/class/label": number % 3,
        "image/class/text": CLASSES[number % 3],
        **{f"image/object/bbox/{side}": values for side, values in sides.items()},
        "id": number,
        "words": [f"w{i}" for i in range(number % 3)],
        "marks": list(range(number % 6)),
        "pair": [float(number), -0.5],
    }


def write_split(folder: Path, split: str, shard_records: tuple[int, ...]) -> SplitInfo:
    count = sum(shard_records)
    payloads = (encode_example(SCHEMA.check(values_of(number))) for number in range(count))
    shards = write_shards(folder, split, [list(islice(payloads, records)) for records in shard_records])
    counts = tuple(len(range(label, count, 3)) for label in range(3))
    return SplitInfo(split, shards, {"JPEG": count}, counts, ImageSizes(10, 10, 10.0, 14, 14, 14.0))


def write_dataset(folder: Path, **splits: tuple[int, ...]) -> Manifest:
    """A whole dataset, as `load_manifest` opens it: from the name of each split to the records of its shards."""
    manifest = Manifest(
        name="tiny",
        splits={split: write_split(folder, split, records) for split, records in splits.items()},
        label_names=CLASSES,
        schema=SCHEMA,
        image={"encoding": "keep"},
        fingerprint=hashlib.sha256(repr(splits).encode()).hexdigest(),
        tool_version="0",
    )
    (folder / file_names.MANIFEST).write_text(manifest_json.dumps(manifest))
    return load_manifest(str(folder))


@pytest.fixture(scope="session")
def many(tmp_path_factory) -> Manifest:
    """257 records in `train`, in eight uneven shards of which one is empty. Not to be changed."""
    return write_dataset(tmp_path_factory.mktemp("many"), train=SHARDS)


@pytest.fixture(scope="session")
def few(tmp_path_factory) -> Manifest:
    """23 records in `train`, in four shards, 8 in `validation`. Not to be changed: see `copied`."""
    return write_dataset(tmp_path_factory.mktemp("few"), train=(7, 5, 2, 9), validation=(5, 3))


@pytest.fixture
def copied(few: Manifest, tmp_path: Path) -> Manifest:
    return load_manifest(str(shutil.copytree(few.directory, tmp_path / "copied")))


@pytest.fixture(scope="session")
def foreign(tmp_path_factory) -> Path:
    """A folder of files that something else wrote: `train-*` with `image/encoded`, 10 and 6; `flat-*` as TFDS does."""
    folder = tmp_path_factory.mktemp("foreign")
    for shard, numbers in enumerate((range(10), range(10, 16))):
        kinds: dict[str, list[bytes]] = {"train": [], "flat": []}
        for number in numbers:
            values = values_of(number)
            record = {name: values[name] for name in ("image/encoded", "image/class/label", "id")}
            kinds["train"].append(encode_example({**record, "marks": np.ones(number % 3, np.int64)}))
            flat = {"image": values["image/encoded"], "label": values["image/class/label"]}
            kinds["flat"].append(encode_example(flat))
        for kind, payloads in kinds.items():
            (folder / f"{kind}-{shard:05d}-of-00002").write_bytes(framed(payloads))
    return folder


@pytest.fixture(scope="session")
def context() -> type[tf.distribute.InputContext]:
    """What `tf.distribute` says of a host: the number of hosts, its index, and the number of replicas."""
    return tf.distribute.InputContext
