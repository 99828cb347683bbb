"""No name in a dataset leads out of the output, and none hides another file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.integrity.made import payload, png, write_dataset
from tfpipe.export.config import ExportConfig
from tfpipe.export.folder import make_safe, name_folders
from tfpipe.export.run import export

# In the order of the records; odd numbers are dogs.
HOSTILE = (
    ("../../etc/passwd", "cat/passwd.png"),
    ("/etc/cron.d/x.png", "dog/x.png"),
    ("..", "cat/000000002.png"),
    ("a/X.PNG", "dog/X-000000003.PNG"),  # x.png on a disk that does not tell upper case from lower case
    ("b/.png", "cat/png.png"),
    ("c\\..\\d.png", "dog/c_.._d.png"),
    ("photo.jpg", "cat/photo.png"),  # a PNG, whatever its name says
    ("photo.v2", "dog/photo.v2.png"),
    ("a\nb\x1b[31m.png", "cat/a_b_[31m.png"),
    ("", "dog/000000009.png"),
    ("photo.png", "cat/photo-000000010.png"),
    ("ü" * 200 + ".png", "dog/" + "ü" * 90 + ".png"),
    ("gs://bucket/x.png", "cat/x.png"),
    ("x.png/", "dog/000000013.png"),
)


def test_names_of_files(tmp_path: Path) -> None:
    records = [payload(k, filename=name) for k, (name, _) in enumerate(HOSTILE)]
    dataset = write_dataset(tmp_path / "made", {"train:0": records[:5], "train:1": records[5:]})
    export(ExportConfig(str(dataset), str(tmp_path / "out"), "folder", workers=0))
    rows = [json.loads(line) for line in (tmp_path / "out" / "images.jsonl").read_text().splitlines()]
    assert [row["image"] for row in rows] == [f"train/{path}" for _, path in HOSTILE]
    assert [(tmp_path / "out" / row["image"]).read_bytes() for row in rows] == [png(k) for k in range(len(HOSTILE))]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "out"]
    assert sum(path.is_file() for path in (tmp_path / "out" / "train").rglob("*")) == len(HOSTILE)


@pytest.mark.parametrize(
    ("names", "folders"),
    [
        (("cat", "dog"), ["cat", "dog"]),
        (("..", "a/b", "a_b", "A_B"), ["class-0", "a_b", "a_b-2", "A_B-3"]),
        (("", ".", "/", "x" * 300), ["class-0", "class-1", "_", "x" * 180]),
        (("a\udcffb",), ["a_b"]),
    ],
)
def test_folders_of_classes(names: tuple[str, ...], folders: list[str]) -> None:
    assert list(name_folders(names).values()) == folders


@given(st.text(st.characters(codec=None)))
def test_a_safe_name_is_one_part_of_a_path(text: str) -> None:
    name = make_safe(text)
    assert os.path.basename(name) == name
    assert name not in (".", "..")
    assert not name.startswith(".")
    assert len(name.encode()) <= 180
    assert make_safe(name) == name
