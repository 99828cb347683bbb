"""What datasets must have in common, and what they make together: on manifests alone."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from beam_jobs.plan.merge_manifests import InputDatasets, merge_manifests
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format.image_form import ImageForm
from tfpipe.format.manifest import ImageSizes, Manifest, ShardInfo, SplitInfo
from tfpipe.format.schema import FeatureSpec, image_schema

SIZES = ImageSizes(1, 2, 1.5, 1, 2, 1.5)


def manifest(place: str, labels: str = "cat dog", **fields: Any) -> Manifest:
    """Of two images of each class, in `train`."""
    names = tuple(labels.split())
    shard = ShardInfo("train-00000-of-00001.tfrecord", 2 * len(names), 1000, "0" * 64)
    split = SplitInfo("train", (shard,), {"JPEG": shard.records}, (2,) * len(names), SIZES)
    made = Manifest(
        name="pets",
        splits={"train": split},
        label_names=names,
        schema=image_schema(labelled=bool(names), boxes=False, box_labels=False),
        image=asdict(ImageForm()),
        fingerprint="f",
        tool_version="0",
        directory=place,
    )
    return replace(made, **fields)


def of(*manifests: Manifest, **changes: Any) -> Any:
    return merge_manifests({f"{k}": one for k, one in enumerate(manifests)}, changes)


def form(**options: Any) -> dict[str, Any]:
    return asdict(ImageForm(**options))


# Labels


def test_labels_keep_the_order_of_the_first() -> None:
    merged = of(manifest("/a", "dog cat"), manifest("/b", "ape cat dog"))
    assert merged.label_names == ("dog", "cat", "ape")
    assert [source.labels for source in merged.datasets.sources.values()] == [(0, 1), (2, 1, 0)]
    assert merged.class_counts == {"train": [4, 4, 2]}
    assert merged.name == "pets"


def test_left_out_images_are_not_counted() -> None:
    merged = of(manifest("/a")).leave_out([("train", 1), ("train", 1), ("train", -1)])
    assert merged.class_counts == {"train": [2, 0]}


def test_numbered_classes() -> None:
    assert of(manifest("/a", "0 1 2"), manifest("/b", "0 1 2")).label_names == ("0", "1", "2")
    for pair in (["0 1 2", "0 1"], ["0 1", "0 1 2"]):
        with pytest.raises(DataError) as caught:
            of(*(manifest(f"/{len(labels)}", labels) for labels in pair))
        assert "only numbers its" in str(caught.value)
    for one, other in (("0 1", "cat dog"), ("cat dog", "0 1")):
        with pytest.raises(DataError) as caught:
            of(manifest("/a", one), manifest("/b", other))
        place, beside = ("/a", "/b") if one == "0 1" else ("/b", "/a")
        assert str(caught.value) == (
            f"Labels unite by name, but {place} only numbers its 2 classes, and {beside} has 2 others. Name them with "
            "`tfpipe shard --labels`."
        )


def test_labels_without_a_count_of_classes() -> None:
    one = manifest("/a", label_names=())
    assert of(one).label_names == ()
    with pytest.raises(DataError, match=r"^Labels unite by name, but /a does not say how many classes it has\.$"):
        of(one, one)


def test_datasets_without_labels() -> None:
    merged = of(manifest("/a", ""), manifest("/b", ""))
    assert (merged.label_names, merged.class_counts) == ((), {"train": []})


# Features


def with_features(place: str, *specs: FeatureSpec, **kinds: bool) -> Manifest:
    kinds = {"boxes": False, "box_labels": False, **kinds}
    return manifest(place, schema=image_schema(labelled=True, extra=specs, **kinds))


def test_a_feature_that_one_lacks() -> None:
    for pair in ((manifest("/a"), with_features("/b", boxes=True)), (with_features("/b", boxes=True), manifest("/a"))):
        with pytest.raises(DataError) as caught:
            of(*pair)
        assert str(caught.value) == (
            "Every dataset must have the same features, but /a has no 'image/object/bbox/xmin', which /b has."
        )


def test_a_feature_of_two_kinds() -> None:
    number, text = FeatureSpec("age", "int64", ()), FeatureSpec("age", "bytes", ())
    with pytest.raises(DataError) as caught:
        of(with_features("/a", number), with_features("/b", text))
    assert str(caught.value) == ("Feature 'age' must be of one kind, but is one int64 in /a and one bytes in /b.")
    with pytest.raises(DataError, match="but is one int64 in /a and a list of int64 in /b"):
        of(with_features("/a", number), with_features("/b", replace(number, shape=(2,))))


def test_lists_of_different_lengths() -> None:
    pair = [with_features(f"/{n}", FeatureSpec("point", "float", (n,), "where")) for n in (2, 3)]
    assert of(*pair).schema["point"] == FeatureSpec("point", "float", None, "where")
    assert of(pair[0], pair[0]).schema == pair[0].schema


# Image forms


def test_one_dataset_as_it_is() -> None:
    one = manifest("/a", image=form(resize_short=256) | {"later": 1}, changed={"resized": 3}, noticed={"animated": 1})
    merged = of(one)
    assert merged.schema == one.schema
    assert merged.form == ImageForm(resize_short=256)
    datasets = merged.datasets
    assert (datasets.image, datasets.reformed) == (one.image, False)
    assert (datasets.changed, datasets.noticed) == ({"resized": 3}, {"animated": 1})


@pytest.mark.parametrize(
    ("before", "changes", "after", "made_from"),
    [
        ({}, {"resize_short": 64}, {"resize_short": 64}, None),
        ({"quality": 80}, {"square": 64}, {"square": 64, "quality": 80}, None),
        (
            {"resize_short": 256},
            {"square": 64, "encoding": "raw"},
            {"square": 64, "encoding": "raw"},
            "encoding keep, resize_short 256, quality 95",
        ),
        (
            {"square": 64, "encoding": "raw", "quality": 80},
            {"encoding": "jpeg", "resize_short": 32, "quality": 90},
            {"encoding": "jpeg", "resize_short": 32, "quality": 90},
            "encoding raw, square 64, quality 80",
        ),
    ],
)
def test_another_form(
    before: dict[str, Any], changes: dict[str, Any], after: dict[str, Any], made_from: str | None
) -> None:
    one = manifest("/a", image=form(**before), noticed={"animated": 1, "name_differs": 2})
    merged = of(one, **changes)
    assert merged.form == ImageForm(**after)
    assert merged.datasets.image == form(**after) | ({"made_from": made_from} if made_from else {})
    assert merged.datasets.reformed
    assert merged.datasets.noticed == {"name_differs": 2}


def test_a_history_of_forms() -> None:
    one = manifest("/a", image=form(square=64) | {"made_from": "encoding keep, resize_short 256, quality 95"})
    assert of(one).datasets.image["made_from"] == "encoding keep, resize_short 256, quality 95"
    assert of(one, square=32).datasets.image["made_from"] == (
        "encoding keep, resize_short 256, quality 95; encoding keep, square 64, quality 95"
    )
    both = of(one, replace(one, directory="/b"))
    assert both.datasets.image["made_from"] == "encoding keep, resize_short 256, quality 95"


def test_a_form_that_is_there_already_changes_nothing() -> None:
    one = manifest("/a", image=form(square=64, quality=80))
    merged = of(one, square=64)
    assert (merged.datasets.reformed, merged.datasets.image) == (False, one.image)


@pytest.mark.parametrize(
    ("before", "changes", "message"),
    [
        (
            {"resize_short": 64},
            {"resize_short": 65},
            "The images were reduced to 64 pixels and cannot be enlarged again: --resize-short must be at most that, "
            "got 65.",
        ),
        (
            {"square": 64},
            {"square": 100},
            "The images were reduced to 64 pixels and cannot be enlarged again: --square must be at most that, got "
            "100.",
        ),
        (
            {"resize_short": 64},
            {"resize_short": 64, "quality": 50},
            "--quality is that of images encoded anew, and none would be. Give --encoding, --resize-short or --square "
            "too, and another than the images have.",
        ),
        (
            {},
            {"resize_short": 64, "square": 64},
            "`square` and `resize_short` exclude each other. Give one of them.",
        ),
        (
            {"encoding": "raw", "square": 64},
            {"resize_short": 32},
            "`encoding` raw needs `square`: all raw images have the same size.",
        ),
    ],
)
def test_a_form_that_cannot_be(before: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        of(manifest("/a", image=form(**before)), **changes)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("one", "other", "which", "options"),
    [
        ({}, {"resize_short": 64}, "/a (encoding keep)", "--resize-short 64"),
        ({"resize_short": 64}, {"resize_short": 32}, "/a (encoding keep, resize_short 64)", "--resize-short 32"),
        ({"square": 64}, {"resize_short": 32}, "/a (encoding keep, square 64)", "--square 32"),
        ({"encoding": "jpeg"}, {}, "/b (encoding keep)", "--encoding jpeg"),
        ({"encoding": "raw", "square": 9}, {"square": 9}, "/b (encoding keep, square 9)", "--encoding raw"),
        ({"encoding": "raw", "square": 9}, {}, "/b (encoding keep)", "--encoding raw --square 9"),
    ],
)
def test_two_forms(one: dict[str, Any], other: dict[str, Any], which: str, options: str) -> None:
    with pytest.raises(DataError) as caught:
        of(manifest("/a", image=form(**one)), manifest("/b", image=form(**other)))
    assert str(caught.value) == (
        f"The images of all datasets must have one form, but those of {which} are not like the others. Bring them into "
        f"one first: tfpipe reshard {which.partition(' ')[0]} OUTPUT {options}"
    )
    # What the sentence says can be done.
    reformed = dict(zip(options.replace("--", "").replace("-", "_").split()[::2], options.split()[1::2], strict=True))
    changes = {name: int(value) if value.isdecimal() else value for name, value in reformed.items()}
    of(manifest(which[:2], image=form(**(one if which[1] == "a" else other))), **changes)


def test_what_may_differ() -> None:
    image = [form(quality=80, reencode_progressive=True, max_pixels=10), form(quality=90, max_pixels=20)]
    merged = of(*(manifest(f"/{k}", image=one) for k, one in enumerate(image)))
    assert merged.datasets.image == form(quality=80, max_pixels=20)
    assert not merged.datasets.reformed


def test_a_form_that_nobody_wrote() -> None:
    with pytest.raises(FormatError, match=r"^The manifest's image form cannot be used: `encoding` must be keep, "):
        of(manifest("/a", image={"encoding": "gif"}))


# What travels to the workers


def test_records_come_back_from_json() -> None:
    import json

    records = of(manifest("/a"), manifest("/b", "dog ape")).datasets
    assert InputDatasets.from_json(json.loads(json.dumps(asdict(records)))) == records


def test_where_a_dataset_lies_does_not_shape_the_result_but_its_manifest_does() -> None:
    one = manifest("/a")
    assert of(one).datasets.get_fingerprint_facts() == of(replace(one, directory="/b")).datasets.get_fingerprint_facts()
    assert (
        of(one).datasets.get_fingerprint_facts() != of(replace(one, fingerprint="g")).datasets.get_fingerprint_facts()
    )
