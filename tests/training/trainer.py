"""Trains in its own process, on a number of logical CPUs, and prints the lines of its metrics as JSON.

    python trainer.py DATASET OUTPUT CPUS MODEL

The model `own:batch_norm` is built here.
"""

import json
import os
import sys
import time

import tensorflow as tf

import tfpipe
from tfpipe.training.config import TrainConfig
from tfpipe.training.train import train


def batch_norm(num_classes: int, size: tuple[int, int]) -> tf.keras.Model:
    """Returns a model with a state that replicas share: moving averages, and the random generator of a dropout."""
    layers = [tf.keras.layers.Conv2D(8, 3, strides=4), tf.keras.layers.BatchNormalization(momentum=0.5)]
    head = [tf.keras.layers.Flatten(), tf.keras.layers.Dropout(0.2), tf.keras.layers.Dense(num_classes)]
    return tf.keras.Sequential([tf.keras.Input((*size, 3)), *layers, *head])


def main(dataset: str, output: str, cpus: str, model: str) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * int(cpus))
    strategy = tfpipe.resolve_strategy()
    pipeline = tfpipe.PipelineConfig(batch_size=8, image_size=32, block_records=4)
    config = TrainConfig(pipeline=pipeline, output=output, model=model, epochs=2, log_every_steps=1)
    build = batch_norm if model == "own:batch_norm" else None
    list(train(tfpipe.load_manifest(dataset), config, strategy, build))
    while not os.path.exists(path := f"{output}/metrics.jsonl"):  # the first of several workers writes it
        time.sleep(0.05)
    with open(path) as file:
        print(json.dumps([json.loads(line) for line in file]))


if __name__ == "__main__":
    main(*sys.argv[1:])
