"""Folders: classes, splits, what is passed over, links, loops, and archives that one process or several read."""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from beam_jobs.inputs import folder as folder_input
from beam_jobs.inputs.archive import ListedFile
from beam_jobs.inputs.folder import list_folder, list_tree
from beam_jobs.plan.listing import Listing
from tests.beam_jobs.datasets import list_source, refuse_source
from tests.beam_jobs.images import make_tar, write_files, write_tar, write_zip
from tests.observers import Recorder
from tests.refusals import refusal
from tfpipe.errors import DataError
from tfpipe.system.progress import Progress

MakeTree = Callable[..., Path]


def get_meanings(listing: Listing) -> dict[str, tuple[str, str | None]]:
    return {ref.path: (ref.split, ref.label) for ref in sorted(listing.images)}


@pytest.fixture
def make_tree(tmp_path: Path) -> MakeTree:
    """Returns a function that makes a folder with empty files of some names."""

    def build(*names: str) -> Path:
        return write_files(tmp_path / "photos", dict.fromkeys(names, b""))

    return build


def test_class_folders(make_tree: MakeTree) -> None:
    source = make_tree("dog/1.jpg", "cat/1.jpg", "cat/2.png")
    for listing in (list_source(source), list_source(f"{source}/")):
        assert get_meanings(listing) == {"cat/1.jpg": ("", "cat"), "cat/2.png": ("", "cat"), "dog/1.jpg": ("", "dog")}
        assert listing.label_names == ("cat", "dog")
        assert (listing.name, listing.skipped, listing.unpack) == ("photos", Counter(), ())


SPLITS = {"train": "train training Train", "validation": "val valid dev VALIDATION", "test": "test testing"}


@pytest.mark.parametrize(("folder", "split"), [(name, split) for split in SPLITS for name in SPLITS[split].split()])
def test_split_folders(make_tree: MakeTree, folder: str, split: str) -> None:
    assert get_meanings(list_source(make_tree(f"{folder}/cat/1.jpg"))) == {f"{folder}/cat/1.jpg": (split, "cat")}


def test_splits_or_loose_images_beside_classes(make_tree: MakeTree, tmp_path: Path) -> None:
    source = make_tree("train/cat/1.jpg", "val/cat/2.jpg", "dog/3.jpg")
    assert refuse_source(source) == (
        f"{source} holds 'train' beside 'dog': its folders must be all splits (train, validation, test) or all "
        "classes. Move what belongs to neither out of it."
    )
    source = write_files(tmp_path / "loose", dict.fromkeys(("cat/1.jpg", "dog/2.jpg", "loose.jpg", "a.jpg"), b""))
    assert refuse_source(source) == (
        f"2 of 4 images in {source} lie in no class folder, such as a.jpg. Put every image into a class folder, or "
        "none."
    )


def test_folders_above_the_classes_stay_in_a_folder(make_tree: MakeTree, tmp_path: Path) -> None:
    """Checks that the user of a folder has to name the one inside it. Archives have no such names."""
    source = make_tree("all/cat/1.jpg", "all/dog/2.jpg")
    assert get_meanings(list_source(source)) == {"all/cat/1.jpg": ("", "all"), "all/dog/2.jpg": ("", "all")}
    write_tar(tmp_path / "in/flowers.tar", {"rose/1.jpg": b"x", "tulip/1.jpg": b"y"})
    for folder, above, names, inner in (
        (source, "all", "cat, dog", f"{source}/all"),
        (tmp_path / "in", "flowers", "rose, tulip", "the archive that holds them"),
    ):
        assert list_source(folder).note == (
            f"All images lie in {above}, so they have one class. If the 2 folders in it ({names}) are the classes, "
            f"name {inner} as the input."
        )
    deep = write_files(tmp_path / "deep", {f"a/b/{k}/x.jpg": b"" for k in range(1, 5)})
    assert " in a/b, so they have one class. If the 4 folders in it (1, 2, 3, ...) are" in list_source(deep).note
    for k, names in enumerate((["cat/1.jpg", "cat/old/2.jpg"], ["cat/old/1.jpg"], ["cat/old/1.jpg", "dog/1.jpg"])):
        assert not list_source(write_files(tmp_path / str(k), dict.fromkeys(names, b""))).note


JPEG, OTHER = b"\xff\xd8\xff of an image", b"\x80\2 of another file"


