"""A column that was being added when the process was killed: it is there as a whole or not at all."""

from __future__ import annotations

import shutil
from pathlib import Path

import tfpipe
from tests.beam_jobs.datasets import read_tree
from tests.columns.values import skip_odd
from tests.writer.test_every_writer import write_and_vanish
from tfpipe.readers.data_source import data_source


def add_even(inputs: Path, output: Path) -> None:
    tfpipe.add_column(output, "even", skip_odd, tfpipe.Values("int64"), missing="view")


def test_it_goes_on_after_a_kill_at_every_name(small_dataset: Path, tmp_path: Path) -> None:
    """The process vanishes before it names a file or folder: the column is there as a whole or not at all."""
    straight = shutil.copytree(small_dataset, tmp_path / "straight")
    add_even(Path(), straight)
    expected = read_tree(straight)
    seen = set()
    for moment in range(0, 100, 3):  # a shard takes four names, so each kind has its turn
        output = shutil.copytree(small_dataset, tmp_path / str(moment) / "out")
        if write_and_vanish(add_even, Path(), output, moment):
            break
        columns = tfpipe.load_manifest(str(output)).columns
        seen.add(len(columns))
        assert [record.name for record in data_source(str(output), "train")]
        if not columns:
            add_even(Path(), output)
        assert read_tree(output) == expected, moment
    assert 10 < moment < 98
    assert 0 in seen
