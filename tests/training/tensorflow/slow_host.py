"""A stage that is slow on one host of a training: worker 1 sleeps for each image."""

import json
import os
import time

import tensorflow as tf

import tfpipe


def on_worker_1(stages: tfpipe.Stages) -> tfpipe.Stages:
    """Puts a stage that waits behind `augment`, on the second worker of `TF_CONFIG` alone."""
    evaluates = "repeat" not in stages.names  # while it waits there, training batches would be made ahead
    if evaluates or json.loads(os.environ["TF_CONFIG"])["task"]["index"] != 1:
        return stages
    return stages.insert_after("augment", tfpipe.Stage("wait", lambda dataset: dataset.map(_wait)))


def _wait(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    def sleep(image: object) -> object:
        time.sleep(0.05)
        return image

    image = tf.numpy_function(sleep, [example["image"]], example["image"].dtype)
    return {**example, "image": tf.ensure_shape(image, example["image"].shape)}
