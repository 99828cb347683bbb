"""Pipelines with one fault each, and the bottleneck and the first fix that the profiler must name.

The right stage and the right fix were decided when a case was written, from the fault; `why` says it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.profiler.faults.data import FEW_PHOTOS, HUGE, PHOTOS, TINY, Shards
from tfpipe.engine.config.augment_config import AugmentOptions

if TYPE_CHECKING:
    from tfpipe.pipeline.stage import Customize, Stages

RAW = ("--encoding", "raw", "--square", "128", "--num-shards", "2")
MANY_PHOTOS = Shards(PHOTOS, ("--num-shards", "2"), copies=1000)
"""400,000 records, more than a cache in memory can hold."""
MANY_HUGE = Shards(HUGE, ("--num-shards", "1"), copies=1500)
HUGE_CONFIG = {"order": "throughput", "tf_data.shuffle_buffer_size": 64, "batch_size": 16}
"""The textbook pipeline: reading whole files is a part of these faults."""
BY_IMAGE = {"order": "throughput"}
"""The textbook pipeline, whose stages treat images one by one, as those of the user's own here do."""
FAST = 20_000.0
"""The images per second of an accelerator that waits for any pipeline here."""


@dataclass(frozen=True)
class Cure:
    """The part of a fix that is not a change of the config.

    Attributes:
        shards: Other shards; None for the same ones.
        own: Other stages of the user's own; None for the same ones.
        indexed: Whether `tfpipe index` describes the files.
    """

    shards: Shards | None = None
    own: Customize | None = None
    indexed: bool = False


@dataclass(frozen=True)
class Fault:
    """A pipeline with one fault.

    Attributes:
        why: The fault, and why the stage and the fix are right.
        stage: The bottleneck that must be named.
        fix: Changes that the first fix must have (any value where ... stands), the begin of its instruction, or None
            where no fix may be named.
        config: The pipeline's options, by names such as "tf_data.cycle_length".
        shards: The data.
        required: Images per second that the accelerator takes.
        own: Stages of the user's own.
        foreign: Whether the shards are read as files that something else wrote.
        delay_us: Delay of each read of the storage, in microseconds.
        memory_limit: Memory of the container that it runs in, in bytes; None for the machine's.
        cure: The part of the right fix that is not a change of the config.
    """

    why: str
    stage: str
    fix: Mapping[str, Any] | str | None
    config: Mapping[str, Any] = field(default_factory=dict)
    shards: Shards = MANY_PHOTOS
    required: float = FAST
    own: Customize | None = None
    foreign: bool = False
    delay_us: int = 0
    memory_limit: int | None = None
    cure: Cure = field(default_factory=Cure)


# Stages of the user's own


def python_negative(stages: Stages) -> Stages:
    """Inverts the red of every pixel, in Python."""
    import numpy as np
    import tensorflow as tf

    def turn(image: Any) -> Any:
        pixels = bytearray(image.tobytes())
        for i in range(0, len(pixels), 3):
            pixels[i] = 255 - pixels[i]
        return np.frombuffer(pixels, np.uint8).reshape(image.shape)

    def own(features: Any) -> Any:
        image = features["image"]
        return {**features, "image": tf.ensure_shape(tf.numpy_function(turn, [image], tf.uint8), image.shape)}

    return _add_map(stages, "negative", own, tf.data.AUTOTUNE)


def native_negative(stages: Stages) -> Stages:
    """Inverts the red of every pixel with TensorFlow's operations."""
    import tensorflow as tf

    mask = tf.constant([255, 0, 0] * 224**2, tf.uint8, [224, 224, 3])  # whole: to stretch one costs more

    def own(features: Any) -> Any:
        return {**features, "image": tf.bitwise.bitwise_xor(features["image"], mask)}

    return _add_map(stages, "negative", own, tf.data.AUTOTUNE)


