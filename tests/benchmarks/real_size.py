"""The input pipeline at real size: 6,000 originals, a million small records, storage that answers late.

python tests/benchmarks/real_size.py IMAGES
python tests/benchmarks/real_size.py IMAGES --only storage --rounds 3

Every row runs in a process of its own. A row that is compared with another one runs in turns with it, five seconds
each, and is halted while the other one runs, because the speed of a shared machine changes from minute to minute.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import click
from batch_times import BatchTimes, measure
from shard_speed import make_references

ROOT = Path(__file__).resolve().parents[2]
BATCH, NUM_SHARDS = 64, 16
REPEATED_BYTES = 2_000_000  # of a large record
STREAM_BYTES_PER_S = 100e6  # of each answer of the object store
_ASKS = "a turn, please\n"


@dataclass(frozen=True)
class Goal:
    """What a row must reach; None means that nothing is asked for.

    Attributes:
        first_ratio: The time of the first batch, as a multiple of the other row's, at most.
        first_batch_s: The seconds until the first batch, at most.
        rate_ratio: The rate in each period of 5 s, as a multiple of the other row's, at least.
        cpu_ratio: The images of a CPU-second, as a multiple of the other row's, at least.
        spread: The 99th percentile of batch times, as a multiple of their median, at most.
        memory_ratio: The peak memory, as a multiple of the other row's, at most.
    """

    first_ratio: float | None = None
    first_batch_s: float | None = None
    rate_ratio: float | None = None
    cpu_ratio: float | None = None
    spread: float | None = None
    memory_ratio: float | None = None


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: What is measured.
        data: The dataset: "originals", "small" or "large"; "-tenth" behind it is a dataset of a tenth of its records,
            and "@tenth" a view of the same.
        beside: The name of the row that this one is compared with; empty for none.
        goal: What it must reach.
        reader: How it is read: "tfpipe", "torch", "jax", "numpy" or "tf.data", the usual recipe.
        options: The options of `PipelineConfig` that are not the defaults.
        delay_ms: The milliseconds that every read of a TFRecord file, or every request to the store, takes longer.
        in_store: Whether the dataset lies in an object store on this machine, which sends `STREAM_BYTES_PER_S`.
        start_step: The step at which the run begins.
        hosts: The number of hosts, of which this one is the first. Each takes as large a batch as a host alone.
    """

    name: str
    data: str
    beside: str = ""
    goal: Goal = Goal()
    reader: str = "tfpipe"
    options: dict[str, Any] = field(default_factory=dict)
    delay_ms: int = 0
    in_store: bool = False
    start_step: int = 0
    hosts: int = 1


THROUGHPUT = {"order": "throughput"}
FLOATS = {"image_dtype": "float32"}
AS_FAST = Goal(first_ratio=1.2, rate_ratio=0.97, cpu_ratio=0.97, spread=1.6, memory_ratio=1.1)
EVEN = Goal(spread=1.6)
KEEPS_BYTES = Goal(first_ratio=1.2, rate_ratio=0.9)
KEEPS_PIXELS = Goal(first_ratio=1.2, rate_ratio=0.3)  # whole images are decoded, of which a crop needs about a third
PART = Goal(rate_ratio=0.95, cpu_ratio=0.95)  # of the dataset without the column, or of one of its own
HIDES_DELAY = Goal(rate_ratio=0.9)
# The store takes cores from the pipeline, but none of its CPU-seconds.
HIDES_STORE = Goal(rate_ratio=0.9, cpu_ratio=0.9)

