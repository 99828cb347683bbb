"""A column that was being added when the process was killed: it is there as a whole or not at all."""

import shutil
from pathlib import Path

import tfpipe
from tests.columns.values import get_index, skip_odd
from tests.layers.growth import read_parts
from tests.writer.test_every_writer import write_and_vanish
from tfpipe import fields
from tfpipe.readers.data_source import data_source


def add_even(inputs: Path, output: Path) -> None:
    tfpipe.add_column(output, "even", skip_odd, fields.Values("int64"), missing="view")


def replace_even(inputs: Path, output: Path) -> None:
    tfpipe.add_column(output, "even", get_index, fields.Values("int64"), replace=True)


def test_a_kill_leaves_the_old_column_or_the_new_one(small_dataset: Path, tmp_path: Path) -> None:
    old = shutil.copytree(small_dataset, tmp_path / "old")
    tfpipe.add_column(old, "even", skip_odd, fields.Values("int64"), missing="default")
    replace_even(Path(), Path(shutil.copytree(old, tmp_path / "new")))
    expected, seen = read_parts(tmp_path / "new"), set()
    for moment in range(0, 100, 9):
        output = shutil.copytree(old, tmp_path / str(moment) / "out")
        done = write_and_vanish(replace_even, Path(), output, moment)
        values = [int(record.features["even"][0]) for record in data_source(str(output), "train")]  # type: ignore[index]
        seen.add(tuple(values))
        if done:
            break
        replace_even(Path(), output)
        assert read_parts(output) == expected, moment
    assert moment > 10
    assert seen == {(1, 0, 3, 0, 5, 0, 7, 0, 9, 0, 11, 0), tuple(range(12))}


def test_it_goes_on_after_a_kill_at_every_name(small_dataset: Path, tmp_path: Path) -> None:
    """The process vanishes before it names a file or folder: the column is there as a whole or not at all."""
    straight = shutil.copytree(small_dataset, tmp_path / "straight")
    add_even(Path(), straight)
    expected = read_parts(straight)
    seen = set()
    for moment in range(0, 100, 9):  # a shard takes four names, so each kind has its turn
        output = shutil.copytree(small_dataset, tmp_path / str(moment) / "out")
        if write_and_vanish(add_even, Path(), output, moment):
            break
        columns = tfpipe.load_manifest(str(output)).columns
        seen.add(len(columns))
        assert [record.name for record in data_source(str(output), "train")]
        if not columns:
            add_even(Path(), output)
        assert read_parts(output) == expected, moment
    assert 10 < moment < 98
    assert 0 in seen
