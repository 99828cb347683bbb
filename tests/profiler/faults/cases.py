"""Pipelines with one fault each, and the bottleneck and the first fix that the profiler must name.

The right stage and the right fix were decided when a case was written, from the fault; `why` says it.

    "name": Fault(stage, first fix, why, ...)      the pipeline is tfpipe's default but for what follows
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.profiler.faults import own
from tests.profiler.faults.data import FEW_PHOTOS, HUGE, PHOTOS, TINY, Shards
from tfpipe.engine.config.augment_config import AugmentOptions
from tfpipe.pipeline.stage import Customize
from tfpipe.readers.base import BatchTransform, ImageTransform

FAST = 20_000.0
"""The images per second of an accelerator that waits for any pipeline here."""
MANY_PHOTOS = Shards(PHOTOS, ("--num-shards", "2"), copies=1000)
"""400,000 records, more than a cache in memory can hold."""
ONE_FILE = ("--num-shards", "1")
SQUARE_PHOTOS = Shards(PHOTOS, ("--square", "224", "--num-shards", "2"), 1000)
RAW_PHOTOS = Shards(PHOTOS, ("--encoding", "raw", "--square", "128", "--num-shards", "2"), 1000)
LARGE_RAW = Shards(PHOTOS, ("--encoding", "raw", "--square", "500", "--num-shards", "2"), 100)
SMALLER_RAW = Shards(PHOTOS, ("--encoding", "raw", "--square", "256", "--num-shards", "2"), 100)
RAW_TINY = Shards(TINY, ("--encoding", "raw", "--square", "32", "--num-shards", "8"))
MANY_HUGE = Shards(HUGE, ONE_FILE, copies=1500)
SMALLER_HUGE = Shards(HUGE, ("--resize-short", "256", *ONE_FILE), 1500)
FEW_BLOBS = Shards(FEW_PHOTOS, ONE_FILE, 8, unread_bytes=3_000_000)
BLOBS = Shards(FEW_PHOTOS, ONE_FILE, 4000, unread_bytes=3_000_000)
NO_BLOBS = Shards(FEW_PHOTOS, ONE_FILE, 4000)
TEXTBOOK = {"order": "throughput"}
"""The textbook pipeline, which stages of the user's own get in any case."""
WITH_OWN = partial(own.add_map, name="keep", function=own.keep)
"""A stage that does nothing. In front of `batch` it keeps the engine out."""
TEXTBOOK_HUGE = {**TEXTBOOK, "tf_data.shuffle_buffer_size": 64, "batch_size": 16}
ENGINE = {"order": "exact"}
"""The engine, with the user's own stages behind it."""
NO_SCALING = AugmentOptions(scale=(0.8, 1.0), dct_scaling=False)


@dataclass(frozen=True)
class Fault:
    """A pipeline with one fault."""

    stage: str
    fix: Mapping[str, Any] | str | None
    why: str
    config: Mapping[str, Any] = field(default_factory=dict)
    shards: Shards = MANY_PHOTOS
    required: float = FAST
    own: Customize | None = None
    transform: ImageTransform | None = None
    batch_transform: BatchTransform | None = None
    foreign: bool = False
    indexed: bool = False
    delay_us: int = 0
    memory_limit: int | None = None
    cure: Mapping[str, Any] = field(default_factory=dict)
    num_threads: int | None = None
    also: str = ""


