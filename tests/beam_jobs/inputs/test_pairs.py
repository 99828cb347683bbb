"""Tars of images beside captions, JSON and classes: what becomes of each file, and what is left out with its reason."""

import json
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest

from beam_jobs.config import ShardConfig
from beam_jobs.inputs import column_types, folder, pairs
from beam_jobs.inputs.recognize import find_kind
from beam_jobs.plan.listing import Listing
from tests.beam_jobs.datasets import list_source, make_dataset, read_records, refuse_source
from tests.beam_jobs.images import make_jpeg, make_png, write_files, write_tar, write_zip
from tests.export.datasets import describe_records
from tests.refusals import refusal
from tfpipe.dataset.load import load_manifest
from tfpipe.errors import ConfigError
from tfpipe.export.run import ExportConfig, export
from tfpipe.format.schema import FeatureSpec
from tfpipe.system.budget import Budget

JPEG = make_jpeg(1)


def looks_paired(source: Path, **options: Any) -> bool:
    return find_kind(ShardConfig(str(source), "/out", **options)) == "pairs"


def make_pair(key: str, caption: str, **values: object) -> dict[str, bytes]:
    """Returns the files of a pair as img2dataset writes them."""
    return {f"{key}.jpg": JPEG, f"{key}.txt": caption.encode(), f"{key}.json": json.dumps(values).encode()}


def make_captions(*names: str) -> dict[str, bytes]:
    return {k: v for name in names for k, v in ((f"{name}.jpg", JPEG), (f"{name}.txt", name.encode()))}


def get_rows(listing: Listing) -> dict[str, tuple[Any, ...]]:
    return {image.path: image.extra for image in listing.images}


def test_a_tar_of_img2dataset_becomes_captions_and_columns(tmp_path: Path) -> None:
    first = make_pair("00000/000", "Größe ✓", url="http://a/1", width=7, score=1, error=None, tags=["a", "b"])
    second = make_pair("00000/001", "two\n", url="http://a/2", width=8, score=0.5, error=None, tags=[], exif={"a": 1})
    listing = list_source(write_tar(tmp_path / "a.tar", {**first, **second}))
    assert listing.extra == (
        *(FeatureSpec.make_text("caption"), FeatureSpec.make_text("url"), FeatureSpec("width", "int64", ())),
        *(FeatureSpec("score", "float", ()), FeatureSpec("tags", "bytes", None, kind="text")),
        FeatureSpec("exif", "bytes", None, kind="text"),
    )
    assert get_rows(listing) == {
        "00000/000.jpg": ("Größe ✓", "http://a/1", 7, 1.0, ["a", "b"], []),
        "00000/001.jpg": ("two", "http://a/2", 8, 0.5, [], ['{"a": 1}']),
    }
    assert (listing.name, listing.root, listing.label_names, listing.skipped) == ("a", str(tmp_path), (), {})


@pytest.mark.parametrize("suffix", ["tar", "tar.gz"])
def test_records_hold_the_bytes_of_the_images_and_their_captions(tmp_path: Path, suffix: str) -> None:
    images = {"1.jpg": make_jpeg(1), "2.png": make_png(2), "3.jpg": b"damaged"}
    captions = {f"{k}.txt": f"caption {k}".encode() for k in (1, 2, 3)}
    source = write_tar(tmp_path / f"a.{suffix}", {**images, **captions}, "w:gz" if suffix == "tar.gz" else "w")
    manifest = make_dataset(source, tmp_path / "out")
    records = read_records(tmp_path / "out")
    assert {r["image/filename"][0]: (r["image/encoded"][0], r["caption"][0]) for r in records} == {
        b"1.jpg": (images["1.jpg"], b"caption 1"),
        b"2.png": (images["2.png"], b"caption 2"),
    }
    assert (manifest.quarantined, manifest.schema["caption"].kind) == (1, "text")


