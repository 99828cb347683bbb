"""The records of finished datasets as a source of records."""

from pathlib import Path
from typing import Any

import pytest

from beam_jobs.config import ShardConfig
from beam_jobs.make_plan import plan_shards
from beam_jobs.plan.image_ref import PlannedImage
from beam_jobs.shards.dataset_records import DatasetRecords, identify
from beam_jobs.shards.plan_file import make_plan_header
from beam_jobs.shards.record import RejectedImage
from tests.beam_jobs.datasets import make_dataset, read_payloads
from tests.beam_jobs.images import make_photos, write_files
from tfpipe.format.example import decode_example


@pytest.fixture(scope="module")
def datasets(tmp_path_factory) -> tuple[Path, Path]:
    """Returns a dataset of cats and dogs, and one of apes and cats, each in the order of the paths."""
    folder = tmp_path_factory.mktemp("datasets")
    for name, counts in {"first": {"cat": 2, "dog": 1}, "second": {"ape": 1, "cat": 1}}.items():
        write_files(folder / name, make_photos(counts, seed=len(name)))
        make_dataset(folder / name, folder / f"{name}-dataset", shuffle=False)
    return folder / "first-dataset", folder / "second-dataset"


def open_records(datasets: tuple[Path, Path], **options: Any) -> tuple[DatasetRecords, list[PlannedImage]]:
    paths = tuple(map(str, datasets))
    config = ShardConfig("datasets", "/nowhere", datasets=paths, shuffle=False, num_shards=1, **options)
    plan = plan_shards(config)
    header = make_plan_header(config, plan)
    assert header.records is not None
    return DatasetRecords(header, header.records), list(plan.read_lines(plan.shards[0]))


def test_records_of_the_first_dataset_are_copied_byte_for_byte(datasets: tuple[Path, Path]) -> None:
    source, images = open_records(datasets)
    assert [source.read(image).payload for image in images[:3]] == read_payloads(datasets[0])


def test_labels_of_the_others_become_those_of_the_same_name(datasets: tuple[Path, Path]) -> None:
    source, images = open_records(datasets)
    records = [source.read(image) for image in images[3:]]
    assert [record.features["image/class/label"] for record in records] == [2, 0]
    for record, payload in zip(records, read_payloads(datasets[1]), strict=True):
        features, old_features = decode_example(record.payload), decode_example(payload)
        assert features["image/encoded"] == old_features["image/encoded"]
        assert features["image/class/text"] == old_features["image/class/text"]
        assert features["image/class/label"] == record.features["image/class/label"]


def test_an_image_in_another_form(datasets: tuple[Path, Path]) -> None:
    source, images = open_records(datasets, form_changes={"resize_short": 8})
    (image,) = source.read(images[0]).images
    assert (image.height, image.width, image.changed) == (8, 12, ("resized",))
    assert source.image_form["resize_short"] == 8


def test_a_record_that_is_not_where_it_was_planned(datasets: tuple[Path, Path]) -> None:
    source, images = open_records(datasets)
    with pytest.raises(RejectedImage, match=r"^train-00000-of-00001\.tfrecord: Record at byte 0 ") as caught:
        source.read(images[0]._replace(size=images[0].size + 1))
    assert (caught.value.kind, caught.value.data) == ("unreadable", b"")


def test_an_image_is_identified_by_its_original_and_its_new_label(datasets: tuple[Path, Path]) -> None:
    source, images = open_records(datasets, form_changes={"resize_short": 8})
    record = source.read(images[3])
    assert identify(source.records, images[3]) == (record.sha256, 2)
