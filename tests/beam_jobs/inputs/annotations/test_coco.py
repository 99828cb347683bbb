"""COCO's annotation files: what becomes of them, the forms that other tools write, their objects, and every mistake."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_jobs.config import ShardConfig
from beam_jobs.inputs.annotations import coco
from beam_jobs.inputs.annotations.coco import iterate_objects
from beam_jobs.inputs.recognize import find_kind
from beam_jobs.plan.listing import Listing
from tests.beam_jobs.datasets import (
    join_datasets,
    list_source,
    make_dataset,
    read_quarantine,
    read_records,
    refuse_source,
)
from tests.beam_jobs.images import make_jpeg, write_files
from tests.beam_jobs.test_masks import read_masks
from tests.refusals import refusal
from tfpipe.errors import ConfigError, DataError, TfpipeError
from tfpipe.format.schema import IMAGE_MASK, FeatureSpec

CATEGORIES = [{"id": 18, "name": "dog"}, {"id": 1, "name": "person"}]


def make_images(*names: str, size: tuple[int, int] = (40, 20)) -> list[dict[str, Any]]:
    return [{"id": 10 + k, "file_name": name, "width": size[0], "height": size[1]} for k, name in enumerate(names)]


def make_box(image: int, *box: float, category: int = 1, **values: Any) -> dict[str, Any]:
    return {"image_id": image, "category_id": category, "bbox": list(box), "iscrowd": 0, **values}


def write_json(path: Path, **arrays: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"info": {"year": 2026}, "licenses": [{"id": 1}], **arrays}))
    return path


def write_instances(path: Path, *boxes: dict[str, Any], names: tuple[str, ...] = ("a.jpg", "b.jpg")) -> Path:
    return write_json(path, images=make_images(*names), annotations=list(boxes), categories=CATEGORIES)


def list_coco(source: Path, *annotations: Path, **options: Any) -> Listing:
    return list_source(source, annotations=tuple(map(str, annotations)), **options)


def refuse(source: Path, *annotations: Path, kind: type[TfpipeError] = DataError, **options: Any) -> str:
    return refusal(kind, list_coco, source, *annotations, **options)


def write_coco(folder: Path) -> Path:
    """Writes a folder in COCO's layout: two splits, boxes in both, and captions in one."""
    names = [f"{split}2017/{k}.jpg" for split in ("train", "val") for k in (1, 2)]
    write_files(folder, {name: make_jpeg(int(name[-5]), size=(40, 20)) for name in names})
    annotations = folder / "annotations"
    first = make_box(10, 10, 5, 20, 10, category=18), make_box(10, 0, 0, 40, 20)
    write_instances(annotations / "instances_train2017.json", *first, names=("1.jpg", "2.jpg"))
    write_instances(annotations / "instances_val2017.json", make_box(11, 20, 10, 20, 10), names=("1.jpg", "2.jpg"))
    captions = [{"image_id": 10, "caption": text} for text in ("a dog", "ein Hündchen")]
    write_json(annotations / "captions_train2017.json", images=make_images("1.jpg", "2.jpg"), annotations=captions)
    write_json(annotations / "person_keypoints_train2017.json", images=[], annotations=[])
    return folder


def test_the_layout_of_coco_gives_boxes_classes_captions_and_splits(tmp_path: Path) -> None:
    folder = write_coco(tmp_path / "coco")
    assert find_kind(ShardConfig(str(folder), "/out", input_format="tree")) == "tree"
    listing = list_coco(folder)
    assert (listing.name, listing.root, listing.box_names) == ("coco", f"{tmp_path}/coco", ("person", "dog"))
    assert listing.extra == (FeatureSpec("caption", "bytes", None, kind="text"),)
    assert [(ref.path, ref.split, ref.boxes, ref.box_labels, ref.extra) for ref in listing.images] == [
        (
            *("train2017/1.jpg", "train", ((0.25, 0.25, 0.75, 0.75), (0.0, 0.0, 1.0, 1.0)), (1, 0)),
            (["a dog", "ein Hündchen"],),
        ),
        ("train2017/2.jpg", "train", (), (), ([],)),
        ("val2017/1.jpg", "validation", (), (), ([],)),
        ("val2017/2.jpg", "validation", ((0.5, 0.5, 1.0, 1.0),), (0,), ([],)),
    ]
    assert all(ref.size == (tmp_path / "coco" / ref.path).stat().st_size for ref in listing.images)
    assert listing.skipped == {}


