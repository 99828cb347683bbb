"""`tfpipe index` on records of other projects: every reader has what TensorFlow's own parser has, value for value."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import torch

from tests.integrity.foreign.families import FAMILIES, RECORDS, Family
from tfpipe.dataset.load import load_manifest
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.host import Host
from tfpipe.engine.order import Order
from tfpipe.format.manifest import Manifest
from tfpipe.integrity.foreign.index import IndexConfig, index
from tfpipe.pipeline.build import build_dataset
from tfpipe.readers.jax import JaxBatches
from tfpipe.readers.numpy import NumpyBatches
from tfpipe.readers.torch import TorchBatches

BATCH, BLOCK, STEPS = 6, 3, 4  # more steps than an epoch has


@dataclass(frozen=True)
class Indexed:
    """A family that was written and indexed, and what TensorFlow parses of each record."""

    family: Family
    manifest: Manifest
    parsed: list[Mapping[str, Any]]

    @property
    def config(self) -> PipelineConfig:
        parts = {*self.parsed[0]} - {"image", *self.family.text, self.manifest.label_key, self.manifest.value_key}
        return PipelineConfig(
            batch_size=BATCH,
            block_records=BLOCK,
            augment="none",
            image_size=8,
            images=self.family.images,
            extra_features=tuple(sorted(parts)),
            pad_to=dict(self.family.pad_to),
        )

    def list_numbers(self, step: int, host: int = 0, hosts: int = 1) -> list[int]:
        """Lists the records of a step by `tfpipe.engine.order`."""
        order = Order(RECORDS, BATCH, BLOCK, self.config.seed)
        return order.list_numbers(*order.locate(step), Host(host, hosts, hosts).share(BATCH)).tolist()

    def check(self, batch: Mapping[str, Any], numbers: list[int]) -> None:
        """Checks that the arrays of a batch are those of these records, in their order."""
        for name in self.parsed[0]:
            if name in batch:
                rows = [_to_array(self.parsed[number][name]) for number in numbers]
                if name in self.family.pad_to:
                    rows = [_pad(row, self.family.pad_to[name], -1 if row.dtype == np.int64 else 0) for row in rows]
                found, expected = _to_array(batch[name]), np.stack(rows)
                if expected.dtype == np.int64 and found.dtype == np.int32:  # as JAX has whole numbers
                    found = found.astype(np.int64)
                assert found.dtype == expected.dtype, name
                np.testing.assert_array_equal(found, expected, name)


def _to_array(value: Any) -> Any:
    """Makes an array of a tensor of any framework, of bfloat16 with its bits."""
    if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16:
        value = value.view(torch.uint16)
    array = np.asarray(value)
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


def _pad(row: Any, length: int, padding: int) -> Any:
    filled = 0 if row.ndim > 1 else padding
    return np.concatenate([row, np.full((length - len(row), *row.shape[1:]), filled, row.dtype)])


@pytest.fixture(scope="module", params=FAMILIES)
def indexed(request, tmp_path_factory) -> Indexed:
    family = FAMILIES[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    records = family.write(folder)
    index(IndexConfig(str(folder), **family.index))
    return Indexed(family, load_manifest(str(folder)), [family.parse(tf.constant(record)) for record in records])


def test_numpy_has_every_value_and_the_text(indexed: Indexed) -> None:
    config = replace(indexed.config, extra_features=(*indexed.config.extra_features, *indexed.family.text))
    batches = NumpyBatches(indexed.manifest, "train", config)
    for step in range(STEPS):
        batch, numbers = batches.read(step), indexed.list_numbers(step)
        assert batch.keys() >= indexed.parsed[0].keys()
        for name in indexed.family.text:
            assert batch.pop(name) == [indexed.parsed[number][name].numpy() for number in numbers]
        indexed.check(batch, numbers)


@pytest.mark.parametrize("reader", ["tensorflow", "torch", "jax"])
def test_each_framework_has_every_value_from_any_step_on(indexed: Indexed, reader: str) -> None:
    arguments = indexed.manifest, "train", indexed.config
    batches: Iterator[Any]
    if reader == "tensorflow":
        batches = build_dataset(*arguments, start_step=1).as_numpy_iterator()
    elif reader == "torch":
        batches = iter(TorchBatches(*arguments, start_step=1))
    else:
        batches = iter(JaxBatches(*arguments, start_step=1))
    for step, values in zip(range(1, STEPS), batches, strict=False):  # an epoch ends a pass of PyTorch and JAX
        batch = dict(values)
        assert batch.keys() >= indexed.parsed[0].keys() - {*indexed.family.text}
        if reader == "torch" and "image" in batch:
            batch["image"] = batch["image"].movedim(-3, -1)
        indexed.check(batch, indexed.list_numbers(step))


def test_three_hosts_share_each_batch(indexed: Indexed) -> None:
    for host in range(3):
        batches = NumpyBatches(indexed.manifest, "train", indexed.config, rank=(host, 3))
        indexed.check(batches.read(2), indexed.list_numbers(2, host, 3))
