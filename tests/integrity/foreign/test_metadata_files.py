"""What stands beside foreign shards: hints that are checked, and never an error."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tfpipe.integrity.foreign.index import IndexConfig, index
from tfpipe.integrity.foreign.metadata_files import Metadata, read_metadata

CORE = "tensorflow_datasets.core.features"
CLASS = {"pythonClassName": f"{CORE}.class_label_feature.ClassLabel", "classLabel": {"numClasses": "3"}}
IMAGE = {"pythonClassName": f"{CORE}.image_feature.Image", "image": {"shape": {}}}


def make_features(**features: object) -> dict[str, Any]:
    return {"pythonClassName": f"{CORE}.features_dict.FeaturesDict", "featuresDict": {"features": features}}


FEATURES = make_features(image=IMAGE, deep=make_features(**{"class": CLASS}))
INFO: dict[str, Any] = {
    "name": "flowers",
    "fileFormat": "tfrecord",
    "splits": [
        {"name": "train", "shardLengths": ["5", "6"]},
        {"name": "unsupervised", "shardLengths": ["7"], "filepathTemplate": "{SPLIT}_{SHARD_INDEX}.{FILEFORMAT}"},
    ],
}


def write(folder: Path, **texts: object) -> Path:
    for name, text in texts.items():
        path = folder / name.replace("__", "-").replace("_json", ".json").replace("_txt", ".labels.txt")
        path.write_text(text if isinstance(text, str) else json.dumps(text))
    return folder


def test_tfds_tells_splits_counts_images_and_classes(tmp_path: Path) -> None:
    write(tmp_path, dataset_info_json=INFO, features_json=FEATURES)
    found = read_metadata(str(tmp_path))
    files = {
        "flowers-train.tfrecord-00000-of-00002": ("train", 5),
        "flowers-train.tfrecord-00001-of-00002": ("train", 6),
        "unsupervised_00000.tfrecord": ("unsupervised", 7),
    }
    assert (found.name, found.notes) == ("flowers", [])
    assert {name: (found.file_splits[name], found.file_records[name]) for name in files} == files
    assert (found.images, found.classes) == (["image"], {"deep/class": ("0", "1", "2")})


def test_names_of_classes_come_from_their_file(tmp_path: Path) -> None:
    write(tmp_path, features_json=FEATURES, deep__class_txt="a\nb\nc\n")
    assert read_metadata(str(tmp_path)).classes == {"deep/class": ("a", "b", "c")}
    (tmp_path / "labels.txt").write_text("0:daisy\n1:red rose\n\n")
    assert read_metadata(str(tmp_path)).listed == ("daisy", "red rose")
    (tmp_path / "labels.txt").write_text("1:daisy\n2:rose\n")
    assert read_metadata(str(tmp_path)).listed == ("1:daisy", "2:rose")


def test_supervised_keys_then_usual_names_tell_image_and_label(foreign, tmp_path: Path) -> None:
    images, classes = ("annotation", "image", "photo"), ("coarse_label", "kind", "label")
    foreign.write(tmp_path / "a.tfrecord", [dict.fromkeys(images, foreign.image(0)) | dict.fromkeys(classes, 0)])
    write(tmp_path, features_json=make_features(**dict.fromkeys(images, IMAGE), **dict.fromkeys(classes, CLASS)))
    for supervised, expected in (
        ({"tuple": {"items": [{"featureKey": "photo"}, {"featureKey": "kind"}]}}, ("photo", "kind")),
        ({"input": "photo", "output": "annotation"}, ("photo", "label")),
        ({"tuple": {"items": [{"dict": {}}, {"featureKey": "kind"}]}}, ("image", "kind")),
        ({}, ("image", "label")),
    ):
        write(tmp_path, dataset_info_json={"supervisedKeys": supervised})
        manifest = index(IndexConfig(str(tmp_path))).manifest
        assert (manifest.image_key, manifest.label_key) == expected


@pytest.mark.parametrize("name", ["a\\u0000b", "a\\ud800b", "a\\nb", "c" * 5000], ids=["NUL", "half", "line", "long"])
def test_a_feature_whose_name_cannot_be_that_of_a_file(tmp_path: Path, name: str) -> None:
    write(tmp_path, features_json=json.dumps(FEATURES).replace('"class"', f'"{name}"'))
    found = read_metadata(str(tmp_path))
    assert (found.classes, found.notes) == ({"deep/" + json.loads(f'"{name}"'): ("0", "1", "2")}, [])


@pytest.mark.parametrize(
    ("name", "text", "note"),
    [
        ("dataset_info.json", "{", "is not JSON"),
        ("dataset_info.json", "[" * 100_000, "is nested too deeply"),
        ("dataset_info.json", '{"splits": 3}', "splits must be a list, got 3."),
        ("dataset_info.json", '{"splits": [{}]}', "name"),
        ("dataset_info.json", '{"name": "x", "splits": [{"name": "../x", "shardLengths": ["1"]}]}', "A split's name "),
        ("dataset_info.json", '{"supervisedKeys": {"tuple": 1}}', "supervisedKeys.tuple must be an object, got 1."),
        ("features.json", '{"featuresDict": []}', "featuresDict must be an object, got []."),
        ("features.json", '{"featuresDict": {"features": {"a": 1}}}', "must be an object, got 1."),
        ("labels.txt", "a\na\n", "names a class twice"),
    ],
)
def test_what_cannot_be_used_is_a_note(tmp_path: Path, name: str, text: str, note: str) -> None:
    (tmp_path / name).write_text(text)
    found = read_metadata(str(tmp_path))
    assert len(found.notes) == 1
    assert found.notes[0].startswith("Not used: ")
    assert note in found.notes[0]


def test_hostile_sidecars_neither_block_nor_fill_memory(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "dataset_info.json")
    (tmp_path / "features.json").symlink_to(tmp_path / "features.json")
    with (tmp_path / "labels.txt").open("wb") as file:
        file.truncate(1 << 40)
    assert len(read_metadata(str(tmp_path)).notes) == 3
    huge = {"pythonClassName": "x.ClassLabel", "classLabel": {"numClasses": "999999999"}}
    for name in os.listdir(tmp_path):
        (tmp_path / name).unlink()
    write(tmp_path, features_json={"featuresDict": {"features": {"y": huge}}})
    assert read_metadata(str(tmp_path)) == Metadata(classes={"y": ()})
