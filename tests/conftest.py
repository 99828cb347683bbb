"""A small finished dataset, how its images are drawn, commands and processes; for the tests of every folder."""

import gc
import itertools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import settings
from PIL import Image

from tests.beam_jobs.images import save_image
from tests.browser import browser as browser  # a fixture

# How long a case takes says more about what else the machine does than about the code.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

ROOT = Path(__file__).resolve().parent.parent

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # keeps TensorFlow's log out of the tests
# The processes that tests start load TensorFlow without what no test needs.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(ROOT / "tests" / "child_path"), os.environ.get("PYTHONPATH")])
)
# All processes keep what they compile, also where containers say that none should: there are hundreds of them.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
PATH_OF_REPOSITORY = os.pathsep.join([str(ROOT), os.environ["PYTHONPATH"]])
"""The same, for processes that begin elsewhere and need this code, not that of an installed package."""

# A shell that starts the tests in the background makes them ignore interrupts, and so the processes that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

DrawImages = Callable[[Path], Path]


@pytest.fixture
def seed() -> int:
    """Another one in each run, which a failure shows and TFPIPE_FUZZ_SEED gives again."""
    number = int(os.environ.get("TFPIPE_FUZZ_SEED") or random.randrange(2**31))
    print(f"TFPIPE_FUZZ_SEED={number}")
    return number


@pytest.fixture
def rng(seed: int) -> random.Random:
    return random.Random(seed)


_ended = itertools.count(1)


def pytest_sessionstart() -> None:
    """Collects garbage between two tests only, in the main thread.

    pytest keeps errors in circles, with the frames that raised them and the iterators of `tf.data` in those. Where such
    an iterator is found by a collection in one of its own calls of Python, TensorFlow waits for the end of that call in
    the call itself: the thread never comes back, and Python collects nothing any more.
    """
    gc.disable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test that needs a library which is not here: the extra `test` brings what most tests import."""
    missing = [name for mark in item.iter_markers("needs") for name in mark.args if find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: pip install -e '.[test-all]'")


def pytest_runtest_teardown() -> None:
    """Collects what the last tests have left, and looks at what they keep no more."""
    if next(_ended) % 20 == 0:
        gc.collect()
        gc.freeze()


CLASSES = {"cat": 6, "dog": 4, "owl": 2}
"""Images of each class in `train`; `validation` has one of each."""


@pytest.fixture(autouse=True)
def no_log_level(monkeypatch) -> None:
    """JAX, which Keras loads where it is installed, sets one, and the commands that a test starts would inherit it."""
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)


@pytest.fixture(autouse=True)
def keeps_sigint() -> Iterator[None]:
    """Checks that tests and fixtures leave Ctrl-C as it was: another handler would fail a test far from its cause."""
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    yield
    assert signal.signal(signal.SIGINT, signal.default_int_handler) is signal.default_int_handler


class Ran(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def ok(self) -> "Ran":
        """Itself, if the command did not fail."""
        assert self.code == 0, self.err
        return self

    @property
    def json(self) -> Any:
        """What it printed, for those that print one JSON object."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        """What it printed, without the space that fills a line up."""
        return [line.rstrip() for line in self.out.splitlines()]


Tfpipe = Callable[..., Ran]
"""The command, from the fixture of that name."""


@pytest.fixture
def tfpipe(monkeypatch, capfd: pytest.CaptureFixture[str]) -> Tfpipe:
    """Runs `tfpipe ...` in this process, through the real entry point."""
    from tfpipe.cli import main as cli

    def run(*args: object, columns: int | None = None) -> Ran:
        if columns is not None:
            monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(sys, "argv", ["tfpipe", *map(str, args)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return Ran(int(stop.value.code or 0), *capfd.readouterr())

    return run


@pytest.fixture(scope="session")
def draw_images() -> DrawImages:
    """Draws a folder of images with `train/` and `validation/`, three classes, and returns it.

    `train` has 12 good images (`cat` 6, `dog` 4, `owl` 2; every second one a PNG) and `cat/broken.jpg`, cut in
    half; `validation` has one JPEG of each class. Sizes differ from 24 x 16 to 35 x 27.
    """

    def draw(folder: Path) -> Path:
        seed = 0
        for name, count in CLASSES.items():
            for split, images in (("train", count), ("validation", 1)):
                for i in range(images):
                    kind = "PNG" if split == "train" and i % 2 else "JPEG"
                    path = folder / split / name / f"{i}.{'png' if kind == 'PNG' else 'jpg'}"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(_image(seed, (24 + seed % 12, 16 + seed % 12), kind))
                    seed += 1
        whole = _image(99, (40, 40), "JPEG")
        (folder / "train" / "cat" / "broken.jpg").write_bytes(whole[: len(whole) // 2])
        return folder

    return draw


@pytest.fixture(scope="session")
def small_dataset(tmp_path_factory, draw_images: DrawImages) -> Path:
    """`draw_images` as the job writes it: 2 shards a split, one image quarantined. Not to be changed: copy it."""
    from tests.beam_jobs.datasets import make_dataset

    folder = tmp_path_factory.mktemp("small")
    make_dataset(draw_images(folder / "images"), folder / "pets", num_shards=2)
    return folder / "pets"


@pytest.fixture
def pets(small_dataset: Path, tmp_path: Path) -> str:
    """A copy of `small_dataset`, to be changed."""
    return str(shutil.copytree(small_dataset, tmp_path / "pets"))


def _image(seed: int, size: tuple[int, int], kind: str) -> bytes:
    width, height = size
    y, x = np.mgrid[0:height, 0:width]
    planes = [(x * (seed + 3)) % 256, (y * (seed + 5)) % 256, np.full((height, width), 17 * seed % 256)]
    return save_image(Image.fromarray(np.stack(planes, axis=-1).astype(np.uint8)), kind)


class Foreign:
    """Writes TFRecords as any script does that knows nothing of tfpipe."""

    def image(self, seed: int, size: tuple[int, int] = (24, 16), kind: str = "JPEG") -> bytes:
        return _image(seed, size, kind)

    def example(self, features: dict[str, object]) -> bytes:
        import tensorflow as tf

        lists = {bytes: ("bytes_list", tf.train.BytesList), int: ("int64_list", tf.train.Int64List)}
        made = {}
        for name, value in features.items():
            values = value if isinstance(value, list) else [value]
            field, kind = lists.get(type(values[0]) if values else float, ("float_list", tf.train.FloatList))
            made[name] = tf.train.Feature(**{field: kind(value=values)})
        return tf.train.Example(features=tf.train.Features(feature=made)).SerializeToString()

    def write(self, path: Path, records: Iterable[dict[str, object]], compression: str = "") -> Path:
        import tensorflow as tf

        path.parent.mkdir(parents=True, exist_ok=True)
        with tf.io.TFRecordWriter(str(path), tf.io.TFRecordOptions(compression_type=compression)) as writer:
            for record in records:
                writer.write(self.example(record))
        return path

    def records(self, first: int, count: int, base: int = 0) -> list[dict[str, object]]:
        """Of tf-models' names: three classes, every third image a PNG, and a number under `id`."""
        return [
            {
                "image/encoded": self.image(k, (24 + k % 5, 16 + k % 3), "PNG" if k % 3 == 2 else "JPEG"),
                "image/class/label": k % 3 + base,
                "image/filename": f"{k}.jpg".encode(),
                "id": k,
            }
            for k in range(first, first + count)
        ]

    def imagenet(self, folder: Path, compression: str = "", base: int = 1) -> Path:
        """40 records for training in 4 files, the third of them empty, and 7 for validation in one; labels from 1."""
        first = 0
        for k, count in enumerate((14, 16, 0, 10)):
            self.write(folder / f"train-{k:05d}-of-00004", self.records(first, count, base), compression)
            first += count
        self.write(folder / "validation-00000-of-00001", self.records(first, 7, base), compression)
        return folder


