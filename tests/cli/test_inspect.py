"""`tfpipe inspect` as a user runs it."""

import io
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.beam_jobs.commands import run_python
from tests.beam_jobs.datasets import make_dataset
from tfpipe.dataset.load import load_manifest
from tfpipe.engine.record_reader import RecordReader
from tfpipe.format.image_form import ImageForm
from tfpipe.format.manifest_json import loads


@pytest.fixture
def inspect(tfpipe):
    return partial(tfpipe, "inspect", columns=80)


def read_manifest(dataset: str) -> Any:
    return json.loads(Path(dataset, "manifest.json").read_text())


def edit(dataset: str, **changes: Any) -> None:
    text = json.dumps(read_manifest(dataset) | changes)
    Path(dataset, "manifest.json").write_text(text)
    loads(text)


def first_record(folder: Path) -> dict[str, Any]:
    with RecordReader(str(folder), load_manifest(str(folder)), "train") as reader:
        return reader[0]


def test_the_summary_on_80_columns(inspect, small_dataset: Path) -> None:
    done = inspect(small_dataset)
    assert (done.code, done.err) == (0, "")
    assert max(map(len, done.lines)) <= 80
    version = load_manifest(str(small_dataset)).tool_version
    train, validation = load_manifest(str(small_dataset)).splits.values()
    sizes = f"Size         {train.bytes / 1000:.1f} KB               {validation.bytes / 1000:.1f} KB"
    assert done.lines[done.lines.index(f"from images by tfpipe {version}, format 1") + 1 :] == [
        "Images: JPEG and PNG as in the source, quality 95 where re-encoded",
        "",
        "Split        train                validation",
        "─" * 52,
        "Records      12                   3",
        "Shards       2                    2",
        sizes,
        "Width, px    24–34, mean 28       26–35, mean 30",
        "Height, px   16–26, mean 20       18–27, mean 22",
        "Formats      6 JPEG, 6 PNG        3 JPEG",
        "Classes      3, imbalance 3.0:1   3, imbalance 1.0:1",
        "",
        "Class   train   validation",
        "─" * 26,
        "cat     6       1",
        "dog     4       1",
        "owl     2       1",
        "",
        "Labels       3: cat, dog, owl",
        "Quarantined  1 that could not be repaired; see quarantine/quarantined.jsonl",
        "Seed         0",
    ]


def test_json_has_all_of_it(inspect, small_dataset: Path) -> None:
    manifest = load_manifest(str(small_dataset))
    document = inspect(small_dataset, "--json").json
    train = manifest.splits["train"]
    assert list(inspect(small_dataset, "--split", "validation", "--json").json["splits"]) == ["validation"]
    sides = ("height", "width")
    sizes = {
        f"{what}_{side}": getattr(train.sizes, f"{what}_{side}") for side in sides for what in ("min", "max", "mean")
    }
    assert document.pop("splits")["train"] == {
        "records": 12,
        "shards": 2,
        "bytes": train.bytes,
        "formats": {"JPEG": 6, "PNG": 6},
        "seekable": False,
        "seekable_jpegs": 0,
        "sizes": sizes,
        "class_counts": [6, 4, 2],
    }
    assert (sizes["min_height"], sizes["max_height"], sizes["min_width"], sizes["max_width"]) == (16, 26, 24, 34)
    assert document == (
        {"dataset": str(small_dataset), "name": "images", "format_version": 1, "tool_version": manifest.tool_version}
        | {"labels": ["cat", "dog", "owl"], "changed": {}, "noticed": {}, "skipped": {}, "quarantined": 1}
        | {"duplicates": {"within": {}, "across": 0, "dropped": 0}, "image": dict(manifest.image)}
        | {"seed": 0, "schema": manifest.schema.to_json()}
    )