def waiting_lookup(stages: Stages) -> Stages:
    """Waits 8 ms for each image, as for the answer of a server."""
    import tensorflow as tf

    def ask(label: Any) -> Any:
        time.sleep(0.008)
        return label

    def own(features: Any) -> Any:
        label = tf.numpy_function(ask, [features["label"]], tf.int64)
        return {**features, "label": tf.ensure_shape(label, [])}

    return _add_map(stages, "lookup", own, tf.data.AUTOTUNE)


_LOCK = threading.Lock()


def locked_lookup(stages: Stages) -> Stages:
    """Waits 2 ms for each image behind one lock."""
    return _add_lookup(stages, _ask_behind_the_lock)


def free_lookup(stages: Stages) -> Stages:
    """Waits 2 ms for each image, without a lock."""
    return _add_lookup(stages, _ask_shortly)


def _ask_behind_the_lock(label: Any) -> Any:
    with _LOCK:
        return _ask_shortly(label)


def _ask_shortly(label: Any) -> Any:
    time.sleep(0.002)
    return label


def _add_lookup(stages: Stages, ask: Callable[[Any], Any]) -> Stages:
    import tensorflow as tf

    def own(features: Any) -> Any:
        label = tf.numpy_function(ask, [features["label"]], tf.int64)
        return {**features, "label": tf.ensure_shape(label, [])}

    return _add_map(stages, "lookup", own, tf.data.AUTOTUNE)


def pillow_blur(stages: Stages) -> Stages:
    """Blurs each crop with Pillow, in a Python function that one lock lets through one call at a time."""
    import numpy as np
    import tensorflow as tf
    from PIL import Image, ImageFilter

    def blur_one(image: Any) -> Any:
        with _LOCK:
            return np.asarray(Image.fromarray(image).filter(ImageFilter.GaussianBlur(2)))

    def own(features: Any) -> Any:
        image = features["image"]
        return {**features, "image": tf.ensure_shape(tf.numpy_function(blur_one, [image], tf.uint8), image.shape)}

    return _add_map(stages, "blur", own, tf.data.AUTOTUNE)


def late_shuffle(stages: Stages) -> Stages:
    """Shuffles 2,000 decoded images."""
    from tfpipe.pipeline.stage import Stage

    return stages.insert_after("augment", Stage("mix", lambda dataset: dataset.shuffle(2000)))


def float64(stages: Stages) -> Stages:
    """Makes eight bytes of each byte of a crop."""
    import tensorflow as tf

    def own(features: Any) -> Any:
        return {**features, "image": tf.cast(features["image"], tf.float64)}

    return _add_map(stages, "widen", own, tf.data.AUTOTUNE)


def serial_noise(stages: Stages) -> Stages:
    """Adds noise in a map without threads; random operations keep tf.data from giving it some."""
    return _add_map(stages, "noise", _noise, None)


def parallel_noise(stages: Stages) -> Stages:
    """Adds noise in a map with threads."""
    import tensorflow as tf

    return _add_map(stages, "noise", _noise, tf.data.AUTOTUNE)


def _noise(features: Any) -> Any:
    import tensorflow as tf

    image = tf.cast(features["image"], tf.float32)
    for _ in range(3):
        with tf.control_dependencies([image]):  # one after the other, not side by side
            image += tf.random.normal(image.shape, stddev=3.0)
    return {**features, "image": tf.saturate_cast(image, tf.uint8)}


def _add_map(stages: Stages, name: str, function: Callable[[Any], Any], calls: int | None) -> Stages:
    from tfpipe.pipeline.stage import Stage

    def apply(dataset: Any) -> Any:
        return dataset.map(function, num_parallel_calls=calls)

    return stages.insert_after("augment", Stage(name, apply))


def cache_of_crops(stages: Stages) -> Stages:
    """Keeps the crops of `augment` in a file: they are the same in every epoch."""
    import tempfile

    from tfpipe.pipeline.stage import Stage

    file = tempfile.mkdtemp() + "/crops"
    return stages.insert_after("augment", Stage("kept", lambda dataset: dataset.take(400).cache(file).repeat()))


