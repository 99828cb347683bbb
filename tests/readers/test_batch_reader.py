"""Batches without a framework: several steps in a row, whose records threads read ahead."""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfpipe
from tests.seekable_jpegs import SAMPLINGS, draw, encode
from tfpipe.errors import FormatError
from tfpipe.images import seekable
from tfpipe.images.decode import resize_crop
from tfpipe.integrity.foreign.index import IndexConfig, index
from tfpipe.pipeline.config.pipeline_config import PipelineConfig
from tfpipe.readers import batch_reader
from tfpipe.readers.batch_reader import BatchReader, Rank
from tfpipe.readers.record_reader import RecordReader


@pytest.fixture
def reader(small_dataset: Path) -> BatchReader:
    """Twelve images, four in a batch."""
    config = PipelineConfig(global_batch_size=4, image_size=8, seed=3)
    return BatchReader(tfpipe.load_manifest(str(small_dataset)), "train", config, Rank(), resize_crop)


def list_readers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("tfpipe-read")]


def test_steps_in_a_row_are_the_steps_one_by_one(reader: BatchReader) -> None:
    for steps in ([0, 1, 2], [2], []):
        batches = list(reader.iterate((5, step) for step in steps))
        assert len(batches) == len(steps)
        for batch, step in zip(batches, steps, strict=True):
            alone = reader.read(5, step)
            np.testing.assert_array_equal(batch["image"], alone["image"])
            np.testing.assert_array_equal(batch["label"], alone["label"])


def test_records_of_the_next_steps_are_read_at_once(reader: BatchReader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve reads of 0.1 s: one after another they would take 1.2 s."""
    read_payload = RecordReader.read_payload

    def read_slowly(self: RecordReader, index: int) -> bytes:
        time.sleep(0.1)
        return read_payload(self, index)

    monkeypatch.setattr(RecordReader, "read_payload", read_slowly)
    started = time.monotonic()
    assert len(list(reader.iterate((0, step) for step in range(3)))) == 3
    assert time.monotonic() - started < 0.9


def test_a_rank_may_have_no_record_in_the_last_step_of_an_evaluation(small_dataset: Path) -> None:
    config = PipelineConfig(global_batch_size=5, image_size=8, training=False)
    reader = BatchReader(tfpipe.load_manifest(str(small_dataset)), "train", config, Rank(0, 5, 5), resize_crop)
    batches = list(reader.iterate((0, step) for step in range(3)))  # of two of the twelve records
    assert [batch["mask"].tolist() for batch in batches] == [[True], [True], [False]]


@pytest.mark.skipif(sys.platform != "linux", reason="the call is Linux's")
def test_storage_is_asked_for_the_records_of_later_steps(reader: BatchReader, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _, begin, size, advice: asked.append((begin, size, advice)))
    monkeypatch.setattr(batch_reader, "_STEPS_ANNOUNCED", 1)
    records = RecordReader(reader.manifest.directory, reader.manifest, "train")
    batches = reader.iterate((epoch, step) for epoch in range(2) for step in range(3))
    next(batches)
    steps = ((0, 0), (0, 1), (0, 2), (1, 0))  # one that is made, two that are read, one that is announced
    places = [[records.locate(int(number)) for number in sorted(reader.list_numbers(*step))] for step in steps]
    assert asked == [(place.offset, place.size, os.POSIX_FADV_WILLNEED) for step in places for place in step]
    batches.close()


def test_who_leaves_early_leaves_no_thread(reader: BatchReader) -> None:
    batches = reader.iterate((0, step) for step in range(3))
    next(batches)
    assert list_readers()
    batches.close()
    deadline = time.monotonic() + 5
    while list_readers() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert list_readers() == []


def test_an_error_names_the_record_that_was_read_ahead(reader: BatchReader, monkeypatch: pytest.MonkeyPatch) -> None:
    third = int(reader.list_numbers(0, 2)[0])
    read_payload = RecordReader.read_payload

    def read_damaged(self: RecordReader, index: int) -> bytes:
        return b"\xff" if index == third else read_payload(self, index)

    monkeypatch.setattr(RecordReader, "read_payload", read_damaged)
    batches = reader.iterate((0, step) for step in range(3))
    next(batches)
    next(batches)
    with pytest.raises(FormatError, match=f"^Record {third} of 'train': "):
        next(batches)


def test_crops_of_seekable_jpegs_are_decoded_from_their_markers(
    foreign: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = [encode(draw(120, 160, seed), SAMPLINGS[seed % 4]) for seed in range(12)]
    records = [{"image/encoded": image, "image/class/label": k % 3} for k, image in enumerate(images)]
    foreign.write(tmp_path / "train-00000-of-00001", records)
    manifest = index(IndexConfig(str(tmp_path))).manifest
    assert manifest.splits["train"].seekable
    splices: list[seekable.Splice | None] = []

    def splice_box(data: bytes, box: tuple[int, int, int, int]) -> seekable.Splice | None:
        splices.append(splice := splice_one(data, box))
        return splice

    splice_one = seekable.splice_box
    monkeypatch.setattr(seekable, "splice_box", splice_box)
    train = manifest.splits["train"]
    unmarked = replace(manifest, splits={**manifest.splits, "train": replace(train, seekable_jpegs=0)})
    config = PipelineConfig(global_batch_size=12, image_size=16, seed=3, decoder="tensorflow")
    batches = [
        BatchReader(of, "train", config, Rank(), resize_crop).read(epoch, 0)
        for of in (unmarked, manifest)
        for epoch in (0, 1)
    ]
    assert len(splices) == 24
    assert sum(splice is not None for splice in splices) == 8  # the other boxes need most of an image
    np.testing.assert_array_equal(batches[0]["image"], batches[2]["image"])
    np.testing.assert_array_equal(batches[1]["image"], batches[3]["image"])
