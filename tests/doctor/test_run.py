"""The checks on a real dataset, its pipeline and this machine."""

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.several_images import write_several
from tfpipe.dataset.load import load_manifest
from tfpipe.doctor import probes
from tfpipe.doctor.result import Check, TargetConfig
from tfpipe.doctor.run import run_checks
from tfpipe.doctor.runtime_checks import TensorFact
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.config.tf_data_options import TfDataOptions
from tfpipe.engine.plan import plan_batches
from tfpipe.engine.record_reader import RecordReader
from tfpipe.engine.source import Source, tfrecord_files
from tfpipe.errors import ConfigError, DataError
from tfpipe.format.manifest import Manifest
from tfpipe.format.schema import CLASS_LABEL

CONFIG = PipelineConfig(batch_size=8, image_size=16)
THROUGHPUT = dataclasses.replace(CONFIG, order="throughput")
SMALL_BUFFER = TfDataOptions(shuffle_buffer_size=8)
"""The same batches; this pipeline is built in half the time, for tests in which the order does not matter."""


@pytest.fixture
def copy(small_dataset: Path, tmp_path: Path) -> Path:
    return shutil.copytree(small_dataset, tmp_path / "copy")


@pytest.fixture
def manifest(small_dataset: Path) -> Manifest:
    return load_manifest(str(small_dataset))


def some(
    manifest: Manifest, names: str, config: PipelineConfig = CONFIG, target: TargetConfig | None = None
) -> list[Check]:
    checks = {check.name: check for check in run_checks(manifest, "train", config, target, names=names.split(", "))}
    return [checks[name] for name in names.split(", ")]


def test_all_checks_pass_on_a_good_dataset(manifest: Manifest) -> None:
    checks = {check.name: check for check in run_checks(manifest, "train", CONFIG)}
    assert [check.name for check in checks.values() if check.status != "ok"] == ["cpu"]
    assert checks["cpu"].status == "skipped"
    assert list(checks)[-3:] == ["shapes", "xla", "cpu"]
    assert {name: checks[name].found for name in ("files", "first record", "shapes", "batch")} == {
        "files": "All 4 files are there, with the sizes they should have.",
        "first record": "It decodes to 16 × 24 × 3.",
        "shapes": "image uint8 [8, 16, 16, 3], label int32 [8].",
        "batch": "8 images: 8 for each of 1 replica on 1 host, read record by record; 1 step an epoch.",
    }
    assert checks["labels"].found.startswith("12 labels were looked at, too few")
    assert checks["memory"].found.startswith("12 records that are read ahead and finished batches take about ")


def test_records_with_several_images(tmp_path: Path) -> None:
    several = write_several(tmp_path / "several", number=None)
    first, labels, shapes, xla = some(
        several, "first record, labels, shapes, xla", dataclasses.replace(CONFIG, images=2)
    )
    assert (first.status, first.found) == ("ok", "It decodes to 35 × 36 × 3.")
    assert labels.found.startswith("18 labels were looked at")
    assert (shapes.status, shapes.found) == ("ok", "image uint8 [8, 2, 16, 16, 3], label int32 [8].")
    assert xla.found.startswith("A step on a batch of 8 images compiled and ran in ")


def test_a_split_that_is_not_there(manifest: Manifest) -> None:
    with pytest.raises(ConfigError, match="The dataset has no split 'test'"):
        next(run_checks(manifest, "test", CONFIG))


def test_files_that_are_not_whole(copy: Path) -> None:
    manifest = load_manifest(str(copy))
    shard = copy / "train-00001-of-00002.tfrecord"
    size = shard.stat().st_size
    shard.write_bytes(shard.read_bytes()[:-10])
    (found,) = some(manifest, "files")
    assert (found.status, found.found) == ("failure", f"{shard} must have {size:,} bytes, got {size - 10:,}.")
    index = copy / "index" / "train-00000-of-00002.idx"
    index.unlink()
    (found,) = some(manifest, "files")
    assert (found.status, found.found) == ("failure", f"{index} is missing.")


