"""Small records as ten families of other projects write them, and what TensorFlow parses."""

import gzip
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tests.integrity.damaged import framed

RECORDS = 14
"""The records of each family, in two files."""


@dataclass(frozen=True)
class Family:
    """Records of one kind, the options with which they are read, and their parser in TensorFlow."""

    make: Callable[[int], bytes]  # the record of a number
    parse: Callable[[tf.Tensor], Mapping[str, tf.Tensor]]  # what a batch holds of a record
    files: Sequence[str] = ("train-00000-of-00002", "train-00001-of-00002")
    index: Mapping[str, Any] = field(default_factory=dict)  # options of `index`
    pad_to: Mapping[str, Any] = field(default_factory=dict)
    text: Sequence[str] = ()  # features that no accelerator holds
    images: Literal["all", "first"] = "all"

    def write(self, folder: Path, in_members: bool = False) -> list[bytes]:
        """Writes the records, and returns them; `in_members` makes each a gzip member of its own."""
        records = [self.make(number) for number in range(RECORDS)]
        for k, name in enumerate(self.files):
            path, part = folder / name, records[k * RECORDS // 2 : (k + 1) * RECORDS // 2]
            path.parent.mkdir(parents=True, exist_ok=True)
            frames = [framed([record]) for record in part]
            path.write_bytes(b"".join(map(gzip.compress, frames) if in_members else frames))
        return records


FAMILIES: dict[str, Family] = {}


def draw(number: int, name: str, shape: Sequence[int], dtype: str = "float32") -> NDArray[Any]:
    rng = np.random.default_rng((number, *name.encode()))
    if dtype in ("float32", "float16"):
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, 200, shape).astype(dtype)


def feature(value: Any) -> tf.train.Feature:
    """Makes the feature of bytes, a list of them, or an array."""
    if isinstance(value, bytes | list):
        values = value if isinstance(value, list) else [value]
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if np.asarray(value).dtype.kind == "f":
        return tf.train.Feature(float_list=tf.train.FloatList(value=np.ravel(value)))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=np.ravel(value)))


def example(values: Mapping[str, Any]) -> bytes:
    features = tf.train.Features(feature={name: feature(value) for name, value in values.items()})
    return tf.train.Example(features=features).SerializeToString()


def sequence_example(context: Mapping[str, Any], lists: Mapping[str, Sequence[Any]]) -> bytes:
    made = {name: tf.train.FeatureList(feature=[feature(step) for step in steps]) for name, steps in lists.items()}
    return tf.train.SequenceExample(
        context=tf.train.Features(feature={name: feature(value) for name, value in context.items()}),
        feature_lists=tf.train.FeatureLists(feature_list=made),
    ).SerializeToString()


def fixed(shape: Sequence[int], dtype: tf.DType = tf.float32) -> tf.io.FixedLenFeature:
    return tf.io.FixedLenFeature(list(shape), dtype)


def steps_of(shape: Sequence[int], dtype: tf.DType = tf.float32) -> tf.io.FixedLenSequenceFeature:
    return tf.io.FixedLenSequenceFeature(list(shape), dtype)


def png(number: int, name: str, size: int) -> bytes:
    return bytes(tf.io.encode_png(draw(number, name, (size, size, 3), "uint8")).numpy())


# --- Earth Engine ---------------------------------------------------------------------------------

_BANDS = "elevation th vs tmmn tmmx sph pr pdsi NDVI population erc PrevFireMask FireMask".split()
FAMILIES["wildfire"] = Family(
    make=lambda number: example({band: draw(number, band, (8, 8)) for band in _BANDS}),
    parse=lambda record: tf.io.parse_single_example(record, {band: fixed((8, 8)) for band in _BANDS}),
    files=("next_day_wildfire_spread_train_00.tfrecord", "next_day_wildfire_spread_train_01.tfrecord"),
    index={"tensors": [f"{band}=float32[8,8]" for band in _BANDS]},
)

_COLUMNS = "B2 B3 B4 B5 B6 B7 landcover".split()
FAMILIES["table"] = Family(
    make=lambda number: example({column: draw(number, column, (1,)) for column in _COLUMNS}),
    parse=lambda record: tf.io.parse_single_example(record, {column: fixed(()) for column in _COLUMNS}),
)


