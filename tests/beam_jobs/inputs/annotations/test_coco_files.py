"""The files that annotation tools write in COCO's form: names, numbers and places; and their objects, one by one."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_jobs.inputs.annotations import coco
from beam_jobs.inputs.annotations.coco import iterate_objects
from beam_jobs.plan.listing import Listing
from tests.beam_jobs.datasets import list_source, refuse_source
from tests.beam_jobs.images import write_files
from tfpipe.errors import DataError

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
    with pytest.raises(DataError) as caught:
        list(iterate_objects(str(path), {"x"}))
    assert str(caught.value) == f"{path} is not a valid JSON object in UTF-8 ({reason})."


def test_limits_of_a_value_are_kept(path: Path, monkeypatch) -> None:
    monkeypatch.setattr(coco, "_MAX_CHARS", 100)
    path.write_text(json.dumps({"x": [{"a": "b" * 200}]}))
    with pytest.raises(DataError, match=r"\(a value is longer than 16 MiB, or damaged\)\.$"):
        list(iterate_objects(str(path), {"x"}))
    monkeypatch.undo()
    path.write_text('{"x": [' + "[" * 100_000)
    with pytest.raises(DataError, match="is not a valid JSON object in UTF-8"):
        list(iterate_objects(str(path), {"x"}))
    path.write_text('{"x": [1]}')
    with pytest.raises(DataError, match=rf"^{path}: 'x' must hold objects, but number 1 is 1\.$"):
        list(iterate_objects(str(path), {"x"}))
