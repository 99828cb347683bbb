"""The names, numbers and places in the files that annotation tools write in COCO's form."""

import json
from pathlib import Path
from typing import Any

import pytest

from beam_jobs.plan.listing import Listing
from tests.beam_jobs.datasets import list_source, refuse_source
from tests.beam_jobs.images import write_files

CAT, DOG = {"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}


def write_coco(path: Path, names: list[str], *boxes: tuple[int, int], categories: Any = (CAT, DOG)) -> str:
    images = [{"id": k, "file_name": name, "width": 40, "height": 20} for k, name in enumerate(names, start=1)]
    annotations = [{"image_id": image, "category_id": number, "bbox": [0, 0, 20, 10]} for image, number in boxes]
    return write_data(path, images=images, annotations=annotations, categories=list(categories))


def write_data(path: Path, **data: Any) -> str:
    write_files(path.parent, {path.name: json.dumps(data).encode()})
    return str(path)


def list_coco(source: Path, *annotations: str) -> Listing:
    return list_source(source, annotations=annotations)


def list_paths(source: Path, *annotations: str) -> list[str]:
    listing = list_coco(source, *annotations)
    assert not listing.missing.count
    return [ref.path for ref in listing.images]


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
    write_coco(tmp_path / "annotations/instances_train2017.json", [name], (1, 1))
    assert list_paths(tmp_path) == [path]


def test_the_folder_of_most_images_counts(tmp_path: Path) -> None:
    names = [f"images/{k}.jpg" for k in range(30)]
    write_files(tmp_path, dict.fromkeys(names[1:], b"1") | {"images/images/0.jpg": b"1"})
    listing = list_coco(tmp_path, write_coco(tmp_path / "result.json", names))
    assert [ref.path for ref in listing.images] == names
    assert (listing.missing.count, listing.missing.paths) == (1, (f"{tmp_path}/images/0.jpg",))
    write_files(tmp_path / "other", {"images/b.jpg": b"1"})
    listing = list_coco(tmp_path / "other", write_coco(tmp_path / "other/result.json", ["a.jpg"]))
    assert listing.missing.paths == (f"{tmp_path}/other/images/a.jpg",)


def test_whole_numbers_may_have_a_point(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jpg": b"1"})
    image = {"id": 7.0, "file_name": "a.jpg", "width": 40.0, "height": 20.0}
    box = {"image_id": 7.0, "category_id": 3.0, "bbox": [0.0, 0, 20.0, 10]}
    data = {"annotations": [box], "categories": [{"id": 3.0, "name": "cat"}]}
    (ref,) = list_coco(tmp_path, write_data(tmp_path / "x.json", images=[image], **data)).images
    assert (ref.boxes, ref.box_labels, ref.frame) == (((0.0, 0.0, 0.5, 0.5),), (0,), (40, 20))
    path = write_data(tmp_path / "x.json", images=[image | {"id": 7.5}], **data)
    assert refuse_source(tmp_path, annotations=(path,)) == f"{path}, image 1: 'id' must be a whole number, got 7.5."


@pytest.mark.parametrize("size", [{}, {"width": 0, "height": -1}, {"width": None, "height": 20}])
def test_boxes_stay_in_pixels_until_the_size_is_known(tmp_path: Path, size: dict[str, Any]) -> None:
    write_files(tmp_path, {"a.jpg": b"1"})
    boxes = [{"image_id": 1, "category_id": 1, "bbox": box} for box in ([-3, 4, 20, 10], [9, 9, 0, 3])]
    images = [{"id": 1, "file_name": "a.jpg", **size}]
    path = write_data(tmp_path / "x.json", images=images, annotations=boxes, categories=[CAT])
    listing = list_coco(tmp_path, path)
    assert [(ref.boxes, ref.frame) for ref in listing.images] == [(((0.0, 4.0, 17.0, 14.0),), (0, 0))]
    assert listing.skipped == {"box without an area in its image": 1}


def test_the_export_of_roboflow_is_recognized_and_its_folders_are_splits(tmp_path: Path) -> None:
    objects = {"id": 0, "name": "animals"}
    for k, folder in enumerate(("train", "valid", "test")):
        write_files(tmp_path, {f"{folder}/{k}.jpg": b"1"})
        write_coco(tmp_path / folder / "_annotations.coco.json", [f"{k}.jpg"], (1, 2), categories=(objects, CAT, DOG))
    listing = list_coco(tmp_path)
    assert [(ref.path, ref.split, ref.box_labels) for ref in listing.images] == [
        ("test/2.jpg", "test", (2,)),
        ("train/0.jpg", "train", (2,)),
        ("valid/1.jpg", "validation", (2,)),
    ]
    assert (listing.box_names, listing.skipped) == (("animals", "cat", "dog"), {})
    assert [(ref.path, ref.split) for ref in list_coco(tmp_path / "train").images] == [("0.jpg", "")]
    named = [str(tmp_path / folder / "_annotations.coco.json") for folder in ("train", "test")]
    assert [(ref.path, ref.split) for ref in list_coco(tmp_path, *named).images] == [
        ("train/0.jpg", "train"),
        ("test/2.jpg", "test"),
    ]


def test_the_ids_of_a_file_are_its_own(tmp_path: Path) -> None:
    """Two exports count their images and their classes from 1, and one image is in both."""
    write_files(tmp_path, {f"{name}.jpg": b"1" for name in "abcd"})
    first = write_coco(tmp_path / "one.json", ["a.jpg", "b.jpg", "d.jpg"], (1, 1), (2, 2))
    categories = [{"id": 1, "name": "dog"}, {"id": 2, "name": "fox"}]
    second = write_coco(tmp_path / "two.json", ["c.jpg", "b.jpg"], (1, 1), (2, 2), (3, 1), categories=categories)
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
    captions = write_data(tmp_path / "c.json", annotations=texts)
    boxes = write_data(tmp_path / "b.json", annotations=[{"image_id": 1, "category_id": 2, "bbox": [0, 0, 20, 10]}])
    listing = list_coco(tmp_path, captions, write_coco(tmp_path / "i.json", ["a.jpg"], (1, 1)), boxes)
    assert [(ref.path, ref.box_labels, ref.extra) for ref in listing.images] == [("a.jpg", (0, 1), (["one"],))]
    assert listing.skipped == {"annotation of an image that is not listed": 1}
