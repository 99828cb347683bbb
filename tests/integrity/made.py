"""A dataset of hand-made shards, so that a test knows every byte."""

import hashlib
from pathlib import Path

import numpy as np
from PIL import Image

from tests.beam_jobs.images import save_image
from tests.integrity.damaged import framed
from tfpipe.dataset.load import load_manifest
from tfpipe.format import file_names, manifest_json, tfds_metadata
from tfpipe.format.example import encode_example
from tfpipe.format.manifest import ImageSizes, Manifest, ShardInfo, SplitInfo
from tfpipe.format.record_index import encode_index
from tfpipe.format.schema import image_schema
from tfpipe.format.tfrecord import FRAME_BYTES, scan_records

LABELS = ("cat", "dog")


def png(seed: int) -> bytes:
    pixels = np.full((4, 5, 3), seed % 251, np.uint8)
    pixels[0, 0] = seed // 251 % 251
    return save_image(Image.fromarray(pixels))


def payload(seed: int, **changes: object) -> bytes:
    """One good record; `changes` by the last part of a feature's name."""
    image = png(seed)
    values: dict[str, object] = {
        "image/encoded": image,
        "image/format": "PNG",
        "image/height": 4,
        "image/width": 5,
        "image/channels": 3,
        "image/colorspace": "RGB",
        "image/filename": f"{LABELS[seed % 2]}/{seed}.png",
        "image/sha256": hashlib.sha256(image).hexdigest(),
        "image/class/label": seed % 2,
        "image/class/text": LABELS[seed % 2],
    }
    for name, value in changes.items():
        values[next(key for key in values if key.endswith("/" + name))] = value
    return encode_example(SCHEMA.check(values))


SCHEMA = image_schema(labeled=True, boxes=False, box_labels=False)


def write_shards(folder: Path, split: str, files: list[list[bytes]]) -> tuple[ShardInfo, ...]:
    """Writes the shards of a split out of their payloads, and their indexes."""
    (folder / file_names.INDEX_DIR).mkdir(parents=True, exist_ok=True)
    infos = []
    for k, payloads in enumerate(files):
        name, data = file_names.shard_name(split, k, len(files)), framed(payloads)
        (folder / name).write_bytes(data)
        (folder / file_names.index_name(name)).write_bytes(encode_index([len(p) + FRAME_BYTES for p in payloads]))
        infos.append(ShardInfo(name, len(payloads), len(data), hashlib.sha256(data).hexdigest()))
    return tuple(infos)


def write_dataset(folder: Path, shards: dict[str, list[bytes]]) -> Path:
    """Writes shards and all that belongs to them, out of payloads; a split's further shards are `train:1` ..."""
    by_split: dict[str, list[list[bytes]]] = {}
    for name, payloads in shards.items():
        by_split.setdefault(name.split(":")[0], []).append(payloads)
    splits = {}
    for split, files in by_split.items():
        infos = write_shards(folder, split, files)
        records = [p for payloads in files for p in payloads]
        dogs = sum(b"dog/" in p for p in records)
        splits[split] = SplitInfo(
            split, infos, {"PNG": len(records)}, (len(records) - dogs, dogs), ImageSizes(4, 4, 4.0, 5, 5, 5.0)
        )
    manifest = Manifest(
        name="made",
        splits=splits,
        label_names=LABELS,
        schema=SCHEMA,
        image={"encoding": "keep"},
        fingerprint="0" * 8,
        tool_version="1",
    )
    (folder / file_names.MANIFEST).write_text(manifest_json.dumps(manifest))
    for name, text in tfds_metadata.make_files(manifest).items():
        (folder / name).write_text(text)
    return folder


def read_all(dataset: Path) -> list[bytes]:
    found = []
    for split in load_manifest(str(dataset)).splits.values():
        for shard in split.shards:
            with open(dataset / shard.file, "rb") as file:
                found += [one for _, one in scan_records(file)]
    return found
