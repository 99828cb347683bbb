"""Indexed files are read as they are: in exact order, compressed as a whole or record by record, or written by TFDS."""

import dataclasses
import gzip
import io
import os
import shutil
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import tensorflow as tf

from tests.beam_jobs.datasets import read_tree
from tests.beam_jobs.images import make_png
from tests.flipped_bit import flip_bit
from tests.integrity.damaged import framed
from tests.memory import peak_memory
from tests.refusals import refusal
from tfpipe.dataset.load import load_manifest
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.mixture import mix
from tfpipe.engine.order import Order
from tfpipe.engine.record_reader import RecordReader
from tfpipe.engine.source import Source, tfrecord_files
from tfpipe.errors import ConfigError, FormatError
from tfpipe.format import manifest_json
from tfpipe.format.compressed import pack_member
from tfpipe.format.example import encode_example
from tfpipe.format.manifest import Manifest
from tfpipe.format.tfrecord import scan_records
from tfpipe.integrity.foreign.index import IndexConfig, index
from tfpipe.integrity.verify import VerifyConfig, verify
from tfpipe.lookups.data_lock import lock_data
from tfpipe.pipeline.build import build_dataset, build_stages
from tfpipe.readers.data_source import data_source
from tfpipe.readers.numpy import NumpyBatches

IDS = PipelineConfig(batch_size=8, augment="none", image_size=8, extra_features=("id",), block_records=3)


@pytest.fixture(scope="module")
def indexed(foreign, tmp_path_factory) -> Manifest:
    return index(IndexConfig(str(foreign.imagenet(tmp_path_factory.mktemp("imagenet"))))).manifest


@pytest.fixture(scope="module")
def packed(foreign, tmp_path_factory) -> Manifest:
    return index(IndexConfig(str(foreign.imagenet(tmp_path_factory.mktemp("packed"), "GZIP")))).manifest


def ids(data: Any, split: str | None, config: PipelineConfig, steps: int, **host) -> list:
    context = tf.distribute.InputContext(**host) if host else None
    dataset = build_dataset(data, split, config, context).take(steps)
    return [number for batch in dataset for number in batch["id"].numpy().tolist()]


def test_global_batches_are_those_of_the_exact_order_and_labels_count_from_0(indexed: Manifest) -> None:
    assert (indexed.label_base, indexed.label_names) == (1, ("1", "2", "3"))
    config = dataclasses.replace(IDS, one_hot=True, extra_features=("id", "image/class/label"))
    batches = list(build_dataset(indexed, "train", config).take(10).as_numpy_iterator())
    order = Order(40, 8, 3, IDS.seed)
    expected = [order.list_numbers(*order.locate(step)).tolist() for step in range(10)]
    assert [batch["id"].tolist() for batch in batches] == expected
    for batch in batches:
        assert batch["label"].shape == (8, 3)  # one-hot has a place for each
        labels = np.argmax(batch["label"], axis=1)
        assert labels.tolist() == (batch["id"] % 3).tolist()
        assert batch["image/class/label"].tolist() == (labels + 1).tolist()
        assert batch["label"].sum() == 8


@pytest.mark.parametrize(
    ("files", "augment", "cache"),
    [
        *(("indexed", "host", "none"), ("indexed", "device", "bytes"), ("indexed", "host", "decoded")),
        ("packed", "none", "bytes"),
        pytest.param("indexed", "device", "none", marks=pytest.mark.slow),
        pytest.param("indexed", "host", "bytes", marks=pytest.mark.slow),
        pytest.param("indexed", "device", "decoded", marks=pytest.mark.slow),
        pytest.param("packed", "none", "none", marks=pytest.mark.slow),
        pytest.param("packed", "none", "decoded", marks=pytest.mark.slow),
    ],
)
def test_every_record_is_evaluated_once(request, files: str, augment: Any, cache: Any) -> None:
    manifest, size = request.getfixturevalue(files), 8 if augment == "device" else None
    config = dataclasses.replace(IDS, training=False, augment=augment, cache=cache, decoded_size=size)
    batches = build_dataset(manifest, "validation", config)
    assert [i for batch in batches for i in batch["id"].numpy()[batch["mask"].numpy()]] == list(range(40, 47))


