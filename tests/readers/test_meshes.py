"""Meshes, with an axis for the model beside that for the data: who holds the same rows reads the same records."""

from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

import tfpipe
from tests.refusals import refusal
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.pipeline.build import build_dataset

CONFIG = PipelineConfig(image_size=8, batch_size=4, seed=3, extra_features=("image/height",))
EVALUATED = [[1, 0, 2]]  # the labels of validation, in the order of its records

JAX = """
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

TORCH = """
import json, os, sys
import torch
from dataclasses import replace
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
import tfpipe
from tfpipe.readers.torch import TorchBatches, data_loader, normalize
from tfpipe.engine.config.pipeline_config import PipelineConfig

torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
config = PipelineConfig(image_size=8, batch_size=4, seed=3, extra_features=("image/height",))
manifest = tfpipe.load_manifest(sys.argv[1])
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(192, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
whole = [parameter.detach().clone() for parameter in net.parameters()]
parallelize_module(net, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
images = TorchBatches(manifest, "train", config, rank=mesh)
steps = []
for batch in data_loader(images, num_workers=0):
    flat = normalize(batch["image"]).flatten(1)
    hidden = torch.relu(flat @ whole[0].T + whole[1])
    error = (net(flat) - (hidden @ whole[2].T + whole[3])).abs().max().item()
    steps.append([batch["label"].tolist(), batch["image/height"].tolist(), error])
evaluation = TorchBatches(manifest, "validation", replace(config, training=False), rank=mesh)
evaluated = [batch["label"][batch["mask"]].tolist() for batch in data_loader(evaluation, num_workers=0)]
print(json.dumps([mesh.get_coordinate(), steps, evaluated]))
torch.distributed.destroy_process_group()
"""


def read_expected(dataset: Path) -> list[dict[str, Any]]:
    """Reads two epochs by the pipeline of TensorFlow."""
    return list(build_dataset(tfpipe.load_manifest(str(dataset)), "train", CONFIG).take(6).as_numpy_iterator())


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
    pytest.importorskip("jax")
    port, size = str(processes.free_ports(1)[0]), 1 if layout == "all" else 2
    more = (str(num_processes), str(devices), layout, str(start))
    started = [processes.start("-c", JAX, str(small_dataset), port, str(i), *more) for i in range(num_processes)]
    results = [processes.finish(process) for process in started]
    for number, expected in enumerate(read_expected(small_dataset)[start:]):
        values = (expected["label"].tolist(), expected["image/height"].ravel().tolist())
        for (steps, *_), parts in zip(results, held, strict=True):
            own, pixels, total, plain = steps[number]
            assert own == {part: [each[int(part) : int(part) + size] for each in values] for part in parts}
            assert pixels == expected["image"].sum()
            assert total == pytest.approx(plain, rel=1e-4)
    for _, evaluated, state in results:
        assert evaluated == EVALUATED
        assert state == {"seed": 3, "epoch": 2, "step": 0, "order": 1, "data": ANY}


@pytest.mark.slow
def test_pytorch_splits_rows_over_data_alone(small_dataset: Path, processes: Any) -> None:
    pytest.importorskip("torch")
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(processes.free_ports(1)[0]), "WORLD_SIZE": "4"}
    started = [processes.start("-c", TORCH, str(small_dataset), **shared, RANK=str(rank)) for rank in range(4)]
    results = [processes.finish(process) for process in started]
    assert [coordinate for coordinate, _, _ in results] == [[0, 0], [0, 1], [1, 0], [1, 1]]
    for number, expected in enumerate(read_expected(small_dataset)[:3]):
        for (part, _), steps, _ in results:
            labels, heights, error = steps[number]
            assert labels == expected["label"][2 * part : 2 * part + 2].tolist()
            assert heights == expected["image/height"][2 * part : 2 * part + 2].ravel().tolist()
            assert error < 1e-5  # two matrices, split over `tensor`
    assert [evaluated for _, _, evaluated in results] == [[[1]], [[1]], [[0, 2]], [[0, 2]]]


def test_a_mesh_without_data_is_refused(small_dataset: Path) -> None:
    pytest.importorskip("torch")
    from tfpipe.errors import ConfigError
    from tfpipe.readers.torch import TorchBatches

    class Mesh:  # a real one needs processes
        mesh_dim_names = ("replicate", "shard")

    sentence = "`rank` must be a mesh with a dimension data, got replicate, shard."
    assert refusal(ConfigError, TorchBatches, small_dataset, "train", CONFIG, rank=Mesh()) == sentence
