"""The end of a batch in readers without TensorFlow: the trainer's own functions, and the form that the trainer takes.

Both functions run in the threads that make batches, and their errors reach the trainer as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tfpipe.engine.batch import Batch, Maker, Transform, leave_out_masked
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.plan import has_true_size
from tfpipe.errors import ConfigError
from tfpipe.system.arguments import check_function

ImageTransform: TypeAlias = Callable[[Any, "np.random.Generator"], NDArray[Any]]
"""A function from a whole Pillow image and random numbers to an array, all of one shape and dtype."""

BatchTransform: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]
"""A function from a finished batch to the one that the trainer gets."""


class _SeededTransform:
    """A transform whose random numbers are seeded by the record, so that they depend on no thread, host or resume."""

    def __init__(self, transform: ImageTransform) -> None:
        self._transform = transform

    def __call__(self, image: Any, seed: int) -> NDArray[Any]:
        return self._transform(image, np.random.default_rng(seed))


def seed_transform(transform: ImageTransform | None) -> Transform | None:
    """Returns the transform as the engine calls it, with the record's seed."""
    return None if transform is None else _SeededTransform(transform)


def stack_images(images: list[Any], maker: Maker, kind: type, library: Any) -> Any:
    """Stacks a transform's results of one `kind`, and zeros in rows that fill up, with `numpy` or `torch`."""
    plan = maker.plan
    # A host may have fewer records to evaluate than others, and none for its last batch.
    examples = images or [maker.make_example_image()]
    wrong = next((image for image in examples if not isinstance(image, kind)), None)
    forms = sorted({f"{image.dtype} {tuple(image.shape)}" for image in examples}) if wrong is None else []
    if len(forms) != 1:
        got = type(wrong).__name__ if wrong is not None else " and ".join(forms)
        raise ConfigError(f"`transform` must return {kind.__name__}s of one shape and dtype, got {got}.")
    filled = plan.batch_size * (plan.num_images or 1) - len(images)
    stacked = library.stack([*images, *[library.zeros_like(examples[0])] * filled])
    return stacked if plan.num_images is None else stacked.reshape(-1, plan.num_images, *stacked.shape[1:])


def finish_arrays(batch: Batch, maker: Maker) -> Batch:
    """Returns a batch of the engine with the results of a transform as one array, and its mask as the config has it."""
    if isinstance(batch.get("image"), list):
        batch = {**batch, "image": stack_images(batch["image"], maker, np.ndarray, np)}
    return weigh_mask(batch, maker.plan.config)


def leave_out_filled(batch: Batch, maker: Maker) -> Batch:
    """Returns a batch in its true size, if the config asks for pairs and this process has all of its rows."""
    plan = maker.plan
    return leave_out_masked(batch) if has_true_size(plan.config, plan.batch_size) else batch


def transform_batch(batch: Batch, transform: BatchTransform | None, maker: Maker) -> Batch:
    """Returns what the trainer's function makes of a batch of a maker, whose clocks count it."""
    if transform is None:
        return batch
    with maker.clocks.measure("batch_transform"):
        changed = transform(batch)
    if not isinstance(changed, dict):
        raise ConfigError(f"`batch_transform` must return a dictionary, got {type(changed).__name__}.")
    config = maker.plan.config
    lacks = {"image", "label", *config.extra_features} - set(changed) if config.as_supervised else set()
    if lacks:
        raise ConfigError(
            f"`batch_transform` must return {', '.join(sorted(lacks))} too, of which `as_supervised` makes a pair, got "
            f"{', '.join(map(str, changed)) or 'nothing'}."
        )
    return changed


def form_batch(batch: Batch, config: PipelineConfig) -> Any:
    """Returns a batch as the trainer gets it: a dictionary, or (inputs, label[, mask]) with `as_supervised`."""
    if not config.as_supervised:
        return batch
    inputs = {name: batch[name] for name in ("image", *config.extra_features)}
    first = inputs if config.extra_features else inputs["image"]
    return (first, batch["label"], batch["mask"]) if "mask" in batch else (first, batch["label"])


def weigh_mask(batch: Batch, config: PipelineConfig) -> Batch:
    """Returns a batch whose mask is float32 weights, if the config asks for pairs."""
    if config.as_supervised and "mask" in batch:
        return {**batch, "mask": batch["mask"].astype(np.float32)}
    return batch


class Finish:
    """A function that turns batches of the engine into NumPy arrays in the trainer's form. Threads may share it."""

    def __init__(self, maker: Maker, batch_transform: BatchTransform | None = None, *, fills_up: bool = False) -> None:
        check_function("batch_transform", batch_transform)
        self._maker, self._transform, self._fills_up = maker, batch_transform, fills_up

    def __call__(self, batch: Batch) -> Any:
        """Returns the batch in the trainer's form: a dictionary, or a pair."""
        arrays = finish_arrays(batch, self._maker)
        if not self._fills_up:
            arrays = leave_out_filled(arrays, self._maker)
        changed = transform_batch(arrays, self._transform, self._maker)
        return form_batch(changed, self._maker.plan.config)
