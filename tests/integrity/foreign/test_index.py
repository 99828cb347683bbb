"""`tfpipe.integrity.foreign.index` on data that scripts wrote: what it finds and writes, and what it refuses."""

import hashlib
import os
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.beam_jobs.images import make_jpeg, make_png
from tests.conftest import Tfpipe
from tests.integrity.damaged import framed
from tests.observers import Recorder
from tests.refusals import refusal
from tfpipe.dataset.load import load_manifest
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.record_reader import RecordReader
from tfpipe.engine.source import tfrecord_files
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format import file_names
from tfpipe.format.record_index import decode_index
from tfpipe.format.tensors.tensor_stats import TensorStats
from tfpipe.format.tensors.tensor_type import TensorType
from tfpipe.format.tfrecord import record_header, scan_records
from tfpipe.integrity.foreign import index as index_module
from tfpipe.integrity.foreign.index import IndexConfig, IndexReport, index
from tfpipe.integrity.verify import VerifyConfig, verify
from tfpipe.pipeline.build import build_dataset


def run(target: Path | str, **options: object) -> IndexReport:
    return index(IndexConfig(str(target), **options))  # type: ignore[arg-type]


def hashes(folder: Path) -> dict[str, str]:
    """Of every file below a folder, with the time of its last change."""
    return {
        str(path.relative_to(folder)): f"{hashlib.sha256(path.read_bytes()).hexdigest()} {path.stat().st_mtime_ns}"
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def imagenet(foreign, tmp_path: Path) -> Path:
    return foreign.imagenet(tmp_path / "imagenet")


def test_seekable_jpegs_are_found(foreign, tmp_path: Path) -> None:
    jpegs = [make_jpeg(k, restart_marker_blocks=2 - k % 2) for k in range(4)]
    for name, images in (("train", jpegs), ("validation", [*jpegs, make_png(9), make_jpeg(9)])):
        foreign.write(tmp_path / "in" / f"{name}.tfrecord", [{"image": image, "label": 1} for image in images])
    splits = run(tmp_path / "in").manifest.splits
    assert load_manifest(str(tmp_path / "in")).splits == splits
    assert {name: (split.seekable, split.seekable_jpegs) for name, split in splits.items()} == {
        "train": (True, 4),
        "validation": (False, 4),
    }


def test_counts_places_labels_and_forms_and_records_at_random(imagenet: Path) -> None:
    before = hashes(imagenet)
    report = run(imagenet)
    manifest = load_manifest(str(imagenet))
    assert manifest == report.manifest
    assert report.notes == ()
    train, validation = manifest.splits["train"], manifest.splits["validation"]
    assert [shard.records for shard in train.shards] == [14, 16, 0, 10]
    assert (validation.records, validation.class_counts) == (7, (2, 3, 2))
    assert (dict(train.formats), train.class_counts) == ({"JPEG": 27, "PNG": 13}, (14, 13, 13))
    sizes = train.sizes
    assert (sizes.min_height, sizes.max_height, sizes.min_width, sizes.max_width) == (16, 18, 24, 28)
    assert (manifest.label_base, manifest.label_names, manifest.name) == (1, ("1", "2", "3"), "imagenet")
    assert {spec.name: (spec.dtype, spec.shape) for spec in manifest.schema.features} == {
        "id": ("int64", ()),
        "image/class/label": ("int64", ()),
        "image/encoded": ("bytes", ()),
        "image/filename": ("bytes", ()),
    }
    for shard in train.shards:
        path = imagenet / shard.file
        text = (imagenet / file_names.index_name(shard.file)).read_bytes()
        with path.open("rb") as file:
            assert decode_index(text, shard.bytes, shard.records)[:, 0].tolist() == [at for at, _ in scan_records(file)]
        assert shard.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    after = hashes(imagenet)
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {"manifest.json", *(f"index/{name}.idx" for name in before)}
    with RecordReader(str(imagenet), load_manifest(str(imagenet)), "train") as reader:
        assert [int(reader[k]["id"][0]) for k in (39, 0, 29, 30, 14)] == [39, 0, 29, 30, 14]


def test_elsewhere_with_workers(imagenet: Path, tmp_path: Path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(index_module, "_ALONE_BYTES", 0)
    before = hashes(imagenet)
    watcher = Recorder()
    index(IndexConfig(f"{imagenet}/train-*", str(tmp_path / "out")), watcher)
    assert hashes(imagenet) == before
    assert (watcher.progresses[-1].records, watcher.progresses[-1].done) == (40, watcher.progresses[-1].total)
    manifest = load_manifest(str(tmp_path / "out"))
    assert "lie outside it" in caplog.text
    assert manifest.shard_directory(manifest.directory) == str(imagenet)
    assert list(manifest.splits) == ["train"]
    with RecordReader(manifest.directory, manifest, "train") as reader:
        assert int(reader[20]["id"][0]) == 20
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["index", "manifest.json"]


def test_again_after_a_change(imagenet: Path, foreign) -> None:
    first = run(imagenet)
    assert run(imagenet) == first
    foreign.write(imagenet / "train-00003-of-00004", foreign.records(30, 4, 1))
    (imagenet / "train-00000-of-00004").unlink()
    second = run(imagenet)
    assert second.manifest.splits["train"].records == 20
    assert second.notes == ("3 of the 4 files train-*-of-00004 exist.",)
    assert not (imagenet / "index/train-00000-of-00004.idx").exists()


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_compressed_files_are_counted_and_have_no_index(foreign, tmp_path: Path, compression) -> None:
    folder = foreign.imagenet(tmp_path / "packed", compression)
    manifest = run(folder).manifest
    assert manifest.compression == compression
    assert (manifest.splits["train"].records, manifest.label_base) == (40, 1)
    beside = [path.name for path in folder.iterdir() if not path.name.startswith(("train", "val"))]
    assert beside == ["manifest.json"]
    (folder / "labels.txt").write_text("a\nb\nc\n")
    assert run(f"{folder}/*").manifest.splits == manifest.splits  # without what lies beside the shards
    assert (len(tfrecord_files(f"{folder}/*").files), verify(f"{folder}/*", VerifyConfig()).damaged) == (5, [])
    with pytest.raises(ConfigError, match=f"are {compression} compressed: their records can be read from the first on"):
        RecordReader(str(folder), manifest, "train")


def test_files_that_do_not_go_together_are_refused(foreign, tmp_path: Path) -> None:
    foreign.write(tmp_path / "a.tfrecord", foreign.records(0, 2))
    foreign.write(tmp_path / "b.tfrecord", foreign.records(2, 2), "GZIP")
    assert refusal(ConfigError, run, tmp_path) == (
        f"All files of a dataset must be compressed in one way: {tmp_path}/a.tfrecord is not, {tmp_path}/b.tfrecord is "
        "GZIP. Index them apart."
    )
    for name in ("a-0-of-1", "a-0-of-1.tfrecord"):
        foreign.write(tmp_path / "in" / name, foreign.records(0, 1))
    assert "would share one index" in refusal(ConfigError, run, tmp_path / "in")


def records(foreign, labels: list[int | None], **more: list) -> list[dict[str, object]]:
    made = []
    for k, label in enumerate(labels):
        one = {"image": foreign.image(k)} | ({} if label is None else {"label": label})
        made.append(one | {name: values[k] for name, values in more.items() if values[k] is not None})
    return made


@pytest.mark.parametrize(
    ("labels", "asked", "base", "names"),
    [
        ([0, 1, 2], "auto", 0, ("0", "1", "2")),
        ([1, 3], "auto", 1, ("1", "2", "3")),
        ([1, 3], "0", 0, ("0", "1", "2", "3")),
        ([5, 6], "auto", 0, tuple("0123456")),
        ([-1, 2, 1], "auto", 1, ("1", "2")),
    ],
)
def test_the_smallest_label_tells_the_base(foreign, tmp_path: Path, labels, asked, base, names) -> None:
    foreign.write(tmp_path / "x.tfrecord", records(foreign, labels))
    manifest = run(tmp_path, label_base=asked).manifest
    assert (manifest.label_base, manifest.label_names, manifest.label_key) == (base, names, "label")
    assert sum(manifest.splits["train"].class_counts) == len([label for label in labels if label >= 0])


def test_a_base_above_the_smallest_label_is_refused(foreign, tmp_path: Path) -> None:
    foreign.write(tmp_path / "x.tfrecord", records(foreign, [0, 1]))
    found = refusal(ConfigError, run, tmp_path, label_base="1")
    assert "`label_base` 1 must be at most the smallest label, got 0" in found
    assert os.listdir(tmp_path) == ["x.tfrecord"]


def test_names_come_from_the_records_or_a_list(foreign, tmp_path: Path) -> None:
    made = [
        {"image/encoded": foreign.image(k), "image/class/label": k % 2 + 1, "image/class/text": name}
        for k, name in enumerate((b"daisy", "Löwenzahn".encode(), b"daisy"))
    ]
    foreign.write(tmp_path / "x.tfrecord", made)
    assert run(tmp_path).manifest.label_names == ("daisy", "Löwenzahn")
    (tmp_path / "labels.txt").write_text("0:background\n1:one\n2:two\n")
    manifest = run(tmp_path).manifest
    assert (manifest.label_names, manifest.label_base) == (("background", "one", "two"), 0)
    (tmp_path / "labels.txt").write_text("one\ntwo\n")
    manifest = run(tmp_path).manifest
    assert (manifest.label_names, manifest.label_base) == (("one", "two"), 1)
    foreign.write(tmp_path / "x.tfrecord", records(foreign, [0, 1, 2]))
    assert run(tmp_path).notes == ("Not used: 2 label names for 3 classes.",)


@pytest.mark.parametrize(
    ("labels", "note"),
    [
        ([0, None, 1], "The dataset has no labels: 'label' is missing in 1 of 3 records."),
        (  # as FiftyOne writes them
            [b"cat", b"dog"],
            "No feature was found to be a class: the dataset has no labels. 'label' holds texts: list it in "
            "`extra_features`, and number them in the trainer.",
        ),
        ([2**62, 1], f"The dataset has no labels: 'label' reaches {2**62:,}, which is too large for a class."),
    ],
    ids=["some", "texts", "too large"],
)
def test_what_is_no_class_is_noted(foreign, tmp_path: Path, labels, note: str) -> None:
    foreign.write(tmp_path / "x.tfrecord", records(foreign, labels))
    report = run(tmp_path)
    assert (report.manifest.label_key, report.manifest.label_names) == (None, ())
    assert report.notes == (note,)
    if None in labels:
        assert "'label' holds no labels" in refusal(DataError, run, tmp_path, label_key="label")


def test_features_that_vary_are_lists_and_mixed_kinds_are_left_out(foreign, tmp_path: Path) -> None:
    more = {
        "boxes": [[0.5, 1.5], [], [2.5]],
        "pair": [[1, 2], [3, 4], [5, 6]],
        "some": [7, None, 8],
        "odd": [1, b"x", 2],
    }
    foreign.write(tmp_path / "x.tfrecord", records(foreign, [0, 1, 2], **more))
    report = run(tmp_path)
    specs = {spec.name: (spec.dtype, spec.shape, spec.doc) for spec in report.manifest.schema.features}
    assert (specs["pair"], specs["some"]) == (("int64", (2,), ""), ("int64", None, "missing in 1 of 3 records"))
    assert specs["boxes"] == ("float", None, "0 to 2 values")
    assert "odd" not in specs
    assert "Left out: 'odd' is bytes in some records and int64 in others." in report.notes


def test_keys_are_found_by_name_and_content(foreign, tmp_path: Path) -> None:
    image = foreign.image(1)
    foreign.write(tmp_path / "x.tfrecord", [{"photo": image, "text": b"no image", "class": 1}])
    manifest = run(tmp_path).manifest
    assert (manifest.image_key, manifest.label_key, manifest.label_base) == ("photo", "class", 1)
    foreign.write(tmp_path / "x.tfrecord", [{"left": image, "right": image}])
    assert "Name one of several images with `image_key`: left, right" in refusal(ConfigError, run, tmp_path)
    assert run(tmp_path, image_key="right").manifest.image_key == "right"
    foreign.write(tmp_path / "x.tfrecord", [{"image": image, "b": b"x"}])
    message = r"`label_key` must name a feature with one int64 or float value; .*, got 'b'"
    with pytest.raises(ConfigError, match=message):
        run(tmp_path, label_key="b")
    with pytest.raises(ConfigError, match=r"`image_key` must name a feature with an image; .*, got 'c'"):
        run(tmp_path, image_key="c")


def test_images_of_other_formats_are_said(foreign, tmp_path: Path) -> None:
    kinds = ("GIF", "WEBP", "JPEG")
    images = [*(foreign.image(k, kind=kind) for k, kind in enumerate(kinds)), b"", b"junk"]
    foreign.write(tmp_path / "x.tfrecord", [{"image": image} for image in images])
    report = run(tmp_path)
    assert dict(report.manifest.splits["train"].formats) == {"GIF": 1, "JPEG": 1, "OTHER": 2, "WEBP": 1}
    assert report.notes[1:] == (
        "2 values are not images, but empty, damaged or other bytes: `tfpipe verify` lists them.",
        "1 images have formats that TensorFlow does not decode: 1 WEBP.",
    )
    foreign.write(tmp_path / "x.tfrecord", [{"image": foreign.image(0)}, {"other": 1}])
    message = "Each of the 2 records must have one image under 'image'; it is missing in 1 of 2"
    assert message in refusal(DataError, run, tmp_path)


# What is damaged or hostile: one sentence, and nothing is written


def refuse(target: Path | str, message: str, kind: type[Exception] = FormatError, **options: object) -> None:
    folder = Path(target) if os.path.isdir(target) else Path(target).parent
    before = sorted(os.listdir(folder))
    started = time.process_time()
    found = refusal(kind, run, target, **options)
    assert time.process_time() - started < 1
    assert found.startswith(message), found
    assert sorted(os.listdir(folder)) == before


def test_damage_names_file_record_and_byte(imagenet: Path) -> None:
    path = imagenet / "train-00001-of-00004"
    with path.open("rb") as file:
        at = [offset for offset, _ in scan_records(file)][5]
    data = bytearray(path.read_bytes())
    for place, what in ((at + 3, "the checksum of its length is wrong"), (at + 200, "the checksum of its")):
        changed = bytearray(data)
        changed[place] ^= 1
        path.write_bytes(changed)
        refuse(imagenet, f"{path} cannot be indexed: record 5 at byte {at} is damaged: {what}")
        refuse(imagenet, f"{path} cannot be indexed", output=str(imagenet.parent / "new"))
        assert not (imagenet.parent / "new").exists()
    path.write_bytes(data[: at + 20])
    refuse(imagenet, f"{path} cannot be indexed: record 5 at byte {at} is damaged: it has ")


def test_what_is_no_tfrecord_is_refused(foreign, tmp_path: Path) -> None:
    path = tmp_path / "x.tfrecord"
    path.write_bytes(b"hello, this is text, and no record of any kind")
    refuse(tmp_path, f"{path} cannot be indexed: it holds no TFRecords, or record 0 at byte 0 is damaged")
    path.write_bytes(record_header(2**62) + bytes(100))
    refuse(tmp_path, f"{path} cannot be indexed: record 0 at byte 0 is damaged: it has 4,611,686,018,427,387,904 bytes")
    path.write_bytes(b"\x1f\x8b\x08" + bytes(40))
    refuse(tmp_path, f"{path} cannot be indexed: record 0 at byte 0 of the unpacked data cannot be unpacked")

    other, example = b"\xff\xff no example", foreign.example({"id": 1})
    for payloads, advice in (
        ([other, example], "`tfpipe reshard --opaque` shuffles records of any content."),
        ([example, other], "`tfpipe verify` lists the damage, `tfpipe repair` saves the rest."),
    ):
        path.write_bytes(framed(payloads))
        found = refusal(FormatError, run, tmp_path)
        assert found.startswith(f"{path} cannot be indexed: record {payloads.index(other)} at byte ")
        assert " is not a tf.train.Example: " in found
        assert found.endswith(f". {advice}")


def test_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "x.tfrecord"
    path.write_bytes(b"")
    refuse(tmp_path, f"There is no record in {path}.", DataError)
    path.unlink()
    os.mkfifo(path)
    refuse(tmp_path, f"{path} must be a regular file.")
    refuse(f"{tmp_path}/x*", f"{path} must be a regular file.")
    path.unlink()
    path.symlink_to(path)
    refuse(tmp_path, f"{path} cannot be read: Too many levels of symbolic links.", DataError)
    refuse(path, f"{path} cannot be read: Too many levels of symbolic links.", DataError)
    path.unlink()
    path.mkdir()
    refuse(f"{tmp_path}/x*", f"No file fits {tmp_path}/x*.", DataError)
    refuse(tmp_path, f"No file in {tmp_path} is named like TFRecords.", DataError)


def test_own_and_broken_manifests_are_not_replaced(small_dataset: Path, imagenet: Path, tmp_path: Path) -> None:
    message = f"{small_dataset} is a dataset that `tfpipe shard` wrote, and it has an index already"
    refuse(small_dataset, message, ConfigError)
    (imagenet / "manifest.json").write_text("{}")
    refuse(imagenet, f"{imagenet}/manifest.json is not a manifest that can be replaced.", ConfigError)


def test_a_directory_that_cannot_be_written(imagenet: Path) -> None:
    (imagenet.parent / "file").write_text("")
    found = refusal(DataError, run, imagenet, output=str(imagenet.parent / "file" / "out"))
    assert "out: Not a directory. Choose another place with `output`" in found


def make_latents(number: int) -> tf.Tensor:
    return tf.cast(tf.reshape(tf.range(8) + 8 * number, [2, 2, 2]), tf.bfloat16)


def make_states(number: int) -> tf.Tensor:
    return tf.fill([2 + number % 2, 3], tf.constant(np.nan if number == 3 else number, tf.float32))


@pytest.fixture
def folder(foreign, tmp_path: Path) -> Path:
    for file in range(2):
        records = [
            {
                "latents": tf.io.serialize_tensor(make_latents(number)).numpy(),
                "encoder_hidden_states": tf.io.serialize_tensor(make_states(number)).numpy(),
                "label": number % 3,
            }
            for number in range(4 * file, 4 * file + 4)
        ]
        foreign.write(tmp_path / "latents" / f"file_{file:02d}-4.tfrec", records)
    return tmp_path / "latents"


def test_dtypes_shapes_and_ranges_are_found(folder: Path, tfpipe: Tfpipe) -> None:
    manifest = run(folder, split="train").manifest
    assert manifest == load_manifest(str(folder))
    assert (manifest.image_key, manifest.label_key) == (None, "label")
    assert {spec.name: spec.tensor for spec in manifest.schema.tensors} == {
        "encoder_hidden_states": TensorType("float32", (None, 3), "proto"),
        "latents": TensorType("bfloat16", (2, 2, 2), "proto"),
    }
    assert manifest.splits["train"].tensors == {
        "encoder_hidden_states": TensorStats(8, 60, 9, 1, 0, 0.0, 7.0, (2,), (3,)),
        "latents": TensorStats(8, 64, 0, 0, 0, 0.0, 63.0),
    }
    assert dict(manifest.splits["train"].formats) == {}
    out = tfpipe("index", folder, "--split", "train").ok.out
    assert "tensor: 'encoder_hidden_states', float32 [?, 3]\ntensor: 'latents', bfloat16 [2, 2, 2]\n" in out
    assert "no image; label: 'label', 3 classes, stored from 0" in out


def test_they_are_read_padded_or_ragged(folder: Path) -> None:
    manifest = run(folder, split="train").manifest
    ragged = next(iter(build_dataset(manifest, "train", PipelineConfig(batch_size=8, training=False))))
    padded_config = PipelineConfig(batch_size=8, training=False, pad_to={"encoder_hidden_states": 4})
    padded = next(iter(build_dataset(manifest, "train", padded_config)))
    assert isinstance(ragged["encoder_hidden_states"], tf.RaggedTensor)
    for number in range(8):
        rows = 2 + number % 2
        np.testing.assert_array_equal(ragged["encoder_hidden_states"][number], make_states(number))
        np.testing.assert_array_equal(padded["encoder_hidden_states"][number, :rows], make_states(number))
        np.testing.assert_array_equal(padded["encoder_hidden_states"][number, rows:], np.zeros((4 - rows, 3)))
        assert padded["encoder_hidden_states.sizes"][number].numpy().tolist() == [rows]
        assert tf.reduce_all(ragged["latents"][number] == make_latents(number))
    assert ragged["label"].numpy().tolist() == [number % 3 for number in range(8)]


def test_other_values_stay_bytes(foreign, tmp_path: Path) -> None:
    tensor = tf.io.serialize_tensor(tf.zeros([2])).numpy()
    other = tf.io.serialize_tensor(tf.zeros([2], tf.int32)).numpy()
    rows = [{"a": tensor, "b": tensor, "c": tensor}, {"a": tensor, "b": other, "c": b"text"}]
    foreign.write(tmp_path / "mixed" / "train.tfrecord", rows)
    schema = run(tmp_path / "mixed").manifest.schema
    assert [(spec.name, spec.kind) for spec in schema.features] == [("a", "tensor"), ("b", "values"), ("c", "values")]
    foreign.write(tmp_path / "text" / "train.tfrecord", [{"words": b"no image", "image": b"cats/1.jpg"}])
    manifest = run(tmp_path / "text").manifest
    assert (manifest.image_key, manifest.schema.names) == (None, ("image", "words"))


def test_tensors_of_text_stay_bytes(foreign, tmp_path: Path) -> None:
    texts = [tf.io.serialize_tensor(tf.constant(value)).numpy() for value in (["a", "bc"], [], "d")]
    foreign.write(tmp_path / "train.tfrecord", [{"tokens": text} for text in texts])
    (spec,) = run(tmp_path).manifest.schema.features
    assert (spec.name, spec.dtype, spec.kind, spec.shape) == ("tokens", "bytes", "values", ())


def test_an_empty_tensor_of_a_huge_size_is_bytes(foreign, tmp_path: Path) -> None:
    """Whoever made room for its rows would take all memory."""
    for size, kind in ((2**16, "tensor"), (2**62, "values")):
        proto = tf.make_tensor_proto(np.zeros((1, 0), np.float32))
        proto.tensor_shape.dim[0].size = size
        data = proto.SerializeToString()
        foreign.write(tmp_path / kind / "train.tfrecord", [{"a": data}])
        assert [spec.kind for spec in run(tmp_path / kind).manifest.schema.features] == [kind]
