"""Real pipelines that run for seconds: their stages, their figures, and the command as a user runs it."""

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.flipped_bit import flip_bit
from tests.observers import Recorder
from tests.profiler.faults.data import join_copies
from tests.profiler.profiles import make_profile, make_stage
from tfpipe.dataset.load import load_manifest
from tfpipe.engine.clocks import Phase, PhaseTime
from tfpipe.engine.config.pipeline_config import PipelineConfig, ServiceOptions, TfDataOptions
from tfpipe.engine.plan import plan_batches
from tfpipe.engine.source import get_source, tfrecord_files
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.integrity.foreign.index import IndexConfig, index
from tfpipe.pipeline.stage import Stage, Stages
from tfpipe.profiler.measure import simulated_accelerator
from tfpipe.profiler.measure.clocks import HostTime
from tfpipe.profiler.measure.profile import ProfileConfig, describe_dataset, find_buffers, profile_pipeline, time_engine
from tfpipe.profiler.measure.simulated_accelerator import Accelerator
from tfpipe.profiler.measure.textbook import BuiltStage
from tfpipe.profiler.types import Buffer
from tfpipe.system.progress import Progress

ROOT = Path(__file__).resolve().parents[3]
CONFIG = PipelineConfig(batch_size=4, image_size=32, tf_data=TfDataOptions(map_fusion=False), order="throughput")
"""The textbook pipeline, whose stages treat records one by one."""
SMALL = PipelineConfig(batch_size=4, image_size=8)


@pytest.fixture(autouse=True)
def _short_warm_up(monkeypatch) -> None:
    monkeypatch.setattr(simulated_accelerator, "MIN_WARM_UP_S", 0.5)


@pytest.fixture(scope="module")
def manifest(small_dataset: Path) -> Manifest:
    return load_manifest(str(small_dataset))


def test_a_profile_has_the_figures_of_a_real_pipeline(manifest: Manifest) -> None:
    recorder = Recorder()
    profile = profile_pipeline(manifest, "train", CONFIG, Accelerator(1e-5, 4), ProfileConfig(0.6, 1.0), recorder)
    assert [stage.name for stage in profile.stages] == ["read", "parse", "decode", "augment", "batch"]
    assert recorder.phases == ["Warming up", "Measuring for 0.6 s", "Trying stages and options"]
    assert recorder.progresses[-1] == Progress(1, 1, "s")
    assert profile.config is CONFIG
    assert profile.images_per_second == pytest.approx(profile.step.steps * 4 / profile.step.wall_s)
    assert all(0 <= stage.cpu_us_per_image < 50_000 for stage in profile.stages)
    assert [stage.elements_out_per_in for stage in profile.stages] == [1, 1, 1, 1, 0.25]
    assert profile.stages[-1].bytes_out_per_image == pytest.approx(32 * 32 * 3, abs=100)
    assert profile.handover_us is not None
    assert [buffer.stage for buffer in profile.buffers] == ["prefetch", "shuffle"]
    assert profile.first_batch_s > 0
    assert 0.5 <= profile.warm_up_s < 10
    assert profile.host.storage_limit_bytes_per_second is None  # too small to tell
    assert (profile.dataset.records, profile.dataset.by_engine, profile.records_per_image) == (12, False, 1.0)
    assert profile.dataset.own_stages == profile.dataset.late_caches == ()
    assert profile.host.trainer_us_per_step > 0
    # No image is larger than the model needs.
    assert set(profile.option_costs) == {"now", "cached", "engine_share"}


def test_an_element_of_the_engine_is_a_batch(manifest: Manifest) -> None:
    config = replace(CONFIG, order="auto", tf_data=TfDataOptions())
    profile = profile_pipeline(manifest, "train", config, Accelerator(1e-5, 4), ProfileConfig(0.6, 0.1))
    assert list({stage.name: stage for stage in profile.stages}) == ["read", "parse", "decode", "batch"]
    assert min(stage.cpu_us_per_image for stage in profile.stages) > 0
    assert profile.handover_us is None
    assert (profile.dataset.by_engine, profile.records_per_image) == (True, 1.0)
    assert profile.host.storage_bytes_per_second == pytest.approx(
        profile.images_per_second * profile.dataset.record_bytes
    )
    assert set(profile.option_costs) == {"now", "device", "cached", "kept"}


