"""PipelineConfig: everything that can be asked of the input pipeline. Frozen, validated, without TensorFlow.

config = PipelineConfig(global_batch_size=256, image_dtype="bfloat16")
dataclasses.replace(config, cycle_length=16).to_file("pipeline.toml")
PipelineConfig.from_file("pipeline.toml")
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from tfpipe.errors import ConfigError
from tfpipe.pipeline.config import toml_json
from tfpipe.pipeline.config import validators as checks
from tfpipe.pipeline.config.augment_config import IMAGENET_MEAN, IMAGENET_STD, AugmentOptions, Size, as_pair

__all__ = ["IMAGENET_MEAN", "IMAGENET_STD", "AugmentOptions", "PipelineConfig"]

Augment = Literal["host", "device", "none"]
ImageDtype = Literal["uint8", "float32", "bfloat16"]
Order = Literal["auto", "exact", "throughput"]
OnBadRecord = Literal["raise", "skip"]
Cache = Literal["none", "bytes", "decoded"]
AutoShardPolicy = Literal["off", "auto", "file", "data", "hint"]


@dataclass(frozen=True, kw_only=True)
class PipelineConfig:
    """What is read, in which order, what becomes of each image, and what tf.data may use for it.

    Exactly one of the two batch sizes must be given; all else has a default. A list, as files have it, becomes a
    tuple. A ConfigError says which value cannot be used, or which two exclude each other.
    """

    # batch
    global_batch_size: int | None = None
    """Images in a batch of all replicas together; the number of replicas must divide it."""
    per_replica_batch_size: int | None = None
    """Images in a batch of one replica; the global batch grows with the number of replicas."""

    # image
    image_size: Size = 224
    """Of what the model gets, in pixels: the side, or height and width."""
    training: bool = True
    """Shuffle, draw random crops and flips, repeat for ever; else one pass, in order, always the same."""
    augment: Augment = "host"
    """Where images are cropped and flipped.

    "host": random resized crop and flip in training, centre crop in evaluation, fused with decoding. "device": whole
    images, squeezed to `decoded_size`, are handed over with the originals' heights and widths and a seed each, and
    `tfpipe.pipeline.device.augment` does the rest inside the train step. "none": whole images, resized to
    `image_size`."""
    augment_options: AugmentOptions = field(default_factory=AugmentOptions)
    """How: shares and shapes of crops, flips, mean and deviation; alike on host and device."""
    decoded_size: Size | None = None
    """Size of whole images for augment="device" and cache="decoded", in pixels. None: as `resolve_decoded_size`."""
    dct_scaling: bool = True
    """Let libjpeg decode at 1/2, 1/4 or 1/8 where the crop, or the whole image, is at least that many times larger than
    what it is resized to."""
    image_dtype: ImageDtype = "uint8"
    """Floats are normalized with the mean and deviation of `augment_options`. uint8 is a quarter of float32 on the
    way to the device: normalize there."""
    one_hot: bool = False
    """Labels as one-hot float32 vectors; else as integers."""
    extra_features: tuple[str, ...] = ()
    """Further features of the records to hand over, by name."""
    max_boxes: int = 64
    """Bounding boxes of an image are padded to this many, and those beyond are left out."""
    as_supervised: bool = False
    """Hand over (image, label), as Keras wants it; else a dictionary."""

    # order
    seed: int = 0
    """Of the order and of every random crop. Any integer of 64 bits, with or without a sign."""
    order: Order = "auto"
    """Which record comes when.

    "exact": as `tfpipe.order` has it, the same for any number of hosts, and a run can start at any step.
    "throughput": files interleaved, then a shuffle buffer. "auto": exact from a manifest; throughput for files
    found by a pattern, with a `service`, and where `deterministic` is false. A cache in memory always gives the exact
    order: any record in it costs the same."""
    num_streams: int | None = None
    """Exact order: parts of an epoch read side by side, see `tfpipe.order.ExactOrder`. None: the largest power of two
    that divides the global batch size, at most 8, or the number of hosts where that is more."""
    run_records: int = 16
    """Exact order: adjacent records read at once. Fewer mix better and seek more often."""
    window_records: int = 512
    """Exact order: consecutive records of a stream that are held in memory and permuted."""
    shuffle_buffer_size: int | str = "256MiB"
    """Throughput order: what is held in memory to draw from; records if a number, bytes if text ("256MiB")."""

    # reading
    cycle_length: int = 8
    """Files, or streams, that are read side by side."""
    block_length: int = 16
    """Records taken from one before the next has its turn; in exact order at least `run_records`."""
    read_parallel_calls: int | None = None
    """Threads that read. None: tf.data adjusts them while it runs (AUTOTUNE)."""
    deterministic: bool | None = None
    """Keep the order where one read or decode is slower than the next. None: yes in exact order and in evaluation,
    else no."""
    on_bad_record: OnBadRecord = "raise"
    """What to do about a record whose checksum is wrong or whose file cannot be read: end with an error that says where
    it is, or leave it out and count it. An intact record that holds no image is always an error."""
    max_bad_records: int = 100
    """How many may be left out before it is an error all the same; 0: none."""

    # cache
    cache: Cache = "none"
    """Keep after the first epoch: the records' bytes (no second read), or images decoded to `decoded_size` (no second
    decoding either, but more space)."""
    cache_dir: str | None = None
    """Local folder for the cache. None: in memory."""

    # tf.data
    num_parallel_calls: int | None = None
    """Threads that decode and augment. None: AUTOTUNE."""
    prefetch_batches: int | None = None
    """Finished batches that wait for the trainer; 0: none. None: AUTOTUNE."""
    autotune: bool = True
    """Let tf.data adjust what is left to AUTOTUNE; else its own fixed defaults hold."""
    ram_budget: int | str | None = None
    """Memory that AUTOTUNE may plan with, bytes or text such as "8GiB". None: tf.data's share of what is free."""
    cpu_budget: int | None = None
    """Cores that AUTOTUNE may plan with. None: all."""
    private_threadpool_size: int | None = None
    """Threads of a pool of the pipeline's own. None: it shares TensorFlow's."""
    max_intra_op_parallelism: int = 1
    """Threads within one operation of the pipeline. One: images are many, so each is best left to a single thread, and
    5 % of the processor time is saved (2 cores, 256 px JPEG). 0: as TensorFlow decides."""
    map_fusion: bool = True
    """Run `parse`, `decode` and `augment` as one function: 6 % less processor time, and 20 % less in those stages (2
    cores, 256 px JPEG). Then tf.data's own statistics do not tell them apart."""
    inject_prefetch: bool = True
    """Let tf.data add a prefetch where the last stage is none."""
    auto_shard_policy: AutoShardPolicy = "off"
    """How `tf.distribute` shall divide a data set among hosts. "off": the pipeline has done it already."""
    service: str | None = None
    """Dispatcher of a tf.data service, "grpc://host:port", whose workers run the pipeline. None: this host does.
    Its workers deal records to whoever asks, so there is no exact order, and no cache."""

    def __post_init__(self) -> None:
        for name in ("image_size", "decoded_size", "extra_features"):
            if isinstance(value := getattr(self, name), list):
                object.__setattr__(self, name, tuple(value))  # a list has no hash
        _check_batch(self)
        _check_each(self)
        _check_pairs(self)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of what the model gets."""
        return as_pair(self.image_size)

    def resolve_decoded_size(self, stored_square: int | None = None) -> tuple[int, int]:
        """Height and width of whole images: `decoded_size`, or what stands for it.

        Args:
            stored_square: Side of the images where the data set has them squared, as its manifest says.

        Returns:
            `decoded_size` if given, else the stored square, else 8/7 of `image_size` in whole pixels, of which the
            default `crop_fraction` leaves just `image_size`: 256 for 224.
        """
        if self.decoded_size is not None:
            return as_pair(self.decoded_size)
        if stored_square is not None:
            return stored_square, stored_square
        height, width = self.size
        return round(height * 8 / 7), round(width * 8 / 7)

    @classmethod
    def from_file(cls, path: toml_json.FilePath) -> PipelineConfig:
        """Reads a .toml or .json file of options; those that it leaves out have their defaults.

        A table `tuned` is ignored: in it a tuner notes on which host and data it tried the options. Any other name
        that is no option is refused.

        Raises:
            ConfigError: The file is missing or not what its name says, or an option in it cannot be used.
        """
        return toml_json.build(cls, toml_json.read(path), str(path))

    def to_toml(self) -> str:
        """As TOML: every option that is not None."""
        return toml_json.to_toml(self._table())

    def to_json(self) -> str:
        """As JSON: every option that is not None."""
        return toml_json.to_json(self._table())

    def to_file(self, path: toml_json.FilePath, notes: Mapping[str, Any] | None = None) -> None:
        """Writes a .toml or .json file, in one step: nobody finds half of it.

        Args:
            path: Of the file.
            notes: For its table `tuned`.

        Raises:
            ConfigError: The name ends otherwise, or the file cannot be written.
        """
        toml_json.write(path, {**self._table(), **({toml_json.NOTES: dict(notes)} if notes else {})})

    def _table(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


_FLAGS = (
    *("training", "dct_scaling", "one_hot", "as_supervised", "deterministic"),
    *("autotune", "inject_prefetch", "map_fusion"),
)
_SIZES = ("image_size", "decoded_size")
_AMOUNTS = ("shuffle_buffer_size", "ram_budget")
_CHOICES = {
    "augment": Augment,
    "image_dtype": ImageDtype,
    "order": Order,
    "on_bad_record": OnBadRecord,
    "cache": Cache,
    "auto_shard_policy": AutoShardPolicy,
}
_COUNTS = {
    **dict.fromkeys(("global_batch_size", "per_replica_batch_size", "max_boxes"), 1),
    **dict.fromkeys(("num_streams", "run_records", "window_records", "cycle_length", "block_length"), 1),
    **dict.fromkeys(("read_parallel_calls", "num_parallel_calls", "cpu_budget", "private_threadpool_size"), 1),
    **dict.fromkeys(("max_bad_records", "prefetch_batches", "max_intra_op_parallelism"), 0),
}


def _check_batch(config: PipelineConfig) -> None:
    whole, share = config.global_batch_size, config.per_replica_batch_size
    if (whole is None) == (share is None):
        got = "neither" if whole is None else f"{whole} and {share}"
        raise ConfigError(f"Exactly one of `global_batch_size` and `per_replica_batch_size` must be given, got {got}.")


def _check_each(config: PipelineConfig) -> None:
    """Every option by itself; None only where it is the default."""
    for one in fields(config):
        name, value = one.name, getattr(config, one.name)
        if value is None and one.default is None:
            continue
        if name in _FLAGS:
            checks.check_flag(name, value)
        elif name in _COUNTS:
            checks.check_count(name, value, _COUNTS[name])
        elif name in _CHOICES:
            checks.check_choice(name, value, get_args(_CHOICES[name]))
        elif name in _SIZES:
            checks.check_size(name, value)
        elif name in _AMOUNTS:
            checks.check_amount(name, value)
        else:
            _check_other(name, value)


def _check_other(name: str, value: object) -> None:
    """The options that are like no other."""
    match name:
        case "augment_options":
            if not isinstance(value, AugmentOptions):
                raise ConfigError(f"`augment_options` must be AugmentOptions, got {value!r}.")
        case "extra_features":
            checks.check_names(name, value)
        case "seed":
            checks.check_seed(name, value)
        case "cache_dir":
            checks.check_text(name, value)
        case "service":
            checks.check_address(name, value)
        case _:
            raise AssertionError(f"no check for `{name}`")


def _check_pairs(config: PipelineConfig) -> None:
    if len(config.augment_options.mean) != 3:
        raise ConfigError(f"`mean` must have three values, one for each channel, got {config.augment_options.mean}.")
    if config.order == "exact":
        if config.block_length < config.run_records:
            raise ConfigError(
                f"`block_length` must be at least `run_records`, {config.run_records}, in exact order, got "
                f"{config.block_length}. Raise it, or lower `run_records`."
            )
        if config.deterministic is False:
            raise ConfigError("`deterministic` false excludes `order` exact. Leave it out, or use throughput.")
        if config.service is not None:
            raise ConfigError(
                "`service` excludes `order` exact: its workers deal records to whoever asks. Use throughput."
            )
    if config.service is not None and config.cache != "none":
        raise ConfigError(f"`service` needs `cache` none, got {config.cache!r}: its workers come and go.")
    if config.augment == "device" and config.image_dtype != "uint8":
        raise ConfigError(
            f"`augment` device needs `image_dtype` uint8, got {config.image_dtype!r}: the device normalizes."
        )
    if config.cache_dir is not None and config.cache == "none":
        raise ConfigError("`cache_dir` needs a cache. Set `cache` to bytes or decoded, or leave the folder out.")
