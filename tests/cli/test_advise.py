"""`tfpipe advise` as a user runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from beam_jobs import process_pool
from beam_jobs.estimate import ConfidenceInterval, Estimate
from beam_jobs.prices import PriceConfig
from tests.beam_jobs.images import make_photos, write_files
from tests.conftest import Ran, Tfpipe
from tfpipe.cli.advise_run import FormReading, Measured, make_figures
from tfpipe.errors import DataError
from tfpipe.format.image_form import ImageForm
from tfpipe.native import library
from tfpipe.system import host_limits
from tfpipe.tuning import stored_forms
from tfpipe.tuning.paired_benchmark import Interval
from tfpipe.tuning.stored_forms import Candidate, Speed

PRICES = PriceConfig(price_per_vcpu_hour=0.04, price_per_gib_month=20.0)
GIB, FREE_BYTES = 2**30, 10 * 2**30

ORIGINAL = Candidate("original", ImageForm(), keeps_crops=True)
SEEKABLE = Candidate("seekable", ImageForm(seekable=True), keeps_crops=True)
RAW = Candidate("raw 256", ImageForm(encoding="raw", square=256), {"augment": "device"})
CACHED = Candidate("original, cached at 256", ImageForm(), {"cache": "decoded"})


def make_reading(candidate: Candidate, rate: float, gibibytes: float, cached_bytes: float = 0.0) -> FormReading:
    """Makes a reading of 10,000 images that take 100 s to write."""
    speed = Speed(Interval(rate, 0.9 * rate, 1.1 * rate), 2 * rate)
    size, wall, cpu = (ConfidenceInterval(value, value, value) for value in (gibibytes * GIB, 100.0, 150.0))
    estimate = Estimate(10_000, 1000, 0, size, cpu, wall, 3.0, 2)
    return FormReading(candidate, speed, estimate, gibibytes * GIB / 10_000, cached_bytes)


READINGS = (
    make_reading(ORIGINAL, 1000, 1.0),
    make_reading(SEEKABLE, 1600, 0.5),
    make_reading(RAW, 4000, 2.0),
    make_reading(CACHED, 8000, 1.0, 200_000.0),
)

Advise = Callable[..., Ran]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # the command changes it
    monkeypatch.setattr(host_limits, "available_memory_bytes", lambda: FREE_BYTES)
    monkeypatch.setattr(library, "explain_missing", lambda: None)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def advise(monkeypatch: pytest.MonkeyPatch, tfpipe: Tfpipe) -> Advise:
    """Runs the command with measurements that are over at once."""
    monkeypatch.setattr("tfpipe.cli.advise_output.usable_cpus", lambda: 2)
    monkeypatch.setattr("tfpipe.native.library.explain_missing", lambda: None)

    def call(*args: object, readings: tuple[FormReading, ...] = READINGS) -> Ran:
        def measure(config: Any, demand: Any, pipeline: Any, beam_args: Any, prices: Any) -> Measured:
            figures = [make_figures(one, demand.images_per_second, prices) for one in readings]
            return Measured(10_000, GIB, 1000, demand.images_per_second, pipeline.size[0], figures)

        monkeypatch.setattr("tfpipe.cli.advise.measure", measure)
        return tfpipe("advise", "photos", "--images-per-second", 2000, *args)

    return call


def test_the_table_and_the_advice(advise: Advise) -> None:
    done = advise("--price-per-vcpu-hour", 0.04, "--price-per-gib-month", 20, "--splits", "train=0.9,validation=0.1")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "Sample: 1,000 of 10,000 images, read as 224 px uint8 in 6 turns of each form on 2 cores.",
        "Cores and reads are for 2,000 images/s; bytes and write time are for all images.",
        "",
        "form                       crop    images/CPU-s  cores       reads     bytes  write time  price a month",
        "original                   host           1,000   2.00  214.7 MB/s    1.1 GB        1:40          78.40",
        "seekable                   host           1,600   1.25  107.4 MB/s  536.9 MB        1:40          46.50",
        "raw 256 *                  device         4,000   0.50  429.5 MB/s    2.1 GB        1:40          54.60",
        "original, cached at 256 *  host           8,000   0.25      memory    1.1 GB        1:40          27.30",
        "",
        "* The images are reduced before they are cropped: the model sees other pixels.",
        "The work of the device for a crop is not counted.",
        "The cache takes 2.0 GB of memory on each host. It was full; the first epoch fills it.",
        "The fastest form gives 8.0 times the images per CPU-second of the slowest.",
        "",
        "If the model is to see the pixels of the originals, seekable with the crop on the host costs least for "
        "2,000 images/s:",
        "  tfpipe shard photos OUTPUT --splits=train=0.9,validation=0.1 --seekable",
        "",
        "If it may see others, original, cached at 256 with the crop on the host costs least:",
        "  tfpipe shard photos OUTPUT --splits=train=0.9,validation=0.1",
        "  and in the pipeline cache = 'decoded'",
    ]


def test_without_prices_there_is_no_price(advise: Advise) -> None:
    lines = advise(readings=READINGS[:2]).out.splitlines()
    assert lines[3:6] == [
        "form      crop  images/CPU-s  cores       reads     bytes  write time",
        "original  host         1,000   2.00  214.7 MB/s    1.1 GB        1:40",
        "seekable  host         1,600   1.25  107.4 MB/s  536.9 MB        1:40",
    ]
    assert lines[-2:] == [
        "seekable with the crop on the host needs the fewest cores for 2,000 images/s, and keeps the pixels of the "
        "originals:",
        "  tfpipe shard photos OUTPUT --seekable",
    ]


def test_one_price_is_shown_and_does_not_decide(advise: Advise) -> None:
    lines = advise("--price-per-gib-month", 20, readings=READINGS[:2]).out.splitlines()
    assert [line.split()[-1] for line in lines[4:6]] == ["20.00", "10.00"]
    assert lines[7] == "The price is that of storage alone; give both prices, and the price decides."
    assert "the fewest cores" in lines[-2]


def test_a_cache_that_does_not_fit_is_not_advised(advise: Advise, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_limits, "available_memory_bytes", lambda: 2 * 10**9)
    out = advise().out
    assert "The cache takes 2.0 GB of memory on each host, which do not fit here, so it is not advised." in out
    assert out.splitlines()[-3:] == [
        "If it may see others, raw 256 with the crop on the device needs the fewest cores:",
        "  tfpipe shard photos OUTPUT --encoding=raw --square=256",
        "  and in the pipeline augment = 'device'",
    ]


def test_the_command_has_the_arguments_for_beam(monkeypatch: pytest.MonkeyPatch, advise: Advise) -> None:
    monkeypatch.setattr("tfpipe.native.library.explain_missing", lambda: "it was not built")
    lines = advise("--crop", "host", "--", "--direct_running_mode=in_memory", readings=READINGS[:1]).out.splitlines()
    assert lines[-1] == "  tfpipe shard photos OUTPUT -- --direct_running_mode=in_memory"
    assert lines[6] == (
        "Forms with restart markers were not measured: they need the native library, and it was not built."
    )
    assert advise(readings=READINGS[2:3]).out.splitlines()[-4:] == [
        "",
        "Of the forms with the crop on the device, raw 256 needs the fewest cores for 2,000 images/s:",
        "  tfpipe shard photos OUTPUT --encoding=raw --square=256",
        "  and in the pipeline augment = 'device'",
    ]


def test_json_has_everything(advise: Advise) -> None:
    done = advise("--json", "--price-per-vcpu-hour", 0.04, "--price-per-gib-month", 20)
    document = json.loads(done.out)
    forms = document.pop("forms")
    assert document == {
        "images": 10_000,
        "bytes": GIB,
        "sampled": 1000,
        "images_per_second": 2000.0,
        "image_size": 224,
        "host_cores": 2,
        "best": {
            "keeping_crops": {
                "form": "seekable",
                "crop": "host",
                "command": "tfpipe shard photos OUTPUT --seekable",
                "pipeline": {},
            },
            "of_all": {
                "form": "original, cached at 256",
                "crop": "host",
                "command": "tfpipe shard photos OUTPUT",
                "pipeline": {"cache": "decoded"},
            },
        },
        "by_price": True,
        "fastest_to_slowest": 8.0,
    }
    assert forms[2] == {
        "form": "raw 256",
        "crop": "device",
        "keeps_crops": False,
        "options": RAW.form.to_json(),
        "pipeline": {"augment": "device"},
        "speed": {
            "images_per_cpu_second": {"ratio": 4000, "low": 3600.0, "high": 4400.0},
            "images_per_second": 8000,
        },
        "cores": 0.5,
        "stored_bytes": 2.0 * GIB,
        "read_bytes_per_second": 0.4 * GIB,
        "memory_bytes": 0.0,
        "fits_memory": True,
        "write_s": 100.0,
        "storage_price": 40.0,
        "cores_price": pytest.approx(14.6),
        "price": pytest.approx(54.6),
    }


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["in"], 2, "Missing option '--images-per-second'."),
        (["in", "--images-per-second", "0"], 2, "--images-per-second must be above 0, got 0.0."),
        (["in", *"--images-per-second 9 --num-images 0".split()], 2, "--num-images must be at least 1"),
        (["in", *"--images-per-second 9 --image-size 0".split()], 2, "--image-size must be a side from 1 to"),
        (["in", "out", *"--images-per-second 9".split()], 2, "INPUT must be one path, got another, 'out'."),
        (["in", *"--images-per-second 9 --resize-short 8".split()], 2, "No such option"),
    ],
)
def test_a_mistake_is_one_sentence(tfpipe: Tfpipe, args: list[str], code: int, message: str) -> None:
    done = tfpipe("advise", *args)
    assert (done.code, done.out) == (code, "")
    assert done.err.splitlines()[-1].startswith(f"Error: {message}")


def test_interrupted(monkeypatch: pytest.MonkeyPatch, tfpipe: Tfpipe) -> None:
    def interrupt(*_: object) -> Measured:
        raise KeyboardInterrupt

    monkeypatch.setattr("tfpipe.cli.advise.measure", interrupt)
    done = tfpipe("advise", "photos", "--images-per-second", 9)
    assert (done.code, done.out, done.err) == (130, "", "Interrupted. Nothing was written.\n\n")


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder for temporary files."""
    process_pool.start_early()  # elsewhere: it outlives this test, and the name of its socket must be short
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_files(tmp_path / "photos", {**make_photos({"cat": 10, "dog": 10}), "cat/bad.jpg": b"bad"})


