"""The same batches with the kernel and without it, by `tf.data`, PyTorch and JAX."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import torch

import tfpipe
from tests.integrity.made import payload, write_dataset
from tests.native.conftest import Draw
from tfpipe.engine.config.pipeline_config import AugmentOptions, PipelineConfig
from tfpipe.engine.source import Source
from tfpipe.format.manifest import Manifest
from tfpipe.native.jpeg import make_seekable
from tfpipe.pipeline.build import build_dataset, build_stages
from tfpipe.pipeline.stage import Stage
from tfpipe.profiler.measure import turns
from tfpipe.profiler.measure.option_costs import measure_option_costs
from tfpipe.profiler.measure.profile import ProfileConfig, profile_pipeline
from tfpipe.profiler.measure.simulated_accelerator import Accelerator
from tfpipe.readers.jax import DeviceBatches
from tfpipe.readers.numpy import NumpyBatches
from tfpipe.readers.open_maker import Rank, open_maker
from tfpipe.readers.torch import ShardedImages, data_loader

KINDS = (
    {"subsampling": 0},
    {"subsampling": 1},
    {"subsampling": 2},
    {"mode": "L"},
    {"subsampling": 2, "progressive": True},
)
SIZES = ((97, 64), (180, 250), (31, 33), (16, 16), (201, 120))
BATCH, STEPS = 8, 7  # two epochs and a part


def make_payload(draw_jpeg: Draw, k: int) -> bytes:
    height, width = SIZES[k // len(KINDS) % len(SIZES)]
    data = draw_jpeg(height, width, **KINDS[k % len(KINDS)])
    if k % 3 == 0:
        data = make_seekable(data)
    return payload(k, encoded=data, format="JPEG", height=height, width=width)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, draw_jpeg: Draw) -> Path:
    """25 JPEGs of all kinds and sizes, with and without restart markers."""
    payloads = [make_payload(draw_jpeg, k) for k in range(25)]
    folder = write_dataset(
        tmp_path_factory.mktemp("kinds") / "made", {"train": payloads[:13], "train:1": payloads[13:]}
    )
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"PNG": 25', '"JPEG": 25'))
    return folder


@pytest.fixture(scope="module")
def manifest(folder: Path) -> Manifest:
    return tfpipe.load_manifest(str(folder))


def make_config(decoder: str, **options: object) -> PipelineConfig:
    more = {"global_batch_size": BATCH, "image_size": (48, 40), "seed": 5, **options}
    return PipelineConfig(decoder=decoder, **more)  # type: ignore[arg-type]


def list_batches(manifest: Manifest, start_step: int = 0, **options: object) -> list[dict[str, np.ndarray]]:
    dataset = build_dataset(manifest, "train", make_config(**options), start_step=start_step)  # type: ignore[arg-type]
    return list(dataset.take(STEPS).as_numpy_iterator())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"image_dtype": "float32"},
        {"image_dtype": "bfloat16", "augment_options": AugmentOptions(mean=(0.1, 0.2, 0.3), flip=False)},
        {"image_size": 24, "dct_scaling": False},
        {"image_size": 12},  # most crops are reduced while they are decoded
        {"training": False},
        {"training": False, "cache": "decoded"},
        {"augment": "none"},
        {"augment": "device"},
        {"cache": "decoded"},
        {"cache": "bytes", "map_fusion": False},
        {"per_replica_batch_size": 4, "global_batch_size": None},
        {"num_parallel_calls": 3, "one_hot": True},
        {"extra_features": ("image/filename", "image/height")},
        {"on_bad_record": "skip"},
    ],
    ids=str,
)
def test_batches_are_equal_to_the_bit(manifest: Manifest, options: dict[str, object]) -> None:
    native, plain = (list_batches(manifest, decoder=decoder, **options) for decoder in ("native", "tensorflow"))
    assert len(native) == (4 if options.get("training") is False else STEPS)
    for ours, theirs in zip(native, plain, strict=True):
        assert ours.keys() == theirs.keys()
        for name in ours:
            assert ours[name].dtype == theirs[name].dtype
            assert ours[name].tobytes() == theirs[name].tobytes() or ours[name].tolist() == theirs[name].tolist(), name


def test_a_run_goes_on_with_the_other_decoder(manifest: Manifest) -> None:
    whole = list_batches(manifest, decoder="pillow")
    rest = list_batches(manifest, start_step=5, decoder="native")
    np.testing.assert_array_equal(whole[5]["image"], rest[0]["image"])
    np.testing.assert_array_equal(whole[6]["image"], rest[1]["image"])


@pytest.mark.parametrize("options", [{}, {"augment": "none"}, {"image_size": 12}], ids=str)
def test_pytorch_and_jax_give_the_pixels_of_tensorflow(folder: Path, options: dict[str, object]) -> None:
    manifest = tfpipe.load_manifest(str(folder))
    expected = [batch["image"] for batch in list_batches(manifest, decoder="pillow", **options)]
    config = make_config("native", **options)
    images = data_loader(ShardedImages(manifest, "train", config), num_workers=0)
    batches = DeviceBatches(manifest, "train", config)
    for_torch = [batch["image"] for _ in range(3) for batch in images][:STEPS]
    for_jax = [batch["image"] for _ in range(3) for batch in batches][:STEPS]
    for theirs, ours, others in zip(expected, for_torch, for_jax, strict=True):
        assert isinstance(ours, torch.Tensor)
        np.testing.assert_array_equal(ours.permute(0, 2, 3, 1).numpy(), theirs)
        np.testing.assert_array_equal(np.asarray(others), theirs)


def test_a_mixture_is_equal_to_the_bit(folder: Path, tmp_path: Path) -> None:
    other = shutil.copytree(folder, tmp_path / "other")
    mixture = tfpipe.mix({str(folder): 0.75, str(other): 0.25})
    dataset = build_dataset(mixture, "train", make_config("native"), start_step=2)
    expected = NumpyBatches(mixture, "train", make_config("native"))
    for step, batch in enumerate(dataset.take(3).as_numpy_iterator()):
        np.testing.assert_array_equal(batch["image"], expected.read(2 + step)["image"])
        np.testing.assert_array_equal(batch["label"], expected.read(2 + step)["label"])


def test_the_stages_say_which_decoder_runs(manifest: Manifest) -> None:
    text = str(build_stages(manifest, "train", make_config("auto")))
    assert "decoder=native" in text
    assert "one call of the engine reads the records of a batch, each from its place" in text
    assert "one call of the engine makes the arrays of a batch" in text
    assert "done by the decoder" in text
    throughput = str(build_stages(manifest, "train", make_config("auto", order="throughput")))
    assert "one call of the native library makes all images of a batch" in throughput
    assert "only the features that are needed, of a batch of records at once" in throughput
    assert "decoder=tensorflow" in str(build_stages(manifest, "train", make_config("tensorflow")))


def test_a_stage_between_finds_what_it_finds_without_the_kernel(manifest: Manifest) -> None:
    """It gets crops that are not resized yet, and all of them are TensorFlow's."""
    seen = {}
    for decoder in ("native", "tensorflow"):
        stages = build_stages(manifest, "train", make_config(decoder))
        shapes = []

        def note(features: dict[str, tf.Tensor], shapes: list[tf.TensorShape] = shapes) -> dict[str, tf.Tensor]:
            shapes.append(features["image"].shape)
            return {**features, "image": 255 - features["image"]}

        noted = stages.insert_after("decode", Stage("invert", lambda dataset, note=note: dataset.map(note)))
        assert "decoder=tensorflow" in str(noted)
        seen[decoder] = next(iter(noted.dataset()))["image"].numpy()
        assert shapes[0].as_list() == [None, None, 3]
        own = Stage("augment", lambda dataset: dataset.map(lambda f: {**f, "image": tf.zeros([4, 4, 3], tf.uint8)}))
        assert not next(iter(stages.replace("augment", own).dataset()))["image"].numpy().any()
    np.testing.assert_array_equal(seen["native"], seen["tensorflow"])