def test_sizes_come_from_the_headers_and_a_cache_in_files_is_refused(indexed: Manifest, tmp_path: Path) -> None:
    images = Source.from_manifest(indexed, "train").images
    assert (images.formats, images.size) == ({"JPEG", "PNG"}, None)
    assert not Source.from_manifest(indexed, "train").has_sizes
    with pytest.raises(ConfigError, match="A cache in files needs a dataset that tfpipe wrote"):
        build_dataset(indexed, "train", dataclasses.replace(IDS, cache="bytes", cache_dir=str(tmp_path)))


def test_a_damaged_record_is_left_out_with_skip(foreign, tmp_path: Path) -> None:
    folder = foreign.imagenet(tmp_path)
    index(IndexConfig(str(folder)))
    path = folder / "train-00001-of-00004"
    flip_bit(path, path.stat().st_size // 2)
    config = dataclasses.replace(IDS, max_bad_records=2)
    rows = ids(load_manifest(str(folder)), "train", config, 4)
    assert len(rows) == 32
    assert len(set(rows)) == 31  # another record takes the place of the damaged one
    assert "train-00001-of-00004" in refusal(tf.errors.OpError, ids, load_manifest(str(folder)), "train", IDS, 5)
    foreign.write(folder / "train-00000-of-00004", foreign.records(0, 3))
    with pytest.raises(FormatError, match=r"train-00000-of-00004 must have .* bytes, .* run `tfpipe index` again\."):
        build_dataset(load_manifest(str(folder)), "train", IDS)


@pytest.mark.parametrize("cache", ["none", "bytes", "decoded"])
def test_compressed_files_are_read_in_throughput_order(packed: Manifest, cache) -> None:
    assert packed.compression == "GZIP"
    config = dataclasses.replace(IDS, cache=cache)
    assert "throughput" in str(build_stages(packed, "train", IDS))
    found = ids(packed, "train", config, 15)  # the shuffle buffer mixes epochs, so some come late
    assert set(found) <= set(range(40))
    assert len(set(found)) > 25


def test_exact_order_of_compressed_files_is_refused(packed: Manifest) -> None:
    assert refusal(ConfigError, build_dataset, packed, "train", dataclasses.replace(IDS, order="exact")) == (
        f"`order` exact must know where each record lies, and the files of 'train' of {packed.directory} are GZIP "
        "compressed, and are read from their beginning only. Use order='throughput', or write the files anew by "
        "`tfpipe reshard --opaque`."
    )
    with pytest.raises(
        ConfigError, match=r"`max_bad_records` is 100: that is for batches by their steps, and .* are GZIP"
    ):
        build_dataset(packed, "train", dataclasses.replace(IDS, max_bad_records=100))


def test_compressed_files_cannot_be_shared_out_for_evaluation(packed: Manifest) -> None:
    config = dataclasses.replace(IDS, training=False)
    with pytest.raises(ConfigError, match="Evaluation on 2 hosts needs to know where each record lies"):
        ids(packed, "validation", config, 1, num_input_pipelines=2, input_pipeline_id=0, num_replicas_in_sync=2)


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
def test_files_by_a_pattern_are_unpacked_by_their_first_bytes(foreign, tmp_path: Path, compression) -> None:
    source = tfrecord_files(str(foreign.imagenet(tmp_path, compression) / "train-*"))
    assert source.compression == compression
    assert sorted(ids(source, None, dataclasses.replace(IDS, training=False), 5)) == list(range(40))


CONFIG = PipelineConfig(batch_size=8, image_size=16, extra_features=("id",), seed=5)
SHARD = "train-00001-of-00004"


def read_payloads(data: bytes) -> list[bytes]:
    return [payload for _, payload in scan_records(io.BytesIO(data))]


def pack(payloads: list[bytes]) -> bytes:
    return b"".join(pack_member(framed([payload]), 6) for payload in payloads)


@pytest.fixture(scope="module")
def members(indexed: Manifest, tmp_path_factory) -> Manifest:
    folder = tmp_path_factory.mktemp("packed")
    for path in Path(indexed.directory).glob("*-of-*"):
        if payloads := read_payloads(path.read_bytes()):
            (folder / path.name).write_bytes(pack(payloads))
    index(IndexConfig(str(folder)))
    return load_manifest(str(folder))


@pytest.fixture
def copy(members: Manifest, tmp_path: Path) -> Path:
    return shutil.copytree(members.directory, tmp_path / "copy")


def test_the_manifest_says_the_sizes_packed_and_unpacked(indexed: Manifest, members: Manifest) -> None:
    assert (members.compression, members.random_access) == ("GZIP", True)
    for name, split in members.splits.items():
        other = indexed.splits[name]
        assert (split.unpacked_bytes, other.unpacked_bytes, split.records) == (other.bytes, 0, other.records)
        assert split.bytes == sum(os.path.getsize(f"{members.directory}/{shard.file}") for shard in split.shards)
        assert Source.from_manifest(members, name).record_bytes == Source.from_manifest(indexed, name).record_bytes


@pytest.mark.parametrize("cache", ["bytes", "decoded"])
def test_caches(indexed: Manifest, members: Manifest, cache) -> None:
    config = dataclasses.replace(CONFIG, cache=cache)
    one, other = NumpyBatches(indexed, "train", config), NumpyBatches(members, "train", config)
    for _, expected, found in zip(range(12), one, other, strict=False):
        np.testing.assert_array_equal(expected["id"], found["id"])
        np.testing.assert_array_equal(expected["image"], found["image"])


def test_records_by_their_numbers(indexed: Manifest, members: Manifest) -> None:
    one, other = (RecordReader(manifest.directory, manifest, "train") for manifest in (indexed, members))
    numbers = np.random.default_rng(1).integers(0, 40, 60)
    assert other.read_payloads(numbers) == one.read_payloads(numbers)
    assert [other.read_payload(number) for number in (39, 0, -1)] == one.read_payloads([39, 0, -1])
    assert data_source(members, "train")[17].label == data_source(indexed, "train")[17].label
    assert lock_data(members, "train", CONFIG).split == "train"
    assert next(iter(NumpyBatches(mix({members.directory: 1.0}), "train", CONFIG)))["id"].shape == (8,)
    config = dataclasses.replace(CONFIG, order="throughput")
    assert next(iter(build_dataset(members, "train", config)))["id"].shape == (8,)


def test_tensorflow_beam_and_gunzip_read_the_files(indexed: Manifest, members: Manifest) -> None:
    beam = pytest.importorskip("apache_beam")
    from apache_beam.testing.util import assert_that, equal_to

    path, payloads = f"{members.directory}/{SHARD}", read_payloads(Path(indexed.directory, SHARD).read_bytes())
    assert list(tf.data.TFRecordDataset(path, "GZIP").as_numpy_iterator()) == payloads
    assert gzip.decompress(Path(path).read_bytes()) == Path(indexed.directory, SHARD).read_bytes()
    with beam.Pipeline() as pipeline:
        records = pipeline | beam.io.ReadFromTFRecord(path, compression_type="gzip")
        assert_that(records, equal_to(payloads))


def test_verify_finds_every_damaged_member(copy: Path) -> None:
    assert verify(str(copy), VerifyConfig()).damaged == []
    rows = np.loadtxt(copy / f"index/{SHARD}.idx", np.int64)
    data = bytearray((copy / SHARD).read_bytes())
    for number in (2, 9):
        data[rows[number, 0] + 40] ^= 255
    (copy / SHARD).write_bytes(data)
    report = verify(str(copy), VerifyConfig())
    assert [(one.file, one.kind, one.record, one.offset) for one in report.damaged] == [
        (SHARD, "compressed", number, rows[number, 0]) for number in (2, 9)
    ]
    assert report.records == 45
    manifest = load_manifest(str(copy))
    reader = RecordReader(str(copy), manifest, "train")
    found = refusal(FormatError, reader.read_payloads, [13, 16, 17])
    assert found.startswith(f"{copy}/{SHARD}: The gzip member at byte {rows[2, 0]} is bad. ")
    config = dataclasses.replace(CONFIG, max_bad_records=2, training=False, batch_size=40, augment="none")
    batch = next(iter(NumpyBatches(manifest, "train", config)))
    assert sorted(set(range(40)) - set(batch["id"].tolist())) == [16, 23]


def test_an_index_of_another_file_is_told(copy: Path) -> None:
    names = [copy / f"index/{name}.idx" for name in (SHARD, "train-00000-of-00004")]
    payloads = read_payloads(gzip.decompress((copy / SHARD).read_bytes()))
    (copy / SHARD).write_bytes(pack([payloads[1], payloads[0], *payloads[2:]]))
    before = names[0].read_text()
    index(IndexConfig(str(copy)))
    names[0].write_text(before)
    report = verify(str(copy), VerifyConfig())
    assert [(one.file, one.kind, one.detail) for one in report.damaged] == [
        (f"index/{SHARD}.idx", "index", "it belongs to another file: records have other sizes")
    ]


GOOD = framed([encode_example({"image": [make_png(1)]})])


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (pack_member(GOOD, 6)[:-3], "the end of record 1 cannot be unpacked: the GZIP data ends too early"),
        (gzip.compress(bytes(1 << 28), 1), f"record 1 at byte {len(GOOD)} of the unpacked data is damaged: the "),
    ],
    ids=["cut off", "a bomb"],
)
def test_hostile_members_are_refused(tmp_path: Path, last: bytes, reason: str) -> None:
    path = tmp_path / "in/train.tfrecord.gz"
    path.parent.mkdir()
    path.write_bytes(pack_member(GOOD, 6) + last)
    with peak_memory() as peak:
        found = refusal(FormatError, index, IndexConfig(str(path.parent)))
        assert peak() < 20 << 20
    assert found.startswith(f"{path} cannot be indexed: {reason}")
    assert os.listdir(path.parent) == ["train.tfrecord.gz"]


