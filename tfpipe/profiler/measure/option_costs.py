"""Measures an image's processor time with the current config and with changed options or data, on a few records."""

import contextlib
import itertools
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfpipe._version import __version__
from tfpipe.engine.batch import Batch, BatchMaker, StoredBatch
from tfpipe.engine.cached_batch import CachingMaker
from tfpipe.engine.config.pipeline_config import PipelineConfig, TfDataOptions
from tfpipe.engine.features import list_batch_features
from tfpipe.engine.parse import join_block, parse_columns
from tfpipe.engine.plan import plan_batches
from tfpipe.engine.record_reader import RecordReader
from tfpipe.engine.source import Source
from tfpipe.errors import DataError, FormatError, TfpipeError
from tfpipe.format import file_names
from tfpipe.format.compressed import scan_compressed
from tfpipe.format.example import decode_example, encode_example
from tfpipe.format.image_form import ImageForm
from tfpipe.format.manifest import Foreign, ImageSizes, Manifest, ShardInfo, SplitInfo
from tfpipe.format.record_index import RecordWriter
from tfpipe.format.tfrecord import FRAME_BYTES, scan_records
from tfpipe.images.decode import decode_pixels, make_image
from tfpipe.images.normalize import BadImage, prepare_image
from tfpipe.images.seekable import make_seekable
from tfpipe.pipeline.build import build_stages
from tfpipe.pipeline.stage import Stages
from tfpipe.pipeline.textbook_choice import is_by_engine
from tfpipe.profiler.measure.clocks import Rest, measure_costs_us
from tfpipe.profiler.measure.textbook import play, record
from tfpipe.profiler.types import TriedChange
from tfpipe.storage import file_io
from tfpipe.system import host_limits
from tfpipe.system.options import replace_options

RECORDS = 32  # the number of records in a sample
_FILE_BUFFER_BYTES = 2**18  # tf.data's default; without a number it writes a line into the log
_COUNT_S = 1.0
_SHARDS = 8  # how many times a dataset lists the sample's file, so that an epoch has several steps


