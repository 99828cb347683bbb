"""Finished datasets as input: the same records in other shards, in another form, or of several datasets in one."""

import io
import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from beam_jobs import shard_job
from beam_jobs.config import ShardConfig
from beam_jobs.shard_job import plan_shards
from tests.beam_jobs.datasets import (
    join_datasets,
    make_dataset,
    make_seekable_dataset,
    make_seekable_photos,
    read_images,
    read_payloads,
    read_quarantine,
    read_records,
    read_tree,
)
from tests.beam_jobs.images import make_exif, make_jpeg, make_photos, make_png, write_files
from tests.flipped_bit import flip_bit
from tests.refusals import refusal
from tfpipe.errors import ConfigError, DataError, FormatError, TfpipeError
from tfpipe.format import manifest_json
from tfpipe.format.example import encode_example
from tfpipe.format.file_names import index_name
from tfpipe.format.image_form import ImageForm
from tfpipe.format.manifest import Manifest
from tfpipe.format.record_index import decode_index, encode_index
from tfpipe.format.schema import Schema
from tfpipe.format.tfrecord import record_footer, record_header
from tfpipe.images.normalize import prepare_image

THREADS = ("--direct_running_mode=multi_threading", "--direct_num_workers=2")
SPLITS = {"train": 30, "validation": 9}
SHARD = "train-00000-of-00003.tfrecord"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    """Returns a dataset with boxes, further columns, JPEG and PNG, a turned image, copies, and one image left out."""
    folder = tmp_path_factory.mktemp("reshard") / "pets"
    files: dict[str, bytes] = {}
    rows: list[dict[str, Any]] = []
    for split, count in SPLITS.items():
        for i in range(count):
            name = f"{split}/{i:02d}.{'png' if i % 7 == 3 else 'jpg'}"
            size = (24 + i, 16)
            files[name] = make_png(i, size) if i % 7 == 3 else make_jpeg(i, size, progressive=i % 5 == 4)
            boxes = [0.1] * (i % 3)
            sides = {"xmin": boxes, "ymin": boxes, "xmax": [0.5 + x for x in boxes], "ymax": [0.75 + x for x in boxes]}
            row = {"image": name, "label": ["cat", "dog", "ape"][i % 3], "split": split, **sides}
            rows.append({**row, "box_label": [i] * len(boxes), "age": i / 7, "tags": [f"t{k}" for k in range(i % 3)]})
    files["train/00.jpg"] = make_jpeg(100, (24, 16), exif=make_exif(6))
    files["train/01.jpg"] = b"bad"
    write_files(folder, {**files, "pets.jsonl": "".join(json.dumps(row) + "\n" for row in rows).encode()})
    make_dataset(folder / "pets.jsonl", folder / "out", num_shards=3, seed=4)
    return folder / "out"


@pytest.fixture
def broken(dataset: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(dataset, tmp_path / "broken"))


def load(folder: Path) -> Manifest:
    return manifest_json.loads((folder / "manifest.json").read_text())


def test_the_same_order_or_that_of_the_seed(dataset: Path, tmp_path: Path) -> None:
    join_datasets([dataset], tmp_path / "out", num_shards=5, shuffle=False)
    assert read_payloads(tmp_path / "out") == read_payloads(dataset)
    assert read_payloads(tmp_path / "out", "validation") == read_payloads(dataset, "validation")
    orders = {tuple(read_payloads(dataset))}
    for seed in (0, 1):
        manifest = join_datasets([dataset], tmp_path / f"{seed}", seed=seed, num_shards=20)
        assert (manifest.seed, [split.num_shards for split in manifest.splits.values()]) == (seed, [20, 9])
        orders.add(tuple(payloads := read_payloads(tmp_path / f"{seed}")))
        assert sorted(payloads) == sorted(read_payloads(dataset))
    join_datasets([dataset], tmp_path / "again", seed=1, num_shards=20)
    assert read_tree(tmp_path / "again") == read_tree(tmp_path / "1")
    assert len(orders) == 3


