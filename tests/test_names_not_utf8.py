r"""Classes whose names are not UTF-8 keep their bytes through every command, and no output has a U+FFFD for one.

Python has such a byte as `\udce9`, and so do manifests, `--json` and the terminal.
"""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.beam_jobs.datasets import make_dataset, read_records
from tests.beam_jobs.images import make_jpeg, write_files
from tests.conftest import Tfpipe
from tests.export.datasets import write_foreign
from tfpipe.dataset.load import load_manifest
from tfpipe.integrity.verify import VerifyConfig, verify

NAMES = (b"caf\xe8", b"caf\xe9", b"\xc4\xe3", b"\xc3\xa8re", b"dog")  # Latin-1 twice, GBK, UTF-8 and ASCII
TEXTS = tuple(sorted(map(os.fsdecode, NAMES)))
LOST = "\N{REPLACEMENT CHARACTER}"


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    files = {f"{name}/{name}{k}.jpg": make_jpeg(3 * n + k) for n, name in enumerate(TEXTS) for k in range(2)}
    return write_files(tmp_path_factory.mktemp("source") / "in", files)


@pytest.fixture(scope="module")
def named(source: Path) -> Path:
    """A dataset of 2 images a class. Not to be changed: copy it."""
    make_dataset(source, source.parent / "named", num_shards=2, workers=1)
    return source.parent / "named"


def read_classes(dataset: Path) -> list[tuple[int, bytes]]:
    """Returns the class and its text of each record, and checks that the manifest and the records agree."""
    names, found = load_manifest(str(dataset)).label_names, []
    for record in read_records(dataset):
        (label,), (text,) = record["image/class/label"].tolist(), record["image/class/text"]
        assert os.fsencode(names[label]) == text
        found.append((label, text))
    return sorted(found)


EXPECTED = sorted((TEXTS.index(os.fsdecode(name)), name) for name in NAMES * 2)


def check_no_loss(folder: Path) -> None:
    for path in folder.rglob("*"):
        assert not path.is_file() or LOST.encode() not in path.read_bytes(), path


def check_intact(dataset: Path) -> None:
    assert verify(str(dataset), VerifyConfig(workers=0)).damaged == []


def test_a_folder(named: Path, source: Path, tmp_path: Path, tfpipe: Tfpipe) -> None:
    assert (load_manifest(str(named)).label_names, read_classes(named)) == (TEXTS, EXPECTED)
    check_no_loss(named)
    grown = shutil.copytree(named, tmp_path / "grown")
    more = write_files(tmp_path / "more", {f"{name}/new.jpg": make_jpeg(50 + k) for k, name in enumerate(TEXTS)})
    assert tfpipe("append", grown, more, "--workers", 1).code == 0
    assert load_manifest(str(grown)).label_names == TEXTS
    assert tfpipe("reshard", grown, tmp_path / "anew", "--workers", 1).code == 0
    assert read_classes(tmp_path / "anew") == sorted((*EXPECTED, *EXPECTED[::2]))
    labels = tmp_path / "labels.txt"
    labels.write_bytes(b"\n".join(NAMES))
    assert tfpipe("shard", source, tmp_path / "listed", "--labels", labels, "--workers", 1).code == 0
    assert load_manifest(str(tmp_path / "listed")).label_names == tuple(map(os.fsdecode, NAMES))
    assert tfpipe("merge", tmp_path / "anew", named, tmp_path / "merged", "--workers", 1).code == 0
    assert read_classes(tmp_path / "merged") == sorted((*EXPECTED * 2, *EXPECTED[::2]))
    for dataset in (grown, tmp_path / "anew", tmp_path / "listed", tmp_path / "merged"):
        check_intact(dataset)
        check_no_loss(dataset)


@pytest.mark.parametrize("to", ["webdataset", "parquet", "arrayrecord"])
def test_an_export_comes_back(to: str, named: Path, tmp_path: Path, tfpipe: Tfpipe) -> None:
    out, back = tmp_path / "out", tmp_path / "back"
    done = tfpipe("export", named, out, "--to", to)
    assert (done.code, LOST in done.out) == (0, False), done.err
    check_no_loss(out)
    assert (out / "labels.txt").read_bytes() == b"".join(os.fsencode(name) + b"\n" for name in TEXTS)
    assert json.loads((out / "export.json").read_text())["label_names"] == [*TEXTS]
    if to != "arrayrecord":
        labels = ("--labels", out / "labels.txt") if to == "webdataset" else ()
        done = tfpipe("shard", out, back, *labels, "--workers", 1)
        assert done.code == 0, done.err
        assert read_classes(back) == EXPECTED


def test_a_name_of_two_lines_leaves_the_list_out(tmp_path: Path, tfpipe: Tfpipe) -> None:
    make_dataset(write_files(tmp_path / "in", {"a\nb/1.jpg": make_jpeg(1), "c/1.jpg": make_jpeg(2)}), tmp_path / "two")
    done = tfpipe("export", tmp_path / "two", tmp_path / "out", "--to", "webdataset")
    assert "labels.txt is left out, because a class's name does not fit on a line; export.json lists them." in done.out
    assert not (tmp_path / "out" / "labels.txt").exists()


def test_records_of_another_program(tmp_path: Path, tfpipe: Tfpipe) -> None:
    rows = [
        {"image/encoded": make_jpeg(k), "image/class/label": k % 5, "image/class/text": os.fsencode(TEXTS[k % 5])}
        for k in range(10)
    ]
    write_foreign(tmp_path / "in" / "train.tfrecord", rows)
    done = tfpipe("index", tmp_path / "in")
    assert (done.code, LOST in done.out) == (0, False), done.err
    assert load_manifest(str(tmp_path / "in")).label_names == TEXTS
    check_intact(tmp_path / "in")
    assert tfpipe("reshard", tmp_path / "in", tmp_path / "own", "--workers", 1).code == 0
    check_intact(tmp_path / "own")
    assert read_classes(tmp_path / "own") == EXPECTED
    assert tfpipe("export", tmp_path / "in", tmp_path / "tables", "--to", "parquet").code == 0
    assert tfpipe("shard", tmp_path / "tables", tmp_path / "back", "--workers", 1).code == 0
    assert read_classes(tmp_path / "back") == EXPECTED
    check_no_loss(tmp_path)


def test_what_is_printed(named: Path, tmp_path: Path, tfpipe: Tfpipe) -> None:
    copy = shutil.copytree(named, tmp_path / "copy")
    for args in (
        ("inspect", copy),
        ("inspect", copy, "--show", 10, tmp_path / "sheet.png"),
        ("inspect", copy, "--page", 10, tmp_path / "page.html"),
        ("inspect", copy, "--record", "train:0"),
        ("verify", copy),
        ("view", copy, "label = 'caf\udce9'", "--name", "one"),
        ("inspect", f"{copy}@one"),
    ):
        done = tfpipe(*args)
        assert (done.code, LOST in done.out + done.err) == (0, False), (args, done.err)
        if args[0] == "inspect" and len(args) == 2:
            assert "caf\\udce9 " in done.out
    assert load_manifest(f"{copy}@one").splits["train"].records == 2
    check_no_loss(tmp_path)
    facts = json.loads(tfpipe("inspect", copy, "--json").out)
    assert facts["labels"] == [*TEXTS]
    assert json.loads(tfpipe("verify", copy, "--json").out)["damaged"] == []
