"""The batch of a step: its records, its parts, and what is wrong with them."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfpipe
from tests.flipped_bit import flip_bit
from tests.integrity.made import payload, write_dataset
from tests.refusals import refusal
from tfpipe.engine import batch as engine_batch
from tfpipe.engine.batch import BatchMaker
from tfpipe.engine.config.augment_config import AugmentOptions
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.host import Host
from tfpipe.engine.open_maker import open_maker
from tfpipe.engine.plan import plan_batches
from tfpipe.engine.record_reader import RecordReader
from tfpipe.engine.source import Source
from tfpipe.errors import DataError, FormatError
from tfpipe.format.manifest import Manifest
from tfpipe.native.batches import draw_crops
from tfpipe.readers.base import open_data
from tfpipe.system.hash_permutation import make_seeds


def make_maker(manifest: Manifest, rank: Host | None = None, **options: Any) -> BatchMaker:
    config = PipelineConfig(**{"batch_size": 4, "image_size": 8, "seed": 3, **options})
    return open_data(manifest, "train", config, rank or Host())


@pytest.fixture
def maker(small_dataset: Path) -> BatchMaker:
    """Twelve images, four in a batch."""
    return make_maker(tfpipe.load_manifest(str(small_dataset)))


def test_a_rank_may_have_no_record_in_the_last_step_of_an_evaluation(small_dataset: Path) -> None:
    manifest = tfpipe.load_manifest(str(small_dataset))
    maker = make_maker(manifest, Host(0, 5, 5), batch_size=5, training=False, image_dtype="float32")
    batches = [maker.make(0, step) for step in range(3)]  # of two of the twelve records
    assert [batch["mask"].tolist() for batch in batches] == [[True], [True], [False]]
    assert [bool(batch["image"].any()) for batch in batches] == [True, True, False]


def make_for_device(manifest: Manifest, **options: Any) -> Any:
    """Returns the maker of batches that only TensorFlow's readers take."""
    config = PipelineConfig(**{"image_size": 8, "seed": 3, "augment": "device", **options})
    return open_maker(plan_batches(Source.from_manifest(manifest, "train"), config))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("flip", [True, False])
def test_the_device_gets_the_crops_of_the_host(maker: BatchMaker, training: bool, flip: bool) -> None:
    options = {"training": training, "augment_options": AugmentOptions(flip=flip), "batch_size": 12}
    host, device = make_maker(maker.manifest, **options), make_for_device(maker.manifest, **options)
    images, batch = host.choose_images(host.read(1, 0)), device.make(1, 0)
    whole = make_maker(maker.manifest, augment="none", image_size=device.plan.decoded_size, **options).make(1, 0)
    np.testing.assert_array_equal(batch["image"], whole["image"])
    corners = batch["crop"] * np.tile(images.sizes, 2)
    expected = np.concatenate((images.boxes[:, :2], images.boxes[:, :2] + images.boxes[:, 2:]), axis=1)
    assert np.rint(corners).tolist() == expected.tolist()
    np.testing.assert_allclose(corners, expected, atol=1e-3)
    assert batch["flip"].tolist() == images.flips.tolist()
    assert batch["flip"].any() == (training and flip)
    assert set(batch) == {"image", "crop", "flip", "label"} | (set() if training else {"mask"})


def test_the_device_gets_the_crops_of_a_cache(maker: BatchMaker) -> None:
    options = {"cache": "decoded", "decoded_size": (9, 7), "batch_size": 12}
    device = make_for_device(maker.manifest, **options)
    first, again = device.make(1, 0), device.make(1, 0)
    numbers = device.plan.list_numbers(1, 0)
    sizes = maker.choose_images(maker.read(1, 0, numbers)).sizes
    options = AugmentOptions()
    boxes, flips = draw_crops(make_seeds(3, 1, numbers), sizes, (9, 7), scale=options.scale, ratio=options.ratio)
    for batch in (first, again):
        corners = np.rint(batch["crop"] * [9, 7, 9, 7]).astype(int)
        assert np.concatenate((corners[:, :2], corners[:, 2:] - corners[:, :2]), axis=1).tolist() == boxes.tolist()
        assert batch["flip"].tolist() == flips.tolist()
        np.testing.assert_array_equal(batch["image"], first["image"])


def test_the_clocks_run(maker: BatchMaker) -> None:
    maker.make(0, 0)
    maker.make(0, 1)
    times = maker.clocks.read()
    assert {phase: time.calls for phase, time in times.items()} == {"read": 2, "parse": 2, "decode": 2, "batch": 4}
    assert min(time.wall_s for time in times.values()) > 0
    assert min(time.cpu_s for time in times.values()) > 0


def test_the_clocks_tell_work_from_waiting(maker: BatchMaker, monkeypatch) -> None:
    """Reading waits for 50 ms, and parsing computes for 50 ms."""

    def read_slowly(numbers: Any, memory: Any) -> Any:
        time.sleep(0.05)
        return read(numbers, memory)

    def parse_slowly(*arguments: Any) -> Any:
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass
        return parse(*arguments)

    read, parse = maker._read_block, engine_batch.parse_columns
    monkeypatch.setattr(maker, "_read_block", read_slowly)
    monkeypatch.setattr(engine_batch, "parse_columns", parse_slowly)
    maker.read(0, 0)
    times = maker.clocks.read()
    assert times["read"].cpu_s < 0.04 < 0.05 <= times["read"].wall_s
    assert 0.05 <= times["parse"].cpu_s <= times["parse"].wall_s + 0.01


