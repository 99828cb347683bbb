"""A sample of a plan: which images it holds, and the dataset that is written of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from beam_jobs.config import ShardConfig
from beam_jobs.make_plan import plan_shards
from beam_jobs.sample import Sample, take_sample, write_sample
from tests.beam_jobs.datasets import read_images
from tests.beam_jobs.images import make_photos, write_files, write_tar
from tfpipe.dataset.load import load_manifest
from tfpipe.errors import DataError
from tfpipe.format.image_form import ImageForm


def take(source: Path, folder: Path, count: int, seed: int = 0, **options: object) -> Sample:
    plan = plan_shards(ShardConfig(str(source), "/nowhere/out", **options))
    return take_sample(plan, seed, count, (1, 4), str(folder))


def list_paths(sample: Sample) -> list[str]:
    return [image.path for shard in sample.plan.shards for image in sample.plan.read_lines(shard)]


def test_the_sample_depends_on_the_seed_alone(tmp_path: Path) -> None:
    source = write_files(tmp_path / "in", make_photos({"cat": 20, "dog": 20}))
    first, again, other = (take(source, tmp_path, 10, seed, num_shards=7) for seed in (1, 1, 2))
    assert list_paths(first) == list_paths(again) != list_paths(other)
    assert [len(set(list_paths(sample))) for sample in (first, again, other)] == [10, 10, 10]
    assert [shard.images for shard in first.plan.shards] == [1, 4, 1, 4]


@pytest.mark.parametrize("mode", [None, "w", "w:gz"])
def test_what_is_kept_is_a_whole_dataset(tmp_path: Path, mode: str | None) -> None:
    """The images of compressed archives are unpacked once, for every form."""
    photos = make_photos({"cat": 9, "dog": 9})
    archive = tmp_path / ("a.tar.gz" if mode == "w:gz" else "a.tar")
    source = write_files(tmp_path / "in", photos) if mode is None else write_tar(archive, photos, mode)
    sample = take(source, tmp_path / "sample", 12)
    config = ShardConfig(str(source), "/nowhere/out")
    costs = write_sample(config, sample, str(tmp_path / "kept"), 2, keep=True)
    assert sorted(image.stored_bytes > 0 for shard in costs for image in shard.images) == [True] * 12
    manifest = load_manifest(str(tmp_path / "kept"))
    assert manifest.splits["sample"].records == 12
    stored = read_images(tmp_path / "kept", "sample")
    assert stored == {path: photos[path] for path in list_paths(sample)}

    raw = ShardConfig(str(source), "/nowhere/out", form=ImageForm(encoding="raw", square=8))
    write_sample(raw, sample, str(tmp_path / "raw"), 2, keep=True)
    assert {len(image) for image in read_images(tmp_path / "raw", "sample").values()} == {8 * 8 * 3}


def test_what_is_not_kept_is_removed(tmp_path: Path) -> None:
    source = write_files(tmp_path / "in", make_photos({"cat": 3}))
    sample = take(source, tmp_path / "sample", 3)
    write_sample(ShardConfig(str(source), "/nowhere/out"), sample, str(tmp_path / "out"), 1)
    assert not list((tmp_path / "out").glob("*.tfrecord"))


def test_bad_images_are_left_out_however_many_there_are(tmp_path: Path) -> None:
    source = write_files(tmp_path / "in", {**make_photos({"cat": 1}), **{f"cat/bad{k}.jpg": b"bad" for k in range(20)}})
    config = ShardConfig(str(source), "/nowhere/out")
    write_sample(config, take(source, tmp_path / "sample", 21), str(tmp_path / "kept"), 1, keep=True)
    assert load_manifest(str(tmp_path / "kept")).splits["sample"].records == 1


def test_a_sample_without_a_good_image_is_an_error(tmp_path: Path) -> None:
    source = write_files(tmp_path / "in", {"cat/bad.jpg": b"bad"})
    sample, config = take(source, tmp_path / "sample", 1), ShardConfig(str(source), "/nowhere/out")
    with pytest.raises(DataError) as caught:
        write_sample(config, sample, str(tmp_path / "out"), 1, keep=True)
    assert str(caught.value) == (
        "One of 1 sampled images must be good, but all are bad, the first cat/bad.jpg: not an image: it begins like "
        "text."
    )
