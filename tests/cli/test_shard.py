"""`tfpipe shard`, `reshard` and `merge` as a user runs them: nothing of the data is lost without a word."""

import json
import re
import tarfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

import tfpipe as package
from beam_jobs.runners.base import GraphWritten
from tests.beam_jobs.commands import Ran, run_python
from tests.beam_jobs.datasets import read_records
from tests.beam_jobs.images import make_jpeg
from tests.beam_jobs.inputs.parquet_files import write_parquet
from tests.conftest import PATH_OF_REPOSITORY, ROOT, Tfpipe
from tfpipe.native import library
from tfpipe.system.units import human_bytes

SAMPLE = ROOT / "sample_data"
SHARD = "train-00000-of-00001.tfrecord"


@pytest.fixture
def shard(tfpipe):
    return partial(tfpipe, "shard")


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> tuple[Path, Ran]:
    """The README's first command, without its installation: a process of its own."""
    out = tmp_path_factory.mktemp("first") / "shapes"
    return out, run_python("-m", "tfpipe", "shard", SAMPLE, out)


@pytest.fixture(scope="module")
def shapes(first: tuple[Path, Ran]) -> Path:
    return first[0]


def test_the_sample_data(first: tuple[Path, Ran]) -> None:
    out, done = first
    assert done.returncode == 0
    assert done.stderr.splitlines()[0] == "150 images, 575.2 KB, 1 shard (train)"  # a slow machine adds its progress
    *lines, last = done.stdout.splitlines()
    assert lines == [
        f"train: 149 records, 1 shard, {human_bytes((out / SHARD).stat().st_size)}",  # depends on Pillow's version
        "classes: 3 (circle 50, square 49, triangle 50)",
        "changed: 1 alpha_composited, 1 cmyk_to_rgb, 1 eoi_appended, 1 exif_rotated",
        "quarantined: 1, listed in quarantine/quarantined.jsonl",
        "  square/square-cut-in-half.jpg: truncated JPEG",
        "skipped: 1 *.md, 1 *.py, 1 *.txt",
    ]
    assert last.startswith(f"{out} is complete: ")


def test_run_again_says_what_was_kept_and_all_of_it_as_json(shapes: Path, shard) -> None:
    result = shard(SAMPLE, shapes, "--json").ok.json
    assert result.pop("seconds") > 0
    assert result.pop("images_per_second") > 0
    assert result == {
        "dataset": str(shapes),
        "splits": {"train": {"records": 149, "shards": 1, "bytes": (shapes / SHARD).stat().st_size}},
        "classes": {"circle": 50, "square": 49, "triangle": 50},
        "no_classes": None,
        "columns": [],
        "quarantined": 1,
        "first_quarantined": [{"path": "square/square-cut-in-half.jpg", "reason": "truncated JPEG"}],
        "changed": {"alpha_composited": 1, "cmyk_to_rgb": 1, "eoi_appended": 1, "exif_rotated": 1},
        "duplicates": {"within": {}, "across": 0, "dropped": 0},
        "skipped": {"*.md": 1, "*.py": 1, "*.txt": 1},
        "kept_shards": 1,
    }
    assert shard(SAMPLE, shapes).ok.lines[-1].endswith(", 1 shard finished before")