def test_classes_come_from_cls_files_or_from_json(tmp_path: Path) -> None:
    numbers = {"0.jpg": JPEG, "0.cls": b"2\n", "1.jpg": JPEG, "1.cls": b"0"}
    listing = list_source(write_tar(tmp_path / "n.tar", numbers))
    assert listing.label_names == ("0", "1", "2")
    assert {image.path: image.label for image in listing.images} == {"0.jpg": "2", "1.jpg": "0"}
    (tmp_path / "names.txt").write_text("owl\ncat\ndog\n")
    listing = list_source(tmp_path / "n.tar", labels=str(tmp_path / "names.txt"))
    assert [image.label for image in listing.images] == ["dog", "owl"]
    named = {**make_pair("0", "x", label="cat"), **make_pair("1", "y", label="ant"), **make_captions("2")}
    listing = list_source(write_tar(tmp_path / "t.tar", named))
    assert [image.label for image in listing.images] == ["cat", "ant"]
    assert (listing.label_names, listing.skipped) == (("ant", "cat"), {"pair without a class": 1})


def test_what_is_wrong_with_a_pair_is_counted(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(pairs, "BESIDE", Budget(bytes=20))
    files = {
        **make_captions("good"),
        "alone.txt": b"no image",
        **{"v1.00.jpg": JPEG, "v1.00.txt": b"dotted", "v1.01.jpg": JPEG, "v1.01.json": b"{}"},
        **{"latin.jpg": JPEG, "latin.txt": "Größe".encode("latin-1")},
        **{"cut.jpg": JPEG, "cut.json": b'{"a": '},
        **{"half.jpg": JPEG, "half.json": b'{"a": "\\ud800"}'},
        **{"list.jpg": JPEG, "list.json": b"[1]"},
        **{"large.jpg": JPEG, "large.txt": b"x" * 21},
        **{"name.jpg": JPEG, "name.json": b'{"a//b": 1}'},
        **{"box.jpg": JPEG, "box.cls": b"\xff"},
        **{"two.jpg": JPEG, "two.png": JPEG, "two.npy": b"", "two.mask.png": b"", "two.seg.png": b"", "._two.jpg": b""},
    }
    listing = list_source(write_tar(tmp_path / "a.tar", files))
    assert get_rows(listing) == {"good.jpg": ("good",), "two.jpg": ("",)}
    assert listing.skipped == {
        "pair without an image KEY.jpg (KEY ends at the first dot)": 2,
        "text behind a further dot (KEY ends at the first dot)": 2,
        "pair whose .txt is not UTF-8": 1,
        "pair whose .json cannot be parsed": 2,
        "pair whose .json is not an object": 1,
        "pair whose .txt is a link or larger than 1 MiB": 1,
        "pair whose .json has a name that no feature can have": 1,
        "pair whose .cls is not UTF-8": 1,
        "further image of a pair": 1,
        "further file of a pair": 1,
        "mask of a pair (a table or tfpipe.write stores masks)": 1,
        "*.npy": 1,
        "hidden": 1,
    }


def test_a_folder_of_tars_is_one_input(tmp_path: Path, monkeypatch) -> None:
    """Columns that only some tars have, and tars that are read in other processes, change nothing else."""
    monkeypatch.setattr(folder, "_SIDE_BY_SIDE_FROM_BYTES", 1)
    monkeypatch.setattr(column_types, "_ROWS_AT_ONCE", 2)
    many = {k: v for i in range(5) for k, v in make_pair(f"{i}", f"c{i}", **({"n": i} if i > 2 else {})).items()}
    write_tar(tmp_path / "00000.tar", many)
    write_tar(tmp_path / "00001.tar", make_pair("0", "other", m=0.5, n="text"))
    write_files(tmp_path, {"00000.parquet": b"x", "00000_stats.json": b"{}", "loose.jpg": JPEG})
    listing = list_source(tmp_path, workers=2)
    assert get_rows(listing) == {
        **{f"00000/{i}.jpg": (f"c{i}", [str(i)] if i > 2 else [], []) for i in range(5)},
        "00001/0.jpg": ("other", ["text"], [0.5]),
    }
    assert [(spec.name, spec.dtype, spec.shape) for spec in listing.extra] == [
        ("caption", "bytes", ()),
        ("n", "bytes", None),
        ("m", "float", None),
    ]
    assert listing.skipped == {"*.parquet": 1, "*.json": 1, "not in a tar file of pairs": 1}
    assert list(list_source(tmp_path, workers=1).images) == list(listing.images)


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        ("train-000.tar val-000.tar", ["train", "validation"]),
        ("train/0.tar test/0.tar", ["test", "train"]),
        ("train-0.tar trainer-0.tar", ["", ""]),
    ],
)
def test_splits_come_from_the_names_of_tars_or_their_folders(tmp_path: Path, names: str, splits: list[str]) -> None:
    for name in names.split():
        write_tar(tmp_path / name, make_captions("1"))
    assert [image.split for image in list_source(tmp_path).images] == splits


