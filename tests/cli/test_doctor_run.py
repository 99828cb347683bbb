"""The checks on a real dataset, its pipeline and this machine."""

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.beam_jobs.commands import run_python
from tests.flipped_bit import flip_bit
from tests.integrity.made import payload, write_dataset
from tests.several_images import write_several
from tfpipe.cli import doctor_run
from tfpipe.cli.doctor_checks import TargetConfig
from tfpipe.cli.doctor_run import CHECKS, check_shapes, run_checks
from tfpipe.cli.shared.checks import Check
from tfpipe.dataset.load import load_manifest
from tfpipe.engine.config.pipeline_config import PipelineConfig, TfDataOptions
from tfpipe.engine.source import tfrecord_files
from tfpipe.format.manifest import Manifest
from tfpipe.system import host_limits
from tfpipe.system.units import human_bytes

CONFIG = PipelineConfig(batch_size=8, image_size=16)
THROUGHPUT = dataclasses.replace(CONFIG, order="throughput")
SMALL_BUFFER = TfDataOptions(shuffle_buffer_size=8)
"""The same batches; this pipeline is built in half the time, for tests in which the order does not matter."""

HERE, LOCAL_TPU = TargetConfig(), TargetConfig(tpu="local")


@pytest.fixture
def manifest(small_dataset: Path) -> Manifest:
    return load_manifest(str(small_dataset))


