"""Writes a trained model as a serialized JAX function of decoded images, with the preprocessing inside.

```
RUN/model/
  model.jax     opened by `jax.export.deserialize`, with plain JAX: StableHLO for CPUs, GPUs and TPUs
  labels.txt    names of classes, one on each line, in the order of their numbers
  tfpipe.json   for `tfpipe predict`: how the dataset's images were stored
```

    with open("runs/flowers/model/model.jax", "rb") as file:
        model = jax.export.deserialize(bytearray(file.read())).call
    probabilities = model(images)

`images` is uint8 [batch, height, width, 3]: whole decoded images of any one size. The function takes their center,
resizes and normalizes it as the evaluation does, and returns float32 [batch, classes]. Pixels may differ by a level
from those of the evaluation, which rounds twice as it resizes.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import FormatError, first_line
from tfpipe.format.manifest import Manifest
from tfpipe.readers.jax import normalize
from tfpipe.training.jax.models import Parameters, apply_small_cnn
from tfpipe.training.model_files import PROGRAMS, Program, write_model

_PLATFORMS = ("cpu", "cuda", "tpu")


def export_model(parameters: Parameters, config: PipelineConfig, manifest: Manifest, directory: str) -> None:
    """Writes the function. It appears under its name when it is complete, in place of an earlier one.

    Raises:
        DataError: The model cannot be written.
    """
    symbols = "b, h, w, 3" if config.augment != "none" else f"b, {config.size[0]}, {config.size[1]}, 3"
    images = jax.ShapeDtypeStruct(jax.export.symbolic_shape(symbols), jnp.uint8)
    served = jax.jit(partial(_predict, parameters=parameters, config=config))
    exported = jax.export.export(served, platforms=_PLATFORMS)(images)
    write_model(directory, (PROGRAMS["jax"], bytes(exported.serialize())), config, manifest)


def load_model(data: bytes, path: str) -> Program:
    """Returns a function of decoded images, which computes the probabilities of all classes.

    It is compiled for each size of images and of the batch.

    Raises:
        FormatError: The file is damaged.
    """
    try:
        function = jax.export.deserialize(bytearray(data))
    except Exception as error:  # a damaged file raises anything
        raise FormatError(f"The model {path} is damaged: {first_line(error)}.") from error
    return lambda images: np.asarray(function.call(images), np.float32)


def _predict(images: jax.Array, parameters: Parameters, config: PipelineConfig) -> jax.Array:
    """Computes the probabilities: float32 [batch, classes]."""
    pixels = _resize_center(images, config) if config.augment != "none" else images
    return jax.nn.softmax(apply_small_cnn(parameters, normalize(pixels, options=config.augment_options)))


def _resize_center(images: jax.Array, config: PipelineConfig) -> jax.Array:
    """Resizes the center crop by one matrix for each axis: float32 [batch, *size, 3], whole numbers."""
    sides = [jnp.asarray(side, jnp.float32) for side in images.shape[1:3]]
    units = [side / out for side, out in zip(sides, config.size, strict=True)]
    short = jnp.minimum(*units)
    rows, columns = (
        _make_weights(axis_size, side, jnp.floor(short * out * config.augment_options.crop_fraction + 0.5), out, config)
        for axis_size, side, out in zip(images.shape[1:3], sides, config.size, strict=True)
    )
    pixels = jnp.einsum("ih,bhwc,jw->bijc", rows, images.astype(jnp.float32), columns, precision="highest")
    return jnp.clip(jnp.round(pixels), 0, 255)


def _make_weights(size: int, side: jax.Array, crop: jax.Array, out: int, config: PipelineConfig) -> jax.Array:
    """Computes the weights of a side's pixels in each output pixel: bilinear, with half-pixel centers, [out, side]."""
    crop = jnp.clip(crop, 1, side)
    first = jnp.floor((side - crop) / 2)
    unit = crop / out
    # The crop is an image of its own: pixels beyond it have no weight.
    places = jnp.arange(size, dtype=jnp.float32)[None]
    inside = (places >= first) & (places < first + crop)
    centers = first + (jnp.arange(out, dtype=jnp.float32)[:, None] + 0.5) * unit - 0.5
    reach = jnp.maximum(unit, 1.0) if config.augment_options.antialias else 1.0
    weights = jnp.where(
        inside, jnp.maximum(1 - jnp.abs(places - jnp.clip(centers, first, first + crop - 1)) / reach, 0), 0
    )
    return weights / weights.sum(axis=1, keepdims=True)
