"""The layout of Pascal VOC: boxes, classes and splits, and every mistake in an XML file."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from beam_jobs.config import ShardConfig
from beam_jobs.inputs.recognize import find_kind
from tests.beam_jobs.datasets import list_source, make_dataset, read_records, refuse_source
from tests.beam_jobs.images import make_jpeg, write_files
from tfpipe.errors import DataError

PART = "<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part>"


def make_object(name: str, *sides: float, more: str = "") -> str:
    box = "".join(f"<{side}>{x}</{side}>" for side, x in zip(("xmin", "ymin", "xmax", "ymax"), sides, strict=True))
    return f"<object><name>{name}</name><bndbox>{box}</bndbox>{more}</object>"


def make_xml(*objects: str, size: str = "<size><width>40</width><height>20</height><depth>3</depth></size>") -> bytes:
    return f"<annotation><filename>ignored.jpg</filename>{size}{''.join(objects)}</annotation>".encode()


def write_voc(folder: Path, annotations: dict[str, bytes], **lists: str) -> Path:
    write_files(folder, {f"Annotations/{key}.xml": xml for key, xml in annotations.items()})
    write_files(folder, {f"JPEGImages/{key}.jpg": make_jpeg(k, size=(40, 20)) for k, key in enumerate(annotations)})
    return write_files(folder, {f"ImageSets/Main/{name}.txt": text.encode() for name, text in lists.items()})


@pytest.fixture
def voc(tmp_path: Path) -> Path:
    dog = make_object("dog", 11, 6, 30, 15, more=f"<difficult>1</difficult>{PART}")
    annotations = {
        "1": make_xml(dog, make_object("cat", 1, 1, 40, 20)),
        "2": make_xml(),
        "3": make_xml(make_object("cat", 21, 11, 40, 20)),
    }
    lists = {"train": "1\n2\n", "val": "3\n", "trainval": "1\n2\n3\n", "cat_train": "1  1\n"}
    return write_voc(tmp_path / "VOC2012", annotations, **lists)


def test_the_layout_of_voc_gives_boxes_classes_and_splits(voc: Path, tmp_path: Path) -> None:
    listing = list_source(voc)
    assert (listing.name, listing.root, listing.box_names) == ("VOC2012", str(voc), ("cat", "dog"))
    assert [(ref.path, ref.split, ref.boxes, ref.box_labels, ref.extra) for ref in listing.images] == [
        ("JPEGImages/1.jpg", "train", ((0.25, 0.25, 0.75, 0.75), (0.0, 0.0, 1.0, 1.0)), (1, 0), ([1, 0],)),
        ("JPEGImages/2.jpg", "train", (), (), ([],)),
        ("JPEGImages/3.jpg", "validation", ((0.5, 0.5, 1.0, 1.0),), (0,), ([0],)),
    ]
    assert listing.skipped == {}
    make_dataset(voc, tmp_path / "out", shuffle=False)
    first, second = read_records(tmp_path / "out")
    assert first["image/object/class/text"] == [b"dog", b"cat"]
    assert first["difficult"].tolist() == [1, 0]
    assert first["image/object/bbox/xmin"].tolist() == [0.25, 0.0]
    assert not second["image/object/class/text"]
    for name in ("train", "val"):
        (voc / f"ImageSets/Main/{name}.txt").unlink()
    assert [ref.split for ref in list_source(voc).images] == ["", "", ""]


def test_images_without_a_list_or_an_annotation_are_counted(voc: Path) -> None:
    write_files(voc, {"JPEGImages/4.png": b"1", "ImageSets/Main/val.txt": b"3\n5\n\n"})
    listing = list_source(voc)
    assert [ref.path for ref in listing.images] == [f"JPEGImages/{k}.jpg" for k in (1, 2, 3)]
    assert listing.skipped == {"image in no list of ImageSets": 1, "image without a file in Annotations": 1}
    for name in ("train", "val", "trainval", "cat_train"):
        (voc / f"ImageSets/Main/{name}.txt").unlink()
    write_files(voc, {"Annotations/4.xml": make_xml(make_object("cat", 30, 0, 50, 10), make_object("cat", 9, 9, 8, 9))})
    listing = list_source(voc)
    assert [(ref.path, ref.split) for ref in listing.images][3] == ("JPEGImages/4.png", "")
    assert [*listing.images][3].boxes == ((0.725, 0.0, 1.0, 0.5),)
    assert listing.skipped == {"box without an area in its image": 1}


def test_a_name_in_a_list_may_have_spaces_and_a_number_behind_it(tmp_path: Path) -> None:
    names = ("a", "b", "b c", "img", "img 1")
    voc = write_voc(tmp_path, dict.fromkeys(names, make_xml()), train=" a  -1\nb c \n\nimg 1\na d\n", val="b\t 1\n")
    listing = list_source(voc)
    assert [(ref.path, ref.split) for ref in listing.images] == [
        *((f"JPEGImages/{name}.jpg", "train") for name in ("a", "b c", "img 1")),
        ("JPEGImages/b.jpg", "validation"),
    ]
    assert listing.skipped == {"image in no list of ImageSets": 1, "image without a file in Annotations": 1}


def test_other_files_beside_images_are_counted(voc: Path) -> None:
    hidden = [form.format(k) for k in (1, 2) for form in ("Annotations/._{}.xml", "JPEGImages/._{}.jpg")]
    beside = {
        f"JPEGImages/1.{ending}": b"0 .5 .5 .1 .1" for ending in ("txt", "xml", "AAE", "pose", "3.weights", "zzz")
    }
    write_files(voc, dict.fromkeys(hidden, b"1") | beside | {"JPEGImages/Thumbs.db": b"1"})
    listing = list_source(voc)
    assert [ref.path for ref in listing.images] == [f"JPEGImages/{k}.jpg" for k in (1, 2, 3)]
    assert listing.skipped == {
        "hidden": 4,
        "*.txt": 1,
        "*.xml": 1,
        "no image by name": 1,
        "*.aae": 1,
        "further file of an image": 2,
        "image in no list of ImageSets": 1,  # 1.3.w
    }


def test_a_missing_image_is_named(voc: Path, tmp_path: Path) -> None:
    path = min((voc / "JPEGImages").iterdir())
    path.unlink()
    with pytest.raises(DataError, match=rf"and 1 of their files does not exist: {path}\. Correct the paths, or leave "):
        make_dataset(voc, tmp_path / "out")
    assert make_dataset(voc, tmp_path / "out", max_bad=0, allow_missing=True).quarantined == 1


def test_masks_are_stored_if_all_images_have_one(voc: Path, tmp_path: Path) -> None:
    masks = {k: np.full((20, 40), k, np.uint8) for k in (1, 2, 3)}
    for k in (1, 2):
        (voc / "SegmentationClass").mkdir(exist_ok=True)
        Image.fromarray(masks[k]).save(voc / f"SegmentationClass/{k}.png")
    listing = list_source(voc)
    assert ("mask" in listing.images.details, listing.skipped) == (False, {"mask, since other images have none": 2})
    Image.fromarray(masks[3]).save(voc / "SegmentationClass/3.png")
    make_dataset(voc, tmp_path / "out", shuffle=False)
    for k, record in enumerate(read_records(tmp_path / "out"), start=1):
        assert np.array_equal(Image.open(io.BytesIO(record["image/mask"][0])), masks[k])


NEGATIVE = "<size><width>-1</width><height>9</height></size>"
BOMB = b'<!DOCTYPE annotation [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]>'


@pytest.mark.parametrize(
    ("xml", "reason"),
    [
        (b"", "no element found: line 1, column 0"),
        (b"<annotation><size>", "no element found: line 1, column 18"),
        (BOMB + make_xml(), "it must not declare a document type"),
        ((BOMB.decode() + make_xml().decode()).encode("utf-16"), "it must not declare a document type"),
        (b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><annotation/>', "it must not declare a document type"),
        (b"<html/>", "its outermost element must be 'annotation', got 'html'"),
        (b"<annotation>" + b"<a>" * 300_000, "no element found: line 1, column 900012"),
        (make_xml(make_object("", 1, 1, 2, 2)), "object 1 must have a 'name', got ''"),
        (make_xml("<object><name>a</name></object>"), "'xmin' must be a number, got ''"),
        (make_xml(make_object("a", 1, 1, 2, float("nan"))), "'ymax' must be a number, got 'nan'"),
        (make_xml(size=NEGATIVE), "'size' must hold a width and a height from 0"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, xml: bytes, reason: str) -> None:
    voc = write_voc(tmp_path, {"1": xml})
    assert refuse_source(voc) == f"{voc}/Annotations/1.xml is not a valid annotation of Pascal VOC ({reason})."


def test_a_wrong_list_or_a_large_file_is_refused(voc: Path, tmp_path: Path) -> None:
    main = voc / "ImageSets/Main"
    write_files(main, {"val.txt": b"3\n1\n"})
    assert refuse_source(voc) == f"{main}/val.txt, line 2: 1 is in another split too. Remove it from one of them."
    write_files(main, {"val.txt": b"../../x\n"})
    message = f"{main}/val.txt, line 1: must be the name of an image without its ending, got '../../x'."
    assert refuse_source(voc) == message
    write_files(main, {"val.txt": "1\n".encode("utf-16")})
    message = f"{main}/val.txt must be a text in UTF-8, but has zeros. Save it anew with this encoding."
    assert refuse_source(voc) == message
    large = write_voc(tmp_path / "large", {"1": b" " * (2**20 + 1)})
    assert refuse_source(large) == f"{large}/Annotations/1.xml must have at most 1 MiB."


def test_the_layout_is_recognized(voc: Path, tmp_path: Path) -> None:
    assert find_kind(ShardConfig(str(voc), "/out")) == "voc"
    assert find_kind(ShardConfig(str(voc), "/out", input_format="tree")) != "voc"
    assert find_kind(ShardConfig(str(voc / "JPEGImages"), "/out")) != "voc"
    message = f"{voc}/JPEGImages must have an .xml file for each image in Annotations, but there is none."
    assert refuse_source(voc / "JPEGImages", input_format="voc") == message
