"""`tfpipe.write`: what it writes and refuses, several classes a record among it, and how a killed run goes on."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfpipe as library
from tests.beam_jobs.commands import run_python
from tests.beam_jobs.datasets import join_datasets, make_dataset, read_tree
from tests.beam_jobs.images import make_png
from tests.conftest import ROOT, Tfpipe
from tests.refusals import refusal
from tests.several_images import LABEL_AND_TEXT, make_records
from tests.writer.sources import SCHEMA, make_broken_shard, make_record, make_shard
from tfpipe import fields
from tfpipe.engine.record_reader import RecordReader
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.export.run import ExportConfig, export
from tfpipe.format import manifest_json
from tfpipe.format.example import decode_example, encode_example
from tfpipe.format.schema import FeatureSpec
from tfpipe.format.tensors.tensor_stats import TensorStats
from tfpipe.images.masks import read_mask
from tfpipe.integrity.check_record import ContentCheck
from tfpipe.integrity.repair import repair
from tfpipe.integrity.verify import VerifyConfig, verify


def read_ids(output: Path, split: str = "train") -> list[list[int]]:
    manifest = library.load_manifest(str(output))
    with RecordReader(str(output), manifest, split) as reader:
        ids = iter([int(record["id"][0]) for record in reader])
    return [[next(ids) for _ in range(shard.records)] for shard in manifest.splits[split].shards]


def write(output: Path, records: Any, **options: Any) -> library.Manifest:
    return library.write(records, output, options.pop("schema", SCHEMA), **{"num_shards": 3, "workers": 0, **options})


def test_every_record_comes_back(tmp_path: Path) -> None:
    manifest = write(tmp_path / "out", map(make_record, range(20)))
    assert manifest == library.load_manifest(str(tmp_path / "out"))
    assert (manifest.name, manifest.label_names) == ("out", ("cat", "dog"))
    assert read_ids(tmp_path / "out") == [list(range(k, 20, 3)) for k in range(3)]
    train = manifest.splits["train"]
    assert (train.class_counts, dict(train.formats)) == ((10, 10), {})
    assert train.tensors["latents"] == TensorStats(20, 120, 0, 0, 0, 0.0, 19.0)
    assert train.tensors["frames"].max_sizes == (2, 3)
    with RecordReader(str(tmp_path / "out"), manifest, "train") as reader:
        features = reader[3]  # of shard 0
    for name, value in make_record(9).items():
        if name != "class":
            np.testing.assert_array_equal(manifest.schema["id" if name == "id" else name].decode(features), value)
    assert features["image/class/label"].tolist() == [1]
    assert features["image/class/text"] == [b"dog"]
    report = verify(str(tmp_path / "out"), VerifyConfig(workers=0))
    assert (report.records, report.damaged) == (20, [])
    records = {"train": map(make_record, range(5)), "validation": make_shard}
    manifest = write(tmp_path / "splits", records, num_shards={"train": 2, "validation": 1})
    assert {name: split.records for name, split in manifest.splits.items()} == {"train": 5, "validation": 10}


def test_threads_and_processes_write_the_same_bytes(tmp_path: Path) -> None:
    records = [make_record(number) for number in range(300)]
    write(tmp_path / "alone", records)
    write(tmp_path / "threads", records, workers=2)
    alone, threads = read_tree(tmp_path / "alone"), read_tree(tmp_path / "threads")
    different = {name for name in alone if alone[name] != threads[name]}
    assert alone.keys() == threads.keys()
    assert different == {"manifest.json"}  # which has the dataset's name
    write(tmp_path / "here" / "out", make_shard)
    write(tmp_path / "there" / "out", make_shard, workers=2)
    assert read_tree(tmp_path / "here" / "out") == read_tree(tmp_path / "there" / "out")
    assert read_ids(tmp_path / "there" / "out") == [list(range(10 * k, 10 * k + 10)) for k in range(3)]


def test_a_plain_reader_opens_it(tmp_path: Path) -> None:
    import tensorflow as tf

    schema = {"x": fields.Tensor("bfloat16", (None, 2)), "caption": fields.Text()}
    rows = [{"x": tf.cast(tf.fill([k, 2], k), tf.bfloat16), "caption": str(k)} for k in range(3)]
    manifest = write(tmp_path / "out", rows, schema=schema, num_shards=1)
    features = {"x": tf.io.FixedLenFeature([], tf.string)}
    (last,) = list(tf.data.TFRecordDataset(str(tmp_path / "out" / manifest.splits["train"].shards[0].file)).skip(2))
    raw = tf.io.parse_single_example(last, features)["x"]
    assert tf.io.decode_raw(raw, tf.bfloat16).numpy().tolist() == [2, 2, 2, 2]


def test_what_the_users_code_raises_is_named(tmp_path: Path) -> None:
    def fail():
        yield make_record(0)
        raise ZeroDivisionError("division by zero")

    sentence = "Record 1 of 'train' could not be made: ZeroDivisionError: division by zero."
    assert refusal(DataError, write, tmp_path / "out", fail()) == sentence
    sentence = "Record 1 of shard 0 of 'train' could not be made: KeyError: 'lost'."
    for workers in (0, 1):
        options = {"workers": workers, "num_shards": 1}
        assert refusal(DataError, write, tmp_path / "out", make_broken_shard, **options) == sentence


def test_nan_is_counted_or_refused(tmp_path: Path) -> None:
    schema = {"x": fields.Tensor("float32", (2,))}
    rows = [{"x": np.float32([1, value])} for value in (0, math.nan, math.inf)]
    manifest = write(tmp_path / "out", rows, schema=schema)
    assert manifest.splits["train"].tensors["x"] == TensorStats(3, 6, 1, 1, 1, 0.0, 1.0)
    sentence = "Record 1 of 'train': Feature 'x' must hold no NaN, since `refuse_nan` is set."
    assert refusal(ConfigError, write, tmp_path / "none", rows, schema=schema, refuse_nan=True) == sentence


NAMES = "the names of classes must be texts, and at least one, got"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_shards": 0}, "`num_shards` must be from 1 to 100,000, got 0."),
        ({"num_shards": {"test": 1}}, "`num_shards` must name the splits train, got test."),
        ({"workers": -1}, "`workers` must be at least 0, got -1."),
        ({"key": "frames"}, "`key` must name a text or a whole number, and 'frames' is a tensor."),
        ({"key": "class"}, f"`key` must name a text or a whole number of {', '.join(SCHEMA)}, got"),
        ({"schema": {}}, "`schema` must name the values of a record, got none."),
        (
            {"schema": {"a": fields.Values}},
            "The kind of 'a' must be a Tensor, a Text, Values, a Label, Labels, an Image, Images or a Mask, got",
        ),
        ({"schema": {"mask": fields.Text()}}, "A value must not be named 'mask': a batch has something else of that"),
        ({"schema": {"image/x": fields.Text()}}, "An extra column must not be named 'image' or begin with 'image/'"),
        ({"schema": {"x": fields.Tensor("int4", ())}}, "'x': A tensor's dtype must be one of bool, int8,"),
        ({"schema": {"a": fields.Label(("x", "x"))}}, "The names of a Label must be different."),
        ({"schema": {"a": fields.Label("cat")}}, f"'a': {NAMES} 'cat'."),
        ({"schema": {"a": fields.Tensor("int8", 3)}}, "'a': a shape must be a tuple of sizes, got 3."),
        (
            {"schema": fields.Text()},
            "`schema` must give each value its kind, as in {'image': Image()}, got Text(doc='').",
        ),
        ({"schema": {"m": fields.Mask()}}, "The Mask 'm' needs an Image in the same record, got none."),
        (
            {"schema": {"a": fields.Image(), "b": fields.Image()}},
            "A record must have at most one Image, got 'a', 'b'. Give them as one list, of the kind Images.",
        ),
        (
            {"schema": {"a": fields.Image(), "b": fields.Images(2)}},
            "A record must have an Image or Images, got 'a' and 'b'. Make it one list.",
        ),
        (
            {"schema": {"a": fields.Images(2), "b": fields.Mask()}},
            "The Mask 'b' needs an Image in the same record, got Images 'a'.",
        ),
        ({"schema": {"a": fields.Labels(("a", "a"))}}, "Feature 'a': the names of classes must be different, got 'a' "),
        ({"schema": {"a": fields.Labels(("a",), 0)}}, "'a': the `count` of Labels must be at least 1, got 0."),
        ({"schema": {"a": fields.Images(0)}}, "'a': the number of Images must be from 1 to 1,024, got 0."),
    ],
)
def test_arguments_that_do_not_fit(tmp_path: Path, options: dict, message: str) -> None:
    assert refusal(ConfigError, write, tmp_path / "out", [make_record(0)], **options).startswith(message)
    assert list(tmp_path.iterdir()) == []


def test_other_arguments_that_do_not_fit(tmp_path: Path) -> None:
    for records, kind, message in (
        (3, ConfigError, "The records of 'train' must be an iterable, or a function of a shard, got a int."),
        ([], DataError, "Split 'train' must have a record, got none."),
        ({"1": []}, ConfigError, "A split's name must be letters, digits and underscores and begin with a letter,"),
        ([3], ConfigError, "Record 0 of 'train': A record must be a mapping from names to values, got a int."),
    ):
        assert refusal(kind, write, tmp_path / "out", records).startswith(message)
    with pytest.raises(ConfigError, match="A function of a shard must stand at the top of a module, where worker"):
        write(tmp_path / "out", lambda shard: [], workers=1)


def test_finished_shards_are_not_made_again(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))

    def fail_at_two(shard: int):
        if shard == 2:
            raise OSError("the disk of the source is gone")
        return make_shard(shard)

    with pytest.raises(DataError, match="Record 0 of shard 2 of 'train' could not be made: OSError: the disk"):
        write(tmp_path / "out", fail_at_two)
    first = tmp_path / "out.tfpipe-write" / "shards" / "train-00000-of-00003.tfrecord"
    first.write_bytes(first.read_bytes()[:-1])  # a damaged one is made again
    write(tmp_path / "out", make_shard)
    assert (tmp_path / "calls").read_text().split() == ["0", "1", "0", "2"]
    assert read_ids(tmp_path / "out") == [list(range(10 * k, 10 * k + 10)) for k in range(3)]
    assert not (tmp_path / "out.tfpipe-write").exists()


def make_unfinished(output: Path, **options: Any) -> None:
    """Leaves the first four records of a run that ended with an error."""
    with pytest.raises(ConfigError):
        write(output, [*map(make_record, range(4)), {}], **options)


def test_an_iterable_is_written_anew_after_an_error(tmp_path: Path) -> None:
    make_unfinished(tmp_path / "out")
    write(tmp_path / "out", map(make_record, (0, 2, 1)))
    assert read_ids(tmp_path / "out") == [[0], [2], [1]]
    sentence = "Record 1 of 'train': Feature 'id' must identify a record, but an earlier one has 3 too."
    assert refusal(ConfigError, write, tmp_path / "twice", map(make_record, (3, 3)), key="id") == sentence
    make_unfinished(tmp_path / "other")
    write(tmp_path / "other", map(make_record, range(9)), num_shards=2)
    assert read_ids(tmp_path / "other") == [[0, 2, 4, 6, 8], [1, 3, 5, 7]]


def test_neither_tensorflow_nor_beam_is_loaded(tmp_path: Path) -> None:
    code = (
        "import json, sys, tfpipe; from tests.writer.sources import SCHEMA, make_shard; "
        f"tfpipe.write(make_shard, {str(tmp_path / 'out')!r}, SCHEMA, num_shards=1, workers=0); "
        "print(json.dumps([name for name in ('tensorflow', 'apache_beam', 'PIL') if name in sys.modules]))"
    )
    assert json.loads(run_python("-c", code, PYTHONPATH=str(ROOT)).stdout) == []


IMAGES = {"image": fields.Image(), "mask": fields.Mask(), "class": fields.Label(("cat", "dog"))}


def make_image_record(number: int) -> dict[str, Any]:
    pixels = np.random.default_rng(number).integers(0, 256, (16, 24 + number, 3), np.uint8)
    return {"image": pixels, "mask": pixels[..., 0] // 64, "class": "dog"}


def test_images_and_masks_come_back_after_a_run_that_was_killed(tmp_path: Path) -> None:
    def fail_at(stop: int) -> Any:
        for number in range(8):
            if number == stop:
                raise ValueError("the disk is gone")
            yield make_image_record(number)

    manifest = write(tmp_path / "whole", fail_at(9), schema=IMAGES)
    assert "the disk is gone" in refusal(DataError, write, tmp_path / "again", fail_at(5), schema=IMAGES)
    again = write(tmp_path / "again", fail_at(9), schema=IMAGES)
    train = manifest.splits["train"]
    assert (again.splits["train"].masks, again.splits["train"].sizes) == (train.masks, train.sizes)
    assert [shard.sha256 for shard in again.splits["train"].shards] == [shard.sha256 for shard in train.shards]
    assert (dict(train.formats), train.class_counts) == ({"PNG": 8}, (0, 8))
    assert (train.masks["image/mask"].images, train.sizes.max_width) == ([8] * 4, 31)
    report = verify(str(tmp_path / "whole"), VerifyConfig(workers=0))
    assert (report.records, report.damaged) == (8, [])
    with RecordReader(str(tmp_path / "whole"), manifest, "train") as reader:
        mask = read_mask(manifest.schema["image/mask"].decode(reader[1]), 1000)  # the second of the first shard
        np.testing.assert_array_equal(mask, make_image_record(3)["mask"])
        assert reader[3]["image/class/text"] == [b"dog"]


_COUNT_THREADS = """
import os
import pyarrow.parquet
from tfpipe.fields import Values
from tfpipe.writer.record_form import RecordForm
from tfpipe.writer.record_info import RecordInfo, _read_table