@pytest.mark.parametrize("form", ["folder", "tar", "zip", "deep"])
def test_files_and_folders_that_others_leave_are_no_images(tmp_path: Path, form: str) -> None:
    images = [f"{name}/{k}.jpg" for name in ("cat", "dog") for k in (1, 2)]
    others = ["checkpoints/model.pt", "runs/1/events.out.5", "runs/1/weights", "@eaDir/cat/1.jpg/SYNOPHOTO_THUMB_M.jpg"]
    others += ["cat/@eaDir/1.jpg/SYNOPHOTO_THUMB_M.jpg", "#recycle/9.jpg", "$RECYCLE.BIN/9.jpg", "cat/._1.jpg"]
    others += ["cat/.ipynb_checkpoints/1-checkpoint.jpg", "cat/.DS_Store", "cat/1.AAE", "cat/1.jpg.pp3", "cat/Icon\r"]
    base = "train/" if form == "deep" else ""
    files = {base + name: b"x" for name in (*images, *others)}
    if form in ("tar", "zip"):
        source = (write_tar if form == "tar" else write_zip)(tmp_path / f"in.{form}", files)
    else:
        source = write_files(tmp_path / "in", files)
    listing = list_source(source)
    assert get_meanings(listing) == {base + name: (base[:-1], name[:3]) for name in images}
    assert listing.label_names == ("cat", "dog")
    endings = dict.fromkeys(("*.5", "*.aae", "*.pp3", "*.pt"), 1)
    assert listing.skipped == {"hidden": 3, "no image by name": 4, "no image by content": 2, **endings}


def test_images_of_an_unknown_ending_stay(make_tree: MakeTree) -> None:
    """One image of an ending in a folder is enough: a broken one beside it is then named."""
    files = {"cat/1": JPEG, "cat/2": OTHER, "dog/1.a": JPEG, "dog/2.a": OTHER, "dog/3.b": OTHER, "fox/1.c": b""}
    source = write_files(make_tree(), files)
    listing = list_source(source)
    assert sorted(get_meanings(listing)) == ["cat/1", "cat/2", "dog/1.a", "dog/2.a", "fox/1.c"]
    assert listing.skipped == {"*.b": 1}
    listing = list_source(write_files(source.with_name("others"), {"a.txt": b"", "b/c.json": b""}))
    assert (list(listing.images), listing.skipped) == ([], {"*.txt": 1, "*.json": 1})


@pytest.mark.parametrize(
    ("names", "meanings"),
    [
        (["a/b/cat/1.jpg", "a/b/dog/2.jpg"], [("", "cat"), ("", "dog")]),
        (["a/train/cat/1.jpg", "a/val/cat/2.jpg"], [("train", "cat"), ("validation", "cat")]),
        (["train/cat/1.jpg", "train/dog/x/2.jpg"], [("train", "cat"), ("train", "dog")]),
        (["train/1.jpg", "val/2.jpg"], [("train", None), ("validation", None)]),
        (["cat/1.jpg", "cat/2.jpg"], [("", "cat"), ("", "cat")]),
        (["1.jpg", "2.jpg"], [("", None), ("", None)]),
        (["train/1.jpg", "bus/2.jpg", "test/3.jpg"], [("", "train"), ("", "bus"), ("", "test")]),
        (["images/1.jpg", "sketches/2.jpg"], [("", "images"), ("", "sketches")]),
    ],
)
def test_layouts_of_an_archive_and_of_a_folder(tmp_path: Path, names: list[str], meanings: list[Any]) -> None:
    files = dict.fromkeys(names, b"x")
    sources = [write_tar(tmp_path / "a.tar", files)]
    if not names[0].startswith("a/"):  # folders above all others are stripped from an archive alone
        sources.append(write_files(tmp_path / "a", files))
    for source in sources:
        assert get_meanings(list_source(source)) == dict(zip(names, meanings, strict=True))


def test_a_folder_of_tars(tmp_path: Path) -> None:
    write_tar(tmp_path / "in" / "cat.tar", {"1.jpg": b"x", "2.jpg": b"y"})
    write_tar(tmp_path / "in" / "dog.tar.gz", {"3.jpg": b"z"}, "w:gz")
    write_files(tmp_path / "in", {".hidden.tar": b"no tar at all"})
    (tmp_path / "in/folder.tar").mkdir()
    listing = list_source(tmp_path / "in")
    assert listing.skipped == {"hidden": 1, "empty folder": 1}
    assert listing.images.count_values("file") == {"cat.tar": 2, "dog.tar.gz": 1}
    assert get_meanings(listing) == {"cat/1.jpg": ("", "cat"), "cat/2.jpg": ("", "cat"), "dog/3.jpg": ("", "dog")}
    assert listing.unpack == ("dog.tar.gz",)


