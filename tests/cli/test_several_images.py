"""A dataset of records with several images goes through all commands and comes back from an export."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tfpipe as library
from tests.beam_jobs.datasets import join_datasets
from tests.conftest import Tfpipe
from tests.refusals import refusal
from tests.several_images import count_images, make_file, make_pixels, write_several
from tfpipe.engine.record_reader import RecordReader
from tfpipe.errors import ConfigError, FormatError
from tfpipe.format import file_names, manifest_json
from tfpipe.format.example import encode_example
from tfpipe.format.manifest import ImagesPerRecord
from tfpipe.integrity.check_record import ContentCheck
from tfpipe.integrity.repair import repair
from tfpipe.integrity.verify import VerifyConfig, verify
from tfpipe.training.config import TrainConfig
from tfpipe.training.train import check_dataset

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


def read_records(dataset: Path) -> dict[str, dict[str, Any]]:
    manifest = library.load_manifest(str(dataset))
    with RecordReader(str(dataset), manifest, "train") as reader:
        return {record["caption"][0].decode(): record for record in reader}


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
    split = json.loads(tfpipe("inspect", made, "--json").out)["splits"]["train"]
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
    document = json.loads(tfpipe("inspect", made, "--record", "train:0", "--output", tmp_path / "a.png", "--json").out)
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


def edit(made: Path, change: dict[str, Any], **split: Any) -> str:
    document = json.loads((made / file_names.MANIFEST).read_text())
    document["splits"]["train"] |= split
    return json.dumps(document | change)


def test_a_manifest_that_contradicts_itself_is_refused(made: Path, number: Number) -> None:
    counts = {"total": count_all(number), "min": 2, "max": 5} if number is None else {"total": 36, "min": 2, "max": 5}
    wrong = counts | {"total": counts["total"] + 1, **({"min": 3, "max": 3} if number else {})}
    with pytest.raises(FormatError, match=r"formats must be counts that sum to the \d+ images"):
        manifest_json.loads(edit(made, {}, images_per_record=wrong))
    if number is None:
        with pytest.raises(FormatError, match=r"`total` must fit 12 records with `min` to `max` images each"):
            manifest_json.loads(edit(made, {}, images_per_record=counts | {"max": 3}))
    else:
        with pytest.raises(FormatError, match=r"`min` and `max` must be 3, as the schema says"):
            manifest_json.loads(edit(made, {}, images_per_record=counts))
    document = json.loads((made / file_names.MANIFEST).read_text())
    next(spec for spec in document["schema"]["features"] if spec["name"] == "image/width")["shape"] = [7]
    with pytest.raises(FormatError, match=r"several images need lists of one shape in image/encoded"):
        manifest_json.loads(json.dumps(document))


def test_a_data_source_decodes_all_images(made: Path, number: Number) -> None:
    with library.data_source(str(made), "train") as records:
        for record in records:
            k = int(record.features["caption"][0].split()[1])
            expected = [make_pixels(k, place) for place in range(count_images(k, number))]
            assert [image.tolist() for image in record.images] == [image.tolist() for image in expected]
            assert record.encoded == record.encoded_images[0] == make_file(k, 0)
            np.testing.assert_array_equal(record.image, expected[0])


def test_a_classifier_needs_one_image(made: Path) -> None:
    manifest = library.load_manifest(str(made))
    config = TrainConfig(pipeline=library.PipelineConfig(batch_size=4), output="run")
    assert refusal(ConfigError, check_dataset, manifest, config) == (
        f"A classifier needs one image a record, and {made} has several. Set `images` to first, or read them with "
        "`tfpipe.build_dataset`."
    )


@pytest.mark.slow
@pytest.mark.needs("tensorflow_datasets")
def test_tfds_gives_the_bytes(made: Path, number: Number) -> None:
    import tensorflow_datasets as tfds

    for example in tfds.as_numpy(tfds.builder_from_directory(made).as_dataset(split="train")):
        k = int(example["caption"].split()[1])
        expected = [make_file(k, place) for place in range(count_images(k, number))]
        assert example["image"]["encoded"].tolist() == expected
