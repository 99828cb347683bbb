"""`tfpipe shard` loses nothing of a newcomer's data without a word: what it keeps, and what it says of the rest."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

import tfpipe as package
from tests.beam_jobs.datasets import read_records
from tests.beam_jobs.images import make_jpeg
from tests.beam_jobs.inputs.parquet_files import write_parquet
from tests.conftest import Tfpipe

CLASSES = ("cat", "dog", "cat", "owl")
FOLDER = (
    "no classes: the images lie in no class folders; put those of each class into a folder of its name, such as "
    "cat/1.jpg and dog/2.jpg"
)


@pytest.fixture
def images(tmp_path: Path, monkeypatch) -> list[str]:
    """Four images in the current folder."""
    monkeypatch.chdir(tmp_path)
    names = [f"{k}.jpg" for k in range(4)]
    for k, name in enumerate(names):
        Path(name).write_bytes(make_jpeg(k))
    return names


def write_csv(path: str, header: Sequence[str], rows: Sequence[Sequence[object]], delimiter: str = ",") -> str:
    Path(path).write_text("".join(delimiter.join(map(str, row)) + "\n" for row in [header, *rows]))
    return path


def shard(tfpipe: Tfpipe, *args: object) -> list[str]:
    """Returns the lines that a job without a fault prints, but the last."""
    done = tfpipe("shard", *args)
    assert done.code == 0, done.err
    *lines, last = done.out.splitlines()
    assert " is complete: " in last
    return [line for line in lines if "record" not in line]


def refuse(tfpipe: Tfpipe, *args: object) -> tuple[int, str]:
    """Returns the exit code and the last line of a job that is refused."""
    done = tfpipe("shard", *args)
    assert "Traceback" not in done.err
    return done.code, done.err.splitlines()[-1]


def read(dataset: str, name: str, split: str = "train") -> list[Any]:
    """Returns the values of a feature in the order of the names of the images."""
    records = {bytes(record["image/filename"][0]): record[name] for record in read_records(Path(dataset), split)}
    return [list(records[image]) for image in sorted(records)]


def test_a_csv_with_the_column_class(images: list[str], tfpipe: Tfpipe) -> None:
    write_csv("t.csv", ("image", "class", "price"), [*zip(images, CLASSES, range(4), strict=True)])
    reason = "no column `label` (found: class, price); use --label-column class"
    assert shard(tfpipe, "t.csv", "out") == [f"no classes: {reason}", "columns: class, price"]
    named = ("t.csv", "named", "--label-column", "class")
    assert shard(tfpipe, *named) == ["classes: 3 (cat 2, dog 1, owl 1)", "columns: price"]
    assert f"no classes: {reason}" in tfpipe("shard", "t.csv", "new", "--dry-run").lines
    done = tfpipe("shard", "t.csv", "out", "--json").json
    assert (done["classes"], done["columns"], done["first_quarantined"]) == ({}, ["class", "price"], [])
    assert done["no_classes"] == reason
    done = tfpipe("shard", *named, "--json").json
    assert (done["classes"], done["no_classes"]) == ({"cat": 2, "dog": 1, "owl": 1}, None)


def test_a_flat_folder(images: list[str], tmp_path: Path, tfpipe: Tfpipe) -> None:
    assert shard(tfpipe, tmp_path, tmp_path.parent / f"{tmp_path.name}-out") == [FOLDER]


def test_more_classes_than_fit_in_a_line(images: list[str], tfpipe: Tfpipe) -> None:
    rows = [(images[k % 4], f"c{k}") for k in range(8)]
    lines = shard(tfpipe, write_csv("t.csv", ("image", "label"), rows), "out")
    assert lines[0] == "classes: 8 (c0 1, c1 1, c2 1, c3 1, c4 1, and 3 more)"


def test_a_table_beside_images_is_named(images: list[str], tmp_path: Path, tfpipe: Tfpipe) -> None:
    Path("metadata.jsonl").write_text("".join(json.dumps({"file_name": name, "text": "a"}) + "\n" for name in images))
    out, path = tmp_path.parent / f"{tmp_path.name}-out", tmp_path / "metadata.jsonl"
    assert shard(tfpipe, tmp_path, out)[0] == (
        f"no classes: the images lie in no class folders; shard the table {path} with --image-column file_name"
    )
    lines = shard(tfpipe, path, f"{out}-2", "--image-column", "file_name")
    assert lines[1] == "columns: text"
    Path("train").mkdir()
    inner = path.rename(tmp_path / "train" / path.name)
    assert shard(tfpipe, tmp_path, f"{out}-3")[0].endswith(f"shard the table {inner} with --image-column file_name")
    inner.rename(tmp_path / "labels.csv")
    assert shard(tfpipe, tmp_path, f"{out}-4")[0] == (
        f"no classes: the images lie in no class folders; if {tmp_path}/labels.csv names them and their classes, shard "
        "that table in place of the folder"
    )


def test_classes_that_differ_only_in_case_are_named(images: list[str], tfpipe: Tfpipe) -> None:
    differ = "differ only in case, white space or Unicode form."
    for k, (labels, message) in enumerate(
        (
            (("Owl", "owl", "cat", "owl"), f"Classes 'Owl' and 'owl' {differ}"),
            (("Owl", "owl", "polar bear", "polarbear"), f"Classes 'Owl' and 'owl' {differ} There are 1 more such."),
            (("\xfc", "u\u0308", "a", "b"), f"Classes 'u\\u0308' and '\\xfc' {differ}"),
        )
    ):
        write_csv("t.csv", ("image", "label"), [*zip(images, labels, strict=True)])
        done = tfpipe("shard", "t.csv", f"out{k}")
        assert (done.code, done.err.splitlines()[1]) == (0, message)


def test_an_empty_column_of_labels(images: list[str], tfpipe: Tfpipe) -> None:
    write_csv("t.csv", ("image", "label", "class"), [(image, "", "a") for image in images])
    assert shard(tfpipe, "t.csv", "out")[0] == "no classes: column `label` is empty"


def test_columns_of_other_names(images: list[str], tfpipe: Tfpipe) -> None:
    folds = ("train", "val", "train", "test")
    rows = [*zip(images, CLASSES, folds, ("one", "two", "three", ""), range(4), strict=True)]
    write_csv("t.csv", ("path", "class", "fold", "text", "label"), rows)
    assert refuse(tfpipe, "t.csv", "out") == (
        1,
        "Error: t.csv must have a column 'image', got path, class, fold, text, label. Say which one holds the images "
        "with --image-column.",
    )
    Path("images").mkdir()
    names = ("--image-column", "path", "--label-column", "class", "--split-column", "fold")
    assert shard(tfpipe, "t.csv", "out", *names, "--caption-column", "text") == [
        "classes: 3 (cat 2, dog 1, owl 1)",
        "columns: caption, label_",
    ]
    assert list(package.load_manifest("out").splits) == ["test", "train", "validation"]
    assert read("out", "caption") == [[b"one"], [b"three"]]
    for source, options, message in (
        (
            *("t.csv", "--image-column file"),
            "--image-column must name a column of t.csv (path, class, fold, text, label), got 'file'.",
        ),
        (
            *("t.csv", "--image-column path --label-column path"),
            "Each column must have one meaning, but two options name 'path'.",
        ),
        ("images", "--label-column class", "--label-column is for tables (CSV, TSV, JSONL or Parquet), got images."),
    ):
        assert refuse(tfpipe, source, "new", *options.split()) == (2, f"Error: {message}")


def test_columns_of_parquet_files_that_hold_the_images(images: list[str], tfpipe: Tfpipe, tmp_path: Path):
    data = [Path(name).read_bytes() for name in images]
    folds, texts, prices = ["train", "dev", "valid", "train"], ["a", "b", "c", "d"], [1, 2, 3, 4]
    columns = {"label": ["x"] * 4, "photo": data, "kind": CLASSES, "fold": folds, "text": texts, "price": prices}
    pyarrow.parquet.write_table(pyarrow.table(columns), "t.parquet")
    named = ("--image-column", "photo", "--label-column", "kind", "--split-column", "fold", "--caption-column", "text")
    named += ("--target-column", "price")
    options = ("--num-shards", 4, "--drop-duplicates")  # which reads the images a second time
    assert shard(tfpipe, "t.parquet", "out", *named, *options) == [
        "classes: 3 (cat 2, dog 1, owl 1)",
        "columns: caption, target, label_",
    ]
    assert list(package.load_manifest("out").splits) == ["train", "validation"]
    assert read("out", "image/class/text") == [[b"cat"], [b"owl"]]
    assert (read("out", "caption"), read("out", "target")) == ([[b"a"], [b"d"]], [[1.0], [4.0]])
    Path("folder").mkdir()
    Path("t.parquet").rename("folder/t.parquet")
    must = "must name a column of folder/t.parquet (label, photo, kind, fold, text, price), got"
    code, message = refuse(tfpipe, "folder", "new", "--image-column", "pixels")
    assert (code, message) == (2, f"Error: --image-column {must} 'pixels'.")
    code, message = refuse(tfpipe, "folder", "new", "--image-column", "photo", "--label-column", "class")
    assert (code, message) == (2, f"Error: --label-column {must} 'class'.")


def test_another_column_is_another_job(images: list[str], tfpipe: Tfpipe) -> None:
    write_csv("t.csv", ("image", "a", "b"), [(image, "x", "x") for image in images])
    shard(tfpipe, "t.csv", "out", "--label-column", "a")
    code, message = refuse(tfpipe, "t.csv", "out", "--label-column", "b")
    assert code == 2
    assert message.startswith("Error: out holds a dataset made from other images, with other options")


def test_one_name_in_the_options_too(images: list[str], tmp_path: Path, tfpipe: Tfpipe) -> None:
    for k in range(4, 40):
        Path(f"{k}.jpg").write_bytes(make_jpeg(k))
    out = tmp_path.parent / f"{tmp_path.name}-out"
    shard(tfpipe, tmp_path, out, "--splits", "train=0.5,val=0.25,dev=0.25")
    assert list(package.load_manifest(str(out)).splits) == ["train", "validation"]


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "embedded"])
def test_several_labels(form: str, images: list[str], tfpipe: Tfpipe, tmp_path: Path) -> None:
    tags = [["red", "round"], [], ["round"], ["blue"]]
    options: list[str] = []
    if form == "csv":
        rows = [(image, "; ".join(each)) for image, each in zip(images, tags, strict=True)]
        source = write_csv("t.csv", ("image", "tags"), rows)
        options = ["--label-separator", ";"]
    elif form == "jsonl":
        source = "t.jsonl"
        lines = [json.dumps({"image": image, "tags": each}) for image, each in zip(images, tags, strict=True)]
        Path(source).write_text("\n".join(lines))
    elif form == "parquet":
        source = "t.parquet"
        pyarrow.parquet.write_table(pyarrow.table({"image": images, "tags": tags}), source)
    else:
        source = "t.parquet"
        write_parquet(tmp_path / source, [Path(name).read_bytes() for name in images], tags=tags)
    lines = shard(tfpipe, source, "out", "--label-column", "tags", *options)
    assert lines == ["classes: 3 (blue 1, red 1, round 2)", "columns: labels"]
    assert read("out", "labels") == [[1, 2], [], [2], [0]]
    spec = package.load_manifest("out").schema["labels"]
    assert (spec.names, spec.shape) == (("blue", "red", "round"), None)


def test_several_labels_where_one_is_expected(images: list[str], tfpipe: Tfpipe) -> None:
    lines = [json.dumps({"image": image, "label": label}) for image, label in zip(images, ["a", ["b"]], strict=False)]
    Path("t.jsonl").write_text("\n".join(lines))
    assert refuse(tfpipe, "t.jsonl", "out") == (
        1,
        "Error: t.jsonl, row 2: 'label' must be a name or a number from 0, got ['b']. Allow several with "
        "--label-separator.",
    )
    assert shard(tfpipe, "t.jsonl", "out", "--label-separator", ";")[0] == "classes: 2 (a 1, b 1)"


def test_the_target_of_a_regression(images: list[str], tfpipe: Tfpipe) -> None:
    write_csv("t.csv", ("image", "label", "price"), [*zip(images, CLASSES, (1, 2, 3, 4), strict=True)])
    shard(tfpipe, "t.csv", "out", "--target-column", "price")
    spec = package.load_manifest("out").schema["target"]
    assert (spec.dtype, spec.shape) == ("float", ())
    assert read("out", "target") == [[1.0], [2.0], [3.0], [4.0]]
    write_csv("t.csv", ("image", "kind", "price"), [*zip(images, CLASSES, (1, 2, 3, 4), strict=True)])
    assert shard(tfpipe, "t.csv", "unlabeled", "--target-column", "price") == ["columns: kind, target"]
    for price, message in (
        ("dear", "Error: u.csv, row 2: the target 'price' must be a number, got 'dear'."),
        ("", "Error: u.csv: the target 'price' must be one number in every row."),
    ):
        write_csv("u.csv", ("image", "price"), [(images[0], 1), (images[1], price)])
        assert refuse(tfpipe, "u.csv", "new", "--target-column", "price") == (1, message)


def test_half_of_the_images_missing(images: list[str], tfpipe: Tfpipe) -> None:
    write_csv("t.csv", ("image", "label"), [(name, "x") for name in [*images, "e.jpg", "d.jpg", "c.jpg", "b.jpg"]])
    assert refuse(tfpipe, "t.csv", "out") == (
        1,
        "Error: t.csv names 8 images, and 4 of their files do not exist, such as b.jpg, c.jpg, d.jpg. Correct the "
        "paths, or leave these images out with --allow-missing.",
    )
    assert not Path("out").exists()
    lines = shard(tfpipe, "t.csv", "out", "--allow-missing")
    assert lines[:2] == ["classes: 1 (x 4)", "quarantined: 4, listed in quarantine/quarantined.jsonl"]
    assert [line.partition(": ")[2] for line in lines[2:]] == ["cannot be read: No such file or directory"]


def test_a_few_bad_images_of_a_small_dataset(images: list[str], tfpipe: Tfpipe) -> None:
    Path("0.jpg").write_bytes(b"no image")
    write_csv("t.csv", ("image", "label"), [(name, "x") for name in images])
    lines = shard(tfpipe, "t.csv", "out")
    assert lines[1] == "quarantined: 1, listed in quarantine/quarantined.jsonl"
    assert lines[2].startswith("  0.jpg: ")
    first = json.loads(tfpipe("shard", "t.csv", "out", "--json").out)["first_quarantined"]
    assert [line["path"] for line in first] == ["0.jpg"]
    Path("1.jpg").write_bytes(b"no image")
    done = tfpipe("shard", "t.csv", "new")
    *_, message, page = done.err.splitlines()
    assert done.code == 1
    assert message.startswith("Error: At most 1 of 4 images may be bad, got 2, the first ")
    assert page == "More: tfpipe help damaged-data#images-that-are-broken"


def test_formats_that_need_an_extra(images: list[str]) -> None:
    heads = {"a.heic": b"\0\0\0\x18ftypheic", "b.heic": b"\0\0\0\x18ftypmif1", "c.jxl": b"\xff\x0a"}
    for name, head in heads.items():
        Path(name).write_bytes(head)
    write_csv("t.csv", ("image", "label"), [(name, "x") for name in (*images, *heads)])
    Path("hidden").mkdir()
    Path("hidden/sitecustomize.py").write_text("import sys\nsys.modules.update(pillow_heif=None)\n")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((os.path.abspath("hidden"), os.environ["PYTHONPATH"]))}
    command = [sys.executable, *"-m tfpipe shard t.csv out --max-bad 3 --no-shuffle --workers 1".split()]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert [line for line in done.stdout.splitlines() if line.startswith(("quarantined", "  "))] == [
        "quarantined: 3, listed in quarantine/quarantined.jsonl",
        "  a.heic: a HEIC image, which needs pillow-heif: pip install '.[heif]' in a checkout of tfpipe",
        "  c.jxl: a JPEG XL, which is not read; convert it to PNG",
    ]


@pytest.mark.parametrize(("name", "delimiter"), [("t.csv", ";"), ("t.csv", "\t"), ("t.tsv", "\t")])
def test_other_separators(name: str, delimiter: str, images: list[str], tfpipe: Tfpipe) -> None:
    write_csv(name, ("image", "label", "price"), [*zip(images, CLASSES, range(4), strict=True)], delimiter)
    assert shard(tfpipe, name, "out") == ["classes: 3 (cat 2, dog 1, owl 1)", "columns: price"]
    assert read("out", "price") == [[0], [1], [2], [3]]
