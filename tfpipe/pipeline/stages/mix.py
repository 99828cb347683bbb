"""The stage `mix`: the pipelines of several datasets in one batch, in place of all that comes before `batch`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.pipeline.stage import Stage, Stages
from tfpipe.system.hash_permutation import MIXTURE, IntArray, key_of, permutation


@dataclass(frozen=True)
class MixturePart:
    """The pipeline of one dataset of a mixture.

    Attributes:
        stages: All stages up to finished images.
        plan: The read plan, whose batch size is the part's share of a batch.
        labels: The class in the mixture of each class of this dataset.
    """

    stages: Stages
    plan: ReadPlan
    labels: list[int]


def mix_datasets(plan: ReadPlan, parts: list[MixturePart]) -> Stage:
    """Takes each part's share of every batch, and spreads it over the batch by one fixed permutation."""

    def apply(_: None) -> tf.data.Dataset:
        datasets = [_map_labels(part) for part in parts]
        choices = tf.data.Dataset.from_tensor_slices(tf.constant(_choose_parts(plan, parts))).repeat()
        return tf.data.Dataset.choose_from_datasets(datasets, choices, stop_on_empty_dataset=False)

    settings = {part.plan.source.name: f"{part.plan.global_batch_size} of {plan.global_batch_size}" for part in parts}
    return Stage("mix", apply, settings, "the same share of every batch, so that any step can be found again")


def _choose_parts(plan: ReadPlan, parts: list[MixturePart]) -> IntArray:
    """Chooses the part from which each image of this host's batch comes; replicas get about equal shares."""
    blocks = [np.full(part.plan.host_batch_size, number, np.int64) for number, part in enumerate(parts)]
    choices: IntArray = np.concatenate(blocks)
    return choices[permutation(key_of(MIXTURE, plan.config.seed), len(choices))]


def _map_labels(part: MixturePart) -> tf.data.Dataset:
    """Builds the part's dataset, with labels that count the classes of the mixture."""
    dataset = part.stages.dataset()
    if "label" not in dataset.element_spec or part.labels == list(range(len(part.labels))):
        return dataset
    table = tf.constant(part.labels, tf.int64)
    return dataset.map(lambda features: {**features, "label": tf.gather(table, features["label"])})
