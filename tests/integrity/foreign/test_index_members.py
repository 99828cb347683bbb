"""Files with a gzip member for each record: everything is as in the same files without compression."""

import dataclasses
import gzip
import io
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.beam_jobs.images import make_png
from tests.integrity.damaged import framed
from tests.memory import peak_memory
from tests.refusals import refusal
from tfpipe.dataset.load import load_manifest
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.mixture import mix
from tfpipe.engine.record_reader import RecordReader
from tfpipe.engine.source import Source
from tfpipe.errors import FormatError
from tfpipe.format import manifest_json
from tfpipe.format.compressed import pack_member
from tfpipe.format.example import encode_example
from tfpipe.format.manifest import Manifest
from tfpipe.format.tfrecord import scan_records
from tfpipe.integrity.foreign.index import IndexConfig, index
from tfpipe.integrity.verify import VerifyConfig, verify
from tfpipe.lookups.data_lock import lock_data
from tfpipe.pipeline.build import build_dataset
from tfpipe.readers.data_source import data_source
from tfpipe.readers.numpy import NumpyBatches

CONFIG = PipelineConfig(batch_size=8, image_size=16, extra_features=("id",), seed=5)
SHARD = "train-00001-of-00004"


def read_payloads(data: bytes) -> list[bytes]:
    return [payload for _, payload in scan_records(io.BytesIO(data))]


def pack(payloads: list[bytes]) -> bytes:
    return b"".join(pack_member(framed([payload]), 6) for payload in payloads)


@pytest.fixture(scope="module")
def plain(foreign, tmp_path_factory) -> Manifest:
    folder = foreign.imagenet(tmp_path_factory.mktemp("plain"))
    return index(IndexConfig(str(folder))).manifest


@pytest.fixture(scope="module")
def packed(plain: Manifest, tmp_path_factory) -> Manifest:
    folder = tmp_path_factory.mktemp("packed")
    for path in Path(plain.directory).glob("*-of-*"):
        if payloads := read_payloads(path.read_bytes()):
            (folder / path.name).write_bytes(pack(payloads))
    index(IndexConfig(str(folder)))
    return load_manifest(str(folder))


@pytest.fixture
def copy(packed: Manifest, tmp_path: Path) -> Path:
    return shutil.copytree(packed.directory, tmp_path / "copy")


def test_the_manifest_says_the_sizes_packed_and_unpacked(plain: Manifest, packed: Manifest) -> None:
    assert (packed.compression, packed.random_access) == ("GZIP", True)
    for name, split in packed.splits.items():
        other = plain.splits[name]
        assert (split.unpacked_bytes, other.unpacked_bytes, split.records) == (other.bytes, 0, other.records)
        assert split.bytes == sum(os.path.getsize(f"{packed.directory}/{shard.file}") for shard in split.shards)
        assert Source.from_manifest(packed, name).record_bytes == Source.from_manifest(plain, name).record_bytes


@pytest.mark.parametrize("cache", ["bytes", "decoded"])
def test_caches(plain: Manifest, packed: Manifest, cache) -> None:
    config = dataclasses.replace(CONFIG, cache=cache)
    one, other = NumpyBatches(plain, "train", config), NumpyBatches(packed, "train", config)
    for _, expected, found in zip(range(12), one, other, strict=False):
        np.testing.assert_array_equal(expected["id"], found["id"])
        np.testing.assert_array_equal(expected["image"], found["image"])


def test_records_by_their_numbers(plain: Manifest, packed: Manifest) -> None:
    one, other = (RecordReader(manifest.directory, manifest, "train") for manifest in (plain, packed))
    numbers = np.random.default_rng(1).integers(0, 40, 60)
    assert other.read_payloads(numbers) == one.read_payloads(numbers)
    assert [other.read_payload(number) for number in (39, 0, -1)] == one.read_payloads([39, 0, -1])
    assert data_source(packed, "train")[17].label == data_source(plain, "train")[17].label
    assert lock_data(packed, "train", CONFIG).split == "train"
    assert next(iter(NumpyBatches(mix({packed.directory: 1.0}), "train", CONFIG)))["id"].shape == (8,)
    config = dataclasses.replace(CONFIG, order="throughput")
    assert next(iter(build_dataset(packed, "train", config)))["id"].shape == (8,)


def test_tensorflow_beam_and_gunzip_read_the_files(plain: Manifest, packed: Manifest) -> None:
    tf = pytest.importorskip("tensorflow")
    beam = pytest.importorskip("apache_beam")
    from apache_beam.testing.util import assert_that, equal_to

    path, payloads = f"{packed.directory}/{SHARD}", read_payloads(Path(plain.directory, SHARD).read_bytes())
    assert list(tf.data.TFRecordDataset(path, "GZIP").as_numpy_iterator()) == payloads
    assert gzip.decompress(Path(path).read_bytes()) == Path(plain.directory, SHARD).read_bytes()
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
    tf = pytest.importorskip("tensorflow")
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


def test_a_manifest_cannot_claim_members_of_other_files(packed: Manifest, plain: Manifest) -> None:
    text = manifest_json.dumps(packed)
    assert manifest_json.loads(text) == dataclasses.replace(packed, directory="")
    assert "only GZIP files have it" in refusal(FormatError, manifest_json.loads, text.replace('"GZIP"', '"ZLIB"'))
    unpacked = packed.splits["train"].unpacked_bytes
    with pytest.raises(FormatError, match=r"unpacked_bytes must be a number from 640 to \d+, got 639"):
        manifest_json.loads(text.replace(f'"unpacked_bytes": {unpacked}', '"unpacked_bytes": 639'))
