"""Batches without a framework: several steps in a row, whose records threads read ahead."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

import tfpipe
from tfpipe.errors import FormatError
from tfpipe.images.decode import resize_crop
from tfpipe.pipeline.config.pipeline_config import PipelineConfig
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
