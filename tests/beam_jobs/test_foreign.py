"""TFRecords that another program wrote as input: their images, classes and other features in a dataset of tfpipe."""

import gzip
import io
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from beam_jobs.config import ShardConfig
from beam_jobs.estimate import estimate_job
from beam_jobs.shard_job import plan_shards
from tests.beam_jobs.datasets import join_datasets, make_dataset, read_quarantine, read_records, read_tree
from tests.beam_jobs.images import make_exif, make_jpeg, make_photos, make_png, save_image, write_files
from tests.flipped_bit import flip_bit
from tests.refusals import refusal
from tfpipe.dataset.load import load_manifest
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format.image_form import ImageForm
from tfpipe.integrity.foreign.index import IndexConfig, index
from tfpipe.integrity.verify import VerifyConfig, verify
from tfpipe.pipeline.build import build_dataset

ONCE = PipelineConfig(batch_size=1, training=False, image_size=16, extra_features=("id",))
OWN_FEATURES = (
    *("image/encoded", "image/format", "image/height", "image/width", "image/channels", "image/colorspace"),
    *("image/filename", "image/sha256", "image/class/label", "image/class/text"),
)


@pytest.fixture(scope="module", params=["", "GZIP"])
def imagenet(request, foreign: Any, tmp_path_factory) -> Path:
    """Returns 40 records for training in 4 files, one of them empty, and 7 for validation; labels from 1."""
    folder: Path = foreign.imagenet(tmp_path_factory.mktemp("foreign") / "imagenet", request.param)
    index(IndexConfig(str(folder)))
    return folder


def describe(foreign: Any, folder: Path, records: list[dict[str, object]], **options: Any) -> Path:
    foreign.write(folder / "train-00000-of-00001", records)
    index(IndexConfig(str(folder), **options))
    return folder


def read_batches(folder: Path, split: str, config: PipelineConfig = ONCE) -> dict[Any, dict[str, Any]]:
    """Returns what a pipeline gives for each record, by the record's feature `id`."""
    batches: Iterator[Mapping[str, Any]] = build_dataset(load_manifest(str(folder)), split, config).as_numpy_iterator()
    return {batch["id"][0]: {name: value[0] for name, value in batch.items()} for batch in batches}


def check_same_batches(before: Path, after: Path, split: str = "train", config: PipelineConfig = ONCE) -> None:
    old, new = (read_batches(folder, split, config) for folder in (before, after))
    assert old.keys() == new.keys()
    for key, batch in old.items():
        assert new[key].keys() == batch.keys()
        for name, value in batch.items():
            np.testing.assert_array_equal(new[key][name], value, err_msg=f"{name} of {key}")


def check_undamaged(folder: Path) -> None:
    assert verify(str(folder), VerifyConfig(workers=0)).damaged == []


def test_the_pipeline_gives_the_same(imagenet: Path, tmp_path: Path) -> None:
    manifest = join_datasets([imagenet], tmp_path / "out", num_shards=2)
    check_undamaged(tmp_path / "out")
    for split in ("train", "validation"):
        check_same_batches(imagenet, tmp_path / "out", split)
    before = load_manifest(str(imagenet))
    assert manifest.foreign is None
    assert manifest.label_names == before.label_names == ("1", "2", "3")
    assert manifest.schema.names == (*OWN_FEATURES, "id")
    for name, split in before.splits.items():
        after = manifest.splits[name]
        assert (after.records, after.formats) == (split.records, split.formats)
        assert (after.class_counts, after.sizes) == (split.class_counts, split.sizes)
    config = ShardConfig(str(imagenet), str(tmp_path / "other"), datasets=(str(imagenet),), workers=1)
    estimate = estimate_job(config, plan_shards(config), 0.0, ())
    assert (estimate and (estimate.sampled, estimate.bad)) == (None if before.compression else (47, 0))
    assert (manifest.changed, manifest.quarantined, manifest.image) == ({}, 0, ImageForm().to_json())
    assert os.listdir(tmp_path) == ["out"]
    assert not (tmp_path / "out" / ".tfpipe").exists()