def test_a_folder_and_an_archive_of_one_name(tmp_path: Path) -> None:
    """Refuses two images of one path: neither may hide the other without a word."""
    source = write_files(tmp_path / "in", {"cat/1.jpg": b"loose"})
    write_tar(source / "cat.tar", {"2.jpg": b"packed"})
    assert len(list_source(source).images) == 2
    write_tar(source / "cat.tar", {"1.jpg": b"packed"})
    assert refuse_source(source) == (f"{source} holds cat/1.jpg twice, in a folder and in cat.tar. Rename one of them.")


def test_label_file(make_tree: MakeTree, tmp_path: Path) -> None:
    source = make_tree("dog/1.jpg", "cat/2.jpg")
    labels = tmp_path / "labels.txt"
    labels.write_text("\ufeffzebra\n dog \n\ncat\r\n")
    listing = list_source(source, labels=str(labels))
    assert listing.label_names == ("zebra", "dog", "cat")
    assert get_meanings(listing)["dog/1.jpg"] == ("", "dog")
    table = tmp_path / "t.csv"
    table.write_text("image,label\na.jpg,2\nb.jpg,0\n")
    labels.write_text("cat\ndog\n")
    assert refuse_source(table, labels=str(labels)) == f"{labels} names 2 classes, but label 2 occurs."


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dog\n", "{path} must name every class, but 'cat' is not in it."),
        (
            "dog\ncafe\u0301\n",
            "{path} must name every class, but 'café' is not in it. It has the name in another Unicode form: "
            "NFC and NFD differ in letters such as é.",
        ),
        ("dog\ncat\ndog\n", "{path} must name every class once."),
        (None, "Could not read {path}: No such file or directory."),
    ],
)
def test_wrong_label_file(make_tree: MakeTree, tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "labels.txt"
    if text is not None:
        path.write_text(text)
    tree = make_tree("dog/1.jpg", "café/2.jpg" if "é" in message else "cat/2.jpg")
    assert refuse_source(tree, labels=str(path)) == message.format(path=path)


def test_label_file_that_is_no_utf8(make_tree: MakeTree, tmp_path: Path) -> None:
    path = tmp_path / "labels.txt"
    path.write_bytes(b"dog\ncaf\xe9\n")
    latin1 = make_tree("dog/1.jpg", os.fsdecode(b"caf\xe9/2.jpg"))
    assert list_source(latin1, labels=str(path)).label_names == ("dog", "caf\udce9")
    path.write_bytes("dog\n".encode("utf-16"))
    message = f"{path} must be a text in UTF-8, but has zeros. Save it anew with this encoding."
    assert refuse_source(make_tree("dog/1.jpg"), labels=str(path)) == message


@pytest.mark.parametrize(
    "names",
    [
        ("images/train/1.jpg", "labels/train/1.txt", "data.yaml"),
        ("train/images/1.jpg", "train/labels/1.txt", "valid/images/2.jpg", "valid/labels/2.txt"),
    ],
    ids=["ultralytics", "roboflow"],
)
def test_boxes_of_yolo_are_refused(make_tree: MakeTree, names: tuple[str, ...]) -> None:
    source = make_tree(*names)
    assert refuse_source(source) == (
        f"{source} holds its images in folders `images` and *.txt files beside them, as YOLO's datasets do. Boxes are "
        "read from COCO's and Pascal VOC's files: export the dataset as one of these, or name the folder `images` as "
        "the input for the images without boxes."
    )


def list_sorted(folder: Path) -> list[ListedFile]:
    return sorted(list_folder(str(folder)))


def test_links_are_followed(tmp_path: Path) -> None:
    write_files(tmp_path / "far", {"x/1.jpg": b"123"})
    root = tmp_path / "root"
    root.mkdir()
    (root / "cat").symlink_to(tmp_path / "far" / "x")
    (root / "dog").symlink_to(tmp_path / "far" / "x")  # the same folder twice is not a loop
    (root / "one.jpg").symlink_to(tmp_path / "far" / "x" / "1.jpg")
    assert list_sorted(root) == [ListedFile("cat/1.jpg", 3), ListedFile("dog/1.jpg", 3), ListedFile("one.jpg", 3)]
    write_files(tmp_path / "real", {"1.jpg": b"1"})
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real/gone.jpg").symlink_to("nowhere")
    (tmp_path / "real/self.jpg").symlink_to("self.jpg")
    assert list_sorted(tmp_path / "link") == [
        ListedFile("1.jpg", 1),
        ListedFile("gone.jpg", 0),
        ListedFile("self.jpg", 0),
    ]


@pytest.mark.parametrize("target", [".", "..", "../.."])
def test_a_loop_is_refused(tmp_path: Path, target: str) -> None:
    root = write_files(tmp_path / "root", {"cat/old/1.jpg": b"1"})
    loop = root / "cat" / "old" / "zz"
    loop.symlink_to(target)
    assert refusal(DataError, list_sorted, root) == f"Folders must not loop, but {loop} leads back to one above it."


def test_empty_folders_are_counted(tmp_path: Path) -> None:
    """An empty folder of a class would shift the labels of the classes behind it."""
    for name in ("ant", "bee/new", ".git/refs"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "cat.jpg").touch()
    assert list_sorted(tmp_path) == [
        ListedFile("ant/", 0, skip="empty folder"),
        ListedFile("bee/new/", 0, skip="empty folder"),
        ListedFile("cat.jpg", 0),
    ]


def test_a_pipe_is_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "1.jpg")
    os.mkfifo(tmp_path / "2.tar")
    (tmp_path / "zero.jpg").symlink_to("/dev/zero")
    names = ("1.jpg", "2.tar", "zero.jpg")
    assert list_sorted(tmp_path) == [ListedFile(name, 0, skip="not a regular file") for name in names]