def without_cache(stages: Stages) -> Stages:
    """Keeps nothing."""
    return stages


def late_filter(stages: Stages) -> Stages:
    """Drops two of three images behind `augment`."""
    return _add_filter(stages, "augment")


def early_filter(stages: Stages) -> Stages:
    """Drops the same images before they are decoded."""
    return _add_filter(stages, "parse")


def _add_filter(stages: Stages, name: str) -> Stages:
    from tfpipe.pipeline.stage import Stage

    return stages.insert_after(
        name, Stage("dogs", lambda dataset: dataset.filter(lambda features: features["label"] == 1))
    )


def movable_filter(stages: Stages) -> Stages:
    """Drops two of three images behind `augment`, and says that this can be done earlier."""
    from tfpipe.pipeline.stage import Stage

    return stages.insert_after(
        "augment",
        Stage(
            "dogs",
            lambda dataset: dataset.filter(lambda features: features["label"] == 1),
            commutes_with=frozenset({"decode", "augment"}),
            shrinks=True,
        ),
    )


def moved_filter(stages: Stages) -> Stages:
    """Drops the same images where `movable_filter` says that it can be done."""
    return movable_filter(stages).move("dogs before decode")


def blur(stages: Stages) -> Stages:
    """Blurs each crop with a kernel of 31 x 31, which says nothing of itself."""
    return _add_map(stages, "blur", _blur, -1)


def numpy_negative(stages: Stages) -> Stages:
    """Inverts small images by a line of NumPy: for each image the call costs more than the work."""
    import tensorflow as tf

    from tfpipe.pipeline.stage import Stage

    def own(features: Any) -> Any:
        image = features["image"]
        negative = tf.numpy_function(lambda pixels: 255 - pixels, [image], image.dtype)
        return {**features, "image": tf.ensure_shape(negative, image.shape)}

    def apply(dataset: Any) -> Any:
        return dataset.map(own, num_parallel_calls=-1)

    return stages.insert_after("augment", Stage("negative", apply, per_image=True))


def vectorized_negative(stages: Stages) -> Stages:
    """Inverts many small images in one call."""
    return numpy_negative(stages).vectorize("negative")


def group_blur(stages: Stages) -> Stages:
    """Blurs each crop as `blur` does, and says that it needs the images beside it."""
    return _replace_last(blur(stages), per_image=False)


def _replace_last(stages: Stages, **declared: Any) -> Stages:
    """Lets the stage behind `augment` declare something."""
    from dataclasses import replace

    own = stages[stages.names.index("augment") + 1]
    return stages.replace(own.name, replace(own, **declared))


def steady_blur(stages: Stages) -> Stages:
    """Blurs whole images of one size, the same way in each epoch, and says so."""
    from tfpipe.pipeline.stage import Stage

    own = Stage("blur", lambda dataset: dataset.map(_shrink_and_blur, num_parallel_calls=-1), random=False)
    return stages.insert_after("decode", own)


def cached_blur(stages: Stages) -> Stages:
    """Keeps what `steady_blur` gives, counted so that the cache is whole before it is read again."""
    from tfpipe.pipeline.stage import Stage

    kept = Stage("kept", lambda dataset: dataset.take(400).cache().repeat())
    return steady_blur(stages).insert_after("blur", kept)


def jitter(stages: Stages) -> Stages:
    """Adds much noise, another one in each epoch, and says so."""
    return _replace_last(_add_map(stages, "noise", _noise, -1), random=True)


def _blur(features: Any) -> Any:
    import tensorflow as tf

    image = tf.cast(features["image"], tf.float32)[None]
    blurred = tf.nn.depthwise_conv2d(image, tf.ones([31, 31, 3, 1]) / 961, [1, 1, 1, 1], "SAME")[0]
    return {**features, "image": tf.saturate_cast(blurred, tf.uint8)}


