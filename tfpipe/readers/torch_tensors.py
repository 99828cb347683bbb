"""Parts of batches as PyTorch's tensors, and the rank of a process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tfpipe.engine.batch import Batch
from tfpipe.engine.config.augment_config import AugmentOptions
from tfpipe.engine.plan import AnyPlan
from tfpipe.errors import ConfigError
from tfpipe.system.arguments import check_has
from tfpipe.system.extras import importing

with importing("`tfpipe.readers.torch`", "PyTorch", "tfpipe[torch]"):
    import torch

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_DATA = "data"  # the dimension of a mesh along which rows are split


def normalize(
    images: torch.Tensor, options: AugmentOptions | None = None, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Subtracts the mean and divides by the deviation, on whichever device the images are.

    Args:
        images: uint8 of shape [..., 3, height, width].
        options: `mean` and `std` are used, by default ImageNet's.
        dtype: The dtype of the result, which is computed in float32.
    """
    options = options or AugmentOptions()
    mean, std = (
        torch.tensor(values, device=images.device).mul(255).view(-1, 1, 1) for values in (options.mean, options.std)
    )
    return ((images - mean) / std).to(dtype)


def find_rank(rank: tuple[int, int] | DeviceMesh | None) -> tuple[int, int]:
    """Finds the number of this process and the number of processes.

    `rank` is both, or a mesh with a dimension `data`; without one `torch.distributed` says it, if it is initialized.
    """
    if isinstance(rank, tuple):
        return rank
    if rank is not None:
        check_has("rank", rank, "mesh_dim_names", "a pair of numbers or a DeviceMesh")
        names = rank.mesh_dim_names or ()
        if _DATA not in names:
            raise ConfigError(f"`rank` must be a mesh with a dimension {_DATA}, got {', '.join(names) or 'no names'}.")
        return rank.get_local_rank(_DATA), rank.size(names.index(_DATA))
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def make_images(images: Any) -> torch.Tensor:
    """Makes [..., 3, height, width] of the memory of [..., height, width, 3]; uint16 holds the bits of bfloat16."""
    return _make_tensor(images, images.dtype == np.uint16).movedim(-1, -3)


def make_tensors(batch: Batch, plan: AnyPlan) -> dict[str, Any]:
    """Makes tensors of all parts of a batch but the images. Text stays, and tensors of several shapes are lists."""
    kinds = {feature.name: feature.spec.tensor for feature in plan.features}
    tensors: dict[str, Any] = {}
    for name, value in batch.items():
        tensor = kinds.get(name)
        is_bits = tensor is not None and tensor.dtype == "bfloat16"
        if isinstance(value, np.ndarray):
            tensors[name] = _make_tensor(value, is_bits)
        else:
            is_text = not value or not isinstance(value[0], np.ndarray)
            tensors[name] = value if is_text else [_make_tensor(array.copy(), is_bits) for array in value]
    return tensors


def _make_tensor(array: Any, is_bfloat16: bool) -> torch.Tensor:
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) if is_bfloat16 else torch.from_numpy(array)