def test_a_damaged_image_has_the_sentence_of_tensorflow(tmp_path: Path, draw_jpeg: Draw) -> None:
    good = draw_jpeg(60, 50)
    payloads = [payload(k, encoded=good[:-300], format="JPEG", height=60, width=50) for k in range(8)]
    folder = write_dataset(tmp_path / "made", {"train": payloads})
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text().replace('"PNG": 8', '"JPEG": 8'))))
    manifest, sentences = tfpipe.load_manifest(str(folder)), []
    for decoder in ("native", "tensorflow"):
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            next(iter(build_dataset(manifest, "train", make_config(decoder, augment="none"))))
        sentences.append(str(tfpipe.errors.explain_pipeline_error(error.value)))
    assert "Invalid JPEG data or crop window" in sentences[1]
    refused = []
    for decoder in ("native", "tensorflow"):
        config = make_config(decoder, augment="none")
        with pytest.raises(tfpipe.FormatError) as refusal:
            open_maker(manifest, "train", config, Rank()).make(0, 0)
        refused.append(str(refusal.value))
    assert refused[0] == refused[1] == sentences[0]


@pytest.mark.parametrize("options", [{}, {"order": "throughput"}, {"cache": "bytes"}], ids=str)
def test_a_damaged_record_is_named_in_a_batch_too(folder: Path, tmp_path: Path, options: dict[str, object]) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    shard = copy / "train-00000-of-00002.tfrecord"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    sentences = []
    for decoder in ("native", "tensorflow"):
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            list_batches(tfpipe.load_manifest(str(copy)), decoder=decoder, **options)
        sentences.append(str(tfpipe.errors.explain_pipeline_error(error.value)))
    assert f" of {shard} is damaged, or its file cannot be read." in sentences[1]
    if options.get("order") == "throughput":
        assert sentences[0] == sentences[1]
    else:
        assert re.match(rf"{shard}: Record at byte \d+ is damaged: the checksum of its ", sentences[0])


