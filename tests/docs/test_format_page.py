"""A dataset is what docs/reference/format.md says: this reader was written by that page, without tfpipe."""

import csv
import hashlib
import io
import json
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.beam_jobs.images import make_png
from tests.conftest import ROOT, Tfpipe
from tests.export.datasets import write_foreign
from tfpipe.format.manifest import FORMAT_VERSION

PAGE = (ROOT / "docs" / "reference" / "format.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"(?<!`)`([^`\n]+)`(?!`)", PAGE))

Features = dict[str, list[Any]]


def crc32c(data: bytes) -> int:
    """The checksum of RFC 3720, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def mask(crc: int) -> int:
    return ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) % 2**32


def read_shard(data: bytes) -> list[tuple[int, bytes]]:
    records, at = [], 0
    while at < len(data):
        length, masked = struct.unpack_from("<QI", data, at)
        assert mask(crc32c(data[at : at + 8])) == masked
        payload = data[at + 12 : at + 12 + length]
        assert struct.pack("<I", mask(crc32c(payload))) == data[at + 12 + length : at + 16 + length]
        records.append((at, payload))
        at += length + 16
    return records


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at


def read_message(data: bytes) -> list[tuple[int, Any]]:
    """The number of each field and its value: bytes of a length, or a number."""
    fields, at = [], 0
    while at < len(data):
        tag, at = read_varint(data, at)
        if tag & 7 == 2:
            length, at = read_varint(data, at)
            fields.append((tag >> 3, data[at : at + length]))
            at += length
        elif tag & 7 == 5:
            fields.append((tag >> 3, data[at : at + 4]))
            at += 4
        else:
            assert tag & 7 == 0
            value, at = read_varint(data, at)
            fields.append((tag >> 3, value))
    return fields


def read_example(payload: bytes) -> dict[str, tuple[str, list[Any]]]:
    features = {}
    for _, body in read_message(payload):
        for _, entry in read_message(body):
            parts = dict(read_message(entry))
            features[parts[1].decode()] = read_feature(parts[2])
    return features


def read_feature(body: bytes) -> tuple[str, list[Any]]:
    ((kind, values),) = read_message(body)
    runs = [value for _, value in read_message(values)]
    if kind == 1:
        return "bytes", runs
    if kind == 2:
        return "float", [number for run in runs for (number,) in struct.iter_unpack("<f", run)]
    numbers = []
    for run in runs:
        at = 0
        while at < len(run):
            number, at = read_varint(run, at)
            numbers.append(number - 2**64 if number >= 2**63 else number)
    return "int64", numbers


def read_dataset(directory: Path) -> tuple[dict[str, Any], dict[str, list[Features]]]:
    """The manifest, and the records of each split; everything that the page promises about both is checked."""
    manifest = json.loads((directory / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["format_version"] == 1
    root = directory / manifest.get("foreign", {}).get("root", ".")
    return manifest, {name: read_split(directory, root, name, manifest) for name in manifest["splits"]}


def read_split(directory: Path, root: Path, name: str, manifest: dict[str, Any]) -> list[Features]:
    split = manifest["splits"][name]
    shards = split["shards"]
    assert (split["num_shards"], split["records"]) == (len(shards), sum(shard["records"] for shard in shards))
    assert split["bytes"] == sum(shard["bytes"] for shard in shards)
    assert split["seekable_jpegs"] <= split["formats"]["JPEG"] if "seekable_jpegs" in split else "seekable" not in split
    records: list[Features] = []
    for i, shard in enumerate(shards):
        data = (root / shard["file"]).read_bytes()
        if "foreign" not in manifest:
            assert shard["file"] == f"{name}-{i:05d}-of-{len(shards):05d}.tfrecord"
        assert (len(data), hashlib.sha256(data).hexdigest()) == (shard["bytes"], shard["sha256"])
        found = read_shard(data)
        index = directory / "index" / f"{shard['file'].removesuffix('.tfrecord')}.idx"
        assert index.read_text("ascii") == "".join(f"{at} {len(payload) + 16}\n" for at, payload in found)
        assert len(found) == shard["records"]
        for _, payload in found:
            features = read_example(payload)
            check_schema(features, manifest)
            records.append({key: values for key, (_, values) in features.items()})
    check_counts(records, split, manifest)
    return records


def check_schema(features: dict[str, tuple[str, list[Any]]], manifest: dict[str, Any]) -> None:
    specs = {spec["name"]: spec for spec in manifest["schema"]["features"]}
    for name, spec in specs.items():
        if "foreign" in manifest and name not in features:
            assert spec["shape"] is None
            continue
        dtype, values = features[name]
        assert not values or dtype == spec["dtype"]
        assert spec["shape"] is None or len(values) == int(np.prod(spec["shape"]))
    assert "foreign" in manifest or features.keys() == specs.keys()


def check_counts(records: list[Features], split: dict[str, Any], manifest: dict[str, Any]) -> None:
    assert sum(split["formats"].values()) == len(records)
    labels = manifest["label_names"]
    if "foreign" in manifest:
        keys, base = manifest["foreign"], manifest["foreign"]["label_base"]
        found = [record[keys["label_key"]][0] - base for record in records]
    else:
        found = [record["image/class/label"][0] for record in records] if labels else []
        for kind, count in split["formats"].items():
            assert sum(record["image/format"] == [kind.encode()] for record in records) == count
        heights = [record["image/height"][0] for record in records]
        assert (min(heights), max(heights)) == (split["sizes"]["min_height"], split["sizes"]["max_height"])
    assert split["class_counts"] == [found.count(k) for k in range(len(labels))]


def test_a_dataset_is_read_by_the_page(small_dataset: Path) -> None:
    manifest, splits = read_dataset(small_dataset)
    assert {name: len(records) for name, records in splits.items()} == {"train": 12, "validation": 3}
    images = small_dataset.parent / "images"
    for name, records in splits.items():
        for record in records:
            source = images / record["image/filename"][0].decode()
            source = source if source.exists() else images / name / record["image/filename"][0].decode()
            assert record["image/encoded"] == [source.read_bytes()]  # these images need no change
            assert record["image/sha256"] == [hashlib.sha256(source.read_bytes()).hexdigest().encode()]
            label = record["image/class/label"][0]
            assert (
                manifest["label_names"][label].encode() == record["image/class/text"][0] == source.parent.name.encode()
            )
            height, width, channels = np.asarray(Image.open(io.BytesIO(record["image/encoded"][0]))).shape
            assert [height, width, channels] == [record[f"image/{key}"][0] for key in ("height", "width", "channels")]
    (line,) = (small_dataset / "quarantine" / "quarantined.jsonl").read_text().splitlines()
    assert json.loads(line).keys() == {"path", "split", "label", "kind", "reason", "exception"}


def test_raw_pixels_boxes_and_other_columns_are_read_by_the_page(tmp_path: Path, tfpipe: Tfpipe) -> None:
    Image.new("RGB", (40, 20), (10, 200, 30)).save(tmp_path / "green.png")
    with open(tmp_path / "boxes.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["image", "xmin", "ymin", "xmax", "ymax", "box_label", "stars", "text"])
        rows.writerow(["green.png", "0.25", "0", "0.5", "1", "0", "-7", "déjà"])
    assert tfpipe("shard", tmp_path / "boxes.csv", tmp_path / "out", "--encoding", "raw", "--square", "8").ok
    manifest, splits = read_dataset(tmp_path / "out")
    (record,) = splits["train"]
    side = manifest["image"]["square"]
    assert (np.frombuffer(record["image/encoded"][0], np.uint8).reshape(side, side, 3) == (10, 200, 30)).all()
    assert record["image/format"] == [b"RAW"]
    assert (record["image/height"], record["image/width"]) == ([20], [40])
    box = [record[f"image/object/bbox/{side}"] for side in ("xmin", "xmax", "ymin", "ymax")]
    assert box == [[0.25], [0.5], [0.0], [1.0]]
    assert (record["image/object/class/label"], record["stars"]) == ([0], [-7])
    assert record["text"] == ["déjà".encode()]


def test_shards_of_another_program_are_read_by_the_page(tmp_path: Path, tfpipe: Tfpipe) -> None:
    rows = [{"picture": make_png(0), "kind": label, "tags": ["a"] * label} for label in (1, 3, 2)]
    write_foreign(tmp_path / "data" / "train-00000-of-00001", rows)
    assert tfpipe("index", tmp_path / "data", "--label-key", "kind").ok
    manifest, splits = read_dataset(tmp_path / "data")
    keys = {"image_key": "picture", "label_key": "kind"}
    assert manifest["foreign"] == {"root": ".", **keys, "label_base": 1, "compression": ""}
    assert [record["tags"] for record in splits["train"]] == [[b"a"], [b"a"] * 3, [b"a"] * 2]


def test_tensors_and_text_are_read_by_the_page(tmp_path: Path) -> None:
    from tests.format.tensors.datasets import write_tensors

    write_tensors(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["format_version"] == 1
    specs = {spec["name"]: spec for spec in manifest["schema"]["features"]}
    stats = manifest["splits"]["train"]["tensors"]
    assert {"kind", "tensor", *specs["frames"]["tensor"], *stats["frames"]} <= NAMED
    (shard,) = manifest["splits"]["train"]["shards"]
    records = [read_example(payload) for _, payload in read_shard((tmp_path / shard["file"]).read_bytes())]
    tokens = [np.frombuffer(record["tokens"][1][0], "<i4").reshape(-1, 2) for record in records]
    assert [array.tolist() for array in tokens] == [[[1, 2]], [[3, 4], [5, 6]]]
    frames = specs["frames"]["tensor"]
    sizes = [record[frames["sizes"]][1] for record in records]
    assert (frames["shape"], sizes) == ([None, None, 3], [[1, 2], [2, 1]])
    values = [
        np.frombuffer(record["frames"][1][0], "<f4").reshape(*size, 3)
        for record, size in zip(records, sizes, strict=True)
    ]
    assert values[1][1, 0].tolist() == [3.0, 4.0, 5.0]
    assert [record["caption"] for record in records] == [("bytes", [b"a dog"]), ("bytes", ["é".encode()])]


def test_masks_are_read_by_the_page(tmp_path: Path) -> None:
    import tfpipe
    from tests.mask_files import make_classes, make_palette

    classes = make_classes(0, (6, 4))
    record = {"image": np.zeros((4, 6, 3), np.uint8), "mask": make_palette(classes)}
    tfpipe.write(
        [record], tmp_path / "out", {"image": tfpipe.fields.Image(), "mask": tfpipe.fields.Mask()}, num_shards=1
    )
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    (spec,) = [spec for spec in manifest["schema"]["features"] if spec.get("kind") == "mask"]
    assert (manifest["format_version"], spec["name"], spec["dtype"], spec["shape"]) == (1, "image/mask", "bytes", [])
    stats = manifest["splits"]["train"]["masks"]["image/mask"]
    assert set(stats) <= NAMED
    assert stats["pixels"] == np.bincount(classes.reshape(-1)).tolist()
    (shard,) = manifest["splits"]["train"]["shards"]
    ((_, payload),) = read_shard((tmp_path / "out" / shard["file"]).read_bytes())
    image = Image.open(io.BytesIO(read_example(payload)["image/mask"][1][0]))
    assert (image.format, image.mode) == ("PNG", "L")
    np.testing.assert_array_equal(np.asarray(image), classes)


def test_the_page_names_the_version_and_every_field_and_feature(small_dataset: Path) -> None:
    assert f"format version {FORMAT_VERSION}." in PAGE
    assert f"| `format_version` | integer | {FORMAT_VERSION}," in PAGE
    manifest, _ = read_dataset(small_dataset)
    (split, *_) = manifest["splits"].values()
    (spec, *_) = manifest["schema"]["features"]
    parts = (split, split["sizes"], split["shards"][0], spec, manifest["image"], manifest["duplicates"])
    assert {key for part in parts for key in part} <= NAMED
    assert {key for key in manifest if key != "schema"} <= NAMED
    assert {spec["name"] for spec in manifest["schema"]["features"]} <= NAMED


@pytest.mark.parametrize("damage", [0, 9, 20, -1])
def test_the_checksums_of_the_page_find_a_damaged_byte(small_dataset: Path, damage: int) -> None:
    assert f"0x{crc32c(b'123456789'):X}" in PAGE
    data = bytearray((small_dataset / "validation-00000-of-00002.tfrecord").read_bytes())
    data[damage] ^= 1
    with pytest.raises((AssertionError, struct.error)):
        read_shard(bytes(data))
