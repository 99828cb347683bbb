"""Stages that one call does for a whole batch, most of them by the native library.

    list, read, parse               in exact order and evaluation: one call reads the records of a batch
    list, read                      in front of a cache in memory: the same
    list, read                      of an object store: a call of its client reads the records of a batch
    parse, decode, augment, batch   in training: one call makes all images of a batch, in its place in memory
    decode, augment                 one call for each image

Records are collected into batches first where that is possible. What TensorFlow does for one record then takes as long
for all of them: 190 us of 500 for an image of 256 px. The images are made by threads of the native library. They
work for the first batch first, so batches come evenly.

A stage that somebody puts between them, or in place of one, finds what it finds without the package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import tensorflow as tf

from tfpipe.format.schema import IMAGE_ENCODED
from tfpipe.native import library
from tfpipe.pipeline import native_operations
from tfpipe.pipeline.engine_stages import Calls, can_serve, offer_engine, open_engine
from tfpipe.pipeline.mask_operations import crop_masks
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.pipeline.stage import Merge, Stage, without_autograph
from tfpipe.pipeline.stages._exact_order import list_batches, list_step_batches
from tfpipe.pipeline.stages.batch import format_batches
from tfpipe.pipeline.stages.decode import choose_crop, decode_and_resize, get_stored_size
from tfpipe.pipeline.stages.list import list_batches_once
from tfpipe.pipeline.stages.parse import Features, leave_out_bad, make_parser, map_in_parallel
from tfpipe.pipeline.stages.read import read_batches

_BATCHES_AT_ONCE = 2  # the second one is read while the first is decoded, and takes its threads when it ends


def fuse_stages(plan: ReadPlan, stages: Sequence[Stage], whole: ReadPlan | None = None) -> list[Stage]:
    """Lets the engine do the work of all stages, or the native library that of neighbors, if that fits.

    Args:
        plan: The plan by which the stages decode.
        stages: The stages.
        whole: The plan of all records, if these are all stages.
    """
    offered = list(stages)

    def collect(records: tf.data.Dataset) -> tf.data.Dataset:
        return leave_out_bad(plan, records).batch(plan.batch_size, drop_remainder=True)

    for place in reversed(range(len(offered))):
        stage, following = offered[place], offered[place + 1 : place + 6]
        names = (stage.name, *(later.name for later in following))
        merges: list[Merge] = []
        if names[:2] == ("decode", "augment") and plan.fuses_augment:
            merges.append(Merge((following[0],), _decode_and_augment(plan, stage, following[0])))
        elif names[:4] == ("parse", "decode", "augment", "batch") and plan.decodes_batches:
            merges.append(Merge((*following[:3],), _make_batches(plan, collect, stage, *following[:3])))
        elif names[:3] == ("list", "read", "parse") and plan.reads_batches:
            read, parse = following[:2]
            reading = _read_batches(plan, stage, read)
            if names[3:] == ("decode", "augment", "batch") and plan.decodes_batches:
                making = _make_batches(plan, lambda batches: batches, *following[1:])
                merges.append(Merge((*following,), (*reading, *making)))
            merges.append(Merge((read, parse), (*reading, _parse_batches(plan, parse))))
        elif names[:2] == ("list", "read") and (plan.reads_first_use or plan.reads_store):
            merges.append(Merge((following[0],), _read_one_by_one(plan, stage, following[0])))
        offered[place] = replace(stage, merges=(*merges,)) if merges else stage
    all_names = [stage.name for stage in offered]
    if whole is not None and "batch" in all_names and can_serve(whole) and library.is_available():
        offered[0] = offer_engine(
            whole, open_engine(whole), count_calls(whole), offered[: all_names.index("batch") + 1]
        )
    return offered


def _read_batches(plan: ReadPlan, listing: Stage, read: Stage) -> tuple[Stage, Stage]:
    """Makes the stages that list and read the records of a batch at once."""

    def list_records(epochs: tf.data.Dataset | None) -> tf.data.Dataset:
        if plan.by_steps:
            return list_step_batches(plan, epochs)
        return (
            list_batches_once(plan) if plan.reads_first_use or not plan.config.training else list_batches(plan, epochs)
        )

    settings = {**read.settings, "cycle_length": plan.batches_read, "block_length": plan.batch_size}
    reader = "the store's client" if plan.reads_store else "the native library"
    native = (
        replace(listing, apply=list_records, reason=f"{listing.reason}, batch by batch"),
        replace(
            read,
            apply=read_batches(plan),
            settings={**settings, "reader": "obstore" if plan.reads_store else "native"},
            reason=f"one call of {reader} reads the records of a batch, each from its place",
        ),
    )
    return without_autograph(native[0]), without_autograph(native[1])


def _read_one_by_one(plan: ReadPlan, listing: Stage, read: Stage) -> tuple[Stage, Stage]:
    """Makes the stages that list and read the records of a batch at once, and give them one by one, as for a cache."""
    listing, read = _read_batches(plan, listing, read)
    read_all = read.apply
    return listing, without_autograph(replace(read, apply=lambda batches: read_all(batches).unbatch()))


def _parse_batches(plan: ReadPlan, parse: Stage) -> Stage:
    """Makes the stage that parses the records of a batch at once, and gives them one by one."""

    def apply(batches: tf.data.Dataset) -> tf.data.Dataset:
        return map_in_parallel(plan, batches, make_parser(plan)).unbatch()

    return without_autograph(replace(parse, apply=apply, reason=f"{parse.reason}, of a batch of records at once"))


def _decode_and_augment(plan: ReadPlan, decode: Stage, augment: Stage) -> tuple[Stage, Stage]:
    native = replace(
        decode,
        apply=lambda dataset: map_in_parallel(plan, dataset, lambda features: _decode_record(plan, features)),
        settings={**decode.settings, "decoder": "native"},
        reason="one call of the native library decodes the crop, resizes, flips and converts it",
    )
    # The graphs do not branch on a tensor in Python.
    return without_autograph(native), replace(augment, apply=lambda dataset: dataset, reason="done by the decoder")


def _decode_record(plan: ReadPlan, features: Features) -> Features:
    """Replaces the bytes by the image that the model gets, or by several."""
    config, images = plan.config, plan.source.images
    if plan.num_images is not None:
        return _decode_several(plan, features)
    record = {f"image/{name}": features[name] for name in ("encoded", "height", "width") if name in features}
    if config.augment == "none":
        crop_box, flip = tf.stack([0, 0, *get_stored_size(record, images)]), None
    else:
        crop_box, flip = choose_crop(record, get_stored_size(record, images), features.get("seed"), images, config)
    image = decode_and_resize(record[IMAGE_ENCODED], crop_box, flip, _describe_result(plan))
    masks = crop_masks(plan, features, crop_box, flip)
    return {**_drop_used(plan, features), **masks, "image": image}


def _decode_several(plan: ReadPlan, features: Features) -> Features:
    """Replaces the bytes of several images of a record by what the model gets, in one call."""
    config, images, number = plan.config, plan.source.images, plan.num_images or 1
    boxes, flips = [], []
    for k in range(number):
        record = {f"image/{name}": features[name][k] for name in ("encoded", "height", "width") if name in features}
        size = get_stored_size(record, images)
        if config.augment == "none":
            crop_box, flip = tf.stack([0, 0, *size]), None
        else:
            seed = features["seed"][k] if "seed" in features else None
            crop_box, flip = choose_crop(record, size, seed, images, config)
        boxes.append(crop_box)
        flips.append(flip)
    flipped = None if flips[0] is None else tf.stack(flips)
    result = _describe_result(plan)
    encoded = tf.ensure_shape(features["encoded"], [number])
    image = decode_and_resize(encoded, tf.stack(boxes), flipped, result)
    return {**_drop_used(plan, features), "image": image}


def _make_batches(
    plan: ReadPlan,
    collect: Callable[[tf.data.Dataset], tf.data.Dataset],
    parse: Stage,
    decode: Stage,
    augment: Stage,
    batch: Stage,
) -> tuple[Stage, ...]:
    """Makes the stages behind `read` out of batches of records, as `collect` gives them."""
    calls, threads = _count_threads(plan)
    parser = make_parser(plan)

    def parse_all(records: tf.data.Dataset) -> tf.data.Dataset:
        return collect(records).map(parser, num_parallel_calls=calls, deterministic=plan.deterministic)

    def decode_all(batches: tf.data.Dataset) -> tf.data.Dataset:
        return batches.map(
            lambda features: _decode_batch(plan, features, threads),
            num_parallel_calls=calls,
            deterministic=plan.deterministic,
        )

    parsing = {**parse.settings, "num_parallel_calls": calls}
    decoding = {**decode.settings, "decoder": "native", "num_parallel_calls": calls, "threads": threads}
    augmented = "done by the decoder" if plan.fuses_augment else augment.reason
    one_call = "one call of the native library makes all images of a batch"
    merged = (
        replace(parse, apply=parse_all, settings=parsing, reason=f"{parse.reason}, of a batch of records at once"),
        replace(decode, apply=decode_all, settings=decoding, reason=one_call),
        replace(augment, apply=lambda batches: batches, reason=augmented),
        replace(batch, apply=lambda batches: format_batches(plan, batches), reason=f"{batch.reason}, before `parse`"),
    )
    return tuple(without_autograph(stage) for stage in merged)


def _decode_batch(plan: ReadPlan, features: Features, threads: int) -> Features:
    """Replaces the bytes of all records by the images that the model gets. Several of a record are rows meanwhile."""
    config, stored = plan.config, plan.source.images.size
    rows = plan.batch_size * (plan.num_images or 1)
    if "height" in features:
        sizes = tf.cast(tf.stack([features["height"], features["width"]], axis=-1), tf.int32)
        sizes = tf.reshape(sizes, [rows, 2])
    else:
        sizes = tf.tile(tf.constant([stored]), [rows, 1])
    if config.augment == "host":
        seeds = tf.reshape(features["seed"], [rows, 2])
        boxes, flips = native_operations.draw_crops(seeds, sizes, stored, config.augment_options)
    else:
        boxes = tf.pad(sizes if stored is None else tf.tile([stored], [rows, 1]), [[0, 0], [2, 0]])
    flip = flips if config.augment == "host" and config.augment_options.flip else None
    encoded = tf.reshape(features["encoded"], [rows])
    images = decode_and_resize(encoded, boxes, flip, _describe_result(plan), threads)
    if plan.num_images is not None:
        images = tf.reshape(images, [plan.batch_size, plan.num_images, *images.shape[1:]])
    return {**_drop_used(plan, features), "image": images}


def _describe_result(plan: ReadPlan) -> native_operations.Result:
    """Describes the images that leave the decoder: for the device whole ones, else what the model gets."""
    config, on_device = plan.config, plan.config.augment == "device"
    size = plan.decoded_size if on_device else config.size
    ratios = plan.source.images.find_ratios(size) if config.dct_scaling else ()
    dtype = "uint8" if on_device else config.image_dtype
    return native_operations.Result(size, dtype, max(ratios, default=1), config.augment_options)


def _drop_used(plan: ReadPlan, features: Features) -> Features:
    """Drops the features that are not needed once the image is made."""
    used = ("encoded",) if plan.config.augment == "device" else ("encoded", "height", "width", "seed")
    return {name: value for name, value in features.items() if name not in used}


def count_calls(plan: ReadPlan) -> Calls:
    """Counts the calls of the engine that work at once."""
    return Calls(plan.batches_read, *_count_threads(plan))


def count_held_threads(plan: ReadPlan) -> int:
    """Counts the threads of tf.data that wait in a call: of the native library for a batch, or of an object store."""
    decoding = _count_threads(plan)[0] if plan.decodes_batches else 0
    return decoding + (plan.batches_read if plan.reads_store else 0)


def _count_threads(plan: ReadPlan) -> tuple[int, int]:
    """Returns the number of batches that are made at once, and of the threads that decode them.

    Threads of the native library are not in tf.data's statistics. Where these must tell the stages apart, each batch
    has the one thread that tf.data counts.
    """
    config = plan.config
    threads = config.num_parallel_calls or plan.cpus
    threads = min(threads, config.threadpool_size or threads)
    return (min(threads, _BATCHES_AT_ONCE), threads) if config.map_fusion else (threads, 1)