@pytest.mark.slow
def test_the_profiler_tries_the_decoder_and_restart_markers(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "_SECONDS", 0.01)
    source = Source.from_manifest(manifest, "train")
    plain = measure_option_costs(source, make_config("tensorflow"), None)
    assert (plain.native is None, plain.seekable is None) == (False, True)
    native = measure_option_costs(source, make_config("auto"), None)
    assert (native.native is None, native.seekable is None) == (True, False)


@pytest.mark.slow
def test_a_profile_has_one_stage_for_decoding_and_augmentation(manifest: Manifest) -> None:
    profile = profile_pipeline(
        manifest, "train", make_config("auto"), Accelerator(0.02, BATCH), ProfileConfig(2.0, 0.1)
    )
    assert {"decode", "batch"} < {stage.name for stage in profile.stages}
    assert "augment" not in {stage.name for stage in profile.stages}
    assert not profile.dataset.lacks_native_library
    assert profile.records_per_image == 1


def test_what_does_not_fit_is_refused_or_left_to_tensorflow(manifest: Manifest) -> None:
    antialias = AugmentOptions(antialias=True)
    with pytest.raises(tfpipe.ConfigError, match=r"^`decoder` native resizes without `antialias`\. Use auto\.$"):
        build_dataset(manifest, "train", make_config("native", augment_options=antialias))
    assert "decoder=tensorflow" in str(build_stages(manifest, "train", make_config("auto", augment_options=antialias)))
    splits = {"train": dataclasses.replace(manifest.splits["train"], formats={"JPEG": 24, "PNG": 1})}
    mixed = dataclasses.replace(manifest, splits=splits)
    with pytest.raises(tfpipe.ConfigError, match=r"^`decoder` native needs images that are all JPEGs, got JPEG, PNG\."):
        build_dataset(mixed, "train", make_config("native"))
    assert "decoder=native, else Pillow" in str(build_stages(mixed, "train", make_config("auto")))


def test_a_damaged_installation_is_no_silent_change(manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfpipe.native.library.explain_missing", lambda: "it was built from other sources")
    with pytest.raises(tfpipe.MissingDependencyError) as error:
        build_dataset(manifest, "train", make_config("native"))
    assert str(error.value) == (
        "`decoder` native needs tfpipe's native library, and it was built from other sources. "
        "Install tfpipe again where a C compiler is."
    )
    assert "decoder=tensorflow" in str(build_stages(manifest, "train", make_config("auto")))


@pytest.mark.parametrize("cache", ["bytes", "decoded"])
def test_a_damaged_record_of_a_cache_is_named(folder: Path, tmp_path: Path, cache: str) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    manifest = tfpipe.load_manifest(str(copy))
    shard = copy / manifest.splits["train"].shards[0].file
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    for decoder, sentence in (
        ("native", rf"{shard}: Record at byte \d+ is damaged: the checksum of its "),
        ("tensorflow", r"A record must be whole and readable: record \d+ of .* is damaged, .*? again"),
    ):
        with pytest.raises(tf.errors.OpError) as raised:
            list_batches(manifest, cache=cache, decoder=decoder)
        assert re.search(sentence, str(raised.value))


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["bytes", "decoded"])
def test_the_kernel_reads_what_a_cache_keeps(manifest: Manifest, cache: str) -> None:
    stages = build_stages(manifest, "train", make_config("native", cache=cache)).merge_neighbors()
    assert dict(stages[1].settings)["reader"] == "engine"
    plain = list_batches(manifest, decoder="pillow", cache=cache, start_step=2)
    native = list_batches(manifest, decoder="native", cache=cache, start_step=2)
    for ours, theirs in zip(native, plain, strict=True):
        np.testing.assert_array_equal(ours["image"], theirs["image"])
