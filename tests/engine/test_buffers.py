"""Memory that is used again: never while anything still looks at it."""

import gc
from collections.abc import Callable
from itertools import islice
from typing import Any

import jax
import numpy as np
import pytest
import tensorflow as tf
import torch

import tfpipe
from tfpipe.engine.buffers import allocate
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.readers.jax import JaxBatches
from tfpipe.readers.numpy import NumpyBatches
from tfpipe.readers.torch import TorchBatches, data_loader

LARGE = (3, 1 << 20)


def get_address(array: np.ndarray[Any, Any]) -> int:
    return int(array.ctypes.data)


def test_memory_is_used_again_once_nobody_has_it() -> None:
    first = allocate(LARGE, np.uint8)
    address = get_address(first)
    assert (address % 64, first.shape, first.dtype) == (0, LARGE, np.uint8)
    other = allocate(LARGE, np.uint8)  # it is held until the end
    assert get_address(other) != address
    del first
    gc.collect()
    assert get_address(allocate(LARGE, np.uint8)) == address


@pytest.mark.parametrize(
    "look",
    [
        lambda array: array[1:, ::2],
        lambda array: array.reshape(-1).view(np.int32),
        lambda array: memoryview(array),
        lambda array: torch.from_numpy(array)[0],
        lambda array: [array[2]],
    ],
    ids=["view", "other dtype", "memoryview", "tensor", "row in a list"],
)
def test_whatever_looks_at_it_keeps_it(look: Callable[[Any], Any]) -> None:
    array = allocate(LARGE, np.uint8)
    address = get_address(array)
    view = look(array)
    del array
    gc.collect()
    others = [allocate(LARGE, np.uint8) for _ in range(5)]
    assert address not in {get_address(other) for other in others}
    del view
    gc.collect()
    assert address in {get_address(allocate(LARGE, np.uint8)) for _ in range(8)}


def test_small_arrays_are_plain() -> None:
    array = allocate((2, 5), np.float32)
    assert (array.shape, array.dtype, get_address(array) % 64) == ((2, 5), np.float32, 0)
    assert allocate((0, 7), np.int64).shape == (0, 7)


@pytest.mark.parametrize(
    "read",
    [
        lambda data, config: NumpyBatches(data, "train", config, num_threads=2),
        lambda data, config: data_loader(TorchBatches(data, "train", config)),
        lambda data, config: JaxBatches(data, "train", config, num_threads=2),
        lambda data, config: tfpipe.build_dataset(data, "train", config),
    ],
    ids="numpy torch jax tensorflow".split(),
)
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_a_batch_that_is_kept_does_not_change(small_dataset, read, dtype):
    config = PipelineConfig(batch_size=2, image_size=500, image_dtype=dtype)  # 1.5 MB or 6 MB
    batches = iter(read(small_dataset, config))
    kept, copies = [], []
    for batch in islice(batches, 3):
        image = batch["image"]
        kept.append(image if isinstance(image, jax.Array | np.ndarray | tf.Tensor) else image[0])
        copies.append(np.array(kept[-1]))
    del batch, image
    for _ in range(3):
        gc.collect()
        next(batches, None)
    for now, before in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(np.array(now), before)
