"""Two real processes of `torch.distributed`, on gloo, share the batches; those of JAX are tested with their meshes."""

import json
from pathlib import Path

import pytest

from tests.conftest import Processes
from tfpipe.pipeline.build import build_dataset
from tfpipe.readers.numpy import NumpyBatches

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
