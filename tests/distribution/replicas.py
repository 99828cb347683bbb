"""A trainer's process: it sets up logical CPUs, runs tasks on them, and prints their results as JSON on its last line.

python replicas.py DATASET CPUS TASK[:ARGUMENT]...
"""

import json
import sys
import zlib

import tensorflow as tf
from tensorflow.experimental import dtensor

import tfpipe
from tfpipe.distribution.strategy import describe_strategy
from tfpipe.pipeline.device.augment import AugmentLayer, augment

TRAIN = {"batch_size": 16, "image_size": 8, "seed": 7, "block_records": 4}
EVALUATE = {"batch_size": 64, "image_size": 12, "augment": "none", "training": False}


class Trainer:
    """One of the processes of a strategy."""

    def __init__(self, directory, strategy):
        self.manifest, self.strategy = tfpipe.load_manifest(directory), strategy

    def dataset(self, split="train", start_step=0, **options):
        config = tfpipe.PipelineConfig(**options)
        return tfpipe.distribute_dataset(self.strategy, self.manifest, split, config, start_step)

    def local(self, value):
        """What this process has of an element, replica after replica."""
        return [part.numpy() for part in self.strategy.experimental_local_results(value)]

    def devices(self, _):
        number = self.strategy.run(lambda: tf.distribute.get_replica_context().replica_id_in_sync_group)
        devices = [device[-5:] for device in self.strategy.extended.worker_devices]
        return [describe_strategy(self.strategy), devices, int(self.strategy.reduce("SUM", number, None))]

    def sequence(self, start, stop):
        batches = iter(self.dataset(start_step=start, extra_features=("image/filename",), **TRAIN))
        steps = []
        for _ in range(start, stop):
            batch = next(batches)
            names = [name.decode() for part in self.local(batch["image/filename"]) for name in part]
            sums = [zlib.crc32(image.tobytes()) for part in self.local(batch["image"]) for image in part]
            steps.append([names, sums])
        return steps

    def order(self, stop):
        return self.sequence(0, int(stop))

    def resume(self, starts):
        return [self.sequence(int(start), int(start) + 4) for start in starts.split(",")]

    def evaluate(self, _):
        """Counts over all replicas and steps: images guessed right, real images, steps."""

        def step(batch):
            return tfpipe.masked_sum(guess(batch["image"]) == batch["label"], batch["mask"])

        def all_replicas(batch):
            return [self.strategy.reduce("SUM", part, None) for part in self.strategy.run(step, (batch,))]

        all_replicas = tf.function(all_replicas)
        sums = [[float(number) for number in all_replicas(batch)] for batch in self.dataset("validation", **EVALUATE)]
        right, count = (sum(column) for column in zip(*sums, strict=True))
        return {"right": right, "count": count, "steps": len(sums)}

    def keras_evaluate(self, _):
        dataset = self.dataset("validation", as_supervised=True, **EVALUATE)
        with self.strategy.scope():
            model = tf.keras.Sequential([tf.keras.layers.Lambda(lambda images: tf.one_hot(guess(images), 6))])
            model.compile(
                loss=tf.keras.losses.SparseCategoricalCrossentropy(),
                weighted_metrics=["accuracy"],
                jit_compile=self.strategy.num_replicas_in_sync == 1,
            )
        results = [model.evaluate(dataset, steps=s, verbose=0, return_dict=True) for s in (None, 4, 4)]
        return {"accuracies": [result["accuracy"] for result in results], "steps": int(dataset.cardinality)}

    def fit(self, where):
        options = {**TRAIN, "as_supervised": True, "augment": where}
        config = tfpipe.PipelineConfig(**options)
        tf.keras.utils.set_random_seed(1)
        with self.strategy.scope():
            model = Net()
            model.compile(
                optimizer="sgd",
                loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                weighted_metrics=["accuracy"],
                jit_compile=self.strategy.num_replicas_in_sync == 1,
            )
        history = model.fit(
            self.dataset(**options),
            steps_per_epoch=tfpipe.steps_per_epoch(self.manifest, "train", config, self.strategy),
            validation_data=self.dataset("validation", **{**options, "training": False}),
            epochs=2,
            verbose=0,
        )
        return {**history.history, "iterations": int(self.local(model.optimizer.iterations.value)[0])}

    def loop(self, steps):
        """Returns the losses of a loop whose gradients, augmentation included, are one compiled function."""
        with self.strategy.scope():
            weights = tf.Variable(tf.zeros([8 * 8 * 3, 5]))
            optimizer = tf.keras.optimizers.SGD(0.1)
            optimizer.build([weights])

        @tf.function(jit_compile=True)
        def gradients(batch):
            pixels = augment(batch["image"], batch["crop"], batch["flip"], 8)
            with tf.GradientTape() as tape:
                logits = tf.reshape(pixels, [-1, 8 * 8 * 3]) @ weights
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["label"], logits)
                loss = tf.reduce_sum(losses) / TRAIN["batch_size"]
            return loss, tape.gradient(loss, weights)

        def step(batch):
            loss, gradient = gradients(batch)
            optimizer.apply_gradients([(gradient, weights)])
            return loss

        @tf.function
        def all_replicas(batch):
            return self.strategy.reduce("SUM", self.strategy.run(step, (batch,)), None)

        batches = iter(self.dataset(augment="device", **TRAIN))
        return [float(all_replicas(next(batches))) for _ in range(int(steps))]

    def bfloat16(self, _):
        batch = next(iter(self.dataset(image_dtype="bfloat16", **TRAIN)))
        images = self.strategy.experimental_local_results(batch["image"])
        return [[image.dtype.name, list(image.shape), image.device[-5:]] for image in images]

    def mesh(self, _):
        """Follows a training and an evaluation on a mesh of the same devices, which `on_mesh.py` describes."""
        import on_mesh

        mesh = dtensor.create_mesh(on_mesh.DIMS["data"], device_type="CPU")
        return on_mesh.run(mesh, self.manifest.directory, 0, 3)


def guess(images):
    """Right where the class's shade is not blurred too much: int32 [batch]."""
    return tf.cast(images[:, 0, 0, 0], tf.int32) // 40


class Net(tf.keras.Model):
    """Takes images that the host has augmented, or a dictionary of those that it has not."""

    def __init__(self):
        super().__init__()
        self.augment = AugmentLayer(8)
        self.head = tf.keras.Sequential(
            [tf.keras.layers.Rescaling(1 / 255), tf.keras.layers.Flatten(), tf.keras.layers.Dense(5)]
        )

    def call(self, inputs):
        if isinstance(inputs, dict):
            inputs = self.augment(inputs["image"], inputs["crop"], inputs["flip"])
        return self.head(inputs)


def run(directory, strategy, tasks):
    trainer, results = Trainer(directory, strategy), {}
    for task in tasks:
        name, _, argument = task.partition(":")
        results[task] = getattr(trainer, name)(argument)
    return results


def main(directory, cpus, *tasks):
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * int(cpus))
    print(json.dumps(run(directory, tfpipe.resolve_strategy(), tasks)))


if __name__ == "__main__":
    main(*sys.argv[1:])