def test_records_hold_boxes_with_the_names_of_their_classes(tmp_path: Path) -> None:
    make_dataset(write_coco(tmp_path / "coco"), tmp_path / "out", shuffle=False)
    first, second = read_records(tmp_path / "out")
    assert first["image/object/class/text"] == [b"dog", b"person"]
    assert first["image/object/class/label"].tolist() == [1, 0]
    assert first["image/object/bbox/xmax"].tolist() == [0.75, 1.0]
    assert first["caption"] == [b"a dog", "ein Hündchen".encode()]
    assert "image/class/label" not in first
    for name in ("image/object/class/text", "image/object/class/label", "image/object/bbox/ymin", "caption"):
        assert second[name] is None or len(second[name]) == 0
    join_datasets([tmp_path / "out"], tmp_path / "again")
    names = sorted(map(str, (record["image/object/class/text"] for record in read_records(tmp_path / "again"))))
    assert names == sorted(map(str, (record["image/object/class/text"] for record in (first, second))))


def test_files_can_be_named(tmp_path: Path) -> None:
    names = ("a.jpg", "c/b.jpg")
    images = write_files(tmp_path / "photos", dict.fromkeys(names, b"1"))
    boxes = write_instances(tmp_path / "boxes.json", make_box(11, 0, 0, 20, 20, category=18), names=names)
    texts = [{"image_id": 10, "caption": "one"}]
    captions = write_json(tmp_path / "texts.json", annotations=texts, images=make_images(*names))
    assert [(ref.path, ref.split, ref.boxes, ref.extra) for ref in list_coco(images, boxes, captions).images] == [
        ("a.jpg", "", (), (["one"],)),
        ("c/b.jpg", "", ((0.0, 0.0, 0.5, 1.0),), ([],)),
    ]
    splits = [write_instances(tmp_path / f"{name}.json", names=(names[name == "test"],)) for name in ("train", "test")]
    listing = list_coco(images, *splits)
    assert [(ref.path, ref.split) for ref in listing.images] == [("a.jpg", "train"), ("c/b.jpg", "test")]
    write_files(tmp_path / "deep", {"images/train/a.jpg": b"1", "images/test/c/b.jpg": b"2"})
    listing = list_coco(tmp_path / "deep", *splits)
    assert [ref.path for ref in listing.images] == ["images/train/a.jpg", "images/test/c/b.jpg"]
    # Captions alone need no sizes.
    captions = write_json(tmp_path / "texts.json", annotations=texts, images=[{"id": 10, "file_name": "a.jpg"}])
    assert [(ref.path, ref.extra) for ref in list_coco(images, captions).images] == [("a.jpg", (["one"],))]


def test_odd_annotations_are_left_out_and_counted(tmp_path: Path) -> None:
    path = write_instances(
        tmp_path / "a.json",
        make_box(10, -10, 5, 20, 100),  # it ends outside of the image
        make_box(10, 0, 0, 10, 10, iscrowd=1),
        make_box(10, 0, 0, 0, 10),
        make_box(10, 50, 0, 10, 10),
        {"image_id": 10, "category_id": 1},
        make_box(99, 0, 0, 10, 10),
        {"image_id": 98, "caption": "nobody"},
    )
    listing = list_coco(tmp_path, path)
    assert [ref.boxes for ref in listing.images] == [((0.0, 0.25, 0.25, 1.0),), ()]
    assert listing.skipped == {
        "crowd annotation": 1,
        "box without an area in its image": 2,
        "annotation without a box": 1,
        "annotation of an image that is not listed": 2,
    }
    # Annotations of an image may lie anywhere in the file.
    owners = np.random.default_rng(0).integers(0, 3, 60)
    boxes = [make_box(10 + int(k), 0, 0, 1 + i % 39, 10) for i, k in enumerate(owners)]
    listing = list_coco(tmp_path, write_instances(tmp_path / "b.json", *boxes, names=("a", "b", "c")))
    for k, ref in enumerate(listing.images):
        assert [box[2] * 40 for box in ref.boxes] == [1 + i % 39 for i in range(60) if owners[i] == k]


