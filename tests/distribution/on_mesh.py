"""A process of a mesh of TensorFlow's DTensor: it trains a model that is split, and prints what it saw as JSON.

python on_mesh.py DATASET DEVICES LAYOUT [NUMBER OF THE PROCESS, ADDRESS OF EACH PROCESS, ...]

The mesh has two parts of the data and two of the model. LAYOUT is the dimension that comes first.
"""

import json
import os
import sys
import zlib

import tensorflow as tf
from tensorflow.experimental import dtensor

import tfpipe

DIMS = {"data": [("data", 2), ("model", 2)], "model": [("model", 2), ("data", 2)]}
TRAIN = {"batch_size": 16, "image_size": 8, "seed": 7, "block_records": 4}
EVALUATE = {"batch_size": 64, "image_size": 12, "augment": "none", "training": False}
SIZE = 8 * 8 * 3


def hash_rows(array):
    return [zlib.crc32(row.tobytes()) for row in array.numpy()]


def train(mesh, directory, start, stop):
    """Follows a training whose weights are split along `model`.

    Returns:
        The layout of a batch; of each step the checksums of the images that each device holds; and of each step the
        loss.
    """
    config = tfpipe.PipelineConfig(**TRAIN)
    batches = iter(tfpipe.distribute_over_mesh(mesh, tfpipe.load_manifest(directory), "train", config, start))
    split = dtensor.Layout([dtensor.UNSHARDED, "model"], mesh)
    values = tf.reshape(tf.range(SIZE * 6, dtype=tf.float32) / 1e4, [SIZE, 6])
    weights = dtensor.DVariable(dtensor.relayout(dtensor.copy_to_mesh(values, replicate(mesh, 2)), split))

    @tf.function
    def step(images):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.reshape(tf.cast(images, tf.float32) / 255.0, [16, SIZE]) @ weights))
        weights.assign_sub(0.01 * tape.gradient(loss, weights))
        return dtensor.relayout(loss, replicate(mesh, 0))

    held, losses = [], []
    for _ in range(start, stop):
        batch = next(batches)
        layout = [str(dtensor.fetch_layout(batch[name]).sharding_specs) for name in ("image", "label")]
        held.append([hash_rows(part) for part in dtensor.unpack(batch["image"])])
        losses.append(float(dtensor.unpack(step(batch["image"]))[0]))
    return layout, held, losses


def evaluate(mesh, directory):
    """Returns the labels of each device in the evaluation, without rows that fill a batch, and the steps."""
    config = tfpipe.PipelineConfig(**EVALUATE)
    batches = tfpipe.distribute_over_mesh(mesh, tfpipe.load_manifest(directory), "validation", config)
    seen = [[] for _ in range(mesh.num_local_devices())]
    for batch in batches:
        for labels, label, mask in zip(
            seen, dtensor.unpack(batch["label"]), dtensor.unpack(batch["mask"]), strict=True
        ):
            labels.extend(label.numpy()[mask.numpy()].tolist())
    return seen, batches.steps_per_epoch


def replicate(mesh, rank):
    return dtensor.Layout.replicated(mesh, rank)


def run(mesh, directory, start, stop):
    places = [[place["data"], place["model"]] for place in mesh.local_device_locations()]
    return [places, *train(mesh, directory, start, stop), *evaluate(mesh, directory)]


def main(directory, devices, layout, number="0", *addresses):
    if addresses:
        os.environ.update(DTENSOR_CLIENT_ID=number, DTENSOR_NUM_CLIENTS=str(len(addresses)), DTENSOR_JOB_NAME="worker")
        os.environ["DTENSOR_JOBS"] = ",".join(addresses)
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * int(devices))
    dtensor.initialize_accelerator_system("CPU")
    print(json.dumps(run(dtensor.create_distributed_mesh(DIMS[layout], device_type="CPU"), directory, 0, 3)))


if __name__ == "__main__":
    main(*sys.argv[1:])
