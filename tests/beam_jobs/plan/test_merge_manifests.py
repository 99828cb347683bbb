"""The common ground that datasets need, and the dataset that they make together, on manifests alone."""

from dataclasses import replace
from typing import Any

import pytest

from beam_jobs.plan.merge_manifests import MergedDatasets, merge_manifests
from tests.refusals import refusal
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format.image_form import ImageForm
from tfpipe.format.manifest import ImageSizes, Manifest, ShardInfo, SplitInfo
from tfpipe.format.schema import FeatureSpec, image_schema

SIZES = ImageSizes(1, 2, 1.5, 1, 2, 1.5)


def make_manifest(place: str, labels: str = "cat dog", **fields: Any) -> Manifest:
    """Returns the manifest of a dataset with two images of each class, in the split `train`."""
    names = tuple(labels.split())
    shard = ShardInfo("train-00000-of-00001.tfrecord", 2 * len(names), 1000, "0" * 64)
    split = SplitInfo("train", (shard,), {"JPEG": shard.records}, (2,) * len(names), SIZES)
    manifest = Manifest(
        name="pets",
        splits={"train": split},
        label_names=names,
        schema=image_schema(labeled=bool(names), boxes=False, box_labels=False),
        image=ImageForm().to_json(),
        fingerprint="f",
        tool_version="0",
        directory=place,
    )
    return replace(manifest, **fields)


def merge(*manifests: Manifest, **changes: Any) -> MergedDatasets:
    return merge_manifests({str(k): manifest for k, manifest in enumerate(manifests)}, changes)


def make_form(**options: Any) -> dict[str, Any]:
    return ImageForm(**options).to_json()


def test_classes_with_numbers_alone_are_not_merged_with_others() -> None:
    assert merge(make_manifest("/a", "0 1 2"), make_manifest("/b", "0 1 2")).label_names == ("0", "1", "2")
    for pair in (["0 1 2", "0 1"], ["0 1", "0 1 2"]):
        manifests = [make_manifest(f"/{len(labels)}", labels) for labels in pair]
        assert "only numbers its" in refusal(DataError, merge, *manifests)
    numbered, named = make_manifest("/a", "0 1"), make_manifest("/b", "cat dog")
    for first, second in ((numbered, named), (named, numbered)):
        assert refusal(DataError, merge, first, second) == (
            "Labels are merged by name, but /a only numbers its 2 classes, and /b has 2 others. Name them with `tfpipe "
            "shard --labels`."
        )


def test_labels_without_class_names_are_not_merged() -> None:
    dataset = make_manifest("/a", label_names=())
    assert merge(dataset).label_names == ()
    with pytest.raises(DataError, match=r"^Labels are merged by name, but /a does not say how many classes it has\.$"):
        merge(dataset, dataset)
    merged = merge(make_manifest("/a", ""), make_manifest("/b", ""))
    assert (merged.label_names, merged.class_counts) == ((), {"train": []})


def make_manifest_with(place: str, *specs: FeatureSpec, **kinds: bool) -> Manifest:
    kinds = {"boxes": False, "box_labels": False, **kinds}
    return make_manifest(place, schema=image_schema(labeled=True, extra=specs, **kinds))


def test_a_feature_that_one_dataset_lacks_is_refused() -> None:
    for pair in (
        (make_manifest("/a"), make_manifest_with("/b", boxes=True)),
        (make_manifest_with("/b", boxes=True), make_manifest("/a")),
    ):
        assert refusal(DataError, merge, *pair) == (
            "Every dataset must have the same features, but /a has no 'image/object/bbox/xmin', which /b has. Leave it "
            "out with `drop_features`."
        )


def test_a_feature_of_two_kinds_is_refused() -> None:
    number = FeatureSpec("age", "int64", ())
    for other, kind in (
        (FeatureSpec("age", "bytes", ()), "one bytes"),
        (replace(number, shape=(2,)), "a list of int64"),
    ):
        assert refusal(DataError, merge, make_manifest_with("/a", number), make_manifest_with("/b", other)) == (
            f"Feature 'age' must be of one kind, got one int64 in /a and {kind} in /b. Leave it out with "
            "`drop_features`."
        )