def sample_records(source: Source, features: Collection[str] = ()) -> list[bytes]:
    """Returns `RECORDS` records from up to four files, repeated if there are fewer; none if a file is damaged."""
    shards = list(range(len(source.files)))[:: max(len(source.files) // 4, 1)][:4]
    try:
        if source.is_split and source.shard_records is not None and source.manifest is not None and source.split:
            firsts, ends = source.bases[shards], source.bases[1:][shards]
            numbers = np.stack([firsts + k for k in range(RECORDS)])
            manifest = source.manifest.keep_columns(features)
            with RecordReader(manifest.directory, manifest, source.split) as reader:
                payloads = reader.read_payloads(numbers[numbers < ends][:RECORDS])
        else:  # by TensorFlow, which can read remote files too
            records = tf.data.Dataset.from_tensor_slices([source.files[shard] for shard in shards]).interleave(
                lambda file: tf.data.TFRecordDataset(file, source.compression, _FILE_BUFFER_BYTES).take(RECORDS),
                cycle_length=4,
                num_parallel_calls=4,
            )
            payloads = [payload.numpy() for payload in records.take(RECORDS)]
    except (FormatError, DataError, tf.errors.OpError):  # the pipeline reports a damaged record, or leaves it out
        return []
    return [payloads[i % len(payloads)] for i in range(RECORDS)] if payloads else []


def measure_unread(payloads: Collection[bytes], read: Collection[str]) -> dict[str, float]:
    """Returns the share of all bytes that each feature outside of `read` takes, the largest first."""
    sizes = Counter[str]()
    try:
        for payload in payloads:
            unread = {name: value for name, value in decode_example(payload).items() if name not in read}
            sizes.update({name: len(encode_example({name: value})) for name, value in unread.items()})
    except FormatError:  # the pipeline itself reports a damaged record, or leaves it out
        return {}
    total = sum(len(payload) + FRAME_BYTES for payload in payloads)
    return {name: size / total for name, size in sizes.most_common()}


def leave_out(payloads: Collection[bytes], features: Collection[str]) -> list[bytes]:
    """Returns the records without some features."""
    examples: list[Mapping[str, object]] = [decode_example(payload) for payload in payloads]
    return [encode_example({k: v for k, v in example.items() if k not in features}) for example in examples]  # type: ignore[misc]


def count_records(source: Source, max_s: float = _COUNT_S) -> tuple[int, float] | None:
    """Counts the records of local files and their mean unpacked bytes; None for remote, damaged or empty files.

    After `max_s` seconds the total is extrapolated from the share of the bytes that were read.
    """
    if any(map(file_io.is_url, source.files)):
        return None
    until = time.perf_counter() + max_s
    records = payload_bytes = file_bytes = 0
    try:
        for path in source.files:
            with file_io.open_file(path) as file:
                compression = source.compression
                packed = scan_compressed(file, compression) if compression else (one for _, one in scan_records(file))
                for payload in packed:
                    records, payload_bytes = records + 1, payload_bytes + len(payload)
                    if time.perf_counter() > until:
                        break
                file_bytes += file.tell()
            if time.perf_counter() > until:
                break
    except (OSError, FormatError):
        return None
    if not records or not file_bytes:
        return None
    return round(records * max(source.total_bytes / file_bytes, 1.0)), payload_bytes / records


def make_decoder(source: Source, config: PipelineConfig, payloads: Sequence[bytes]) -> Callable[[], Batch]:
    """Returns a function that decodes all records as one batch, with other random crops in each call."""
    num_bytes = sum(len(payload) + FRAME_BYTES for payload in payloads)
    manifest, split = _describe_sample(source, (ShardInfo("sample", len(payloads), num_bytes, ""),), "sample")
    sample = replace(Source.from_manifest(manifest, split), schema=source.schema, images=source.images)
    config = replace(config, batch_size=len(payloads), block_records=None)
    kind = CachingMaker if config.cache == "decoded" else BatchMaker
    maker = kind(plan_batches(sample, config), manifest, split)
    numbers, epochs = np.arange(len(payloads)), itertools.count()
    stored = StoredBatch(0, numbers, numbers, parse_columns(join_block(payloads), maker.kinds))
    if config.cache != "decoded":
        return lambda: maker.decode(replace(stored, epoch=next(epochs)))
    maker.decode((0, numbers, numbers, stored))  # which fills the cache
    return lambda: maker.decode((next(epochs), numbers, numbers[:0], None))


def open_engine(folder: str, source: Source, config: PipelineConfig, payloads: Sequence[bytes]) -> Callable[[], Any]:
    """Writes records to a file in a folder, and returns a function that takes a batch of them from the engine."""
    name = file_names.shard_name("train", 0, 1)
    index = Path(folder, file_names.index_name(name))
    index.parent.mkdir(parents=True)
    with open(Path(folder, name), "wb") as file:
        writer = RecordWriter(file)
        for payload in payloads:
            writer.write(payload)
    index.write_bytes(writer.index)
    manifest, split = _describe_sample(source, (writer.describe(name),) * _SHARDS, folder)
    config = replace(config, order="auto", tf_data=TfDataOptions(), batch_size=RECORDS, prefetch_batches=1)
    batches = build_stages(manifest, split, replace(config, block_records=None)).dataset()
    take: Callable[[], Any] = iter(batches if config.training else batches.repeat()).__next__
    return take


def _describe_sample(source: Source, shards: tuple[ShardInfo, ...], folder: str) -> tuple[Manifest, str]:
    """Returns a dataset with only the given shards, whose records have the format of `source`, and its split."""
    split, manifest = source.split or "train", source.manifest
    if manifest is None:
        foreign = Foreign(".", source.image_key, source.label_key, source.label_base, "")
        info = SplitInfo(split, shards, {}, (), ImageSizes(0, 0, 0.0, 0, 0, 0.0))
        manifest = Manifest(name="sample", splits={}, schema=source.schema, tool_version=__version__, foreign=foreign)
    else:
        info = replace(manifest.splits[split], shards=shards, chosen=None, unpacked_bytes=0)
        if manifest.foreign is not None:
            manifest = replace(manifest, foreign=replace(manifest.foreign, root=".", compression=""))
    return replace(manifest, splits={split: info}, directory=folder, columns=(), version=""), split


def load_images(manifest: Manifest, split: str, config: PipelineConfig, count: int) -> list[Any]:
    """Returns some whole images of a split as Pillow images, as a user's `transform` gets them."""
    source = Source.from_manifest(manifest, split)
    form = ImageForm.recorded(manifest.image) if manifest.foreign is None else ImageForm()
    assert source.image_key is not None
    stored: list[Any] = [decode_example(payload)[source.image_key] for payload in sample_records(source)[:count]]
    return [make_image(decode_pixels(images[0], form)) for images in stored]


_Trial = tuple[PipelineConfig, list[bytes], Source]
"""A config, the records to run it on, and the source that describes them."""


def measure_option_costs(
    source: Source,
    config: PipelineConfig,
    short_side: int | None,
    unread: Collection[str] = (),
) -> dict[TriedChange, float]:
    """Measures the processor time of an image with the config as it is, and with each possible change.

    The result is empty for records without exactly one image, with a cache of decoded images, and for damaged records.
    `unread` features are left out of the records, since reading large ones would outweigh all else.
    """
    by_engine = is_by_engine(source, config)
    if config.cache == "decoded" or not source.has_images or source.per_record is not None:
        return {}
    whole = sample_records(source, [feature.name for feature in list_batch_features(source, config)])
    if not whole:
        return {}
    whole_bytes = sum(map(len, whole))
    payloads = leave_out(whole, unread) if unread else whole
    unread_bytes = whole_bytes - sum(map(len, payloads))
    base = replace(config, cache="none", cache_dir=None, cache_bytes=None, max_bad_records=0)
    configs: dict[TriedChange, PipelineConfig] = {"now": base}
    if config.image_dtype != "uint8":
        configs["uint8"] = replace(base, image_dtype="uint8")
    if by_engine and config.augment == "host":
        configs["device"] = replace(base, augment="device", image_dtype="uint8")
    if by_engine and config.augment_options.dct_scaling is False:
        configs["dct_scaling"] = replace_options(base, {"augment_options.dct_scaling": True})
    configs["cached"] = replace(base, cache="decoded")
    trials = {name: (changed, payloads, source) for name, changed in configs.items()}
    smaller = [] if short_side is None else _shrink_images(source, payloads, short_side)
    if smaller:
        data = source
        if source.manifest is not None and source.images.size is not None and short_side is not None:
            manifest = replace(source.manifest, image={**source.manifest.image, "square": short_side})
            data = replace(source, manifest=manifest, images=replace(source.images, size=(short_side, short_side)))
        trials["smaller"] = base, smaller, data
    if by_engine and not source.images.seekable:
        seekable = _change_images(source, payloads, lambda stored: (make_seekable(stored, ImageForm().max_pixels), {}))
        trials |= {"seekable": (base, seekable, source)} if seekable else {}
    if by_engine:
        costs = _try_engine(trials, whole if config.cache == "none" else [])
    else:
        costs = _try_textbook(trials)
    return costs | ({"smaller_bytes": (sum(map(len, smaller)) + unread_bytes) / whole_bytes} if smaller else {})


def _try_engine(trials: Mapping[TriedChange, _Trial], kept: Sequence[bytes]) -> dict[TriedChange, float]:
    """Measures the engine in the calling thread, and the copying of `kept` records; empty if a record is damaged."""
    try:
        decoders: dict[TriedChange, Callable[[], Any]] = {
            name: make_decoder(data, config, payloads) for name, (config, payloads, data) in trials.items()
        }
        if kept:
            decoders["kept"] = partial(join_block, kept, np.empty(sum(map(len, kept)), np.uint8))
        costs_us = measure_costs_us(decoders, len(trials["now"][1]), time.thread_time)
        return {name: max(cost, 1.0) for name, cost in costs_us.items()}
    except (FormatError, DataError):  # the pipeline itself reports a damaged record, or leaves it out
        return {}


def _try_textbook(trials: Mapping[TriedChange, _Trial]) -> dict[TriedChange, float]:
    """Measures the textbook pipeline on records in memory, and the engine; empty if a record is damaged."""
    config, payloads, source = trials["now"]
    try:
        with tempfile.TemporaryDirectory(prefix="tfpipe-") as folder:
            batches = {name: open_textbook(data, config, records) for name, (config, records, data) in trials.items()}
            with contextlib.suppress(TfpipeError, tf.errors.OpError):  # the engine cannot make such batches
                take = open_engine(folder, source, config, payloads)
                take()
                batches["engine"] = take
            costs_us = measure_costs_us(batches, RECORDS, Rest().wait)
    except (OSError, tf.errors.OpError):  # the pipeline itself reports a damaged record, or leaves it out
        return {}
    costs = {name: max(costs_us[name], 1.0) for name in trials}
    return costs | ({"engine_share": costs_us["engine"] / costs["now"]} if "engine" in costs_us else {})


def open_textbook(source: Source, config: PipelineConfig, payloads: Sequence[bytes]) -> Callable[[], Any]:
    """Returns a function that takes a batch of records in memory, parsed or from a full cache."""
    tf_data = replace(config.tf_data, num_parallel_calls=host_limits.usable_cpus(), autotune=False, map_fusion=False)
    few = replace(
        source,
        files=source.files[:1],
        file_bytes=(),
        total_bytes=sum(map(len, payloads)),
        counted_records=len(payloads),
        shard_records=None,
        manifest=None,
        split=None,
    )
    stages = build_stages(few, None, replace(config, order="throughput", batch_size=RECORDS, tf_data=tf_data))
    assert stages.options is not None
    # tf.data then fuses map and batch into one operation, as in the real pipeline.
    stages.options.experimental_optimization.apply_default_optimizations = True
    elements, first = [tf.constant(payload) for payload in payloads], stages.names.index("parse")
    if "cache" in stages.names:
        cache = stages.names.index("cache")
        first, elements = cache + 1, record(Stages(stages[first:cache]).apply_to(play(elements)))[0]
    later = [stage for stage in stages[first:] if stage.name not in ("repeat", "prefetch")]
    take: Callable[[], Any] = iter(Stages(later, stages.options).apply_to(play(elements))).__next__
    return take


def _change_images(
    source: Source, payloads: list[bytes], change: Callable[[bytes], tuple[bytes | None, dict[str, Any]]]
) -> list[bytes]:
    """Returns the records with their images and features as `change` makes them; none if one image fails."""
    changed = []
    try:
        for payload in payloads:
            features: dict[str, Any] = dict(decode_example(payload))
            assert source.image_key is not None
            image, more = change(features[source.image_key][0])
            if image is None:
                return []
            changed.append(encode_example(features | {source.image_key: [image]} | more))
    except BadImage:
        return []
    return changed


def _shrink_images(source: Source, payloads: list[bytes], short_side: int) -> list[bytes]:
    """Returns the records as `tfpipe shard --resize-short` or `--square` writes them."""
    form = ImageForm(resize_short=short_side) if source.images.size is None else ImageForm(square=short_side)

    def shrink(stored: bytes) -> tuple[bytes, dict[str, Any]]:
        if "RAW" in source.images.formats:
            image = make_image(np.frombuffer(stored, np.uint8).reshape(*(source.images.size or ()), 3))
            return image.resize((short_side, short_side)).tobytes(), {}
        prepared = prepare_image(stored, form)
        return prepared.encoded, {"image/height": [prepared.height], "image/width": [prepared.width]}

    return _change_images(source, payloads, shrink)
