"""Compares a plain loop and `IdleMonitor` in a real training; README.md has the details.

python tests/benchmarks/idle_agreement.py --rounds 5 --json agreement.json
"""

import json
import os
import statistics
import time
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import click

BATCH, SIZE, CLASSES, WARM_UP = 256, 64, 10, 10
PLANTED = (0.0, 0.05, 0.25, 0.5, 0.75)
LOOPS = ("loop", "keras")
STORED_SIZE = {"decode, light": 64, "decode, heavy": 400}
"""The side of the images that a real pipeline decodes."""
INPUTS = (*(f"{share:.0%}" for share in PLANTED), *STORED_SIZE)
"""The planted waits, and the pipelines that work on the trainer's cores."""


@dataclass(frozen=True)
class Row:
    """The idle fraction of one training, found in two ways.

    Attributes:
        loop: The loop that makes the steps: "loop" is a loop of this file, "keras" is `model.fit`.
        input: The wait that was planted, or a real pipeline that shares the cores with the trainer.
        step_ms: The time of a step.
        training: The figure of a plain loop, by the time in which it waits for a batch.
        monitor: The figure of `IdleMonitor`.
    """

    loop: str
    input: str
    step_ms: float
    training: float
    monitor: float

    @property
    def difference(self) -> float:
        """The difference of `IdleMonitor` and the plain loop, in points."""
        return 100 * (self.monitor - self.training)


@click.command()
@click.option("--rounds", default=5, show_default=True, help="How often each row is measured, in turns.")
@click.option("--steps", default=30, show_default=True, help="Steps of a measurement.")
@click.option("--loop", "loops", type=click.Choice(LOOPS), multiple=True, help="Only this one.  [default: both]")
@click.option("--only", type=click.Choice(INPUTS), multiple=True, help="Only these inputs; repeatable.  [default: all]")
@click.option("--json", "json_file", type=click.Path(), help="Write all rows to this file.")
def main(rounds: int, steps: int, loops: tuple[str, ...], only: tuple[str, ...], json_file: str | None) -> None:
    """Train a small network on CPU with inputs that make it wait, and print the idle fractions."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    names = [name for name in INPUTS if not only or name in only]
    rows = []
    for _ in range(rounds):
        for loop, name in product(loops or LOOPS, names):
            rows.append(measure(loop, name, steps))
            click.echo(str(rows[-1]), err=True)
    if json_file:
        Path(json_file).write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    click.echo("\n".join(table(rows)))


def table(rows: list[Row]) -> list[str]:
    """Returns the lines of a table: medians over the rounds, and the largest differences."""
    lines = [f"{'':6}{'input':15}{'step':>9}{'training':>10}{'monitor':>10}{'apart (worst)':>16}"]
    for loop, name in dict.fromkeys((row.loop, row.input) for row in rows):
        same = [row for row in rows if (row.loop, row.input) == (loop, name)]
        line = f"{loop:6}{name:15}{statistics.median(row.step_ms for row in same):>6.1f} ms"
        line += f"{statistics.median(row.training for row in same):>10.1%}"
        line += f"{statistics.median(row.monitor for row in same):>10.1%}"
        line += format_points([row.difference for row in same], 16)
        lines.append(line)
    return lines


def format_points(values: list[float], width: int) -> str:
    """Returns the median and the value that is farthest from 0, as text."""
    text = f"{statistics.median(values):+.1f} ({max(values, key=abs):+.1f})"
    return f"{text:>{width}}"


def measure(loop: str, name: str, steps: int) -> Row:
    """Measures one row."""
    import tfpipe

    model = network()
    step = keras_step(model) if loop == "keras" else compiled_step(model)
    sleep_s = 0.0
    if name not in STORED_SIZE:
        share = float(name.rstrip("%")) / 100
        sleep_s = time_loop(step, batches(0.0), 20)[0] * share / (1 - share)
    data = decoded(STORED_SIZE[name]) if name in STORED_SIZE else batches(sleep_s)

    before = time_loop(step, data, steps // 2)
    monitor = tfpipe.IdleMonitor(every_steps=max(1, steps // 10), warm_up=WARM_UP)
    run = fit if loop == "keras" else run_loop
    run(model, step, data, monitor, steps)
    after = time_loop(step, data, steps // 2)  # a machine that becomes slower meanwhile affects both ways alike
    step_s, idle = ((a + b) / 2 for a, b in zip(before, after, strict=True))
    return Row(loop, name, 1000 * step_s, idle, monitor.result().idle_fraction.median)


def time_loop(step: Any, data: Any, steps: int) -> tuple[float, float]:
    """Trains in a plain loop. Returns the median time of a step, and the share of the time in which it waits.

    On a CPU a step has ended when its call returns.
    """
    iterator, waits, computes = iter(data), [], []
    for _ in range(WARM_UP + steps):
        asked_at = time.perf_counter()
        batch = next(iterator)
        got_at = time.perf_counter()
        step(batch)
        waits.append(got_at - asked_at)
        computes.append(time.perf_counter() - got_at)
    wait_s, compute_s = sum(waits[WARM_UP:]), sum(computes[WARM_UP:])
    return statistics.median(computes[WARM_UP:]), wait_s / (wait_s + compute_s)


def run_loop(model: Any, step: Any, data: Any, monitor: Any, steps: int) -> None:
    """Trains in a loop of this file."""
    for batch in monitor.iterate(data.take(WARM_UP + steps)):
        with monitor.step() as handle:
            handle.result = step(batch)


def fit(model: Any, step: Any, data: Any, monitor: Any, steps: int) -> None:
    """Trains in Keras' own loop."""
    model.fit(monitor.watch(data.take(WARM_UP + steps + 1)), callbacks=[monitor.callback()], verbose=0)


