"""Whether a GPU that decodes its own images waits for them, and what that costs the host.

pip install '.[torch-gpu,beam]' ./kernels psutil      # PyTorch and torchvision for CUDA
pip install nvidia-dali-cuda120                       # for the row of DALI; without it the row is left out
python tests/benchmarks/gpu_feed.py --device cuda --json gpu_feed.json
python tests/benchmarks/gpu_feed.py IMAGES            # a folder of JPEGs, or a dataset that exists
python tests/benchmarks/gpu_feed.py --device cpu --quick   # does it run at all

Without IMAGES it draws photographs of 500 x 375 itself. Everything runs in one process, one after the other. A rate is
that of the steps after a warm-up. At most two steps are ahead of the GPU, so the loop waits where the GPU does.
CPU-seconds are those of all threads and worker processes.
"""

from __future__ import annotations

import json
import platform
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
WHEELS = (
    "torch>=2.4",
    "torchvision>=0.20",
    "apache-beam>=2.74",
    "psutil",
    "./kernels",
    "nvidia-dali-cuda120 (optional)",
)
THREADS = (1, 2, 4)
PHOTO, TINY = (375, 500), (32, 32)
STEPS_AHEAD = 2


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        photos: The number of photographs that are drawn.
        tiny: The number of images of 32 x 32 that are drawn.
        batch: The images of a batch.
        side: The side of ResNet-50's images in pixels.
        seconds: How long each row is measured.
        warm_up_steps: The steps before that, which start threads and choose algorithms.
        workers: The processes that write datasets and that decode on the host; None: one for each core.
    """

    photos: int = 2048
    tiny: int = 20_000
    batch: int = 256
    side: int = 224
    seconds: float = 10.0
    warm_up_steps: int = 5
    workers: int | None = None


QUICK = Sizes(photos=16, tiny=16, batch=4, side=32, seconds=0.2, warm_up_steps=1, workers=0)


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
        name: What was measured.
        images_per_s: The images per second.
        cpu_s_per_1000: The CPU-seconds of the host for 1,000 images.
        waits: The share of the time in which the loop waited for the next batch.
        idle: The share of the time in which the device had no step, by the rate without input; None if unknown.
        fallbacks: The share of images that the CPU decoded in the GPU's place; None where a GPU does not decode.
    """

    name: str
    images_per_s: float
    cpu_s_per_1000: float
    waits: float
    idle: float | None = None
    fallbacks: float | None = None


def draw_images(folder: Path, count: int, size: tuple[int, int]) -> Path:
    """Draws JPEGs of waves and grain, about as large as photographs of this size, in ten classes."""
    from PIL import Image

    rng = np.random.default_rng(0)
    y, x = np.mgrid[: size[0], : size[1]]
    grain = rng.normal(0, 12, (size[0], size[1], 3))
    for number in range(count):
        slopes = rng.uniform(0.02, 0.2, (3, 2))
        waves = [128 + 80 * np.sin(a * x + b * y) for a, b in slopes]
        pixels = np.stack(waves, -1) + np.roll(grain, number * 7, (0, 1))
        path = folder / f"class_{number % 10}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(path, quality=90)
    return folder


def shard(images: Path, output: Path, sizes: Sizes) -> Path:
    from beam_jobs import shard_job
    from beam_jobs.config import ShardConfig

    shard_job.run(
        ShardConfig(input=str(images), output=str(output), num_shards=4, workers=None if sizes.workers is None else 1)
    )
    return output


def prepare(images: str | None, folder: Path, sizes: Sizes) -> tuple[Path, Path]:
    """Returns the dataset of photographs and that of tiny images."""
    tiny = shard(draw_images(folder / "tiny_images", sizes.tiny, TINY), folder / "tiny", sizes)
    if images is None:
        return shard(draw_images(folder / "photo_images", sizes.photos, PHOTO), folder / "photos", sizes), tiny
    given = Path(images)
    return given if (given / "manifest.json").exists() else shard(given, folder / "photos", sizes), tiny


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
    clock, steps, waited_s = Clock(), 0, 0.0
    while clock.wall_s < sizes.seconds or not steps:
        began = time.perf_counter()
        batch = next(batches)
        waited_s += time.perf_counter() - began
        step(batch)
        pace.end_step()
        steps += 1
    wall_s, cpu_s, images = clock.wall_s, clock.cpu_s, steps * sizes.batch
    return Row(name, images / wall_s, 1000 * cpu_s / images, waited_s / wall_s)


