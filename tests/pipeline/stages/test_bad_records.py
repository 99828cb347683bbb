"""Damaged, cut off and missing files: named, or left out and counted; and never waited for."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
import tensorflow as tf

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import DataError, FormatError
from tfpipe.format.manifest import Manifest
from tfpipe.open_dataset import load_manifest
from tfpipe.pipeline.build import build_dataset, build_stages

RECORDS = 23
KINDS: dict[str, dict] = {
    "exact": {"num_streams": 1, "global_batch_size": 1},
    # A small buffer: in a large one a record can wait by chance for as long as a test looks.
    "throughput": {"order": "throughput", "shuffle_buffer_size": 4},
    "evaluation": {"training": False},
    "cached": {"cache": "bytes", "num_streams": 1, "global_batch_size": 1},
}
THIRD_SHARD = 7 + 5 + 2


def ids(manifest: Manifest, kind: str, records: int | None = None, **options) -> list[int]:
    """Lists the ids that come out of `parse`, which is before images are decoded."""
    config = PipelineConfig(
        **{"global_batch_size": 8, "image_size": 8, "extra_features": ("id",), **KINDS[kind], **options}
    )
    dataset = build_stages(manifest, "train", config).until("parse").dataset()
    return [int(features["id"]) for features in islice(dataset.as_numpy_iterator(), records)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_is_left_out_and_reported_once(
    copied: Manifest, kind: str, capfd: pytest.CaptureFixture, shard_paths: Callable, flip_bit: Callable
) -> None:
    path = shard_paths(copied)[3]
    flip_bit(path, 4)
    epochs = 1 if kind == "evaluation" else 3
    # Seen in three epochs it is still one record, of which one is allowed.
    seen = ids(copied, kind, epochs * (RECORDS - 1), on_bad_record="skip", max_bad_records=1)
    others = Counter(number for number in range(RECORDS) if number != THIRD_SHARD + 4)
    if kind == "throughput":  # the buffer mixes the end of an epoch with the next one
        assert set(seen) == set(others)
    else:
        for epoch in range(epochs):
            assert Counter(seen[epoch * (RECORDS - 1) :][: RECORDS - 1]) == others
    notices = [line for line in capfd.readouterr().err.splitlines() if "tfpipe" in line]
    assert notices == [f'tfpipe leaves out "record 4 of {path}" as damaged: 1 so far']


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_is_an_error_that_names_its_place(
    copied: Manifest, kind: str, shard_paths: Callable, flip_bit: Callable
) -> None:
    path = shard_paths(copied)[3]
    flip_bit(path, 4)
    sentence = (
        f"A record must be whole and readable: record 4 of {path} is damaged, or its file cannot be read. "
        "Copy the file again, save the rest with `tfpipe repair`, or set on_bad_record to skip."
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(sentence)):
        ids(copied, kind, 2 * RECORDS)


@pytest.fixture
def bad_neighbors(copied: Manifest, shard_paths: Callable, flip_bit: Callable) -> list[str]:
    """Damages four records of the first shard, two of them in their lengths, and returns their places."""
    path = shard_paths(copied)[0]
    flip_bit(path, 6, "length")
    flip_bit(path, 3)
    flip_bit(path, 2, "length")
    flip_bit(path, 0)
    return [f"record {record} of {path}." for record in (0, 2, 3, 6)]


@pytest.mark.parametrize("kind", ["exact", "evaluation"])
def test_neighbors_of_damage_stay(
    copied: Manifest, bad_neighbors: list[str], kind: str, capfd: pytest.CaptureFixture
) -> None:
    """A length that cannot be trusted hides no other record: each begins where the index says."""
    good = [number for number in range(RECORDS) if number not in {0, 2, 3, 6}]
    seen = ids(copied, kind, len(good), on_bad_record="skip", max_bad_records=4)
    assert sorted(seen) == good
    assert capfd.readouterr().err.count("tfpipe leaves out") == 4


@pytest.mark.parametrize("kind", [pytest.param("exact", marks=pytest.mark.slow), "evaluation"])
def test_more_damage_than_allowed_is_an_error(copied: Manifest, bad_neighbors: list[str], kind: str) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        ids(copied, kind, RECORDS - 4, on_bad_record="skip", max_bad_records=3)
    assert "At most 3 bad records may be left out (`max_bad_records`); one more is record " in str(caught.value)
    assert any(place in str(caught.value) for place in bad_neighbors)


def test_an_evaluation_stays_whole_where_records_are_left_out(
    copied: Manifest, shard_paths: Callable, flip_bit: Callable
) -> None:
    for record in range(3):
        flip_bit(shard_paths(copied)[0], record)
    options = {"training": False, "on_bad_record": "skip", "extra_features": ("id",), "image_size": 8}
    dataset = build_dataset(copied, "train", PipelineConfig(global_batch_size=10, **options))
    assert dataset.cardinality() == 3
    batches = list(dataset)
    assert [int(tf.reduce_sum(tf.cast(batch["mask"], tf.int32))) for batch in batches] == [10, 10, 0]
    assert sorted(int(i) for batch in batches for i in batch["id"][batch["mask"]]) == list(range(3, RECORDS))


@pytest.mark.parametrize("change", ["cut", "missing", "longer"])
def test_another_file_than_the_manifest_says_is_refused(copied: Manifest, change: str, shard_paths: Callable) -> None:
    path = shard_paths(copied)[1]
    size = path.stat().st_size
    sentence = f"{path} must have {size:,} bytes, as its manifest says, got "
    if change == "missing":
        path.unlink()
        sentence = f"{path} is missing. Copy the dataset again."
    elif change == "cut":
        os.truncate(path, size - 1)
    else:
        path.write_bytes(path.read_bytes() + b"0")
    with pytest.raises(FormatError, match=re.escape(sentence)):
        build_stages(copied, "train", PipelineConfig(global_batch_size=4))


def test_a_file_that_cannot_be_read_is_refused(
    copied: Manifest, monkeypatch: pytest.MonkeyPatch, shard_paths: Callable
) -> None:
    path = shard_paths(copied)[1]
    access = os.access  # root may read everything
    monkeypatch.setattr(os, "access", lambda name, mode: str(name) != str(path) and access(name, mode))
    with pytest.raises(DataError, match=re.escape(f"{path} cannot be read: Permission denied.")):
        build_stages(copied, "train", PipelineConfig(global_batch_size=4))


@pytest.mark.parametrize(("kind", "where"), [("exact", "url"), ("throughput", "local"), ("evaluation", "url")])
def test_a_file_that_vanishes_is_an_error_and_not_waited_for(
    copied: Manifest, kind: str, where: str, shard_paths: Callable
) -> None:
    path = shard_paths(copied)[3]
    manifest = load_manifest(f"file://{copied.directory}") if where == "url" else copied
    config = PipelineConfig(**{"global_batch_size": 8, "image_size": 8, **KINDS[kind]})
    dataset = build_dataset(manifest, "train", config)
    path.unlink()
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"record \d of \S*{re.escape(path.name)} is damaged"):
        list(dataset.take(2 * RECORDS))


def test_names_are_not_patterns(copied: Manifest, tmp_path: Path) -> None:
    folder = Path(copied.directory).rename(tmp_path / "a name with [1-3], * and ? in it")
    manifest = load_manifest(str(folder))
    assert sorted(ids(manifest, "evaluation", on_bad_record="skip")) == list(range(RECORDS))
    assert sorted(ids(manifest, "exact", RECORDS)) == list(range(RECORDS))