@pytest.mark.parametrize("beam_args", [(), THREADS])
def test_the_same_bytes_whoever_does_the_work(dataset: Path, tmp_path: Path, beam_args: tuple[str, ...]) -> None:
    options: Mapping[str, Any] = {"num_shards": 4, "form_changes": {"resize_short": 8}}
    join_datasets([dataset], tmp_path / "straight", **options)
    config = ShardConfig(str(dataset), str(tmp_path / "out"), datasets=(str(dataset),), workers=2, **options)
    assert shard_job.run(config, beam_args).kept_shards == 0
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "straight")
    if not beam_args:
        assert shard_job.run(config).kept_shards == 8


def test_what_the_manifest_says(dataset: Path, tmp_path: Path) -> None:
    before, after = load(dataset), join_datasets([dataset], tmp_path / "out", num_shards=2)
    for name, split in before.splits.items():
        again = after.splits[name]
        assert (again.formats, again.class_counts, again.sizes) == (split.formats, split.class_counts, split.sizes)
    assert (before.quarantined, before.changed) == (1, {"exif_rotated": 1})
    assert after == replace(before, splits=after.splits, quarantined=0, seed=0, fingerprint=after.fingerprint)
    assert after == load(tmp_path / "out")
    assert (tmp_path / "out" / "features.json").read_bytes() == (dataset / "features.json").read_bytes()
    assert not (tmp_path / "out" / "quarantine").exists()


def test_copied_records_stay_seekable(tmp_path: Path) -> None:
    images = {**make_seekable_photos(6), "dog/x.png": make_png(1)}
    before = make_seekable_dataset(images, tmp_path / "ds")
    assert (before.splits["train"].seekable, before.splits["train"].seekable_jpegs) == (True, 6)
    assert before.image == ImageForm(seekable=True).to_json()
    after = join_datasets([tmp_path / "ds"], tmp_path / "out", num_shards=3)
    assert (after.splits["train"].seekable, after.splits["train"].seekable_jpegs) == (True, 6)
    assert (after.image, after.changed) == (before.image, {})
    assert read_images(tmp_path / "out") == images
    smaller = join_datasets([tmp_path / "ds"], tmp_path / "small", form_changes={"square": 8})
    assert (smaller.splits["train"].seekable_jpegs, smaller.image["seekable"]) == (6, True)
    raw = join_datasets([tmp_path / "ds"], tmp_path / "raw", form_changes={"encoding": "raw", "square": 8})
    assert (raw.splits["train"].seekable_jpegs, raw.splits["train"].seekable) == (0, False)
    assert "seekable" not in raw.image


def test_markers_that_nobody_asked_for_are_not_counted(tmp_path: Path) -> None:
    write_files(tmp_path / "in", make_seekable_photos(4))
    make_dataset(tmp_path / "in", tmp_path / "ds")
    assert join_datasets([tmp_path / "ds"], tmp_path / "out").splits["train"].seekable_jpegs == 0
    for name in ("ds", "out"):
        assert "seekable" not in (tmp_path / name / "manifest.json").read_text()


def by_name(folder: Path, split: str = "train") -> dict[str, dict[str, Any]]:
    return {bytes(record["image/filename"][0]).decode(): record for record in read_records(folder, split)}


IMAGE = ("encoded", "format", "height", "width", "channels", "colorspace")