def test_seekable_jpegs(inspect, pets: str) -> None:
    splits = read_manifest(pets)["splits"]
    splits["train"] |= {"seekable": False, "seekable_jpegs": 4}
    edit(pets, splits=splits)
    assert "Seekable     4 of 6 JPEG          no" in inspect(pets).lines
    splits["train"] |= {"seekable": True, "seekable_jpegs": 6}
    edit(pets, splits=splits, image=read_manifest(pets)["image"] | {"seekable": True})
    lines = inspect(pets).lines
    assert "Seekable     all JPEG             no" in lines
    assert "quality 95 where re-encoded; JPEGs are seekable, by restart markers" in " ".join(lines)
    document = inspect(pets, "--json").json
    found = [(split["seekable"], split["seekable_jpegs"]) for split in document["splits"].values()]
    assert found == [(True, 6), (False, 0)]
    assert document["image"]["seekable"] is True


def test_duplicates_quarantine_and_counts(inspect, pets: str) -> None:
    duplicates = {"within": {"train": 3}, "across": 2, "dropped": 7}
    edit(pets, quarantined=5, duplicates=duplicates, changed={"cmyk_to_rgb": 1234}, skipped={"*.txt": 2})
    done = inspect(pets, columns=120)
    begin = next(k for k, line in enumerate(done.lines) if line.startswith("Changed"))
    assert done.lines[begin:] == [
        "Changed      1,234 cmyk_to_rgb",
        "Skipped      2 *.txt",
        "Quarantined  5 that could not be repaired; see quarantine/quarantined.jsonl",
        "Duplicates   3 within train, 7 dropped",
        "Leaks        2 in more than one split: evaluation images are among the training images; see duplicates.jsonl",
        "Seed         0",
    ]


def test_of_many_labels_the_largest_are_shown_and_of_none_that(inspect, pets: str) -> None:
    splits = {"train": read_manifest(pets)["splits"]["train"]}
    names = [f"class {i:02d}" for i in range(20)]
    splits["train"]["class_counts"] = [0] * 18 + [9, 3]
    edit(pets, label_names=names, splits=splits)
    done = inspect(pets)
    assert "Classes      20, 18 empty" in done.lines
    begin = done.lines.index("Class        train")
    assert done.lines[begin + 2 : begin + 5] == ["class 18     9", "class 19     3", "class 00     0"]
    assert done.lines[begin + 14] == "and 8 more   down to 0"
    whole = read_manifest(pets)
    for split in whole["splits"].values():
        split["class_counts"] = []
    edit(pets, label_names=[], splits=whole["splits"])
    done = inspect(pets)
    assert "Labels       none" in done.lines
    assert "classes" not in done.out


def test_names_are_neither_markup_nor_control_characters(inspect, pets: str) -> None:
    names = ["[bold red]cat[/]", "dog\x1b[2J\n", "\u202eowl :smile: " + "x" * 100]
    edit(pets, name="[link=evil]pets\x07[/link]", label_names=names, skipped={"*[/]\x9b": 1})
    done = inspect(pets, columns=160).ok
    assert done.lines[1].startswith("from [link=evil]pets\ufffd[/link] by tfpipe")
    text = "\n".join(done.lines)
    assert "[bold red]cat[/]               6" in text
    assert "dog\ufffd[2J\ufffd" in text
    assert "\ufffdowl :smile: xxxxxxxxxxxxxx…" in text
    assert "1 *[/]\ufffd" in text
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(done.out)


def test_one_record(inspect, small_dataset: Path) -> None:
    features = first_record(small_dataset)
    data = features["image/encoded"][0]
    done = inspect(small_dataset, "--record", "train:-12", columns=120)
    assert (done.code, done.err) == (0, "")
    size = int((small_dataset / "index/train-00000-of-00002.idx").read_text().split()[1])
    assert done.lines == [
        f"train:0  train-00000-of-00002.tfrecord, {size:,} bytes from byte 0",
        f"image/encoded      {len(data):,} bytes",
        f"image/format       {features['image/format'][0].decode()}",
        f"image/height       {features['image/height'][0]}",
        f"image/width        {features['image/width'][0]}",
        "image/channels     3",
        "image/colorspace   RGB",
        f"image/filename     {features['image/filename'][0].decode()}",
        f"image/sha256       {features['image/sha256'][0].decode()}",
        f"image/class/label  {features['image/class/label'][0]}",
        f"image/class/text   {features['image/class/text'][0].decode()}",
    ]


