"""Trains by PyTorch/XLA, on the TPU chips of a machine or on the CPU; after a kill it goes on at the very next batch.

    pip install torch==2.9.0 'torch_xla[tpu]==2.9.0'
    tfpipe shard images shapes --splits train=0.75,validation=0.25
    PJRT_DEVICE=TPU python pytorch_xla.py shapes --checkpoint run/shapes.pt

The same command resumes, with any number of chips that divides the batch. PJRT_DEVICE=CPU tries it without a TPU. It
ran on a CPU with torch_xla 2.9; nobody has tried a TPU, or several chips.
"""

import argparse
import math
import os
from pathlib import Path

import torch
import torch_xla
from torch import nn
from torch_xla import runtime
from torch_xla.core import xla_model
from torch_xla.debug import metrics

import tfpipe
from tfpipe.readers.torch import normalize, xla_loader


def build_model(num_classes: int) -> nn.Sequential:
    """Builds a small network; put yours here."""
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 64)):
        # GroupNorm looks at one image at a time, so results do not depend on the number of chips.
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(8, after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(64, num_classes))


def train(index: int, args: argparse.Namespace) -> None:
    """Trains on one chip, saves every few steps, and evaluates after each epoch."""
    device, rank = torch_xla.device(), (runtime.global_ordinal(), runtime.world_size())
    is_first = rank[0] == 0

    # All batches have one shape, in evaluation too, where the last one is filled up: a new shape is a new program.
    # These shapes fill most of an image, so crops keep 60 % of it or more. Leave `augment_options` out for photographs.
    manifest = tfpipe.load_manifest(args.dataset)
    options = tfpipe.AugmentOptions(scale=(0.6, 1.0), crop_fraction=1.0)
    sizes = {"batch_size": args.batch_size, "image_size": args.image_size}
    config = tfpipe.PipelineConfig(**sizes, seed=1, augment_options=options)

    # Every chip draws the same first weights.
    torch.manual_seed(0)
    model = build_model(len(manifest.label_names)).to(device)
    # `capturable` keeps Adam's count of steps on the chip. Its state is made here: made by the first step, that step
    # would be a program of its own. The learning rate is a tensor, so that its value is no part of the program.
    rate = torch.zeros((), device=device)
    optimizer = torch.optim.Adam(model.parameters(), rate, capturable=True, foreach=False)
    for weight in model.parameters():
        zeros = {name: torch.zeros_like(weight) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[weight] = {"step": torch.zeros((), device=device), **zeros}

    # Resume: the step is the whole state of the input. The loader's own position counts batches that it has copied to
    # the chip ahead of their step, so the loop counts for itself.
    step = 0
    if args.checkpoint.exists():
        saved = torch.load(args.checkpoint, map_location="cpu")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        optimizer.param_groups[0]["lr"], step = rate, saved["step"]  # the one on the chip
        xla_model.master_print(f"resumed at step {step}", flush=True)
    images = tfpipe.TorchBatches(manifest, "train", config, start_step=step, rank=rank)
    evaluation = tfpipe.TorchBatches(manifest, "validation", config, rank=rank, training=False)
    batches = xla_loader(tfpipe.data_loader(images), device)
    validation = xla_loader(tfpipe.data_loader(evaluation), device)
    total_steps = args.epochs * len(images)

    # The step is one program, compiled at its first call; `full_graph` makes an error of anything that would cut it.
    @torch_xla.compile(full_graph=True)
    def train_step(image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("xla", torch.bfloat16, enabled=args.precision == "bfloat16"):
            loss = nn.functional.cross_entropy(model(normalize(image)), label)
        loss.backward()
        xla_model.reduce_gradients(optimizer)  # their mean over the chips
        optimizer.step()
        return loss.detach()

    @torch_xla.compile(full_graph=True)
    def count_correct(image: torch.Tensor, label: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), torch.autocast("xla", torch.bfloat16, enabled=args.precision == "bfloat16"):
            predicted = model(normalize(image)).argmax(1)
        # The mask is False in rows that only fill the last batch up.
        counts = torch.stack([((predicted == label) & mask).sum(), mask.sum()])
        return xla_model.all_reduce(xla_model.REDUCE_SUM, counts)

    while step < total_steps:
        for batch in batches:  # to the end of the epoch
            rate.fill_(args.learning_rate * (1 + math.cos(math.pi * step / total_steps)) / 2)
            loss = train_step(batch["image"], batch["label"])
            step += 1
            # Only here does Python wait for the chip: to look at a loss in every step would stop it each time.
            if step % args.save_every == 0 or step == total_steps:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                args.checkpoint.parent.mkdir(parents=True, exist_ok=True)
                # All processes call it; the first one writes.
                xla_model.save(state, f"{args.checkpoint}.next", global_master=True)
                if is_first:
                    # Written beside it and renamed: a kill leaves the last checkpoint whole.
                    os.replace(f"{args.checkpoint}.next", args.checkpoint)
                    print(f"step {step}: loss {loss.item():.6f}", flush=True)
        counts = [count_correct(batch["image"], batch["label"], batch["mask"]).cpu() for batch in validation]
        correct, count = sum(counts).tolist()
        xla_model.master_print(f"epoch {step // len(images)}: accuracy {correct / count:.4f}", flush=True)
    programs, *_ = metrics.metric_data("CompileTime")
    xla_model.master_print(f"{programs} programs were compiled", flush=True)


def main() -> None:
    """Starts a process for each chip."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--checkpoint", type=Path, default=Path("run/shapes.pt"))
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=8, help="of all chips together")
    parser.add_argument("--image-size", type=int, default=48)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--save-every", type=int, default=20, help="steps")
    torch_xla.launch(train, args=(parser.parse_args(),))


if __name__ == "__main__":
    main()
