"""Several pipelines dealt into one batch: the stage `mix`, in place of all that comes before `batch`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.pipeline.stage import Stage, Stages
from tfpipe.system.hash_permutation import MIXTURE, IntArray, key_of, permutation


class Part(NamedTuple):
    """One of the pipelines of a mixture."""

    stages: Stages
    """Up to finished images."""
    plan: ReadPlan
    """Its batch size is its share of a batch."""
    labels: list[int]
    """Class in the mixture of each class of its own."""


def mix(whole: ReadPlan, parts: list[Part]) -> Stage:
    """Takes from each part its share of every batch, spread over the batch by one fixed permutation."""

    def apply(_: None) -> tf.data.Dataset:
        datasets = [_relabelled(part) for part in parts]
        choices = tf.data.Dataset.from_tensor_slices(tf.constant(_pattern(whole, parts))).repeat()
        return tf.data.Dataset.choose_from_datasets(datasets, choices, stop_on_empty_dataset=False)

    settings = {part.plan.source.name: f"{part.plan.global_batch_size} of {whole.global_batch_size}" for part in parts}
    return Stage("mix", apply, settings, "the same share of every batch, so that any step can be found again")


def _pattern(whole: ReadPlan, parts: list[Part]) -> IntArray:
    """Which part each image of this host's batch comes from; replicas get about equal shares."""
    blocks = [np.full(part.plan.host_batch_size, number, np.int64) for number, part in enumerate(parts)]
    flat: IntArray = np.concatenate(blocks)
    return flat[permutation(key_of(MIXTURE, whole.config.seed), len(flat))]


def _relabelled(part: Part) -> tf.data.Dataset:
    dataset = part.stages.dataset()
    if "label" not in dataset.element_spec or part.labels == list(range(len(part.labels))):
        return dataset
    table = tf.constant(part.labels, tf.int64)
    return dataset.map(lambda features: {**features, "label": tf.gather(table, features["label"])})
