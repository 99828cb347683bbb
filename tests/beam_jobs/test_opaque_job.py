"""`tfpipe reshard --opaque`: all records and nothing else, byte for byte, in an order that the seed alone decides."""

import dataclasses
import gzip
import os
import random
import signal
import subprocess
import sys
import time
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from beam_jobs import opaque_job
from beam_jobs.config import ShardConfig
from tests.beam_jobs.datasets import read_tree
from tests.beam_jobs.images import make_png
from tests.integrity.damaged import framed
from tests.refusals import refusal
from tfpipe.dataset.load import load_manifest
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format.compressed import pack_member, scan_compressed, scan_members
from tfpipe.format.example import encode_example
from tfpipe.format.tfrecord import scan_records
from tfpipe.integrity.foreign.index import IndexConfig, index
from tfpipe.integrity.verify import VerifyConfig, verify
from tfpipe.readers.numpy import NumpyBatches

SECOND = "Record 1 at byte 19 of the unpacked data"


def draw_payloads(seed: int, count: int) -> list[bytes]:
    generator = random.Random(seed)
    return [generator.randbytes(generator.randrange(300)) + b"%d" % k for k in range(count)]


def pack(form: str, payloads: list[bytes]) -> bytes:
    if form == "members":
        return b"".join(pack_member(framed([payload]), 6) for payload in payloads)
    return {"plain": bytes, "gzip": gzip.compress, "zlib": zlib.compress}[form](framed(payloads))


def read(folder: Path) -> list[bytes]:
    payloads = []
    for path in sorted(folder.glob("*-of-*")):
        with path.open("rb") as file:
            is_packed = path.suffix == ".gz"
            payloads += scan_compressed(file, "GZIP") if is_packed else [payload for _, payload in scan_records(file)]
    return payloads


@pytest.fixture(scope="module")
def payloads() -> list[list[bytes]]:
    return [draw_payloads(file, count) for file, count in enumerate((700, 1, 0, 633))]