def network() -> Any:
    """Returns a small image classifier."""
    import tensorflow as tf

    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Input([SIZE, SIZE, 3], dtype="uint8"),
            layers.Rescaling(1 / 255),
            layers.Conv2D(16, 3, strides=2, activation="relu"),
            layers.Conv2D(32, 3, strides=2, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(CLASSES),
        ]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.SGD(0.01), loss, jit_compile=True)
    return model


def compiled_step(model: Any) -> Any:
    """Returns the training step of the model, without Keras' loop."""
    import tensorflow as tf

    model.optimizer.build(model.trainable_variables)

    @tf.function(jit_compile=True)
    def step(batch: Any) -> Any:
        images, labels = batch
        with tf.GradientTape() as tape:
            loss = model.compute_loss(images, labels, model(images, training=True))
        model.optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    return step


def keras_step(model: Any) -> Any:
    """Returns the step that `fit` compiles, with its metrics."""
    import tensorflow as tf

    model.optimizer.build(model.trainable_variables)
    return tf.function(model.train_step, jit_compile=True)


def batches(sleep_s: float) -> Any:
    """Returns random images. Each batch takes `sleep_s` to come, and nothing prefetches it."""
    import numpy as np
    import tensorflow as tf

    random = np.random.default_rng(0)
    images = random.integers(0, 256, [8, BATCH, SIZE, SIZE, 3], np.uint8)
    labels = random.integers(0, CLASSES, [8, BATCH])

    def sleep(image: Any, label: Any) -> Any:
        slept = tf.numpy_function(lambda v: (time.sleep(sleep_s), v)[1], [label], label.dtype)
        return image, tf.ensure_shape(slept, label.shape)

    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.inject_prefetch = False
    data = tf.data.Dataset.from_tensor_slices((images, labels)).repeat()
    return (data.map(sleep) if sleep_s else data).with_options(options)


def decoded(size: int) -> Any:
    """Returns a pipeline that decodes images of this size, on the cores that the trainer needs."""
    import numpy as np
    import tensorflow as tf

    noise = np.random.default_rng(0).integers(0, 256, [16, 16, 16, 3], np.uint8)
    files = [tf.io.encode_jpeg(tf.cast(tf.image.resize(image, [size, size]), tf.uint8)).numpy() for image in noise]

    def decode(file: Any) -> Any:
        image = tf.io.decode_jpeg(file, 3)[:SIZE, :SIZE]
        return tf.ensure_shape(image, [SIZE, SIZE, 3]), tf.strings.length(file) % CLASSES

    data = tf.data.Dataset.from_tensor_slices(files).repeat().map(decode, 2)
    return data.batch(BATCH, drop_remainder=True).prefetch(2)


if __name__ == "__main__":
    main()
