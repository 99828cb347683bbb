"""The reader for JAX on four devices, held to the TensorFlow pipeline."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tfpipe
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.pipeline.build import build_dataset

# How many devices there are is settled when JAX is loaded.
CODE = """
import os, sys
os.environ.update(XLA_FLAGS="--xla_force_host_platform_device_count=4", JAX_PLATFORMS="cpu")
import json
import jax, jax.numpy as jnp, numpy as np
import tfpipe
from tfpipe.readers.jax import JaxBatches, normalize

manifest, results = tfpipe.load_manifest(sys.argv[1]), {}

def of(split="train", start_step=0, **options):
    config = tfpipe.PipelineConfig(**{"image_size": 8, "batch_size": 4, "seed": 3, **options})
    return JaxBatches(manifest, split, config, start_step)

batches = of(extra_features=("image/height", "image/width"))
sizes, labels = [], []
for epoch in range(3):
    for batch in batches:
        sizes.append(batch["image/height"].tolist() + batch["image/width"].tolist())
        labels.append(batch["label"].tolist())
image = batch["image"]
results["sizes"], results["labels"] = sizes, labels
results["shape"] = [list(image.shape), str(image.dtype), str(batch["label"].dtype)]
results["shards"] = [[s.device.id, s.index[0].start or 0, list(s.data.shape)] for s in image.addressable_shards]
results["images"] = [batch["image"].tolist() for batch in of()]
results["state"] = batches.state_dict()
batches.load_state_dict({"seed": 3, "epoch": 1, "step": 2, "order": 1})
early = iter(batches)
next(early)
results["after_one"] = batches.state_dict()
early.close()
results["resumed"] = [batch["label"].tolist() for batch in batches]
results["started"] = [batch["label"].tolist() for batch in of(start_step=5)]
results["evaluated"] = [[b["label"].tolist(), b["mask"].tolist()] for b in of("validation", training=False)]
floats, label = next(iter(of(image_dtype="bfloat16", as_supervised=True, one_hot=True)))
results["floats"] = [str(floats.dtype), list(label.shape), str(label.dtype)]
white = normalize(jnp.full((1, 1, 3), 255, jnp.uint8))
results["white"] = [round(float(value), 3) for value in white.flatten()]
try:
    of(extra_features=("image/filename",))
except tfpipe.ConfigError as error:
    results["text"] = str(error)
results["heavy"] = sorted({"tensorflow", "keras", "torch", "apache_beam", "rich"} & set(sys.modules))
print(json.dumps(results))
left_open = iter(of())  # until the interpreter ends
next(left_open)
"""


@pytest.fixture(scope="module")
def results(small_dataset: Path) -> dict:
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(small_dataset)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout), "stderr": done.stderr}


@pytest.fixture(scope="module")
def expected(small_dataset: Path) -> list[dict]:
    config = PipelineConfig(image_size=8, batch_size=4, seed=3, extra_features=("image/height", "image/width"))
    dataset = build_dataset(tfpipe.load_manifest(str(small_dataset)), "train", config)
    return list(dataset.take(9).as_numpy_iterator())


def test_batches_are_those_of_the_tensorflow_pipeline(results: dict, expected: list[dict]) -> None:
    assert results["labels"] == [batch["label"].tolist() for batch in expected]
    assert results["sizes"] == [batch["image/height"].tolist() + batch["image/width"].tolist() for batch in expected]
    for ours, theirs in zip(results["images"], expected[:3], strict=True):
        assert abs(theirs["image"].astype(int) - ours).mean() < 4


def test_each_device_has_its_rows(results: dict) -> None:
    assert results["shape"] == [[4, 8, 8, 3], "uint8", "int32"]
    assert results["shards"] == [[k, k, [1, 8, 8, 3]] for k in range(4)]


def test_any_step_resumes(results: dict, expected: list[dict]) -> None:
    labels = [batch["label"].tolist() for batch in expected]
    assert results["state"] == {"seed": 3, "epoch": 3, "step": 0, "order": 1}
    assert results["after_one"] == {"seed": 3, "epoch": 2, "step": 0, "order": 1}
    assert results["resumed"] == labels[6:9]
    assert results["started"] == labels[5:6]


def test_evaluation_gives_every_record_once(results: dict) -> None:
    assert results["evaluated"] == [[[1, 0, 2, 0], [True, True, True, False]]]


def test_floats_tuples_and_text(results: dict) -> None:
    assert results["floats"] == ["bfloat16", [4, 3], "float32"]
    assert results["white"] == [2.249, 2.429, 2.64]
    assert (
        results["text"]
        == "`extra_features` must not name text, which no device holds, got image/filename. Leave it out."
    )


def test_a_program_that_ends_within_an_epoch_ends_without_a_word(results: dict) -> None:
    assert "Exception ignored" not in results["stderr"]


def test_no_other_framework_is_loaded(results: dict) -> None:
    assert results["heavy"] == []