def test_a_record_keeps_its_bytes_and_its_name(imagenet: Path, foreign: Any, tmp_path: Path) -> None:
    join_datasets([imagenet], tmp_path / "out", num_shards=1, shuffle=False)
    old, new = foreign.records(0, 40, base=1), read_records(tmp_path / "out")
    assert [record["image/encoded"] for record in new] == [[record["image/encoded"]] for record in old]
    assert [record["image/filename"] for record in new] == [[record["image/filename"]] for record in old]
    assert [record["image/class/label"].tolist() for record in new] == [
        [record["image/class/label"] - 1] for record in old
    ]
    assert [record["image/class/text"] for record in new] == [[b"%d" % record["image/class/label"]] for record in old]
    assert [record["id"].tolist() for record in new] == [[k] for k in range(40)]


def test_what_a_plain_decoder_reads_stays(foreign: Any, tmp_path: Path) -> None:
    images = {
        "turned": make_jpeg(1, (24, 16), exif=make_exif(6)),
        "transparent": save_image(Image.fromarray(np.arange(4 * 15 * 16, dtype=np.uint8).reshape(15, 16, 4)), "PNG"),
        "16_bit": save_image(Image.fromarray(np.arange(15 * 16, dtype=np.uint16).reshape(15, 16) * 257), "PNG"),
        "progressive": make_jpeg(3, (24, 16), progressive=True),
    }
    records = [{"image": data, "label": k, "id": k} for k, data in enumerate(images.values())]
    source = describe(foreign, tmp_path / "in", records)
    manifest = join_datasets([source], tmp_path / "out", shuffle=False)
    assert [record["image/encoded"][0] for record in read_records(tmp_path / "out")] == list(images.values())
    assert (manifest.changed, manifest.noticed) == ({}, dict.fromkeys(sorted(images), 1))
    check_undamaged(tmp_path / "out")
    check_same_batches(source, tmp_path / "out")


def test_other_formats_become_png(foreign: Any, tmp_path: Path) -> None:
    picture = Image.open(io.BytesIO(make_png(1, (24, 16))))
    kinds = ("GIF", "BMP", "PNG")
    records = [{"image": save_image(picture, kind), "label": 0, "id": k} for k, kind in enumerate(kinds)]
    source = describe(foreign, tmp_path / "in", records)
    manifest = join_datasets([source], tmp_path / "out")
    assert (manifest.changed, manifest.splits["train"].formats) == ({"bmp_to_png": 1, "gif_to_png": 1}, {"PNG": 3})
    check_same_batches(source, tmp_path / "out")


def test_features_of_every_kind(foreign: Any, tmp_path: Path) -> None:
    records = [
        {
            "image": make_jpeg(k, (24, 16)),
            "label": 7 + k,
            "id": k,
            "boxes/xmin": [k / 8] * k,
            "pair": [k, k + 1],
            "words": [b"w%d" % i for i in range(k + 1)],
            **({"rare": 0.5} if k == 2 else {}),
        }
        for k in range(3)
    ]
    source = describe(foreign, tmp_path / "in", records)
    manifest = join_datasets([source], tmp_path / "out", shuffle=False)
    shapes = {spec.name: (spec.dtype, spec.shape) for spec in manifest.schema.features[len(OWN_FEATURES) :]}
    assert shapes == {
        "boxes/xmin": ("float", None),
        "id": ("int64", ()),
        "pair": ("int64", (2,)),
        "rare": ("float", None),
        "words": ("bytes", None),
    }
    check_undamaged(tmp_path / "out")
    extra = PipelineConfig(**{**vars(ONCE), "extra_features": tuple(shapes), "max_boxes": 4})
    check_same_batches(source, tmp_path / "out", config=extra)
    new = read_records(tmp_path / "out")
    assert [list(record["rare"]) for record in new] == [[], [], [0.5]]
    assert [record["image/filename"] for record in new] == [[f"in/train:{k}".encode()] for k in range(3)]


def test_an_image_without_a_class(foreign: Any, tmp_path: Path) -> None:
    records = [{"image": make_jpeg(k, (24, 16)), "label": k - 1, "id": k} for k in range(3)]
    source = describe(foreign, tmp_path / "in", records)
    join_datasets([source], tmp_path / "out")
    manifest = join_datasets([tmp_path / "out"], tmp_path / "again", shuffle=False)
    assert (manifest.label_names, manifest.splits["train"].class_counts) == (("0", "1"), (1, 1))
    check_undamaged(tmp_path / "again")
    check_same_batches(source, tmp_path / "again")
    by_id = {int(record["id"][0]): record for record in read_records(tmp_path / "again")}
    assert [(by_id[k]["image/class/label"].tolist(), by_id[k]["image/class/text"]) for k in range(3)] == [
        ([-1], [b""]),
        ([0], [b"0"]),
        ([1], [b"1"]),
    ]