def some(
    manifest: Manifest, names: str, config: PipelineConfig = CONFIG, target: TargetConfig = HERE, **options: Any
) -> list[Check]:
    """Runs some of the checks, with some other options of the pipeline."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor_run, "CHECKS", {name: CHECKS[name] for name in names.split(", ")})
        return list(run_checks(manifest, "train", dataclasses.replace(config, **options), target))


def test_all_checks_pass_on_a_good_dataset(manifest: Manifest) -> None:
    checks = {check.name: check for check in run_checks(manifest, "train", CONFIG, HERE)}
    assert list(checks) == ["versions", "batch", "memory", "shapes", "xla"]
    assert {check.status for check in checks.values()} == {"ok"}
    assert checks["shapes"].found == "image uint8 [8, 16, 16, 3], label int32 [8]."
    assert checks["batch"].found == (
        "8 images: 8 for each of 1 replica on 1 host, read record by record; 1 step an epoch."
    )
    assert checks["memory"].found.startswith("12 records that are read ahead and finished batches take about ")


def test_records_with_several_images(tmp_path: Path) -> None:
    several = write_several(tmp_path / "several", number=None)
    shapes, xla = some(several, "shapes, xla", images=2)
    assert (shapes.status, shapes.found) == ("ok", "image uint8 [8, 2, 16, 16, 3], label int32 [8].")
    assert xla.found.startswith("A step on a batch of 8 images compiled and ran in ")


def test_records_that_are_damaged(pets: str) -> None:
    flip_bit(Path(pets) / "train-00000-of-00002.tfrecord", 100)
    (shapes,) = some(load_manifest(pets), "shapes", training=False)
    assert shapes.status == "failure"
    assert "train-00000-of-00002.tfrecord: Record at byte 0 is damaged: the checksum of its " in shapes.found


def test_a_batch_and_its_replicas(manifest: Manifest) -> None:
    batch, shapes, xla = some(manifest, "batch, shapes, xla", target=TargetConfig(num_replicas=3))
    assert batch == Check("batch", "failure", "`batch_size` 8 must be divisible by 3 replicas; use 6 or 9.")
    assert shapes == Check("shapes", "skipped", "Not reached: see batch.")
    assert xla == Check("xla", "skipped", "Not reached: see batch.")
    (batch,) = some(manifest, "batch", batch_size=64)
    found = "`batch_size` must be at most the 12 records of an epoch, got 64."
    assert batch == Check("batch", "failure", found, "Use 12 or less, or more data.")
    target = TargetConfig(num_replicas=2, num_hosts=2)
    (batch,) = some(manifest, "batch", target=target, batch_size=4, block_records=3)
    found = "4 images: 2 for each of 2 replicas on 2 hosts, read in blocks of 3 records; 3 steps an epoch."
    assert batch == Check("batch", "ok", found)


@pytest.mark.parametrize(("images", "advice"), [(12, "Use 8 or 16"), (4, "Use 8")])
def test_a_batch_that_a_tpu_fills_up(manifest: Manifest, images: int, advice: str) -> None:
    config = dataclasses.replace(THROUGHPUT, batch_size=images)
    (batch,) = some(manifest, "batch", config, TargetConfig(tpu="local", num_replicas=1))
    assert (batch.status, batch.advice) == ("warning", f"{advice} for each replica.")
    assert batch.found.startswith(f"{images} images: {images} for each of 1 replica on 1 host; ")
    assert batch.found.endswith(" an epoch. A TPU fills up each replica's batch to a multiple of 8.")
    (batch,) = some(manifest, "batch", target=TargetConfig(tpu="my-tpu"))
    advice = "Say how many there are with `num_replicas` and `num_hosts`."
    assert (batch.status, batch.advice) == ("warning", advice)
    assert batch.found.endswith("; 1 step an epoch. How many replicas 'my-tpu' has is not known here.")


def test_evaluation_and_a_shuffle_buffer(manifest: Manifest) -> None:
    (memory,) = some(manifest, "memory", THROUGHPUT)
    begin = "12 records that are read ahead, a shuffle buffer of 12 records and finished batches take about "
    assert memory.found.startswith(begin)
    config = dataclasses.replace(CONFIG, training=False, as_supervised=True)
    memory, shapes, xla = some(manifest, "memory, shapes, xla", config)
    assert memory.found.startswith("12 records that are read ahead and finished batches take about ")
    assert shapes.found == "image uint8 [None, 16, 16, 3], label int32 [None], mask float32 [None]."
    assert xla.status == "ok"


def test_text_in_the_batch(manifest: Manifest) -> None:
    config = dataclasses.replace(THROUGHPUT, extra_features=("image/filename",))
    shapes, xla = some(manifest, "shapes, xla", config)
    advice = "Leave it out of `extra_features` for training: no compiled step takes strings."
    assert shapes == Check("shapes", "warning", "The batch has text in it: image/filename.", advice)
    assert xla.status == "ok"  # the step is compiled without it
    (shapes,) = some(manifest, "shapes", config, LOCAL_TPU)
    assert shapes == Check("shapes", "failure", "The batch has text in it: image/filename.", advice)


def test_shapes_and_dtypes() -> None:
    specs = {"image": tf.TensorSpec([8, None, 24, 3], tf.uint8), "box": tf.TensorSpec(None, tf.float32)}
    assert check_shapes(specs, HERE) == Check(
        "shapes",
        "failure",
        "The shape must be static, and that of image, box is not.",
        "XLA compiles for one shape: give it a size in `pad_to` or the schema, or leave it out of the batch.",
    )
    specs = {"seed": tf.TensorSpec([8, 2], tf.int64), "depth": tf.TensorSpec([8], tf.float64)}
    assert check_shapes(specs, LOCAL_TPU) == Check(
        "shapes", "failure", "A TPU does not take depth float64.", "Cast it on the host, or leave it out."
    )
    assert check_shapes(specs, HERE) == Check("shapes", "ok", "seed int64 [8, 2], depth float64 [8].")


def test_a_step_compiles(manifest: Manifest) -> None:
    for changes in ({"augment": "device", "order": "auto"}, {"one_hot": True, "image_dtype": "bfloat16"}):
        (xla,) = some(manifest, "xla", THROUGHPUT, **changes)
        assert xla.status == "ok"
        assert xla.found.startswith("A step on a batch of 8 images compiled and ran in ")


def test_a_step_that_does_not_compile(manifest: Manifest, monkeypatch) -> None:
    def on_the_host(images: tf.Tensor, *_: object) -> tf.Tensor:
        result = tf.py_function(lambda values: tf.cast(values, tf.float32), [images], tf.float32)
        return tf.ensure_shape(result, images.shape)

    monkeypatch.setattr(doctor_run.augment, "normalize", on_the_host)
    (xla,) = some(manifest, "xla", THROUGHPUT)
    assert xla.status == "failure"
    assert xla.found.startswith("XLA does not compile a step on this batch: Detected unsupported operations")
    assert "\n" not in xla.found
    assert xla.advice.startswith("A TPU runs only what XLA compiles: ")


@pytest.mark.parametrize(("free", "status"), [(1_000_000, "ok"), (300_000, "warning"), (150_000, "failure")])
def test_a_cache_in_memory(manifest: Manifest, monkeypatch, free: int, status: str) -> None:
    monkeypatch.setattr(host_limits, "available_memory_bytes", lambda: free)
    config = dataclasses.replace(CONFIG, cache="decoded", decoded_size=64)
    (memory,) = some(manifest, "memory", config)
    assert memory.status == status
    assert memory.found.startswith("The cache and finished batches take about 180.6 KB, with the program ")
    assert memory.found.endswith(f". {human_bytes(free)} are free.")
    if status == "failure":
        assert memory.advice == "Keep less of it with `cache_bytes`, or all of it in files with `cache_dir`."
        (memory,) = some(manifest, "memory", dataclasses.replace(config, order="throughput"))
        assert memory.advice == "Use no cache, or a smaller `decoded_size`."


def test_a_cache_in_files(manifest: Manifest, tmp_path: Path) -> None:
    in_files = dataclasses.replace(CONFIG, cache="decoded", decoded_size=64, cache_dir=str(tmp_path))
    # Its files are read in exact order, as any dataset's, and hold decoded images.
    in_blocks = dataclasses.replace(in_files, batch_size=4, block_records=3)
    (memory,) = some(manifest, "memory", in_blocks)
    in_cache, batches = 12 * 64 * 64 * 3, 5 * 4 * 16 * 16 * 3
    assert memory.found.startswith(
        f"12 records that are read ahead and finished batches take about {human_bytes(in_cache + batches)}, with the "
    )
    folder = tmp_path / "cache"
    (xla,) = some(manifest, "xla", cache="bytes", cache_dir=str(folder))  # which fills none
    assert xla.status == "ok"
    assert not folder.exists()


def test_foreign_files(small_dataset: Path) -> None:
    source = tfrecord_files(str(small_dataset / "train-*"))
    config = dataclasses.replace(CONFIG, tf_data=SMALL_BUFFER, cache="bytes")
    checks = {check.name: check for check in run_checks(source, None, config, HERE)}
    assert {check.status for check in checks.values()} == {"ok"}


CODE = """
import itertools, json, os, sys
import tfpipe
from tfpipe.cli import doctor_run
from tfpipe.cli.doctor_checks import TargetConfig
from tfpipe.system.host_limits import peak_memory_bytes