ROWS = [
    Row("originals, throughput", "originals", options=THROUGHPUT),
    Row("originals, exact", "originals", "originals, throughput", AS_FAST),
    Row("originals, exact, from step 1,000,007", "originals", "originals, throughput", AS_FAST, start_step=1_000_007),
    *(
        row
        for hosts in (4, 16)
        for row in (
            Row(f"host 0 of {hosts}, throughput", "originals", options=THROUGHPUT, hosts=hosts),
            Row(f"host 0 of {hosts}, exact", "originals", f"host 0 of {hosts}, throughput", AS_FAST, hosts=hosts),
        )
    ),
    Row(
        "originals, exact, a 4 KB column",
        "originals",
        "originals, exact",
        PART,
        options={"extra_features": ("vector",)},
    ),
    Row("originals, a tenth of its own", "originals-tenth"),
    Row("originals, a view of a tenth", "originals@tenth", "originals, a tenth of its own", PART),
    *(
        Row(f"originals, cache {cache}{place}", "originals", "originals, throughput", goal, options=options)
        for cache, goal in (("bytes", KEEPS_BYTES), ("decoded", KEEPS_PIXELS))
        for place, options in (("", {"cache": cache}), (" in a file", {"cache": cache, "cache_dir": "a new one"}))
    ),
    Row("originals, tf.data by hand", "originals", reader="tf.data"),
    Row("originals, JAX", "originals", "", EVEN, "jax"),
    Row("originals, PyTorch", "originals", "originals, JAX", Goal(cpu_ratio=0.97, spread=1.5), "torch"),
    Row("originals, PyTorch float32", "originals", "originals, JAX", Goal(cpu_ratio=0.9), "torch", FLOATS),
    Row("originals, float32", "originals", "originals, JAX", Goal(cpu_ratio=0.9), options=FLOATS),
    Row("originals, NumPy", "originals", "originals, JAX", Goal(cpu_ratio=0.97, spread=1.5), "numpy"),
    *(
        row
        for ms in (20, 50)
        for row in (
            Row(f"{ms} ms, throughput", "originals", "originals, throughput", HIDES_DELAY, "tfpipe", THROUGHPUT, ms),
            Row(f"{ms} ms, exact", "originals", "originals, throughput", HIDES_DELAY, delay_ms=ms),
            Row(f"{ms} ms, tf.data by hand", "originals", "originals, tf.data by hand", Goal(), "tf.data", {}, ms),
            Row(f"{ms} ms, PyTorch", "originals", "originals, PyTorch", HIDES_DELAY, "torch", {}, ms),
            Row(f"{ms} ms, JAX", "originals", "originals, JAX", HIDES_DELAY, "jax", {}, ms),
        )
    ),
    Row(
        "object store, throughput",
        "originals",
        "originals, throughput",
        HIDES_STORE,
        options=THROUGHPUT,
        delay_ms=50,
        in_store=True,
    ),
    Row("object store, exact", "originals", "originals, exact", HIDES_STORE, delay_ms=50, in_store=True),
    Row("object store, PyTorch", "originals", "originals, PyTorch", HIDES_STORE, "torch", delay_ms=50, in_store=True),
    Row("object store, JAX", "originals", "originals, JAX", HIDES_STORE, "jax", delay_ms=50, in_store=True),
    Row("1 KB, throughput", "small", "", Goal(first_batch_s=1.5), options=THROUGHPUT),
    Row("1 KB, shuffle buffer", "small", options={**THROUGHPUT, "tf_data.shuffle_buffer_size": 32_768}),
    Row("1 KB, exact", "small", "1 KB, shuffle buffer", AS_FAST),
    Row("1 KB, JAX", "small", reader="jax"),
    Row("1 KB, NumPy", "small", reader="numpy"),
    Row("1 KB, a tenth of its own", "small-tenth", reader="numpy"),
    Row("1 KB, a view of a tenth", "small@tenth", "1 KB, a tenth of its own", PART, "numpy"),
    Row("2 MB, throughput", "large", options=THROUGHPUT),
    Row("2 MB, exact", "large", "2 MB, throughput", AS_FAST),
]
BY_NAME = {row.name: row for row in ROWS}


def make_dataset(kind: str, images: Path, folder: Path, references: int, small_records: int) -> None:
    """Writes one of the datasets: the originals, small images, or large ones."""
    source, options = folder / f"{kind}-images", ["--num-shards", str(NUM_SHARDS)]
    if kind == "originals":
        make_references(images, source, references)
    elif kind == "large":
        _write_large(images, source)
    else:
        _write_small(images, source, small_records)
        options += ["--keep-quarantined"]
    _run("shard", source, folder / kind, *options)
    if kind == "originals":
        _add_vectors(folder / kind)


def take_tenth(dataset: Path) -> None:
    """Makes the view of a tenth of a dataset, and writes the same records as a dataset of their own."""
    begin = time.perf_counter()
    _run("view", dataset, "--name", "tenth", "--sample", "10%")
    click.echo(f"A view of a tenth of {dataset.name}: {time.perf_counter() - begin:.1f} s")
    _run("reshard", f"{dataset}@tenth", f"{dataset}-tenth", "--num-shards", NUM_SHARDS)