def test_a_transform_has_a_clock_of_its_own(small_dataset: Path) -> None:
    """It waits for 10 ms for each of the images of a batch, in two threads."""

    def wait(image: Any, seed: int) -> Any:
        time.sleep(0.01)
        return image

    maker = open_data(tfpipe.load_manifest(str(small_dataset)), "train", PipelineConfig(batch_size=4), Host(), wait)
    maker.make(0, 0, threads=2)
    times = maker.clocks.read()
    assert times["transform"].calls == times["decode"].calls == 4
    assert times["transform"].wall_s >= 0.04 > 0.02 > times["transform"].cpu_s


@pytest.mark.parametrize("height", [0, -3, 2**40])
def test_a_size_that_no_image_has_names_the_record(tmp_path: Path, height: int) -> None:
    payloads = [payload(k, **({"height": height} if k == 3 else {})) for k in range(4)]
    maker = make_maker(tfpipe.load_manifest(str(write_dataset(tmp_path / "made", {"train": payloads}))))
    assert refusal(FormatError, maker.make, 0, 0) == (
        f"Record 3 of 'train': it must have the height and the width of its image, got {height} x 5."
    )


def damage(folder: Path, manifest: Manifest, number: int) -> str:
    """Flips a bit of a record, and says where it lies."""
    reader = RecordReader(str(folder), manifest, "train")
    place = reader.locate(number)
    flip_bit(folder / place.shard.file, place.offset + 40)
    return reader.describe(number)


@pytest.fixture
def damaged(tmp_path: Path) -> tuple[Manifest, list[str]]:
    """Twelve records in two shards, of which the 3rd and the 10th are damaged."""
    shards = {"train": [payload(k) for k in range(7)], "train:1": [payload(k) for k in range(7, 12)]}
    folder = write_dataset(tmp_path / "pets", shards)
    manifest = tfpipe.load_manifest(str(folder))
    return manifest, [damage(folder, manifest, number) for number in (2, 9)]


def test_damaged_records_are_left_out_and_told_once(damaged: tuple[Manifest, list[str]], caplog) -> None:
    manifest, places = damaged
    maker = make_maker(manifest, max_bad_records=100, extra_features=("image/filename",))
    for epoch in range(2):
        names = [name for step in range(3) for name in maker.make(epoch, step)["image/filename"]]
        assert set(names) == {b"%s/%d.png" % ((b"cat", b"dog")[k % 2], k) for k in range(12) if k not in (2, 9)}
        assert len(names) == 12  # two of them stand twice
    assert len(maker.bad_records) == 2
    assert caplog.messages == [
        f"tfpipe leaves out {place}, which is damaged or cannot be read: {count} so far"
        for count, place in enumerate(sorted(places, key=caplog.text.index), 1)
    ]


def test_evaluation_masks_what_is_left_out(damaged: tuple[Manifest, list[str]]) -> None:
    manifest, _ = damaged
    maker = make_maker(manifest, max_bad_records=100, training=False, batch_size=5)
    masks = [maker.make(0, step)["mask"].tolist() for step in range(3)]
    assert masks == [[True, True, False, True, True], [True, True, True, True, False], [True, True, *[False] * 3]]


def test_a_batch_of_damaged_records_is_that_of_the_next_whole_one(damaged: tuple[Manifest, list[str]]) -> None:
    manifest, _ = damaged
    damage(Path(manifest.directory), manifest, 10)
    maker = make_maker(manifest, max_bad_records=100, training=False, batch_size=1)
    stored = [maker.read(0, step) for step in range(12)]
    assert [one.numbers.tolist() for one in stored] == [[n] for n in (0, 1, 3, 3, 4, 5, 6, 7, 8, 11, 11, 11)]
    assert [maker.decode(one)["mask"].tolist() for one in stored] == [[n not in (2, 9, 10)] for n in range(12)]
    assert len(maker.bad_records) == 3
    last = make_maker(manifest, max_bad_records=100, training=False, batch_size=3).read(0, 3)
    assert (last.asked.tolist(), last.numbers.tolist()) == ([9, 10, 11], [11, 11, 11])


def test_a_split_without_a_whole_record_is_an_error(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "pets", {"train": [payload(k) for k in range(3)]})
    manifest = tfpipe.load_manifest(str(folder))
    for number in range(3):
        damage(folder, manifest, number)
    sentence = r"^Record \d of 'train': it and all other records are damaged or cannot be read\.$"
    with pytest.raises(FormatError, match=sentence):
        make_maker(manifest, max_bad_records=100, batch_size=1).read(0, 0)


def test_a_missing_file_is_left_out_but_more_than_may_be_is_an_error(damaged: tuple[Manifest, list[str]]) -> None:
    manifest, places = damaged
    maker = make_maker(manifest, max_bad_records=1, training=False)
    maker.make(0, 0)
    sentence = f"At most 1 bad records may be left out (`max_bad_records`); one more is {places[1]}."
    assert refusal(DataError, maker.make, 0, 2) == sentence
    manifest, _ = damaged
    maker = make_maker(manifest, max_bad_records=100, training=False, batch_size=12)
    (Path(manifest.directory) / manifest.splits["train"].shards[1].file).unlink()
    assert maker.make(0, 0)["mask"].tolist() == [True, True, False, True, True, True, True, *[False] * 5]