def test_a_first_record_that_is_damaged(copy: Path) -> None:
    shard = copy / "train-00000-of-00002.tfrecord"
    data = bytearray(shard.read_bytes())
    data[100] ^= 1
    shard.write_bytes(bytes(data))
    (found,) = some(load_manifest(str(copy)), "first record")
    assert (found.status, found.found) == (
        "failure",
        f"The first record cannot be decoded: {shard}: Record at byte 0 is damaged: the checksum of its 1045 bytes of "
        "payload is wrong. Copy the dataset again, or save the undamaged records with `tfpipe repair`.",
    )


def test_a_batch_that_cannot_be_shared(manifest: Manifest) -> None:
    batch, shapes, xla = some(manifest, "batch, shapes, xla", target=TargetConfig(num_replicas=3))
    assert batch == Check("batch", "failure", "`batch_size` 8 must be divisible by 3 replicas; use 6 or 9.")
    assert shapes == Check("shapes", "skipped", "Not reached: see batch.")
    assert xla == Check("xla", "skipped", "Not reached: see batch.")
    (batch,) = some(manifest, "batch", dataclasses.replace(CONFIG, batch_size=64))
    assert batch == Check(
        "batch",
        "failure",
        "`batch_size` must be at most the 12 records of an epoch, got 64.",
        "Use 12 or less, or more data.",
    )


def test_the_throughput_order_reads_whole_shards(manifest: Manifest) -> None:
    shards, memory = some(manifest, "shards, memory", THROUGHPUT)
    assert (shards.status, shards.found) == (
        "warning",
        "2 shards for each host, fewer than the `tf_data.cycle_length` of 8.",
    )
    assert memory.found.startswith(
        "12 records that are read ahead, a shuffle buffer of 12 records and finished batches take about "
    )
    (shards,) = some(manifest, "shards", THROUGHPUT, TargetConfig(num_hosts=4, num_replicas=4))
    assert shards.status == "failure"


def test_evaluation(manifest: Manifest) -> None:
    config = dataclasses.replace(CONFIG, training=False, as_supervised=True)
    labels, memory, shapes, xla = some(manifest, "labels, memory, shapes, xla", config)
    assert labels.found == "Evaluation reads every record once, and the order does not matter."
    assert memory.found.startswith("12 records that are read ahead and finished batches take about ")
    assert shapes.found == "image uint8 [8, 16, 16, 3], label int32 [8], mask float32 [8]."
    assert xla.status == "ok"


def test_text_in_the_batch(manifest: Manifest) -> None:
    config = dataclasses.replace(THROUGHPUT, extra_features=("image/filename",))
    shapes, xla = some(manifest, "shapes, xla", config)
    assert (shapes.status, shapes.found) == ("warning", "The batch has text in it: image/filename.")
    assert xla.status == "ok"  # the step is compiled without it
    (shapes,) = some(manifest, "shapes", config, TargetConfig(tpu="local"))
    assert shapes.status == "failure"


@pytest.mark.parametrize("changes", [{"augment": "device"}, {"one_hot": True, "image_dtype": "bfloat16"}], ids=str)
def test_a_step_compiles(manifest: Manifest, changes: dict[str, object]) -> None:
    (xla,) = some(manifest, "xla", dataclasses.replace(THROUGHPUT, **changes))
    assert xla.status == "ok"
    assert xla.found.startswith("A step on a batch of 8 images compiled and ran in ")