def _run(*arguments: object) -> None:
    command = [sys.executable, "-m", "tfpipe", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")


def _add_vectors(dataset: Path) -> None:
    """Adds a column with a vector of 4 KB for each record, and says how many bytes that takes."""
    import numpy as np

    import tfpipe

    vector, begin = np.linspace(0, 1, 1024, dtype=np.float32), time.perf_counter()
    manifest = tfpipe.add_column(dataset, "vector", lambda _: vector, tfpipe.fields.Tensor("float32", (1024,)))
    written = sum(path.stat().st_size for path in (dataset / "columns").rglob("*") if path.is_file())
    share = written / (vector.nbytes * sum(split.records for split in manifest.splits.values()))
    click.echo(f"A column of 4 KB: {time.perf_counter() - begin:.1f} s, {share:.3f} of the bytes of its values")


def _write_large(images: Path, target: Path) -> None:
    """Enlarges images until each takes about 2 MB."""
    from PIL import Image

    paths = sorted(path for path in images.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    (target / "all").mkdir(parents=True)
    for index, path in enumerate(paths[:300]):
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        scale = (REPEATED_BYTES / path.stat().st_size / 1.6) ** 0.5
        size = (max(round(image.width * scale), 1), max(round(image.height * scale), 1))
        image.resize(size, Image.Resampling.BICUBIC).save(target / "all" / f"{index:05d}.jpg", "JPEG", quality=92)


def _write_small(images: Path, target: Path, count: int) -> None:
    """Writes small JPEGs to tar files; a comment of eight bytes tells copies apart."""
    import tarfile

    from PIL import Image

    target.mkdir(parents=True)
    encoded = []
    for path in sorted(path for path in images.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))[:250]:
        buffer = io.BytesIO()
        with Image.open(path) as opened:
            opened.convert("RGB").resize((32, 32)).save(buffer, "JPEG", quality=75)
        encoded.append(buffer.getvalue())
    tars = 100
    for k in range(tars):
        with tarfile.open(target / f"class{k:03d}.tar", "w") as tar:
            for number in range(count * k // tars, count * (k + 1) // tars):
                jpeg = encoded[number % len(encoded)]
                data = jpeg[:2] + b"\xff\xfe\x00\x0a" + number.to_bytes(8, "big") + jpeg[2:]
                info = tarfile.TarInfo(f"{number:08d}.jpg")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


@contextlib.contextmanager
def provide_storage(row: Row, folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields where the dataset of a row lies, and the environment in which it answers as late as the row says."""
    dataset = str(folder / row.data)
    if row.in_store:
        with _serve(row, folder) as environment:
            yield f"gs://data/{row.data}", environment
    elif row.delay_ms:
        from tests.profiler.faults.run_in_process import build_slow_storage

        yield dataset, {"LD_PRELOAD": str(build_slow_storage(folder)), "DELAY_US": str(1000 * row.delay_ms)}
    else:
        yield dataset, {}


@contextlib.contextmanager
def _serve(row: Row, folder: Path) -> Iterator[dict[str, str]]:
    """Serves a folder as an object store, and yields the environment in which its clients come to it."""
    from tests.object_stores.folder_store import pose_as_google

    with pose_as_google(folder) as (store, environment):
        store.harm = lambda _: row.delay_ms / 1000
        store.bytes_per_s = STREAM_BYTES_PER_S
        yield environment


class Measured:
    """A row that is measured in a process of its own, which stands still but for its turns.

    Args:
        row: The row.
        dataset: The folder or URL of its dataset.
        environment: What its process has in its environment beside that of this one.
        errors: The file for what it says.
        seconds: How long it is measured.
    """

    def __init__(self, row: Row, dataset: str, environment: dict[str, str], errors: Path, seconds: float) -> None:
        command = [sys.executable, __file__, "--child", row.name, dataset, str(seconds)]
        self.times: BatchTimes | None = None
        self._row, self._errors = row, errors
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    def take_turn(self) -> None:
        """Lets it run for a period, or to its end."""
        assert self._process.stdin is not None
        os.killpg(self._process.pid, signal.SIGCONT)
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self.wait()

    def wait(self) -> None:
        """Waits until it asks for a turn, and halts it; or until it ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line == _ASKS:
                os.killpg(self._process.pid, signal.SIGSTOP)
                return
            if line.startswith("{"):
                self.times = BatchTimes(**json.loads(line))
        if self._process.wait() or self.times is None:
            sys.exit(f"{self._row.name} failed:\n{self._errors.read_text()[-3000:]}")

    def end(self) -> None:
        """Ends all of its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def run(rows: list[Row], folder: Path, seconds: float) -> list[BatchTimes]:
    """Measures rows in turns."""
    running: list[Measured] = []
    with contextlib.ExitStack() as stack:
        for row in rows:
            dataset, environment = stack.enter_context(provide_storage(row, folder))
            errors = folder / f"errors-{ROWS.index(row)}.log"
            running.append(Measured(row, dataset, environment, errors, seconds))
            stack.callback(running[-1].end)
            running[-1].wait()
        while any(one.times is None for one in running):
            for one in running:
                one.take_turn()
    return [one.times for one in running if one.times is not None]


def child(name: str, dataset: str, seconds: str) -> None:
    """Measures a row in this process and prints one JSON line."""
    row = BY_NAME[name]
    # Imports take seconds, and are none of the pipeline's time.
    __import__(f"tfpipe.readers.{row.reader}" if row.reader in ("torch", "jax", "numpy") else "tensorflow")
    times = measure(lambda: make_batches(row, dataset), BATCH, float(seconds), _ask_for_turn)
    print(json.dumps(asdict(times)), flush=True)
    os._exit(0)  # TensorFlow sometimes takes a minute to delete an iterator


def make_batches(row: Row, dataset: str) -> Iterator[Any]:
    """Builds the pipeline of a row."""
    import tfpipe
    from tfpipe.system.options import replace_options

    if row.reader == "tf.data":
        from pipeline_by_hand import dataset as build_by_hand

        return iter(build_by_hand(dataset, BATCH))
    manifest = tfpipe.load_manifest(dataset)
    config = replace_options(tfpipe.PipelineConfig(batch_size=BATCH * row.hosts), row.options)
    if config.cache_dir is not None:
        config = replace(config, cache_dir=tempfile.mkdtemp(dir=os.path.dirname(dataset)))
    if row.reader == "torch":
        from tfpipe.readers.torch import TorchBatches, data_loader

        return _forever(data_loader(TorchBatches(manifest, "train", config)))
    if row.reader == "jax":
        from tfpipe.readers.jax import JaxBatches

        return _forever(JaxBatches(manifest, "train", config))
    if row.reader == "numpy":
        from tfpipe.readers.numpy import NumpyBatches

        return _forever(NumpyBatches(manifest, "train", config))
    import tensorflow as tf

    host = tf.distribute.InputContext(num_input_pipelines=row.hosts, num_replicas_in_sync=row.hosts)
    return iter(tfpipe.build_dataset(manifest, "train", config, host, row.start_step))


def _ask_for_turn() -> None:
    sys.stdout.write(_ASKS)
    sys.stdout.flush()
    sys.stdin.readline()


def _forever(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def check(goal: Goal, times: BatchTimes, beside: BatchTimes | None) -> dict[str, tuple[float, bool]]:
    """Returns the figure and whether it is reached, for each part of a goal."""
    figures = {"first_batch_s": times.first_batch_s, "spread": times.p99_ms / times.median_ms}
    if beside is not None:
        rates = zip(times.images_per_s, beside.images_per_s, strict=True)
        figures |= {
            "first_ratio": times.first_batch_s / beside.first_batch_s,
            "rate_ratio": min(rate / other for rate, other in rates),
            "cpu_ratio": times.images_per_cpu_s / beside.images_per_cpu_s,
            "memory_ratio": times.peak_bytes / beside.peak_bytes,
        }
    limits = {name: limit for name, limit in asdict(goal).items() if limit is not None}
    at_least = ("rate_ratio", "cpu_ratio")
    return {
        name: (figures[name], figures[name] >= limit if name in at_least else figures[name] <= limit)
        for name, limit in limits.items()
    }


def describe(row: Row, times: BatchTimes, beside: BatchTimes | None) -> str:
    """Returns one line of the table."""
    rates = times.images_per_s
    parts = [
        f"{row.name:38}",
        f"{times.first_batch_s:6.2f} s",
        f"{rates[0]:7,.0f} {rates[1]:7,.0f} {sum(rates[2:]) / max(len(rates) - 2, 1):7,.0f}",
        f"{times.images_per_cpu_s:6,.0f}",
        f"{times.p99_ms:6.0f} / {times.median_ms:3.0f}",
        f"{times.longest_ms:6.0f} ms",
        f"{times.peak_bytes / 1e9:5.2f} GB",
    ]
    checks = check(row.goal, times, beside)
    parts += [f"{name} {figure:.2f}{'' if reached else ' MISSED'}" for name, (figure, reached) in checks.items()]
    return "  ".join(parts)


def summarize(runs: list[tuple[BatchTimes, BatchTimes | None]]) -> tuple[BatchTimes, BatchTimes | None]:
    """Returns the median of each figure over the rounds, of the row and of that which it is compared with."""
    beside = [other for _, other in runs if other is not None]
    return _find_medians([own for own, _ in runs]), _find_medians(beside) if beside else None


def _find_medians(runs: list[BatchTimes]) -> BatchTimes:
    figures = {name: [getattr(one, name) for one in runs] for name in asdict(runs[0])}
    rates = [statistics.median(period) for period in zip(*figures.pop("images_per_s"), strict=True)]
    return BatchTimes(images_per_s=rates, **{name: statistics.median(values) for name, values in figures.items()})


@click.command()
@click.argument("images", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--references", default=6000, show_default=True, help="Originals: hard links to the images, in turns.")
@click.option("--small-records", default=1_000_000, show_default=True, help="Records of the dataset of small images.")
@click.option(
    "--seconds", default=40.0, type=click.FloatRange(15), show_default=True, help="How long each row is measured."
)
@click.option("--rounds", default=1, show_default=True, help="Measure all rows so often, and print medians.")
@click.option("--only", multiple=True, help="Only rows whose name contains this; may be given several times.")
@click.option("--data", type=click.Path(path_type=Path), help="A folder that keeps the datasets for the next run.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write all figures to this file.")
def main(
    images: Path,
    references: int,
    small_records: int,
    seconds: float,
    rounds: int,
    only: tuple[str, ...],
    data: Path | None,
    json_file: Path | None,
) -> None:
    """Measure pipelines over the folder IMAGES at real size, and print a table."""
    rows = [row for row in ROWS if not only or any(part in row.name for part in only)]
    results: dict[str, list[tuple[BatchTimes, BatchTimes | None]]] = {row.name: [] for row in rows}
    with tempfile.TemporaryDirectory() as temporary:
        folder = data or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        needed = [row.data for row in rows] + [BY_NAME[row.beside].data for row in rows if row.beside]
        for kind in dict.fromkeys(re.split("[@-]", name)[0] for name in needed):
            if not (folder / kind / "manifest.json").exists():
                make_dataset(kind, images, folder, references, small_records)
            if f"{kind}-tenth" in needed and not (folder / f"{kind}-tenth" / "manifest.json").exists():
                take_tenth(folder / kind)
        click.echo(f"{'':38}     first  images/s: 0-5, 5-10, later s  per CPU-s  p99 / median ms  longest  memory")
        for number in range(1, rounds + 1):
            if rounds > 1:
                click.echo(f"Round {number} of {rounds}")
            for row in rows:
                pair = [row, BY_NAME[row.beside]] if row.beside else [row]
                cpu_before, begin = time.process_time(), time.perf_counter()
                times, *beside = run(pair, folder, seconds)
                results[row.name].append((times, beside[0] if beside else None))
                click.echo(describe(row, *results[row.name][-1]))
                if row.in_store:
                    cpu_s, wall_s = time.process_time() - cpu_before, time.perf_counter() - begin
                    click.echo(
                        f"{'':38}  the store itself took {cpu_s:.1f} CPU-seconds in {wall_s:.0f} s, both rows' turns"
                    )
    medians = {name: summarize(runs) for name, runs in results.items()}
    if rounds > 1:
        click.echo(f"Medians of {rounds} rounds")
        for row in rows:
            click.echo(describe(row, *medians[row.name]))
    if json_file:
        document = {
            name: [[asdict(times) for times in pair if times is not None] for pair in runs]
            for name, runs in results.items()
        }
        json_file.write_text(json.dumps(document, indent=1) + "\n")
    checks = {row.name: check(row.goal, *medians[row.name]) for row in rows}
    missed = [name for name, figures in checks.items() if not all(reached for _, reached in figures.values())]
    if missed:
        sys.exit(f"Not every goal is reached: {'; '.join(missed)}.")


if __name__ == "__main__":
    sys.path.append(str(ROOT))  # for the tests' storage
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        main()
