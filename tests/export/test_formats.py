"""What each format holds, read by the format's own library or by Python's."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from array_record.python import array_record_module
from PIL import Image

from tests.beam_jobs.datasets import make_dataset, read_payloads, read_records
from tests.beam_jobs.images import make_jpeg, make_photos, make_png, write_files
from tests.export.datasets import make_photo_dataset, write_foreign
from tests.format.tensors.datasets import RECORDS, write_tensors
from tests.other_libraries import other_libraries as other_libraries
from tests.other_libraries import run_script
from tfpipe.dataset.load import load_manifest
from tfpipe.errors import ConfigError
from tfpipe.export.run import ExportConfig, Format, export
from tfpipe.export.samples import _get_value
from tfpipe.export.webdataset import name_tensors
from tfpipe.format.image_form import ImageForm
from tfpipe.format.schema import FeatureSpec
from tfpipe.format.tensors.tensor_type import TensorType
from tfpipe.integrity.foreign.index import IndexConfig, index


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """A dataset with classes, boxes and further columns. Not to be changed: copy it."""
    return make_photo_dataset(tmp_path_factory.mktemp("photos"))


def write(dataset: Path, output: Path, to: Format, *splits: str) -> Path:
    export(ExportConfig(str(dataset), str(output), to, splits, workers=0))
    return output


def list_names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def read_tars(folder: Path, split: str) -> list[tuple[str, bytes]]:
    members = []
    for path in sorted(folder.glob(f"{split}-*.tar")):
        with tarfile.open(path) as tar:
            members += [(member.name, tar.extractfile(member).read()) for member in tar]
    return members


def test_webdataset(photos: Path, tmp_path: Path) -> None:
    out = write(photos, tmp_path / "out", "webdataset")
    shards = [
        f"{split}-{k:05d}-of-{count:05d}.tar" for split, count in (("test", 2), ("train", 3)) for k in range(count)
    ]
    assert list_names(out) == ["export.json", "labels.txt", *shards]
    members = read_tars(out, "train")
    records = read_records(photos)
    assert len(members) == 4 * len(records) == 28
    for number, features in enumerate(records):
        (image_name, image), (class_name, label), (txt_name, caption), (json_name, text) = members[4 * number :][:4]
        ending = "png" if features["image/format"] == [b"PNG"] else "jpg"
        key = f"{number:09d}"
        names = [f"{key}.{end}" for end in (ending, "cls", "txt", "json")]
        assert [image_name, class_name, txt_name, json_name] == names
        assert image == features["image/encoded"][0]
        assert int(label) == features["image/class/label"][0]
        values = json.loads(text)
        assert values.keys() == features.keys() - {"image/encoded", "image/class/label", "caption"}
        assert caption == features["caption"][0]
        assert values["image/class/text"] == ("owl", "cat", "dog")[int(label)]
        for side in ("xmin", "xmax", "ymin", "ymax"):
            stored = features[f"image/object/bbox/{side}"]
            expected = [] if stored is None else stored.tolist()
            assert np.float32(values[f"image/object/bbox/{side}"]).tolist() == expected
        assert values["scores"] == [values["views"] / 10, 0.5]  # as short as they were written


def test_parquet(photos: Path, tmp_path: Path) -> None:
    out = write(photos, tmp_path / "out", "parquet")
    table = pyarrow.parquet.read_table([out / f"train-{k:05d}-of-00003.parquet" for k in range(3)])
    rows, records = table.to_pylist(), read_records(photos)
    assert len(rows) == len(records) == 7
    for row, features in zip(rows, records, strict=True):
        assert row["image"]["bytes"] == features["image/encoded"][0]
        assert row["image"]["path"] == features["image/filename"][0].decode().removeprefix("photos/")
        assert row["label"] == features["image/class/label"][0]
        assert row["image/sha256"] == hashlib.sha256(row["image"]["bytes"]).hexdigest()
        assert row["caption"] == features["caption"][0].decode()
        assert (row["views"], len(row["image/object/bbox/xmin"])) == (row["views"], row["views"] % 3)
        assert row["scores"] == features["scores"].tolist()
    described = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert described == {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["owl", "cat", "dog"]}}


def test_parquet_has_small_groups_of_rows(tmp_path: Path) -> None:
    make_dataset(write_files(tmp_path / "images", make_photos({"cat": 101, "dog": 100})), tmp_path / "dataset")
    out = write(tmp_path / "dataset", tmp_path / "out", "parquet")
    file = pyarrow.parquet.ParquetFile(out / "train-00000-of-00001.parquet")
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [100, 100, 1]


def test_arrayrecord(photos: Path, tmp_path: Path) -> None:
    out = write(photos, tmp_path / "out", "arrayrecord")
    payloads = []
    for k in range(3):
        reader = array_record_module.ArrayRecordReader(str(out / f"train-{k:05d}-of-00003.array_record"))
        payloads += reader.read_all()
        reader.close()
    assert payloads == read_payloads(photos)
    info = json.loads((out / "dataset_info.json").read_text())
    assert info["fileFormat"] == "array_record"
    assert {split["name"]: split["shardLengths"] for split in info["splits"]} == {
        "train": [str(shard.records) for shard in load_manifest(str(photos)).splits["train"].shards],
        "test": ["1", "1"],
    }
    out = write(photos, tmp_path / "one", "arrayrecord", "test")
    assert [name for name in list_names(out) if name.endswith("array_record")] == [
        "test-00000-of-00002.array_record",
        "test-00001-of-00002.array_record",
    ]
    assert [split["name"] for split in json.loads((out / "dataset_info.json").read_text())["splits"]] == ["test"]


@pytest.mark.parametrize("to", ["webdataset", "parquet"])
def test_raw_pixels_become_png(tmp_path: Path, to: Format) -> None:
    images = write_files(tmp_path / "images", {"cat/a.jpg": make_jpeg(0), "dog/b.jpg": make_jpeg(1)})
    make_dataset(images, tmp_path / "raw", form=ImageForm(encoding="raw", square=8), seed=3)
    out = write(tmp_path / "raw", tmp_path / "out", to)
    stored = [features["image/encoded"][0] for features in read_records(tmp_path / "raw")]
    if to == "webdataset":
        images_out = [data for name, data in read_tars(out, "train") if name.endswith(".png")]
    else:
        rows = pyarrow.parquet.read_table(out / "train-00000-of-00001.parquet").to_pylist()
        images_out = [row["image"]["bytes"] for row in rows]
    assert sorted([Image.open(io.BytesIO(data)).tobytes() for data in images_out]) == sorted(stored)


def test_described_records_of_others(tmp_path: Path) -> None:
    records = [
        {
            "image/encoded": make_png(k) if k == 2 else make_jpeg(k),
            "image/class/label": k % 3 + 1,
            "image/filename": f"{k}.jpg",
            "id": k,
            "label": b"\xff\x00",  # a name that the format uses, and bytes that are not a text
        }
        for k in range(5)
    ]
    write_foreign(tmp_path / "files" / "train-0.tfrecord", records)
    options = {"label_key": "image/class/label", "label_base": "1"}
    index(IndexConfig(str(tmp_path / "files" / "*"), str(tmp_path / "described"), **options))
    out = write(tmp_path / "described", tmp_path / "wds", "webdataset")
    members = dict(read_tars(out, "train"))
    assert [int(members[f"{k:09d}.cls"]) for k in range(5)] == [0, 1, 2, 0, 1]
    assert [members[f"{k:09d}.{'png' if k == 2 else 'jpg'}"] for k in range(5)] == [r["image/encoded"] for r in records]
    assert json.loads(members["000000003.json"]) == {"id": 3, "image/filename": "3.jpg", "label": {"base64": "/wA="}}
    out = write(tmp_path / "described", tmp_path / "parquet", "parquet")
    rows = pyarrow.parquet.read_table(out / "train-00000-of-00001.parquet").to_pylist()
    assert [(row["label"], row["label_"], row["id"]) for row in rows] == [(k % 3, b"\xff\x00", k) for k in range(5)]
    out = write(tmp_path / "described", tmp_path / "arrayrecord", "arrayrecord")
    assert list_names(out) == ["export.json", "labels.txt", "train-00000-of-00001.array_record"]
    write_foreign(tmp_path / "packed" / "train-0.tfrecord", records, "GZIP")
    index(IndexConfig(str(tmp_path / "packed" / "*"), str(tmp_path / "other"), **options))
    with pytest.raises(ConfigError, match=r"are GZIP compressed: .*`tfpipe reshard --opaque` writes them"):
        write(tmp_path / "other", tmp_path / "no", "webdataset")
    assert not (tmp_path / "no").exists()


def test_tensors_and_text_without_images(tmp_path: Path) -> None:
    (tmp_path / "tensors").mkdir()
    write_tensors(tmp_path / "tensors")
    members = dict(read_tars(write(tmp_path / "tensors", tmp_path / "wds", "webdataset"), "train"))
    assert list(members) == [f"{k:09d}.{end}" for k in range(2) for end in ("txt", "json", "tokens.npy", "frames.npy")]
    out = write(tmp_path / "tensors", tmp_path / "parquet", "parquet")
    rows = pyarrow.parquet.read_table(out / "train-00000-of-00001.parquet").to_pylist()
    for k, record in enumerate(RECORDS):
        assert members[f"{k:09d}.txt"].decode() == record["caption"]
        assert json.loads(members[f"{k:09d}.json"]) == {}
        assert rows[k].keys() == record.keys()
        assert rows[k]["caption"] == record["caption"]
        for name in ("tokens", "frames"):
            saved = np.load(io.BytesIO(members[f"{k:09d}.{name}.npy"]))
            assert (saved.tolist(), saved.dtype) == (record[name].tolist(), record[name].dtype)
            assert rows[k][name] == record[name].tolist()


def test_bfloat16_becomes_float32_and_names_of_tensors_are_safe() -> None:
    spec = FeatureSpec.make_tensor("x", TensorType("bfloat16", (2,)))
    value = _get_value(spec, {"x": [np.uint16([0x3F80, 0xC040]).tobytes()]})
    assert (value.tolist(), value.dtype) == ([1.0, -3.0], np.float32)
    specs = [FeatureSpec.make_tensor(name, TensorType("int8", (1,))) for name in ("a/b", "A.b", "../c")]
    assert list(name_tensors(specs).values()) == ["a_b.npy", "a_b_.npy", "___c.npy"]


SCRIPT = """
import glob, hashlib, json, sys
import datasets, grain, webdataset