@pytest.fixture(scope="session")
def foreign() -> Foreign:
    """Writes TFRecords by TensorFlow's own writer."""
    return Foreign()


class Processes:
    """Python processes, and what they print as JSON on their last line."""

    def start(self, *command: str, **environment: str) -> subprocess.Popen[str]:
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
        return subprocess.Popen(
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **quiet, **environment},
        )

    def finish(self, process: subprocess.Popen[str], timeout_s: float = 240) -> list:
        try:
            out, err = process.communicate(timeout=timeout_s)
        finally:
            process.kill()
        assert process.returncode == 0, err[-3000:]
        return json.loads(out.splitlines()[-1])

    def free_ports(self, count: int) -> list[int]:
        sockets = [socket.socket() for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        ports = [one.getsockname()[1] for one in sockets]
        for one in sockets:
            one.close()
        return ports

    def run_workers(self, count: int, *command: str) -> list[list]:
        """Several processes that `TF_CONFIG` joins; what each prints."""
        cluster = {"worker": [f"127.0.0.1:{port}" for port in self.free_ports(count)]}
        tasks = [{"type": "worker", "index": i} for i in range(count)]
        started = [self.start(*command, TF_CONFIG=json.dumps({"cluster": cluster, "task": task})) for task in tasks]
        try:
            return [self.finish(process) for process in started]
        finally:
            for process in started:
                process.kill()


@pytest.fixture
def processes() -> Processes:
    return Processes()


def pytest_collection_finish() -> None:
    """Takes what is loaded by now out of all later garbage collections: they took a tenth of the tests' time."""
    gc.freeze()
