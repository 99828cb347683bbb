"""cedar's SimCLR pipeline as stages: what leaves it, also with grey in front of the jitter."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import tfpipe
from beam_jobs import shard_job
from beam_jobs.config import ShardConfig
from tests.benchmarks.cedar import simclr
from tests.benchmarks.cedar.compare import ROWS, format_table


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixteen JPEGs of two classes in two shards."""
    folder, rng = tmp_path_factory.mktemp("simclr"), np.random.default_rng(0)
    for number in range(16):
        path = folder / "images" / ("cat", "dog")[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (40, 50, 3), np.uint8)).resize((100, 80)).save(path)
    shard_job.run(ShardConfig(input=str(folder / "images"), output=str(folder / "shards"), num_shards=2, workers=1))
    return folder / "shards"


def check(batch: dict[str, tf.Tensor], size: int) -> None:
    image = batch["image"].numpy()
    assert (image.shape, image.dtype) == ((size, 244, 244, 1), np.float32)
    assert image.mean(axis=(1, 2, 3)) == pytest.approx(np.zeros(size), abs=1e-3)
    assert image.std(axis=(1, 2, 3)) == pytest.approx(np.ones(size), rel=1e-3)
    assert (batch["label"].dtype, set(batch["label"].numpy().tolist())) == (tf.int32, {0, 1})


def test_grey_stands_behind_the_jitter_or_in_front_of_it(shards: Path) -> None:
    config = replace(simclr.CONFIG, batch_size=8)
    manifest = tfpipe.load_manifest(str(shards))
    stages = tfpipe.build_stages(manifest, "train", config, customize=simclr.add_simclr)
    assert stages.names[-6:] == ("jitter", "grey", "blur", "standardize", "batch", "prefetch")
    check(next(iter(stages.dataset())), 8)
    moved = tfpipe.build_stages(manifest, "train", config, customize=simclr.add_moved_simclr)
    assert moved.names[-6:-3] == ("grey", "jitter", "blur")
    check(next(iter(moved.dataset())), 8)


@pytest.mark.parametrize("grey_first", [False, True])
def test_plain_tf_data_gives_the_same(shards: Path, grey_first: bool) -> None:
    check(next(iter(simclr.make_plain(str(shards), grey_first))), 64)


def test_a_blur_keeps_what_is_even_and_spreads_a_point() -> None:
    even = simclr.blur(tf.fill([20, 30, 1], 0.25))
    np.testing.assert_allclose(even, np.full((20, 30, 1), 0.25), rtol=1e-5)
    point = simclr.blur(tf.scatter_nd([[10, 15, 0]], [1.0], [20, 30, 1])).numpy()
    assert point.sum() == pytest.approx(1, rel=1e-5)
    assert point[4, 15] == point[16, 15] == point[10, 9] == 0
    np.testing.assert_allclose(point[5:16, 10:21, 0], point[5:16, 10:21, 0].T, atol=1e-7)


def test_the_table_compares_within_a_round() -> None:
    runs = [
        {"row": row, "images_per_cpu_s": speed * factor, "images_per_s": [600.0 * factor, 400.0 * factor]}
        for speed in (100.0, 200.0)
        for row, factor in zip(ROWS, (1, 1.5, 0.9, 1.6), strict=True)
    ]
    lines = [" ".join(line.split()) for line in format_table(runs).splitlines()]
    assert lines[0] == "images per CPU-second per second to plain, in the same round"
    assert lines[1] == "150 ( 100- 200) 500 1.00 (1.00-1.00) plain tf.data"
    assert lines[4] == "240 ( 160- 320) 800 1.60 (1.60-1.60) tfpipe, grey moved"
    assert lines[5].startswith("2 rounds, ")