folder = sys.argv[1]
samples = webdataset.WebDataset(sorted(glob.glob(folder + "/webdataset/train-*.tar")), shardshuffle=False).decode()
by_webdataset = [(sample["json"]["image/sha256"], sample["cls"], sample["txt"]) for sample in samples]
rows = datasets.load_dataset("parquet", data_files=folder + "/parquet/train-*.parquet", split="train")
by_datasets = [(row["image/sha256"], row["label"], row["views"], list(row["image"].size)) for row in rows]
source = grain.sources.ArrayRecordDataSource(sorted(glob.glob(folder + "/arrayrecord/train-*.array_record")))
by_grain = [hashlib.sha256(source[k]).hexdigest() for k in range(len(source))]
print(json.dumps([by_webdataset, by_datasets, rows.features["label"].names, by_grain]))
"""


@pytest.mark.slow
def test_other_libraries_read_the_same(photos: Path, tmp_path: Path, other_libraries: dict[str, str]) -> None:
    formats: tuple[Format, ...] = ("webdataset", "parquet", "arrayrecord")
    for to in formats:
        export(ExportConfig(str(photos), str(tmp_path / to), to, workers=0))
    printed = run_script(SCRIPT, {**other_libraries, "HF_HOME": str(tmp_path / "home")}, tmp_path, tmp_path)
    by_webdataset, by_datasets, names, by_grain = json.loads(printed)
    records = [
        (
            features["image/sha256"][0].decode(),
            int(features["image/class/label"][0]),
            features["caption"][0].decode(),
            int(features["views"][0]),
        )
        for features in read_records(photos)
    ]
    assert by_webdataset == [[digest, label, caption] for digest, label, caption, _ in records]
    assert by_datasets == [[digest, label, views, [24, 16]] for digest, label, _, views in records]
    assert names == ["owl", "cat", "dog"]
    assert by_grain == [hashlib.sha256(payload).hexdigest() for payload in read_payloads(photos)]