@pytest.mark.parametrize(("name", "fault"), [("nothing", "does not exist"), ("file.png", "is none of these")])
def test_an_input_that_is_not_a_folder_is_refused(tmp_path: Path, name: str, fault: str) -> None:
    (tmp_path / "file.png").write_bytes(b"")
    assert refusal(DataError, list_sorted, tmp_path / name) == (
        "The input must be a folder, a .csv, .tsv, .jsonl or .parquet manifest, or a .tar, .tar.gz or .zip archive; "
        f"{tmp_path / name} {fault}."
    )


def write_archives(folder: Path, count: int) -> Path:
    """Writes archives of three kinds in turn, with one image more in each, and two loose files."""
    for k in range(count):
        images = {f"{i}.jpg": f"{k} {i}".encode() for i in range(k + 1)}
        if k % 3 == 2:
            write_zip(folder / f"class{k}.zip", images)
        else:
            write_tar(folder / f"class{k}.tar{'.gz' * (k % 3)}", {**images, "notes.txt": b"x"}, ("w", "w:gz")[k % 3])
    return write_files(folder, {"loose/1.jpg": b"1", "loose/.hidden": b"2"})


def test_several_processes_list_the_same_in_the_same_order_and_name_a_damaged_archive(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(folder_input, "_SIDE_BY_SIDE_FROM_BYTES", 0)
    source = str(write_archives(tmp_path, 7))
    by_one, by_two = list_tree(source, workers=1), list_tree(source, workers=2)
    assert list(by_one.images) == list(by_two.images)
    assert len(by_one.images) == 1 + sum(range(8))
    assert by_one.skipped == by_two.skipped == {"*.txt": 5, "hidden": 1}
    (tmp_path / "class9.zip").write_bytes(b"PK no zip")
    message = f"{source}/class9.zip is damaged or is not a valid archive of its kind (File is not a zip file)."
    assert refusal(DataError, list_tree, source, workers=2) == message


def test_equal_names_in_one_archive_keep_the_last_and_leave_the_others(tmp_path: Path) -> None:
    old, new = make_tar({"cat/1.jpg": b"old", "cat/2.jpg": b"two"})[:2048], make_tar({"cat/1.jpg": b"newer"})
    (tmp_path / "a.tar").write_bytes(old + new)
    assert [(image.path, image.size, image.label) for image in list_tree(str(tmp_path / "a.tar")).images] == [
        ("cat/2.jpg", 3, "cat"),
        ("cat/1.jpg", 5, "cat"),
    ]


def test_listing_tells_how_far_it_is(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(folder_input, "_FILES_AT_ONCE", 2)
    monkeypatch.setattr("beam_jobs.plan.image_table._TELL_EVERY", 2)
    write_files(tmp_path, {f"cat/{i}.jpg": b"1" for i in range(3)})
    write_tar(tmp_path / "dog.tar", {f"{i}.jpg": b"1" for i in range(4)})
    observer = Recorder()
    list_tree(str(tmp_path), observer=observer)
    assert observer.progresses == [Progress(2), Progress(3), Progress(7)]
    list_tree(str(tmp_path / "dog.tar"), observer=observer)
    assert observer.progresses[3:] == [Progress(2), Progress(4)]
