"""Whole pipelines: which stages stand where, that each part of them runs, and that they repeat bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.autograph.core.ag_ctx import Status, control_status_ctx

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.source import Source, tfrecord_files
from tfpipe.errors import ConfigError, FormatError
from tfpipe.format.manifest import Manifest
from tfpipe.open_dataset import load_manifest
from tfpipe.pipeline.build import build_dataset, build_stages
from tfpipe.pipeline.plan.read_plan import InputContext, ReadPlan
from tfpipe.pipeline.stage import STAGE_NAMES, Stage, Stages
from tfpipe.pipeline.stages import parse

COUNTED = {
    ("none", "exact"): "repeat list read parse decode augment batch prefetch",
    ("none", "throughput"): "repeat list read shuffle parse decode augment batch prefetch",
    ("bytes", "exact"): "list read cache repeat parse decode augment batch prefetch",
    ("bytes", "throughput"): "list read cache repeat parse decode augment batch prefetch",
    ("decoded", "exact"): "list read parse decode cache repeat augment batch prefetch",
    ("none", "evaluation"): "list read parse decode augment batch prefetch",
    ("bytes", "evaluation"): "list read cache parse decode augment batch prefetch",
    ("decoded", "evaluation"): "list read parse decode augment cache batch prefetch",
}
UNCOUNTED = {
    ("none", "throughput"): "repeat list read shuffle parse decode augment batch prefetch",
    ("bytes", "throughput"): "list read cache repeat shuffle parse decode augment batch prefetch",
    ("decoded", "throughput"): "list read shuffle parse decode cache repeat augment batch prefetch",
    ("none", "evaluation"): "list read parse decode augment batch prefetch",
    ("bytes", "evaluation"): "list read cache parse decode augment batch prefetch",
    ("decoded", "evaluation"): "list read parse decode augment cache batch prefetch",
}


def config_of(cache: str = "none", kind: str = "exact", **options) -> PipelineConfig:
    order = {"training": False} if kind == "evaluation" else {"order": kind}
    return PipelineConfig(**{"global_batch_size": 4, "image_size": 8, "cache": cache, **order, **options})


def yields_an_element_everywhere(stages: Stages) -> None:
    dataset, names = None, stages.names
    for number, stage in enumerate(stages):
        # Behind a cache each is built anew: an iterator that is dropped while it fills the cache may cancel the next.
        cached = "cache" in names[:number]
        dataset = stages.until(stage.name).dataset() if cached else stage.apply(dataset)
        next(iter(dataset))


@pytest.mark.parametrize(("cache", "kind"), COUNTED)
def test_stages_of_a_dataset(few: Manifest, cache: str, kind: str) -> None:
    stages = build_stages(few, "train", config_of(cache, kind))
    assert " ".join(stages.names) == COUNTED[cache, kind]
    assert set(stages.names) <= set(STAGE_NAMES)
    assert all(stage.reason for stage in stages)


@pytest.mark.parametrize(("cache", "kind"), UNCOUNTED)
def test_stages_of_foreign_files(foreign: Path, cache: str, kind: str) -> None:
    stages = build_stages(tfrecord_files(str(foreign / "train-*")), None, config_of(cache, kind))
    assert " ".join(stages.names) == UNCOUNTED[cache, kind]


@pytest.mark.parametrize(("cache", "kind"), [("none", "exact"), ("decoded", "exact"), ("bytes", "evaluation")])
def test_every_part_of_a_pipeline_runs(few: Manifest, cache: str, kind: str) -> None:
    yields_an_element_everywhere(build_stages(few, "train", config_of(cache, kind, augment="none")))


def test_autograph_converts_users_stages_only(few: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    converted, parse_example = [], parse.parse_example

    def parse_and_note(plan: ReadPlan, payload: tf.Tensor) -> parse.Features:
        converted.append(_converts())
        return parse_example(plan, payload)

    monkeypatch.setattr(parse, "parse_example", parse_and_note)

    def own(features):
        converted.append(_converts())
        return features

    stages = build_stages(few, "train", config_of())
    stages.insert_after("decode", Stage("own", lambda dataset: dataset.map(own))).dataset()
    assert converted == [False, True]


def _converts() -> bool:
    return control_status_ctx().status is not Status.DISABLED


def test_a_cache_in_files_comes_first(few: Manifest, tmp_path: Path) -> None:
    config = config_of("decoded", "exact", cache_dir=str(tmp_path), augment="none")
    stages = build_stages(few, "train", config)
    assert " ".join(stages.names) == "cache repeat list read parse decode augment batch prefetch"
    assert str(tmp_path) in str(stages[0].settings["where"])
    assert next(iter(stages.until("cache").dataset())) == stages[0].settings["where"]
    next(iter(stages.dataset()))


def test_they_say_what_they_do(few: Manifest) -> None:
    text = str(build_stages(few, "train", config_of(seed=12345)))
    lines = [line for line in text.splitlines() if line[0] != " "]
    assert [line.split()[0] for line in lines] == COUNTED["none", "exact"].split()
    assert "files=4, host=0 of 1, order=exact, seed=12,345, num_streams=4, run_records=1" in text
    assert "lanes=1, start_step=0" in text
    assert "batch_size=4, global_batch_size=4" in text
    assert "images=JPEG" in text


@pytest.mark.parametrize("augment", ["host", pytest.param("device", marks=pytest.mark.slow)])
def test_runs_repeat_bit_for_bit_whatever_runs_side_by_side(few: Manifest, augment: str) -> None:
    runs = []
    for calls in (1, 4):
        config = config_of(augment=augment, num_parallel_calls=calls, read_parallel_calls=calls, extra_features=("id",))
        runs.append(list(build_dataset(few, "train", config).take(8).as_numpy_iterator()))
    for one, other in zip(*runs, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])
    if augment == "host":
        first = {
            int(number): image.tobytes() for number, image in zip(runs[0][0]["id"], runs[0][0]["image"], strict=True)
        }
        other = build_dataset(few, "train", config_of(extra_features=("id",), seed=1)).take(8).as_numpy_iterator()
        second = {
            int(n): image.tobytes() for batch in other for n, image in zip(batch["id"], batch["image"], strict=True)
        }
        assert any(first[number] != second[number] for number in first.keys() & second.keys())


def test_an_evaluation_is_always_the_same(few: Manifest) -> None:
    runs = [
        list(build_dataset(few, "train", config_of(kind="evaluation", seed=seed, num_parallel_calls=calls)))
        for seed, calls in ((0, 1), (9, 4))
    ]
    for one, other in zip(*runs, strict=True):
        np.testing.assert_array_equal(one["image"], other["image"])
        np.testing.assert_array_equal(one["label"], other["label"])


def test_images_have_their_own_labels_and_pixels(few: Manifest) -> None:
    """What leaves the pipeline is what Pillow or TensorFlow would decode, after all the shuffling."""
    config = config_of(augment="none", image_size=(10, 14), extra_features=("id", "image/filename"))
    plain = {}
    for batch in build_dataset(
        few, "train", config_of(kind="evaluation", augment="none", image_size=(10, 14), extra_features=("id",))
    ):
        plain.update(zip(batch["id"][batch["mask"]].numpy().tolist(), batch["image"].numpy(), strict=False))
    for batch in islice(build_dataset(few, "train", config).as_numpy_iterator(), 6):
        for number, label, name, image in zip(
            batch["id"].tolist(), batch["label"].tolist(), batch["image/filename"], batch["image"], strict=True
        ):
            assert label == number % 3
            assert name == b"%d.jpg" % number
            np.testing.assert_array_equal(image, plain[number])


def test_a_run_goes_on_where_it_was_left(few: Manifest, context: Callable[..., InputContext]) -> None:
    config = config_of(augment="device", extra_features=("id",))
    whole = list(build_dataset(few, "train", config).take(9).as_numpy_iterator())
    resumed = list(build_dataset(few, "train", config, start_step=4).take(5).as_numpy_iterator())
    for one, other in zip(whole[4:], resumed, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])
    # And on more hosts.
    halves = [
        list(build_dataset(few, "train", config, context(2, host, 2), 4).take(5).as_numpy_iterator()) for host in (0, 1)
    ]
    for one, left, right in zip(whole[4:], *halves, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], np.concatenate([left[name], right[name]]))


@pytest.mark.parametrize(
    ("options", "num_hosts"),
    [
        ({"cache": "none"}, 6),
        ({"cache": "bytes"}, 3),
        pytest.param(*({"cache": "decoded"}, 6), marks=pytest.mark.slow),
        pytest.param(*({"cache": "bytes", "cache_bytes": 15000}, 2), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_rows_of_any_number_of_hosts_are_the_batch(
    many: Manifest, context: Callable[..., InputContext], options: dict, num_hosts: int
) -> None:
    """Of 6 hosts, two share a lane that gives four records in its turn. One pipeline runs after the other."""
    order = {"global_batch_size": 12, "num_streams": 1, "run_records": 4, "lanes": 3, "order": "exact"}
    config = config_of(**options, **order, image_size=4, extra_features=("id",))
    whole, *hosts = (
        list(build_dataset(many, "train", config, place, 19).take(3).as_numpy_iterator())
        for place in (None, *(context(num_hosts, host, num_hosts) for host in range(num_hosts)))
    )
    for batch, *rows in zip(whole, *hosts, strict=True):
        assert np.concatenate([part["id"] for part in rows]).tolist() == batch["id"].tolist()
        np.testing.assert_array_equal(np.concatenate([part["image"] for part in rows]), batch["image"])


def test_an_object_store_is_read_as_a_disk_is(few: Manifest) -> None:
    manifest = load_manifest(f"file://{few.directory}")
    config = config_of(augment="none", extra_features=("id",))
    remote, local = (
        [batch["id"].tolist() for batch in build_dataset(one, "train", config).take(6).as_numpy_iterator()]
        for one in (manifest, few)
    )
    assert remote == local


@pytest.mark.parametrize(
    ("cache", "kind", "options"),
    [
        ("none", "throughput", {"on_bad_record": "skip"}),
        ("none", "exact", {"decoder": "tensorflow"}),
        ("bytes", "evaluation", {"on_bad_record": "skip", "extra_features": ("words",)}),
    ],
)
def test_without_the_engine_nothing_calls_back_into_python(few: Manifest, cache: str, kind: str, options: dict) -> None:
    dataset = build_dataset(few, "train", config_of(cache, kind, **options))
    graph = dataset._as_serialized_graph().numpy()  # names of operations stand in it as they are, functions' too
    assert b"ParseExampleV2" in graph or b"ParseSingleExample" in graph
    assert b"PyFunc" not in graph


def test_what_cannot_be_built(few: Manifest, foreign: Path) -> None:
    with pytest.raises(ConfigError, match="no split 'test'"):
        build_dataset(few, "test", config_of())
    with pytest.raises(ConfigError, match=r"at most the 16 records of an epoch, got 24\."):
        build_dataset(few, "train", config_of(global_batch_size=24))
    with pytest.raises(ConfigError, match="files without a manifest"):
        build_dataset(tfrecord_files(str(foreign / "train-*")), None, config_of())


def test_a_file_cache_needs_a_manifest(few: Manifest, tmp_path: Path) -> None:
    files = tfrecord_files(f"{few.directory}/train-*")
    config = PipelineConfig(global_batch_size=4, cache="bytes", cache_dir=str(tmp_path))
    with pytest.raises(ConfigError) as caught:
        build_stages(files, None, config)
    assert str(caught.value) == ("`cache_dir` needs a split of a dataset with a manifest. Leave it out to use memory.")


def test_the_engine_reads_the_files_of_a_dataset_only(few: Manifest, copied: Manifest) -> None:
    """Whoever puts other files in their place, as the profiler does with records that it changed, gets these."""
    source = Source.from_manifest(few, "train")
    assert source.is_split
    other = replace(source, files=Source.from_manifest(copied, "train").files)
    assert not other.is_split
    assert "reader=engine" not in str(build_stages(other, None, config_of()))
    Path(copied.directory, copied.splits["train"].shards[0].file).unlink()
    with pytest.raises(FormatError, match=r" is missing\."):
        build_dataset(other, None, config_of())
    next(iter(build_dataset(source, None, config_of())))
