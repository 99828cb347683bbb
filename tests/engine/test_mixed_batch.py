"""Batches of several datasets: fixed shares, spread over the rows, the same for any number of hosts."""

from pathlib import Path

import numpy as np
import pytest

import tfpipe
from tests.integrity.made import payload, write_dataset
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.mixture import Mixture
from tfpipe.readers.numpy import NumpyBatches

CONFIG = PipelineConfig(batch_size=12, image_size=8, seed=5, extra_features=("image/filename",))


@pytest.fixture(scope="module")
def mixture(tmp_path_factory) -> Mixture:
    folder = tmp_path_factory.mktemp("mixture")
    first = {"train": [payload(k) for k in range(9)], "train:1": [payload(k) for k in range(9, 20)]}
    second = {"train": [payload(100 + k) for k in range(33)]}
    folders = write_dataset(folder / "a", first), write_dataset(folder / "b", second)
    return tfpipe.mix({str(one): weight for one, weight in zip(folders, (2, 1), strict=True)})


def read_names(mixture: Mixture, hosts: int, steps: range) -> list[list[bytes]]:
    """Reads the names in each global batch, host after host."""
    ranks = [NumpyBatches(mixture, "train", CONFIG, rank=(host, hosts)) for host in range(hosts)]
    return [[name for rank in ranks for name in rank.read(step)["image/filename"]] for step in steps]


def test_a_pass_ends_with_the_records_of_all(mixture: Mixture) -> None:
    batches = NumpyBatches(mixture, "train", CONFIG)
    assert len(batches) == 4  # of 53 records
    names = [batch["image/filename"] for _ in range(2) for batch in batches]
    assert names == read_names(mixture, 1, range(8))
    again = NumpyBatches(mixture, "train", CONFIG)
    again.load_state_dict({**batches.state_dict(), "epoch": 1, "step": 2})
    assert [batch["image/filename"] for batch in again] == names[6:]


def test_a_host_without_a_row_of_a_dataset_may_leave_records_out(mixture: Mixture) -> None:
    even = tfpipe.mix({manifest.directory: 1 for manifest in mixture.manifests})
    for host in range(2):
        strict, lenient = (
            NumpyBatches(even, "train", CONFIG, batch_size=2, rank=(host, 2), max_bad_records=most).read(3)
            for most in (0, 1)
        )
        assert lenient["image/filename"] == strict["image/filename"]
        np.testing.assert_array_equal(lenient["image"], strict["image"])


def test_a_path_may_hold_spaces(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "my pets", {"train": [payload(k) for k in range(4)]})
    assert len(NumpyBatches(folder, "train", PipelineConfig(batch_size=2, image_size=8))) == 2