ENGINE_FAULTS = {
    "no_cache": Fault("decode", {"cache": "decoded"},
        "Photographs are decoded again in every epoch, and all of them would fit into memory.",
        shards=Shards(PHOTOS)),
    "part_of_a_cache": Fault("decode", {"cache": "decoded", "cache_bytes": ...},
        "Decoded photographs are twice the memory that is left: the engine keeps as many as fit.",
        shards=Shards(PHOTOS, ("--num-shards", "8"), copies=8), memory_limit=1_400_000_000),
    "engine_floats": Fault("decode", {"image_dtype": "uint8"},
        "Pixels become floats on the host, which the device could do.",
        {"image_dtype": "float32"}, RAW_PHOTOS),
    "engine_huge": Fault("decode", "tfpipe reshard DATASET OUTPUT --resize-short 256",
        "The engine decodes images of 3 megapixels for a model that sees 224 pixels.",
        {"batch_size": 16}, MANY_HUGE, memory_limit=4_000_000_000, cure={"shards": SMALLER_HUGE}),
    "engine_no_scaling": Fault("decode", {"augment_options.dct_scaling": True},
        "Crops of most of the image are decoded at full size, though libjpeg could give a quarter of each side.",
        {"augment_options": NO_SCALING, "batch_size": 16}, MANY_HUGE, 250.0, memory_limit=4_000_000_000),
    "large_raw": Fault("read", "tfpipe reshard DATASET OUTPUT --encoding raw --square 256",
        "Raw images of 500 pixels are read for a model that sees 224: four times the bytes.",
        shards=LARGE_RAW, memory_limit=3_000_000_000, cure={"shards": SMALLER_RAW}),
    "indexed_blobs": Fault("read", "tfpipe reshard DATASET OUTPUT --drop-feature blob/unused",
        "Of each record, 3 MB are a feature that nobody reads, and all of it is read and checked.",
        {"max_bad_records": 1}, FEW_BLOBS, foreign=True, indexed=True, memory_limit=2_000_000_000,
        cure={"shards": Shards(FEW_PHOTOS, ONE_FILE, 8)}),
    "late_small_files": Fault("read", {"cache": ...},
        "The storage answers after 0.1 s, again in every epoch, and all the small records would fit into memory.",
        {"image_size": 32}, Shards(TINY), delay_us=100_000),
    "tiny_engine_batch": Fault("batch", {"batch_size": ...},
        "Three small images make a batch, and what is done once for each batch outweighs it.",
        {"batch_size": 3, "image_size": 32, "cache": "decoded"}, RAW_TINY),
    "evaluation": Fault("decode", "tfpipe reshard DATASET OUTPUT --resize-short 256",
        "An evaluation decodes images of 3 megapixels for a model that sees 224 pixels.",
        {"training": False, "batch_size": 16}, MANY_HUGE, memory_limit=4_000_000_000, cure={"shards": SMALLER_HUGE}),
    "memory": Fault("memory", {"prefetch_batches": ...},
        "Finished batches of floats fill the memory of the container.",
        {"prefetch_batches": 40, "image_dtype": "float32"}, required=60.0, memory_limit=2_600_000_000),
    "slow_accelerator": Fault("accelerator", None,
        "Nothing is wrong: the accelerator takes fewer images than the pipeline gives.",
        required=100.0),
    "locked_transform": Fault("transform", "Take the lock out of the function `transform`",
        "Pillow blurs each crop behind one lock: one core works, whatever the threads.",
        memory_limit=3_000_000_000, transform=partial(own.shrink, then=own.blur_locked),
        cure={"transform": partial(own.shrink, then=own.blur)}),
    "python_transform": Fault("transform", "Let the function `transform` call operations that let go of Python's lock",
        "A loop in Python holds Python's lock: one core works, whatever the threads.",
        memory_limit=3_000_000_000, shards=SQUARE_PHOTOS, transform=own.negate_red, cure={"transform": own.take}),
    "waiting_behind_lock": Fault("transform", "Take the lock out of the function `transform`",
        "A function waits 2 ms behind one lock: 500 images/s with any number of threads.",
        memory_limit=3_000_000_000, transform=partial(own.shrink, then=partial(own.wait, seconds=0.002, lock=True)),
        cure={"transform": partial(own.shrink, then=partial(own.wait, seconds=0.002))}),
    "waiting_transform": Fault("transform", "Give your reader `num_threads=",
        "A function waits 8 ms for each image, as for a server: as many threads as cores all wait.",
        memory_limit=3_000_000_000, transform=partial(own.shrink, then=partial(own.wait, seconds=0.008)),
        cure={"num_threads": 8}),
    "slow_batch_transform": Fault("batch_transform", "Do the work of the function `batch_transform` on the accelerator",
        "A function sorts all pixels of a batch.",
        batch_transform=own.sort_batch, cure={"batch_transform": None}),
    "engine_float64": Fault("widen", "Leave the values as small as they are in front of widen",
        "Small raw images become eight bytes a value behind the engine.",
        ENGINE, RAW_PHOTOS, own=partial(own.add_map, name="widen", function=own.widen, after="batch"),
        cure={"own": own.without}),
    "engine_late_shuffle": Fault("decode", {"cache": "decoded"},
        "2,000 decoded images are held to be shuffled behind the engine, where records would be a fifth of the bytes.",
        ENGINE, Shards(PHOTOS), own=partial(own.add_shuffle, after="batch"),
        also="Shuffle records before they are decoded, and not in the stage mix."),
}  # fmt: skip
"""The engine's pipeline."""