# --- genomics -------------------------------------------------------------------------------------


def _make_pileup(number: int) -> bytes:
    return example(
        {
            "image/encoded": draw(number, "pileup", (10, 22, 6), "uint8").tobytes(),
            "image/shape": np.array([10, 22, 6]),
            "image/format": b"raw",
            "variant/encoded": b"\x08" + bytes([number]),
            "alt_allele_indices/encoded": b"\n\x01\x00",
            "variant_type": np.array(number % 2),
            "locus": f"chr1:{number}".encode(),
            "sequencing_type": np.array(1),
            "label": np.array(number % 3),
        }
    )


def _parse_pileup(record: tf.Tensor) -> dict[str, tf.Tensor]:
    whole = {"variant_type": tf.int64, "sequencing_type": tf.int64, "label": tf.int64}
    spec = {name: fixed((), dtype) for name, dtype in whole.items()}
    spec |= {"image/encoded": fixed((), tf.string), "image/shape": fixed((3,), tf.int64)}
    spec |= {name: fixed((), tf.string) for name in FAMILIES["deepvariant"].text}
    parsed = tf.io.parse_single_example(record, spec)
    pixels = tf.reshape(tf.io.decode_raw(parsed["image/encoded"], tf.uint8), parsed["image/shape"])
    return {**parsed, "image/encoded": pixels}


FAMILIES["deepvariant"] = Family(
    make=_make_pileup,
    parse=_parse_pileup,
    files=("examples.tfrecord-00000-of-00002", "examples.tfrecord-00001-of-00002"),
    index={"tensors": ["image/encoded=uint8[image/shape]"], "split": "train"},
    text=("image/format", "variant/encoded", "alt_allele_indices/encoded", "locus"),
)


def _parse_tracks(record: tf.Tensor) -> dict[str, tf.Tensor]:
    parsed = tf.io.parse_single_example(record, {name: fixed((), tf.string) for name in ("sequence", "target")})
    target = tf.reshape(tf.io.decode_raw(parsed["target"], tf.float16), (4, 3))
    return {"sequence": tf.io.decode_raw(parsed["sequence"], tf.uint8), "target": target}


FAMILIES["borzoi"] = Family(
    make=lambda number: example(
        {
            "sequence": draw(number, "sequence", (16,), "uint8").tobytes(),
            "target": draw(number, "target", (4, 3), "float16").tobytes(),
        }
    ),
    parse=_parse_tracks,
    files=("tfrecords/train-0.tfr", "tfrecords/train-1.tfr"),
    index={"tensors": ["sequence=uint8[16]", "target=float16[4,3]"]},
)

_SERIALIZED = {
    "dna_sequence": (tf.float32, (6, 4)),
    "rna_seq": (tf.bfloat16, (6, 2)),
    "rna_seq_mask": (tf.bool, (1, 2)),
    "rna_seq_strand": (tf.int32, (2,)),
    "splice_site_usage": (tf.float16, (6, 2)),
}


def _make_bundle(number: int) -> bytes:
    tensors = {
        name: tf.io.serialize_tensor(tf.cast(draw(number, name, shape, "int64") % 4, dtype)).numpy()
        for name, (dtype, shape) in _SERIALIZED.items()
    }
    place = {"interval/start": np.array(number), "interval/end": np.array(number + 6)}
    return example({**tensors, **place, "interval/chromosome": b"chr7"})


def _parse_bundle(record: tf.Tensor) -> dict[str, tf.Tensor]:
    spec = {name: fixed((), tf.string) for name in (*_SERIALIZED, "interval/chromosome")}
    spec |= {name: fixed((), tf.int64) for name in ("interval/start", "interval/end")}
    parsed = tf.io.parse_single_example(record, spec)
    tensors = {name: tf.io.parse_tensor(parsed[name], dtype) for name, (dtype, _) in _SERIALIZED.items()}
    return {**parsed, **tensors}


FAMILIES["alphagenome"] = Family(
    make=_make_bundle,
    parse=_parse_bundle,
    files=("rna_seq/data_chr7_0-2.tfrecord", "rna_seq/data_chr7_1-2.tfrecord"),
    text=("interval/chromosome",),
)


# --- robots and cars ------------------------------------------------------------------------------