def test_pairs_are_recognized_by_looking(tmp_path: Path) -> None:
    assert looks_paired(write_tar(tmp_path / "a.tar", make_captions("1", "2")))
    classes = write_tar(tmp_path / "b.tar", {"cat/1.jpg": JPEG, "dog/2.jpg": JPEG, "dog/about.txt": b"x"})
    assert not looks_paired(classes)
    assert looks_paired(classes, input_format="pairs")
    assert not looks_paired(tmp_path / "a.tar", input_format="tree")
    assert not looks_paired(write_tar(tmp_path / "c.tar", {"images/1.jpg": JPEG, "labels/1.txt": b"0 0 0 1 1"}))
    assert not looks_paired(write_zip(tmp_path / "d.zip", make_captions("1")))
    assert not looks_paired(write_files(tmp_path / "e", make_captions("1")))
    write_tar(tmp_path / "f" / "cat.tar", {"1.jpg": JPEG})
    write_tar(tmp_path / "f" / "train" / "0.tar", make_captions("1"))
    assert not looks_paired(tmp_path / "f")
    (tmp_path / "f" / "cat.tar").unlink()
    assert looks_paired(tmp_path / "f")
    write_tar(tmp_path / "g" / "deep" / "0.tar", make_captions("1"))
    assert not looks_paired(tmp_path / "g")
    message = f"`input_format` pairs needs a tar file or a folder of tar files, got {tmp_path}/d.zip."
    assert refusal(ConfigError, looks_paired, tmp_path / "d.zip", input_format="pairs") == message


def test_files_of_a_pair_may_lie_apart(tmp_path: Path, monkeypatch) -> None:
    files = [*make_captions(*map(str, range(40))).items()]
    random.Random(0).shuffle(files)
    listing = list_source(write_tar(tmp_path / "a.tar", dict(files)), input_format="pairs")
    assert get_rows(listing) == {f"{i}.jpg": (str(i),) for i in range(40)}
    monkeypatch.setattr(pairs, "_OPEN_PAIRS", 1)
    files = [("1.jpg", JPEG), ("2.jpg", JPEG), ("1.txt", b"late"), ("2.txt", b"late")]
    listing = list_source(write_tar(tmp_path / "a.tar", dict(files)), input_format="pairs")
    assert listing.skipped == {"pair without an image KEY.jpg (KEY ends at the first dot)": 2}


def test_pairs_with_equal_values_come_into_one_split(tmp_path: Path) -> None:
    files = {k: v for i in range(40) for k, v in make_pair(f"{i}", "x", site=f"s{i % 8}").items()}
    source = write_tar(tmp_path / "a.tar", files)
    splits = {"train": 0.5, "test": 0.5}
    make_dataset(source, tmp_path / "out", group_by="site", splits=splits)
    sites = [{record["site"][0] for record in read_records(tmp_path / "out", split)} for split in splits]
    assert (sites[0] & sites[1], len(sites[0] | sites[1])) == (set(), 8)
    bare = write_tar(tmp_path / "bare.tar", make_pair("0", "x", site="s") | make_pair("1", "x"))
    assert [ref.group for ref in list_source(bare, group_by="site", splits=splits).images] == ["s", ""]
    message = f"`group_by` must name a column of {source}, got 'host'."
    assert refuse_source(source, ConfigError, group_by="host", splits=splits) == message


