"""The end of a batch in readers without TensorFlow: the trainer's own functions, and the form that the trainer takes.

Both functions run in the threads that make batches, and their errors reach the trainer as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tfpipe.engine.batch import Batch, Maker, Transform, form_batch, leave_out_masked
from tfpipe.engine.plan import has_true_size
from tfpipe.errors import ConfigError
from tfpipe.system.arguments import check_function

ImageTransform: TypeAlias = Callable[[Any, "np.random.Generator"], NDArray[Any]]
"""A function from a whole Pillow image and random numbers to an array, all of one shape and dtype."""

BatchTransform: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]
"""A function from a finished batch to the one that the trainer gets."""


def seed_transform(transform: ImageTransform | None) -> Transform | None:
    """Returns the transform as the engine calls it: with the record's seed, whatever the thread, host or resume."""
    return None if transform is None else partial(_call_seeded, transform)


def _call_seeded(transform: ImageTransform, image: Any, seed: int) -> NDArray[Any]:
    return transform(image, np.random.default_rng(seed))


class Finish:
    """A function that turns batches of the engine into the trainer's form. Threads may share it.

    This one makes NumPy arrays. Others change `_convert`, before the trainer's function, or `_place`, after it.
    """

    _library: Any = np  # of what a transform returns
    _kind: type = np.ndarray

    def __init__(self, maker: Maker, batch_transform: BatchTransform | None = None, *, fills_up: bool = False) -> None:
        check_function("batch_transform", batch_transform)
        self._maker, self._transform, self._fills_up = maker, batch_transform, fills_up
        features = {feature.name: feature.spec.tensor for feature in maker.plan.features}
        self._has_images = "image" not in features  # else a feature of records without images has this name
        self._bfloat16 = {
            name for name, tensor in features.items() if tensor is not None and tensor.dtype == "bfloat16"
        }
        if maker.plan.config.image_dtype == "bfloat16" and self._has_images:
            self._bfloat16.add("image")  # uint16 holds its bits

    def __call__(self, batch: Batch) -> Any:
        """Returns the batch in the trainer's form: a dictionary, or (inputs, label[, mask]) with `as_supervised`."""
        plan = self._maker.plan
        config = plan.config
        if isinstance(batch.get("image"), list) and self._has_images:
            batch = {**batch, "image": self._stack(batch["image"])}
        if config.as_supervised and "mask" in batch:
            batch = {**batch, "mask": batch["mask"].astype(np.float32)}  # weights
        batch = self._convert(batch)
        if has_true_size(config, plan.batch_size) and not self._fills_up:
            batch = leave_out_masked(batch)
        return form_batch(self._place(self._change(batch)), config)

    def _convert(self, batch: Batch) -> Batch:
        """Turns arrays into those of a framework."""
        return batch

    def _place(self, batch: Batch) -> Batch:
        """Puts arrays where the framework takes them."""
        return batch

    def _stack(self, images: list[Any]) -> Any:
        """Stacks a transform's results, and zeros in rows that fill up."""
        library, plan = self._library, self._maker.plan
        # A host may have fewer records to evaluate than others, and none for its last batch.
        examples = images or [self._maker.make_example_image()]
        wrong = next((image for image in examples if not isinstance(image, self._kind)), None)
        forms = sorted({f"{image.dtype} {tuple(image.shape)}" for image in examples}) if wrong is None else []
        if len(forms) != 1:
            got = type(wrong).__name__ if wrong is not None else " and ".join(forms)
            raise ConfigError(f"`transform` must return {self._kind.__name__}s of one shape and dtype, got {got}.")
        filled = plan.batch_size * (plan.num_images or 1) - len(images)
        stacked = library.stack([*images, *[library.zeros_like(examples[0])] * filled])
        return stacked if plan.num_images is None else stacked.reshape(-1, plan.num_images, *stacked.shape[1:])

    def _change(self, batch: Batch) -> Batch:
        """Calls the trainer's function, whose time the maker's clocks count."""
        if self._transform is None:
            return batch
        with self._maker.clocks.measure("batch_transform"):
            changed = self._transform(batch)
        if not isinstance(changed, dict):
            raise ConfigError(f"`batch_transform` must return a dictionary, got {type(changed).__name__}.")
        config = self._maker.plan.config
        lacks = {"image", "label", *config.extra_features} - set(changed) if config.as_supervised else set()
        if lacks:
            raise ConfigError(
                f"`batch_transform` must return {', '.join(sorted(lacks))} too, of which `as_supervised` makes a pair, "
                f"got {', '.join(map(str, changed)) or 'nothing'}."
            )
        return changed