TEXTBOOK_FAULTS = {
    "no_engine": Fault("decode", {"order": "auto"},
        "TensorFlow's operations decode, where the engine takes half of the processor time.",
        TEXTBOOK),
    "no_engine_floats": Fault("augment", {"order": "auto"},
        "TensorFlow's operations make floats of pixels, one operation after another.",
        {"image_dtype": "float32", "augment": "none", **TEXTBOOK}, RAW_PHOTOS),
    "slow_storage": Fault("read", {"tf_data.cycle_length": ...},
        "Each read of the storage takes 0.2 s, and two whole files are read at once: more at once wait together.",
        {"tf_data.cycle_length": 2, "tf_data.shuffle_buffer_size": 256, **TEXTBOOK}, delay_us=200_000),
    "single_shard": Fault("read", "tfpipe index FILES",
        "In an evaluation a file whose records nobody counted has one reader, which waits 0.1 s for each 2 MiB. "
        "It does not fit into memory.",
        {"training": False}, Shards(PHOTOS, ONE_FILE, 32, joined=True), foreign=True, delay_us=100_000,
        memory_limit=1_400_000_000, cure={"indexed": True}),
    "unread_feature": Fault("read",
        "tfpipe index FILES --output INDEX, then tfpipe reshard DATASET OUTPUT --drop-feature blob/unused",
        "Of each record, 3 MB are a feature that nobody reads, and all of it is read and checked.",
        shards=BLOBS, foreign=True, cure={"shards": NO_BLOBS}),
    "gzip_files": Fault("decode", {"cache": "decoded"},
        "Compressed files are unpacked, and photographs decoded, in every epoch; all would fit into memory.",
        shards=Shards(PHOTOS, gzipped=True), foreign=True),
    "serial_decode": Fault("decode", {"tf_data.num_parallel_calls": None},
        "One thread decodes, and the other cores rest.",
        {"tf_data.num_parallel_calls": 1, **TEXTBOOK_HUGE}, MANY_HUGE, own=WITH_OWN),
    "python_map": Fault("negative", "Write the stage negative with TensorFlow's operations",
        "A Python function holds Python's lock, so its stage has one core whatever its threads.",
        own=partial(own.add_call, name="negative", function=own.negate_red),
        cure={"own": partial(own.add_map, name="negative", function=own.negate)}),
    "waiting_map": Fault("lookup", {"tf_data.private_threadpool_size": ...},
        "A function waits for somebody else; tf.data's threads are as many as the cores, and all of them wait.",
        own=partial(own.add_call, name="lookup", function=partial(own.wait, seconds=0.008), key="label")),
    "pillow_blur": Fault("blur", "Take the lock out of the stage blur",
        "A Python function blurs each crop behind one lock: its stage has one core whatever its threads.",
        own=partial(own.add_call, name="blur", function=own.blur_locked),
        cure={"own": partial(own.add_call, name="blur", function=own.blur)}),
    "locked_lookup": Fault("lookup", "Take the lock out of the stage lookup",
        "A function waits 2 ms behind one lock: 500 images/s with any number of threads.",
        own=partial(own.add_call, name="lookup", function=partial(own.wait, seconds=0.002, lock=True), key="label"),
        cure={"own": partial(own.add_call, name="lookup", function=partial(own.wait, seconds=0.002), key="label")}),
    "late_shuffle": Fault("decode", {"cache": "decoded"},
        "2,000 decoded images are held to be shuffled, where records would be a fifth of the bytes.",
        shards=Shards(PHOTOS), own=own.add_shuffle,
        also="Shuffle records before they are decoded, and not in the stage mix."),
    "float64": Fault("batch", "Leave the values as small as they are in front of widen",
        "Small raw images become eight bytes a value, which all stages behind must copy: `batch` takes most.",
        shards=RAW_PHOTOS, own=partial(own.add_map, name="widen", function=own.widen), cure={"own": own.without}),
    "serial_map": Fault("noise", "Give the map of the stage noise",
        "A map without `num_parallel_calls` has one thread.",
        own=partial(own.add_map, name="noise", function=own.add_noise, calls=None),
        cure={"own": partial(own.add_map, name="noise", function=own.add_noise)}),
    "float32": Fault("augment", {"image_dtype": "uint8"},
        "Pixels become floats on the host: normalizing them and copying four bytes for one is most of the work.",
        {"image_dtype": "float32", **TEXTBOOK}, RAW_PHOTOS, own=WITH_OWN),
    "huge_images": Fault("decode", "tfpipe reshard DATASET OUTPUT --resize-short 256",
        "Images of 3 megapixels are stored for a model that sees 224 pixels.",
        TEXTBOOK_HUGE, MANY_HUGE, own=WITH_OWN, cure={"shards": SMALLER_HUGE}),
    "no_prefetch": Fault("prefetch", {"prefetch_batches": None},
        "Batches take longer now and then, on average less than a step: none is ready when one is late.",
        {"prefetch_batches": 0, "tf_data.inject_prefetch": False}, required=600.0, own=own.add_late_batches),
    "slow_start": Fault("first_batch", {"tf_data.shuffle_buffer_size": ...},
        "The shuffle buffer takes 256 MiB, which one reader needs seconds to read; after that nothing waits.",
        {"tf_data.cycle_length": 1, "tf_data.shuffle_buffer_size": "256MiB", "batch_size": 16, **TEXTBOOK},
        required=40.0, delay_us=130_000),
    "cache_of_crops": Fault("kept", {"cache": "decoded"},
        "Float crops are cached behind `augment`, in a file: five times the bytes, and the same in every epoch.",
        {"image_dtype": "float32", "image_size": 448}, Shards(PHOTOS), own=partial(own.add_cache, in_file=True),
        cure={"own": own.without}),
    "late_filter": Fault("decode", "Filter before `decode`",
        "Two of three images are dropped behind `augment`, by the label, which is known before they are decoded.",
        own=partial(own.add_filter, after="augment"), cure={"own": partial(own.add_filter, after="parse")}),
    "blur": Fault("blur", "Do the work of the stage blur on the accelerator",
        "A blur takes most of the processor time. Nothing on the host saves it but other code.",
        own=partial(own.add_map, name="blur", function=own.blur_widely), cure={"own": own.without}),
    "group_blur": Fault("blur", "Make the stage blur cheaper",
        "A blur takes most of the processor time, and can move neither to the accelerator nor behind a cache.",
        own=partial(own.add_map, name="blur", function=own.blur_widely, per_image=False), required=150.0),
    "steady_blur": Fault("blur", "Put a stage that caches right behind blur.",
        "A blur takes most of the processor time. It gives the same in each epoch, which fits into memory.",
        {"augment": "none", "image_size": 256}, Shards(PHOTOS), 60_000.0,  # a cache is nearly as fast as others here
        own=own.add_steady_blur, cure={"own": partial(own.add_steady_blur, cached=True)}),
    "jitter": Fault("noise", "Do the work of the stage noise on the accelerator",
        "Noise takes most of the processor time, and a cache must not keep it.",
        {"image_size": 448}, own=partial(own.add_map, name="noise", function=own.add_noise, random=True),
        cure={"own": own.without}),
    "tiny_batch": Fault("batch", {"batch_size": ...},
        "One small image makes a batch, and what is done once for each batch outweighs it.",
        {"batch_size": 1, "image_size": 32, "cache": "decoded", "augment": "none", **TEXTBOOK}, RAW_TINY),
}  # fmt: skip
"""The textbook pipeline, and stages of the user's own in it."""

FAULTS: dict[str, Fault] = {**ENGINE_FAULTS, **TEXTBOOK_FAULTS}
"""Every fault by its name."""