def test_without_labels_and_with_restart_markers(foreign: Any, tmp_path: Path) -> None:
    records = [{"image": make_jpeg(k, restart_marker_blocks=2), "id": k} for k in range(4)]
    source = describe(foreign, tmp_path / "in", records)
    manifest = join_datasets([source], tmp_path / "out", form_changes={"seekable": True})
    assert (manifest.label_names, manifest.schema.names) == ((), (*OWN_FEATURES[:-2], "id"))
    assert manifest.splits["train"].seekable
    assert manifest.image["seekable"] is True
    check_same_batches(source, tmp_path / "out")


def test_smaller_images_lie_as_before(foreign: Any, tmp_path: Path) -> None:
    source = describe(foreign, tmp_path / "in", [{"image": make_jpeg(1, (48, 32), exif=make_exif(6)), "label": 0}])
    for before, after, side in ((source, "copy", None), (source, "out", 16), (tmp_path / "copy", "again", 16)):
        join_datasets([before], tmp_path / after, form_changes={"resize_short": side} if side else {})
    for name in ("out", "again"):  # the box of a foreign record would not turn with its image
        (record,) = read_records(tmp_path / name)
        assert Image.open(io.BytesIO(record["image/encoded"][0])).size == (24, 16)
        assert (record["image/height"].tolist(), record["image/width"].tolist()) == ([16], [24])


@pytest.mark.parametrize(
    ("name", "why"),
    [("imagee", ""), *((name, ", which every dataset of images needs") for name in ("image", "label", "image/sha256"))],
)
def test_a_feature_that_must_stay(foreign: Any, tmp_path: Path, name: str, why: str) -> None:
    records = [{"image": make_jpeg(0), "label": 0, "id": 3, "age": 0.5, "image/height": 3}]
    source = describe(foreign, tmp_path / "in", records)
    message = f"`drop_features` must name features that can be left out (age, id), got {name!r}{why}."
    assert refusal(ConfigError, join_datasets, [source], tmp_path / "out", drop_features=("age", name)) == message


@pytest.mark.parametrize(
    ("extra", "must"),
    [
        ("image/encoded", "differ from 'image/encoded', and neither hold the other at a '/', where readers nest names"),
        ("image/class/label", "differ from 'image/class/label', "),
        ("image", "differ from 'image/class/text', "),
        ("a//b", "have text on both sides of each '/', got 'a//b' in {place}. Leave it out with `drop_features`."),
    ],
)
def test_names_that_tfpipe_uses(foreign: Any, tmp_path: Path, extra: str, must: str) -> None:
    records = [{"jpeg": make_jpeg(k), "label": k, "id": k, extra: 3} for k in range(2)]
    source = describe(foreign, tmp_path / "in", records, image_key="jpeg", label_key="label")
    message = f"The name of a feature must {must}".format(place=source)
    assert refusal(DataError, join_datasets, [source], tmp_path / "out").startswith(message)
    assert join_datasets([source], tmp_path / "out", drop_features=(extra,)).schema.names == (*OWN_FEATURES, "id")
    check_undamaged(tmp_path / "out")
    check_same_batches(source, tmp_path / "out")


def test_a_class_that_records_lack(foreign: Any, tmp_path: Path) -> None:
    source = describe(foreign, tmp_path / "in", [{"image/class/label": 0, "id": 1}, {"id": 2}])
    assert refusal(DataError, join_datasets, [source], tmp_path / "out") == (
        "The class 'image/class/label' must be one number in every record, -1 for none, but it is missing in 1 of 2 "
        f"records of {source}. Write it into all and index them again, or drop all labels with `drop_features`."
    )


