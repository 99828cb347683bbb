"""A dataset of tensors and text, without an image, goes through all commands."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfpipe as library
from tests.conftest import Tfpipe
from tfpipe.engine.record_reader import RecordReader

SCHEMA = {
    "latents": library.fields.Tensor("float16", (2, 3)),
    "frames": library.fields.Tensor("uint8", (None, None, 3)),
    "caption": library.fields.Text(),
    "class": library.fields.Label(("cat", "dog")),
}


def make_record(number: int) -> dict[str, Any]:
    return {
        "latents": np.full((2, 3), math.nan if number == 7 else number, np.float16),
        "frames": np.full((1 + number % 2, 2, 3), number, np.uint8),
        "caption": f"picture {number}",
        "class": number % 2,
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """20 records in 4 shards, written once. Not to be changed: copy it."""
    output = tmp_path_factory.mktemp("any") / "made"
    library.write(map(make_record, range(20)), output, SCHEMA, num_shards=4, workers=0)
    return output


def run(tfpipe: Tfpipe, *args: object) -> str:
    result = tfpipe(*args)
    assert result.code == 0, result.err
    return result.out


def read_captions(dataset: Path) -> list[str]:
    manifest = library.load_manifest(str(dataset))
    with RecordReader(str(dataset), manifest, "train") as reader:
        return [manifest.schema["caption"].decode(record) for record in reader]


def test_inspect_shows_types_ranges_and_nan(made: Path, tfpipe: Tfpipe) -> None:
    lines = [" ".join(line.split()) for line in run(tfpipe, "inspect", made).splitlines()]
    assert "Records without images" in lines
    assert "latents float16 [2, 3] 0 to 19 0.05 of the values, in 1 record" in lines
    assert "frames uint8 [1–2, 2, 3] 0 to 19 none" in lines
    assert not any(line.startswith(("Width", "Formats")) for line in lines)
    record = [" ".join(line.split()) for line in run(tfpipe, "inspect", made, "--record", "train:16").splitlines()]
    assert "latents float16 [2, 3], no finite value, 6 NaN" in record
    assert "frames uint8 [2, 2, 3], 7 to 7" in record
    assert "caption picture 7" in record
    assert json.loads(run(tfpipe, "inspect", made, "--json"))["splits"]["train"]["tensors"]["latents"]["nan"] == 6
    features = json.loads(run(tfpipe, "inspect", made, "--record", "train:0", "--json"))["features"]
    numbers = {"low": 0.0, "high": 0.0, "nan": 0, "infinite": 0}
    assert features["latents"] == {"dtype": "float16", "shape": [2, 3], **numbers}
    refused = tfpipe("inspect", made, "--show", 2, made.parent / "sheet.png")
    assert "must have an image to be drawn, and this dataset has none." in refused.err


def test_reshard_keeps_every_record(made: Path, tmp_path: Path, tfpipe: Tfpipe) -> None:
    run(tfpipe, "reshard", made, tmp_path / "out", "--num-shards", "2")
    before, after = (library.load_manifest(str(path)) for path in (made, tmp_path / "out"))
    assert sorted(read_captions(tmp_path / "out")) == sorted(read_captions(made))
    assert (after.schema, after.splits["train"].tensors) == (before.schema, before.splits["train"].tensors)
    assert (after.splits["train"].class_counts, after.splits["train"].num_shards) == ((10, 10), 2)
    run(tfpipe, "verify", tmp_path / "out")
    run(tfpipe, "reshard", made, tmp_path / "less", "--num-shards", "1", "--drop-feature", "frames")
    assert set(library.load_manifest(str(tmp_path / "less")).schema.names) == {
        *("latents", "caption", "image/class/label", "image/class/text")
    }
    refused = tfpipe("reshard", made, tmp_path / "none", "--num-shards", "1", "--encoding", "jpeg")
    assert "--encoding changes images, and these datasets have none. Leave it out." in refused.err


def test_nan_is_refused_before_anything_is_written(tmp_path: Path, tfpipe: Tfpipe) -> None:
    rows = [{"x": np.float32([number, np.nan if number else 0]), "y": str(number)} for number in range(3)]
    schema = {"x": library.fields.Tensor("float32", (2,)), "y": library.fields.Text()}
    for name in ("a", "b"):
        library.write(rows, tmp_path / name, schema, num_shards=1, workers=0)
    a, b, out = (tmp_path / name for name in ("a", "b", "out"))
    for command in (("reshard", a, out), ("merge", a, b, out)):
        refused = tfpipe(*command, "--refuse-nan")
        assert (refused.code, out.exists()) == (2, False)
        assert refused.err == (
            "Error: Feature 'x' must hold no NaN, since --refuse-nan is set, but 2 of the 3 tensors of 'train' in "
            f"{a} do. Leave it out with --drop-feature, or write its records anew.\n"
        )
    run(tfpipe, "reshard", a, out, "--refuse-nan", "--drop-feature", "x")


@pytest.mark.slow
def test_profile_measures_the_pipeline(made: Path, tfpipe: Tfpipe) -> None:
    options = ("--step-ms", "5", "--batch-size", "4", "--seconds", "0.3", "--json")
    document = json.loads(run(tfpipe, "profile", made, *options))
    assert [stage["name"] for stage in document["stages"]] >= ["batch"]
    assert not {"decode", "augment"} & {stage["name"] for stage in document["stages"]}


def test_train_says_what_it_needs(made: Path, tmp_path: Path, tfpipe: Tfpipe) -> None:
    refused = tfpipe("train", made, "--output", tmp_path / "run", "--epochs", "1")
    assert refused.code == 1
    assert f"A classifier needs images and labels, and {made} lacks one. Shard a folder for each class." in refused.err


@pytest.mark.slow
def test_doctor_checks_records_without_images(made: Path, tfpipe: Tfpipe) -> None:
    checks = json.loads(tfpipe("doctor", made, "--batch-size", "4", "--json").out)["checks"]
    results = {check["name"]: check["status"] for check in checks}
    assert results["xla"] == "ok"
    assert results["shapes"] == "failure"  # of frames, which have no size
