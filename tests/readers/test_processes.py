"""Two real processes of JAX, with two devices each, and of `torch.distributed`, on gloo, share the batches."""

import json
from pathlib import Path
from unittest.mock import ANY

import pytest

import tfpipe
from tests.conftest import Processes
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.pipeline.build import build_dataset
from tfpipe.readers.numpy import NumpyBatches

JAX = """
import os, sys
os.environ.update(XLA_FLAGS="--xla_force_host_platform_device_count=2", JAX_PLATFORMS="cpu")
import json
import jax, jax.numpy as jnp
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{sys.argv[2]}", num_processes=2, process_id=int(sys.argv[3]))
import tfpipe
from tfpipe.readers.jax import JaxBatches

manifest = tfpipe.load_manifest(sys.argv[1])
config = tfpipe.PipelineConfig(
    image_size=8, batch_size=4, seed=3, extra_features=("image/height", "image/width")
)
batches = JaxBatches(manifest, "train", config, int(sys.argv[4]))

@jax.jit
def summed(image, label):  # over the devices of both
    return jnp.sum(image.astype(jnp.int32)), jnp.sum(label * jnp.arange(1, 5))

steps_read = []
while len(steps_read) < 6 - int(sys.argv[4]):
    for batch in batches:
        step_read = {name: [row.data.tolist()[0] for row in batch[name].addressable_shards] for name in batch}
        step_read["rows"] = [row.index[0].start for row in batch["label"].addressable_shards]
        step_read["summed"] = [int(total) for total in summed(batch["image"], batch["label"])]
        steps_read.append(step_read)
print(json.dumps([steps_read, batches.state_dict()]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("start_step", [0, 4])
def test_each_reads_its_rows_and_computes_with_all(small_dataset: Path, processes, start_step: int) -> None:
    pytest.importorskip("jax")
    config = PipelineConfig(image_size=8, batch_size=4, seed=3, extra_features=("image/height", "image/width"))
    manifest = tfpipe.load_manifest(str(small_dataset))
    expected = list(build_dataset(manifest, "train", config).take(6).as_numpy_iterator())[start_step:]
    port = processes.free_ports(1)[0]
    started = [processes.start("-c", JAX, str(small_dataset), str(port), str(i), str(start_step)) for i in range(2)]
    (first, state), (second, other_state) = [processes.finish(process) for process in started]
    assert state == other_state == {"seed": 3, "epoch": 2, "step": 0, "order": 1, "data": ANY}
    for batch, ours, theirs in zip(expected, first, second, strict=True):
        assert (ours["rows"], theirs["rows"]) == ([0, 1], [2, 3])
        for name in ("label", "image/height", "image/width"):
            assert ours[name] + theirs[name] == batch[name].tolist()
        pixels = sum(value for image in ours["image"] + theirs["image"] for row in image for px in row for value in px)
        assert ours["summed"] == theirs["summed"] == [pixels, int((batch["label"] * [1, 2, 3, 4]).sum())]


OPTIONS = {"batch_size": 4, "image_size": 8, "seed": 1, "extra_features": ("image/filename",)}

TORCH = f"""
import json, sys
import torch
from tfpipe import TorchBatches, data_loader

torch.distributed.init_process_group("gloo")
loader = data_loader(TorchBatches(sys.argv[1], "train", **{OPTIONS}), num_workers=1)
if len(sys.argv) > 2:
    loader.load_state_dict(json.loads(sys.argv[2]))
names = [[name.decode() for name in batch["image/filename"]] for _ in range(2) for batch in loader]
print(json.dumps(names))
"""


def read(processes: Processes, *arguments: str) -> list[list[str]]:
    """The names in each global batch."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(processes.free_ports(1)[0]), "WORLD_SIZE": "2"}
    started = [processes.start("-c", TORCH, *arguments, **place, RANK=str(rank)) for rank in range(2)]
    ranks = [processes.finish(process) for process in started]
    return [left + right for left, right in zip(*ranks, strict=True)]


@pytest.mark.slow
def test_two_ranks_share_the_epochs_and_go_on(processes: Processes, small_dataset: Path) -> None:
    dataset = build_dataset(small_dataset, "train", **OPTIONS).take(9).as_numpy_iterator()
    expected = [[name.decode() for name in batch["image/filename"]] for batch in dataset]
    assert read(processes, str(small_dataset)) == expected[:6]
    for epoch in (expected[:3], expected[3:6]):
        assert len({name for batch in epoch for name in batch}) == 12
    state = {**NumpyBatches(small_dataset, "train", **OPTIONS).state_dict(), "epoch": 1, "step": 1}
    assert read(processes, str(small_dataset), json.dumps(state)) == expected[4:9]
