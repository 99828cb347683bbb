"""`tfpipe shard` as a user runs it."""

import json
import re
import tarfile
from functools import partial
from pathlib import Path

import pytest

from beam_jobs.runners.base import GraphWritten
from tests.beam_jobs.commands import Ran, run_python
from tests.conftest import ROOT, Tfpipe
from tfpipe.native import library
from tfpipe.system.units import human_bytes

SAMPLE = ROOT / "sample_data"
DATAFLOW = ["--runner", "dataflow", "--project", "my-project", "--region", "europe-west4"]
GOOGLE = pytest.mark.needs("google.api_core")
SHARD = "train-00000-of-00001.tfrecord"


@pytest.fixture
def shard(tfpipe):
    return partial(tfpipe, "shard")


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> tuple[Path, Ran]:
    """The README's first command, without its installation: a process of its own."""
    out = tmp_path_factory.mktemp("first") / "shapes"
    return out, run_python("-m", "tfpipe", "shard", SAMPLE, out)


def test_the_sample_data(first: tuple[Path, Ran]) -> None:
    out, done = first
    assert done.returncode == 0
    assert done.stderr.splitlines()[0] == "150 images, 575.2 KB, 1 shard (train)"  # a slow machine adds its progress
    *lines, last = done.stdout.splitlines()
    assert lines == [
        f"train: 149 records, 1 shard, {human_bytes((out / SHARD).stat().st_size)}",  # depends on Pillow's version
        "classes: 3 (circle 50, square 49, triangle 50)",
        "changed: 1 alpha_composited, 1 cmyk_to_rgb, 1 eoi_appended, 1 exif_rotated",
        "quarantined: 1, listed in quarantine/quarantined.jsonl",
        "  square/square-cut-in-half.jpg: truncated JPEG",
        "skipped: 1 *.md, 1 *.py, 1 *.txt",
    ]
    assert last.startswith(f"{out} is complete: ")


def test_run_again_says_what_was_kept_and_all_of_it_as_json(first: tuple[Path, Ran], shard) -> None:
    out, _ = first
    done = shard(SAMPLE, out, "--json")
    result = json.loads(done.out)
    assert done.code == 0
    assert result.pop("seconds") > 0
    assert result.pop("images_per_second") > 0
    assert result == {
        "dataset": str(out),
        "splits": {"train": {"records": 149, "shards": 1, "bytes": (out / SHARD).stat().st_size}},
        "classes": {"circle": 50, "square": 49, "triangle": 50},
        "no_classes": None,
        "columns": [],
        "quarantined": 1,
        "first_quarantined": [{"path": "square/square-cut-in-half.jpg", "reason": "truncated JPEG"}],
        "changed": {"alpha_composited": 1, "cmyk_to_rgb": 1, "eoi_appended": 1, "exif_rotated": 1},
        "duplicates": {"within": {}, "across": 0, "dropped": 0},
        "skipped": {"*.md": 1, "*.py": 1, "*.txt": 1},
        "kept_shards": 1,
    }
    done = shard(SAMPLE, first[0])
    assert done.code == 0
    assert done.out.splitlines()[-1].endswith(", 1 shard finished before")


def test_dry_run_writes_nothing(tmp_path: Path, shard) -> None:
    done = shard(SAMPLE, tmp_path / "out", "--dry-run", "--splits", "train=0.75,test=0.25", "--num-shards", 2)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[:-3] == [
        "150 images, 575.2 KB, nothing written",
        "train: 106 images, 349.4 KB, 2 shards",
        "  square           39  ██████████████████████████████",
        "  circle           35  ███████████████████████████",
        "  triangle         32  █████████████████████████",
        "test: 44 images, 225.8 KB, 2 shards",
        "  triangle         18  ██████████████████████████████",
        "  circle           15  █████████████████████████",
        "  square           11  ██████████████████",
        "skipped: 1 *.md, 1 *.py, 1 *.txt",
    ]
    head, output, time = done.out.splitlines()[-3:]
    assert head == "estimate from 150 images of 150, 1 of them bad:"
    assert output == "  output  619.7 KB"
    assert re.fullmatch(r"  time    \d:\d\d with \d+ workers?", time)
    plan = shard(SAMPLE, tmp_path / "out", "--dry-run", "--json").json
    estimate, classes = plan.pop("estimate"), dict.fromkeys(("circle", "square", "triangle"), 50)
    assert set(estimate) == {"sampled", "bad", "output_bytes", "wall_s", "workers"}
    assert (estimate["sampled"], estimate["bad"]) == (150, 1)
    split = {"images": 150, "bytes": plan["bytes"], "shards": 1, "classes": classes}
    skipped = {"*.md": 1, "*.py": 1, "*.txt": 1}
    assert plan.items() >= {"images": 150, "shards": 1, "no_classes": None, "dropped": 0}.items()
    assert (plan["splits"], plan["skipped"], len(plan)) == ({"train": split}, skipped, 7)
    assert list(tmp_path.iterdir()) == []


