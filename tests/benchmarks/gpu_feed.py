"""Whether a GPU that decodes its own images waits for them, and what that costs the host.

pip install '.[torch-gpu]' psutil nvidia-ml-py                # PyTorch and torchvision for CUDA, and no TensorFlow
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
import statistics
import sys
import tempfile
import threading
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
WHEELS = ("torch>=2.5", "torchvision>=0.20", "tfpipe", "psutil")
OPTIONAL_WHEELS = ("triton", "nvidia-ml-py", "nvidia-dali-cuda120", "nvidia-dali-cuda130", "torchcodec")
THREADS = (1, 2, 4)
PHOTO, TINY = (375, 500), (32, 32)
SHARDS, CLASSES = 8, 10
STEPS_AHEAD = 2
COMPARED_IMAGES = 1024
GOAL_RATE, GOAL_IDLE, GOAL_CORES = 7834, 0.02, 1.0
"""The images/s of torchvision's decoder alone on an A100, by one thread; and what a fed ResNet-50 may lack and cost."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        photos: The number of photographs that are drawn.
        tiny: The number of images of 32 x 32 that are drawn: as many as CIFAR-10 has for training.
        batch: The images of a batch.
        side: The side of ResNet-50's images in pixels.
        seconds: How long each row is measured.
        warm_up_steps: The steps before that, which start threads and choose algorithms.
        workers: The processes that write datasets and that decode on the host; None: one for each core.
    """

    photos: int = 2048
    tiny: int = 50_000
    batch: int = 256
    side: int = 224
    seconds: float = 10.0
    warm_up_steps: int = 5
    workers: int | None = None


QUICK = Sizes(photos=16, tiny=16, batch=4, side=32, seconds=0.2, warm_up_steps=1, workers=1)


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
        fallbacks: The share of images that the CPU decoded in the GPU's place; None where a GPU does not decode.
        engine: The share of the time in which the GPU's JPEG engine was busy; None if nobody can tell.
    """

    name: str
    images_per_s: float
    cpu_s_per_1000: float
    waits: float
    steps: float = 0.0
    device: float = 0.0
    idle: float | None = None
    fallbacks: float | None = None
    engine: float | None = None

    @property
    def host_cores(self) -> float:
        """The cores of the host that are busy at this rate."""
        return self.images_per_s * self.cpu_s_per_1000 / 1000


@dataclass(frozen=True)
class Difference:
    """The distance of the pixels of two readers in levels of 256, over the same records, crops and flips.

    Attributes:
        name: The readers.
        images: The number of images that were compared.
        same_records: Whether the labels of all batches are equal.
        mean: The mean of the absolute differences.
        largest: The largest difference.
    """

    name: str
    images: int
    same_records: bool
    mean: float
    largest: int


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

    schema = {"image": tfpipe.Image(), "label": tfpipe.Label(tuple(f"class_{k}" for k in range(CLASSES)))}
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
    tfpipe.write(records, output, {"image": tfpipe.Image(), "label": tfpipe.Label(names)}, num_shards=SHARDS)
    return output


def prepare(images: str | None, folder: Path, sizes: Sizes) -> tuple[Path, Path]:
    """Returns the dataset of photographs and that of tiny images."""
    tiny = write_drawn(folder / "tiny", sizes.tiny, TINY, sizes)
    if images is None:
        return write_drawn(folder / "photos", sizes.photos, PHOTO, sizes), tiny
    given = Path(images)
    return given if (given / "manifest.json").exists() else write_folder(given, folder / "photos"), tiny


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


class JpegEngine:
    """The share of the time in which a GPU's JPEG engine is busy, by NVML, asked by a thread ten times a second.

    Args:
        device: The device; on a CPU the share is unknown.
    """

    def __init__(self, device: Any) -> None:
        self._ask = _find_engine(device)
        self._shares: list[float] = []
        self._ends = threading.Event()

    def __enter__(self) -> JpegEngine:
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    @property
    def share(self) -> float | None:
        """The mean of what NVML said; None if it says nothing."""
        return statistics.mean(self._shares) if self._shares else None

    def _sample(self) -> None:
        while self._ask is not None and not self._ends.wait(0.1):
            self._shares.append(self._ask())


def _find_engine(device: Any) -> Callable[[], float] | None:
    """Returns a function that asks for the engine's share, or None if NVML does not tell it."""
    if device.type != "cuda":
        return None
    import torch

    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        pynvml.nvmlDeviceGetJpgUtilization(handle)
    except (AttributeError, pynvml.NVMLError):  # an older PyTorch, library or driver
        return None
    return lambda: pynvml.nvmlDeviceGetJpgUtilization(handle)[0] / 100