def test_classes_have_the_order_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("cat\ndog\nperson\n")
    path = write_instances(tmp_path / "a.json", make_box(10, 0, 0, 9, 9), make_box(10, 0, 0, 9, 9, category=18))
    listing = list_coco(tmp_path, path, labels=str(tmp_path / "labels.txt"))
    assert (listing.box_names, next(iter(listing.images)).box_labels) == (("cat", "dog", "person"), (2, 1))
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    message = f"{tmp_path}/labels.txt must name every class, but 'person' is not in it."
    assert refuse(tmp_path, path, labels=str(tmp_path / "labels.txt")) == message


A = {"id": 1, "file_name": "a", "name": "a"}
NO_NAME = "'file_name' must be a path inside the folder of images, got"
SIZES = "'width' and 'height' must be whole numbers from 0, got"
TEXT = "'caption' must be a text, got"
SIDES = "'bbox' must be left, top, width and height in pixels, got"


@pytest.mark.parametrize(
    ("array", "elements", "message"),
    [
        ("images", [{"id": 1, "file_name": "../a.jpg"}], f"image 1: {NO_NAME} '../a.jpg'."),
        ("images", [{"id": 1, "file_name": "/a.jpg"}], f"image 1: {NO_NAME} '/a.jpg'."),
        ("images", [{"id": 1, "file_name": "http://a/b"}], f"image 1: {NO_NAME} 'http://a/b'."),
        ("images", [{"id": 1}], f"image 1: {NO_NAME} None."),
        ("images", [{**A, "width": "40", "height": 20.5}], f"image 1: {SIZES} '40' and 20.5."),
        ("images", [{"id": 1, "file_name": "a\\..\\..\\b"}], f"image 1: {NO_NAME} 'a\\\\..\\\\..\\\\b'."),
        ("images", [{"id": "1", "file_name": "a"}], "image 1: 'id' must be a whole number, got '1'."),
        ("images", [A, {"id": 1, "file_name": "b"}], "image 2: id 1 must be one image, but is a and b."),
        ("categories", [{"id": 1, "name": ""}], "category 1: 'name' must be a text, got ''."),
        ("categories", [A, {"id": 1, "name": "b"}], "category 2: id 1 must be one class, but is 'a' and 'b'."),
        ("annotations", [{}], "annotation 1: 'image_id' must be a whole number, got None."),
        ("annotations", [make_box(10, 1, 2, 3)], f"annotation 1: {SIDES} [1, 2, 3]."),
        ("annotations", [{"image_id": 1, "caption": "\ud800"}], f"annotation 1: {TEXT} '\\ud800'."),
    ],
)
def test_a_wrong_element_is_refused(tmp_path: Path, array: str, elements: list[dict[str, Any]], message: str) -> None:
    path = write_json(tmp_path / "a.json", **{array: elements})
    assert refuse(tmp_path, path) == f"{path}, {message}"


def test_parts_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    path = write_instances(tmp_path / "a.json", make_box(10, 0, 0, 9, 9, category=7))
    assert refuse(tmp_path, path) == "a.jpg has an annotation of category 7, which must be one of the 'categories'."
    path = write_json(tmp_path / "a.json", images=[])
    assert refuse(tmp_path, path) == f"{path} must list images, but there are none."
    message = f"{tmp_path} must have annotations/instances_*.json or captions_*.json, or name `annotations`."
    assert refuse(tmp_path, input_format="coco") == message
    path = tmp_path / "gone.json"
    assert refuse(tmp_path, path) == f"Could not read {path}: No such file or directory."
    message = "`annotations` needs a folder of images as input, and `input_format` auto or coco."
    assert refuse(tmp_path / "t.csv", path, kind=ConfigError) == message
    assert refuse(tmp_path, path, kind=ConfigError, input_format="tree") == message