def test_a_step_that_does_not_compile(manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    import tensorflow as tf

    def on_the_host(images: tf.Tensor, *_: object) -> tf.Tensor:
        result = tf.py_function(lambda values: tf.cast(values, tf.float32), [images], tf.float32)
        return tf.ensure_shape(result, images.shape)

    monkeypatch.setattr(probes.augment, "normalize", on_the_host)
    (xla,) = some(manifest, "xla", THROUGHPUT)
    assert xla.status == "failure"
    assert xla.found.startswith("XLA does not compile a step on this batch: Detected unsupported operations")
    assert "\n" not in xla.found


def test_a_cache(manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tfpipe.system import host_limits
    from tfpipe.system.units import human_bytes

    config = dataclasses.replace(CONFIG, cache="decoded", decoded_size=64)
    cache, memory = some(manifest, "cache, memory", config)
    assert cache.status == "ok"
    assert cache.found.startswith("The cache of decoded images takes 149.9 KB of memory, and ")
    assert memory.found.startswith("The cache and finished batches take about ")
    monkeypatch.setattr(host_limits, "available_memory_bytes", lambda: 150_000)
    cache, memory = some(manifest, "cache, memory", config)
    assert cache.status == "failure"
    assert memory.advice == "Keep less of it with `cache_bytes`, or all of it in files with `cache_dir`."
    cache, memory = some(manifest, "cache, memory", dataclasses.replace(config, order="throughput"))
    assert cache.advice == "Use a smaller `decoded_size`, or no cache."
    assert memory.advice == "Use no cache, or a smaller `decoded_size`."
    in_files = dataclasses.replace(config, cache_dir=str(tmp_path))
    monkeypatch.setattr(host_limits, "free_disk_bytes", lambda _: 1000)
    cache, memory = some(manifest, "cache, memory", in_files)
    assert (cache.status, cache.found) == (
        "failure",
        f"The cache of decoded images takes 149.9 KB in {tmp_path}, and 1.0 KB are free there.",
    )
    # Its files are read in exact order, as any dataset's, and hold decoded images.
    in_blocks = dataclasses.replace(in_files, batch_size=4, block_records=3, decoder="pillow")
    (memory,) = some(manifest, "memory", in_blocks)
    in_cache, batches = 12 * 64 * 64 * 3, 5 * 4 * 16 * 16 * 3
    assert memory.found.startswith(
        f"12 records that are read ahead and finished batches take about {human_bytes(in_cache + batches)}, with the "
    )
    (tmp_path / "pets-train-0123456789abcdef").mkdir()
    (tmp_path / "pets-train-0123456789abcdef" / "manifest.json").touch()
    (cache,) = some(manifest, "cache", in_files)
    assert cache.found == f"{tmp_path} has a cache of this split already."


def test_the_pipeline_is_looked_at_without_filling_a_cache(manifest: Manifest, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    config = dataclasses.replace(CONFIG, cache="bytes", cache_dir=str(folder))
    (xla,) = some(manifest, "xla", config)
    assert xla.status == "ok"
    assert not folder.exists()


def test_labels_are_read_as_they_lie(manifest: Manifest, small_dataset: Path) -> None:
    with RecordReader(str(small_dataset), manifest, "train") as reader:
        expected = [int(features[CLASS_LABEL][0]) for features in reader]
    source = Source.from_manifest(manifest, "train")
    assert probes.read_labels(source, 0, 100, CONFIG).tolist() == expected[:6]
    assert probes.read_labels(source, 1, 3, CONFIG).tolist() == expected[6:9]


def test_sorted_labels(tmp_path: Path, draw_images) -> None:
    from beam_jobs import shard_job
    from beam_jobs.config import ShardConfig

    drawn = draw_images(tmp_path / "drawn") / "train"
    for name in ("cat", "dog", "owl", "rat"):
        source = (drawn / "cat" / "0.jpg").read_bytes()
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(64):
            (tmp_path / "images" / name / f"{i}.jpg").write_bytes(source)
    folder = tmp_path / "sorted"
    options = ShardConfig(input=str(tmp_path / "images"), output=str(folder), num_shards=4, workers=1, shuffle=False)
    shard_job.run(options)
    alike = "Records that lie together have like labels (98% of the way from chance to sorted)"
    (labels,) = some(load_manifest(str(folder)), "labels", dataclasses.replace(THROUGHPUT, tf_data=SMALL_BUFFER))
    assert labels.status == "warning"
    assert labels.found == f"{alike}, and the shuffle buffer holds 3.1% of the records."
    (labels,) = some(load_manifest(str(folder)), "labels", dataclasses.replace(CONFIG, block_records=16))
    assert labels.status == "ok"
    assert labels.found.startswith(f"{alike}; of a batch of 8, 100% count as drawn independently.")


def test_foreign_files(small_dataset: Path) -> None:
    source = tfrecord_files(str(small_dataset / "train-*"))
    config = dataclasses.replace(CONFIG, tf_data=SMALL_BUFFER)
    checks = {check.name: check for check in run_checks(source, None, config)}
    assert [check.name for check in checks.values() if check.status not in ("ok", "skipped")] == ["shards"]
    assert checks["file access"].found == f"{small_dataset} is on this machine."
    assert checks["image size"].found == "The first image has a short side of 16 px, and the model gets 16."
    assert checks["labels"].found == "12 labels were looked at, too few to tell whether they are sorted."


def test_a_size_that_nobody_knows(small_dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise DataError("It cannot be read.")

    monkeypatch.setattr(probes, "read_first_shape", refuse)
    source = tfrecord_files(str(small_dataset / "train-*"))
    (check,) = run_checks(source, None, CONFIG, names=["image size"])
    assert check == Check("image size", "skipped", "The size of the images is not known.")


def test_records_without_labels(small_dataset: Path) -> None:
    source = dataclasses.replace(tfrecord_files(str(small_dataset / "train-*")), label_key=None)
    (check,) = run_checks(source, None, CONFIG, names=["labels"])
    assert check == Check("labels", "skipped", "There are no labels.")


def test_the_host_is_measured(manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "WARM_UP_S", 0.1)
    monkeypatch.setattr(probes, "MEASURE_S", 0.2)
    slow, fast = (some(manifest, "cpu", THROUGHPUT, TargetConfig(images_per_second=rate))[0] for rate in (1e9, 0.001))
    assert (slow.status, fast.status) == ("failure", "ok")


def test_the_rate_is_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(probes.time, "perf_counter", lambda: now[0])

    def batches() -> Iterator[None]:
        for k in range(1000):
            now[0] += 0.001 if k < 10 else 0.05  # the first ones were waiting
            yield

    assert probes.measure_rate(batches(), 32) == pytest.approx(640)


def test_replicas_of_this_machine(manifest: Manifest) -> None:
    assert probes.count_local_replicas() >= 1
    target = TargetConfig(tpu="my-tpu")
    (batch,) = some(manifest, "batch", PipelineConfig(batch_size=8), target)
    assert batch.found.endswith("How many replicas 'my-tpu' has is not known here.")
    (batch,) = some(manifest, "batch", PipelineConfig(batch_size=8), TargetConfig(num_replicas=2, num_hosts=2))
    assert batch.found.startswith("8 images: 4 for each of 2 replicas on 2 hosts")


def test_named_parts_and_facts() -> None:
    import tensorflow as tf

    image, number = tf.TensorSpec([2, None], tf.uint8), tf.TensorSpec(None, tf.int32)
    expected = [TensorFact("image", "uint8", (2, None)), TensorFact("label", "int32", None)]
    assert probes.describe_tensors((image, number)) == expected
    assert probes.describe_tensors(({"image": image}, number)) == expected
    assert probes.describe_tensors({"image": image, "label": number}) == expected


def test_the_plan_of_a_step_knows_its_classes(manifest: Manifest) -> None:
    plan = plan_batches(Source.from_manifest(manifest, "train"), CONFIG)
    assert plan.source.num_classes == 3
    assert probes.tensorflow_version()