@pytest.mark.parametrize(
    "changes",
    [{"resize_short": 8}, {"encoding": "jpeg"}, {"square": 6, "encoding": "raw"}, {"reencode_progressive": True}],
    ids=str,
)
def test_images_of_another_form(dataset: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    manifest = join_datasets([dataset], tmp_path / "out", form_changes=changes)
    form = ImageForm(**changes)
    assert manifest.image == form.to_json()
    before, after = by_name(dataset), by_name(tmp_path / "out")
    assert before.keys() == after.keys()
    for name, record in before.items():
        image = prepare_image(record["image/encoded"][0], form)
        for key, value in record.items():
            if key.removeprefix("image/") in IMAGE:
                expected = getattr(image, key.removeprefix("image/"))
                got = after[name][key][0]
                assert (got.decode() if isinstance(expected, str) else got) == expected
            else:
                assert np.array_equal(after[name][key], value)
    split = manifest.splits["train"]
    heights = [int(record["image/height"][0]) for record in after.values()]
    assert (split.sizes.min_height, split.sizes.max_height) == (min(heights), max(heights))
    assert manifest.changed["exif_rotated"] == 1
    assert sum(manifest.changed.values()) > 1


def test_squares_know_the_size_of_the_original(dataset: Path, tmp_path: Path) -> None:
    steps: list[dict[str, Any]] = [
        *({"resize_short": 12}, {"square": 10, "encoding": "raw"}, {"square": 6}),
        *({"encoding": "keep"}, {"resize_short": 4}),
    ]
    before = dataset
    sizes, formats = [], []
    for k, changes in enumerate(steps):
        manifest = join_datasets([before], tmp_path / str(k), form_changes=changes)
        before = tmp_path / str(k)
        record = by_name(before)["train/02.jpg"]
        sizes.append((int(record["image/height"][0]), int(record["image/width"][0])))
        formats.append(manifest.splits["train"].formats)
    # 26 x 16, then reduced, then squeezed three times, and reduced again, which no longer knows of the squeezing.
    assert sizes == [(12, 20), (12, 20), (12, 20), (12, 20), (4, 4)]
    assert formats == [{"JPEG": 25, "PNG": 4}, {"RAW": 29}, {"RAW": 29}, {"PNG": 29}, {"PNG": 29}]
    assert manifest.image["made_from"] == (
        "encoding keep, resize_short 12, quality 95; encoding raw, square 10, quality 95; encoding raw, square 6, "
        "quality 95; encoding keep, square 6, quality 95"
    )
    kinds = {"exif_rotated": 1, "jpeg_to_raw": 33, "png_to_raw": 5, "raw_to_png": 38, "resized": 4 * 38}
    assert {name: manifest.changed[name] for name in kinds} == kinds
    pixels = Image.open(io.BytesIO(by_name(tmp_path / "3")["train/02.jpg"]["image/encoded"][0]))
    assert pixels.tobytes() == by_name(tmp_path / "2")["train/02.jpg"]["image/encoded"][0]


def places(folder: Path) -> list[tuple[int, int]]:
    data = (folder / index_name(SHARD)).read_bytes()
    return [tuple(place) for place in decode_index(data, (folder / SHARD).stat().st_size, data.count(b"\n")).tolist()]


def test_a_damaged_record(broken: Path, tmp_path: Path) -> None:
    before = read_payloads(broken)
    label = int(read_records(broken)[2]["image/class/label"][0])
    offset, size = places(broken)[2]
    flip_bit(broken / SHARD, offset + size // 2)
    manifest = join_datasets([broken], tmp_path / "out", shuffle=False)
    assert read_payloads(tmp_path / "out") == before[:2] + before[3:]
    (line,) = read_quarantine(tmp_path / "out")
    sentence = f"Record at byte {offset} is damaged: the checksum of its {size - 16} bytes of payload is wrong"
    assert line == (
        {"path": "pets/train:2", "split": "train", "label": -1, "kind": "unreadable"}
        | {"reason": f"{SHARD}: {sentence}", "exception": f"FormatError: {sentence}."}
    )
    counts = list(load(broken).splits["train"].class_counts)
    counts[label] -= 1
    assert (manifest.quarantined, list(manifest.splits["train"].class_counts)) == (1, counts)


def test_too_much_damage(broken: Path, tmp_path: Path) -> None:
    offset, _ = places(broken)[0]
    flip_bit(broken / SHARD, offset)
    assert refusal(DataError, join_datasets, [broken], tmp_path / "out", max_bad=0) == (
        f"At most 0 of 38 images may be bad, got 1, the first pets/train:0: {SHARD}: Record at byte 0 is damaged: the "
        f"checksum of its length is wrong. They are listed in {tmp_path}/out/quarantine/quarantined.jsonl; save "
        "the undamaged records with `tfpipe repair`, or allow more with `max_bad`."
    )
    assert not (tmp_path / "out" / "manifest.json").exists()
    # The shard is looked at again: its copy may be whole by now.
    flip_bit(broken / SHARD, offset)
    assert join_datasets([broken], tmp_path / "out", max_bad=0).quarantined == 0


def replace_record(folder: Path, number: int, **changes: Any) -> None:
    payloads = read_payloads(folder)[: len(places(folder))]
    features = {**read_records(folder)[number], **changes}
    payloads[number] = encode_example({name: value for name, value in features.items() if value is not None})
    frames = [record_header(len(payload)) + payload + record_footer(payload) for payload in payloads]
    (folder / SHARD).write_bytes(b"".join(frames))
    (folder / index_name(SHARD)).write_bytes(encode_index([len(frame) for frame in frames]))
    manifest = load(folder)
    train = manifest.splits["train"]
    shards = (train.shards[0]._replace(bytes=sum(map(len, frames))), *train.shards[1:])
    splits = {**manifest.splits, "train": replace(train, shards=shards)}
    (folder / "manifest.json").write_text(manifest_json.dumps(replace(manifest, splits=splits)))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"image/class/label": 3}, "its label 3 is not one of the 3 classes"),
        ({"image/class/label": -1}, "its label -1 is not one of the 3 classes"),
        ({"image/class/label": [0, 1]}, "its record must have one whole number as image/class/label"),
        ({"image/height": b"9"}, "its record must have one whole number as image/height"),
        ({"image/encoded": None}, "its record must have one text as image/encoded"),
        ({"image/sha256": "0f"}, "its image/sha256 is not a valid SHA-256"),
        ({"image/encoded": b"no image", "image/format": b"JPEG"}, "not an image: it begins like text"),
        ({"image/encoded": b"\0" * 10, "image/format": b"RAW"}, "10 bytes of raw pixels, which are not a square image"),
        ({"image/sha256": "x" * 64}, "its image/sha256 is not a valid SHA-256"),
    ],
    ids=str,
)
def test_a_record_that_cannot_be_used(broken: Path, tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    replace_record(broken, 1, **changes)
    options = {"form_changes": {"resize_short": 8}} if "image/format" in changes else {}
    assert join_datasets([broken], tmp_path / "out", **options).quarantined == 1
    (line,) = read_quarantine(tmp_path / "out")
    assert (line["path"], line["kind"], line["reason"]) == ("pets/train:1", "bad", reason)


def refused(kind: type[TfpipeError], dataset: Path, output: Path, **options: Any) -> str:
    message = refusal(kind, join_datasets, [dataset], output, **options)
    assert not (output / "manifest.json").exists() or output == dataset
    return message


def test_missing_and_changed_files(broken: Path, tmp_path: Path) -> None:
    index, output = broken / index_name(SHARD), tmp_path / "out"
    mend = f"Copy the dataset again, or save the undamaged records: tfpipe repair {broken} OUTPUT"
    data = index.read_bytes()
    index.write_bytes(data.replace(b" ", b"  "))
    assert refused(FormatError, broken, output).startswith(
        f"{index}: Every line of the index must be two whole numbers with one space between."
    )
    index.write_bytes(b"0" * 4000)
    message = f"{index} has 4,000 bytes, too many for {len(data.split(b' ')) - 1} records. {mend}"
    assert refused(FormatError, broken, output) == message
    index.unlink()
    assert refused(FormatError, broken, output) == f"{index} is missing. {mend}"
    index.write_bytes(data)
    shard = (broken / SHARD).read_bytes()
    (broken / SHARD).write_bytes(shard[:-1])
    message = f"{broken / SHARD} must have {len(shard):,} bytes, as the manifest says, got {len(shard) - 1:,}. {mend}"
    assert refused(FormatError, broken, output) == message
    (broken / SHARD).unlink()
    assert refused(FormatError, broken, output) == f"{broken / SHARD} is missing. {mend}"


def test_what_tfpipe_did_not_write(broken: Path, tmp_path: Path) -> None:
    before = load(broken)
    schema = Schema(tuple(spec for spec in before.schema.features if spec.name != "image/sha256"))
    (broken / "manifest.json").write_text(manifest_json.dumps(replace(before, schema=schema)))
    message = f"Every dataset that tfpipe wrote has a feature 'image/sha256', but {broken} has none."
    assert refused(DataError, broken, tmp_path / "out") == message


def test_labels_without_names(broken: Path, tmp_path: Path) -> None:
    splits = {name: replace(split, class_counts=()) for name, split in load(broken).splits.items()}
    (broken / "manifest.json").write_text(manifest_json.dumps(replace(load(broken), label_names=(), splits=splits)))
    manifest = join_datasets([broken], tmp_path / "out", shuffle=False)
    assert read_payloads(tmp_path / "out") == read_payloads(broken)
    assert (manifest.label_names, manifest.splits["train"].class_counts, manifest.quarantined) == ((), (), 0)


def test_another_place_is_the_same_dataset_and_another_manifest_is_another(broken: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    manifest = join_datasets([broken], output)
    moved = broken.rename(tmp_path / "moved")
    assert join_datasets([moved], output) == manifest
    (moved / "manifest.json").write_text(manifest_json.dumps(replace(load(moved), fingerprint="another")))
    assert refusal(ConfigError, join_datasets, [moved], output).endswith("replace it with `overwrite`.")


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> tuple[Path, Path]:
    """Returns two datasets that share the class `dog` and an image: in `train` of both, and in `test` of the second."""
    folder = tmp_path_factory.mktemp("merge")
    first = {f"train/{name}": data for name, data in make_photos({"cat": 6, "dog": 5}).items()}
    second = {f"train/{name}": data for name, data in make_photos({"ape": 4, "dog": 3}, seed=1).items()}
    copies = {"train/dog/copy.jpg": make_jpeg(0), "test/ape/copy.jpg": make_jpeg(0), "test/dog/x.png": make_png(5)}
    write_files(folder / "one" / "pets", first)
    write_files(folder / "two" / "pets", {**second, **copies})
    make_dataset(folder / "one" / "pets", folder / "a", num_shards=2)
    make_dataset(folder / "two" / "pets", folder / "b", num_shards=3)
    return folder / "a", folder / "b"


def test_a_split_is_seekable_if_all_parts_are(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b", "c")]
    make_seekable_dataset(make_seekable_photos(4), folders[0])
    make_seekable_dataset(make_seekable_photos(3, seed=1), folders[1])
    make_dataset(write_files(tmp_path / "c-images", make_photos({"cat": 2, "dog": 1}, seed=2)), folders[2])
    all_parts = join_datasets(folders[:2], tmp_path / "all")
    assert (all_parts.splits["train"].seekable, all_parts.splits["train"].seekable_jpegs) == (True, 7)
    assert all_parts.image == ImageForm(seekable=True).to_json()
    for k, order in enumerate((folders, folders[::-1])):
        some = join_datasets(order, tmp_path / f"some{k}")
        assert (some.splits["train"].seekable, some.splits["train"].seekable_jpegs) == (False, 7)
        assert some.image == ImageForm().to_json()


def test_records_and_labels(pair: tuple[Path, Path], tmp_path: Path) -> None:
    a, b = pair
    manifest = join_datasets(pair, tmp_path / "out", num_shards=4)
    assert manifest.label_names == ("cat", "dog", "ape")
    assert {name: (split.records, split.class_counts) for name, split in manifest.splits.items()} == {
        "test": (2, (0, 1, 1)),
        "train": (19, (6, 9, 4)),
    }
    assert manifest.splits["test"].formats == {"JPEG": 1, "PNG": 1}
    after = read_payloads(tmp_path / "out")
    assert set(read_payloads(a)) < set(after)  # the first dataset's labels stay, and so do its records
    old_records, new_records = (
        {record["image/sha256"][0] + record["image/filename"][0]: record for record in read_records(folder)}
        for folder in (b, tmp_path / "out")
    )
    for key, record in old_records.items():
        for name, value in record.items():
            if name == "image/class/label":
                assert manifest.label_names[int(new_records[key][name][0])].encode() == record["image/class/text"][0]
            else:
                assert np.array_equal(new_records[key][name], value)
    assert len(old_records) == 8
    assert (tmp_path / "out" / "image-class-label.labels.txt").read_text() == "cat\ndog\nape\n"
    assert manifest.name == "pets"


def test_the_order_is_kept(pair: tuple[Path, Path], tmp_path: Path) -> None:
    join_datasets(pair, tmp_path / "out", shuffle=False)
    assert read_payloads(tmp_path / "out")[:11] == read_payloads(pair[0])
    names = [bytes(record["image/filename"][0]) for folder in pair for record in read_records(folder)]
    assert [bytes(record["image/filename"][0]) for record in read_records(tmp_path / "out")] == names
    manifest = join_datasets([pair[0]] * 3, tmp_path / "thrice", num_shards=4)
    assert sorted(read_payloads(tmp_path / "thrice")) == sorted(read_payloads(pair[0]) * 3)
    assert manifest.duplicates.within == {"train": 22}


def test_copies_are_noticed(pair: tuple[Path, Path], tmp_path: Path) -> None:
    manifest = join_datasets(pair, tmp_path / "out")
    assert (manifest.duplicates.within, manifest.duplicates.across, manifest.duplicates.dropped) == ({"train": 1}, 1, 0)
    (line,) = (tmp_path / "out" / "duplicates.jsonl").read_text().splitlines()
    copies = {(record["split"], record["path"]) for record in json.loads(line)["records"]}
    assert copies == {("train", "train/cat/000.jpg"), ("train", "train/dog/copy.jpg"), ("test", "test/ape/copy.jpg")}


def test_copies_are_dropped(pair: tuple[Path, Path], tmp_path: Path) -> None:
    config = ShardConfig("a, b", str(tmp_path / "out"), datasets=(str(pair[0]), str(pair[1])), drop_duplicates=True)
    plan = plan_shards(config)
    assert plan.class_counts == {"test": [0, 1, 1], "train": [5, 8, 4]}
    manifest = join_datasets(pair, tmp_path / "out", drop_duplicates=True)
    assert {name: list(split.class_counts) for name, split in manifest.splits.items()} == plan.class_counts
    assert (manifest.duplicates.within, manifest.duplicates.across, manifest.duplicates.dropped) == ({}, 0, 2)
    names = read_images(tmp_path / "out")
    assert "train/cat/000.jpg" not in names
    assert "train/dog/copy.jpg" not in names
    assert "test/ape/copy.jpg" in read_images(tmp_path / "out", "test")
    manifest = join_datasets([pair[0], pair[0]], tmp_path / "twice", drop_duplicates=True, shuffle=False)
    assert read_payloads(tmp_path / "twice") == read_payloads(pair[0])
    assert manifest.duplicates.dropped == 11


def test_names_of_their_own(tmp_path: Path) -> None:
    for name, split in {"one": "train", "two": "test", "three": "train"}.items():
        make_dataset(write_files(tmp_path / name, make_photos({"cat": 2})), tmp_path / f"{name}-ds", split=split)
    manifest = join_datasets([tmp_path / f"{name}-ds" for name in ("one", "two", "three")], tmp_path / "out")
    assert manifest.name == "one+two+three"
    assert {name: split.records for name, split in manifest.splits.items()} == {"test": 2, "train": 4}
    assert json.loads((tmp_path / "out" / "dataset_info.json").read_text())["name"] == "one_two_three"


def test_a_damaged_record_is_named_by_its_dataset(pair: tuple[Path, Path], tmp_path: Path) -> None:
    broken = Path(shutil.copytree(pair[1], tmp_path / "broken"))
    flip_bit(broken / "train-00001-of-00003.tfrecord", 100)
    for options in ({}, {"drop_duplicates": True}):
        assert join_datasets([pair[0], broken], tmp_path / "out", overwrite=True, **options).quarantined == 1
        (line,) = read_quarantine(tmp_path / "out")
        assert line["path"] == "pets-2/train:2"
        assert line["reason"].startswith("train-00001-of-00003.tfrecord: Record at byte 0 is damaged")