directory, options = sys.argv[1], json.loads(sys.argv[2])
config = tfpipe.PipelineConfig(batch_size=64, **options)
manifest = tfpipe.load_manifest(directory)
doctor_run.CHECKS = {"memory": doctor_run.CHECKS["memory"]}
(check,) = doctor_run.run_checks(manifest, "train", config, TargetConfig())
for _ in itertools.islice(tfpipe.build_dataset(manifest, "train", config), 60):
    pass
print(json.dumps([check.found, peak_memory_bytes()]), flush=True)
os._exit(0)  # TensorFlow sometimes takes a minute to delete an iterator
"""


@pytest.fixture(scope="module")
def large_records(tmp_path_factory) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (300, 400, 3), np.uint8)
    encoded = io.BytesIO()
    Image.fromarray(pixels).save(encoded, "JPEG", quality=95)
    payloads = [payload(0, encoded=encoded.getvalue(), format="JPEG", height=300, width=400)] * 1500
    return write_dataset(tmp_path_factory.mktemp("large") / "noise", {"train": payloads})


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"order": "throughput"}, {"cache": "bytes"}, {"training": False}], ids=str)
def test_the_process_takes_what_doctor_says(large_records: Path, options: dict[str, object]) -> None:
    done = run_python("-c", CODE, large_records, json.dumps(options))
    assert done.returncode == 0, done.stderr
    found, peak_bytes = json.loads(done.stdout.splitlines()[-1])
    amount, unit = found.split(" with the program ")[1].split(". ")[0].split()
    assert float(amount) * {"MB": 1e6, "GB": 1e9}[unit] == pytest.approx(peak_bytes, rel=0.2), found