@pytest.mark.parametrize(
    "last",
    [gzip.compress(GOOD + GOOD), gzip.compress(GOOD[:9]) + gzip.compress(GOOD[9:])],
    ids=["two in a member", "one in two members"],
)
def test_one_record_without_a_member_of_its_own_leaves_throughput_order(tmp_path: Path, last: bytes) -> None:
    (tmp_path / "train.tfrecord.gz").write_bytes(pack_member(GOOD, 6) + last)
    manifest = index(IndexConfig(str(tmp_path))).manifest
    assert (manifest.compression, manifest.random_access, manifest.splits["train"].unpacked_bytes) == ("GZIP", False, 0)
    assert sorted(os.listdir(tmp_path)) == ["manifest.json", "train.tfrecord.gz"]


@pytest.mark.parametrize("data", [b"", gzip.compress(b"")], ids=["no byte", "an empty member"])
def test_an_empty_file_has_no_records_and_keeps_the_exact_order(tmp_path: Path, data: bytes) -> None:
    examples = [encode_example({"image": [make_png(number)], "id": [number]}) for number in range(8)]
    (tmp_path / "train-0-of-2.gz").write_bytes(data)
    (tmp_path / "train-1-of-2.gz").write_bytes(pack(examples))
    files = [str(path) for path in sorted(tmp_path.iterdir())]
    assert list(tf.data.TFRecordDataset(files, "GZIP").as_numpy_iterator()) == examples
    manifest = index(IndexConfig(str(tmp_path))).manifest
    assert (manifest.random_access, [shard.records for shard in manifest.splits["train"].shards]) == (True, [0, 8])
    assert verify(str(tmp_path), VerifyConfig(workers=0)).damaged == []
    batch = NumpyBatches(manifest, "train", CONFIG).read(0)
    assert sorted(batch["id"].tolist()) == list(range(8))