def test_limits_are_kept(tmp_path: Path, monkeypatch) -> None:
    path = write_instances(tmp_path / "a.json", make_box(10, 0, 0, 9, 9), make_box(10, 0, 0, 9, 9))
    monkeypatch.setattr(coco, "_MAX_ANNOTATIONS", 1)
    message = f"{path}, annotation 2: at most 1 annotations can be read at once; divide the files."
    assert refuse(tmp_path, path) == message
    monkeypatch.setattr(coco, "_MAX_IMAGES", 1)
    assert refuse(tmp_path, path) == f"{path}, image 2: at most 1 images can be listed at once; divide the files."


SQUARE = [[2, 2, 12, 2, 12, 12, 2, 12]]


def write_shapes(folder: Path, *annotations: dict[str, Any], names: tuple[str, ...] = ("a.jpg", "b.jpg")) -> Path:
    write_files(folder, {name: make_jpeg(k, size=(40, 20)) for k, name in enumerate(names)})
    return write_instances(folder / "a.json", *annotations, names=names)


def test_segmentations_become_masks(tmp_path: Path) -> None:
    crowd = {"size": [20, 40], "counts": [0, 100, 700]}
    path = write_shapes(
        tmp_path / "in",
        make_box(10, 2, 2, 10, 10, segmentation=SQUARE, category=18),
        make_box(10, 0, 0, 5, 20, segmentation=crowd, iscrowd=1),
        make_box(10, 0, 0, 5, 20, segmentation=[]),
        {"image_id": 10, "category_id": 18, "segmentation": [[30, 5, 34, 5, 34, 9, 30, 9]]},
    )
    options = {"annotations": (str(path),), "segmentation_masks": True}
    manifest = make_dataset(tmp_path / "in", tmp_path / "out", **options)
    masks = read_masks(tmp_path / "out")
    expected = np.zeros((20, 40), np.uint8)
    expected[:, :5] = 1  # person
    expected[2:12, 2:12] = 2  # dog
    expected[5:9, 30:34] = 2
    np.testing.assert_array_equal(masks["a.jpg"], expected)
    np.testing.assert_array_equal(masks["b.jpg"], np.zeros((20, 40), np.uint8))
    stats = manifest.splits["train"].masks[IMAGE_MASK]
    assert (stats.pixels[:3], stats.images[:3]) == ([1600 - 70 - 116, 70, 116], [2, 1, 1])
    assert manifest.skipped == {
        "annotation without a box": 1,
        "annotation without a segmentation": 1,
        "box of a crowd annotation": 1,
    }
    (tmp_path / "labels.txt").write_text("cat\ndog\nperson\n")
    make_dataset(tmp_path / "in", tmp_path / "other", labels=str(tmp_path / "labels.txt"), **options)
    np.testing.assert_array_equal(read_masks(tmp_path / "other")["a.jpg"], np.array([0, 3, 2], np.uint8)[expected])


def test_bad_segmentations_and_sizes_are_quarantined_with_their_images(tmp_path: Path) -> None:
    path = write_shapes(
        tmp_path / "in",
        make_box(10, 2, 2, 10, 10, segmentation=SQUARE),
        make_box(11, 0, 0, 5, 20, segmentation={"size": [40, 20], "counts": "0"}),
        make_box(12, 2, 2, 10, 10, segmentation=SQUARE),
        names=("a.jpg", "b.jpg", "c.jpg"),
    )
    write_files(tmp_path / "in", {"c.jpg": make_jpeg(1, size=(24, 16))})
    options = {"annotations": (str(path),), "segmentation_masks": True}
    make_dataset(tmp_path / "in", tmp_path / "out", max_bad=2, num_shards=1, shuffle=False, **options)
    assert [(row["path"], row["kind"], row["reason"]) for row in read_quarantine(tmp_path / "out")] == [
        (
            *("b.jpg", "bad"),
            "its mask: the segmentation of annotation 2 must have the 'size' [20, 40] of its image, got [40, 20]",
        ),
        ("c.jpg", "bad", "its annotation is for 40 x 20 pixels, but it has 24 x 16"),
    ]
    assert list(read_masks(tmp_path / "out")) == ["a.jpg"]


