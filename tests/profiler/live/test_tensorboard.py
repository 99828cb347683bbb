"""Curves for TensorBoard, written without TensorFlow and read by it."""

from pathlib import Path

import pytest

from tfpipe.errors import DataError
from tfpipe.profiler.live.tensorboard import Scalars


def test_tensorflow_reads_the_points(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    scalars = Scalars(tmp_path / "logs")
    scalars.write(7, {"train/loss": 0.5, "müsli": -1e30})
    scalars.write(2**40, {"train/loss": 0.25})
    (path,) = (tmp_path / "logs").iterdir()
    first, *events = tf.compat.v1.train.summary_iterator(str(path))
    assert (first.file_version, first.step) == ("brain.Event:2", 0)
    points = [
        (event.step, value.tag, value.metadata.plugin_data.plugin_name, float(tf.make_ndarray(value.tensor)))
        for event in events
        for value in event.summary.value
    ]
    assert points == [
        (7, "train/loss", "scalars", 0.5),
        (7, "müsli", "scalars", pytest.approx(-1e30)),
        (2**40, "train/loss", "scalars", 0.25),
    ]
    assert all(event.wall_time > 1.7e9 for event in events)
    assert all(value.metadata.data_class == 1 for event in events for value in event.summary.value)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"The curves in .*file/logs cannot be written: "):
        Scalars(tmp_path / "file" / "logs").write(1, {"loss": 1.0})