@pytest.fixture(scope="module")
def inputs(payloads, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    for form in ("plain", "gzip", "zlib", "members"):
        for k, own in enumerate(payloads):
            (folder / f"{form}.tfrecord-{k:05d}-of-00004.gz").write_bytes(pack(form, own))
    return folder


def run(inputs: Path, form: str, output: Path, compression="GZIP", **options) -> opaque_job.OpaqueResult:
    options = {"num_shards": 3, "workers": 1, **options}
    return run_job(ShardConfig(f"{inputs}/{form}.tfrecord*", str(output), **options), compression)


def run_job(config: ShardConfig, compression="GZIP") -> opaque_job.OpaqueResult:
    describe = lambda shards: index(IndexConfig(shards, split=config.split or "train")).manifest  # noqa: E731
    return opaque_job.run(config, compression, describe)


@pytest.fixture(scope="module")
def expected(inputs, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("expected") / "out"
    run(inputs, "gzip", output)
    return output


def test_all_records_in_another_order(payloads, expected: Path) -> None:
    stored = [payload for own in payloads for payload in own]
    found = read(expected)
    assert Counter(found) == Counter(stored)
    moved = [abs(stored.index(payload) - place) for place, payload in enumerate(found)]
    assert np.mean(moved) == pytest.approx(len(stored) / 3, rel=0.1)  # as in a random order
    assert sorted(os.listdir(expected)) == ["opaque.json", *(f"train-{k:05d}-of-00003.tfrecord.gz" for k in range(3))]
    assert os.listdir(expected.parent) == ["out"]
    tf = pytest.importorskip("tensorflow")
    files = tf.io.gfile.glob(f"{expected}/train-?????-of-?????.tfrecord.gz")
    assert list(tf.data.TFRecordDataset(sorted(files), "GZIP").as_numpy_iterator()) == read(expected)


@pytest.mark.parametrize("compression", ["GZIP", ""])
@pytest.mark.parametrize("form", ["plain", "gzip", "zlib", "members"])
def test_every_form_gives_the_same_order(inputs: Path, expected: Path, tmp_path: Path, form: str, compression: str):
    result = run(inputs, form, tmp_path / "out", compression)
    assert read(tmp_path / "out") == read(expected)
    ending = ".gz" if compression else ""
    assert result.shards == tuple(f"train-{k:05d}-of-00003.tfrecord{ending}" for k in range(3))
    assert (result.records, result.files) == (1334, 4)


def test_workers_do_not_matter_and_the_seed_does(inputs: Path, expected: Path, tmp_path: Path) -> None:
    run(inputs, "gzip", tmp_path / "three", workers=3)
    assert read_tree(tmp_path / "three") == read_tree(expected)
    run(inputs, "gzip", tmp_path / "other", seed=1)
    assert read(tmp_path / "other") != read(expected)
    assert Counter(read(tmp_path / "other")) == Counter(read(expected))


def test_no_shuffle_keeps_the_order(inputs: Path, payloads, tmp_path: Path) -> None:
    options = {"shuffle": False, "num_shards": None, "shard_size_bytes": 50_000, "split": "tune"}
    result = run(inputs, "gzip", tmp_path / "out", **options)
    assert read(tmp_path / "out") == [payload for own in payloads for payload in own]
    assert len(result.shards) == -(-result.bytes // 50_000) == 6
    assert result.shards[5] == "tune-00005-of-00006.tfrecord.gz"
    assert max((tmp_path / "out" / name).stat().st_size for name in result.shards) < 60_000


def test_members_are_copied_packed(tmp_path: Path) -> None:
    members = [pack_member(framed([payload]), 1) for payload in draw_payloads(9, 50)]
    (tmp_path / "in.gz").write_bytes(b"".join(members))
    run_job(ShardConfig(str(tmp_path / "in.gz"), str(tmp_path / "out"), workers=1), "GZIP")
    data = (tmp_path / "out/train-00000-of-00001.tfrecord.gz").read_bytes()
    assert sum(size for _, size in scan_members((tmp_path / "in.gz").open("rb"))) == len(data)
    assert all(member in data for member in members)


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_examples_get_a_manifest_and_an_exact_order(tmp_path: Path, compression) -> None:
    examples = [encode_example({"image/encoded": [make_png(k)], "id": [k]}) for k in range(24)]
    (tmp_path / "in.tfrecord.gz").write_bytes(gzip.compress(framed(examples)))
    output = tmp_path / "shapes"
    config = ShardConfig(str(tmp_path / "in.tfrecord.gz"), str(output), num_shards=2, workers=1)
    assert run_job(config, compression).unindexed is None
    manifest = load_manifest(str(output))
    assert (manifest.name, manifest.random_access, manifest.splits["train"].records) == ("shapes", True, 24)
    assert verify(str(output), VerifyConfig()).damaged == []
    config = PipelineConfig(batch_size=6, image_size=8, extra_features=("id",))
    batches = list(NumpyBatches(manifest, "train", config))
    assert sorted(np.concatenate([batch["id"] for batch in batches]).tolist()) == list(range(24))


def test_other_payloads_say_that_they_have_no_manifest(inputs: Path, tmp_path: Path) -> None:
    reason = run(inputs, "plain", tmp_path / "out").unindexed
    assert reason.startswith("train-00000-of-00003.tfrecord.gz cannot be indexed: record 0 is not a tf.train.Example: ")
    assert reason.endswith(". `tfpipe reshard --opaque` shuffles records of any content.")
    report = verify(str(tmp_path / "out"), VerifyConfig(workers=0))
    assert (report.files, report.records, report.damaged) == (3, 1334, [])
    shard = tmp_path / "out" / "train-00001-of-00003.tfrecord.gz"
    shard.write_bytes(shard.read_bytes()[:-5])
    report = verify(str(tmp_path / "out"), VerifyConfig(workers=0))
    assert [(one.file, one.kind) for one in report.damaged] == [(shard.name, "compressed")]


def test_the_same_run_again_finds_everything_finished(inputs: Path, tmp_path: Path) -> None:
    first, before = run(inputs, "plain", tmp_path / "out"), read_tree(tmp_path / "out")
    left = tmp_path / "out.tfpipe-opaque"
    left.mkdir()
    (left / "plan.json").write_text("of a run that was killed just before its end")
    again = run(inputs, "plain", tmp_path / "out", workers=2)
    assert dataclasses.replace(again, seconds=0) == dataclasses.replace(first, seconds=0)
    assert read_tree(tmp_path / "out") == before
    assert os.listdir(tmp_path) == ["out"]
    for changed in ("train-00001-of-00003.tfrecord.gz", "opaque.json"):
        (tmp_path / "out" / changed).write_bytes(b"{}")
        with pytest.raises(ConfigError, match="must be empty or not exist yet, and holds "):
            run(inputs, "plain", tmp_path / "out")


def test_a_run_that_was_killed_goes_on(inputs: Path, expected: Path, tmp_path: Path) -> None:
    seed = random.randrange(1000)
    print(f"{seed=}")
    generator, output = random.Random(seed), tmp_path / "out"
    command = [sys.executable, "-m", "tfpipe", "reshard", "--opaque", f"{inputs}/gzip.tfrecord*", str(output)]
    command += ["--compression", "gzip", "--num-shards", "3", "--workers", "1"]
    for names in generator.sample(["plan.json", "sizes/00000", "sizes/00003", "data/*.gz", "rows/*"], 2):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            work = Path(f"{output}.tfpipe-opaque")
            while process.poll() is None and not list(work.glob(names)):
                time.sleep(0.001)
            process.send_signal(signal.SIGKILL)
        if output.exists():
            break
        time.sleep(0.2)  # for the workers, which end when they find their parent gone
    if not output.exists():
        run(inputs, "gzip", output)
    assert read_tree(output) == read_tree(expected)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (pack("gzip", [b"one", b"two"])[:-9], "cannot be unpacked: the GZIP data ends too early."),
        (pack("members", [b"one", b"two"])[:-3], "The end of record 1 cannot be unpacked: the GZIP data ends too "),
        (gzip.compress(b"something else"), "Record 0 at byte 0 of the unpacked data is damaged: the checksum of its"),
        (pack("members", [b"one"]) + gzip.compress(bytes(1 << 27), 1), f"{SECOND} is damaged: the checksum of its"),
        (pack("members", [b"one"]) + b"rest", f"{SECOND} cannot be unpacked"),
        (b"no records at all", "Record 0 at byte 0 is damaged: the checksum of its length is wrong."),
    ],
    ids=["a stream cut off", "a member cut off", "no records packed", "a bomb", "more bytes", "no records"],
)
def test_what_is_damaged_is_named_and_nothing_is_written(tmp_path: Path, data: bytes, reason: str) -> None:
    (tmp_path / "in.gz").write_bytes(data)
    config = ShardConfig(str(tmp_path / "in.gz"), str(tmp_path / "out"), workers=1)
    message = refusal(FormatError, run_job, config, "GZIP")
    assert message.startswith(f"{tmp_path}/in.gz: ")
    assert reason in message
    assert os.listdir(tmp_path) == ["in.gz"]


def test_refusals(inputs: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"No file fits {tmp_path}/none.tfrecord"):
        run(tmp_path, "none", tmp_path / "out")
    with pytest.raises(ConfigError, match="reads files of this machine, got gs://"):
        run_job(ShardConfig("gs://bucket/files", str(tmp_path / "out")))
    with pytest.raises(ConfigError, match="writes to a disk of this machine, got s3://"):
        run_job(ShardConfig(str(inputs), "s3://bucket/out"))
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(DataError, match=r"The 1 files of .* have no record"):
        run_job(ShardConfig(str(tmp_path / "empty"), str(tmp_path / "out"), workers=1))


def test_the_command(tfpipe, inputs: Path, expected: Path, tmp_path: Path) -> None:
    done = tfpipe("reshard", "--opaque", f"{inputs}/gzip.tfrecord*", tmp_path / "out", "--compression", "gzip",
                  "--num-shards", 3, "--workers", 1)  # fmt: skip
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].startswith("1,334 records of 4 files, 3 shards, ")
    assert lines[1].startswith("No manifest, so no exact order: ")
    assert lines[3:] == [f'tfrecord_path: "{tmp_path}/out/train-?????-of-?????.tfrecord.gz"', "num_examples: 1334"]
    assert read_tree(tmp_path / "out") == read_tree(expected)
    for options, message in (
        (("--opaque", "--resize-short", 8), "so --resize-short does not go with it."),
        (("--opaque", "--dry-run"), "so --dry-run does not go with it."),
        (("--compression", "gzip"), "--compression goes with --opaque. Leave it out, or add --opaque."),
    ):
        done = tfpipe("reshard", inputs, tmp_path / "other", *options)
        assert done.code == 2
        assert message in done.err
