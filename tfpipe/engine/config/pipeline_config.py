"""PipelineConfig: the options of the input pipeline, of its service and of tf.data. Frozen, without TensorFlow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from tfpipe.engine.config import toml_json
from tfpipe.engine.config.augment_config import IMAGENET_MEAN, IMAGENET_STD, AugmentOptions, ImageSize, as_pair
from tfpipe.errors import ConfigError
from tfpipe.format.image_form import MAX_SIDE
from tfpipe.system import host_limits
from tfpipe.system.options import (
    Addresses,
    Amount,
    Choice,
    Count,
    Flag,
    Names,
    Nested,
    Number,
    Seed,
    Share,
    Size,
    Sizes,
    SizesByName,
    Text,
    check_options,
    option,
    show_options,
)
from tfpipe.system.units import shorten

__all__ = ["IMAGENET_MEAN", "IMAGENET_STD", "AugmentOptions", "PipelineConfig"]

Augment = Literal["host", "device", "none"]
ImageDtype = Literal["uint8", "float32", "bfloat16"]
Order = Literal["auto", "exact", "throughput"]
Cache = Literal["none", "bytes", "decoded"]

MAX_IMAGES = 64
"""The most images of a record in a batch."""


@dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """The options of a trainer whose batches come from workers.

    Attributes:
        workers: The addresses of the workers, started by `tfpipe serve`: ("host1:5050", "host2:5050"). Any of them
            makes any step, so the batches equal this host's own, for any number of workers, and one may end at
            any time. They must reach the dataset under the same path or URL. Without any, this host makes the batches.
            Like host:5050, one or several. Default: ().
        share: The share of the steps that this host makes itself, on cores that would be idle. "auto": it makes a step
            when all workers have as many requests as they take. The batches are equal wherever they are made.
            At least 0 and below 1, or "auto". Default: 0.0.
        token_file: The file that holds the token of the workers, which `tfpipe serve` prints unless they serve their
            own machine alone. None: the command line takes TFPIPE_SERVICE_TOKEN from the environment. Default: None.
        certificate: The file of the certificate, in PEM, of the authority that signed those of the workers, or of the
            workers themselves. Connections are then encrypted. None: they are not. Default: None.
        timeout_s: The seconds that this host waits for the workers to send the batch of a step, before an error names
            them. At least 1. Default: 300.

    Raises:
        ConfigError: A value cannot be used.
    """

    workers: tuple[str, ...] = option(Addresses(), ())
    share: float | Literal["auto"] = option(Number(at_least=0, below=1, word="auto"), 0.0, affects="speed")
    token_file: str | None = option(Text(), None, metavar="FILE")
    certificate: str | None = option(Text(), None, metavar="FILE")
    timeout_s: int = option(Count(1), 300)

    __repr__ = show_options

    def __post_init__(self) -> None:
        given: object = self.workers
        if isinstance(given, list):
            object.__setattr__(self, "workers", tuple(given))  # a list has no hash
        check_options(self)
        for name in ("share", "token_file", "certificate"):
            if (value := getattr(self, name)) and not self.workers:
                raise ConfigError(f"`{name}` of a service needs `workers`, got {value!r} without.")


@dataclass(frozen=True, kw_only=True)
class TfDataOptions:
    """The options of the textbook pipeline, which reads files side by side and treats records one by one.

    Attributes:
        shuffle_buffer_size: The size of the shuffle buffer: a number counts records, text such as "256MiB" counts
            bytes. At least 1, as a number or a size such as 128MiB. Default: "256MiB".
        cycle_length: The number of files that are read side by side. None: 8. At least 1. Default: None.
        block_length: The number of records that are taken from one file before the next one has its turn. At least 1.
            Default: 16.
        read_parallel_calls: The number of threads that read files. None: one for each file of `cycle_length`.
            At least 1. Default: None.
        num_parallel_calls: The number of threads that decode and augment. None: AUTOTUNE. At least 1. Default: None.
        deterministic: Whether the order is kept when one read or decode is slower than the next. None: it is kept in
            evaluation only. Default: None.
        autotune: Whether tf.data adjusts the options that are AUTOTUNE. Otherwise there is a thread for each core, or
            for each file that is read. None: it does in training. It does not in evaluation, because its thread may
            hold up the end of a pass for as long as the pass took, up to a minute. Default: None.
        ram_budget: The memory that AUTOTUNE may plan with, in bytes or as text such as "8GiB". None: tf.data's share of
            the free memory. At least 1, as a number or a size such as 128MiB. Default: None.
        private_threadpool_size: The number of threads of a pool for this pipeline alone. None: it shares TensorFlow's
            pool. At least 1. Default: None.
        max_intra_op_parallelism: The number of threads within one operation of the pipeline. 0: TensorFlow decides.
            There are many images, so one thread for each is best: 1 saves 5 % of the processor time (2 cores, 256 px
            JPEG). At least 0. Default: 1.
        map_fusion: Whether `parse`, `decode` and `augment` run as one function. It saves 6 % of the processor time, and
            20 % in those stages (2 cores, 256 px JPEG). Default: True.
        inject_prefetch: Whether tf.data adds a prefetch if the last stage is not one. Default: True.

    Raises:
        ConfigError: A value cannot be used.
    """

    # No order is promised, so an option that changes only the order, such as `cycle_length`, is one of speed.
    shuffle_buffer_size: int | str = option(Amount(), "256MiB")
    cycle_length: int | None = option(Count(1), None, affects="speed")
    block_length: int = option(Count(1), 16, affects="speed")
    read_parallel_calls: int | None = option(Count(1), None, affects="speed")
    num_parallel_calls: int | None = option(Count(1), None, affects="speed")
    deterministic: bool | None = option(Flag(), None)
    autotune: bool | None = option(Flag(), None, affects="speed")
    ram_budget: int | str | None = option(Amount(), None, affects="speed")
    private_threadpool_size: int | None = option(Count(1), None, affects="speed")
    max_intra_op_parallelism: int = option(Count(0), 1, affects="speed")
    map_fusion: bool = option(Flag(), True, affects="speed")
    inject_prefetch: bool = option(Flag(), True, affects="speed")

    __repr__ = show_options

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, kw_only=True)
class PipelineConfig:
    """The options of an input pipeline: the batches, the images, the order, the caches and the threads.

    `batch_size` must be given; every other option has a default. A list, as files have it, becomes a tuple. Each option
    means the same for every framework, or is refused where it cannot.

    Attributes:
        batch_size: The number of images in a batch of all replicas and hosts together. The number of replicas must
            divide it. At least 1. Required.
        image_size: The size of the images that the model gets, in pixels: the side of a square, or height and width.
            224 is the size of He et al. 2015. A side from 1 to 65500, or (height, width). Default: 224.
        training: Whether the pipeline shuffles, draws random crops and flips, and repeats without end. Otherwise it
            makes one pass in order, and every pass is the same. Default: True.
        images: The images of a record that a batch holds, if records have several. "all": all of them, where each
            record has the same number. "first": the first one, without an axis of images, as if records had one.
            A number: so many, drawn anew in each epoch by the record's seed, in the order of the record; in evaluation
            the first ones. "all", "first", or from 1 to 64. Default: "all".
        augment: The place where images are cropped and flipped. "host": a random resized crop and a flip in training, a
            center crop in evaluation, fused with decoding. "device": the batch holds whole images, squeezed to
            `decoded_size`, and the "crop" and the "flip" that "host" would have; `tfpipe.pipeline.device.augment` does
            the rest inside the training step. The textbook pipeline refuses it. "none": whole images, resized to
            `image_size`. "host", "device" or "none". Default: "host".
        augment_options: The areas and shapes of crops, the flips, the mean and the standard deviation. They are the
            same on host and device. Default: AugmentOptions().
        decoded_size: The size of whole images for `augment` "device" and `cache` "decoded", in pixels; without both it
            has no effect. None: the size that `resolve_decoded_size` returns. A side from 1 to 65500, or
            (height, width). Default: None.
        image_dtype: The type of the pixels. Floats are normalized with the mean and deviation of `augment_options`.
            uint8 takes a quarter of the bytes of float32 on the way to the device, which then normalizes.
            "uint8", "float32" or "bfloat16". Default: "uint8".
        one_hot: Whether labels are one-hot float32 vectors instead of integers. Default: False.
        extra_features: The names of further features of the records that a batch holds. Masks are cropped as their
            images. If the records have no image and none is named, a batch holds all. Default: ().
        pad_to: The sizes that tensors and lists are padded to, or cut to, if the manifest leaves sizes of their axes
            open: {"tokens": 77}, or {"frames": (16, 128)} for two such axes. A batch then holds the stored sizes too,
            as "tokens.sizes". Without it batches hold tf.RaggedTensor. Tensors are padded with zeros; lists with -1,
            which is no class, with 0.0 or with empty text. Default: {}.
        multi_hot: The names of lists of classes that become float32 vectors, with a 1 for each class of the record and
            a 0 for each other one. Default: ().
        max_boxes: The number of bounding boxes of an image in a batch, for the features that begin with
            "image/object/". Fewer boxes are padded, and boxes beyond it are left out. At least 1. Default: 64.
        as_supervised: Whether a batch is a pair (image, label), as Keras expects it, instead of a dictionary. In
            evaluation the mask comes third; on one device that is not a TPU, the last batch is not filled up then.
            Default: False.
        seed: The seed of the order and of every random crop. From -2**63 to 2**64 - 1. Default: 0.
        order: The order of the records, and the pipeline that reads them. "exact": the order of `tfpipe.engine.order`,
            which is the same for any number of hosts, and in which a run can start at any step; the engine makes whole
            batches. "throughput": the textbook pipeline of `tf.data`, which reads files side by side, then shuffles
            records in a buffer. "auto": exact with a manifest; throughput for files that match a pattern, for
            files compressed as a whole, for those that only TensorFlow has a client for, with stages of your own, and
            for TPUs behind a remote worker. "auto", "exact" or "throughput". Default: "auto".
        block_records: The number of adjacent records that exact order reads at once, for each row of the batch. Fewer
            mix better and seek more often. None: about 400 KB, at most 16 records, and fewer if a row would read less
            than four blocks in an epoch. At least 1. Default: None.
        max_bad_records: The number of records that may be left out because their checksum is wrong or their file cannot
            be read. Each is counted; one more is an error that says where it is. An intact record that holds no image
            is always an error. At least 0. Default: 0.
        cache: The data that is kept after the first epoch. "bytes": the records, so that nothing is read twice.
            "decoded": images decoded to `decoded_size`, so that nothing is decoded twice either; they take more space.
            Except with `augment` "device", the model's images are made of these, so their pixels are others than
            without a cache; evaluation with a cache in memory keeps the model's images, and has the same pixels.
            "none", "bytes" or "decoded". Default: "none".
        cache_dir: The local folder of the cache, which other processes of this host and later runs share, with any
            reader. They add what they read to it, and read what it lacks from the source. None: the cache is in
            memory. Default: None.
        cache_bytes: The memory that the cache may take. It keeps as many records as fit, the same ones in every run;
            the others are read and decoded in every epoch, as without a cache. A mixture divides it among its datasets.
            None: it keeps all records, or is refused if they do not fit. At least 1, as a number or a size such as
            128MiB. Default: None.
        prefetch_batches: The number of finished batches that wait for the trainer. 0: none. None: AUTOTUNE in tf.data,
            two steps elsewhere. At least 0. Default: None.
        cpu_budget: The share of this host's cores that the pipeline may take, rounded down to whole threads, but at
            least one. A busy host is slow to launch the accelerator's work. None: all cores. In (0, 1].
            Default: None.
        service: The workers that make the batches in place of this host, and the share that it makes all the same:
            ServiceOptions(workers=("host1:5050",)). It needs a manifest, and excludes a `cache`.
            Default: ServiceOptions().
        tf_data: The options of the textbook pipeline of `tf.data`, which reads in `order` throughput: buffers, files
            side by side, threads, AUTOTUNE. They are refused where the engine makes the batches.
            Default: TfDataOptions().

    Raises:
        ConfigError: A value cannot be used, or two options exclude each other.
    """

    # batch
    batch_size: int = option(Count(1), group="Data")

    # image
    image_size: ImageSize = option(Size(MAX_SIDE), 224, affects="images", group="Data", metavar="PX")
    training: bool = option(Flag(), True)
    images: int | Literal["all", "first"] = option(
        Count(1, MAX_IMAGES, words=("all", "first")), "all", affects="images"
    )
    augment: Augment = option(Choice(get_args(Augment)), "host", affects="images", without_tensorflow=("host", "none"))
    augment_options: AugmentOptions = option(Nested(AugmentOptions), default_factory=AugmentOptions)
    decoded_size: ImageSize | None = option(Size(MAX_SIDE), None, affects="images")
    image_dtype: ImageDtype = option(Choice(get_args(ImageDtype)), "uint8", affects="images")
    one_hot: bool = option(Flag(), False)
    extra_features: tuple[str, ...] = option(Names(), ())
    pad_to: Mapping[str, int | tuple[int, ...]] = option(Sizes(), default_factory=SizesByName)
    multi_hot: tuple[str, ...] = option(Names(), ())
    max_boxes: int = option(Count(1), 64)
    as_supervised: bool = option(Flag(), False)

    # order
    seed: int = option(Seed(), 0, affects="order", group="Data")
    order: Order = option(Choice(get_args(Order)), "auto", affects="order", without_tensorflow=("auto", "exact"))
    block_records: int | None = option(Count(1), None, affects="order")

    # reading
    max_bad_records: int = option(Count(0), 0)

    # cache
    cache: Cache = option(Choice(get_args(Cache)), "none", affects="cache")
    cache_dir: str | None = option(Text(), None, affects="cache")
    cache_bytes: int | str | None = option(Amount(), None, affects="cache")

    # threads
    prefetch_batches: int | None = option(Count(0), None, affects="speed")
    cpu_budget: float | None = option(Share(), None, group="Data", metavar="SHARE")  # a limit that no search may lift
    service: ServiceOptions = option(Nested(ServiceOptions), default_factory=ServiceOptions)
    tf_data: TfDataOptions = option(
        Nested(TfDataOptions), default_factory=TfDataOptions, without_tensorflow=(TfDataOptions(),)
    )

    def __post_init__(self) -> None:
        for name in ("image_size", "decoded_size", "extra_features", "multi_hot"):
            if isinstance(value := getattr(self, name), list):
                object.__setattr__(self, name, tuple(value))  # a list has no hash
        if isinstance(self.pad_to, Mapping):
            named: dict[str, Any] = dict(self.pad_to)
            sizes = {name: tuple(size) if isinstance(size, list) else size for name, size in named.items()}
            object.__setattr__(self, "pad_to", SizesByName(sizes))
        check_options(self)
        _check_pairs(self)

    __repr__ = show_options

    @property
    def size(self) -> tuple[int, int]:
        """The height and width of the images that the model gets."""
        return as_pair(self.image_size)

    @property
    def autotunes(self) -> bool:
        """Whether tf.data adjusts the numbers that are AUTOTUNE."""
        autotune = self.tf_data.autotune
        return self.training if autotune is None else autotune

    @property
    def keeps_order(self) -> bool:
        """Whether tf.data keeps the order of elements, although a slow one then holds up the next."""
        deterministic = self.tf_data.deterministic
        return not self.training if deterministic is None else deterministic

    @property
    def max_threads(self) -> int:
        """The number of threads that `cpu_budget` leaves the pipeline on this host: one for each core without it."""
        share = 1.0 if self.cpu_budget is None else self.cpu_budget
        return max(math.floor(share * host_limits.usable_cpus() + 1e-9), 1)

    @property
    def threadpool_size(self) -> int | None:
        """The number of threads of the pipeline's own pool; None if it shares TensorFlow's."""
        size = self.tf_data.private_threadpool_size
        if self.cpu_budget is None:
            return size
        return self.max_threads if size is None else min(size, self.max_threads)

    def resolve_decoded_size(self, stored_square: int | None = None) -> tuple[int, int]:
        """Returns the height and width of whole images.

        Args:
            stored_square: The side of the stored images, if the manifest says that they are squares.

        Returns:
            `decoded_size` if it is given, else the stored square, else 8/7 of `image_size` in whole pixels: 256 for
            224. The default `crop_fraction` of these pixels is exactly `image_size`.
        """
        if self.decoded_size is not None:
            return as_pair(self.decoded_size)
        if stored_square is not None:
            return stored_square, stored_square
        height, width = self.size
        return round(height * 8 / 7), round(width * 8 / 7)

    @classmethod
    def from_file(cls, path: toml_json.FilePath) -> PipelineConfig:
        """Reads a .toml or .json file of options. Options that it leaves out have their defaults.

        It ignores a table `tuned`, in which `tfpipe profile --apply` notes the host and the data that it tried the
        options on. It refuses any other name that is not an option.

        Raises:
            ConfigError: The file is missing or not in the format that its name says, or an option cannot be used.
        """
        return toml_json.build(cls, toml_json.read(path), str(path))

    def to_toml(self) -> str:
        """Returns every option that is not None as TOML."""
        return toml_json.to_toml(_without_none(asdict(self)))

    def to_json(self) -> str:
        """Returns every option that is not None as JSON."""
        return toml_json.to_json(_without_none(asdict(self)))

    def to_file(self, path: toml_json.FilePath) -> None:
        """Writes a .toml or .json file in one step, so that a reader never sees a part of it.

        Args:
            path: The path of the file.

        Raises:
            ConfigError: The name has another ending, or the file cannot be written.
        """
        toml_json.write(path, _without_none(asdict(self)))


def choose_config(config: PipelineConfig | None, changes: Mapping[str, Any]) -> PipelineConfig:
    """Returns a reader's config, changed by the reader's keyword options, or made of these alone."""
    toml_json.refuse_unknown(changes, PipelineConfig, "PipelineConfig")
    if config is None and "batch_size" in changes:
        return PipelineConfig(**changes)
    if not isinstance(config, PipelineConfig):
        raise ConfigError(
            "A reader needs `batch_size=256`, or a `config` such as tfpipe.PipelineConfig(batch_size=256, "
            f"image_size=224), got {'neither' if config is None else shorten(config)}."
        )
    return replace(config, **changes)


def _without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    """Removes values that are None, which no file can hold, from a table and from the tables in it."""
    plain = {name: _without_none(value) if type(value) is dict else value for name, value in table.items()}
    return {name: value for name, value in plain.items() if value is not None}


def _check_pairs(config: PipelineConfig) -> None:
    if len(config.augment_options.mean) != 3:
        raise ConfigError(f"`mean` must have three values, one for each channel, got {config.augment_options.mean}.")
    if config.augment == "device" and config.image_dtype != "uint8":
        raise ConfigError(
            f"`augment` device needs `image_dtype` uint8, got {config.image_dtype!r}: the device normalizes."
        )
    for name in ("cache_dir", "cache_bytes"):
        if getattr(config, name) is not None and config.cache == "none":
            raise ConfigError(f"`{name}` needs a cache. Set `cache` to bytes or decoded, or leave it out.")
    if config.cache_bytes is not None and config.cache_dir is not None:
        raise ConfigError("`cache_bytes` limits a cache in memory, and `cache_dir` keeps it in files. Leave one out.")
    if config.cache == "decoded" and config.cache_dir is None and config.max_bad_records:
        raise ConfigError(
            "`max_bad_records` excludes a cache of decoded images: every record must have its place in it. Use "
            "cache='bytes', or mend the data first."
        )
    if not config.service.workers:
        return
    if config.order == "throughput":
        raise ConfigError("A `service` gives batches in exact order, got `order` throughput. Leave it out.")
    if config.max_bad_records:
        raise ConfigError(
            "A `service` needs `max_bad_records` 0: each worker would count the records that it left out by itself."
        )
    if config.cache != "none":
        raise ConfigError(
            f"A `service` excludes a cache, got `cache` {config.cache!r}: any worker may make any step, so each would "
            "keep all data. Leave one of them out."
        )