_STEPS = {"steps/observation/state": 5, "steps/action": 3, "steps/language_embedding": 4}
_FLAGS = ("steps/is_first", "steps/is_last", "steps/is_terminal")


def _make_episode(number: int) -> bytes:
    count = 2 + number % 3
    return example(
        {
            **{name: draw(number, name, (count, width)) for name, width in _STEPS.items()},
            **{name: draw(number, name, (count,)) for name in ("steps/discount", "steps/reward")},
            **{name: draw(number, name, (count,), "int64") % 2 for name in _FLAGS},
            "steps/observation/image": [png(number, f"image{k}", 8) for k in range(count)],
            "steps/observation/wrist_image": [png(number, f"wrist{k}", 8) for k in range(count)],
            "steps/language_instruction": [b"pick it up"] * count,
            "episode_metadata/file_path": f"/episodes/{number}".encode(),
        }
    )


def _parse_episode(record: tf.Tensor) -> dict[str, tf.Tensor]:
    spec: dict[str, Any] = {name: tf.io.RaggedFeature(tf.float32) for name in _STEPS}
    spec |= {name: tf.io.RaggedFeature(tf.int64) for name in _FLAGS}
    spec |= {"steps/reward": tf.io.RaggedFeature(tf.float32), "steps/observation/image": tf.io.RaggedFeature(tf.string)}
    parsed = tf.io.parse_single_example(record, spec)
    parsed |= {name: tf.reshape(parsed[name], (-1, width)) for name, width in _STEPS.items()}
    image = tf.io.decode_image(parsed.pop("steps/observation/image")[0])
    return {**parsed, "image": image}


FAMILIES["rlds"] = Family(
    make=_make_episode,
    parse=_parse_episode,
    files=("bridge-train.tfrecord-00000-of-00002", "bridge-train.tfrecord-00001-of-00002"),
    index={
        "image_key": "steps/observation/image",
        "tensors": [f"{name}=float32[?,{width}]" for name, width in _STEPS.items()],
    },
    pad_to=dict.fromkeys((*_STEPS, *_FLAGS, "steps/reward"), 4),
    images="first",
)

_STATES = "x y z bbox_yaw height length width vel_yaw velocity_x velocity_y".split()
_WAYMO: dict[str, tuple[tuple[int, ...], str]] = {
    **{f"roadgraph_samples/{name}": ((20, 3), "float32") for name in ("xyz", "dir")},
    **{f"roadgraph_samples/{name}": ((20, 1), "int64") for name in ("id", "type", "valid")},
    **{f"state/{name}": ((6,), "float32") for name in ("id", "type")},
    **{f"state/{name}": ((6,), "int64") for name in ("is_sdc", "tracks_to_predict")},
    **{
        f"state/{time}/{name}": ((6, count), "int64" if name in ("valid", "timestamp_micros") else "float32")
        for time, count in (("past", 10), ("current", 1), ("future", 8))
        for name in (*_STATES, "valid", "timestamp_micros")
    },
    **{
        f"traffic_light_state/{time}/{name}": ((count, 4), "int64" if name in ("state", "valid") else "float32")
        for time, count in (("past", 10), ("current", 1))
        for name in ("state", "valid", "x", "y", "z")
    },
}
FAMILIES["waymo"] = Family(
    make=lambda number: example({name: draw(number, name, *kind) for name, kind in _WAYMO.items()}),
    parse=lambda record: tf.io.parse_single_example(
        record, {name: fixed(shape, tf.dtypes.as_dtype(dtype)) for name, (shape, dtype) in _WAYMO.items()}
    ),
    files=("training_tfexample.tfrecord-00000-of-00002", "training_tfexample.tfrecord-00001-of-00002"),
    index={
        "tensors": [f"{name}={dtype}[{','.join(map(str, shape))}]" for name, (shape, dtype) in _WAYMO.items()],
        "split": "train",
    },
)


# --- pictures and video ---------------------------------------------------------------------------

_PICTURES = {"pre_image_png": 8, "post_image_png": 8, "pre_image_png_large": 16, "post_image_png_large": 16}
_IDS = ("pre_image_id", "post_image_id", "example_id", "encoded_coordinates", "plus_code", "string_label")