def test_a_manifest_cannot_claim_members_of_other_files(members: Manifest, indexed: Manifest) -> None:
    text = manifest_json.dumps(members)
    assert manifest_json.loads(text) == dataclasses.replace(members, directory="")
    assert "only GZIP files have it" in refusal(FormatError, manifest_json.loads, text.replace('"GZIP"', '"ZLIB"'))
    unpacked = members.splits["train"].unpacked_bytes
    with pytest.raises(FormatError, match=r"unpacked_bytes must be a number from 640 to \d+, got 639"):
        manifest_json.loads(text.replace(f'"unpacked_bytes": {unpacked}', '"unpacked_bytes": 639'))


NAMES = ["daisy", "rose", "tulip"]


def write_flowers(tfds: Any, folder: Path) -> Path:
    """Writes small PNGs, as CIFAR's, by TensorFlow Datasets itself."""

    class Flowers(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")
        url_infos: ClassVar[dict] = {}  # nothing is downloaded, and looking for checksums needs one more package

        def _info(self):
            features = {
                "id": tf.int64,
                "image": tfds.features.Image(shape=(8, 8, 3)),
                "label": tfds.features.ClassLabel(names=NAMES),
                "tags": tfds.features.Sequence(tfds.features.Text()),
            }
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples(0, 40), "test": self._generate_examples(40, 10)}

        def _generate_examples(self, first, count):
            for k in range(first, first + count):
                pixels = np.full((8, 8, 3), k, np.uint8)
                yield k, {"id": k, "image": pixels, "label": 1 + k % 2, "tags": ["a"] * (k % 3)}

    builder = Flowers(data_dir=str(folder))
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=3))
    return Path(builder.data_path)


