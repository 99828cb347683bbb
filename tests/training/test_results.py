"""Metrics: means from sums."""

import numpy as np

from tfpipe.training.results import Metrics


def test_means_are_over_images() -> None:
    assert Metrics.from_sums(np.array([10.0, 3.0, 4.0, 5.0]), 6) == Metrics(2.0, 0.6, 0.8, 5)


def test_top5_is_left_out_for_five_classes() -> None:
    metrics = Metrics.from_sums(np.array([10.0, 3.0, 5.0, 5.0]), 5)
    assert metrics.top5 is None
    assert metrics.values == {"loss": 2.0, "accuracy": 0.6}


def test_no_images_give_zeros() -> None:
    assert Metrics.from_sums(np.zeros(4), 3) == Metrics(0.0, 0.0, None, 0)