@pytest.mark.slow
def test_a_cache_is_filled_first_or_the_profile_says_how_long_it_takes(manifest: Manifest, tmp_path: Path) -> None:
    config, fast = replace(CONFIG, cache="bytes"), Accelerator(0.002, 4)
    recorder = Recorder()
    filled = profile_pipeline(manifest, "train", config, fast, ProfileConfig(0.3, 0.1), recorder)
    assert recorder.phases == ["Filling the cache", "Warming up", "Measuring for 0.3 s", "Trying stages and options"]
    assert Progress(3, 3, "steps") in recorder.progresses
    assert filled.fill_s == 0
    assert filled.records_per_image == pytest.approx(1.0, rel=0.05)  # places in the cache are no images
    join_copies(manifest, 500, tmp_path / "long")
    long = load_manifest(str(tmp_path / "long"))
    filling = profile_pipeline(long, "train", config, fast, ProfileConfig(0.3, 0.1, max_fill_s=0.01))
    missing = filling.fill_s / filling.step.wall_s * filling.step.steps
    assert 0 < missing < 1500 - filling.step.steps


def add_own_stages(stages: Stages) -> Stages:
    """Adds a Python function and a cache behind `augment`."""

    def jitter(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        image = tf.numpy_function(lambda image: image, [features["image"]], tf.uint8)
        return {**features, "image": tf.ensure_shape(image, features["image"].shape)}

    late_cache = Stage("kept", lambda dataset: dataset.take(12).cache().repeat())
    return stages.insert_after("augment", Stage("jitter", lambda dataset: dataset.map(jitter)), late_cache)


@pytest.mark.slow
def test_stages_of_the_users_own_are_named(manifest: Manifest) -> None:
    profile = profile_pipeline(
        manifest, "train", CONFIG, Accelerator(0.02, 4), ProfileConfig(0.5, 0.1), None, add_own_stages
    )
    assert (profile.dataset.own_stages, profile.dataset.late_caches) == (("jitter", "kept"), ("kept",))
    # What the cache keeps is not made again.
    assert [stage.name for stage in profile.stages] == ["kept", "batch"]


def add_counting_stages(stages: Stages) -> Stages:
    """Drops two of three images, gives each of the others twice, and makes and unmakes batches."""
    numbered = Stage("keep", lambda dataset: dataset.enumerate().filter(lambda i, _: i % 3 == 0).map(lambda _, x: x))
    twice = Stage("twice", lambda dataset: dataset.flat_map(lambda x: tf.data.Dataset.from_tensors(x).repeat(2)))
    fives = Stage("fives", lambda dataset: dataset.batch(5, drop_remainder=True))
    return stages.insert_after("augment", numbered, twice, fives, Stage("apart", lambda dataset: dataset.unbatch()))


@pytest.mark.slow
def test_stages_that_change_the_number_are_counted(manifest: Manifest) -> None:
    profile = profile_pipeline(
        manifest, "train", CONFIG, Accelerator(1e-5, 4), ProfileConfig(0.5, 0.1), None, add_counting_stages
    )
    counts = {stage.name: stage.elements_out_per_in for stage in profile.stages}
    expected = {"parse": 1, "decode": 1, "augment": 1, "keep": 1 / 3, "twice": 2, "fives": 1 / 5, "apart": 5}
    assert counts == pytest.approx({"read": 1, **expected, "batch": 1 / 4}, 0.1)
    assert (profile.records_per_image, profile.dataset.filters) == (pytest.approx(1.5, rel=0.1), ("keep", "twice"))
    read = profile.host.storage_bytes_per_second / profile.dataset.record_bytes
    assert read == pytest.approx(profile.images_per_second * profile.records_per_image)


def test_a_record_that_is_left_out_has_another_in_its_place(manifest: Manifest, tmp_path: Path) -> None:
    join_copies(manifest, 1, tmp_path / "damaged")
    damaged = load_manifest(str(tmp_path / "damaged"))
    shard = tmp_path / "damaged" / damaged.splits["train"].shards[0].file
    flip_bit(shard, -5)  # in the last record
    config = replace(CONFIG, order="auto", tf_data=TfDataOptions(), max_bad_records=1)
    profile = profile_pipeline(damaged, "train", config, Accelerator(1e-5, 4), ProfileConfig(0.5, 0.1))
    assert profile.records_per_image == 1


def test_what_cannot_be_profiled_is_refused(manifest: Manifest) -> None:
    with pytest.raises(ConfigError, match=r"must return tfpipe\.Stages, got None"):
        profile_pipeline(manifest, "train", CONFIG, Accelerator(0.02, 4), customize=lambda _: None)  # type: ignore[arg-type,return-value]
    config = PipelineConfig(batch_size=4, service=ServiceOptions(workers=("localhost:1",)))
    with pytest.raises(ConfigError, match=r"must run each stage on this machine, got a `service`\. Profile"):
        profile_pipeline(manifest, "train", config, Accelerator(0.001, 4))


def test_an_accelerator_that_does_not_wait_needs_no_trials(manifest: Manifest) -> None:
    config = PipelineConfig(batch_size=4, image_size=32, prefetch_batches=7)
    profile = profile_pipeline(manifest, "train", config, Accelerator(0.2, 4, "fit"), ProfileConfig(0.4, 0.1))
    assert profile.option_costs == {}
    assert [(buffer.stage, buffer.number) for buffer in profile.buffers] == [("prefetch", 7)]


def transform(image: Any, random: np.random.Generator) -> Any:
    return np.asarray(image.resize((8, 8)))


def wait_behind_a_lock(batch: dict[str, Any]) -> dict[str, Any]:
    with LOCK:
        time.sleep(0.01)
    return batch


LOCK = threading.Lock()


def test_functions_of_other_readers_are_told_apart(manifest: Manifest) -> None:
    """One waits behind a lock: 10 ms for a batch of 4, whatever the threads."""
    config, own = PipelineConfig(batch_size=4), {"transform": transform, "batch_transform": wait_behind_a_lock}
    profile = profile_pipeline(manifest, "train", config, Accelerator(1e-5, 4), ProfileConfig(0.4, 0.1), functions=own)
    stages = {stage.name: stage for stage in profile.stages}
    assert list(stages) == ["read", "parse", "decode", "transform", "batch", "batch_transform"]
    assert profile.dataset.own_stages == ("transform", "batch_transform")
    assert stages["batch_transform"].waits
    assert stages["batch_transform"].locked_us_per_image == pytest.approx(2500, rel=0.5)
    assert not stages["transform"].waits
    with pytest.raises(ConfigError, match="Leave one of them out"):
        profile_pipeline(manifest, "train", config, Accelerator(1, 4), customize=add_own_stages, functions=own)
    textbook = replace(config, order="throughput")
    with pytest.raises(ConfigError, match="must have batches by their steps"):
        profile_pipeline(manifest, "train", textbook, Accelerator(1, 4), functions=own)


def read(at: float, decode_cpu_s: float) -> dict[Phase, PhaseTime]:
    """Returns clocks by which reading waits for half of its time."""
    return {"read": PhaseTime(9, 0.2 * at, 0.1 * at), "decode": PhaseTime(9, at, decode_cpu_s)}


def test_phases_are_stages_with_their_time_for_an_image(manifest: Manifest, monkeypatch) -> None:
    monkeypatch.setattr("tfpipe.system.host_limits.usable_cpus", lambda: 4)
    plan = plan_batches(get_source(manifest, "train"), PipelineConfig(batch_size=4, image_size=32))
    clocks, before = (read(0.0, 0.0), read(2.0, 2.0)), HostTime(0.0, 0.0, None)
    reading, decoding = time_engine(clocks, (before, HostTime(2.0, 2.0, None)), 1000.0, plan)
    assert (reading.name, decoding.name) == ("read", "decode")  # what was not passed is left out
    assert (reading.cpu_us_per_image, decoding.cpu_us_per_image) == (pytest.approx(100), 1000)
    assert (reading.wait_us_per_image, decoding.wait_us_per_image) == (pytest.approx(100), 0)
    assert (reading.parallelism, decoding.parallelism) == (2, 4)
    assert (reading.bytes_out_per_image, decoding.bytes_out_per_image) == (plan.source.record_bytes, 32 * 32 * 3)
    # Threads waited for a core as long as they ran, and for nothing else.
    reading, _ = time_engine(clocks, (before, HostTime(2.0, 2.0, None, queue=2.0)), 1000.0, plan)
    assert reading.wait_us_per_image == pytest.approx(0.0)
    # Each batch that is decoded has threads for a transform.
    mapped: Any = {}, {"transform": PhaseTime(9, 8.0, 0.1)}
    (transform,) = time_engine(mapped, (before, HostTime(1.0, 0.1, None)), 1000.0, plan)
    assert (transform.name, transform.parallelism) == ("transform", 8)


def test_batches_and_caches_are_held() -> None:
    config = {"prefetch_batches": 3, "cache": "decoded"}
    profile = make_profile(stages=(make_stage("decode", 1, bytes_out_per_image=150e3),), config=config)
    cache, prefetch = find_buffers(profile, [], {})
    assert cache == Buffer("cache", "images", 1_000_000, 1_000_000 * 256 * 256 * 3)
    assert prefetch == Buffer("prefetch", "batches", 3, 3 * 100 * 150e3)
    assert find_buffers(make_profile(config={"prefetch_batches": 0}), [], {}) == ()


def test_a_manifest_knows_records_and_sizes(manifest: Manifest) -> None:
    info = describe_dataset(manifest, "train", SMALL, [])
    sizes = manifest.splits["train"].sizes
    assert (info.records, info.by_engine) == (12, True)
    assert (info.formats, info.mean_size) == (("JPEG", "PNG"), (sizes.mean_height, sizes.mean_width))
    assert info.short_side == 9  # 8/7 of the model's 8 pixels, where images have 16 and more
    assert info.own_stages == info.late_caches == info.unread_features == ()
    assert (info.unread_share, info.described, info.shuffled_records) == (0, True, 0)
    assert describe_dataset(manifest, "train", replace(SMALL, image_size=20), []).short_side is None  # hardly larger
    buffer = replace(SMALL, order="throughput", tf_data=TfDataOptions(shuffle_buffer_size=5))
    assert describe_dataset(manifest, "train", buffer, []).shuffled_records == 5
    assert describe_dataset(manifest, "train", replace(buffer, training=False), []).shuffled_records == 0


def test_foreign_files_know_little(small_dataset: Path) -> None:
    info = describe_dataset(tfrecord_files(f"{small_dataset}/train-*"), None, SMALL, [])
    assert (info.records, info.by_engine) == (12, False)
    assert (info.formats, info.mean_size, info.short_side) == ((), None, None)


@pytest.mark.parametrize("described", [True, False])
def test_unread_features_and_counts_of_foreign_files(foreign: Any, tmp_path: Path, described: bool) -> None:
    records = [{**record, "blob/a": b"x" * 4000, "blob/b": [1.0] * 2000} for record in foreign.records(0, 8)]
    foreign.write(tmp_path / "train-0.tfrecord", records, "GZIP")
    index(IndexConfig(str(tmp_path)))
    data = load_manifest(str(tmp_path)) if described else tfrecord_files(f"{tmp_path}/train-*")
    info = describe_dataset(data, "train" if described else None, SMALL, [])
    size = sum(len(foreign.example(record)) for record in records) / 8
    assert info.unread_features == ("blob/b", "blob/a")
    assert info.unread_share == pytest.approx(12_000 / size, abs=0.01)
    assert (info.records, info.described, info.compression) == (8, described, "GZIP")
    assert info.unpacked_record_bytes == pytest.approx(size)
    read = replace(SMALL, extra_features=("blob/b",))
    assert describe_dataset(data, "train" if described else None, read, []).unread_features == ("blob/a",)


@pytest.mark.parametrize(("training", "number"), [(True, 2000), (False, 400)])
def test_a_shuffle_of_images_holds_several_epochs_of_a_training(training: bool, number: int) -> None:
    """400 records are repeated in front of it in a training, and read once in an evaluation."""
    source = tf.data.Dataset.range(400)
    built = [BuiltStage("mix", source, source.shuffle(2000))]
    profile = make_profile(dataset={"records": 400}, config={"training": training, "prefetch_batches": 0})
    (buffer,) = find_buffers(profile, built, {"mix": 150_000.0})
    assert (buffer.stage, buffer.what, buffer.number, buffer.num_bytes) == ("mix", "elements", number, number * 150_000)
