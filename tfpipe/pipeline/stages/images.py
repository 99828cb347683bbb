"""From encoded records to the images that a model gets: the stages `parse`, `decode` and `augment`."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.pipeline.stage import Stage
from tfpipe.pipeline.stages import _bad_records, _outputs
from tfpipe.pipeline.stages import _host_images as image_ops
from tfpipe.pipeline.stages._outputs import Features


def parse(plan: ReadPlan) -> Stage:
    """Features out of encoded records."""
    skip = plan.config.on_bad_record == "skip" and plan.source.shard_records is not None

    def function(payload: tf.Tensor, record: tf.Tensor, seed: tf.Tensor) -> Features:
        features = _outputs.parse(plan, payload)
        if not plan.caches_whole:
            return _outputs.with_seed(plan, features, seed)
        # Behind the cache each epoch gives its own seeds, from the numbers if nothing else knows those.
        return features if plan.exact else {**features, "number": record}

    def apply(records: tf.data.Dataset) -> tf.data.Dataset:
        return _map(plan, _bad_records.leave_out(plan, records) if skip else records, function)

    settings = {**_parallel(plan), "on_bad_record": plan.config.on_bad_record}
    return Stage("parse", apply, settings, "only the features that are needed")


def decode(plan: ReadPlan) -> Stage:
    """Images out of bytes; in training on the host just the crop."""
    config = plan.config
    settings = {**_parallel(plan), "images": " and ".join(sorted(plan.source.images.formats)) or "any"}
    if plan.caches_whole:
        reason = "whole images, squeezed to one size: what the cache keeps"
    elif config.augment == "host":
        settings["dct_scaling"] = config.dct_scaling
        reason = "the crop is fused with the decoder: what lies outside is not decoded"
    elif config.augment == "device":
        reason = "whole images, squeezed to one size: the device crops them"
    else:
        reason = "whole images"
    return Stage(
        "decode", lambda dataset: _map(plan, dataset, lambda features: _decode(plan, features)), settings, reason
    )


def augment(plan: ReadPlan) -> Stage:
    """The image as the trainer gets it."""
    config = plan.config
    settings = {"where": config.augment, "image_dtype": config.image_dtype, **_parallel(plan)}
    size = plan.decoded_size if config.augment == "device" else config.size
    settings["size"] = f"{size[0]}x{size[1]}"
    reason = {
        "host": "random resized crop and flip" if config.training else "resize short side, centre crop",
        "device": "left to the device: uint8 is handed over",
        "none": "plain resize",
    }[config.augment]

    def apply(dataset: tf.data.Dataset) -> tf.data.Dataset:
        # Nothing is left to do: not even a call.
        return dataset if config.augment == "device" else _map(plan, dataset, lambda features: _augment(plan, features))

    return Stage("augment", apply, settings, reason)


def _decode(plan: ReadPlan, features: Features) -> Features:
    """The image in place of its bytes; and whether to flip it, where that is drawn with the crop."""
    config, images = plan.config, plan.source.images
    rest = {name: value for name, value in features.items() if name not in ("encoded", "height", "width")}
    sizes: Features = {name: features[name] for name in ("height", "width") if name in features}
    record = {f"image/{name}": features[name] for name in ("encoded", *sizes)}
    if config.augment == "device" or plan.caches_whole:
        return {**rest, **sizes, "image": image_ops.decode_for_device(record, images, config, plan.decoded_size)}
    if config.augment == "none":
        return {**rest, "image": image_ops.decode_whole(record, images, config)}
    image, flip = image_ops.decode_for_host(record, rest.pop("seed", None), images, config)
    return {**rest, "image": image} | ({} if flip is None else {"flip": flip})


def _augment(plan: ReadPlan, features: Features) -> Features:
    """The image as the model gets it."""
    config = plan.config
    image, flip = features["image"], features.get("flip")
    if config.augment == "host" and plan.caches_whole:
        sizes = [tf.cast(features[name], tf.int32) for name in ("height", "width") if name in features]
        image, flip = image_ops.crop_for_host(image, (sizes[0], sizes[1]) if sizes else None, features["seed"], config)
    names = ("image", "flip", "seed", "height", "width")
    rest = {name: value for name, value in features.items() if name not in names}
    return {**rest, "image": image_ops.augment_on_host(image, flip, config)}


def _map(plan: ReadPlan, dataset: tf.data.Dataset, function: Callable[..., Features]) -> tf.data.Dataset:
    calls = plan.config.num_parallel_calls or tf.data.AUTOTUNE
    return dataset.map(function, num_parallel_calls=calls, deterministic=plan.deterministic)


def _parallel(plan: ReadPlan) -> dict[str, object]:
    return {"num_parallel_calls": plan.config.num_parallel_calls, "deterministic": plan.deterministic}
