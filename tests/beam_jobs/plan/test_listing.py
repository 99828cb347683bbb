"""What the planner asks a listing, of image files and of finished datasets."""

from dataclasses import replace

import pytest

from beam_jobs.plan.image_ref import ImageLocation, ImageRef
from beam_jobs.plan.image_table import ImageTable
from beam_jobs.plan.listing import DatasetListing, Listing
from beam_jobs.plan.merge_manifests import InputDatasets, MergedDatasets
from tfpipe.format.image_form import ImageForm
from tfpipe.format.schema import image_schema

FORM = ImageForm(resize_short=8)


@pytest.fixture
def files() -> Listing:
    refs = [ImageRef(f"{name}.jpg", 10, split="train", label=name[:3]) for name in ("cat1", "dog1", "cat2")]
    return Listing("pets", "/pets", ImageTable.from_refs(refs), ("ape", "cat", "dog"))


@pytest.fixture
def datasets() -> DatasetListing:
    schema = image_schema(labeled=True, boxes=False, box_labels=False)
    inputs = InputDatasets({}, {"encoding": "keep"}, reformed=False, changed={}, noticed={})
    merged = MergedDatasets("pets", ("cat", "dog"), schema, FORM, {"train": [2, 1]}, inputs)
    location = ImageLocation("pets/train-00000-of-00001.tfrecord", 0)
    refs = [ImageRef(f"pets/train:{k}", 10, location, split="train") for k in range(3)]
    return DatasetListing("pets", "", ImageTable.from_refs(refs), ("cat", "dog"), merged=merged)


def test_image_files_take_the_form_that_was_asked_for(files: Listing) -> None:
    assert files.choose_form(FORM) == FORM
    assert (files.datasets, files.keeps_order) == (None, False)


def test_datasets_bring_their_form(datasets: DatasetListing) -> None:
    assert datasets.choose_form(ImageForm()) == FORM
    assert (datasets.datasets, datasets.keeps_order) == (datasets.merged.datasets, True)


def test_the_schema_has_labels_where_the_images_have(files: Listing, datasets: DatasetListing) -> None:
    assert "image/class/label" in files.make_schema()
    assert "image/class/label" not in replace(files, label_names=()).make_schema()
    assert datasets.make_schema() == datasets.merged.schema


def test_classes_of_image_files_are_counted(files: Listing) -> None:
    assert files.count_classes("train", {"cat": 2, "dog": 1}, {}) == [0, 2, 1]


def test_classes_of_datasets_are_those_of_the_manifests_without_copies(datasets: DatasetListing) -> None:
    assert datasets.count_classes("train", {None: 3}, {}) == [2, 1]
    assert datasets.count_classes("train", {None: 1}, {0: 1, -1: 1}) == [1, 1]