def _parse_pictures(record: tf.Tensor) -> dict[str, tf.Tensor]:
    spec = {name: fixed((), tf.string) for name in ("pre_image_png", "post_image_png", "example_id")}
    spec |= {"coordinates": fixed((2,)), "label": fixed(()), "int64_id": fixed((), tf.int64)}
    parsed = tf.io.parse_single_example(record, spec)
    images = [tf.io.decode_image(parsed.pop(name)) for name in ("pre_image_png", "post_image_png")]
    return {**parsed, "image": tf.stack(images)}


FAMILIES["skai"] = Family(
    make=lambda number: example(
        {
            **{name: png(number, name, size) for name, size in _PICTURES.items()},
            **{name: f"{name} {number}".encode() for name in _IDS},
            "coordinates": draw(number, "coordinates", (2,)),
            "label": np.array(number % 2, np.float32),
            "int64_id": np.array(number),
        }
    ),
    parse=_parse_pictures,
    index={"image_key": ("pre_image_png", "post_image_png"), "label_key": "label"},
    text=("example_id",),
)


def _make_clip(number: int) -> bytes:
    frames = [draw(number, f"frame{k}", (1, 1, 3), "uint8").repeat(8, 0).repeat(8, 1) for k in range(2 + number % 3)]
    return sequence_example(
        {
            "clip/label/index": np.arange(number % 3 + 1),
            "clip/label/text": [b"run", b"jump", b"sit"][: number % 3 + 1],
            "caption/string": b"a clip",
            "video/filename": f"{number}.mp4".encode(),
            "clip/start/timestamp": np.array(1000 * number),
            "clip/end/timestamp": np.array(1000 * number + 999),
        },
        {
            "image/encoded": [bytes(tf.io.encode_jpeg(frame, quality=100).numpy()) for frame in frames],
            "WAVEFORM/feature/floats": [draw(number, "sound", (6,))],
        },
    )


def _parse_clip(record: tf.Tensor) -> dict[str, tf.Tensor]:
    context = {name: fixed((), tf.int64) for name in ("clip/start/timestamp", "clip/end/timestamp")}
    context |= {"clip/label/index": tf.io.VarLenFeature(tf.int64), "caption/string": fixed((), tf.string)}
    lists = {"image/encoded": steps_of((), tf.string), "WAVEFORM/feature/floats": steps_of((6,))}
    parsed, steps = tf.io.parse_single_sequence_example(record, context, lists)
    image = tf.io.decode_jpeg(steps.pop("image/encoded")[0], dct_method="INTEGER_ACCURATE")
    return {**parsed, **steps, "clip/label/index": tf.sparse.to_dense(parsed["clip/label/index"]), "image": image}


FAMILIES["dmvr"] = Family(
    make=_make_clip,
    parse=_parse_clip,
    files=("base-00000-of-00002", "base-00001-of-00002"),
    index={"split": "train"},
    pad_to={"clip/label/index": 3, "WAVEFORM/feature/floats": 1},
    text=("caption/string",),
    images="first",
)


def _parse_frames(record: tf.Tensor) -> dict[str, tf.Tensor]:
    context = {"id": fixed((), tf.string), "labels": tf.io.VarLenFeature(tf.int64)}
    lists = {"rgb": steps_of((), tf.string), "audio": steps_of((), tf.string)}
    parsed, steps = tf.io.parse_single_sequence_example(record, context, lists)
    widths = {"rgb": 32, "audio": 4}
    frames = {name: tf.reshape(tf.io.decode_raw(steps[name], tf.uint8), (-1, widths[name])) for name in lists}
    return {**parsed, **frames, "labels": tf.sparse.to_dense(parsed["labels"])}


FAMILIES["youtube8m"] = Family(
    make=lambda number: sequence_example(
        {"id": f"id{number}".encode(), "labels": np.arange(number % 4)},
        {
            name: [draw(number, f"{name}{k}", (width,), "uint8").tobytes() for k in range(number % 5)]
            for name, width in (("rgb", 32), ("audio", 4))
        },
    ),
    parse=_parse_frames,
    index={"tensors": ["rgb=uint8[?,32]", "audio=uint8[?,4]"]},
    pad_to={"rgb": 4, "audio": 4, "labels": 3},
    text=("id",),
)