def test_masks_need_segmentations_and_sizes(tmp_path: Path) -> None:
    message = "`segmentation_masks` needs a 'segmentation' in the annotations of train2017, but none has one."
    assert refuse(write_coco(tmp_path / "coco"), segmentation_masks=True) == message
    shape = {"image_id": 1, "category_id": 1, "segmentation": SQUARE}
    image = {"id": 1, "file_name": "a.jpg", "width": 40}
    path = write_json(tmp_path / "a.json", images=[image], annotations=[shape], categories=CATEGORIES)
    message = "a.jpg gets a mask, so its 'width' and 'height' must be numbers above 0."
    assert refuse(tmp_path, path, segmentation_masks=True) == message
    path = write_json(tmp_path / "a.json", images=make_images("a.jpg"), annotations=[{**shape, "image_id": 10}])
    message = "a.jpg has an annotation of category 1, which must be one of the 'categories'."
    assert refuse(tmp_path, path, segmentation_masks=True) == message
    write_files(tmp_path / "tree", {"cat/1.jpg": b"1"})
    message = "`segmentation_masks` needs a folder in COCO's layout, or `annotations` in COCO's form."
    assert refuse_source(tmp_path / "tree", ConfigError, segmentation_masks=True) == message


CAT, DOG = {"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}


def write_named(path: Path, names: list[str], *boxes: tuple[int, int], categories: Any = (CAT, DOG)) -> Path:
    images = [{"id": k, "file_name": name, "width": 40, "height": 20} for k, name in enumerate(names, start=1)]
    annotations = [{"image_id": image, "category_id": number, "bbox": [0, 0, 20, 10]} for image, number in boxes]
    return write_json(path, images=images, annotations=annotations, categories=list(categories))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("images/a b.jpg", "a b.jpg"),
        ("images/a.jpg", "images/a.jpg"),
        ("images/a.jpg", "./images//a.jpg"),
        ("images/a.jpg", "images\\a.jpg"),
        ("images/a.jpg", ".\\images\\a.jpg"),
        ("images/a.jpg", "C:\\data\\set\\images\\a.jpg"),
        ("images/a.jpg", "data/set/images/a.jpg"),
        ("images/a.jpg", "set/a.jpg"),
        ("images/a\\b.jpg", "a\\b.jpg"),  # a name that Linux allows
        ("images/images/a.jpg", "images/a.jpg"),
        ("train2017/a.jpg", "a.jpg"),
        ("train2017/a.jpg", "train2017/a.jpg"),
        ("train2017/a.jpg", "coco/train2017/a.jpg"),
        ("images/train2017/a.jpg", "a.jpg"),
        ("images/train2017/a.jpg", "train2017/a.jpg"),
        ("images/train2017/a.jpg", "images/train2017/a.jpg"),
        ("annotations/a.jpg", "a.jpg"),  # beside the file
        ("a.jpg", "a.jpg"),
        ("a.jpg", "images/a.jpg"),
        ("images/Hündchen 犬.jpg", "Hündchen 犬.jpg"),
        ("images/Hu\u0308ndchen.jpg", "H\u00fcndchen.jpg"),  # unpacked on macOS
        ("images/H\u00fcndchen.jpg", "images\\Hu\u0308ndchen.jpg".replace("\\", "/")),
    ],
)
def test_images_are_found_by_their_names(tmp_path: Path, path: str, name: str) -> None:
    write_files(tmp_path, {path: b"1", "images/x/y": b"2"})
    write_named(tmp_path / "annotations/instances_train2017.json", [name], (1, 1))
    listing = list_coco(tmp_path)
    assert ([ref.path for ref in listing.images], listing.missing.count) == ([path], 0)


def test_the_folder_of_most_images_counts(tmp_path: Path) -> None:
    names = [f"images/{k}.jpg" for k in range(30)]
    write_files(tmp_path, dict.fromkeys(names[1:], b"1") | {"images/images/0.jpg": b"1"})
    listing = list_coco(tmp_path, write_named(tmp_path / "result.json", names))
    assert [ref.path for ref in listing.images] == names
    assert (listing.missing.count, listing.missing.paths) == (1, (f"{tmp_path}/images/0.jpg",))
    write_files(tmp_path / "other", {"images/b.jpg": b"1"})
    listing = list_coco(tmp_path / "other", write_named(tmp_path / "other/result.json", ["a.jpg"]))
    assert listing.missing.paths == (f"{tmp_path}/other/images/a.jpg",)


