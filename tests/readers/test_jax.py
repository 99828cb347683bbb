"""The reader for JAX on four devices."""

import json
from pathlib import Path
from unittest.mock import ANY

import pytest

from tests.beam_jobs.commands import run_python

# How many devices there are is settled when JAX is loaded.
CODE = """
import os, sys
os.environ.update(XLA_FLAGS="--xla_force_host_platform_device_count=4", JAX_PLATFORMS="cpu")
import json
import jax, jax.numpy as jnp, numpy as np
import tfpipe
from tfpipe.readers.jax import JaxBatches, normalize

manifest, results = tfpipe.load_manifest(sys.argv[1]), {}

def of(**options):
    config = tfpipe.PipelineConfig(**{"image_size": 8, "batch_size": 4, "seed": 3, **options})
    return JaxBatches(manifest, "train", config)

batches = of()
results["labels"] = [batch["label"].tolist() for _ in range(3) for batch in batches]
batch = next(iter(of()))
image = batch["image"]
results["shape"] = [list(image.shape), str(image.dtype), str(batch["label"].dtype)]
results["shards"] = [[s.device.id, s.index[0].start or 0, list(s.data.shape)] for s in image.addressable_shards]
results["state"] = batches.state_dict()
batches.load_state_dict({**results["state"], "epoch": 1, "step": 2})
early = iter(batches)
next(early)
results["after_one"] = batches.state_dict()
early.close()
results["resumed"] = [batch["label"].tolist() for batch in batches]
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
    done = run_python("-c", CODE, small_dataset)
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout), "stderr": done.stderr}


def test_each_device_has_its_rows(results: dict) -> None:
    assert results["shape"] == [[4, 8, 8, 3], "uint8", "int32"]
    assert results["shards"] == [[k, k, [1, 8, 8, 3]] for k in range(4)]


def test_any_step_resumes(results: dict) -> None:
    assert results["state"] == {"seed": 3, "epoch": 3, "step": 0, "order": 1, "data": ANY}
    assert results["after_one"] == {"seed": 3, "epoch": 2, "step": 0, "order": 1, "data": ANY}
    assert results["resumed"] == results["labels"][6:9]


def test_floats_tuples_and_text(results: dict) -> None:
    assert (results["floats"], results["white"]) == (["bfloat16", [4, 3], "float32"], [2.249, 2.429, 2.64])
    sentence = "No device holds text, got image/filename. Leave it out."
    assert results["text"] == sentence


def test_no_other_framework_is_loaded_and_a_program_ends_within_an_epoch_without_a_word(results: dict) -> None:
    assert (results["heavy"], "Exception ignored" in results["stderr"]) == ([], False)