def test_odd_values_are_kept(tmp_path: Path) -> None:
    values = {"caption": 7, "big": 2**63, "huge": 10**400, "flag": True, "mixed": [1, "a"], "deep": [[1]]}
    listing = list_source(write_tar(tmp_path / "a.tar", {"1.jpg": JPEG, "1.json": json.dumps(values).encode()}))
    assert get_rows(listing) == {"1.jpg": ("7", str(2**63), str(10**400), 1, ["1", "a"], "[[1]]")}
    files = {f"{k}.{end}": data for k in (1, 2) for end, data in (("jpg", JPEG), ("txt", b"words"))}
    files["1.json"] = b'{"caption": null, "text": "words"}'
    files["2.json"] = b'{"caption": "others", "text": "words"}'
    listing = list_source(write_tar(tmp_path / "b.tar", files))
    assert get_rows(listing) == {"1.jpg": ("", "words"), "2.jpg": ("words", "words")}


def test_too_many_columns_are_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(pairs, "_MAX_COLUMNS", 2)
    assert refuse_source(write_tar(tmp_path / "a.tar", make_pair("1", "x", a=1, b=2))) == (
        "The .json files of pairs must have at most 2 different names, but 'b' is one more. Leave these files out of "
        "the tars, or use `input_format` tree."
    )


NULL = {"caption": None}
TEXTS = "The .txt files hold the"
CAPTIONS: dict[str, tuple[list[Any], list[str], list[Any], str | None]] = {
    # The .json files of the source, the .txt and the .json files that leave, and the note.
    "caption": ([{"caption": "Größe"}, {"caption": ""}], ["Größe", ""], [{}, {}], None),
    "caption and text": (
        [{"caption": "a\n"}, {"caption": "b", "text": "c"}],
        ["a\n", "b"],
        [{"caption": "a\n", "text": ""}, {"text": "c"}],
        f"{TEXTS} caption of each record. In .json: text.",
    ),
    "text": (
        [{"text": "a"}, {"text": "b\n"}],
        ["a", "b\n"],
        [{"text": x, "caption": None} for x in ("a", "b\n")],
        None,
    ),
    "several": (
        [{"caption": ["a", "b"]}, {"caption": ["c"]}],
        ["a", "c"],
        [{"caption": ["a", "b"]}, {"caption": ["c"]}],
        f"{TEXTS} first caption of each record. In .json: all.",
    ),
    "prompt": (
        [{"prompt": "a"}, {"prompt": "b"}],
        [],
        [{"prompt": "a"}, {"prompt": "b"}],
        "No text is named caption or text, so there are no .txt files. In .json: prompt.",
    ),
}


@pytest.mark.parametrize(("rows", "txt", "in_json", "note"), CAPTIONS.values(), ids=CAPTIONS)
def test_captions_leave_as_txt_and_come_back(tmp_path, rows, txt, in_json, note):
    names = sorted({name for row in rows for name in row})
    files_in = {f"{k}.jpg": make_jpeg(k) for k in range(2)}
    for k, row in enumerate(rows):
        files_in[f"{k}.json"] = json.dumps({name: row.get(name, "") for name in names}).encode()
    make_dataset(write_tar(tmp_path / "in.tar", files_in), tmp_path / "made", shuffle=False)
    report = export(ExportConfig(str(tmp_path / "made"), str(tmp_path / "wds"), to="webdataset", workers=0))
    assert report.notes == ((note,) if note is not None else ())
    with tarfile.open(tmp_path / "wds" / "train-00000-of-00001.tar") as tar:
        files = {name: tar.extractfile(name).read() for name in tar.getnames()}
    assert [data.decode() for name, data in files.items() if name.endswith(".txt")] == txt
    stored = [json.loads(data) for name, data in files.items() if name.endswith(".json")]
    assert [{name: row[name] for name in row if not name.startswith("image/")} for row in stored] == in_json
    make_dataset(tmp_path / "wds", tmp_path / "again", shuffle=False)
    assert describe_records(tmp_path / "again", "train") == describe_records(tmp_path / "made", "train")
    schemas = [load_manifest(str(tmp_path / name)).schema for name in ("made", "again")]
    assert schemas[0] == schemas[1]