def test_whole_numbers_may_have_a_point(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jpg": b"1"})
    image = {"id": 7.0, "file_name": "a.jpg", "width": 40.0, "height": 20.0}
    box = {"image_id": 7.0, "category_id": 3.0, "bbox": [0.0, 0, 20.0, 10]}
    data = {"annotations": [box], "categories": [{"id": 3.0, "name": "cat"}]}
    (ref,) = list_coco(tmp_path, write_json(tmp_path / "x.json", images=[image], **data)).images
    assert (ref.boxes, ref.box_labels, ref.frame) == (((0.0, 0.0, 0.5, 0.5),), (0,), (40, 20))
    path = write_json(tmp_path / "x.json", images=[image | {"id": 7.5}], **data)
    assert refuse(tmp_path, path) == f"{path}, image 1: 'id' must be a whole number, got 7.5."


@pytest.mark.parametrize("size", [{}, {"width": 0, "height": -1}, {"width": None, "height": 20}])
def test_boxes_stay_in_pixels_until_the_size_is_known(tmp_path: Path, size: dict[str, Any]) -> None:
    write_files(tmp_path, {"a.jpg": b"1"})
    boxes = [{"image_id": 1, "category_id": 1, "bbox": box} for box in ([-3, 4, 20, 10], [9, 9, 0, 3])]
    images = [{"id": 1, "file_name": "a.jpg", **size}]
    path = write_json(tmp_path / "x.json", images=images, annotations=boxes, categories=[CAT])
    listing = list_coco(tmp_path, path)
    assert [(ref.boxes, ref.frame) for ref in listing.images] == [(((0.0, 4.0, 17.0, 14.0),), (0, 0))]
    assert listing.skipped == {"box without an area in its image": 1}


def test_the_export_of_roboflow_is_recognized_and_its_folders_are_splits(tmp_path: Path) -> None:
    objects = {"id": 0, "name": "animals"}
    for k, folder in enumerate(("train", "valid", "test")):
        write_files(tmp_path, {f"{folder}/{k}.jpg": b"1"})
        write_named(tmp_path / folder / "_annotations.coco.json", [f"{k}.jpg"], (1, 2), categories=(objects, CAT, DOG))
    listing = list_coco(tmp_path)
    assert [(ref.path, ref.split, ref.box_labels) for ref in listing.images] == [
        ("test/2.jpg", "test", (2,)),
        ("train/0.jpg", "train", (2,)),
        ("valid/1.jpg", "validation", (2,)),
    ]
    assert (listing.box_names, listing.skipped) == (("animals", "cat", "dog"), {})
    assert [(ref.path, ref.split) for ref in list_coco(tmp_path / "train").images] == [("0.jpg", "")]
    named = [tmp_path / folder / "_annotations.coco.json" for folder in ("train", "test")]
    assert [(ref.path, ref.split) for ref in list_coco(tmp_path, *named).images] == [
        ("train/0.jpg", "train"),
        ("test/2.jpg", "test"),
    ]


def test_the_ids_of_a_file_are_its_own(tmp_path: Path) -> None:
    """Two exports count their images and their classes from 1, and one image is in both."""
    write_files(tmp_path, {f"{name}.jpg": b"1" for name in "abcd"})
    first = write_named(tmp_path / "one.json", ["a.jpg", "b.jpg", "d.jpg"], (1, 1), (2, 2))
    categories = [{"id": 1, "name": "dog"}, {"id": 2, "name": "fox"}]
    second = write_named(tmp_path / "two.json", ["c.jpg", "b.jpg"], (1, 1), (2, 2), (3, 1), categories=categories)
    listing = list_coco(tmp_path, first, second)
    assert listing.box_names == ("cat", "dog", "fox")
    assert [(ref.path, ref.box_labels) for ref in listing.images] == [
        ("a.jpg", (0,)),
        ("b.jpg", (1, 2)),
        ("d.jpg", ()),
        ("c.jpg", (1,)),
    ]
    assert listing.skipped == {"annotation of an image that is not listed": 1}


def test_a_file_without_images_uses_the_ids_of_another(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jpg": b"1"})
    texts = [{"image_id": 1, "caption": "one"}, {"image_id": 9, "caption": "nobody"}]
    captions = write_json(tmp_path / "c.json", annotations=texts)
    boxes = write_json(tmp_path / "b.json", annotations=[{"image_id": 1, "category_id": 2, "bbox": [0, 0, 20, 10]}])
    listing = list_coco(tmp_path, captions, write_named(tmp_path / "i.json", ["a.jpg"], (1, 1)), boxes)
    assert [(ref.path, ref.box_labels, ref.extra) for ref in listing.images] == [("a.jpg", (0, 1), (["one"],))]
    assert listing.skipped == {"annotation of an image that is not listed": 1}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=8,
)
OBJECTS = st.lists(st.dictionaries(st.sampled_from("abc"), VALUES), max_size=5)


@pytest.fixture(autouse=True, scope="module")
def small_reads(tmp_path_factory) -> Any:
    """Lets a value lie across many reads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coco, "_READ_CHARS", 7)
        yield


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("json") / "a.json"


@settings(max_examples=25)
@given(OBJECTS, OBJECTS, VALUES, st.sampled_from([None, 1]), st.booleans())
def test_elements_are_those_of_the_parser(path, first, second, other, indent, is_ascii):
    value = {"x": first, "other": other, "more": [1, "2", [3]], "y": second, "number": 1234567}
    path.write_text(json.dumps(value, indent=indent, ensure_ascii=is_ascii), encoding="utf-8")
    expected = [(name, number, values) for name in "xy" for number, values in enumerate(value[name], start=1)]
    assert list(iterate_objects(str(path), {"x", "y"})) == expected


@pytest.mark.parametrize("value", ["0.0", "-12.5e-7", "1E5", "-0", "true", "12345678901234567890"])
@pytest.mark.parametrize("spaces", range(8))
def test_a_value_may_be_cut_anywhere(path: Path, value: str, spaces: int) -> None:
    path.write_text('{"a": ' + " " * spaces + value + ', "x": [{"b": ' + value + "}]}")
    assert [values for _, _, values in iterate_objects(str(path), {"x"})] == [{"b": json.loads(value)}]


def test_other_forms_of_the_same_file(path: Path) -> None:
    path.write_bytes(b'\xef\xbb\xbf \n{ "x" : [ {} , {"a":1} ] }\n')
    assert [values for _, _, values in iterate_objects(str(path), {"x"})] == [{}, {"a": 1}]
    path.write_bytes(b"{}")
    assert list(iterate_objects(str(path), {"x"})) == []


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "'{' must stand where the end does"),
        (b"[]", "'{' must stand where '[' does"),
        (b'{"x": [{}', "']' must stand where the end does"),
        (b'{"x": [{} {}]}', "']' must stand where '{' does"),
        (b'{"x": [{"a": 1', "Expecting ',' delimiter at character 15"),
        (b'{"x" [', "':' must stand where '[' does"),
        (b'{"a": 1', "'}' must stand where the end does"),
        (b'{"a": "\xff"}', "'utf-8' codec can't decode byte 0xff in position 7: invalid start byte"),
    ],
)
def test_a_damaged_file_is_refused(path: Path, data: bytes, reason: str) -> None:
    path.write_bytes(data)
    found = refusal(DataError, list, iterate_objects(str(path), {"x"}))
    assert found == f"{path} is not a valid JSON object in UTF-8 ({reason})."


def test_limits_of_a_value_are_kept(path: Path, monkeypatch) -> None:
    monkeypatch.setattr(coco, "_MAX_CHARS", 100)
    path.write_text(json.dumps({"x": [{"a": "b" * 200}]}))
    with pytest.raises(DataError, match=r"\(a value is longer than 16 MiB, or damaged\)\.$"):
        list(iterate_objects(str(path), {"x"}))
    monkeypatch.undo()
    path.write_text('{"x": [' + "[" * 100_000)
    assert "is not a valid JSON object in UTF-8" in refusal(DataError, list, iterate_objects(str(path), {"x"}))
    path.write_text('{"x": [1]}')
    with pytest.raises(DataError, match=rf"^{path}: 'x' must hold objects, but number 1 is 1\.$"):
        list(iterate_objects(str(path), {"x"}))
