"""Turns the network that `pytorch_ddp.py` trained into int8 for CPUs, and compares the accuracies.

    python pytorch_ddp.py shapes --checkpoint run/shapes.pt
    python pytorch_int8.py shapes --checkpoint run/shapes.pt

static    weights and activations are int8; the ranges of the activations are measured on training batches beforehand
dynamic   weights are int8, and the range of an activation is measured each time; for linear layers only

PyTorch announces that torch.ao.quantization will move to the package torchao. This ran with 2.13 and 2.14, without it.
"""

import argparse
import copy
import io
import warnings
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.ao import quantization
from torch.ao.quantization import quantize_fx

import tfpipe
from tfpipe.readers.torch import normalize


def build_model(num_classes: int) -> nn.Sequential:
    """Builds the network of `pytorch_ddp.py`."""
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(8, after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(64, num_classes))


def evaluate(model: nn.Module, loader: Any) -> float:
    """Returns the accuracy on all records of a split, each counted once."""
    correct = count = 0
    for batch in loader:
        with torch.inference_mode():
            predicted = model(normalize(batch["image"])).argmax(1)
        # The mask is False in rows that only fill the last batch up.
        correct += int(((predicted == batch["label"]) & batch["mask"]).sum())
        count += int(batch["mask"].sum())
    return correct / count


def count_bytes(model: nn.Module) -> int:
    """Returns the size of the saved weights."""
    torch.save(model.state_dict(), buffer := io.BytesIO())
    return buffer.tell()


def main() -> None:
    """Quantizes both ways, and prints accuracies and sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--checkpoint", type=Path, default=Path("run/shapes.pt"))
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--image-size", type=int, default=48, help="that of the training")
    parser.add_argument("--calibration-batches", type=int, default=13)
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # each call announces the move to torchao

    # The options of the training, so that the ranges are those of the images that the network knows.
    manifest = tfpipe.load_manifest(args.dataset)
    options = tfpipe.AugmentOptions(scale=(0.6, 1.0), crop_fraction=1.0)
    sizes = {"batch_size": args.batch_size, "image_size": args.image_size}
    config = tfpipe.PipelineConfig(**sizes, seed=1, augment_options=options)
    train = tfpipe.data_loader(tfpipe.TorchBatches(manifest, "train", config))
    validation = tfpipe.data_loader(tfpipe.TorchBatches(manifest, "validation", config, training=False))

    network = build_model(len(manifest.label_names))
    network.load_state_dict(torch.load(args.checkpoint, map_location="cpu")["network"])
    network.eval()

    # Static: observers are put behind every layer, see some batches, and become int8 layers with the ranges they saw.
    example = normalize(next(iter(validation))["image"])
    mapping = quantization.get_default_qconfig_mapping("x86")  # "qnnpack" on Arm
    observed = quantize_fx.prepare_fx(copy.deepcopy(network), mapping, example)
    with torch.inference_mode():
        for batch in islice(train, args.calibration_batches):
            observed(normalize(batch["image"]))
    static = quantize_fx.convert_fx(observed)

    # Dynamic: nothing to measure. It pays for networks of large linear layers; here there is one small one.
    dynamic = quantization.quantize_dynamic(copy.deepcopy(network), {nn.Linear}, torch.qint8)

    for name, model in (("float32", network), ("static int8", static), ("dynamic int8", dynamic)):
        print(f"{name}: accuracy {evaluate(model, validation):.4f}, {count_bytes(model)} bytes", flush=True)


if __name__ == "__main__":
    main()
