"""Trains in JAX on all devices of all processes; after a kill it goes on at the very next batch.

    tfpipe shard images shapes --splits train=0.75,validation=0.25
    python jax_train.py shapes --checkpoint run/shapes.npz

The same command resumes, with any number of devices and processes that divides the batch. Of several hosts, start each
with `--coordinator HOST:PORT --processes N --process K`; on a TPU pod or under Slurm `--processes auto` finds the rest.
The checkpoint is one path that all hosts see.
"""

import argparse
import os
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import tfpipe
from tfpipe.readers.jax import normalize


def init_parameters(key: jax.Array, num_classes: int) -> dict[str, Any]:
    """Draws the parameters of a small network, float32; put yours here."""
    draw, sides = jax.nn.initializers.glorot_uniform(), [(3, 16), (16, 32), (32, 64)]
    *keys, last = jax.random.split(key, len(sides) + 1)
    layers = [
        {"kernel": draw(key, (3, 3, *side)), "scale": jnp.ones(side[1]), "offset": jnp.zeros(side[1])}
        for key, side in zip(keys, sides, strict=True)
    ]
    return {"layers": layers, "head": draw(last, (64, num_classes)), "bias": jnp.zeros(num_classes)}


def compute_logits(parameters: dict[str, Any], images: jax.Array, dtype: Any) -> jax.Array:
    """Computes the logits of uint8 images: the convolutions in `dtype`, everything else in float32."""
    x = normalize(images)
    for layer in parameters["layers"]:
        form = ("NHWC", "HWIO", "NHWC")
        kernel = layer["kernel"].astype(dtype)
        x = jax.lax.conv_general_dilated(x.astype(dtype), kernel, (1, 1), "SAME", dimension_numbers=form)
        # Eight groups of channels are normalized in each image, so no device needs the rows of another.
        groups = x.astype(jnp.float32).reshape(*x.shape[:3], 8, -1)
        x = jax.nn.standardize(groups, axis=(1, 2, 4), epsilon=1e-5).reshape(x.shape)
        x = jax.nn.relu(x * layer["scale"] + layer["offset"])
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return x.max((1, 2)) @ parameters["head"] + parameters["bias"]


def main() -> None:
    """Trains, saves every few steps, and evaluates after each epoch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--checkpoint", type=Path, default=Path("run/shapes.npz"))
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=8, help="of all devices together")
    parser.add_argument("--image-size", type=int, default=48)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--save-every", type=int, default=20, help="steps")
    parser.add_argument("--coordinator", help="address and port of the first process")
    parser.add_argument("--processes", default="1", help="a number, or `auto`")
    parser.add_argument("--process", type=int, help="the number of this one, from 0")
    args = parser.parse_args()

    # Join the other processes before JAX looks at its devices: these are then the devices of all.
    if args.processes == "auto":
        jax.distributed.initialize()
    elif int(args.processes) > 1:
        jax.distributed.initialize(args.coordinator, int(args.processes), args.process)
    is_first = jax.process_index() == 0

    # Rows of a batch lie on all devices, process after process, and each process reads its own rows alone. Parameters
    # lie whole on every device.
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    mesh = jax.sharding.Mesh(np.array(devices), ("data",))
    rows, whole = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())

    # The order and the crops depend on the seed, the epoch and the record alone, and never on the number of devices.
    # These shapes fill most of an image, so crops keep 60 % of it or more. Leave `augment_options` out for photographs.
    manifest = tfpipe.load_manifest(args.dataset)
    options = tfpipe.AugmentOptions(scale=(0.6, 1.0), crop_fraction=1.0)
    sizes = {"batch_size": args.batch_size, "image_size": args.image_size}
    config = tfpipe.PipelineConfig(**sizes, seed=1, augment_options=options)
    train = tfpipe.JaxBatches(manifest, "train", config, sharding=rows)
    validation = tfpipe.JaxBatches(manifest, "validation", config, sharding=rows, training=False)
    total_steps, dtype = args.epochs * len(train), jnp.dtype(args.precision)

    def init_state() -> dict[str, Any]:
        parameters = init_parameters(jax.random.key(0), len(manifest.label_names))
        zeros = jax.tree.map(jnp.zeros_like, parameters)
        return {"parameters": parameters, "mean": zeros, "square": zeros, "step": jnp.zeros((), jnp.int32)}

    # The mean of the loss is over the rows of all devices, so the compiler adds the sums between devices itself.
    # The old state is given up, so the new one takes its memory.
    @partial(jax.jit, out_shardings=whole, donate_argnums=0)
    def train_step(state: dict[str, Any], batch: dict[str, jax.Array]) -> tuple[dict[str, Any], jax.Array]:
        def compute_loss(parameters: dict[str, Any]) -> jax.Array:
            log_probabilities = jax.nn.log_softmax(compute_logits(parameters, batch["image"], dtype))
            return -jnp.take_along_axis(log_probabilities, batch["label"][:, None], 1).mean()

        loss, gradients = jax.value_and_grad(compute_loss)(state["parameters"])
        # Adam along a cosine; optax has the same ready-made.
        step, tree_map = state["step"] + 1, jax.tree.map
        rate = args.learning_rate * (1 + jnp.cos(jnp.pi * state["step"] / total_steps)) / 2
        rate *= jnp.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        mean = tree_map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], gradients)
        square = tree_map(lambda s, g: 0.999 * s + 0.001 * g * g, state["square"], gradients)
        update = tree_map(lambda p, m, s: p - rate * m / (jnp.sqrt(s) + 1e-8), state["parameters"], mean, square)
        return {"parameters": update, "mean": mean, "square": square, "step": step}, loss

    @partial(jax.jit, out_shardings=whole)
    def count_correct(parameters: dict[str, Any], batch: dict[str, jax.Array]) -> jax.Array:
        predicted = compute_logits(parameters, batch["image"], dtype).argmax(1)
        # The mask is False in rows that only fill the last batch up.
        return jnp.stack([((predicted == batch["label"]) & batch["mask"]).sum(), batch["mask"].sum()])

    # Resume: every process reads the arrays, and the few integers that say which batch comes next.
    state = jax.jit(init_state, out_shardings=whole)()
    if args.checkpoint.exists():
        saved = np.load(args.checkpoint)
        train.load_state_dict({name: int(saved[name]) for name in saved.files if not name.startswith("leaf")})
        leaves = [saved[f"leaf{k}"] for k in range(len(jax.tree.leaves(state)))]
        state = jax.device_put(jax.tree.unflatten(jax.tree.structure(state), leaves), whole)
    step = int(state["step"])
    if is_first and step:
        print(f"resumed at step {step}", flush=True)

    while step < total_steps:
        for batch in train:  # to the end of the epoch
            state, loss = train_step(state, batch)
            step += 1
            if is_first and (step % args.save_every == 0 or step == total_steps):
                leaves = {f"leaf{k}": np.asarray(leaf) for k, leaf in enumerate(jax.tree.leaves(state))}
                # Written beside it and renamed: a kill leaves the last checkpoint whole.
                args.checkpoint.parent.mkdir(parents=True, exist_ok=True)
                np.savez(following := args.checkpoint.with_suffix(".next.npz"), **leaves, **train.state_dict())
                os.replace(following, args.checkpoint)
                print(f"step {step}: loss {float(loss):.6f}", flush=True)
        correct, count = sum(np.asarray(count_correct(state["parameters"], batch)) for batch in validation)
        if is_first:
            print(f"epoch {step // len(train)}: accuracy {correct / count:.4f}", flush=True)


if __name__ == "__main__":
    main()
