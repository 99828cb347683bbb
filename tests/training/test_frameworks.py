"""The trainers of TensorFlow, PyTorch and JAX beside each other: the same records, the same model, the same rates."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfpipe.dataset.load import load_manifest
from tfpipe.training.config import TrainConfig
from tfpipe.training.learner import LearningRate

START = 4  # in an epoch of 6 steps


@pytest.mark.slow
def test_all_read_the_same_records(colors: Path, make_config: Callable[..., TrainConfig]) -> None:
    tf = pytest.importorskip("tensorflow")
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    from tfpipe.distribution import distribute_dataset
    from tfpipe.readers.jax import JaxBatches
    from tfpipe.readers.torch import TorchBatches, data_loader

    manifest, pipeline = load_manifest(str(colors)), make_config(seed=7).training_pipeline
    strategy = tf.distribute.OneDeviceStrategy("/CPU:0")
    in_tensorflow = distribute_dataset(strategy, manifest, "train", pipeline, START)
    loader = data_loader(TorchBatches(manifest, "train", pipeline, START), num_workers=0)
    in_torch = (batch for _ in range(3) for batch in loader)
    batches = JaxBatches(manifest, "train", pipeline, START)
    in_jax = (batch for _ in range(3) for batch in batches)
    steps = itertools.islice(zip(in_tensorflow, in_torch, in_jax, strict=False), 2 + 6)
    for by_tensorflow, by_torch, by_jax in steps:
        expected = by_tensorflow["label"].numpy().tolist()
        assert by_torch["label"].tolist() == by_jax["label"].tolist() == expected
        pixels = by_tensorflow["image"].numpy().astype(int)
        for others in (by_torch["image"].permute(0, 2, 3, 1).numpy(), np.asarray(by_jax["image"])):
            assert abs(others.astype(int) - pixels).mean() < 2  # the same crops, rounded by other decoders
    in_jax.close()


@pytest.mark.slow
def test_all_have_the_same_model(make_config: Callable[..., TrainConfig]) -> None:
    pytest.importorskip("tensorflow")
    torch = pytest.importorskip("torch")
    jnp = pytest.importorskip("jax.numpy")
    from tfpipe.readers.jax import normalize
    from tfpipe.training.jax.models import apply_small_cnn
    from tfpipe.training.tensorflow.models import build_model as build_in_tensorflow
    from tfpipe.training.torch.models import build_model as build_in_torch

    config = make_config(image_size=(33, 20)).evaluation_pipeline
    in_tensorflow, in_torch = build_in_tensorflow("small_cnn", 6, config), build_in_torch("small_cnn", 6, config)
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=weight.shape).astype(np.float32) for weight in in_tensorflow.get_weights()]
    in_tensorflow.set_weights(weights)
    groups = [dict(zip(("kernel", "scale", "offset"), weights[i : i + 3], strict=True)) for i in (0, 3, 6)]
    parameters: Any = {"layers": groups, "head": {"kernel": weights[9], "bias": weights[10]}}
    net = in_torch.net
    with torch.no_grad():
        for convolution, norm, group in zip(net.convolutions, net.norms, groups, strict=True):
            convolution.weight.copy_(torch.from_numpy(group["kernel"]).permute(3, 2, 0, 1))
            norm.weight.copy_(torch.from_numpy(group["scale"]))
            norm.bias.copy_(torch.from_numpy(group["offset"]))
        net.head.weight.copy_(torch.from_numpy(weights[9]).T)
        net.head.bias.copy_(torch.from_numpy(weights[10]))
        images = rng.integers(0, 256, (3, 33, 20, 3), np.uint8)
        by_torch = in_torch(torch.from_numpy(images).permute(0, 3, 1, 2)).numpy()
    expected = in_tensorflow(images, training=False).numpy()
    scale = float(abs(expected).max())
    assert by_torch == pytest.approx(expected, abs=1e-4 * scale)
    by_jax = np.asarray(apply_small_cnn(parameters, normalize(jnp.asarray(images))))
    assert by_jax == pytest.approx(expected, abs=1e-4 * scale)


@pytest.mark.parametrize("warmup_epochs", [0, 0.3, 2])
def test_the_rates_rise_and_fall_as_keras_says(make_config: Callable[..., TrainConfig], warmup_epochs: float) -> None:
    pytest.importorskip("tensorflow")
    from tfpipe.training.tensorflow.train import make_schedule

    config = make_config(warmup_epochs=warmup_epochs)
    rates, schedule = LearningRate(config, 8, 6), make_schedule(config, 8, 6)
    assert [rates.get(step) for step in range(18)] == pytest.approx(
        [float(schedule(step)) for step in range(18)], rel=1e-5
    )
    assert max(map(rates.get, range(18))) == pytest.approx(0.1 * 8 / 256)