def _shrink_and_blur(features: Any) -> Any:
    import tensorflow as tf

    small = tf.saturate_cast(tf.image.resize(features["image"], (256, 256)), tf.uint8)
    return _blur({**features, "image": tf.ensure_shape(small, [256, 256, 3])})


def uneven_batches(stages: Stages) -> Stages:
    """Makes every eighth batch take 0.3 s longer, as if something were fetched now and then."""
    import tensorflow as tf

    from tfpipe.pipeline.stage import Stage

    def fetch(number: Any) -> Any:
        if number % 8 == 7:
            time.sleep(0.3)
        return number

    def own(number: tf.Tensor, batch: Any) -> Any:
        done = tf.numpy_function(fetch, [number], tf.int64)
        with tf.control_dependencies([done]):
            return {name: tf.identity(value) for name, value in batch.items()}

    return stages.insert_after("batch", Stage("fetch", lambda dataset: dataset.enumerate().map(own)))


FAULTS: dict[str, Fault] = {
    "slow_storage": Fault(
        why="Each read of the storage takes 0.2 s, and two whole files are read at once: more at once wait together.",
        stage="read",
        fix={"tf_data.cycle_length": ...},
        # In exact order many records are asked for at once.
        config={"tf_data.cycle_length": 2, "tf_data.shuffle_buffer_size": 256, **BY_IMAGE},
        delay_us=200_000,
    ),
    "single_shard": Fault(
        why="In an evaluation a file whose records nobody counted has one reader, which waits 0.1 s for each 2 MiB. "
        "It does not fit into memory.",
        stage="read",
        fix="tfpipe index FILES",
        config={"training": False},
        shards=Shards(PHOTOS, ("--num-shards", "1"), 32, joined=True),
        foreign=True,
        delay_us=100_000,
        memory_limit=1_400_000_000,
        cure=Cure(indexed=True),
    ),
    "unread_feature": Fault(
        why="Of each record, 3 MB are a feature that nobody reads, and all of it is read and checked.",
        stage="read",
        fix="tfpipe index FILES --output INDEX, then tfpipe reshard INDEX OUTPUT --drop-feature blob/unused",
        shards=Shards(FEW_PHOTOS, ("--num-shards", "1"), 4000, unread_bytes=3_000_000),
        foreign=True,
        cure=Cure(shards=Shards(FEW_PHOTOS, ("--num-shards", "1"), 4000)),
    ),
    "gzip_files": Fault(
        why="Compressed files are unpacked, and photographs decoded, in every epoch; all would fit into memory.",
        stage="decode",
        fix={"cache": "decoded"},
        shards=Shards(PHOTOS, gzipped=True),
        foreign=True,
    ),
    "serial_decode": Fault(
        why="One thread decodes, and the other cores rest.",
        stage="decode",
        fix={"tf_data.num_parallel_calls": None},
        config={"tf_data.num_parallel_calls": 1, **HUGE_CONFIG},
        shards=MANY_HUGE,
    ),
    "python_map": Fault(
        why="A Python function holds Python's lock, so its stage has one core whatever its threads.",
        stage="negative",
        fix="Write the stage negative with TensorFlow's operations",
        config=BY_IMAGE,
        own=python_negative,
        cure=Cure(own=native_negative),
    ),
    "waiting_map": Fault(
        why="A function waits for somebody else; tf.data's threads are as many as the cores, and all of them wait.",
        stage="lookup",
        fix={"tf_data.private_threadpool_size": ...},
        config=BY_IMAGE,
        own=waiting_lookup,
    ),
    "pillow_blur": Fault(
        why="A Python function blurs each crop behind one lock: its stage has one core whatever its threads.",
        stage="blur",
        fix="Write the stage blur with TensorFlow's operations",
        config=BY_IMAGE,
        own=pillow_blur,
        cure=Cure(own=without_cache),
    ),
    "locked_lookup": Fault(
        why="A function waits 2 ms behind one lock: 500 images/s with any number of threads.",
        stage="lookup",
        fix="Take the lock out of the stage lookup",
        config=BY_IMAGE,
        own=locked_lookup,
        cure=Cure(own=free_lookup),
    ),
    "late_shuffle": Fault(
        why="2,000 decoded images are held to be shuffled, where records would be a fifth of the bytes.",
        stage="decode",
        fix={"cache": "decoded"},
        config=BY_IMAGE,
        shards=Shards(PHOTOS),
        own=late_shuffle,
    ),
    "float64": Fault(
        why="Small raw images become eight bytes a value, which all stages behind must copy.",
        stage="augment",  # takes most of the cores in any case
        fix="Leave the values as small as they are in front of widen",
        config=BY_IMAGE,
        shards=Shards(PHOTOS, RAW, 1000),
        own=float64,
        cure=Cure(own=without_cache),
    ),
    "serial_map": Fault(
        why="A map without `num_parallel_calls` has one thread.",
        stage="noise",
        fix="Give the map of the stage noise",
        config=BY_IMAGE,
        own=serial_noise,
        cure=Cure(own=parallel_noise),
    ),
    "float32": Fault(
        why="Pixels become floats on the host: normalizing them and copying four bytes for one is most of the work.",
        stage="augment",
        fix={"image_dtype": "uint8"},
        config={"image_dtype": "float32", **BY_IMAGE},
        shards=Shards(PHOTOS, RAW, 1000),
    ),
    "huge_images": Fault(
        why="Images of 3 megapixels are stored for a model that sees 224 pixels.",
        stage="decode",
        fix="tfpipe shard INPUT OUTPUT --resize-short 256",
        config=HUGE_CONFIG,
        shards=MANY_HUGE,
        cure=Cure(shards=Shards(HUGE, ("--resize-short", "256", "--num-shards", "1"), 1500)),
    ),
    "no_dct_scaling": Fault(
        why="Crops of most of the image are decoded at full size, though libjpeg could give a quarter of each side.",
        stage="decode",
        fix={"augment_options.dct_scaling": True},
        config={"augment_options": AugmentOptions(scale=(0.8, 1.0), dct_scaling=False), **HUGE_CONFIG},
        required=140.0,  # within reach, or the image would have to be stored smaller first
        shards=MANY_HUGE,
    ),
    "no_cache": Fault(
        why="Photographs are decoded again in every epoch, and all of them would fit into memory.",
        stage="decode",
        fix={"cache": "decoded"},
        shards=Shards(PHOTOS),
    ),
    "no_prefetch": Fault(
        why="Batches take longer now and then, on average less than a step: none is ready when one is late.",
        stage="prefetch",
        fix={"prefetch_batches": None},
        config={"prefetch_batches": 0, "tf_data.inject_prefetch": False, **BY_IMAGE},
        required=600.0,
        own=uneven_batches,
    ),
    "slow_start": Fault(
        why="The shuffle buffer takes 256 MiB, which one reader needs seconds to read; after that nothing waits.",
        stage="first_batch",
        fix={"tf_data.shuffle_buffer_size": ...},
        config={
            "order": "throughput",
            "tf_data.cycle_length": 1,
            "tf_data.shuffle_buffer_size": "256MiB",
            "batch_size": 16,
        },
        required=40.0,
        delay_us=130_000,
    ),
    "cache_of_crops": Fault(
        why="Float crops are cached behind `augment`, in a file: five times the bytes, and the same in every epoch.",
        stage="kept",
        fix={"cache": "decoded"},
        config={"image_dtype": "float32", "image_size": 448, **BY_IMAGE},
        shards=Shards(PHOTOS),
        own=cache_of_crops,
        cure=Cure(own=without_cache),
    ),
    "late_filter": Fault(
        why="Two of three images are dropped behind `augment`, by the label, which is known before they are decoded.",
        stage="decode",
        fix="Filter before `decode`",
        config=BY_IMAGE,
        own=late_filter,
        cure=Cure(own=early_filter),
    ),
    "movable_filter": Fault(
        why="Two of three images are dropped behind `augment`, by a filter that may stand before `decode`.",
        stage="decode",
        fix="Return `stages.move('dogs before decode')` from the function that adds your stages.",
        config=BY_IMAGE,
        own=movable_filter,
        cure=Cure(own=moved_filter),
    ),
    "blur": Fault(
        why="A blur takes most of the processor time. Nothing on the host saves it but other code.",
        stage="blur",
        fix="Do the work of the stage blur on the accelerator",
        config=BY_IMAGE,
        own=blur,
        cure=Cure(own=without_cache),
    ),
    "small_calls": Fault(
        why="A line of NumPy inverts small images one by one: the call costs more than the work, for 32 as for one.",
        stage="negative",
        fix="Return `stages.vectorize('negative')` from the function that adds your stages.",
        config={"image_size": 32, "cache": "decoded", **BY_IMAGE},
        shards=Shards(TINY, ("--encoding", "raw", "--square", "32", "--num-shards", "8")),
        own=numpy_negative,
        cure=Cure(own=vectorized_negative),
    ),
    "group_blur": Fault(
        why="A blur takes most of the processor time, and can move neither to the accelerator nor behind a cache.",
        stage="blur",
        fix="Make the stage blur cheaper",
        config=BY_IMAGE,
        required=150.0,
        own=group_blur,
    ),
    "steady_blur": Fault(
        why="A blur takes most of the processor time. It gives the same in each epoch, which fits into memory.",
        stage="blur",
        fix="Put a stage that caches right behind blur.",
        config={"augment": "none", "image_size": 256, **BY_IMAGE},
        shards=Shards(PHOTOS),
        required=60_000.0,  # cached images come nearly as fast as other accelerators here take them
        own=steady_blur,
        cure=Cure(own=cached_blur),
    ),
    "jitter": Fault(
        why="Noise takes most of the processor time, and a cache must not keep it.",
        stage="noise",
        fix="Do the work of the stage noise on the accelerator",
        config={"image_size": 448, **BY_IMAGE},
        own=jitter,
        cure=Cure(own=without_cache),
    ),
    "tiny_batch": Fault(
        why="One small image makes a batch, and what is done once for each batch outweighs it.",
        stage="batch",
        fix={"batch_size": ...},
        config={"batch_size": 1, "image_size": 32, "cache": "decoded", "augment": "device", **BY_IMAGE},
        shards=Shards(TINY, ("--encoding", "raw", "--square", "32", "--num-shards", "8")),
    ),
    "memory": Fault(
        why="Finished batches of floats fill the memory of the container.",
        stage="memory",
        fix={"prefetch_batches": ...},
        config={"prefetch_batches": 40, "image_dtype": "float32"},
        required=60.0,
        memory_limit=2_600_000_000,
    ),
    "engine_decode": Fault(
        why="The engine decodes photographs again in every epoch, and all of them would fit into memory.",
        stage="decode",
        fix={"cache": "decoded"},
        shards=Shards(PHOTOS),
    ),
    "engine_floats": Fault(
        why="Pixels become floats on the host, which the device could do.",
        stage="decode",
        fix={"image_dtype": "uint8"},
        config={"image_dtype": "float32"},
        shards=Shards(PHOTOS, RAW, 1000),
    ),
    "engine_huge": Fault(
        why="The engine decodes images of 3 megapixels for a model that sees 224 pixels.",
        stage="decode",
        fix="tfpipe shard INPUT OUTPUT --resize-short 256",
        config={"batch_size": 16},
        shards=MANY_HUGE,
        cure=Cure(shards=Shards(HUGE, ("--resize-short", "256", "--num-shards", "1"), 1500)),
    ),
    "slow_accelerator": Fault(
        why="Nothing is wrong: the accelerator takes fewer images than the pipeline gives.",
        stage="accelerator",
        fix=None,
        required=100.0,
    ),
}
