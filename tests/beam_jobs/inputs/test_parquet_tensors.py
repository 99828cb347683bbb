"""Parquet files without images: columns of every kind become tensors, and what does not fit is quarantined."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import tfpipe
from beam_jobs.config import ShardConfig
from beam_jobs.inputs.recognize import find_kind
from beam_jobs.shard_job import plan_shards
from beam_jobs.shards import output_dir
from beam_jobs.shards.output_dir import open_work_dir
from beam_jobs.shards.write_shard import write_shard
from tests.beam_jobs.datasets import list_source, make_dataset, read_quarantine, read_records, refuse_source
from tests.beam_jobs.images import make_jpeg, write_files
from tests.beam_jobs.inputs.parquet_files import damage, write_columns, write_parquet
from tests.export.datasets import describe_records
from tests.refusals import refusal
from tfpipe.errors import ConfigError, DataError
from tfpipe.export.run import ExportConfig, export

COUNT = 10
FLOATS = pyarrow.list_(pyarrow.list_(pyarrow.float32()))


def write_latents(path: Path, latents: list[Any], **columns: Any) -> Path:
    return write_columns(path, {"id": range(len(latents)), "latents": pyarrow.array(latents, FLOATS), **columns})


def make_latents(count: int = COUNT) -> list[list[list[float]]]:
    return [np.full((2, 3), k / 2).tolist() for k in range(count)]


def read_values(output: Path, name: str) -> list[Any]:
    """Returns the values of a feature in the order of the feature `id`."""
    spec = tfpipe.load_manifest(str(output)).schema[name]
    return [spec.decode(record) for record in sorted(read_records(output), key=lambda record: int(record["id"][0]))]


def read_reasons(output: Path) -> list[tuple[str, str]]:
    return sorted((line["path"], line["reason"]) for line in read_quarantine(output))


KINDS = {
    "lists": (FLOATS, "float32 [2, 3]"),
    "half": (pyarrow.list_(pyarrow.list_(pyarrow.float16())), "float16 [2, 3]"),
    "large": (pyarrow.large_list(pyarrow.large_list(pyarrow.float64())), "float64 [2, 3]"),
    "fixed": (pyarrow.list_(pyarrow.list_(pyarrow.uint8(), 3), 2), "uint8 [2, 3]"),
    "flat": (pyarrow.list_(pyarrow.int32()), "int32 [6]"),
    "bool": (pyarrow.list_(pyarrow.bool_(), 6), "bool [6]"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_lists_of_numbers_become_tensors(tmp_path: Path, kind: str) -> None:
    arrow_type, expected = KINDS[kind]
    depth, leaf = (1 if kind in ("flat", "bool") else 2), expected.split()[0]
    arrays = [np.arange(k, k + 6).reshape(6 if depth == 1 else (2, 3)).astype(leaf) for k in range(COUNT)]
    cells = [array.tolist() if leaf != "float16" else [list(row) for row in array] for array in arrays]
    columns = {"id": range(COUNT), "x": pyarrow.array(cells, arrow_type), "caption": list(map(str, range(COUNT)))}
    manifest = make_dataset(write_columns(tmp_path / "t.parquet", columns), tmp_path / "out", num_shards=3, workers=1)
    assert [(spec.name, str(spec.tensor)) for spec in manifest.schema.tensors] == [("x", expected)]
    assert manifest.schema["caption"].kind == "text"
    assert (manifest.image_key, dict(manifest.image)) == (None, {})
    values = read_values(tmp_path / "out", "x")
    assert [value.tolist() for value in values] == [array.tolist() for array in arrays]
    assert {value.dtype.name for value in values} == {leaf}


def test_arrows_own_tensors_have_a_shape(tmp_path: Path) -> None:
    arrays = np.arange(24, dtype=np.int16).reshape(4, 3, 2)
    column = pyarrow.FixedShapeTensorArray.from_numpy_ndarray(arrays)
    make_dataset(write_columns(tmp_path / "t.parquet", {"id": range(4), "x": column}), tmp_path / "out")
    assert str(tfpipe.load_manifest(str(tmp_path / "out")).schema["x"].tensor) == "int16 [3, 2]"
    assert np.array_equal(read_values(tmp_path / "out", "x"), arrays)


def test_sizes_that_differ_stay_open(tmp_path: Path) -> None:
    ragged = [[[1.0] * 3] * (k % 3) for k in range(COUNT)]
    both = [[[1.0] * (1 + k % 2)] * (1 + k % 3) for k in range(COUNT)]
    columns = {"id": range(COUNT), "x": pyarrow.array(ragged, FLOATS), "y": pyarrow.array(both, FLOATS)}
    manifest = make_dataset(write_columns(tmp_path / "t.parquet", columns), tmp_path / "out")
    assert [str(spec.tensor) for spec in manifest.schema.tensors] == ["float32 [?, 3]", "float32 [?, ?]"]
    assert [value.shape for value in read_values(tmp_path / "out", "x")] == [(k % 3, 3) for k in range(COUNT)]
    assert [value.tolist() for value in read_values(tmp_path / "out", "y")] == both


def test_types_can_be_given(tmp_path: Path) -> None:
    arrays = np.arange(COUNT * 6, dtype=np.float32).reshape(COUNT, 2, 3)
    columns = {
        "id": range(COUNT),
        "bytes": [array.astype(np.float16).tobytes() for array in arrays],
        "flat": pyarrow.array(arrays.reshape(COUNT, 6).tolist(), pyarrow.list_(pyarrow.float64())),
    }
    tensors = ("bytes=float16[?,3]", "flat=bfloat16[2,3]")
    make_dataset(write_columns(tmp_path / "t.parquet", columns), tmp_path / "out", tensors=tensors)
    assert np.array_equal(read_values(tmp_path / "out", "bytes"), arrays)
    assert np.array_equal(read_values(tmp_path / "out", "flat"), arrays.astype(ml_dtypes.bfloat16))


def test_hugging_faces_arrays_say_their_shapes(tmp_path: Path) -> None:
    features = {"latents": {"_type": "Array2D", "shape": [None, 3], "dtype": "float32"}}
    path = write_latents(tmp_path / "t.parquet", make_latents())
    table = pyarrow.parquet.read_table(path)
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), path)
    assert str(list_source(path).make_schema()["latents"].tensor) == "float32 [?, 3]"


def test_what_does_not_fit_is_quarantined(tmp_path: Path) -> None:
    latents: list[Any] = make_latents(6)
    latents[1], latents[2], latents[3] = [[1.0]], None, [[1.0, 2.0, None], [1.0, 2.0, 3.0]]
    latents[4] = [[1.0], [1.0, 2.0]]
    # The first rows are alike, so the shape is known.
    path = write_latents(tmp_path / "t.parquet", [*make_latents(1000), *latents])
    manifest = make_dataset(path, tmp_path / "out")
    must = "feature 'latents' must be float32 [2, 3], got"
    assert read_reasons(tmp_path / "out") == [
        ("t/00001002", f"{must} float32 [1, 1]"),
        ("t/00001003", f"{must} null"),
        ("t/00001004", f"{must} null in a list"),
        ("t/00001005", f"{must} lists of 1 and 2 values"),
    ]
    assert (manifest.quarantined, manifest.splits["train"].records) == (4, 1002)
    write_latents(tmp_path / "in/a.parquet", make_latents(4))
    doubles = pyarrow.array(make_latents(2), pyarrow.list_(pyarrow.list_(pyarrow.float64())))
    write_columns(tmp_path / "in/b.parquet", {"id": [7, 8], "latents": doubles})
    make_dataset(tmp_path / "in", tmp_path / "other")
    assert read_reasons(tmp_path / "other") == [
        (f"b/0000000{k}", "feature 'latents' must be float32 [2, 3], got float64 [2, 3]") for k in (1, 2)
    ]


def test_values_that_a_given_type_cannot_hold_are_quarantined(tmp_path: Path) -> None:
    columns = {"id": range(3), "x": [[1.0, 2.0], [1e9, 0.0], [3.0, 4.0, 5.0]], "y": [b"abcd", b"abcd", b"abc"]}
    path = write_columns(tmp_path / "t.parquet", columns)
    make_dataset(path, tmp_path / "out", tensors=("x=float16[2]", "y=uint8[4]"), max_bad=2)
    assert read_reasons(tmp_path / "out") == [
        ("t/00000002", "feature 'x' must be float16 [2], got values of float64 beyond it"),
        ("t/00000003", "feature 'x' must be float16 [2], got float16 [3]"),
    ]


def test_a_damaged_row_group_costs_its_rows(tmp_path: Path) -> None:
    path = write_latents(tmp_path / "t.parquet", make_latents())
    damage(path, "latents.list.element.list.element", 1)
    manifest = make_dataset(path, tmp_path / "out")
    assert (manifest.splits["train"].records, manifest.quarantined) == (7, 3)


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize(
    "fields",
    [
        {"image": tfpipe.fields.Image()},
        {"image": tfpipe.fields.Image(), "mask": tfpipe.fields.Mask()},
        {"views": tfpipe.fields.Images(2)},
    ],
    ids=["single", "mask", "several"],
)
def test_tensors_beside_images_come_back(tmp_path: Path, monkeypatch, fields: dict[str, Any], *, copies: bool) -> None:
    schema = {"latents": tfpipe.fields.Tensor("bfloat16", (None, 3)), "scale": tfpipe.fields.Tensor("float16", ())}
    schema |= {"caption": tfpipe.fields.Text(), **fields}

    def make_value(name: str, k: int) -> Any:
        if name == "views":
            return [make_jpeg(k), make_jpeg(k + 1)]
        return make_jpeg(k, size=(8, 6)) if name == "image" else np.full((6, 8), k % 3, np.uint8)

    records = (
        {
            "latents": np.full((k % 3, 3), k / 2, ml_dtypes.bfloat16),
            "scale": np.float16(k),
            "caption": f"Größe {k}",
            **{name: make_value(name, k) for name in fields},
        }
        for k in range(COUNT)
    )
    tfpipe.write(records, tmp_path / "first", schema, num_shards=2, workers=0)
    export(ExportConfig(str(tmp_path / "first"), str(tmp_path / "parquet"), to="parquet", workers=1))
    monkeypatch.setattr(output_dir, "_COPY_ROWS_FROM_SHARDS", 1 if copies else 99)
    make_dataset(tmp_path / "parquet", tmp_path / "again", num_shards=2, workers=1)
    assert describe_records(tmp_path / "again", "train") == describe_records(tmp_path / "first", "train")
    manifest = tfpipe.load_manifest(str(tmp_path / "again"))
    assert {spec.name: str(spec.tensor) for spec in manifest.schema.tensors} == {
        "latents": "bfloat16 [?, 3]",
        "scale": "float16 []",
    }


def test_a_tensor_beside_an_image_that_does_not_fit_is_quarantined(tmp_path: Path) -> None:
    metadata = {"tfpipe": json.dumps({"tensors": {"latents": "float32 [2, 3]"}})}
    images = [{"bytes": make_jpeg(k), "path": None} for k in range(3)]
    latents = pyarrow.array([*make_latents(2), [[1.0]]], FLOATS)
    path = write_columns(tmp_path / "in/b.parquet", {"image": images, "latents": latents}, metadata=metadata)
    make_dataset(path, tmp_path / "out")
    assert read_reasons(tmp_path / "out") == [
        ("b/00000003", "feature 'latents' must be float32 [2, 3], got float32 [1, 1]")
    ]
    write_columns(tmp_path / "in/a.parquet", {"image": images, "latents": latents})
    message = f"Every file of {tmp_path / 'in'} must hold the same tensors, but one has none, one latents."
    assert refuse_source(tmp_path / "in") == message


def test_a_file_of_numbers_beside_images_is_not_the_input(tmp_path: Path) -> None:
    write_latents(tmp_path / "in/embeddings.parquet", make_latents())
    assert find_kind(ShardConfig(str(tmp_path / "in"), "/out")) == "parquet"
    write_files(tmp_path / "in", {"a.jpg": make_jpeg(1)})
    assert find_kind(ShardConfig(str(tmp_path / "in"), "/out")) != "parquet"


def test_nan_can_be_refused_also_in_a_finished_shard(tmp_path: Path) -> None:
    path = write_latents(tmp_path / "t.parquet", [*make_latents(2), [[float("nan")] * 3] * 2])
    assert make_dataset(path, tmp_path / "out").splits["train"].tensors["latents"].nan_records == 1
    message = "t/00000003: Feature 'latents' must hold no NaN, since `refuse_nan` is set."
    assert refusal(DataError, make_dataset, path, tmp_path / "refused", refuse_nan=True) == message
    config = ShardConfig(str(path), str(tmp_path / "finished"))
    with open_work_dir(config, plan_shards(config)) as work:
        header = work.read_header()
        assert not write_shard(work, header, 0).kept
        assert write_shard(work, header, 0).kept
        assert refusal(DataError, write_shard, work, replace(header, refuse_nan=True), 0) == message


def test_options_and_columns_must_fit(tmp_path: Path) -> None:
    path = write_latents(tmp_path / "t.parquet", make_latents(), raw=[b"x"] * COUNT)
    assert refuse_source(path) == (
        f"{path}: column 'raw' holds bytes, which do not say what they are. Give their dtype and shape with `tensors`, "
        "as in raw=float16[4,64,64]. If they are images, name the column 'image'."
    )
    message = "`tensors` must name columns of tensors (latents, raw), got 'id'."
    assert refuse_source(path, ConfigError, tensors=("id=int64[]",)) == message
    form = tfpipe.format.image_form.ImageForm(square=8, encoding="raw")
    message = f"`encoding` changes images, and {path} has none. Leave it out."
    assert refuse_source(path, ConfigError, form=form) == message
    images, folder = write_parquet(tmp_path / "i.parquet", [make_jpeg(1)]), tmp_path / "folder"
    write_files(folder, {"a/1.jpg": make_jpeg(1)})
    for source in (images, folder):
        message = f"`tensors` needs Parquet files without images, got {source}."
        assert refuse_source(source, ConfigError, tensors=("x=int8[1]",)) == message
    path = write_columns(tmp_path / "u.parquet", {"x": pyarrow.array([[1]], pyarrow.list_(pyarrow.uint64()))})
    assert refuse_source(path).endswith("got uint64.")
    path = write_columns(tmp_path / "r.parquet", {"seed": [[1]]})
    message = f"{path}: a batch has something else of the name 'seed'. Give the column another name."
    assert refuse_source(path) == message


def test_a_type_must_be_valid() -> None:
    must = "A tensor's type must be a dtype and a shape, as in float16[?,4,64], got"
    for text, shown in (("x", ""), ("x=int8", "int8"), ("x=int8[1,]", "int8[1,]")):
        assert refusal(ConfigError, ShardConfig, "in", "out", tensors=(text,)) == f"{must} {shown!r}."
    message = "`tensors` must name each column once, as in latents=float16[4,64,64], got '=int8[1]'."
    assert refusal(ConfigError, ShardConfig, "in", "out", tensors=("=int8[1]",)) == message


def test_all_files_hold_images_or_none_does(tmp_path: Path) -> None:
    write_latents(tmp_path / "in/b.parquet", make_latents(), image=[{"bytes": make_jpeg(1), "path": None}] * COUNT)
    write_latents(tmp_path / "in/c.parquet", make_latents())
    assert refuse_source(tmp_path / "in") == f"Every file of {tmp_path / 'in'} must hold images, or none may."