def test_tfds_is_indexed_verified_and_resumed(tmp_path: Path) -> None:
    tfds = pytest.importorskip("tensorflow_datasets")
    written = write_flowers(tfds, tmp_path)
    before = read_tree(written)
    report = index(IndexConfig(str(written)))
    manifest = load_manifest(str(written))
    assert report.notes == ()
    assert {name: split.records for name, split in manifest.splits.items()} == {"train": 40, "test": 10}
    assert (manifest.name, manifest.image_key, manifest.label_key) == ("flowers", "image", "label")
    assert (manifest.label_base, manifest.label_names) == (0, tuple(NAMES))
    assert manifest.splits["train"].class_counts == (0, 20, 20)
    assert manifest.schema["tags"].shape is None
    assert Source.from_manifest(manifest, "train").images.size == (8, 8)
    checked = verify(str(written), VerifyConfig(workers=0))
    assert (checked.records, checked.damaged) == (50, [])
    config = PipelineConfig(batch_size=4, augment="none", image_size=8, extra_features=("id",))
    whole = list(build_dataset(manifest, "train", config).take(12).as_numpy_iterator())
    resumed = build_dataset(manifest, "train", config, start_step=7).take(5).as_numpy_iterator()
    assert [batch["id"].tolist() for batch in resumed] == [batch["id"].tolist() for batch in whole[7:]]
    for batch in whole:
        assert batch["label"].tolist() == (1 + batch["id"] % 2).tolist()
        assert batch["image"][:, 0, 0, 0].tolist() == batch["id"].tolist()
    assert before.items() <= read_tree(written).items()
    assert len(list(tfds.builder_from_directory(str(written)).as_dataset(split="train"))) == 40
