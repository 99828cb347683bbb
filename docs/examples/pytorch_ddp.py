"""Trains in PyTorch with one process for each GPU, or on CPUs; after a kill it goes on at the very next batch.

    tfpipe shard images shapes --splits train=0.75,validation=0.25
    torchrun --nproc-per-node 8 pytorch_ddp.py shapes --checkpoint run/shapes.pt

The same command resumes, with any number of processes that divides the batch. Several hosts need one path for the
checkpoint that all of them see. Without torchrun, `python pytorch_ddp.py shapes` trains in one process.
"""

import argparse
import math
import os
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import tfpipe
from tfpipe.readers.torch import normalize


def build_model(num_classes: int) -> nn.Sequential:
    """Builds a small network; put yours here."""
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 64)):
        # GroupNorm looks at one image at a time. BatchNorm2d would look at the rows of one process, so its results
        # would change with the number of processes.
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(8, after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(64, num_classes))


def make_transform(size: int) -> Any:
    """Makes an augmentation of torchvision, which takes the place of tfpipe's crop and flip."""
    from torchvision.transforms import v2

    # tfpipe seeds torch's generator with the record before each call, so a resumed run draws what it would have drawn.
    # The result stays uint8: a quarter of the bytes to copy.
    crop = v2.RandomResizedCrop(size, scale=(0.6, 1.0), antialias=True)
    return v2.Compose([v2.ToImage(), crop, v2.RandomHorizontalFlip(), v2.ColorJitter(0.2, 0.2, 0.2), v2.ToPureTensor()])


def evaluate(model: nn.Module, loader: Any, device: torch.device, dtype: torch.dtype) -> float:
    """Returns the accuracy on all records of a split, each counted once."""
    correct_and_count = torch.zeros(2, device=device)
    model.eval()
    for batch in loader:
        image, label, mask = (batch[name].to(device, non_blocking=True) for name in ("image", "label", "mask"))
        with torch.inference_mode(), torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            predicted = model(normalize(image)).argmax(1)
        # The mask is False in rows that only fill the last batch up, so that all processes make as many steps.
        correct_and_count += torch.stack([((predicted == label) & mask).sum(), mask.sum()])
    model.train()
    distributed.all_reduce(correct_and_count)
    correct, count = correct_and_count.tolist()
    return correct / count


def main() -> None:
    """Trains, saves every few steps, and evaluates after each epoch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--checkpoint", type=Path, default=Path("run/shapes.pt"))
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=8, help="of all processes together")
    parser.add_argument("--image-size", type=int, default=48)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--precision", choices=["float32", "bfloat16", "float16"], default="bfloat16")
    parser.add_argument("--save-every", type=int, default=20, help="steps")
    parser.add_argument("--torchvision", action="store_true", help="augment with torchvision")
    args = parser.parse_args()

    # Join the other processes first: the reader asks torch.distributed which rows are its own.
    cuda = torch.cuda.is_available()
    backend = "nccl" if cuda else "gloo"
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    if "RANK" in os.environ:  # torchrun says who the others are
        distributed.init_process_group(backend)
    else:
        distributed.init_process_group(backend, store=distributed.HashStore(), rank=0, world_size=1)
    is_first = distributed.get_rank() == 0
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    dtype = getattr(torch, args.precision)

    # The order and the crops depend on the seed, the epoch and the record alone, and never on the number of processes.
    # These shapes fill most of an image, so crops keep 60 % of it or more. Leave `augment_options` out for photographs.
    manifest = tfpipe.load_manifest(args.dataset)
    options = tfpipe.AugmentOptions(scale=(0.6, 1.0), crop_fraction=1.0)
    sizes = {"batch_size": args.batch_size, "image_size": args.image_size}
    config = tfpipe.PipelineConfig(**sizes, seed=1, augment_options=options)
    transform = make_transform(args.image_size) if args.torchvision else None
    train = tfpipe.data_loader(tfpipe.TorchBatches(manifest, "train", config, transform=transform))
    validation = tfpipe.data_loader(tfpipe.TorchBatches(manifest, "validation", config, training=False))

    # Every process draws the same first weights. Channels-last is how the images lie in memory.
    torch.manual_seed(0)
    network = build_model(len(manifest.label_names)).to(device, memory_format=torch.channels_last)
    model = DistributedDataParallel(network, device_ids=[device] if cuda else None)
    optimizer = torch.optim.Adam(network.parameters())
    # float16 loses small gradients, so the loss is scaled up before them; the others have float32's range.
    scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)

    # Resume: five integers say which batch comes next, in the middle of an epoch too.
    step, total_steps = 0, args.epochs * len(train)
    if args.checkpoint.exists():
        saved = torch.load(args.checkpoint, map_location=device)
        network.load_state_dict(saved["network"])
        optimizer.load_state_dict(saved["optimizer"])
        scaler.load_state_dict(saved["scaler"])
        train.load_state_dict(saved["position"])
        step = saved["step"]
        if is_first:
            print(f"resumed at step {step}", flush=True)

    while step < total_steps:
        for batch in train:  # to the end of the epoch
            # The learning rate is a function of the step, so it needs no state of its own.
            for group in optimizer.param_groups:
                group["lr"] = args.learning_rate * (1 + math.cos(math.pi * step / total_steps)) / 2
            image, label = (batch[name].to(device, non_blocking=True) for name in ("image", "label"))
            with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                loss = nn.functional.cross_entropy(model(normalize(image)), label)
            optimizer.zero_grad()
            scaler.scale(loss).backward()  # averages the gradients over the processes
            scaler.step(optimizer)
            scaler.update()
            step += 1

            if step % args.save_every == 0 or step == total_steps:
                mean_loss = loss.detach() / distributed.get_world_size()
                distributed.all_reduce(mean_loss)
                if is_first:
                    parts = {"network": network, "optimizer": optimizer, "scaler": scaler, "position": train}
                    state = {name: part.state_dict() for name, part in parts.items()}
                    # Written beside it and renamed: a kill leaves the last checkpoint whole.
                    args.checkpoint.parent.mkdir(parents=True, exist_ok=True)
                    torch.save({**state, "step": step}, f"{args.checkpoint}.next")
                    os.replace(f"{args.checkpoint}.next", args.checkpoint)
                    print(f"step {step}: loss {mean_loss.item():.6f}", flush=True)
        accuracy = evaluate(network, validation, device, dtype)
        if is_first:
            print(f"epoch {step // len(train)}: accuracy {accuracy:.4f}", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
