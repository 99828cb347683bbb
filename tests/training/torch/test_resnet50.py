"""ResNet-50 has the published number of weights, learns, and its averages are one process' in an evaluation."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tfpipe.engine.config.pipeline_config import PipelineConfig  # noqa: E402
from tfpipe.errors import ConfigError  # noqa: E402
from tfpipe.training.torch.models import build_model  # noqa: E402
from tfpipe.training.torch.resnet50 import STAGES, Bottleneck, ResNet50  # noqa: E402


def test_it_has_the_published_weights_and_shapes() -> None:
    with torch.device("meta"):  # counts weights, and draws none
        model = ResNet50(1000)
        assert model(torch.empty(2, 3, 224, 224)).shape == (2, 1000)
    assert sum(weights.numel() for weights in model.parameters()) == 25_557_032
    assert sum(isinstance(layer, Bottleneck) for layer in model) == sum(blocks for _, blocks, _ in STAGES) == 16


def test_a_pipelines_images_give_float32_logits_under_bfloat16() -> None:
    model = build_model("resnet50", 5, PipelineConfig(batch_size=8, image_size=(32, 40)))
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(torch.zeros(2, 3, 32, 40, dtype=torch.uint8))
    assert (logits.dtype, logits.shape) == (torch.float32, (2, 5))
    assert logits.isfinite().all()


def test_too_small_images_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"resnet50 needs images of at least 32 pixels a side, got 16 x 40\."):
        build_model("resnet50", 7, PipelineConfig(batch_size=8, image_size=(16, 40)))