def measure(name: str, batches: Iterator[Any], step: Callable[[Any], object], sizes: Sizes, device: Any) -> Row:
    """Takes batches and steps for some seconds, after the warm-up."""
    pace = Pace(device)
    for _ in range(sizes.warm_up_steps):
        step(next(batches))
        pace.end_step()
    with JpegEngine(device) as engine:
        clock, count, spent_s = Clock(), 0, [0.0, 0.0, 0.0]
        while clock.wall_s < sizes.seconds or not count:
            times = [time.perf_counter()]
            batch = next(batches)
            times.append(time.perf_counter())
            step(batch)
            times.append(time.perf_counter())
            pace.end_step()
            times.append(time.perf_counter())
            spent_s = [
                total + end - begin for total, (begin, end) in zip(spent_s, itertools.pairwise(times), strict=True)
            ]
            count += 1
        wall_s, cpu_s, images = clock.wall_s, clock.cpu_s, count * sizes.batch
    shares = [part / sum(spent_s) for part in spent_s]
    return Row(name, images / wall_s, 1000 * cpu_s / images, *shares, engine=engine.share)


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

    def make_config(self, image_dtype: str, whole: bool = False) -> Any:
        """Returns the options. With `whole` the host decodes each image at full size, as a GPU does."""
        import tfpipe

        size = {"batch_size": self._sizes.batch, "image_size": self._side}
        return tfpipe.PipelineConfig(
            **size, image_dtype=image_dtype, seed=1, augment_options=tfpipe.AugmentOptions(dct_scaling=not whole)
        )

    def decode_on_device(self, num_threads: int, image_dtype: str | None = None, device: Any = None) -> Any:
        from tfpipe.readers.torch import DeviceConfig, DeviceImages

        dtype = image_dtype or ("bfloat16" if self._device.type == "cuda" else "float32")
        options = DeviceConfig(num_threads=num_threads)
        return DeviceImages(
            self.manifest, "train", self.make_config(dtype), device or self._device, device_config=options
        )

    def decode_on_host(self, whole: bool = False) -> Iterator[Any]:
        from tfpipe.readers.torch import TorchBatches, data_loader

        images = TorchBatches(self.manifest, "train", self.make_config("uint8", whole))
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