@pytest.mark.slow
def test_a_real_run(tfpipe: Tfpipe, photos: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of the forms: each costs the start of a TensorFlow."""
    for name, value in (("ROUNDS", 2), ("MIN_TURN_S", 0.05), ("MAX_WARM_UP_S", 0.1)):
        monkeypatch.setattr(stored_forms, name, value)
    list_all = stored_forms.list_candidates

    def list_two(*args: Any, **options: Any) -> list[Candidate]:
        candidates = list_all(*args, **options)
        return [one for one in candidates if one.name in ("raw 18", "original, cached at 18") and one.crop == "device"]

    monkeypatch.setattr(stored_forms, "list_candidates", list_two)
    done = tfpipe("advise", photos, "--images-per-second", 100, "--image-size", 16, "--json")
    assert (done.code, done.err) == (0, "")
    document = json.loads(done.out)
    assert (document["images"], document["sampled"], document["image_size"]) == (21, 21, 16)
    raw, cached = document["forms"]
    assert (raw["form"], raw["options"]["square"], raw["crop"]) == ("raw 18", 18, "device")
    assert raw["stored_bytes"] > 20 * 18 * 18 * 3
    assert cached["stored_bytes"] < raw["stored_bytes"]
    assert (raw["memory_bytes"], cached["memory_bytes"]) == (0.0, 21 * (18 * 18 * 3 + 200))
    for form in (raw, cached):
        assert form["cores"] == pytest.approx(100 / form["speed"]["images_per_cpu_second"]["ratio"])
        assert form["write_s"] > 3.0
    assert document["best"]["keeping_crops"] is None
    assert os.listdir(scratch) == []
    assert sorted(os.listdir(photos.parent)) == ["photos", "scratch"]


@pytest.mark.slow
def test_every_form_for_real(photos: Path, scratch: Path) -> None:
    command = [sys.executable, "-m", "tfpipe", "advise", str(photos), "--images-per-second", "100", "--json"]
    done = subprocess.run(
        [*command, "--image-size", "64"],
        cwd=Path(__file__).resolve().parents[2],
        env={**os.environ, "TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert (done.returncode, done.stderr.splitlines()[1:]) == (0, [])
    document = json.loads(done.stdout)
    names = {(form["form"], form["crop"]) for form in document["forms"]} - {("seekable", "host")}
    assert names == {
        *((name, crop) for name in ("original", "square JPEG 73", "raw 73") for crop in ("host", "device")),
        *(("original, cached at 73", crop) for crop in ("host", "device")),
        ("short side 73", "host"),
    }
    assert document["fastest_to_slowest"] > 1
    assert os.listdir(scratch) == []


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch, photos: Path, scratch: Path, tfpipe: Tfpipe) -> Callable[[], Ran]:
    """Runs the command on few images up to the pipelines, which raise SIGTERM or an error."""
    return lambda: tfpipe("advise", photos, "--images-per-second", 9, "--image-size", 8, "--crop", "device")


def test_nothing_is_left_after_an_error(few: Callable[[], Ran], scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        assert os.listdir(scratch)
        raise DataError("A pipeline died.")

    monkeypatch.setattr(stored_forms, "measure_forms", fail)
    assert few() == Ran(1, "", "Error: A pipeline died.\n")
    assert os.listdir(scratch) == []


def test_nothing_is_left_after_sigterm(few: Callable[[], Ran], scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_forms, "measure_forms", lambda *_: signal.raise_signal(signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    assert few() == Ran(143, "", "")
    assert os.listdir(scratch) == []
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_disk_without_room_is_said_before_anything_is_written(
    few: Callable[[], Ran], scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_limits, "free_disk_bytes", lambda _: 5000)
    done = few()
    assert done.code == 1
    assert done.err.startswith("Error: 21 images in every form take about ")
    assert done.err.endswith(
        f" KB, and 5.0 KB are free in {scratch}. Set TMPDIR to a folder with more room, or sample fewer with "
        "--num-images.\n"
    )
    assert os.listdir(scratch) == []


def test_a_full_disk(few: Callable[[], Ran], scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("beam_jobs.sample.map_unordered", fail)
    done = few()
    assert (done.code, done.out) == (1, "")
    assert "No space left on device. Free some and run the same command again." in done.err
    assert os.listdir(scratch) == []