info = RecordInfo.of_new_shard(RecordForm({"age": Values("int64")}).schema, ())
for age in range(100):
    info.add({"age": age})
data = info.encode("0" * 64)
before = len(os.listdir("/proc/self/task"))
assert info.find_fault(data, "0" * 64, 100) == ""
assert _read_table(data, ["age"])[0]["age"].to_pylist() == list(range(100))
print(len(os.listdir("/proc/self/task")) - before)
"""


def test_no_thread_of_arrow_reads_info() -> None:
    assert run_python("-c", _COUNT_THREADS).stdout == "0\n"


TAG_NAMES = ("red", "round", "small")
TAGGED = {"id": fields.Values("int64"), "tags": fields.Labels(TAG_NAMES), "pair": fields.Labels(TAG_NAMES, count=2)}


def make_tagged(number: int) -> dict[str, Any]:
    return {"id": number, "tags": [*TAG_NAMES, 2][: number % 4], "pair": np.array([number % 3, 1])}


def write_tagged(output: Path, schema: dict[str, Any] | None = None, records: Any = None) -> Path:
    records = map(make_tagged, range(12)) if records is None else records
    library.write(records, output, schema or TAGGED, num_shards=2, workers=0)
    return output


def read_tags(dataset: Path, name: str = "tags") -> list[tuple[int, list[int]]]:
    with library.data_source(dataset, "train") as records:
        found = [(record.features["id"], record.features[name]) for record in records]
    return sorted((int(number[0]), [] if classes is None else classes.tolist()) for number, classes in found)


TAGS = [(number, [0, 1, 2][: number % 4]) for number in range(12)]


def test_names_and_numbers_are_stored_as_numbers(tmp_path: Path) -> None:
    dataset = write_tagged(tmp_path / "out")
    manifest = library.load_manifest(str(dataset))
    assert read_tags(dataset) == TAGS
    assert read_tags(dataset, "pair") == [(number, [number % 3, 1]) for number in range(12)]
    tags = FeatureSpec("tags", "int64", None, "classes, counted from 0", names=TAG_NAMES)
    assert manifest.schema.features[1:] == (tags, FeatureSpec("pair", "int64", (2,), tags.doc, names=TAG_NAMES))
    line = next(line for line in (dataset / "manifest.json").read_text().splitlines() if '"tags"' in line)
    expected = {"name": "tags", "dtype": "int64", "shape": None, "doc": "classes, counted from 0"}
    assert json.loads(line.rstrip(",")) == {**expected, "names": list(TAG_NAMES)}


VIEWS = list(make_records(range(2)))
PIXELS = "must be the bytes of a file, or uint8 [height, width, 3] or [height, width], got"
TAGS_ARE = "Feature 'tags' must be a list of classes from 0 to 2 or their names, got"

# Of each schema two records, changes of the second one, and what is said of it then.
REFUSED: list[tuple[Any, list[dict[str, Any]], list[tuple[dict[str, Any], str]]]] = [
    (
        SCHEMA,
        [make_record(0), make_record(1)],
        [
            ({"latents": np.zeros((2, 3))}, "Feature 'latents' must be float16 [2, 3], got float64 [2, 3]."),
            ({"latents": np.float16([[0] * 2] * 3)}, "Feature 'latents' must be float16 [2, 3], got float16 [3, 2]."),
            ({"caption": b"\xff"}, "Feature 'caption' must be UTF-8 text, got the byte 0xff at 0."),
            ({"class": "cow"}, "Label 'class' must be a class from 0 to 1 or its name, got 'cow'."),
            ({"class": 2}, "Label 'class' must be a class from 0 to 1 or its name, got 2."),
            ({"id": 0.5}, "Feature 'id' must be one value of int64, got a float."),
            ({"more": 1}, "A record must have exactly the schema's features: 'more' unknown."),
        ],
    ),
    (
        IMAGES,
        [make_image_record(0), make_image_record(0)],
        [
            ({"image": b"GIF"}, "Image 'image' cannot be stored: not an image: it begins like text."),
            ({"image": np.zeros((2, 2), np.float32)}, f"Image 'image' {PIXELS} float32 [2, 2]."),
            (
                {"mask": np.zeros((2, 3), np.uint8)},
                "Image 'image' cannot be stored: its mask has 3 x 2 pixels, the image 24 x 16.",
            ),
            (
                {"mask": np.zeros((2, 3, 1), np.uint8)},
                "Mask 'mask' must be the bytes of a PNG, or whole numbers [height, width], got uint8 [2, 3, 1].",
            ),
            ({"mask": np.full((16, 24), -1)}, "Mask 'mask' must hold classes from 0 to 65,535, got -1."),
        ],
    ),
    (
        {"views": fields.Images(3), **LABEL_AND_TEXT},
        VIEWS,
        [
            ({"views": VIEWS[1]["views"][:2]}, "Images 'views' must be a list of 3 images, got 2."),
            ({"views": b""}, "Images 'views' must be a list of 3 images, got a bytes."),
            (
                {"views": [*VIEWS[1]["views"][:2], VIEWS[1]["views"][2][:-20]]},
                "Image 2 of 'views' cannot be stored: truncated PNG.",
            ),
            (
                {"views": [*VIEWS[1]["views"][:2], np.zeros((2, 3), np.int64)]},
                f"Image 2 of 'views' {PIXELS} int64 [2, 3].",
            ),
        ],
    ),
    (
        TAGGED,
        [make_tagged(0), make_tagged(1)],
        [
            ({"tags": ["red", "blue"]}, f"{TAGS_ARE} 'blue'."),
            ({"tags": [3]}, f"{TAGS_ARE} 3."),
            ({"tags": np.array([-1])}, f"{TAGS_ARE} -1."),
            ({"tags": [1.0]}, f"{TAGS_ARE} 1.0."),
            ({"tags": [None]}, f"{TAGS_ARE} None."),
            ({"tags": "red"}, "Feature 'tags' must be a list, got a str."),
            ({"tags": 1}, "Feature 'tags' must be a list, got a int."),
        ],
    ),
]


@pytest.mark.parametrize(
    ("schema", "records", "change", "message"),
    [(schema, records, *row) for schema, records, rows in REFUSED for row in rows],
)
def test_a_record_that_does_not_fit_is_named(tmp_path, schema, records, change, message):
    found = refusal(ConfigError, write, tmp_path / "out", [records[0], records[1] | change], schema=schema)
    assert found == f"Record 1 of 'train': {message}"
    assert not (tmp_path / "out").exists()


def test_names_of_a_manifest_are_checked(tmp_path: Path) -> None:
    text = (write_tagged(tmp_path / "out") / "manifest.json").read_text()
    assert manifest_json.dumps(manifest_json.loads(text)) == text
    with pytest.raises(FormatError, match=r"the names of classes must be different, got 'red' twice\.$"):
        manifest_json.loads(text.replace('"round"', '"red"', 1))
    message = "label_counts.tags must be at most 3 counts, each at most 12, got [13]."
    assert refusal(FormatError, manifest_json.loads, text.replace("[9, 6, 3]", "[13]")).endswith(message)
    assert manifest_json.loads(text.replace('"label_counts"', '"unknown"')).splits["train"].label_counts == {}
    sentence = "Feature 'x': `names` belong to values of int64, got values float."
    assert refusal(ConfigError, FeatureSpec, "x", "float", None, names=("a",)) == sentence


def test_verify_finds_a_number_that_is_not_a_class(tmp_path: Path) -> None:
    dataset = write_tagged(tmp_path / "out")
    report = verify(str(dataset), VerifyConfig(workers=0))
    assert (report.records, report.damaged) == (12, [])
    manifest = library.load_manifest(str(dataset))
    features = decode_example(encode_example(manifest.schema.check(make_tagged(3))))
    content = ContentCheck.from_manifest(manifest).check(encode_example({**features, "tags": [1, 3]}))
    assert content.faults == (("label", "feature 'tags' holds 3, which is not one of the 3 classes"),)


def test_copies_keep_numbers_and_names(tmp_path: Path) -> None:
    dataset = write_tagged(tmp_path / "out")
    schema = library.load_manifest(str(dataset)).schema
    repair(str(dataset), str(tmp_path / "repaired"), workers=0)
    join_datasets([dataset], tmp_path / "resharded", num_shards=3, workers=1)
    counts = library.load_manifest(str(dataset)).splits["train"].label_counts
    assert counts == {"pair": (4, 12, 4), "tags": (9, 6, 3)}
    for name in ("repaired", "resharded"):
        assert library.load_manifest(str(tmp_path / name)).splits["train"].label_counts == counts
        assert library.load_manifest(str(tmp_path / name)).schema == schema
        assert read_tags(tmp_path / name) == TAGS
    join_datasets([dataset, tmp_path / "repaired"], tmp_path / "merged", num_shards=1, workers=1)
    assert library.load_manifest(str(tmp_path / "merged")).schema == schema
    assert read_tags(tmp_path / "merged") == sorted(TAGS * 2)


def test_merge_refuses_other_names(tmp_path: Path) -> None:
    first = write_tagged(tmp_path / "first")
    second = write_tagged(tmp_path / "second", {**TAGGED, "tags": fields.Labels((*TAG_NAMES, "a", "b", "c"))})
    assert refusal(DataError, join_datasets, [first, second], tmp_path / "merged", num_shards=1, workers=1) == (
        f"Feature 'tags' must have the same classes in the same order, got 'red', 'round', 'small' in {first} and "
        f"'red', 'round', 'small', 'a', 'b', ... in {second}. Leave it out with `drop_features`."
    )
    join_datasets([first, second], tmp_path / "merged", num_shards=1, workers=1, drop_features=("tags",))
    assert library.load_manifest(str(tmp_path / "merged")).schema.names == ("id", "pair")
    mixture = library.mix({str(first): 1, str(second): 1})
    assert refusal(ConfigError, library.build_dataset, mixture, "train", batch_size=4) == (
        "The classes of 'tags' must have the same names in all datasets of a mixture. Leave it out of `extra_features`."
    )


@pytest.mark.parametrize("to", ["parquet", "webdataset"])
def test_exports_hold_the_numbers(tmp_path: Path, to: Any) -> None:
    schema = {"image": fields.Image(), "id": fields.Values("int64"), "tags": fields.Labels(TAG_NAMES)}
    records = ({"image": make_png(k), "id": k, "tags": make_tagged(k)["tags"]} for k in range(12))
    export(ExportConfig(str(write_tagged(tmp_path / "out", schema, records)), str(tmp_path / to), to, workers=0))
    make_dataset(tmp_path / to, tmp_path / "back", num_shards=1, workers=1)
    assert read_tags(tmp_path / "back") == TAGS


def test_inspect_shows_the_names(tmp_path: Path, tfpipe: Tfpipe) -> None:
    dataset = write_tagged(tmp_path / "out")
    done = tfpipe("inspect", dataset)
    lines = [" ".join(line.split()) for line in done.lines]
    assert {"tags 3: red, round, small", "pair 3: red, round, small"} <= {*lines}
    assert "red     9" in done.out
    shown = tfpipe("inspect", dataset, "--json").json
    assert shown["schema"]["features"][1]["names"] == list(TAG_NAMES)
    assert shown["splits"]["train"]["label_counts"] == {"pair": [4, 12, 4], "tags": [9, 6, 3]}
