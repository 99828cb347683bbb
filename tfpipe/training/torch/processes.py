"""The processes and devices that train together in PyTorch: one process for each device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from tfpipe.errors import ConfigError, first_line

_BFLOAT16_CAPABILITY = (8, 0)  # of Ampere, the first GPUs that multiply bfloat16 faster than float32


@dataclass(frozen=True)
class Place:
    """The place of this process among those that train together.

    Attributes:
        device: The device that this process trains on.
        rank: The number of this process, from 0.
        num_ranks: The number of processes.
    """

    device: torch.device
    rank: int = 0
    num_ranks: int = 1

    @property
    def has_bfloat16(self) -> bool:
        """Whether the device is built for bfloat16."""
        return self.device.type == "cuda" and torch.cuda.get_device_capability(self.device) >= _BFLOAT16_CAPABILITY

    def describe(self) -> str:
        """Describes the devices in one line, for example "CPU: 2 processes (DistributedDataParallel, gloo)"."""
        kind = "GPU" if self.device.type == "cuda" else "CPU"
        if self.num_ranks == 1:
            return f"{kind}: 1 process (PyTorch {torch.__version__})"
        backend = torch.distributed.get_backend()
        return f"{kind}: {self.num_ranks} processes (PyTorch {torch.__version__}, DistributedDataParallel, {backend})"


@contextlib.contextmanager
def join_processes(num_ranks: int = 1, local_rank: int = 0) -> Iterator[Place]:
    """Joins the processes that `torchrun` started, and leaves them when the block ends.

    Args:
        num_ranks: The number of processes. With more than 1, PyTorch reads from the environment who they are.
        local_rank: The number of this process on its machine, from 0, which is the number of its GPU.

    Raises:
        ConfigError: The processes do not find each other, or this machine has fewer GPUs than processes.
    """
    cuda = torch.cuda.is_available()
    if cuda and local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"Each process needs a GPU of its own, and this is process {local_rank + 1} on a machine with "
            f"{torch.cuda.device_count()}. Start fewer with torchrun --nproc-per-node."
        )
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    if num_ranks == 1:
        yield Place(device)
        return
    try:
        torch.distributed.init_process_group("nccl" if cuda else "gloo")
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"The {num_ranks} processes do not find each other: {first_line(error)}. Start them with torchrun."
        ) from error
    try:
        yield Place(device, torch.distributed.get_rank(), torch.distributed.get_world_size())
    finally:
        torch.distributed.destroy_process_group()