def test_dry_run_writes_nothing(tmp_path: Path, shard) -> None:
    done = shard(SAMPLE, tmp_path / "out", "--dry-run", "--splits", "train=0.75,test=0.25", "--num-shards", 2)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[:-3] == [
        "150 images, 575.2 KB, nothing written",
        "train: 106 images, 349.4 KB, 2 shards",
        "classes: 3 (square 39, circle 35, triangle 32)",
        "test: 44 images, 225.8 KB, 2 shards",
        "classes: 3 (triangle 18, circle 15, square 11)",
        "skipped: 1 *.md, 1 *.py, 1 *.txt",
    ]
    head, output, time = done.out.splitlines()[-3:]
    assert head == "estimate from 150 images of 150, 1 of them bad:"
    assert output == "  output  619.7 KB"
    assert re.fullmatch(r"  time    \d:\d\d with \d+ workers?", time)
    plan = shard(SAMPLE, tmp_path / "out", "--dry-run", "--json").json
    estimate, classes = plan.pop("estimate"), dict.fromkeys(("circle", "square", "triangle"), 50)
    assert set(estimate) == {"sampled", "bad", "output_bytes", "wall_s", "workers"}
    assert (estimate["sampled"], estimate["bad"]) == (150, 1)
    split = {"images": 150, "bytes": plan["bytes"], "shards": 1, "classes": classes}
    skipped = {"*.md": 1, "*.py": 1, "*.txt": 1}
    assert plan.items() >= {"images": 150, "shards": 1, "no_classes": None, "dropped": 0}.items()
    assert (plan["splits"], plan["skipped"], len(plan)) == ({"train": split}, skipped, 7)
    assert list(tmp_path.iterdir()) == []


def test_what_is_compressed_as_a_whole_has_a_plan_without_an_estimate(shard, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "in.tgz", "w:gz") as archive:
        archive.add(SAMPLE, "in")
    done = shard(tmp_path / "in.tgz", tmp_path / "out", "--dry-run")
    assert done.out.splitlines()[0].startswith("150 images, ")
    assert done.out.splitlines()[-1] == (
        "no estimate: the input is compressed as a whole, so no sample of its images can be read alone"
    )
    assert shard(tmp_path / "in.tgz", tmp_path / "out", "--dry-run", "--json").json["estimate"] is None
    assert not (tmp_path / "out").exists()


def test_a_checkout_that_was_not_installed(tmp_path: Path, tfpipe: Tfpipe, monkeypatch) -> None:
    monkeypatch.setattr(library, "_PATH", tmp_path / "nothing.so")
    library.load.cache_clear()
    done = tfpipe("shard", SAMPLE, tmp_path / "out")
    assert (done.code, done.out) == (1, "")
    assert done.err == "Error: tfpipe's native library is not there: install the checkout with `pip install -e .`.\n"
    assert list(tmp_path.iterdir()) == []


def test_a_graph_that_a_service_will_run_is_no_error(shard, monkeypatch) -> None:
    def run(*_: object) -> None:
        raise GraphWritten("The graph is written.")

    monkeypatch.setattr("beam_jobs.shard_job.run", run)
    assert shard("gs://i", "gs://o")[:2] == (0, "The graph is written.\n")
    assert shard("gs://i", "gs://o", "--json").json == {"dataset": "gs://o", "message": "The graph is written."}


def test_a_job_in_parts(shapes: Path, shard, tmp_path: Path) -> None:
    out = tmp_path / "shapes"
    planned = shard(SAMPLE, out, "--plan-only")
    assert planned.out == "The plan is written; --part K/N writes its 1 shard.\n"
    assert not (out / SHARD).exists()
    done = shard(SAMPLE, out, "--part", "1/2", "--workers", 1)
    assert re.fullmatch(rf"part 1/2 wrote 1 shard in \d+\.\d s; {out} is complete\n", done.out)
    assert (out / SHARD).read_bytes() == (shapes / SHARD).read_bytes()
    late = json.loads(shard(SAMPLE, out, "--part", "0/2", "--json").out)
    assert late.pop("seconds") >= 0
    expected = {"dataset": str(out), "part": "0/2", "written": 0, "finished": 0, "num_shards": 0, "is_complete": True}
    assert late == expected


