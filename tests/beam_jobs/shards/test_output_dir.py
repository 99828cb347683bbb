"""Where the job may write, what an earlier run left there, and how a new dataset replaces an old one."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from beam_jobs.config import ShardConfig
from beam_jobs.plan.plan import Plan
from beam_jobs.shard_job import plan_shards
from beam_jobs.shards import output_dir
from beam_jobs.shards.output_dir import check_dataset_output, open_work_dir
from beam_jobs.shards.work_dir import PlanHeader, WorkDir
from beam_jobs.shards.write_shard import write_shard
from tests.beam_jobs.datasets import make_dataset, read_tree
from tests.beam_jobs.images import make_jpeg, make_photos, write_files, write_tar
from tests.layers.growth import append
from tfpipe.errors import ConfigError, DataError, TfpipeError
from tfpipe.format.image_form import ImageForm
from tfpipe.storage import file_io


def refused(kind: type[TfpipeError], source: Path, output: Path, **options: Any) -> str:
    config = ShardConfig(str(source), str(output), **options)
    with pytest.raises(kind) as caught, open_work_dir(config, plan_shards(config)):
        raise AssertionError("was not refused")
    return str(caught.value)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_files(tmp_path / "in", make_photos({"cat": 4}))


def test_a_file_and_a_name_that_only_begins_alike(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    message = f"The output must be a directory, but {tmp_path}/file is a file."
    assert refused(ConfigError, photos, tmp_path / "file") == message
    output = tmp_path / "file" / "out"
    assert refused(DataError, photos, output) == f"Could not write to {output}: Not a directory."
    make_dataset(photos, photos.with_name("input"))


def test_a_note_beside_a_dataset(photos: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    manifest = make_dataset(photos, output)
    write_files(output, {"notes.md": b"mine"})
    assert make_dataset(photos, output) == manifest
    message = f"{output} must be empty or not exist yet, and holds notes.md. Choose another directory."
    assert refused(ConfigError, photos, output, seed=1, overwrite=True) == message
    assert (output / "notes.md").read_bytes() == b"mine"


@pytest.mark.parametrize("name", ["holiday.jpg", "data", "train-0-of-1.tfrecord", ".git"])
def test_foreign_files(photos: Path, tmp_path: Path, name: str) -> None:
    output = write_files(tmp_path / "out", {name: b"precious"})
    for overwrite in (False, True):
        message = f"{output} must be empty or not exist yet, and holds {name}. Choose another directory."
        assert refused(ConfigError, photos, output, overwrite=overwrite) == message
    assert read_tree(output) == {name: b"precious"}


def test_a_job_that_an_older_version_began(photos: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    config = ShardConfig(str(photos), str(output))
    with contextlib.suppress(RuntimeError), open_work_dir(config, plan_shards(config)) as work:
        raise RuntimeError
    header = json.loads(file_io.read_whole(work.path("plan.json")))
    for shard in header["shards"]:
        shard["part"] = shard.pop("begin")  # the plan was several files
    file_io.write_file(work.path("plan.json"), json.dumps(header).encode(), makes_folders=True)
    assert refused(ConfigError, photos, output) == (
        f"{output} holds a dataset made from other images, with other options or by another version of tfpipe. Choose "
        "an empty directory, or replace it with `overwrite`."
    )
    make_dataset(photos, output, overwrite=True)
    make_dataset(photos, tmp_path / "straight")
    assert read_tree(output) == read_tree(tmp_path / "straight")


def test_another_dataset(photos: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    make_dataset(photos, output)
    before = read_tree(output)
    message = (
        f"{output} holds a dataset made from other images, with other options or by another version of tfpipe. Choose "
        f"an empty directory, or replace it with `overwrite`. To add new images to it: tfpipe append {output} NEW"
    )
    shaping = {"seed": 1, "num_shards": 2, "split": "test", "keep_quarantined": True, "shuffle": False}
    for options in ({name: value} for name, value in {**shaping, "form": ImageForm(resize_short=8)}.items()):
        assert refused(ConfigError, photos, output, **options) == message
    (photos / "cat" / "more.jpg").write_bytes(make_jpeg(99))
    assert refused(ConfigError, photos, output) == message
    assert read_tree(output) == before


def test_shards_without_a_manifest_or_with_a_damaged_one(photos: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    make_dataset(photos, output)
    before = read_tree(output)
    for spoil in ((output / "manifest.json").unlink, lambda: (output / "manifest.json").write_text("{")):
        spoil()
        assert "replace it with `overwrite`" in refused(ConfigError, photos, output)
    make_dataset(photos, output, overwrite=True)
    assert read_tree(output) == before


def test_what_does_not_shape_the_result_does_not_make_another_dataset(photos: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    make_dataset(photos, output, workers=1)
    before = read_tree(output)
    (tmp_path / "elsewhere").mkdir()
    os.rename(photos, tmp_path / "elsewhere" / "in")
    make_dataset(tmp_path / "elsewhere" / "in", output, workers=3, max_bad=0, overwrite=True)
    assert read_tree(output) == before


class CrashError(BaseException):
    """A power failure: nothing in the job expects it."""


@pytest.mark.parametrize("moment", range(4))
def test_a_crash_in_the_exchange_loses_nothing(photos: Path, tmp_path: Path, monkeypatch, moment: int) -> None:
    """The crash comes before, between or after the two renames, or while the old dataset is removed."""
    output = tmp_path / "out"
    make_dataset(photos, output, num_shards=4)
    old = read_tree(output)
    make_dataset(photos, tmp_path / "straight", num_shards=2)
    new = read_tree(tmp_path / "straight")
    steps: list[Any] = []
    rename, remove_tree = os.rename, file_io.remove_tree

    def step(real: Any) -> Any:
        def instead(*args: Any) -> None:
            if str(args[0]).endswith(("/out", ".tfpipe-new", ".tfpipe-old")):
                if len(steps) == moment:
                    raise CrashError
                steps.append(args)
            real(*args)

        return instead

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", step(rename))
        patch.setattr(file_io, "remove_tree", step(remove_tree))
        with pytest.raises(CrashError) if moment < 3 else contextlib.nullcontext():
            make_dataset(photos, output, num_shards=2, overwrite=True)
    check_dataset_output(ShardConfig(str(photos), str(output)), [str(photos)])  # any later run looks first
    assert read_tree(output) in (old, new)
    make_dataset(photos, output, num_shards=2, overwrite=True)
    assert read_tree(output) == new
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out", "straight"]


def test_layers_go_with_overwrite_alone(photos: Path, tmp_path: Path, caplog) -> None:
    output = tmp_path / "out"
    make_dataset(photos, output)
    plain = read_tree(output)
    append(output, write_files(tmp_path / "more", {"owl/0.jpg": make_jpeg(9)}))
    layered = read_tree(output)
    make_dataset(photos, output)
    assert caplog.messages == [f"{output} has layers, which stay; `overwrite` writes it anew without them."]
    assert read_tree(output) == layered
    make_dataset(photos, output, overwrite=True)
    assert read_tree(output) == plain


def test_overwriting_through_a_link(photos: Path, tmp_path: Path) -> None:
    """A link such as /data/flowers may lead to another disk."""
    (tmp_path / "disk").mkdir()
    output = tmp_path / "out"
    output.symlink_to("disk")
    for num_shards in (1, 2, 3):
        make_dataset(photos, output, num_shards=num_shards, overwrite=True)
        make_dataset(photos, tmp_path / f"straight{num_shards}", num_shards=num_shards)
        assert read_tree(output) == read_tree(tmp_path / f"straight{num_shards}")
    assert [name for name in os.listdir(tmp_path) if "tfpipe" in name] == []


@pytest.mark.parametrize("name", ["write_plan", "unpack", "make_plan_header"])
def test_an_interrupted_preparation_leaves_nothing(tmp_path: Path, monkeypatch, name: str) -> None:
    """Ctrl-C may come at any step of the planning."""
    source = write_tar(tmp_path / "a.tar.gz", make_photos({"cat": 3}), "w:gz")
    config = ShardConfig(str(source), str(tmp_path / "out"))
    plan = plan_shards(config)
    real = getattr(output_dir, name)

    def interrupted(*args: Any) -> None:
        real(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(output_dir, name, interrupted if name != "write_plan" else _cut_short)
    with pytest.raises(KeyboardInterrupt), open_work_dir(config, plan):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.gz"]


def _cut_short(work: WorkDir, header: PlanHeader, plan: Plan) -> None:
    with file_io.create(work.lines_path, makes_folders=True) as out:
        out.write(b"[")
        raise KeyboardInterrupt


def test_an_interrupted_preparation_leaves_what_an_earlier_run_had(tmp_path: Path, monkeypatch) -> None:
    config = ShardConfig(str(write_files(tmp_path / "in", make_photos({"cat": 3}))), str(tmp_path / "out"))
    with contextlib.suppress(RuntimeError), open_work_dir(config, plan_shards(config)) as work:
        write_shard(work, work.read_header(), 0)
        raise RuntimeError
    before = read_tree(tmp_path / "out")
    monkeypatch.setattr(output_dir, "write_plan", _cut_short)
    with pytest.raises(KeyboardInterrupt), open_work_dir(config, plan_shards(config)):
        pass
    assert read_tree(tmp_path / "out") == before
