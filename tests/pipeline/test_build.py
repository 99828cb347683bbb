"""Whole pipelines: which stages stand where, that each part of them runs, and that they repeat bit for bit."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorflow.python.autograph.core.ag_ctx import Status, control_status_ctx

from tests.refusals import refusal
from tfpipe.engine.config.pipeline_config import PipelineConfig, TfDataOptions
from tfpipe.engine.source import Source, tfrecord_files
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline.build import build_dataset, build_stages
from tfpipe.pipeline.stage import STAGE_NAMES, Stage, Stages

TEXTBOOK = {
    ("none", "throughput"): "list repeat read shuffle parse decode augment batch prefetch",
    ("bytes", "throughput"): "list read cache repeat shuffle parse decode augment batch prefetch",
    ("decoded", "throughput"): "list read shuffle parse decode cache repeat augment batch prefetch",
    ("none", "evaluation"): "list read parse decode augment batch prefetch",
    ("bytes", "evaluation"): "list read cache parse decode augment batch prefetch",
    ("decoded", "evaluation"): "list read parse decode augment cache batch prefetch",
}


def config_of(cache: str = "none", kind: str = "exact", **options) -> PipelineConfig:
    order = {"training": False} if kind == "evaluation" else {"order": kind}
    return PipelineConfig(**{"batch_size": 4, "image_size": 8, "cache": cache, **order, **options})


@pytest.mark.parametrize("cache", ["none", "bytes", "decoded"])
@pytest.mark.parametrize("kind", ["exact", "evaluation"])
def test_stages_of_a_dataset(few: Manifest, cache: str, kind: str) -> None:
    stages = build_stages(few, "train", config_of(cache, kind))
    assert " ".join(stages.names) == "list read decode batch prefetch"
    assert set(stages.names) <= set(STAGE_NAMES)
    assert all(stage.reason for stage in stages)


@pytest.mark.parametrize(("cache", "kind"), TEXTBOOK)
def test_stages_of_the_textbook(few: Manifest, foreign: Path, cache: str, kind: str) -> None:
    stages = build_stages(tfrecord_files(str(foreign / "train-*")), None, config_of(cache, kind))
    assert " ".join(stages.names) == TEXTBOOK[cache, kind]
    assert set(stages.names) <= set(STAGE_NAMES)
    assert all(stage.reason for stage in stages)
    assert build_stages(few, "train", replace(config_of(cache, kind), order="throughput")).names == stages.names


def test_autograph_converts_users_stages_only(few: Manifest) -> None:
    converted = []

    def own(features):
        converted.append(control_status_ctx().status is not Status.DISABLED)
        return features

    def customize(stages: Stages) -> Stages:
        return stages.insert_after("decode", Stage("own", lambda dataset: dataset.map(own)))

    build_stages(few, "train", config_of(kind="auto"), customize=customize).dataset()
    assert converted == [True]


def test_stages_of_ones_own_are_for_records_unless_order_is_exact(few: Manifest) -> None:
    seen = []

    def note(dataset):
        seen.append(dataset.element_spec["image"].shape)
        return dataset

    def customize(stages: Stages) -> Stages:
        return stages.insert_after("batch", Stage("note", note))

    for order in ("auto", "exact"):
        stages = build_stages(few, "train", config_of(kind=order), customize=customize)
        stages.dataset()
        assert ("parse" in stages.names) == (order == "auto")
    assert seen == [(4, 8, 8, 3)] * 2
    with pytest.raises(ConfigError, match=r"^This pipeline has no stage 'augment'; it has list, read, decode, batch, "):
        build_stages(few, "train", config_of(), customize=lambda stages: stages.insert_after("augment"))


def test_they_say_what_they_do(few: Manifest) -> None:
    shown = [line for line in str(build_stages(few, "train", config_of(seed=12345))).splitlines() if line[0] != " "]
    assert shown[0] == "list      files=4, host=0 of 1, order=exact, seed=12,345, start_step=0"
    assert shown[1] == "read      reader=engine, num_parallel_calls=2"
    assert shown[2].startswith("decode    num_parallel_calls=")
    assert (shown[3], shown[4]) == ("batch     batch_size=4, per_replica=4", "prefetch  buffer_size=auto")


@pytest.mark.parametrize("augment", ["host", pytest.param("device", marks=pytest.mark.slow)])
def test_runs_repeat_bit_for_bit_whatever_runs_side_by_side(few: Manifest, augment: str, monkeypatch):
    runs = []
    for calls in (1, 4):
        monkeypatch.setattr("tfpipe.system.host_limits.usable_cpus", lambda cores=calls: cores)
        config = config_of(augment=augment, extra_features=("id",))
        runs.append(list(build_dataset(few, "train", config).take(8).as_numpy_iterator()))
    for one, other in zip(*runs, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def test_a_path_is_as_good_as_a_manifest(few: Manifest) -> None:
    config = config_of(extra_features=("id",))
    expected = next(build_dataset(few, "train", config).as_numpy_iterator())["id"].tolist()
    assert next(build_dataset(Path(few.directory), "train", config).as_numpy_iterator())["id"].tolist() == expected
    assert build_stages(few.directory, "train", config).names == build_stages(few, "train", config).names
    assert refusal(DataError, build_dataset, "nowhere", "train", config) == "nowhere does not exist."


@pytest.mark.parametrize("kind", ["throughput", "evaluation"])
def test_the_textbook_never_calls_back_into_python(few: Manifest, kind: str) -> None:
    dataset = build_dataset(few, "train", replace(config_of(kind=kind, extra_features=("pair",)), order="throughput"))
    graph = dataset._as_serialized_graph().numpy()  # names of operations stand in it as they are, functions' too
    assert b"ParseSingleExample" in graph or b"ParseExampleV2" in graph
    assert b"PyFunc" not in graph


def test_every_record_comes_once_in_an_epoch_of_the_textbook(few: Manifest, context: Callable[..., Any]) -> None:
    config = config_of(kind="throughput", extra_features=("id",), tf_data=TfDataOptions(shuffle_buffer_size=3))
    epochs = [batch["id"].tolist() for batch in build_dataset(few, "train", config).take(12).as_numpy_iterator()]
    counts = np.bincount(np.concatenate(epochs), minlength=23)  # of two epochs, and two records of the third
    assert set(counts.tolist()) <= {1, 2, 3}  # a shuffle buffer holds three records back, and threads decide which
    assert counts.sum() == 48
    assert epochs[:5] != epochs[6:11]
    seen = []
    for host in (0, 1):
        evaluation = replace(config_of(kind="evaluation", batch_size=6, extra_features=("id",)), order="throughput")
        for batch in build_dataset(few, "train", evaluation, context(2, host, 2)).as_numpy_iterator():
            seen += batch["id"][batch["mask"]].tolist()
    assert sorted(seen) == list(range(23))


def test_what_cannot_be_built(few: Manifest, foreign: Path) -> None:
    files, textbook = tfrecord_files(str(foreign / "train-*")), {"kind": "throughput"}
    by_steps = (
        "that is for batches by their steps, and `order` is throughput. Use order='exact', in which stages of your own "
        "get whole batches."
    )
    unlisted = "files without a manifest. Use order='throughput'."
    for data, options, message in (
        (few, {"split": "test"}, "The dataset has no split 'test'; it has train, validation."),
        (few, {"batch_size": 24}, "`batch_size` must be at most the 23 records of an epoch, got 24."),
        (files, {}, f"`order` exact must know where each record lies, and {files.name} are {unlisted}"),
        (few, {**textbook, "max_bad_records": 100}, f"`max_bad_records` is 100: {by_steps}"),
        (few, {**textbook, "cache": "bytes", "cache_bytes": 2000}, f"`cache_bytes` is 2000: {by_steps}"),
        (few, {**textbook, "cache": "bytes", "cache_dir": "/tmp/cache"}, f"`cache_dir` is /tmp/cache: {by_steps}"),
    ):
        split = options.pop("split", "train" if data is few else None)
        assert refusal(ConfigError, build_dataset, data, split, config_of(**options)).startswith(message)


def test_the_engine_reads_the_files_of_a_dataset_only(few: Manifest, copied: Manifest) -> None:
    """Whoever puts other files in their place, as the profiler does with records that it changed, gets these."""
    source = Source.from_manifest(few, "train")
    assert source.is_split
    other = replace(source, files=Source.from_manifest(copied, "train").files)
    assert not other.is_split
    assert "shuffle" in build_stages(other, None, config_of(kind="auto")).names
    Path(copied.directory, copied.splits["train"].shards[0].file).unlink()
    assert " is missing." in refusal(FormatError, build_dataset, other, None, config_of(kind="auto"))
    next(iter(build_dataset(source, None, config_of())))


PROGRAM = """
import sys
sys.modules.update(keras=None, jax=None)  # TensorFlow starts in half the time
import tfpipe
options = dict(batch_size=4, image_size=16, prefetch_batches=64) | eval(sys.argv[2])
dataset = tfpipe.build_dataset(tfpipe.load_manifest(sys.argv[1]), "train", tfpipe.PipelineConfig(**options))
batches = iter(dataset)
next(batches)
print("left")
"""


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"training": False}, marks=pytest.mark.slow),
        pytest.param({"cache": "decoded"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_program_ends_while_batches_are_being_made(many: Manifest, options: dict) -> None:
    """A thread of TensorFlow that waits for Python's lock at the end would wait for ever, and the program for it."""
    command = [sys.executable, "-c", PROGRAM, many.directory, repr(options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "left\n"), done.stderr[-2000:]
