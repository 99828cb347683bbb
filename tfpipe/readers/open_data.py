"""Opens the engine for a reader: the maker of the batches of one process."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from tfpipe.dataset.load import load_if_path
from tfpipe.engine.batch import Batch, Transform
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.host import Host
from tfpipe.engine.mixed_batch import AnyMaker, AnyPlan, MixedPlan
from tfpipe.engine.mixture import Mixture
from tfpipe.engine.open_maker import open_maker, open_mixture
from tfpipe.engine.plan import check_start_step, plan_batches
from tfpipe.engine.position import Position, Split
from tfpipe.engine.source import Source
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.service.remote import serve_remotely
from tfpipe.system.arguments import check_count, check_function
from tfpipe.system.options import get_options
from tfpipe.system.units import human_count


def open_data(
    data: Manifest | Mixture | str | os.PathLike[str],
    split: str,
    config: PipelineConfig,
    host: Host,
    transform: Transform | None = None,
    *,
    for_devices: bool = False,
) -> AnyMaker:
    """Opens a split for a reader.

    Args:
        data: A manifest from `load_manifest`, a dataset's directory or URL, or several datasets from `mix`.
        split: The name of a split.
        config: The options of `build_dataset`, without those that only `tf.data` has.
        host: The part of each batch that is read.
        transform: A function that replaces crops, resizing and flips; it gets whole images.
        for_devices: Whether a batch may hold only what devices hold.

    Raises:
        ConfigError: The config does not fit this reader, the data or the number of ranks.
        DataError: There are no records, or the directory is not a finished dataset.
        FormatError: A file is missing, or has another size than the manifest says.
    """
    _check_config(config)
    check_function("transform", transform)
    if transform is not None and config.service.workers:
        raise ConfigError("A `transform` runs in this process, and a `service` makes batches elsewhere. Leave one out.")
    opened: Manifest | Mixture = load_if_path(data, Manifest, Mixture)
    if isinstance(opened, Mixture):
        return serve_remotely(open_mixture(opened, split, config, host, transform, for_devices=for_devices))
    plan = plan_batches(Source.from_manifest(opened, split), config, host)
    return serve_remotely(open_maker(plan, transform, for_devices=for_devices))


def locate(maker: AnyMaker, start_step: int) -> Position:
    """Returns the position of a global step of a run.

    Raises:
        ConfigError: There is no such step.
    """
    check_count("start_step", start_step)
    check_start_step(start_step, maker.plan.config)
    return Position(*divmod(start_step, maker.plan.steps_per_epoch))


def list_splits(plan: AnyPlan) -> list[Split]:
    """Lists the splits that a plan reads: one, or one of each dataset of a mixture."""
    parts = plan.parts if isinstance(plan, MixedPlan) else (plan,)
    read = [part.cached or (part.source.manifest, part.source.split) for part in parts]
    return [(manifest, split) for manifest, split in read if manifest and split]


def describe_reader(reader: object, plan: AnyPlan, position: Position | None = None) -> str:
    """Returns the text of a reader: its batches, the data, and the position of the batch that comes next."""
    data = " and ".join(f"{split!r} of {manifest.address}" for manifest, split in list_splits(plan))
    batches = human_count(plan.steps_per_epoch, "batch", "batches")
    goes_on = "" if position is None else f", epoch {position.epoch}, step {position.step}"
    return f"<{type(reader).__name__}: {batches} of {plan.config.batch_size} from {data}{goes_on}>"


def form_batch(batch: Batch, config: PipelineConfig) -> Any:
    """Returns a batch in the trainer's form: a dictionary, or (image, label[, mask]) with `as_supervised`.

    The features in `extra_features` then join the image in a dictionary.
    """
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


def _check_config(config: PipelineConfig) -> None:
    for name, option in get_options(config).items():
        value = getattr(config, name)
        if option.without_tensorflow is not None and value not in option.without_tensorflow:
            raise ConfigError(
                f"`{name}` {value!r} is for the TensorFlow pipeline only: here records are read one by one, in exact "
                "order. Leave it out."
            )
