"""Records with several images, with masks, and without any image go through all commands."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from PIL import Image

import tfpipe as library
from tests.beam_jobs.datasets import join_datasets, make_dataset
from tests.beam_jobs.images import write_files
from tests.conftest import Tfpipe
from tests.flipped_bit import copy_with_flipped_bit
from tests.mask_files import MASK_NAME, make_masked_images
from tests.refusals import refusal
from tests.several_images import count_images, make_file, make_pixels, write_several
from tfpipe.engine.record_reader import RecordReader
from tfpipe.errors import FormatError
from tfpipe.export.run import ExportConfig, export
from tfpipe.format import file_names, manifest_json
from tfpipe.format.example import encode_example
from tfpipe.format.manifest import ImagesPerRecord
from tfpipe.images.masks import read_mask
from tfpipe.integrity.check_record import ContentCheck
from tfpipe.integrity.repair import repair
from tfpipe.integrity.verify import VerifyConfig, verify

RECORDS = 12
Number = int | None


@pytest.fixture(scope="module", params=[3, None], ids=["three", "any"])
def number(request) -> Number:
    return request.param


@pytest.fixture(scope="module")
def made(tmp_path_factory, number: Number) -> Path:
    """12 records in 3 shards, written once. Not to be changed: copy it."""
    folder = tmp_path_factory.mktemp("several")
    write_several(folder / "out", RECORDS, number)
    return folder / "out"


def read_records(dataset: Path, key: str = "caption") -> dict[str, dict[str, Any]]:
    with RecordReader(str(dataset), library.load_manifest(str(dataset)), "train") as reader:
        return {record[key][0].decode(): record for record in reader}


def count_all(number: Number, records: int = RECORDS) -> int:
    return sum(count_images(record, number) for record in range(records))


def test_records_hold_lists(made: Path, number: Number) -> None:
    manifest = library.load_manifest(str(made))
    assert manifest.schema["image/encoded"].shape == (None if number is None else (number,))
    total = count_all(number)
    smallest, largest = (2, 5) if number is None else (number, number)
    split = manifest.splits["train"]
    assert split.images_per_record == ImagesPerRecord(total, smallest, largest)
    assert (split.formats, split.class_counts, split.records) == ({"PNG": total}, (6, 6), RECORDS)
    for k in range(RECORDS):
        record, count = read_records(made)[f"record {k}"], count_images(k, number)
        assert record["image/encoded"] == [make_file(k, place) for place in range(count)]
        assert record["image/height"].tolist() == [make_pixels(k, place).shape[0] for place in range(count)]
        assert record["image/format"] == [b"PNG"] * count
        assert len(set(record["image/sha256"])) == count


def test_inspect_counts_and_draws_rows(made: Path, number: Number, tmp_path: Path, tfpipe: Tfpipe) -> None:
    split = tfpipe("inspect", made, "--json").json["splits"]["train"]
    smallest, largest = (2, 5) if number is None else (number, number)
    assert split["images_per_record"] == {"total": count_all(number), "min": smallest, "max": largest}
    result = tfpipe("inspect", made, "--show", "12", tmp_path / "sheet.png")
    span = str(number) if number else "2–5"
    assert f"Images per record {span}" in [" ".join(line.split()) for line in result.out.splitlines()]
    sheet = np.asarray(Image.open(tmp_path / "sheet.png")).astype(int)
    for row, record in enumerate(read_records(made).values()):  # each record is a row
        k = int(record["caption"][0].split()[1])
        for place in range(largest):
            top, left = row * sheet.shape[0] // 12 + 60, 8 + place * 168 + 60
            tile = sheet[top : top + 60, left : left + 60].reshape(-1, 3)
            is_there = (np.abs(tile[:, :2] - [10 * k, 60 * place]).max(axis=1) < 4).mean() > 0.9
            assert is_there == (place < count_images(k, number)), (row, place)
    document = tfpipe("inspect", made, "--record", "train:0", "--output", tmp_path / "a.png", "--json").json
    sizes = document["features"]["image/encoded"]
    assert len(sizes) > 1
    assert (tmp_path / "a.png").stat().st_size == sizes[0]["bytes"]
    refused = tfpipe("inspect", made, "--show", "500", tmp_path / "sheet.png")
    most, columns = (200, 5) if number is None else (333, 3)
    message = f"--show must be from 1 to {most} records of up to {columns} images, got 500."
    assert message in " ".join(refused.err.split())
    assert refused.code == 2


def test_every_image_is_checked(made: Path, tmp_path: Path) -> None:
    check = ContentCheck.from_manifest(library.load_manifest(str(made)))
    record = dict(read_records(made)["record 2"])
    assert check.check(encode_example(record)).faults == ()
    images = list(record["image/encoded"])
    images[1] = images[1][:-20]
    ((kind, text),) = check.check(encode_example(record | {"image/encoded": images})).faults
    assert (kind, text[:9]) == ("image", "image 1: ")
    heights = record["image/height"].copy()
    heights[-1] += 1
    ((kind, text),) = check.check(encode_example(record | {"image/height": heights})).faults
    assert text == f"image {len(images) - 1}: image/height says {heights[-1]}, the image says {heights[-1] - 1}"
    check = ContentCheck.from_manifest(write_several(tmp_path / "out", 3, None, num_shards=1))
    record = read_records(tmp_path / "out")["record 0"]
    ((_, text),) = check.check(encode_example(record | {"image/width": record["image/width"][:1]})).faults
    assert text == "it has 2 image/encoded, but 1 image/width"
    empty = {name: value[:0] for name, value in record.items() if name.startswith("image/") and "class" not in name}
    ((_, text),) = check.check(encode_example(record | empty)).faults
    assert text == "it has 0 image/encoded"


def test_a_lost_manifest_is_made_again(made: Path, number: Number, tmp_path: Path) -> None:
    lost = shutil.copytree(made, tmp_path / "lost")
    (lost / file_names.MANIFEST).unlink()
    repair(str(lost), str(tmp_path / "repaired"), workers=0)
    manifest, old = (library.load_manifest(str(folder)) for folder in (tmp_path / "repaired", made))
    assert manifest.schema["image/encoded"].shape == (None if number is None else (number,))
    assert manifest.splits["train"].images_per_record == old.splits["train"].images_per_record


def test_images_take_another_form(made: Path, number: Number, tmp_path: Path) -> None:
    new = join_datasets([made], tmp_path / "new", form_changes={"encoding": "raw", "square": 16})
    assert new.splits["train"].formats == {"RAW": count_all(number)}
    for name, record in read_records(tmp_path / "new").items():
        for place, pixels in enumerate(record["image/encoded"]):
            image = np.frombuffer(pixels, np.uint8).reshape(16, 16, 3)
            assert (abs(image[..., :2].astype(int) - [10 * int(name.split()[1]), 60 * place]) <= 1).all()
    assert verify(str(tmp_path / "new"), VerifyConfig(workers=0)).damaged == []


def test_datasets_of_other_numbers_merge_to_any(tmp_path: Path) -> None:
    for count in (2, 3):
        write_several(tmp_path / str(count), 4, count)
    merged = join_datasets([tmp_path / "2", tmp_path / "3"], tmp_path / "merged")
    assert merged.schema["image/encoded"].shape is None
    assert merged.splits["train"].images_per_record == ImagesPerRecord(20, 2, 3)


def refuse(made: Path, **split: Any) -> str:
    """Returns what is said of a manifest with other facts of `train`."""
    document = json.loads((made / file_names.MANIFEST).read_text())
    document["splits"]["train"] |= split
    return refusal(FormatError, manifest_json.loads, json.dumps(document))


def test_a_manifest_that_contradicts_itself_is_refused(made: Path, number: Number) -> None:
    counts = {"total": count_all(number), "min": 2, "max": 5} if number is None else {"total": 36, "min": 2, "max": 5}
    wrong = counts | {"total": counts["total"] + 1, **({"min": 3, "max": 3} if number else {})}
    assert f"formats must be counts that sum to the {wrong['total']} images" in refuse(made, images_per_record=wrong)
    if number is None:
        sentence = "`total` must fit 12 records with `min` to `max` images each"
        assert sentence in refuse(made, images_per_record=counts | {"max": 3})
    else:
        assert "`min` and `max` must be 3, as the schema says" in refuse(made, images_per_record=counts)
    document = json.loads((made / file_names.MANIFEST).read_text())
    next(spec for spec in document["schema"]["features"] if spec["name"] == "image/width")["shape"] = [7]
    found = refusal(FormatError, manifest_json.loads, json.dumps(document))
    assert "several images need lists of one shape in image/encoded" in found


def test_a_data_source_decodes_all_images(made: Path, number: Number) -> None:
    with library.data_source(str(made), "train") as records:
        for record in records:
            k = int(record.features["caption"][0].split()[1])
            expected = [make_pixels(k, place) for place in range(count_images(k, number))]
            assert [image.tolist() for image in record.images] == [image.tolist() for image in expected]
            assert record.encoded == record.encoded_images[0] == make_file(k, 0)
            np.testing.assert_array_equal(record.image, expected[0])


@pytest.mark.slow
@pytest.mark.needs("tensorflow_datasets")
def test_tfds_gives_the_bytes(made: Path, number: Number) -> None:
    import tensorflow_datasets as tfds

    for example in tfds.as_numpy(tfds.builder_from_directory(made).as_dataset(split="train")):
        k = int(example["caption"].split()[1])
        expected = [make_file(k, place) for place in range(count_images(k, number))]
        assert example["image"]["encoded"].tolist() == expected


CLASSES = make_masked_images(12, as_classes=True)


@pytest.fixture(scope="module")
def masked(tmp_path_factory) -> Path:
    """12 records in 3 shards, written once. Not to be changed: copy it."""
    folder = tmp_path_factory.mktemp("masks")
    make_dataset(write_files(folder / "in", make_masked_images(12)), folder / "out", num_shards=3)
    return folder / "out"


def test_inspect_counts_pixels_and_shows_masks(masked: Path, tmp_path: Path, tfpipe: Tfpipe) -> None:
    pixels = sum(np.bincount(classes.reshape(-1), minlength=6) for classes in CLASSES.values())
    document = tfpipe("inspect", masked, "--json").json
    stats = document["splits"]["train"]["masks"][MASK_NAME]
    assert (document["format_version"], stats["pixels"], stats["records"]) == (1, pixels.tolist(), 12)
    record = tfpipe("inspect", masked, "--record", "train:0").out
    assert any(line.startswith("image/mask") and line.rstrip().endswith(" bytes") for line in record.splitlines())
    result = tfpipe("inspect", masked, "--show", "12", tmp_path / "sheet.png")
    lines = [" ".join(line.split()) for line in result.out.splitlines()]
    assert f"class 2 {pixels[2] / pixels.sum():.2%} {stats['images'][2]}" in lines
    colors = np.asarray(Image.open(tmp_path / "sheet.png")).reshape(-1, 3)
    assert Image.open(tmp_path / "sheet.png").mode == "RGB"
    # Class 5 has the red 200 in the image, and 0, 114, 178 lies over it.
    assert (np.abs(colors.astype(int) - [90, 175, 100]).max(axis=1) < 4).sum() > 100


def test_a_damaged_record_is_left_out_and_the_counts_follow(masked: Path, tmp_path: Path) -> None:
    damaged = copy_with_flipped_bit(masked, tmp_path / "damaged", "train-00001-of-00003.tfrecord")
    repair(str(damaged), str(tmp_path / "repaired"), workers=0)
    kept = read_records(tmp_path / "repaired", "image/sha256").values()
    masks = [read_mask(record[MASK_NAME][0], 100_000).reshape(-1) for record in kept]
    stats = library.load_manifest(str(tmp_path / "repaired")).splits["train"].masks[MASK_NAME]
    assert len(masks) == stats.records == 11
    assert stats.pixels == np.bincount(np.concatenate(masks)).tolist()


def test_parquet_holds_masks_as_images(masked: Path, tmp_path: Path) -> None:
    export(ExportConfig(str(masked), str(tmp_path / "out"), "parquet", workers=0))
    schema = pyarrow.parquet.read_schema(next((tmp_path / "out").glob("*.parquet")))
    assert json.loads(schema.metadata[b"huggingface"])["info"]["features"][MASK_NAME] == {"_type": "Image"}


@pytest.fixture(scope="module")
def tensors(tmp_path_factory) -> Path:
    """20 records in 4 shards, written once. Not to be changed: copy it."""
    output = tmp_path_factory.mktemp("any") / "made"
    types = {"latents": library.fields.Tensor("float16", (2, 3)), "class": library.fields.Label(("cat", "dog"))}
    types |= {"frames": library.fields.Tensor("uint8", (None, None, 3)), "caption": library.fields.Text()}
    records = (
        {
            "latents": np.full((2, 3), math.nan if number == 7 else number, np.float16),
            "frames": np.full((1 + number % 2, 2, 3), number, np.uint8),
            "caption": f"picture {number}",
            "class": number % 2,
        }
        for number in range(20)
    )
    library.write(records, output, types, num_shards=4, workers=0)
    return output


def test_inspect_shows_types_ranges_and_nan(tensors: Path, tfpipe: Tfpipe) -> None:
    lines = [" ".join(line.split()) for line in tfpipe("inspect", tensors).ok.lines]
    assert "Records without images" in lines
    assert "latents float16 [2, 3] 0 to 19 0.05 of the values, in 1 record" in lines
    assert "frames uint8 [1–2, 2, 3] 0 to 19 none" in lines
    assert not any(line.startswith(("Width", "Formats")) for line in lines)
    record = [" ".join(line.split()) for line in tfpipe("inspect", tensors, "--record", "train:16").ok.lines]
    assert "latents float16 [2, 3], no finite value, 6 NaN" in record
    assert "frames uint8 [2, 2, 3], 7 to 7" in record
    assert "caption picture 7" in record
    assert tfpipe("inspect", tensors, "--json").ok.json["splits"]["train"]["tensors"]["latents"]["nan"] == 6
    features = tfpipe("inspect", tensors, "--record", "train:0", "--json").ok.json["features"]
    numbers = {"low": 0.0, "high": 0.0, "nan": 0, "infinite": 0}
    assert features["latents"] == {"dtype": "float16", "shape": [2, 3], **numbers}
    refused = tfpipe("inspect", tensors, "--show", 2, tensors.parent / "sheet.png")
    assert "must have an image to be drawn, and this dataset has none." in refused.err


def test_reshard_keeps_every_record(tensors: Path, tmp_path: Path, tfpipe: Tfpipe) -> None:
    assert tfpipe("reshard", tensors, tmp_path / "out", "--num-shards", "2").ok
    before, after = (library.load_manifest(str(path)) for path in (tensors, tmp_path / "out"))
    assert read_records(tmp_path / "out").keys() == read_records(tensors).keys()
    assert (after.schema, after.splits["train"].tensors) == (before.schema, before.splits["train"].tensors)
    assert (after.splits["train"].class_counts, after.splits["train"].num_shards) == ((10, 10), 2)
    assert tfpipe("verify", tmp_path / "out").ok
    assert tfpipe("reshard", tensors, tmp_path / "less", "--num-shards", "1", "--drop-feature", "frames").ok
    assert set(library.load_manifest(str(tmp_path / "less")).schema.names) == {
        *("latents", "caption", "image/class/label", "image/class/text")
    }
    refused = tfpipe("reshard", tensors, tmp_path / "none", "--num-shards", "1", "--encoding", "jpeg")
    assert "--encoding changes images, and these datasets have none. Leave it out." in refused.err


def test_nan_is_refused_before_anything_is_written(tmp_path: Path, tfpipe: Tfpipe) -> None:
    rows = [{"x": np.float32([number, np.nan if number else 0]), "y": str(number)} for number in range(3)]
    schema = {"x": library.fields.Tensor("float32", (2,)), "y": library.fields.Text()}
    for name in ("a", "b"):
        library.write(rows, tmp_path / name, schema, num_shards=1, workers=0)
    a, b, out = (tmp_path / name for name in ("a", "b", "out"))
    for command in (("reshard", a, out), ("merge", a, b, out)):
        refused = tfpipe(*command, "--refuse-nan")
        assert (refused.code, out.exists()) == (2, False)
        assert refused.err == (
            "Error: Feature 'x' must hold no NaN, since --refuse-nan is set, but 2 of the 3 tensors of 'train' in "
            f"{a} do. Leave it out with --drop-feature, or write its records anew.\n"
        )
    assert tfpipe("reshard", a, out, "--refuse-nan", "--drop-feature", "x").ok


@pytest.mark.slow
def test_profile_measures_the_pipeline(tensors: Path, tfpipe: Tfpipe) -> None:
    options = ("--step-ms", "5", "--batch-size", "4", "--seconds", "0.3", "--json")
    stages = {stage["name"] for stage in tfpipe("profile", tensors, *options).ok.json["stages"]}
    assert ("batch" in stages, stages & {"decode", "augment"}) == (True, set())


def test_train_says_what_it_needs(made: Path, tensors: Path, tmp_path: Path, tfpipe: Tfpipe) -> None:
    for dataset, code, needs in (
        (tensors, 1, f"images and labels, and {tensors} lacks one. Shard a folder for each class."),
        (made, 2, f'one image a record, and {made} has several. Give a --config with `images = "first"`, or read '),
    ):
        refused = tfpipe("train", dataset, "--output", tmp_path / "run", "--epochs", "1", "--batch-size", "4")
        assert refused.code == code
        assert f"A classifier needs {needs}" in refused.err


@pytest.mark.slow
def test_doctor_checks_records_without_images(tensors: Path, tfpipe: Tfpipe) -> None:
    checks = tfpipe("doctor", tensors, "--batch-size", "4", "--json").json["checks"]
    results = {check["name"]: check["status"] for check in checks}
    assert results["xla"] == "ok"
    assert results["shapes"] == "failure"  # of frames, which have no size
