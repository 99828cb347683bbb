"""The reader for JAX: on four devices, and on meshes, where who holds the same rows reads the same records."""

import json
from pathlib import Path
from unittest.mock import ANY

import pytest

from tests.beam_jobs.commands import run_python
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
mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
for axes in (("data", None, None, None), ("data", "model"), (None, "data")):
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
    try:
        next(iter(JaxBatches(manifest, "train", image_size=8, batch_size=4, sharding=sharding)))
    except tfpipe.ConfigError as error:
        results.setdefault("axes", []).append(str(error))
results["heavy"] = sorted({"tensorflow", "keras", "torch", "apache_beam", "rich"} & set(sys.modules))
print(json.dumps(results))
left_open = iter(of())  # until the interpreter ends
next(left_open)
"""


def test_each_device_has_its_rows_and_any_step_resumes(small_dataset: Path) -> None:
    """No other framework is loaded, and a program ends within an epoch without a word."""
    done = run_python("-c", CODE, small_dataset)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert results["shape"] == [[4, 8, 8, 3], "uint8", "int32"]
    assert results["shards"] == [[k, k, [1, 8, 8, 3]] for k in range(4)]
    assert results["state"] == {"seed": 3, "epoch": 3, "step": 0, "order": 1, "data": ANY}
    assert results["after_one"] == {"seed": 3, "epoch": 2, "step": 0, "order": 1, "data": ANY}
    assert results["resumed"] == results["labels"][6:9]
    assert (results["floats"], results["white"]) == (["bfloat16", [4, 3], "float32"], [2.249, 2.429, 2.64])
    assert results["text"] == "No device holds text, got image/filename. Leave it out."
    assert [axes.partition(",")[0] for axes in results["axes"]] == ["`sharding` must split rows only"] * 2
    assert (results["heavy"], "Exception ignored" in done.stderr) == ([], False)


MESHED = PipelineConfig(image_size=8, batch_size=4, seed=3, extra_features=("image/height",))
MESH = """
import os, sys
processes, devices, layout, start = int(sys.argv[4]), int(sys.argv[5]), sys.argv[6], int(sys.argv[7])
os.environ.update(XLA_FLAGS=f"--xla_force_host_platform_device_count={devices}", JAX_PLATFORMS="cpu")
import json
from dataclasses import replace
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
if processes > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{sys.argv[2]}", num_processes=processes, process_id=int(sys.argv[3]))
import tfpipe
from tfpipe.readers.jax import JaxBatches
from tfpipe.engine.config.pipeline_config import PipelineConfig

grid = np.array(sorted(jax.devices(), key=lambda device: device.id)).reshape(2, 2)
mesh = Mesh(grid.T if layout == "model" else grid, ("data", "model"))
rows = None if layout == "all" else NamedSharding(mesh, P("data"))
config = PipelineConfig(image_size=8, batch_size=4, seed=3, extra_features=("image/height",))
manifest = tfpipe.load_manifest(sys.argv[1])
weights = np.arange(192 * 6, dtype=np.float32).reshape(192, 6) / 1e4
split = jax.device_put(weights, NamedSharding(mesh, P(None, "model")))  # whole along `data`

@jax.jit
def step(images, weights):
    return jax.lax.with_sharding_constraint((images.reshape(4, -1) / 255.0 @ weights).sum(), NamedSharding(mesh, P()))

whole = jax.jit(lambda *arrays: arrays, out_shardings=NamedSharding(mesh, P()))
steps = []
batches = JaxBatches(manifest, "train", config, start, sharding=rows)
while len(steps) < 6 - start:
    for batch in batches:
        held = {}
        for label, height in zip(batch["label"].addressable_shards, batch["image/height"].addressable_shards):
            held[str(label.index[0].start or 0)] = [label.data.tolist(), height.data.ravel().tolist()]
        (images,) = map(np.asarray, whole(batch["image"]))
        plain = (images.reshape(4, -1) / 255.0 @ weights).sum()
        steps.append([held, int(images.sum()), float(step(batch["image"], split)), float(plain)])
evaluated = []
for batch in JaxBatches(manifest, "validation", replace(config, training=False), sharding=rows):
    label, mask = map(np.asarray, whole(batch["label"], batch["mask"]))
    evaluated.append(label[mask].tolist())
print(json.dumps([steps, evaluated, batches.state_dict()]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_processes", "devices", "layout", "start", "held"),
    [
        (1, 4, "data", 0, [["0", "2"]]),
        (2, 2, "data", 0, [["0"], ["2"]]),  # a process for each part of the rows
        (2, 2, "model", 0, [["0", "2"], ["0", "2"]]),  # the processes of one model group
        (4, 1, "data", 0, [["0"], ["0"], ["2"], ["2"]]),
        (2, 2, "all", 0, [["0", "1"], ["2", "3"]]),  # all devices share the rows, if nobody says more
        (2, 2, "all", 4, [["0", "1"], ["2", "3"]]),
    ],
)
def test_jax_splits_rows_over_data_alone(small_dataset, processes, num_processes, devices, layout, start, held):
    port, size = str(processes.free_ports(1)[0]), 1 if layout == "all" else 2
    more = (str(num_processes), str(devices), layout, str(start))
    started = [processes.start("-c", MESH, str(small_dataset), port, str(i), *more) for i in range(num_processes)]
    results = [processes.finish(process) for process in started]
    batches = build_dataset(small_dataset, "train", MESHED, start_step=start)
    for number, expected in enumerate(batches.take(6 - start).as_numpy_iterator()):
        values = (expected["label"].tolist(), expected["image/height"].ravel().tolist())
        for (steps, *_), parts in zip(results, held, strict=True):
            own, pixels, total, plain = steps[number]
            assert own == {part: [each[int(part) : int(part) + size] for each in values] for part in parts}
            assert pixels == expected["image"].sum()
            assert total == pytest.approx(plain, rel=1e-4)
    for _, evaluated, state in results:
        assert evaluated == [[1, 0, 2]]  # the labels of validation, in the order of its records
        assert state == {"seed": 3, "epoch": 2, "step": 0, "order": 1, "data": ANY}