def test_lists_of_different_lengths_get_an_open_shape() -> None:
    pair = [make_manifest_with(f"/{n}", FeatureSpec("point", "float", (n,), "where")) for n in (2, 3)]
    assert merge(*pair).schema["point"] == FeatureSpec("point", "float", None, "where")
    assert merge(pair[0], pair[0]).schema == pair[0].schema


RAW = {"square": 64, "encoding": "raw"}
SMALL = {"encoding": "jpeg", "resize_short": 32, "quality": 90}


@pytest.mark.parametrize(
    ("before", "changes", "after", "made_from"),
    [
        ({}, {"resize_short": 64}, {"resize_short": 64}, None),
        ({"quality": 80}, {"square": 64}, {"square": 64, "quality": 80}, None),
        ({"resize_short": 256}, RAW, RAW, "encoding keep, resize_short 256, quality 95"),
        ({**RAW, "quality": 80}, SMALL, SMALL, "encoding raw, square 64, quality 80"),
    ],
)
def test_a_change_of_the_form_is_recorded(before, changes, after, made_from):
    dataset = make_manifest("/a", image=make_form(**before), noticed={"animated": 1, "name_differs": 2})
    merged = merge(dataset, **changes)
    assert merged.form == ImageForm(**after)
    assert merged.datasets.image == make_form(**after) | ({"made_from": made_from} if made_from else {})
    assert merged.datasets.reformed
    assert merged.datasets.noticed == {"name_differs": 2}


def test_the_history_of_forms_is_kept() -> None:
    made_from = "encoding keep, resize_short 256, quality 95"
    dataset = make_manifest("/a", image=make_form(square=64) | {"made_from": made_from})
    for merged in (merge(dataset), merge(dataset, replace(dataset, directory="/b"))):
        assert merged.datasets.image["made_from"] == made_from
    dataset = make_manifest("/a", image=make_form(square=64, quality=80))
    merged = merge(dataset, square=64)
    assert (merged.datasets.reformed, merged.datasets.image) == (False, dataset.image)


REDUCED = "The images were reduced to 64 pixels and cannot be enlarged again:"


@pytest.mark.parametrize(
    ("before", "changes", "message"),
    [
        ({"resize_short": 64}, {"resize_short": 65}, f"{REDUCED} `resize_short` must be at most that, got 65."),
        ({"square": 64}, {"square": 100}, f"{REDUCED} `square` must be at most that, got 100."),
        (
            {"resize_short": 64},
            {"resize_short": 64, "quality": 50},
            "`quality` is for images that are encoded again, and none would be. Change `encoding`, `resize_short` or "
            "`square` too.",
        ),
    ],
)
def test_a_form_that_cannot_be_is_refused(before: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    assert refusal(ConfigError, merge, make_manifest("/a", image=make_form(**before)), **changes) == message


@pytest.mark.parametrize(
    ("first", "second", "shown"),
    [
        ({}, {"resize_short": 64}, "/a are encoding keep, and those of /b encoding keep, resize_short 64"),
        ({"square": 64}, {"square": 32}, "/a are encoding keep, square 64, and those of /b encoding keep, square 32"),
        ({"encoding": "jpeg"}, {}, "/a are encoding jpeg, and those of /b encoding keep"),
    ],
)
def test_two_forms_are_refused(first: dict[str, Any], second: dict[str, Any], shown: str) -> None:
    pair = make_manifest("/a", image=make_form(**first)), make_manifest("/b", image=make_form(**second))
    assert refusal(DataError, merge, *pair) == (
        f"The images of all datasets must have one form, but those of {shown}. Bring them into one first with `tfpipe "
        "reshard`."
    )


def test_quality_and_limits_may_differ() -> None:
    images = [make_form(quality=80, reencode_progressive=True, max_pixels=10), make_form(quality=90, max_pixels=20)]
    merged = merge(*(make_manifest(f"/{k}", image=image) for k, image in enumerate(images)))
    assert merged.datasets.image == make_form(quality=80, max_pixels=20)
    assert not merged.datasets.reformed
    with pytest.raises(FormatError, match=r"^The manifest's image form cannot be used: `encoding` must be keep, "):
        merge(make_manifest("/a", image={"encoding": "gif"}))