def test_what_is_compressed_as_a_whole_has_a_plan_without_an_estimate(shard, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "in.tgz", "w:gz") as archive:
        archive.add(SAMPLE, "in")
    done = shard(tmp_path / "in.tgz", tmp_path / "out", "--dry-run")
    assert done.out.splitlines()[0].startswith("150 images, ")
    assert done.out.splitlines()[-1] == (
        "no estimate: the input is compressed as a whole, so no sample of its images can be read alone"
    )
    assert shard(tmp_path / "in.tgz", tmp_path / "out", "--dry-run", "--json").json["estimate"] is None
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--encoding", "raw"], "--encoding raw needs --square"),
        (["--num-shards", "0"], "--num-shards must be at least 1, got 0."),
        (["--splits", "a=0.5"], "The shares of --splits must add up to 1, got 0.5."),
        (
            ["--group-by", "x", "--splits", "a=1"],
            "--group-by names a column; it needs a CSV, JSONL or Parquet manifest",
        ),
        (["--shard-size", "big"], "must be a size such as 128MiB or 2GB, got 'big'."),
        (["--num-shards", 2, "--shard-size", "1MB"], "--num-shards and --shard-size exclude each other."),
        (["--", "--nonsense=1"], "Options after -- must be known to Beam, got --nonsense."),
        (["--region", "r"], "--region goes with --runner dataflow, got --runner local."),
        pytest.param(DATAFLOW, f"Dataflow's machines read and write gs:// only, got {SAMPLE}.", marks=GOOGLE),
        (["--encoding", "raw", "--square", "8", "--seekable"], "--encoding raw and --seekable exclude each other: "),
        pytest.param(DATAFLOW[:4], "Dataflow needs a project and a region to run in; give --region", marks=GOOGLE),
        ([*DATAFLOW, "--", "--runner=A"], "--runner dataflow and --runner=A after -- exclude each other."),
        (["--max-bad", "0"], "At most 0 of 150 images may be bad, got 1, the first square/"),
    ],
)
def test_a_mistake_is_one_sentence(args: list[object], message: str, tmp_path: Path, monkeypatch, shard) -> None:
    monkeypatch.chdir(tmp_path)
    done = shard(SAMPLE, "out", *args)
    assert done.code == (1 if "--max-bad" in args else 2)
    assert message in done.err
    assert "Traceback" not in done.err
    assert done.err.count("Error: ") == 1
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_checkout_that_was_not_installed(tmp_path: Path, tfpipe: Tfpipe, monkeypatch) -> None:
    monkeypatch.setattr(library, "_PATH", tmp_path / "nothing.so")
    library.load.cache_clear()
    done = tfpipe("shard", SAMPLE, tmp_path / "out")
    assert (done.code, done.out) == (1, "")
    assert done.err == "Error: tfpipe's native library is not there: install the checkout with `pip install -e .`.\n"
    assert list(tmp_path.iterdir()) == []


def test_a_graph_that_a_service_will_run_is_no_error(shard, monkeypatch) -> None:
    def run(*_: object) -> None:
        raise GraphWritten("The graph is written.")

    monkeypatch.setattr("beam_jobs.shard_job.run", run)
    assert shard("gs://i", "gs://o")[:2] == (0, "The graph is written.\n")
    assert shard("gs://i", "gs://o", "--json").json == {"dataset": "gs://o", "message": "The graph is written."}


def test_a_job_in_parts(first: tuple[Path, Ran], shard, tmp_path: Path) -> None:
    out = tmp_path / "shapes"
    planned = shard(SAMPLE, out, "--plan-only")
    assert planned.out == "The plan is written; --part K/N writes its 1 shard.\n"
    assert not (out / SHARD).exists()
    done = shard(SAMPLE, out, "--part", "1/2", "--workers", 1)
    assert re.fullmatch(rf"part 1/2 wrote 1 shard in \d+\.\d s; {out} is complete\n", done.out)
    assert (out / SHARD).read_bytes() == (first[0] / SHARD).read_bytes()
    late = json.loads(shard(SAMPLE, out, "--part", "0/2", "--json").out)
    assert late.pop("seconds") >= 0
    expected = {"dataset": str(out), "part": "0/2", "written": 0, "finished": 0, "num_shards": 0, "is_complete": True}
    assert late == expected


@pytest.mark.parametrize(
    ("environment", "value", "part"),
    [
        ({"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_COUNT": "4"}, "auto", "7/4"),
        ({"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "4"}, "auto/8", "3/8"),
        ({"JOB_COMPLETION_INDEX": "0"}, "auto/3", "0/3"),
    ],
)
def test_a_scheduler_names_the_part(shard, tmp_path, monkeypatch, environment, value: str, part: str) -> None:
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    shard(SAMPLE, tmp_path / "out", "--plan-only")
    assert shard(SAMPLE, tmp_path / "out", "--part", value, "--workers", 1).out.startswith(f"part {part} wrote 1 shard")
