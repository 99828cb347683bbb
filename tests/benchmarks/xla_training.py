"""Trains small_cnn by PyTorch/XLA and by plain PyTorch on the same records, and compares the loss of each step.

    python3.11 -m venv xla && xla/bin/pip install torch==2.9.0 torch-xla==2.9.0 '.[torch,shard]'
    xla/bin/python tests/benchmarks/xla_training.py

torch-xla needs PyTorch of its own version, whose package for CUDA takes 7 GB with its libraries, so it gets an
environment of its own. XLA computes on the CPU. Both run the trainer's own step from the same weights. The batches come
from `tfpipe.readers.torch`, and go to the XLA device by `xla_loader`. The command ends with 1 if a loss differs.

Rounding grows from step to step: after 20 steps the losses part, and after 45 also those of plain PyTorch with and
without oneDNN.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import click
import torch

import tfpipe
from tfpipe.format.manifest import Manifest
from tfpipe.readers.torch import TorchBatches, data_loader, xla_loader
from tfpipe.training.config import TrainConfig, default_pipeline
from tfpipe.training.learner import RunFacts
from tfpipe.training.torch.processes import Place
from tfpipe.training.torch.train import TorchLearner

ROOT = Path(__file__).resolve().parents[2]
BATCH = 4
TOLERANCE = 1e-6  # relative: XLA adds up in another order


@click.command()
@click.argument("images", default=str(ROOT / "sample_data"))
@click.option("--steps", type=click.IntRange(1), default=12, show_default=True, help="The number of steps to compare.")
def main(images: str, steps: int) -> None:
    """Shard the class folders of IMAGES, train both ways, and compare."""
    os.environ["PJRT_DEVICE"] = "CPU"  # before the first use of an XLA device
    import torch_xla
    from torch_xla.debug import metrics

    device = torch_xla.device()  # before PyTorch's first gradients, which start a thread for each device that is known
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tfpipe", "shard", images, f"{folder}/data"]
        subprocess.run(command, check=True, capture_output=True)
        manifest = tfpipe.load_manifest(f"{folder}/data")
        pipeline = tfpipe.PipelineConfig(batch_size=BATCH, **default_pipeline("small_cnn"))
        config = TrainConfig(pipeline=pipeline, output=f"{folder}/run", framework="torch", num_workers=0)
        plain = list(islice(train(manifest, config, torch.device("cpu")), steps))
        by_xla = list(islice(train(manifest, config, device), steps))
    agree = print_losses(plain, by_xla)
    graphs, *_ = metrics.metric_data("CompileTime")
    print(f"{graphs} graphs were compiled by torch-xla {torch_xla.__version__}.")
    sys.exit(0 if agree else 1)


def train(manifest: Manifest, config: TrainConfig, device: torch.device) -> Iterator[float]:
    """Trains without end, and yields the mean loss of each step."""
    images = TorchBatches(manifest, "train", config.training_pipeline)
    facts = RunFacts(manifest, config, BATCH, len(images))
    learner = TorchLearner(facts, Place(device))
    loader = data_loader(images, config.num_workers)
    batches: Iterable[Any] = xla_loader(loader, device) if device.type == "xla" else loader
    while True:
        for batch in batches:
            loss, *_, count = learner.read_sums(learner._train(batch))
            yield loss / count


def print_losses(plain: list[float], by_xla: list[float]) -> bool:
    """Prints the losses side by side. Returns whether all agree."""
    differ = 0
    print("step  PyTorch   XLA")
    for step, (expected, got) in enumerate(zip(plain, by_xla, strict=True), 1):
        is_close = math.isclose(expected, got, rel_tol=TOLERANCE)
        differ += not is_close
        print(f"{step:4}  {expected:.6f}  {got:.6f}{'' if is_close else '  DIFFERS'}")
    largest = max(abs(got / expected - 1) for expected, got in zip(plain, by_xla, strict=True))
    print(
        f"{differ} of {len(plain)} losses differ by more than {TOLERANCE:g} of their value; the most is {largest:.1e}."
    )
    return differ == 0


if __name__ == "__main__":
    main()