def test_one_record_as_json_with_its_image_written(inspect, small_dataset: Path, tmp_path: Path) -> None:
    features = first_record(small_dataset)
    data, kind = features["image/encoded"][0], features["image/format"][0].decode()
    target = tmp_path / "image.bin"
    target.write_bytes(b"before")
    document = inspect(small_dataset, "--record", "train:0", "--output", target, "--json").json
    assert document["features"]["image/encoded"] == {"bytes": len(data)}
    assert document["features"]["image/class/label"] == int(features["image/class/label"][0])
    assert document["features"]["image/filename"] == features["image/filename"][0].decode()
    assert (document["split"], document["index"], document["offset"]) == ("train", 0, 0)
    assert document["written"] == {"file": str(target), "format": kind, "bytes": len(data)}
    assert target.read_bytes() == data
    assert [path.name for path in tmp_path.iterdir()] == ["image.bin"]


def test_raw_pixels_are_written_as_png(inspect, small_dataset: Path, tmp_path: Path) -> None:
    make_dataset(small_dataset.parent / "images", tmp_path / "raw", form=ImageForm(encoding="raw", square=8))
    target = tmp_path / "image.jpg"
    done = inspect(tmp_path / "raw", "--record", "train:0", "--output", target)
    assert done.lines[-1] == f"Wrote {target}: PNG, {target.stat().st_size:,} bytes."
    with Image.open(io.BytesIO(target.read_bytes())) as image:
        assert (image.format, image.size) == ("PNG", (8, 8))
        assert image.tobytes() == first_record(tmp_path / "raw")["image/encoded"][0]
    summary = inspect(tmp_path / "raw", columns=120).lines
    assert summary[2] == "Images: raw uint8 pixels, resized to 8 × 8; the sizes below are those before resizing"
    sheet = tmp_path / "sheet.PNG"
    document = inspect(tmp_path / "raw", "--show", 3, sheet, "--json").json
    assert (document["sheet"], document["name"]) == ({"file": str(sheet), "records": 3}, "images")
    assert sheet.exists()


@pytest.mark.parametrize(
    ("args", "drawn", "total"),
    [(["--show", 4], 4, 15), (["--show", 1000], 15, 15), (["--split", "train", "--show", 5], 5, 12)],
    ids=["some", "all", "one split"],
)
def test_a_contact_sheet(inspect, small_dataset: Path, tmp_path: Path, args: list[object], drawn: int, total: int):
    target = tmp_path / "sheet.png"
    done = inspect(small_dataset, *args, target)
    assert (done.code, done.lines[-1]) == (0, f"Wrote {target}: {drawn} of {total} records.")
    with Image.open(target) as image:
        assert (image.format, image.mode) == ("PNG", "RGB")
        assert image.width > 160
    assert [path.name for path in tmp_path.iterdir()] == ["sheet.png"]


def test_records_are_spread_over_the_splits() -> None:
    from tfpipe.readers.thumbnails import spread_evenly

    assert spread_evenly([12, 3], 5) == [[1, 4, 7, 10], [1]]
    assert spread_evenly([3], 9) == [[0, 1, 2]]
    assert spread_evenly([0], 9) == [[]]


def test_data_that_cannot_be_read_ends_with_1(inspect, pets: str, tmp_path: Path) -> None:
    target = tmp_path / "no folder" / "a.png"
    done = inspect(pets, "--show", 2, target)
    assert (done.code, done.err) == (1, f"Error: {target} cannot be written: No such file or directory.\n")
    (Path(pets) / "train-00000-of-00002.tfrecord").unlink()
    done = inspect(pets, "--record", "train:0")
    assert done.code == 1
    missing = f"Error: {Path(pets) / 'train-00000-of-00002.tfrecord'} is missing. Copy the dataset again"
    assert done.err.startswith(missing)
    done = inspect(pets)
    assert (done.code, done.err, done.lines[-1]) == (1, f"{missing}.\n", "Seed         0")
    assert inspect(pets, "--split", "validation").code == 0


def test_an_ascii_terminal_gets_question_marks(small_dataset: Path) -> None:
    done = run_python("-m", "tfpipe", "inspect", small_dataset, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "cat   | 6 " in done.stdout
