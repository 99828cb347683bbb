"""Records of a batch, read from their places by one call of the native library, and the pipeline that reads so."""

from __future__ import annotations

import dataclasses
import os
import random
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

import tfpipe
from tests.integrity.made import payload, write_dataset
from tests.native.conftest import Draw, frame
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.pipeline.build import build_stages
from tfpipe.pipeline.native_operations import read_records
from tfpipe.pipeline.plan.read_plan import InputContext
from tfpipe.pipeline.stage import Stage

Places = NDArray[np.int64]


def write_files(folder: Path) -> tuple[list[str], list[bytes], Places]:
    """Writes three files, with records of all sizes up to two that are not read with their neighbors."""
    rng = np.random.default_rng(3)
    paths, payloads, places = [], [], []
    for file, sizes in enumerate(([0, 1, 5000, 30], [700_000, 600_000, 9], [*range(40)])):
        payloads += [rng.bytes(size) for size in sizes]
        frames = [frame(data) for data in payloads[-len(sizes) :]]
        ends = np.cumsum([len(each) for each in frames])
        places += [[file, end - len(each), end] for each, end in zip(frames, ends.tolist(), strict=True)]
        paths.append(str(folder / f"{file}.tfrecord"))
        Path(paths[-1]).write_bytes(b"".join(frames))
    return paths, payloads, np.array(places, np.int64)


def read(paths: list[str], places: Places, threads: int = 3, ahead: int = 0) -> list[bytes | None]:
    payloads, whole = read_records(tf.constant(paths), tf.constant(places), threads, ahead)
    assert payloads.shape == whole.shape == [len(places)]
    assert all(data == b"" for data, there in zip(payloads.numpy(), whole.numpy(), strict=True) if not there)
    return [data if there else None for data, there in zip(payloads.numpy(), whole.numpy(), strict=True)]


def forget_pages(path: str) -> None:
    """Drops a file from the page cache."""
    with Path(path).open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.mark.parametrize(("threads", "ahead"), [(1, 0), (5, 20_000), (2, 10**9)])
@pytest.mark.parametrize("is_cached", [True, False])
def test_records_come_in_the_order_of_their_places(tmp_path: Path, threads: int, ahead: int, is_cached: bool) -> None:
    paths, payloads, places = write_files(tmp_path)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    anywhere = rng.integers(0, len(places), 100)
    for chosen in (np.arange(len(places)), anywhere, anywhere[:1], anywhere[:0]):
        if not is_cached:
            for path in paths:
                forget_pages(path)
        assert read(paths, places[chosen], threads, ahead) == [payloads[k] for k in chosen]


def test_what_is_not_whole_is_empty(tmp_path: Path) -> None:
    paths, expected, places = write_files(tmp_path)
    changed = bytearray(Path(paths[0]).read_bytes())
    changed[places[2, 1] + 100] ^= 1  # within a payload
    changed[places[3, 1]] ^= 1  # the length of another
    Path(paths[0]).write_bytes(changed)
    Path(paths[1]).unlink()
    os.truncate(paths[2], places[-2, 1] + 3)
    found = read(paths, places)
    assert found == [*expected[:2], None, None, None, None, None, *expected[7:-2], None, None]
    inside = places[8] + [0, 1, 0]
    assert read(paths, np.array([inside, places[8], [2, 10**15, 10**16], [2, 0, 0], [2, 5, 9]])) == [
        None,
        expected[8],
        None,
        None,
        None,
    ]


def test_places_of_no_file_are_refused(tmp_path: Path) -> None:
    paths, _, places = write_files(tmp_path)
    for wrong in ([3, 0, 9], [-1, 0, 9], [0, -1, 9], [0, 9, 8]):
        with pytest.raises(tf.errors.InvalidArgumentError, match="needs the number of a file, a first byte and the"):
            read(paths, np.array([*places[:2], wrong]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="needs the number of a file, a first byte and the"):
        read(paths, places[:, :2])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, draw_jpeg: Draw) -> str:
    """60 JPEGs in three shards."""
    data = [draw_jpeg(20 + k % 7, 30 - k % 5) for k in range(60)]
    payloads = [
        payload(k, encoded=each, format="JPEG", height=20 + k % 7, width=30 - k % 5) for k, each in enumerate(data)
    ]
    shards = {"train": payloads[:13], "train:1": payloads[13:40], "train:2": payloads[40:]}
    made = write_dataset(tmp_path_factory.mktemp("read") / "made", shards)
    path = made / "manifest.json"
    path.write_text(path.read_text().replace('"PNG": 60', '"JPEG": 60'))
    return str(made)


@dataclasses.dataclass
class Host:
    """A host's place among two, each with two replicas."""

    input_pipeline_id: int
    num_input_pipelines: int = 2
    num_replicas_in_sync: int = 4


def list_ids(folder: str, decoder: str, context: InputContext | None, stage: Stage | None, **options: object) -> object:
    config = PipelineConfig(
        **{"global_batch_size": 8, "image_size": 16, "extra_features": ("image/filename",), "decoder": decoder}
        | options  # type: ignore[arg-type]
    )
    stages = build_stages(tfpipe.load_manifest(folder), "train", config, context, 3 * config.training)
    readers = [each.settings.get("reader") for each in stages.merge_neighbors()]
    assert ("engine" in readers) == (decoder == "native")
    if stage is not None:
        stages = stages.insert_after("parse", stage)
        readers = [each.settings.get("reader") for each in stages.merge_neighbors()]
        assert ("native" in readers) == (decoder == "native")
    batches = stages.dataset().take(17).as_numpy_iterator()
    return [[batch["image/filename"].tolist(), batch["image"].tolist()] for batch in batches]


@pytest.mark.parametrize(
    ("options", "context", "stage"),
    [
        ({}, None, None),
        ({}, Host(1), None),
        pytest.param({"run_records": 5, "lanes": 1, "read_parallel_calls": 1}, Host(0), None, marks=pytest.mark.slow),
        pytest.param(
            *({"run_records": 8, "num_streams": 2, "lanes": 2, "global_batch_size": 12}, Host(1), None),
            marks=pytest.mark.slow,
        ),
        ({"training": False}, None, None),
        ({"training": False}, Host(1), None),
        ({"augment": "device"}, None, Stage("own", lambda dataset: dataset.filter(lambda x: x["height"] > 22))),
    ],
    ids=["default", "host", "turns", "lanes", "evaluation", "evaluation on a host", "own stage"],
)
def test_batches_are_those_of_tensorflows_reader(
    folder: str, options: dict[str, object], context: InputContext | None, stage: Stage | None
) -> None:
    native, plain = (list_ids(folder, decoder, context, stage, **options) for decoder in ("native", "tensorflow"))
    assert native == plain
