"""Predictions by models of TensorFlow, PyTorch and JAX: the same for the same weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfpipe
from beam_jobs import shard_job
from beam_jobs.config import ShardConfig
from tests.training.test_predict import CONFIG
from tests.training.test_predict import images as images
from tests.training.test_predict import model as model
from tfpipe import AugmentOptions, PipelineConfig
from tfpipe.format.image_form import ImageForm
from tfpipe.training.predict import Classifier, Prediction, surround
from tfpipe.training.tensorflow.export import export_model

torch = pytest.importorskip("torch")
jnp = pytest.importorskip("jax.numpy")
torch_export = pytest.importorskip("tfpipe.training.torch.export")
jax_export = pytest.importorskip("tfpipe.training.jax.export")


class TorchModel(torch.nn.Module):
    """The model of the fixture `model`."""

    def __init__(self, kernel: Any, bias: Any) -> None:
        super().__init__()
        self.head = torch.nn.Linear(16 * 16 * 3, 2)
        with torch.no_grad():
            self.head.weight.copy_(torch.from_numpy(kernel.T))
            self.head.bias.copy_(torch.from_numpy(bias))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(images.permute(0, 2, 3, 1).flatten(1) / 255)
        return logits


@pytest.mark.parametrize(
    ("form", "augment"),
    [
        pytest.param(ImageForm(), "host", marks=pytest.mark.slow),
        (ImageForm(resize_short=20), "host"),
        (ImageForm(square=18, encoding="raw"), "host"),
        pytest.param(ImageForm(square=16), "none", marks=pytest.mark.slow),
    ],
    ids=["keep", "short", "raw", "whole"],
)
def test_all_frameworks_give_the_same(
    tmp_path: Path, model: Any, images: Path, monkeypatch: pytest.MonkeyPatch, form: ImageForm, augment: Any
) -> None:
    shard_job.run(ShardConfig(input=str(images), output=str(tmp_path / "data"), form=form, workers=1, num_shards=1))
    manifest = tfpipe.load_manifest(str(tmp_path / "data"))
    config = replace(CONFIG, augment=augment)
    kernel, bias = model.get_weights()
    export_model(model, config, manifest.label_names, str(tmp_path / "tensorflow"), form)
    torch_export.export_model(TorchModel(kernel, bias), config, manifest, str(tmp_path / "torch"))
    monkeypatch.setattr(jax_export, "apply_small_cnn", lambda _, x: x.reshape(-1, 768) / 255 @ kernel + bias)
    monkeypatch.setattr(jax_export, "normalize", lambda pixels, options: pixels)
    jax_export.export_model({"layers": [], "head": {}}, config, manifest, str(tmp_path / "jax"))
    files = [str(path) for path in sorted(images.rglob("*.*"))]
    (by_tensorflow, *others) = (
        list(Classifier(str(tmp_path / name)).classify(files, 4, 2)) for name in ("tensorflow", "torch", "jax")
    )
    for predictions in others:
        for expected, prediction in zip(by_tensorflow, predictions, strict=True):
            assert isinstance(expected, Prediction)
            assert isinstance(prediction, Prediction)
            assert prediction.file == expected.file
            assert [guess.label_name for guess in prediction.top] == [guess.label_name for guess in expected.top]
            assert prediction.top[0].probability == pytest.approx(expected.top[0].probability, abs=0.01)


SIZES, FRACTIONS = [(1, 1), (16, 16), (33, 20), (7, 224), (224, 97), (299, 299)], [0.3, 0.5, 0.7, 0.875, 1.0]


@pytest.mark.parametrize(
    ("size", "crop_fraction"),
    [
        pytest.param(size, fraction, marks=() if n == k and n % 2 else pytest.mark.slow)
        for n, size in enumerate(SIZES)
        for k, fraction in enumerate(FRACTIONS)
    ],
    ids=str,
)
def test_models_take_just_the_pixels_that_are_meant_for_them(size: tuple[int, int], crop_fraction: float) -> None:
    config = PipelineConfig(
        batch_size=1, image_size=size, training=False, augment_options=AugmentOptions(crop_fraction=crop_fraction)
    )
    pixels = np.random.default_rng(0).integers(0, 256, (2, *size, 3), np.uint8)
    images = surround(pixels, crop_fraction)
    served = torch_export.ServedModel(torch.nn.Identity(), config)
    np.testing.assert_array_equal(served._crop_center(torch.from_numpy(images)).numpy(), pixels)
    np.testing.assert_array_equal(np.asarray(jax_export._resize_center(jnp.asarray(images), config)), pixels)
