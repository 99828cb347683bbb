"""Whether a GPU waits for its images, and what that costs the host.

pip install '.[torch]' psutil                                 # PyTorch for CUDA, and no TensorFlow
pip install nvidia-dali-cuda130                               # for the row of DALI; without it the row is left out
python tests/benchmarks/gpu_feed.py --device cuda --json gpu_feed.json
python tests/benchmarks/gpu_feed.py IMAGES                    # a folder of JPEGs, or a dataset that exists
python tests/benchmarks/gpu_feed.py --device cpu --quick      # does it run at all

Without IMAGES it draws photographs of 500 x 375 itself. Everything runs in one process, one after the other. A rate is
that of the steps after a warm-up. At most two steps are ahead of the GPU, so the loop waits where the GPU does.
CPU-seconds are those of all threads and worker processes.
"""

from __future__ import annotations

import io
import itertools
import json
import platform
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
WHEELS = ("torch", "tfpipe", "psutil", "nvidia-dali-cuda120", "nvidia-dali-cuda130")
PHOTO = (375, 500)
SHARDS, CLASSES = 8, 10
STEPS_AHEAD = 2


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        photos: The number of photographs that are drawn.
        batch: The images of a batch.
        side: The side of ResNet-50's images in pixels.
        seconds: How long each row is measured.
        warm_up_steps: The steps before that, which start threads and choose algorithms.
        workers: The processes that write datasets and that decode on the host; None: one for each core.
    """

    photos: int = 2048
    batch: int = 256
    side: int = 224
    seconds: float = 10.0
    warm_up_steps: int = 5
    workers: int | None = None


QUICK = Sizes(photos=16, batch=4, side=32, seconds=0.2, warm_up_steps=1, workers=1)


@dataclass(frozen=True)
class Row:
    """One measurement. Three shares of the loop's time sum to 1: it waits for input, it steps, it waits for the device.

    Attributes:
        name: What was measured.
        images_per_s: The images per second.
        cpu_s_per_1000: The CPU-seconds of the host for 1,000 images.
        waits: The share of the time in which the loop waited for the next batch.
        steps: The share in which it was in the step: on a GPU it starts the work, on a CPU it does it.
        device: The share in which it waited for the GPU to finish earlier steps.
        idle: The share of the time in which the device had no step, by the rate without input; None if unknown.
    """

    name: str
    images_per_s: float
    cpu_s_per_1000: float
    waits: float
    steps: float = 0.0
    device: float = 0.0
    idle: float | None = None

    @property
    def host_cores(self) -> float:
        """The cores of the host that are busy at this rate."""
        return self.images_per_s * self.cpu_s_per_1000 / 1000


@dataclass(frozen=True)
class DrawnShard:
    """The records of a shard of drawn images: waves and grain, about as large as photographs of this size.

    Attributes:
        count: The number of images of all shards.
        size: The height and width of each.
    """

    count: int
    size: tuple[int, int]

    def __call__(self, shard: int) -> Iterator[dict[str, Any]]:
        """Draws the images of a shard."""
        from PIL import Image

        y, x = np.mgrid[: self.size[0], : self.size[1]]
        grain = np.random.default_rng(0).normal(0, 12, (*self.size, 3))
        for number in range(shard, self.count, SHARDS):
            slopes = np.random.default_rng(number).uniform(0.02, 0.2, (3, 2))
            waves = [128 + 80 * np.sin(a * x + b * y) for a, b in slopes]
            pixels = np.stack(waves, -1) + np.roll(grain, number * 7, (0, 1))
            buffer = io.BytesIO()
            Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
            yield {"image": buffer.getvalue(), "label": number % CLASSES}


def write_drawn(output: Path, count: int, size: tuple[int, int], sizes: Sizes) -> Path:
    import tfpipe

    schema = {"image": tfpipe.fields.Image(), "label": tfpipe.fields.Label(tuple(f"class_{k}" for k in range(CLASSES)))}
    tfpipe.write(DrawnShard(count, size), output, schema, num_shards=SHARDS, workers=sizes.workers)
    return output


def write_folder(images: Path, output: Path) -> Path:
    """Writes the JPEGs of a folder; the folder around each names its class."""
    import tfpipe

    files = sorted(path for path in images.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    if not files:
        raise click.ClickException(f"{images} must hold .jpg or .jpeg files, got none.")
    names = tuple(sorted({path.parent.name for path in files}))
    order = np.random.default_rng(0).permutation(len(files))
    records = ({"image": files[k].read_bytes(), "label": files[k].parent.name} for k in order)
    tfpipe.write(
        records, output, {"image": tfpipe.fields.Image(), "label": tfpipe.fields.Label(names)}, num_shards=SHARDS
    )
    return output


def prepare(images: str | None, folder: Path, sizes: Sizes) -> Path:
    """Returns the dataset of photographs."""
    if images is None:
        return write_drawn(folder / "photos", sizes.photos, PHOTO, sizes)
    given = Path(images)
    return given if (given / "manifest.json").exists() else write_folder(given, folder / "photos")


class Clock:
    """The time and the CPU time of this process and its children since a moment."""

    def __init__(self) -> None:
        self._wall_s, self._cpu_s = time.perf_counter(), self._read_cpu_s()

    @property
    def wall_s(self) -> float:
        return time.perf_counter() - self._wall_s

    @property
    def cpu_s(self) -> float:
        return self._read_cpu_s() - self._cpu_s

    def _read_cpu_s(self) -> float:
        import psutil

        process, total_s = psutil.Process(), 0.0
        for one in (process, *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):  # a worker of the row before may end just now
                times = one.cpu_times()
                total_s += times.user + times.system
        return total_s


class Pace:
    """Lets a loop be at most two steps ahead of the GPU, without keeping a core busy."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._steps: deque[Any] = deque()

    def end_step(self) -> None:
        import torch

        if self._device.type != "cuda":
            return
        event = torch.cuda.Event(blocking=True)
        event.record()
        self._steps.append(event)
        if len(self._steps) > STEPS_AHEAD:
            self._steps.popleft().synchronize()