def repeat(batches: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from batches


def take(batch: Any) -> object:
    """Does nothing with a batch."""
    return batch


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

    def __init__(self, dataset: Path, side: int, sizes: Sizes, device: Any) -> None:
        import tfpipe

        self.manifest = tfpipe.load_manifest(str(dataset))
        self._dataset, self._side, self._sizes, self._device = dataset, side, sizes, device

    def make_config(self, image_dtype: str) -> Any:
        import tfpipe

        return tfpipe.PipelineConfig(
            global_batch_size=self._sizes.batch, image_size=self._side, image_dtype=image_dtype, seed=1
        )

    def decode_on_device(self, num_threads: int) -> Any:
        from tfpipe.readers.torch import DeviceConfig, DeviceImages

        dtype = "bfloat16" if self._device.type == "cuda" else "float32"
        config = DeviceConfig(num_threads=num_threads)
        return DeviceImages(self.manifest, "train", self.make_config(dtype), self._device, device_config=config)

    def decode_on_host(self) -> Iterator[Any]:
        from tfpipe.readers.torch import ShardedImages, data_loader

        images = ShardedImages(self.manifest, "train", self.make_config("uint8"))
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
    from tfpipe.pipeline.config.augment_config import IMAGENET_MEAN, IMAGENET_STD

    return IMAGENET_MEAN, IMAGENET_STD


def measure_decoded(feeds: Feeds, num_threads: int, name: str, step: Callable[[Any], object], sizes: Sizes) -> Row:
    """Measures a loop over DeviceImages, with the share of images that the CPU had to decode."""
    images = feeds.decode_on_device(num_threads)
    given = 0

    def count(batch: Any) -> object:
        nonlocal given
        given += len(batch["image"])
        return step(batch)

    row = measure(name, repeat(images), count, sizes, images.device)
    images.close()
    return Row(**{**asdict(row), "fallbacks": sum(images.fallbacks.values()) / given})


def measure_feeds(feeds: Feeds, sizes: Sizes, device: Any) -> list[Row]:
    """Measures readers alone."""
    from tfpipe.system.units import human_count

    names = {threads: f"DeviceImages, {human_count(threads, 'thread')}" for threads in THREADS}
    rows = [measure_decoded(feeds, threads, name, take, sizes) for threads, name in names.items()]

    def copy(batch: Any) -> object:
        return batch["image"].to(device, non_blocking=True)

    host = feeds.decode_on_host()
    return [*rows, measure("ShardedImages, decoded on the host", host, copy, sizes, device)]


def measure_dali(feeds: Feeds, sizes: Sizes, device: Any) -> Row | None:
    """Measures DALI's reader alone; None if it is not installed."""
    try:
        batches = feeds.decode_by_dali()
    except ImportError:
        return None
    decoder = "mixed" if device.type == "cuda" else "cpu"
    return measure(f'DALI, device="{decoder}"', batches, take, sizes, device)


def measure_training(feeds: Feeds, model: Any, sizes: Sizes, device: Any, name: str) -> list[Row]:
    """Measures a training without input, and fed in each way: its idle share is what its rate lacks."""
    step = make_step(model, device)
    images = feeds.decode_on_device(2)
    batch = next(iter(images))
    fixed = measure(f"{name}, the same batch", repeat([batch]), step, sizes, device)
    images.close()
    fed = [measure_decoded(feeds, 2, f"{name}, DeviceImages", step, sizes)]
    host = feeds.decode_on_host()
    fed.append(measure(f"{name}, ShardedImages", host, step, sizes, device))
    return [fixed, *(Row(**{**asdict(row), "idle": max(1 - row.images_per_s / fixed.images_per_s, 0)}) for row in fed)]


def describe_machine(device: Any) -> dict[str, Any]:
    import torch

    from tfpipe.system.host_limits import usable_cpus

    versions = {}
    for package in ("torch", "torchvision", "triton", "tfpipe-kernels", "nvidia-dali-cuda120"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {"gpu": gpu, "cores": usable_cpus(), "python": platform.python_version(), "versions": versions}


def format_row(row: Row) -> str:
    parts = [f"{row.name:48} {row.images_per_s:10,.0f} images/s", f"{row.cpu_s_per_1000:8.2f} CPU-s/1,000"]
    parts.append(f"waits {row.waits:5.0%}")
    parts += [f"idle {row.idle:5.0%}"] if row.idle is not None else []
    parts += [f"fallbacks {row.fallbacks:5.1%}"] if row.fallbacks is not None else []
    return "  ".join(parts)


def run(images: str | None, device_name: str, sizes: Sizes) -> dict[str, Any]:
    """Measures everything, and prints each row as soon as it is there."""
    import torch

    from tfpipe.format.image_form import ImageForm
    from tfpipe.readers.device_images.decoders import find_device, make_decoder
    from tfpipe.training.torch.models import SmallCNN
    from tfpipe.training.torch.resnet50 import ResNet50

    device, cpu = find_device(device_name), torch.device("cpu")
    make_decoder(device, ImageForm())  # says at once that a library is missing
    torch.backends.cudnn.benchmark = True
    results: dict[str, Any] = {
        "device": device_name,
        "wheels": WHEELS,
        "sizes": asdict(sizes),
        **describe_machine(device),
    }

    def show(part: str, rows: Iterable[Row]) -> None:
        results[part] = [asdict(row) for row in rows]
        for row in results[part]:
            click.echo(format_row(Row(**row)))

    with tempfile.TemporaryDirectory() as folder:
        photos, tiny = prepare(images, Path(folder), sizes)
        feeds = Feeds(photos, sizes.side, sizes, device)
        show("feed", measure_feeds(feeds, sizes, device))
        dali = measure_dali(feeds, sizes, device)
        show("dali", [] if dali is None else [dali])
        if dali is None:
            click.echo("DALI is not installed, so its row is left out: pip install nvidia-dali-cuda120.")
        classes = len(feeds.manifest.label_names)
        show("resnet50", measure_training(feeds, ResNet50(classes), sizes, device, "ResNet-50"))
        show("small_cnn", measure_training(Feeds(tiny, 32, sizes, device), SmallCNN(10), sizes, device, "small_cnn"))
        on_cpu = Feeds(tiny, 32, sizes, cpu)
        show("small_cnn_on_cpu", measure_training(on_cpu, SmallCNN(10), sizes, cpu, "small_cnn on the CPU"))
    return results


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