def test_merged_with_a_dataset_of_tfpipe(foreign: Any, tmp_path: Path) -> None:
    make_dataset(write_files(tmp_path / "photos", make_photos({"cat": 3, "dog": 2})), tmp_path / "own")
    records = [{"image": make_jpeg(50 + k), "label": k + 1, "id": k} for k in range(2)]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "labels.txt").write_text("dog\nowl\n")
    source = describe(foreign, tmp_path / "in", records)
    manifest = join_datasets([tmp_path / "own", source], tmp_path / "out", drop_features=("id",))
    assert (manifest.label_names, manifest.splits["train"].class_counts) == (("cat", "dog", "owl"), (3, 3, 1))
    check_undamaged(tmp_path / "out")
    make_dataset(write_files(tmp_path / "photos-2", make_photos({"cat": 3})), tmp_path / "own-2")
    source = describe(foreign, tmp_path / "in-2", [{"image": make_jpeg(k), "label": k + 1} for k in range(2)])
    assert refusal(DataError, join_datasets, [tmp_path / "own-2", source], tmp_path / "out") == (
        f"Labels are merged by name, but {source} only numbers its 2 classes, and {tmp_path}/own-2 has 1 others. Name "
        "them with a file labels.txt and `tfpipe index`."
    )


def test_copies_are_dropped_unless_the_files_are_compressed(imagenet: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(imagenet, tmp_path / "copy"))
    if load_manifest(str(imagenet)).compression:
        assert refusal(ConfigError, join_datasets, [imagenet, other], tmp_path / "out", drop_duplicates=True) == (
            "`drop_duplicates` reads some images alone, and imagenet/train-00000-of-00004 is compressed as a whole. "
            "Uncompress it first; TFRecords with `tfpipe reshard`."
        )
        return
    manifest = join_datasets([imagenet, other], tmp_path / "out", drop_duplicates=True)
    assert (manifest.splits["train"].records, manifest.duplicates.dropped) == (40, 47)


def test_a_damaged_record_is_listed(foreign: Any, tmp_path: Path) -> None:
    source = foreign.imagenet(tmp_path / "in")
    index(IndexConfig(str(source)))
    path = source / "train-00001-of-00004"
    flip_bit(path, path.stat().st_size // 2)
    manifest = join_datasets([source], tmp_path / "out")
    assert (manifest.quarantined, manifest.splits["train"].records) == (1, 39)
    (line,) = read_quarantine(tmp_path / "out")
    assert "train-00001-of-00004: Record at byte" in line["reason"]
    check_undamaged(tmp_path / "out")
    assert refusal(DataError, join_datasets, [source], tmp_path / "none", max_bad=0).endswith(
        "; bring the files back as they were, or allow more with `max_bad`."
    )
    whole = make_jpeg(1, (64, 64))
    records = [{"image": whole[: len(whole) // 2] if k == 1 else make_jpeg(k), "label": 0} for k in range(3)]
    manifest = join_datasets([describe(foreign, tmp_path / "cut", records)], tmp_path / "other")
    assert (manifest.quarantined, manifest.splits["train"].records) == (1, 2)


def test_files_that_changed_since(imagenet: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(imagenet, tmp_path / "in"))
    (source / "train-00000-of-00004").unlink()
    message = f"{source}/train-00000-of-00004 is missing. If it was changed on purpose, run `tfpipe index` again."
    assert refusal(FormatError, join_datasets, [source], tmp_path / "out") == message


def test_a_compressed_file_that_is_damaged(foreign: Any, tmp_path: Path) -> None:
    source = foreign.imagenet(tmp_path / "in", "GZIP")
    index(IndexConfig(str(source)))
    path = source / "train-00000-of-00004"
    data = path.read_bytes()
    path.write_bytes(data[:-20] + bytes(20))
    assert refusal(FormatError, join_datasets, [source], tmp_path / "out").startswith(f"{path}: Record ")
    assert not (tmp_path / "out").exists()
    path.write_bytes(gzip.compress(gzip.decompress(data), compresslevel=0)[: len(data)])
    with pytest.raises(FormatError, match=r"cannot be unpacked: the GZIP data ends too early\.$"):
        join_datasets([source], tmp_path / "out")


def test_the_output_may_not_lie_among_the_files(foreign: Any, tmp_path: Path) -> None:
    files = tmp_path / "files"
    foreign.write(files / "train-00000-of-00001.tfrecord", foreign.records(0, 3))  # the name of a shard of tfpipe
    index(IndexConfig(str(files), output=str(tmp_path / "described")))
    for output in (files, files / "out"):
        message = f"The output must not lie inside the input, got {output} in {files}. Choose another directory."
        assert refusal(ConfigError, join_datasets, [tmp_path / "described"], output, overwrite=True) == message
    assert [*read_tree(files)] == ["train-00000-of-00001.tfrecord"]
    assert join_datasets([tmp_path / "described"], tmp_path / "out").splits["train"].records == 3
