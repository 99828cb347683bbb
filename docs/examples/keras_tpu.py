"""Trains a Keras model on a TPU, on GPUs or on the CPU; after a kill it goes on at the very next batch.

    tfpipe shard images shapes --splits train=0.75,validation=0.25
    python keras_tpu.py shapes --output run

The same command resumes, also in the middle of an epoch. The loop is its own, since Keras' `fit` counts whole epochs.
"""

import argparse

import tensorflow as tf

import tfpipe


def build_model(num_classes: int) -> tf.keras.Model:
    """Builds a small network; put yours here."""
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Rescaling(1 / 127.5, -1)])
    for channels in (16, 32, 64):
        model.add(layers.Conv2D(channels, 3, padding="same", use_bias=False))
        # It looks at one image at a time, and keeps no moving averages that replicas would have to share.
        model.add(layers.GroupNormalization(8))
        model.add(layers.ReLU())
        model.add(layers.MaxPooling2D())
    model.add(layers.GlobalMaxPooling2D())
    # The last layer computes in float32 under every policy: a softmax of bfloat16 is too coarse for the loss.
    model.add(layers.Dense(num_classes, dtype="float32"))
    return model


def main() -> None:
    """Trains, saves every few steps, and evaluates after each epoch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--output", default="run", help="folder of the checkpoints; gs:// for a TPU by its name")
    parser.add_argument("--tpu", help="`local`, or the name of a TPU; by default a TPU, else GPUs, else the CPU")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=8, help="of all replicas together")
    parser.add_argument("--image-size", type=int, default=48)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--precision", choices=["auto", "float32", "bfloat16"], default="auto")
    parser.add_argument("--save-every", type=int, default=10, help="steps, which run without a return to Python")
    args = parser.parse_args()

    # First of all: a TPU must be set up before TensorFlow does anything else. Then the layers' number format: "auto" is
    # bfloat16 where the device is built for it, with weights in float32.
    strategy = tfpipe.resolve_strategy(args.tpu)
    tfpipe.set_precision(args.precision, strategy)
    tf.keras.utils.set_random_seed(0)

    # Images stay uint8 on their way to the device, a quarter of the bytes; the model's first layer makes floats.
    # These shapes fill most of an image, so crops keep 60 % of it or more. Leave `augment_options` out for photographs.
    manifest = tfpipe.load_manifest(args.dataset)
    options = tfpipe.AugmentOptions(scale=(0.6, 1.0), crop_fraction=1.0)
    sizes = {"batch_size": args.batch_size, "image_size": args.image_size}
    config = tfpipe.PipelineConfig(**sizes, seed=1, augment_options=options)
    steps_per_epoch = tfpipe.steps_per_epoch(manifest, "train", config, strategy)
    total_steps = args.epochs * steps_per_epoch

    # Variables must be made in the scope, so that each replica has them. Building the optimizer now makes its variables
    # too, before a checkpoint fills them.
    with strategy.scope():
        model = build_model(len(manifest.label_names))
        model.build((None, args.image_size, args.image_size, 3))
        rates = tf.keras.optimizers.schedules.CosineDecay(args.learning_rate, total_steps)
        optimizer = tf.keras.optimizers.Adam(rates)
        optimizer.build(model.trainable_variables)

    # Resume: the step is the whole state of the input. It is saved with the weights, so both are of one moment.
    step_saved = tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, step=step_saved)
    manager = tf.train.CheckpointManager(checkpoint, args.output, max_to_keep=2)
    if manager.latest_checkpoint:
        checkpoint.restore(manager.latest_checkpoint).assert_consumed()
        print(f"resumed at step {int(step_saved)}", flush=True)
    step = int(step_saved)

    # XLA compiles the step into one program; all batches have one shape, so it compiles once.
    @tf.function(jit_compile=True)
    def compute_gradients(batch: dict[str, tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            logits = model(batch["image"], training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["label"], logits)
            # The optimizer adds the gradients of all replicas up, so each has its part of the mean of the whole batch.
            loss = tf.reduce_sum(losses) / args.batch_size
        return loss, tape.gradient(loss, model.trainable_variables)

    def train_replica(batch: dict[str, tf.Tensor]) -> tf.Tensor:
        loss, gradients = compute_gradients(batch)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    @tf.function
    def train_steps(iterator: tf.data.Iterator, count: tf.Tensor) -> tf.Tensor:
        loss = tf.constant(0.0)
        for _ in tf.range(count):  # a loop on the device: Python would be too slow for a TPU
            loss = strategy.reduce("SUM", strategy.run(train_replica, (next(iterator),)), axis=None)
        return loss

    def count_correct(batch: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        predicted = tf.argmax(model(batch["image"], training=False), 1, tf.int32)
        # The mask is False in rows that only fill the last batch up: they count as nothing.
        return tfpipe.masked_sum(predicted == batch["label"], batch["mask"])

    @tf.function
    def evaluate_batch(batch: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        correct, count = strategy.run(count_correct, (batch,))
        return strategy.reduce("SUM", correct, axis=None), strategy.reduce("SUM", count, axis=None)

    # Training batches never end, so the loop below counts the steps. They begin where the checkpoint was written.
    train = iter(tfpipe.distribute_dataset(strategy, manifest, "train", config, start_step=step))
    validation = tfpipe.distribute_dataset(strategy, manifest, "validation", config, training=False)
    while step < total_steps:
        # To the next checkpoint, or to the end of the epoch if that comes first.
        count = min(args.save_every - step % args.save_every, steps_per_epoch - step % steps_per_epoch)
        loss = train_steps(train, tf.constant(count))
        step += count
        step_saved.assign(step)
        manager.save(checkpoint_number=step)
        print(f"step {step}: loss {float(loss):.6f}", flush=True)
        if step % steps_per_epoch == 0:
            sums = [evaluate_batch(batch) for batch in validation]
            correct, images = (sum(float(value) for value in values) for values in zip(*sums, strict=True))
            print(f"epoch {step // steps_per_epoch}: accuracy {correct / images:.4f}", flush=True)


if __name__ == "__main__":
    main()
