"""The cost of an image or of reading it, as it is and with an option or the data changed, by a few of the records."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.config.tf_data_options import TfDataOptions
from tfpipe.engine.features import list_batch_features
from tfpipe.engine.source import Source
from tfpipe.errors import DataError, FormatError, TfpipeError
from tfpipe.format.example import decode_example, encode_example
from tfpipe.format.image_form import ImageForm
from tfpipe.images.decode import make_image
from tfpipe.images.normalize import BadImage, prepare_image
from tfpipe.images.seekable import make_seekable
from tfpipe.pipeline.textbook_choice import is_by_engine
from tfpipe.profiler.measure.clocks import Rest, measure_costs_us
from tfpipe.profiler.measure.samples import (
    RECORDS,
    leave_out,
    list_sizes,
    make_batches,
    make_decoder,
    make_reader,
    sample_records,
    write_file,
    write_sample,
)
from tfpipe.profiler.types import DatasetFacts, TriedChange
from tfpipe.storage.file_io import is_url
from tfpipe.system.options import replace_options

_FROM_CACHE = ("cached", "cached_device")  # which come without their records
_OWN_RECORDS = ("now", "smaller")  # whose reading is measured, too; the others read the records of "now"


class _Trial(NamedTuple):
    config: PipelineConfig
    payloads: list[bytes]
    source: Source


def measure_option_costs(
    source: Source,
    config: PipelineConfig,
    short_side: int | None,
    late_cache: bool = False,
    unread: Collection[str] = (),
) -> dict[TriedChange, float]:
    """Measures the processor time of an image with the config as it is, and with each possible change.

    There are no costs without images or with several in a record, if nothing is decoded in each epoch, or if a record
    is damaged. Features that nobody reads are left out, since reading large ones would outweigh all else.
    """
    one_image = source.has_images and source.per_record is None
    by_engine = is_by_engine(source, config)
    if config.service.workers or config.cache == "decoded" or not one_image:
        return {}
    payloads = sample_records(source, [feature.name for feature in list_batch_features(source, config)])
    if not payloads:
        return {}
    whole_bytes = sum(map(len, payloads))
    payloads = leave_out(payloads, unread) if unread else payloads
    unread_bytes = whole_bytes - sum(map(len, payloads))
    base = replace(config, cache="none", cache_dir=None, cache_bytes=None, max_bad_records=0)
    trials = {name: _Trial(changed, payloads, source) for name, changed in _list_changes(base, by_engine, late_cache)}
    smaller = [] if short_side is None else _shrink_images(source, payloads, short_side)
    if smaller:
        trials["smaller"] = _Trial(base, smaller, _describe_smaller(source, short_side))
    if by_engine and (seekable := _add_markers(source, payloads)):
        trials["seekable"] = _Trial(base, seekable, source)
    costs = _try_engine(trials) if by_engine else _try_stages(source, trials)
    return costs | ({"smaller_bytes": (sum(map(len, smaller)) + unread_bytes) / whole_bytes} if smaller else {})


def _list_changes(
    config: PipelineConfig, by_engine: bool, late_cache: bool
) -> Iterator[tuple[TriedChange, PipelineConfig]]:
    """Yields each change that needs no other records: its name, and its config."""
    yield "now", config
    if config.image_dtype != "uint8":
        yield "uint8", replace(config, image_dtype="uint8")
    if by_engine and config.augment == "host":
        yield "device", replace(config, augment="device", image_dtype="uint8")
    if by_engine and config.augment_options.dct_scaling is False:
        yield "dct_scaling", replace_options(config, {"augment_options.dct_scaling": True})
    yield "cached", replace(config, cache="decoded")
    if by_engine and late_cache:
        yield "cached_device", replace(config, cache="decoded", augment="device", image_dtype="uint8")


def _try_engine(trials: Mapping[TriedChange, _Trial]) -> dict[TriedChange, float]:
    """Measures the engine, in the calling thread; there is no cost if a record is damaged."""
    try:
        decoders = {name: make_decoder(trial.source, trial.config, trial.payloads) for name, trial in trials.items()}
        costs_us = measure_costs_us(decoders, len(trials["now"].payloads), time.thread_time)
        return {name: max(cost, 1.0) for name, cost in costs_us.items()}
    except (FormatError, DataError):  # the pipeline itself says so, or leaves it out
        return {}


def _try_stages(source: Source, trials: Mapping[TriedChange, _Trial]) -> dict[TriedChange, float]:
    """Measures the stages of the textbook pipeline, less what reading takes; no cost if a record is damaged."""
    import tensorflow as tf

    unpacked = replace(source, compression="")
    try:
        with tempfile.TemporaryDirectory(prefix="tfpipe-") as folder:
            files = {name: write_file(f"{folder}/{name}", unpacked, trial.payloads) for name, trial in trials.items()}
            datasets = {name: make_batches(files[name], trial.config) for name, trial in trials.items()}
            for name in (name for name in _OWN_RECORDS if name in trials):
                datasets[f"reading {name}"] = list_sizes(files[name], trials[name].config)
            batches: dict[str, Callable[[], Any]] = {name: iter(dataset).__next__ for name, dataset in datasets.items()}
            if take := _open_engine(f"{folder}/engine", trials["now"]):
                batches["engine"] = take
            costs_us = measure_costs_us(batches, RECORDS, Rest().wait)
    except (OSError, tf.errors.OpError):  # a damaged record: the pipeline itself says so, or leaves it out
        return {}
    reading_us = {name: costs_us.get(f"reading {name}", costs_us["reading now"]) for name in trials}
    reading_us |= dict.fromkeys(_FROM_CACHE, 0.0)
    costs = {name: max(costs_us[name] - reading_us[name], 1.0) for name in trials}
    return costs | ({"engine_share": costs_us["engine"] / costs_us["now"]} if "engine" in costs_us else {})


def _open_engine(folder: str, trial: _Trial) -> Callable[[], Any] | None:
    """Returns a function that takes a batch of the same records from the engine; None if the engine cannot make it."""
    import tensorflow as tf

    from tfpipe.pipeline.build import build_stages

    try:
        sample = write_sample(folder, trial.source, trial.payloads)
        assert sample.manifest is not None
        config = replace(trial.config, order="auto", tf_data=TfDataOptions(), batch_size=RECORDS, prefetch_batches=1)
        batches = build_stages(sample.manifest, sample.split, replace(config, block_records=None)).dataset()
        take: Callable[[], Any] = iter(batches if config.training else batches.repeat()).__next__
        take()
    except (TfpipeError, tf.errors.OpError):
        return None
    return take


def _change_images(
    source: Source, payloads: list[bytes], change: Callable[[bytes], dict[str, Any] | None]
) -> list[bytes]:
    """Returns the records with the features that `change` makes of an image; none if one is bad, or has no change."""
    changed = []
    try:
        for payload in payloads:
            features: dict[str, Any] = dict(decode_example(payload))
            assert source.image_key is not None
            new = change(features[source.image_key][0])
            if new is None:
                return []
            changed.append(encode_example(features | new))
    except BadImage:
        return []
    return changed


def _shrink_images(source: Source, payloads: list[bytes], short_side: int) -> list[bytes]:
    """Returns the records as `tfpipe shard --resize-short` or `--square` writes them."""
    key, is_square, is_raw = source.image_key or "", source.images.size is not None, "RAW" in source.images.formats
    form = ImageForm(square=short_side) if is_square else ImageForm(resize_short=short_side)

    def shrink(stored: bytes) -> dict[str, Any]:
        if is_raw:
            image = make_image(np.frombuffer(stored, np.uint8).reshape(*(source.images.size or ()), 3))
            return {key: [image.resize((short_side, short_side)).tobytes()]}
        prepared = prepare_image(stored, form)
        size = {"image/height": [prepared.height], "image/width": [prepared.width]}
        return {key: [prepared.encoded], **size}

    return _change_images(source, payloads, shrink)


def _describe_smaller(source: Source, side: int | None) -> Source:
    """Returns the data with the size of smaller squares, which no record of raw pixels has."""
    if source.manifest is None or source.images.size is None or side is None:
        return source
    manifest = replace(source.manifest, image={**source.manifest.image, "square": side})
    return replace(source, manifest=manifest, images=replace(source.images, size=(side, side)))


def _add_markers(source: Source, payloads: list[bytes]) -> list[bytes]:
    """Returns the records as `tfpipe reshard --seekable` would write them; none if that would not help, or fails."""

    def mark(stored: bytes) -> dict[str, Any] | None:
        image = make_seekable(stored, ImageForm().max_pixels)
        return None if image is None else {source.image_key or "": [image]}

    return [] if source.images.seekable else _change_images(source, payloads, mark)


def measure_read_costs(source: Source, config: PipelineConfig, facts: DatasetFacts) -> dict[TriedChange, float]:
    """Measures the processor time of reading a record of local files: as it is, without unread features, unpacked."""
    changes: dict[TriedChange, tuple[str, ...]] = {"read": ()}
    if facts.unread_features:
        changes["read_without_unread"] = facts.unread_features
    if facts.compression:
        changes["read_unpacked"] = ()
    if config.cache != "none" or config.service.workers or is_url(source.files[0]):
        return {}
    payloads = sample_records(source, [feature.name for feature in list_batch_features(source, config)])
    if not payloads:
        return {}
    try:
        with tempfile.TemporaryDirectory(prefix="tfpipe-") as folder:
            engine: dict[TriedChange, Callable[[], Any]] = {}
            textbook: dict[TriedChange, Callable[[], Any]] = {}
            for name, features in changes.items():
                left = leave_out(payloads, features) if features else payloads
                sample = write_sample(f"{folder}/{name}", source, left)
                reads_as = source if name == "read" else sample
                if is_by_engine(reads_as, config):
                    engine[name] = make_reader(sample, config)
                else:
                    textbook[name] = _read_file(f"{folder}/{name}/file", reads_as, config, left)
            # Threads of the textbook pipeline may go on for longer than anybody waits. The engine has none.
            costs = measure_costs_us(engine, RECORDS, time.thread_time)
            costs |= measure_costs_us(textbook, RECORDS, Rest().wait)
            return {name: costs[name] for name in changes}
    except (OSError, FormatError, DataError, tf.errors.OpError):
        return {}


def _read_file(path: str, source: Source, config: PipelineConfig, payloads: list[bytes]) -> Callable[[], Any]:
    """Returns a function that reads a batch of records from a new file, as the textbook pipeline would read it."""
    batches = list_sizes(write_file(path, source, payloads), config)
    read: Callable[[], Any] = iter(batches).__next__
    return read