def compare_pixels(feeds: Feeds, sizes: Sizes) -> list[Difference]:
    """Compares what the device decodes with both decoders on the CPU."""
    on_device, on_cpu = (feeds.decode_on_device(2, "uint8", device) for device in (None, "cpu"))
    differences = []
    for name, others in (("Pillow", repeat(on_cpu)), ("TorchBatches", feeds.decode_on_host(whole=True))):
        on_device.set_epoch(0)
        count = max(min(COMPARED_IMAGES // sizes.batch, len(on_device)), 1)
        pairs = list(zip(range(count), on_device, others, strict=False))
        same = all(ours["label"].tolist() == theirs["label"].tolist() for _, ours, theirs in pairs)
        levels = [(ours["image"].cpu().int() - theirs["image"].cpu().int()).abs() for _, ours, theirs in pairs]
        mean = statistics.mean(part.float().mean().item() for part in levels)
        largest = max(int(part.max()) for part in levels)
        readers = f"DeviceImages on {on_device.device} beside {name} on the CPU"
        differences.append(Difference(readers, count * sizes.batch, same, mean, largest))
    for images in (on_device, on_cpu):
        images.close()
    return differences


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
    return replace(row, fallbacks=sum(images.fallbacks.values()) / given)


def measure_feeds(feeds: Feeds, sizes: Sizes, device: Any) -> list[Row]:
    """Measures readers alone."""
    from tfpipe.system.units import human_count

    names = {threads: f"DeviceImages, {human_count(threads, 'thread')}" for threads in THREADS}
    rows = [measure_decoded(feeds, threads, name, take, sizes) for threads, name in names.items()]

    def copy(batch: Any) -> object:
        return batch["image"].to(device, non_blocking=True)

    host = feeds.decode_on_host()
    return [*rows, measure("TorchBatches, decoded on the host", host, copy, sizes, device)]


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
    fed.append(measure(f"{name}, TorchBatches", host, step, sizes, device))
    return [fixed, *(replace(row, idle=max(1 - row.images_per_s / fixed.images_per_s, 0)) for row in fed)]


def describe_machine(device: Any) -> dict[str, Any]:
    import torch

    from tfpipe.system.host_limits import usable_cpus

    versions = {}
    for package in (*(name.split(">")[0] for name in WHEELS), *OPTIONAL_WHEELS):
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


def name_dali_wheel() -> str:
    """Names the wheel of DALI for the CUDA that PyTorch was built for."""
    import torch

    return f"nvidia-dali-cuda{(torch.version.cuda or '12').split('.')[0]}0"


def list_goals(results: dict[str, list[Row]]) -> list[str]:
    """Lists what a GPU should reach, what it reached, and whether that is enough."""
    fastest = max((row for row in results["feed"] if row.fallbacks is not None), key=lambda row: row.images_per_s)
    trained = next(row for row in results["resnet50"] if row.fallbacks is not None)
    goals = [
        (f"images/s of {fastest.name}", "more than", GOAL_RATE, fastest.images_per_s),
        *(
            (f"images/s of {fastest.name}", "more than", row.images_per_s, fastest.images_per_s)
            for row in results["dali"]
        ),
        (f"idle of {trained.name}", "less than", GOAL_IDLE, trained.idle),
        (f"host cores of {trained.name}", "less than", GOAL_CORES, trained.host_cores),
    ]
    lines = []
    for name, relation, goal, reached in goals:
        met = reached > goal if relation == "more than" else reached < goal
        lines.append(f"{name}: {relation} {goal:,.4g}, got {reached:,.4g}: {'met' if met else 'MISSED'}")
    return lines


def format_row(row: Row) -> str:
    parts = [f"{row.name:40} {row.images_per_s:9,.0f} images/s", f"{row.cpu_s_per_1000:8.2f} CPU-s/1,000"]
    parts.append(f"{row.host_cores:5.2f} cores")
    parts.append(f"waits {row.waits:4.0%}  steps {row.steps:4.0%}  device {row.device:4.0%}")
    parts += [f"idle {row.idle:6.1%}"] if row.idle is not None else []
    parts += [f"fallbacks {row.fallbacks:5.1%}"] if row.fallbacks is not None else []
    parts += [f"engine {row.engine:4.0%}"] if row.engine is not None else []
    return "  ".join(parts)


def format_difference(difference: Difference) -> str:
    records = "the same records" if difference.same_records else "OTHER RECORDS"
    return (
        f"{difference.name}: {difference.images:,} images, {records}, pixels differ by {difference.mean:.3f} levels in "
        f"the mean and {difference.largest} at most"
    )


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
    machine = describe_machine(device)
    click.echo(json.dumps(machine))
    parts: dict[str, list[Row]] = {}

    def show(part: str, rows: list[Row]) -> None:
        parts[part] = rows
        for row in rows:
            click.echo(format_row(row))

    with tempfile.TemporaryDirectory() as folder:
        photos, tiny = prepare(images, Path(folder), sizes)
        feeds = Feeds(photos, sizes.side, sizes, device)
        differences = compare_pixels(feeds, sizes)
        for difference in differences:
            click.echo(format_difference(difference))
        show("feed", measure_feeds(feeds, sizes, device))
        dali = measure_dali(feeds, sizes, device)
        show("dali", [] if dali is None else [dali])
        if dali is None:
            click.echo(f"DALI is not installed, so its row is left out: pip install {name_dali_wheel()}.")
        classes = len(feeds.manifest.label_names)
        show("resnet50", measure_training(feeds, ResNet50(classes), sizes, device, "ResNet-50"))
        tiny_feeds = Feeds(tiny, TINY[0], sizes, device)
        show("small_cnn", measure_training(tiny_feeds, SmallCNN(CLASSES), sizes, device, "small_cnn"))
        on_cpu = Feeds(tiny, TINY[0], sizes, cpu)
        show("small_cnn_on_cpu", measure_training(on_cpu, SmallCNN(CLASSES), sizes, cpu, "small_cnn on the CPU"))
    goals = list_goals(parts) if device.type == "cuda" else []
    for goal in goals:
        click.echo(goal)
    return {
        **machine,
        "device": device_name,
        "wheels": [*WHEELS, *OPTIONAL_WHEELS],
        "sizes": asdict(sizes),
        "pixels": [asdict(difference) for difference in differences],
        **{part: [{**asdict(row), "host_cores": row.host_cores} for row in rows] for part, rows in parts.items()},
        "goals": goals,
    }


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