def measure(name: str, batches: Iterator[Any], step: Callable[[Any], object], sizes: Sizes, device: Any) -> Row:
    """Takes batches and steps for some seconds, after the warm-up."""
    pace = Pace(device)
    for _ in range(sizes.warm_up_steps):
        step(next(batches))
        pace.end_step()
    clock, count, spent_s = Clock(), 0, [0.0, 0.0, 0.0]
    while clock.wall_s < sizes.seconds or not count:
        times = [time.perf_counter()]
        batch = next(batches)
        times.append(time.perf_counter())
        step(batch)
        times.append(time.perf_counter())
        pace.end_step()
        times.append(time.perf_counter())
        spent_s = [total + end - begin for total, (begin, end) in zip(spent_s, itertools.pairwise(times), strict=True)]
        count += 1
    wall_s, cpu_s, images = clock.wall_s, clock.cpu_s, count * sizes.batch
    return Row(name, images / wall_s, 1000 * cpu_s / images, *(part / sum(spent_s) for part in spent_s))


def repeat(batches: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from batches


def make_resnet50(classes: int) -> Any:
    """Makes ResNet-50 (He et al. 2016), with a block's stride in its convolution of 3 x 3."""
    from torch import nn

    def convolve(before: int, after: int, size: int, stride: int = 1) -> tuple[Any, Any]:
        return nn.Conv2d(before, after, size, stride, size // 2, bias=False), nn.BatchNorm2d(after)

    class Block(nn.Module):
        """Three convolutions beside a shortcut."""

        def __init__(self, before: int, inner: int, stride: int) -> None:
            super().__init__()
            inside = [*convolve(before, inner, 1), nn.ReLU(inplace=True), *convolve(inner, inner, 3, stride)]
            self.body = nn.Sequential(*inside, nn.ReLU(inplace=True), *convolve(inner, 4 * inner, 1))
            same = before == 4 * inner
            self.shortcut = nn.Identity() if same else nn.Sequential(*convolve(before, 4 * inner, 1, stride))

        def forward(self, x: Any) -> Any:
            return nn.functional.relu(self.body(x) + self.shortcut(x))

    layers = [*convolve(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    before = 64
    for inner, blocks, first_stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers.append(Block(before, inner, 1 if block else first_stride))
            before = 4 * inner
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


def make_step(model: Any, device: Any) -> Callable[[Any], object]:
    """Makes a training step in mixed precision, bfloat16 on a GPU."""
    import torch

    from tfpipe.readers.torch import normalize

    model = model.to(device, memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    precision = torch.autocast("cuda", dtype=torch.bfloat16) if device.type == "cuda" else nullcontext()

    def step(batch: Any) -> object:
        image, label = (batch[name].to(device, non_blocking=True) for name in ("image", "label"))
        if image.dtype == torch.uint8:
            image = normalize(image)
        with precision:
            loss = torch.nn.functional.cross_entropy(model(image).float(), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


class Feeds:
    """The ways in which batches of a dataset come to a device."""

    def __init__(self, dataset: Path, sizes: Sizes, device: Any) -> None:
        import tfpipe

        self.manifest = tfpipe.load_manifest(str(dataset))
        self._dataset, self._side, self._sizes, self._device = dataset, sizes.side, sizes, device

    def decode_on_host(self) -> Iterator[Any]:
        from tfpipe.readers.torch import TorchBatches, data_loader

        images = TorchBatches(self.manifest, "train", batch_size=self._sizes.batch, image_size=self._side, seed=1)
        return repeat(data_loader(images, num_workers=self._sizes.workers))

    def decode_by_dali(self) -> Iterator[Any]:
        """Reads the same shards by DALI; `device="mixed"` is its decoder on the GPU.

        Raises:
            ImportError: It is not installed.
        """
        import nvidia.dali.fn as fn
        import nvidia.dali.tfrecord as tfrec
        import nvidia.dali.types as types
        from nvidia.dali import pipeline_def
        from nvidia.dali.plugin.pytorch import DALIGenericIterator

        on_gpu = self._device.type == "cuda"
        batch, threads = self._sizes.batch, 4

        @pipeline_def(batch_size=batch, num_threads=threads, device_id=self._device.index if on_gpu else None)
        def read() -> Any:
            record = fn.readers.tfrecord(
                path=sorted(map(str, self._dataset.glob("train-*.tfrecord"))),
                index_path=sorted(map(str, self._dataset.glob("index/train-*.idx"))),
                features={
                    "image/encoded": tfrec.FixedLenFeature((), tfrec.string, ""),
                    "image/class/label": tfrec.FixedLenFeature([1], tfrec.int64, -1),
                },
                random_shuffle=True,
                name="records",
            )
            image = fn.decoders.image_random_crop(record["image/encoded"], device="mixed" if on_gpu else "cpu")
            image = fn.resize(image, size=(self._side, self._side))
            mirror = fn.random.coin_flip()
            mean, std = ([255 * value for value in values] for values in _read_scaling())
            image = fn.crop_mirror_normalize(image, mirror=mirror, mean=mean, std=std, dtype=types.FLOAT)
            return image, record["image/class/label"]

        def convert() -> Iterator[Any]:
            for (batch,) in repeat(
                DALIGenericIterator(read(), ["image", "label"], auto_reset=True, reader_name="records")
            ):
                yield {"image": batch["image"], "label": batch["label"].flatten().to(self._device)}

        return convert()


def _read_scaling() -> tuple[tuple[float, ...], tuple[float, ...]]:
    from tfpipe.engine.config.augment_config import IMAGENET_MEAN, IMAGENET_STD

    return IMAGENET_MEAN, IMAGENET_STD


def measure_feeds(feeds: Feeds, sizes: Sizes, device: Any) -> list[Row]:
    """Measures readers alone; DALI's only if it is installed."""

    def copy(batch: Any) -> object:
        return batch["image"].to(device, non_blocking=True)

    rows = [measure("TorchBatches", feeds.decode_on_host(), copy, sizes, device)]
    with suppress(ImportError):
        decoder = "mixed" if device.type == "cuda" else "cpu"
        rows.append(measure(f'DALI, device="{decoder}"', feeds.decode_by_dali(), copy, sizes, device))
    return rows


def measure_training(feeds: Feeds, sizes: Sizes, device: Any) -> list[Row]:
    """Measures a training without input, and one that is fed: its idle share is what its rate lacks."""
    step = make_step(make_resnet50(len(feeds.manifest.label_names)), device)
    batches = feeds.decode_on_host()
    batch = {name: next(batches)[name].to(device) for name in ("image", "label")}
    fixed = measure("ResNet-50, the same batch", repeat([batch]), step, sizes, device)
    fed = measure("ResNet-50, TorchBatches", batches, step, sizes, device)
    return [fixed, replace(fed, idle=max(1 - fed.images_per_s / fixed.images_per_s, 0))]


def describe_machine(device: Any) -> dict[str, Any]:
    import torch

    from tfpipe.system.host_limits import usable_cpus

    versions = {}
    for package in WHEELS:
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "date": time.strftime("%Y-%m-%d"),
        "gpu": gpu,
        "cores": usable_cpus(),
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        "versions": versions,
    }


def format_row(row: Row) -> str:
    parts = [f"{row.name:40} {row.images_per_s:9,.0f} images/s", f"{row.cpu_s_per_1000:8.2f} CPU-s/1,000"]
    parts.append(f"{row.host_cores:5.2f} cores")
    parts.append(f"waits {row.waits:4.0%}  steps {row.steps:4.0%}  device {row.device:4.0%}")
    parts += [f"idle {row.idle:6.1%}"] if row.idle is not None else []
    return "  ".join(parts)


def run(images: str | None, device_name: str, sizes: Sizes) -> dict[str, Any]:
    """Measures everything, and prints each row as soon as it is there."""
    import torch

    device = torch.device(device_name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise click.ClickException(f"`--device` must be a GPU that PyTorch sees, or cpu, got {device_name}.")
    torch.backends.cudnn.benchmark = True
    machine = describe_machine(device)
    click.echo(json.dumps(machine))
    rows: dict[str, list[Row]] = {}
    with tempfile.TemporaryDirectory() as folder:
        feeds = Feeds(prepare(images, Path(folder), sizes), sizes, device)
        for part, measure_part in (("feed", measure_feeds), ("resnet50", measure_training)):
            rows[part] = measure_part(feeds, sizes, device)
            for row in rows[part]:
                click.echo(format_row(row))
    figures = {part: [{**asdict(row), "host_cores": row.host_cores} for row in rows[part]] for part in rows}
    return {**machine, "device": device_name, "sizes": asdict(sizes), **figures}


@click.command()
@click.argument("images", required=False, type=click.Path(exists=True))
@click.option("--device", default="cuda", show_default=True, help='The GPU, or "cpu" to try the command.')
@click.option("--quick", is_flag=True, help="Measure next to nothing: shows that everything runs.")
@click.option("--seconds", default=Sizes.seconds, show_default=True, help="How long each row is measured.")
@click.option("--json", "json_file", type=click.Path(), help="Where the figures go.")
def main(images: str | None, device: str, quick: bool, seconds: float, json_file: str | None) -> None:
    """Measure how a GPU is fed, from IMAGES or from photographs that are drawn."""
    sys.path[:0] = [str(ROOT)]
    from tfpipe.errors import TfpipeError

    try:
        results = run(images, device, QUICK if quick else Sizes(seconds=seconds))
    except TfpipeError as error:
        raise click.ClickException(str(error)) from None
    if json_file is not None:
        Path(json_file).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