@pytest.mark.parametrize(
    ("environment", "value", "part"),
    [
        ({"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_COUNT": "4"}, "auto", "7/4"),
        ({"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "4"}, "auto/8", "3/8"),
        ({"JOB_COMPLETION_INDEX": "0"}, "auto/3", "0/3"),
    ],
)
def test_a_scheduler_names_the_part(shard, tmp_path, monkeypatch, environment, value: str, part: str) -> None:
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    shard(SAMPLE, tmp_path / "out", "--plan-only")
    assert shard(SAMPLE, tmp_path / "out", "--part", value, "--workers", 1).out.startswith(f"part {part} wrote 1 shard")


def test_more_shards(shapes: Path, tmp_path: Path, tfpipe) -> None:
    result = tfpipe("reshard", shapes, tmp_path / "out", "--num-shards", 4, "--json").ok.json
    num_bytes = sum(path.stat().st_size for path in shapes.glob("*.tfrecord"))
    assert result["splits"] == {"train": {"records": 149, "shards": 4, "bytes": num_bytes}}
    assert result["classes"] == {"circle": 50, "square": 49, "triangle": 50}
    assert result["changed"] == {"alpha_composited": 1, "cmyk_to_rgb": 1, "eoi_appended": 1, "exif_rotated": 1}
    assert (result["quarantined"], result["first_quarantined"], result["skipped"]) == (0, [], {})


def test_smaller_images(shapes: Path, tmp_path: Path, tfpipe) -> None:
    done = tfpipe("reshard", shapes, tmp_path / "out", "--square", 16, "--encoding", "raw", "--quality", 80).ok
    assert any(line.startswith("changed: ") and ", 149 resized" in line for line in done.lines)
    image = json.loads((tmp_path / "out" / "manifest.json").read_text())["image"]
    assert [image[name] for name in ("encoding", "square", "quality", "reencode_progressive")] == ["raw", 16, 80, False]
    assert tfpipe("reshard", tmp_path / "out", tmp_path / "smaller", "--square", 8).ok
    shown = tfpipe("inspect", tmp_path / "smaller").out
    assert "made from: encoding raw, square 16, quality 80" in " ".join(shown.split())


def test_foreign_files_without_a_feature(foreign, tmp_path: Path, tfpipe) -> None:
    files = foreign.imagenet(tmp_path / "files", "GZIP")
    assert tfpipe("index", files).code == 0
    done = tfpipe("reshard", files, tmp_path / "out", "--drop-feature", "id", "--num-shards", 2).ok
    assert [line.split(",")[0] for line in done.lines[:2]] == ["train: 40 records", "validation: 7 records"]
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["format_version"] == 1
    assert "id" not in [feature["name"] for feature in manifest["schema"]["features"]]
    assert tfpipe("verify", tmp_path / "out").code == 0
    done = tfpipe("reshard", files, tmp_path / "other", "--drop-feature", "id", "--drop-feature", "image/class/label")
    assert (done.code, done.out) == (2, "")
    assert " ".join(done.err.split()).endswith(
        "Error: --drop-feature must name features that can be left out (id), got 'image/class/label', which every "
        "dataset of images needs."
    )


def test_one_dataset_is_merged_twice(shapes: Path, tmp_path: Path, tfpipe) -> None:
    result = tfpipe("merge", shapes, shapes, tmp_path / "out", "--num-shards", 2, "--json", "--workers", 1).ok.json
    assert result["splits"]["train"]["records"] == 298
    assert result["duplicates"] == {"within": {"train": 149}, "across": 0, "dropped": 0}
    code, out, err = tfpipe("merge", shapes, shapes, tmp_path / "less", "--drop-duplicates", "--dry-run")
    assert (code, err) == (0, "")
    lines = out.splitlines()[:-3]
    assert lines[2] == "classes: 3 (circle 50, triangle 50, square 49)"
    assert lines[-1] == "duplicates: 149 dropped"


CLASSES = ("cat", "dog", "cat", "owl")


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


def make(shard, *args: object) -> list[str]:
    """Returns the lines that a job without a fault prints, but the last."""
    *lines, last = shard(*args).ok.out.splitlines()
    assert " is complete: " in last
    return [line for line in lines if "record" not in line]


def refuse(shard, *args: object) -> tuple[int, str]:
    """Returns the exit code and the last line of a job that is refused."""
    done = shard(*args)
    assert "Traceback" not in done.err
    return done.code, done.err.splitlines()[-1]


def read(dataset: str, name: str, split: str = "train") -> list[Any]:
    """Returns the values of a feature in the order of the names of the images."""
    records = {bytes(record["image/filename"][0]): record[name] for record in read_records(Path(dataset), split)}
    return [list(records[image]) for image in sorted(records)]


def test_a_csv_with_the_column_class(images: list[str], shard) -> None:
    write_csv("t.csv", ("image", "class", "price"), [*zip(images, CLASSES, range(4), strict=True)])
    reason = "no column `label` (found: class, price); use --label-column class"
    assert make(shard, "t.csv", "out") == [f"no classes: {reason}", "columns: class, price"]
    named = ("t.csv", "named", "--label-column", "class")
    assert make(shard, *named) == ["classes: 3 (cat 2, dog 1, owl 1)", "columns: price"]
    assert f"no classes: {reason}" in shard("t.csv", "new", "--dry-run").lines
    done = shard("t.csv", "out", "--json").json
    assert (done["classes"], done["columns"], done["first_quarantined"]) == ({}, ["class", "price"], [])
    assert done["no_classes"] == reason
    done = shard(*named, "--json").json
    assert (done["classes"], done["no_classes"]) == ({"cat": 2, "dog": 1, "owl": 1}, None)


def test_a_folder_without_classes_names_what_gives_them(images: list[str], tmp_path: Path, shard) -> None:
    out, path = tmp_path.parent / f"{tmp_path.name}-out", tmp_path / "metadata.jsonl"
    assert make(shard, tmp_path, f"{out}-0") == [
        "no classes: the images lie in no class folders; put those of each class into a folder of its name, such as "
        "cat/1.jpg and dog/2.jpg"
    ]
    path.write_text("".join(json.dumps({"file_name": name, "text": "a"}) + "\n" for name in images))
    assert make(shard, tmp_path, out)[0] == (
        f"no classes: the images lie in no class folders; shard the table {path} with --image-column file_name"
    )
    lines = make(shard, path, f"{out}-2", "--image-column", "file_name")
    assert lines[1] == "columns: text"
    Path("train").mkdir()
    inner = path.rename(tmp_path / "train" / path.name)
    assert make(shard, tmp_path, f"{out}-3")[0].endswith(f"shard the table {inner} with --image-column file_name")
    inner.rename(tmp_path / "labels.csv")
    assert make(shard, tmp_path, f"{out}-4")[0] == (
        f"no classes: the images lie in no class folders; if {tmp_path}/labels.csv names them and their classes, shard "
        "that table in place of the folder"
    )


def test_classes_that_differ_only_in_case_are_named(images: list[str], shard) -> None:
    differ = "differ only in case, white space or Unicode form."
    for k, (labels, message) in enumerate(
        (
            (("Owl", "owl", "cat", "owl"), f"Classes 'Owl' and 'owl' {differ}"),
            (("Owl", "owl", "polar bear", "polarbear"), f"Classes 'Owl' and 'owl' {differ} There are 1 more such."),
            (("\xfc", "u\u0308", "a", "b"), f"Classes 'u\\u0308' and '\\xfc' {differ}"),
        )
    ):
        write_csv("t.csv", ("image", "label"), [*zip(images, labels, strict=True)])
        done = shard("t.csv", f"out{k}")
        assert (done.code, done.err.splitlines()[1]) == (0, message)


def test_an_empty_column_of_labels(images: list[str], shard) -> None:
    write_csv("t.csv", ("image", "label", "class"), [(image, "", "a") for image in images])
    assert make(shard, "t.csv", "out")[0] == "no classes: column `label` is empty"


def test_columns_of_other_names(images: list[str], shard) -> None:
    folds = ("train", "val", "train", "test")
    rows = [*zip(images, CLASSES, folds, ("one", "two", "three", ""), range(4), strict=True)]
    write_csv("t.csv", ("path", "class", "fold", "text", "label"), rows)
    assert refuse(shard, "t.csv", "out") == (
        1,
        "Error: t.csv must have a column 'image', got path, class, fold, text, label. Say which one holds the images "
        "with --image-column.",
    )
    Path("images").mkdir()
    names = ("--image-column", "path", "--label-column", "class", "--split-column", "fold")
    assert make(shard, "t.csv", "out", *names, "--caption-column", "text") == [
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
        assert refuse(shard, source, "new", *options.split()) == (2, f"Error: {message}")


def test_columns_of_parquet_files_that_hold_the_images(images: list[str], shard, tmp_path: Path):
    data = [Path(name).read_bytes() for name in images]
    folds, texts, prices = ["train", "dev", "valid", "train"], ["a", "b", "c", "d"], [1, 2, 3, 4]
    columns = {"label": ["x"] * 4, "photo": data, "kind": CLASSES, "fold": folds, "text": texts, "price": prices}
    pyarrow.parquet.write_table(pyarrow.table(columns), "t.parquet")
    named = ("--image-column", "photo", "--label-column", "kind", "--split-column", "fold", "--caption-column", "text")
    named += ("--target-column", "price")
    options = ("--num-shards", 4, "--drop-duplicates")  # which reads the images a second time
    assert make(shard, "t.parquet", "out", *named, *options) == [
        "classes: 3 (cat 2, dog 1, owl 1)",
        "columns: caption, target, label_",
    ]
    assert list(package.load_manifest("out").splits) == ["train", "validation"]
    assert read("out", "image/class/text") == [[b"cat"], [b"owl"]]
    assert (read("out", "caption"), read("out", "target")) == ([[b"a"], [b"d"]], [[1.0], [4.0]])
    Path("folder").mkdir()
    Path("t.parquet").rename("folder/t.parquet")
    must = "must name a column of folder/t.parquet (label, photo, kind, fold, text, price), got"
    code, message = refuse(shard, "folder", "new", "--image-column", "pixels")
    assert (code, message) == (2, f"Error: --image-column {must} 'pixels'.")
    code, message = refuse(shard, "folder", "new", "--image-column", "photo", "--label-column", "class")
    assert (code, message) == (2, f"Error: --label-column {must} 'class'.")


def test_another_column_is_another_job(images: list[str], shard) -> None:
    write_csv("t.csv", ("image", "a", "b"), [(image, "x", "x") for image in images])
    make(shard, "t.csv", "out", "--label-column", "a")
    code, message = refuse(shard, "t.csv", "out", "--label-column", "b")
    assert code == 2
    assert message.startswith("Error: out holds a dataset made from other images, with other options")


def test_one_name_in_the_options_too(images: list[str], tmp_path: Path, shard) -> None:
    for k in range(4, 40):
        Path(f"{k}.jpg").write_bytes(make_jpeg(k))
    out = tmp_path.parent / f"{tmp_path.name}-out"
    make(shard, tmp_path, out, "--splits", "train=0.5,val=0.25,dev=0.25")
    assert list(package.load_manifest(str(out)).splits) == ["train", "validation"]


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "embedded"])
def test_several_labels(form: str, images: list[str], shard, tmp_path: Path) -> None:
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
    lines = make(shard, source, "out", "--label-column", "tags", *options)
    assert lines == ["classes: 3 (blue 1, red 1, round 2)", "columns: labels"]
    assert read("out", "labels") == [[1, 2], [], [2], [0]]
    spec = package.load_manifest("out").schema["labels"]
    assert (spec.names, spec.shape) == (("blue", "red", "round"), None)


def test_several_labels_where_one_is_expected(images: list[str], shard) -> None:
    lines = [json.dumps({"image": image, "label": label}) for image, label in zip(images, ["a", ["b"]], strict=False)]
    Path("t.jsonl").write_text("\n".join(lines))
    assert refuse(shard, "t.jsonl", "out") == (
        1,
        "Error: t.jsonl, row 2: 'label' must be a name or a number from 0, got ['b']. Allow several with "
        "--label-separator.",
    )
    assert make(shard, "t.jsonl", "out", "--label-separator", ";")[0] == "classes: 2 (a 1, b 1)"


def test_the_target_of_a_regression(images: list[str], shard) -> None:
    write_csv("t.csv", ("image", "label", "price"), [*zip(images, CLASSES, (1, 2, 3, 4), strict=True)])
    make(shard, "t.csv", "out", "--target-column", "price")
    spec = package.load_manifest("out").schema["target"]
    assert (spec.dtype, spec.shape) == ("float", ())
    assert read("out", "target") == [[1.0], [2.0], [3.0], [4.0]]
    write_csv("t.csv", ("image", "kind", "price"), [*zip(images, CLASSES, (1, 2, 3, 4), strict=True)])
    assert make(shard, "t.csv", "unlabeled", "--target-column", "price") == ["columns: kind, target"]
    for price, message in (
        ("dear", "Error: u.csv, row 2: the target 'price' must be a number, got 'dear'."),
        ("", "Error: u.csv: the target 'price' must be one number in every row."),
    ):
        write_csv("u.csv", ("image", "price"), [(images[0], 1), (images[1], price)])
        assert refuse(shard, "u.csv", "new", "--target-column", "price") == (1, message)


def test_half_of_the_images_missing(images: list[str], shard) -> None:
    write_csv("t.csv", ("image", "label"), [(name, "x") for name in [*images, "e.jpg", "d.jpg", "c.jpg", "b.jpg"]])
    assert refuse(shard, "t.csv", "out") == (
        1,
        "Error: t.csv names 8 images, and 4 of their files do not exist, such as b.jpg, c.jpg, d.jpg. Correct the "
        "paths, or leave these images out with --allow-missing.",
    )
    assert not Path("out").exists()
    lines = make(shard, "t.csv", "out", "--allow-missing")
    assert lines[:2] == ["classes: 1 (x 4)", "quarantined: 4, listed in quarantine/quarantined.jsonl"]
    assert [line.partition(": ")[2] for line in lines[2:]] == ["cannot be read: No such file or directory"]


def test_a_few_bad_images_of_a_small_dataset(images: list[str], shard) -> None:
    Path("0.jpg").write_bytes(b"no image")
    write_csv("t.csv", ("image", "label"), [(name, "x") for name in images])
    lines = make(shard, "t.csv", "out")
    assert lines[1] == "quarantined: 1, listed in quarantine/quarantined.jsonl"
    assert lines[2].startswith("  0.jpg: ")
    first = json.loads(shard("t.csv", "out", "--json").out)["first_quarantined"]
    assert [line["path"] for line in first] == ["0.jpg"]
    Path("1.jpg").write_bytes(b"no image")
    done = shard("t.csv", "new")
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
    command = "-m tfpipe shard t.csv out --max-bad 3 --no-shuffle --workers 1".split()
    done = run_python(*command, cwd=Path.cwd(), PYTHONPATH=f"{Path.cwd()}/hidden:{PATH_OF_REPOSITORY}")
    assert [line for line in done.stdout.splitlines() if line.startswith(("quarantined", "  "))] == [
        "quarantined: 3, listed in quarantine/quarantined.jsonl",
        "  a.heic: a HEIC image, which needs pillow-heif: pip install '.[heif]' in a checkout of tfpipe",
        "  c.jxl: a JPEG XL, which is not read; convert it to PNG",
    ]


@pytest.mark.parametrize(("name", "delimiter"), [("t.csv", ";"), ("t.csv", "\t"), ("t.tsv", "\t")])
def test_other_separators(name: str, delimiter: str, images: list[str], shard) -> None:
    write_csv(name, ("image", "label", "price"), [*zip(images, CLASSES, range(4), strict=True)], delimiter)
    assert make(shard, name, "out") == ["classes: 3 (cat 2, dog 1, owl 1)", "columns: price"]
    assert read("out", "price") == [[0], [1], [2], [3]]
