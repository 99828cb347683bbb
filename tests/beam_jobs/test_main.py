"""`python -m beam_jobs`: the commands that are jobs, and what their worker processes load."""

import os
from importlib import import_module
from pathlib import Path
from unittest.mock import Mock

import pytest

from beam_jobs.__main__ import jobs
from beam_jobs.config import ShardConfig
from tests.beam_jobs.commands import run_python
from tests.beam_jobs.datasets import make_dataset, read_tree
from tests.beam_jobs.images import make_photos, write_files
from tfpipe.format.image_form import ImageForm


def test_every_option_reaches_the_job(monkeypatch) -> None:
    run = Mock()
    monkeypatch.setattr(import_module("tfpipe.cli.shard"), "run_job", run)
    words = "--splits train=0.75,test=0.25 --group-by patient --labels labels.txt --num-shards 8 --no-shuffle --seed -3"
    words += " --encoding jpeg --resize-short 256 --quality 90 --reencode-progressive --max-pixels 1000 --max-bad 2%"
    words += " --keep-quarantined --drop-duplicates --overwrite --workers 3"
    beam_args = ("--runner=DataflowRunner", "--label", "a=b")
    paths = ("gs://in/a folder", "gs://out", "--image-root", "gs://photos/all of them")
    jobs.main(["shard", *paths, *words.split(), "--", *beam_args], standalone_mode=False)
    splits, form = {"train": 0.75, "test": 0.25}, {"encoding": "jpeg", "reencode_progressive": True}
    images = {"image_root": "gs://photos/all of them", "labels": "labels.txt", "group_by": "patient", "splits": splits}
    shards = {"num_shards": 8, "shuffle": False, "seed": -3, "overwrite": True, "workers": 3, "drop_duplicates": True}
    shards |= {"form": ImageForm(**form, resize_short=256, quality=90, max_pixels=1000)}
    shards |= {"max_bad": 0.02, "keep_quarantined": True}
    jobs.main(["reshard", "a b", "out", "--encoding", "jpeg", "--reencode-progressive"], standalone_mode=False)
    jobs.main(["merge", "a", "b", "out", "--num-shards", "2", "--", *beam_args], standalone_mode=False)
    assert [(config, run_args.beam_args) for config, run_args in (call.args for call in run.mock_calls)] == [
        (ShardConfig("gs://in/a folder", "gs://out", **images, **shards), beam_args),
        (ShardConfig("a b", "out", datasets=("a b",), form_changes=form), ()),
        (ShardConfig("a, b", "out", datasets=("a", "b"), num_shards=2), beam_args),
    ]


def test_it_makes_the_dataset_of_tfpipe_shard(tmp_path: Path) -> None:
    source, output = write_files(tmp_path / "my photos", make_photos({"cat": 7, "dog": 6})), tmp_path / "out"
    options = "--splits a=0.7,b=0.3 --num-shards 2 --seed 5 --encoding jpeg --workers 1"
    done = run_python("-m", "beam_jobs", "shard", source, output, *options.split())
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith(f"{output} is complete: ")
    form = ImageForm(encoding="jpeg")
    make_dataset(source, tmp_path / "other", splits={"a": 0.7, "b": 0.3}, num_shards=2, seed=5, form=form)
    assert read_tree(output) == read_tree(tmp_path / "other")
    done = run_python("-m", "beam_jobs", "shard", "a")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Usage: python -m beam_jobs shard [OPTIONS] INPUT OUTPUT" in done.stderr


NOTE_IMPORTS = """
import multiprocessing, os, sys

class Note:
    def find_spec(self, name, path=None, target=None):
        if name in ("apache_beam", "tfpipe.images.normalize"):
            with open(os.environ["NOTES"], "a") as file:
                file.write(f"{os.getpid()} {name}\\n")

sys.meta_path.insert(0, Note())
if os.environ["METHOD"] == "spawn":
    multiprocessing.get_all_start_methods = lambda: ["spawn"]
"""


@pytest.mark.parametrize(
    ("module", "method", "runner", "with_beam"),
    [
        pytest.param("beam_jobs", "spawn", "direct", 1, marks=pytest.mark.slow),
        ("tfpipe", "forkserver", "direct", 1),
        ("tfpipe", "forkserver", "local", 0),
    ],
)
def test_worker_processes_load_no_beam(tmp_path: Path, module: str, method: str, runner: str, with_beam: int) -> None:
    """Beam costs each of them more than a second and 100 MB."""
    write_files(tmp_path / "site", {"sitecustomize.py": NOTE_IMPORTS.encode()})
    source = write_files(tmp_path / "in", make_photos({"cat": 4}))
    path = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    words = ("shard", str(source), str(tmp_path / "out"), "--workers=1", f"--runner={runner}")
    done = run_python("-m", module, *words, PYTHONPATH=path, NOTES=str(tmp_path / "notes"), METHOD=method)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith(f"{tmp_path}/out is complete: ")
    notes = [line.split() for line in (tmp_path / "notes").read_text().splitlines()]
    beam_processes = {pid for pid, name in notes if name == "apache_beam"}
    image_processes = {pid for pid, name in notes if name == "tfpipe.images.normalize"}
    assert len(beam_processes) == with_beam
    assert image_processes - beam_processes  # a worker was there
