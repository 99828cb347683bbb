"""The whole pipeline on one screen: which stages, in which order, and why.

dataset = build_dataset(manifest, "train", PipelineConfig(global_batch_size=256))
print(build_stages(manifest, "train", config))
"""

from __future__ import annotations

from dataclasses import replace

import tensorflow as tf

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.features import check_class_names
from tfpipe.engine.mixed_batch import AnyMaker
from tfpipe.engine.mixture import Mixture, apportion, check_same_images, get_whole_source
from tfpipe.engine.source import Source, get_source
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.native import library
from tfpipe.pipeline.engine_stages import offer_engine, open_engine, open_mixed_engine, serve_stages
from tfpipe.pipeline.file_cache.cache_folder import CacheFolder, without_cache
from tfpipe.pipeline.file_cache.read_cache import plan_cached_read
from tfpipe.pipeline.native_stages import count_calls, count_held_threads, fuse_stages
from tfpipe.pipeline.plan.memory_cache import CacheParts, get_decoding_plan, share_cache_bytes, split_by_cache
from tfpipe.pipeline.plan.read_plan import InputContext, ReadPlan
from tfpipe.pipeline.stage import Customize, Stage, Stages, customize_stages, tf_data_options, without_autograph
from tfpipe.pipeline.stages.augment import augment_images
from tfpipe.pipeline.stages.batch import batch_examples
from tfpipe.pipeline.stages.cache import cache_bytes, cache_decoded, cache_in_files, cache_part, check_cache_fits
from tfpipe.pipeline.stages.decode import decode_images
from tfpipe.pipeline.stages.list import list_exact, list_files, list_first_use, list_once, list_step_records
from tfpipe.pipeline.stages.mix import MixturePart, mix_datasets
from tfpipe.pipeline.stages.parse import parse_records
from tfpipe.pipeline.stages.prefetch import prefetch_batches
from tfpipe.pipeline.stages.read import read_exact, read_files, read_first_use, read_once, read_steps
from tfpipe.pipeline.stages.repeat import repeat_cached, repeat_epochs, repeat_steps, repeat_uncounted
from tfpipe.pipeline.stages.shuffle import shuffle_buffer
from tfpipe.system import file_io, object_store


def build_dataset(
    manifest: Manifest | Source | Mixture,
    split: str | None,
    config: PipelineConfig,
    context: tf.distribute.InputContext | None = None,
    start_step: int = 0,
) -> tf.data.Dataset:
    """Builds the input pipeline of one host.

    A cache in files (`cache_dir`) that is not whole is filled while the dataset is read, by a process of low priority.
    Until it has a record the source gives it, with the same pixels and in the same order. The process ends with this
    one, and the next run goes on with what is there. If it fails, a warning says why, and the source serves on.

    Args:
        manifest: From `load_manifest`; several datasets from `mix`; or files that something else wrote, from
            `tfrecord_files`.
        split: Name of a split; None for foreign files.
        config: The options: the order, the batch and the changes to each image.
        context: This host among all hosts, as `tf.distribute` passes it; None for one host with one replica.
        start_step: The global step at which training begins; it may lie in any epoch. In exact order the batches equal
            those of a run that was never stopped.

    Returns:
        Batches for one replica each. A host with several replicas takes one batch for each of them. Dictionaries of
        "image", [batch, height, width, 3] of `image_dtype`, or for several images of a record
        [batch, images, height, width, 3]; "label", int32 [batch] or one-hot float32 [batch, classes];
        the features in `extra_features`, or all if the records have no image; those of open size are tf.RaggedTensor
        unless `pad_to` gives them a size, and masks are int32 [batch, height, width], cropped as their images. In
        evaluation "mask", bool [batch], is False for the padding in the last batch. With augment="device" images are
        uint8 of `decoded_size`, as masks are then, and come with "height" and "width", int64 [batch], and in training
        "seed", int32 [batch, 2]. With `as_supervised` a batch is (image, label), and in evaluation (image, label, mask)
        with a float32 mask. Training repeats without end; evaluation is one pass.

    Raises:
        ConfigError: The config does not fit the data or the number of hosts.
        DataError: There are no records, or an index cannot be read.
        FormatError: An index is damaged.
    """
    return build_stages(manifest, split, config, context, start_step, fill_first=False).dataset()


def build_stages(
    manifest: Manifest | Source | Mixture,
    split: str | None,
    config: PipelineConfig,
    context: InputContext | None = None,
    start_step: int = 0,
    *,
    fill_first: bool = True,
) -> Stages:
    """Builds the stages of `build_dataset`, to print, cut or time them.

    The arguments but the last, and the errors, are those of `build_dataset`.

    Args:
        manifest: The dataset, source or mixture to read.
        split: The name of the split of a manifest, such as "train".
        config: The options.
        context: The host's place among the hosts, or None for one host.
        start_step: The step, counted from 0, to begin with.
        fill_first: Whether to return only when a cache in files is whole, so that what is timed is the steady state.
            Then a record of the source that is damaged, or a file that cannot be written, is an error (`fill_cache`).
    """
    if isinstance(manifest, Mixture):
        return _mixture_stages(manifest, split, config, context, start_step)
    if config.cache_dir is None:
        return build_planned_stages(ReadPlan.for_host(get_source(manifest, split), config, context, start_step))
    cache = _open_cache(manifest, split, config)
    plan = ReadPlan.for_host(cache.source, without_cache(config), context, start_step)
    plan = plan_cached_read(plan, cache, fill_first)
    stages = (cache_in_files(plan, config.cache, cache.path), *_stages_from_files(plan))
    return _with_options(stages, plan, plan.deterministic)


def check_stages(
    manifest: Manifest | Source, split: str | None, config: PipelineConfig, customize: Customize | None = None
) -> None:
    """Refuses what `build_stages` on one host would refuse, without filling a cache in files.

    The stages behind such a cache are not built, so `customize` is not called for them.

    Args:
        manifest: The dataset or source to read.
        split: The name of the split of a manifest, such as "train".
        config: The options.
        customize: A function that changes the stages; None leaves them as they are.

    Raises:
        ConfigError: The config does not fit the data, or `customize` does not return stages.
        DataError: There are no records, or an index cannot be read.
        FormatError: An index is damaged.
    """
    if config.cache_dir is None:
        customize_stages(build_stages(manifest, split, config), customize, config)
        return
    cache = _open_cache(manifest, split, config)
    ReadPlan.for_host(cache.source, without_cache(config), None, 0).check()
    cache.check()
    cache.source.check()


def _open_cache(manifest: Manifest | Source, split: str | None, config: PipelineConfig) -> CacheFolder:
    """Returns the cache in files that a config asks for: a dataset like any other, or it becomes one."""
    if not isinstance(manifest, Manifest) or split is None:
        raise ConfigError("`cache_dir` needs a split of a dataset with a manifest. Leave it out to use memory.")
    if config.cache == "decoded" and manifest.has_several_images:
        raise ConfigError("`cache` decoded in files keeps one image a record, and these have several. Use bytes.")
    return CacheFolder(manifest, split, config)


def build_planned_stages(plan: ReadPlan) -> Stages:
    """Builds the stages of a host from its read plan, whose config must not ask for a cache in files."""
    if plan.config.service is not None:
        plan.check()
        return _serve(plan, open_engine(plan))
    return _with_options(_stages_from_files(plan), plan, plan.deterministic)


def _stages_from_files(plan: ReadPlan) -> tuple[Stage, ...]:
    """Builds the stages from files to batches."""
    _check(plan)
    return (*_example_stages(plan), batch_examples(plan), prefetch_batches(plan))


def _example_stages(plan: ReadPlan) -> tuple[Stage, ...]:
    """Builds the stages from files to augmented images."""
    parts = split_by_cache(plan)
    if parts is not None:
        return _join_parts(plan, parts)
    stages = _image_stages(plan)
    if not plan.source.has_images:
        return tuple(stage for stage in stages if stage.name != "decode")
    stages = (*stages, augment_images(plan))
    if not plan.config.training and plan.config.cache == "decoded":
        # Evaluation does the same to every image each time, so the cache keeps augmented images.
        return (*stages, cache_decoded(plan))
    return stages


def _join_parts(plan: ReadPlan, parts: CacheParts) -> tuple[Stage, ...]:
    """Builds the stages of records of which only a part is in the cache.

    Encoded records are joined before they are parsed. Decoded images are joined when they are augmented: what is not
    kept is then decoded as without a cache, just the crop, and not whole as a cache needs it, which takes 1.6 times as
    long.
    """
    _check_client(parts.kept)
    kept, others = Stages(_example_stages(parts.kept)), _example_stages(parts.others)
    if plan.config.cache == "decoded":
        return (*others, cache_part(plan, parts, kept))
    parse = [stage.name for stage in others].index("parse")
    kept = Stages(kept[: kept.names.index("parse")])
    return (*others[:parse], cache_part(plan, parts, kept), *others[parse:])


def _image_stages(plan: ReadPlan) -> tuple[Stage, ...]:
    """Builds the stages from files to decoded images. The kind of cache decides where epochs begin."""
    cache = plan.config.cache
    if not plan.config.training:
        # One pass, in the order of the files.
        read = (list_once(plan), read_once(plan))
        if cache == "bytes":
            return (*read, cache_bytes(plan), parse_records(plan), decode_images(plan))
        return (*read, parse_records(plan), decode_images(plan))
    if cache == "none":
        # Epochs come first, because each has another order. Reading then also runs on from one epoch into the next.
        if plan.by_steps:
            order: tuple[Stage, ...] = (repeat_steps(plan), list_step_records(plan), read_steps(plan))
        elif plan.exact:
            order = (repeat_epochs(plan), list_exact(plan), read_exact(plan))
        else:
            order = (repeat_epochs(plan), list_files(plan), read_files(plan), shuffle_buffer(plan))
        return (*order, parse_records(plan), decode_images(plan))
    if plan.exact:
        # Every record goes into the cache once; then epochs fetch from it in the exact order.
        read = (list_first_use(plan), read_first_use(plan))
        if cache == "bytes":
            return (*read, cache_bytes(plan), repeat_cached(plan), parse_records(plan), decode_images(plan))
        return (*read, parse_records(plan), decode_images(plan), cache_decoded(plan), repeat_cached(plan))
    # Nobody counted the records, so none can be fetched by its number: the usual order of `tf.data` pipelines.
    read = (list_files(plan), read_files(plan))
    if cache == "bytes":
        repeat = (cache_bytes(plan), repeat_uncounted(plan), shuffle_buffer(plan))
        return (*read, *repeat, parse_records(plan), decode_images(plan))
    decode = (shuffle_buffer(plan), parse_records(plan), decode_images(plan))
    return (*read, *decode, cache_decoded(plan), repeat_uncounted(plan))


def _mixture_stages(
    mixture: Mixture, split: str | None, config: PipelineConfig, context: InputContext | None, start_step: int
) -> Stages:
    """Builds a pipeline up to `augment` for each dataset, then batches of all of them."""
    if not config.training or config.cache_dir is not None:
        refused = "evaluated" if not config.training else "cached in files"
        raise ConfigError(f"A mixture cannot be {refused} as a whole. Take its datasets one by one.")
    # Each dataset has a cache of its own.
    source = get_whole_source(mixture, split)
    whole = ReadPlan.for_host(source, replace(config, cache_bytes=None), context, start_step)
    if config.service is not None:
        if split is None or (served := open_mixed_engine(mixture, split, whole)) is None:
            raise ConfigError("A `service` needs the name of a split.")
        return _serve(whole, served)
    shares = apportion(mixture.weights, whole.global_batch_size, whole.num_hosts)
    plans = []
    for manifest, share in zip(mixture.manifests, shares, strict=True):
        part_config = replace(
            whole.config,
            global_batch_size=share,
            per_replica_batch_size=None,
            num_streams=None,
            decoded_size=whole.decoded_size,
        )
        # Each host makes one batch of the part, whatever the number of its replicas: `batch` deals it out.
        part = get_source(manifest, split)
        plans.append(replace(whole, source=part, config=part_config, num_replicas=whole.num_hosts))
    check_same_images([plan.num_images for plan in plans])
    check_class_names([plan.features for plan in plans])
    parts = []
    cache_bytes = share_cache_bytes(plans, config.cache_bytes)
    for manifest, whole_plan, part_bytes in zip(mixture.manifests, plans, cache_bytes, strict=True):
        plan = replace(whole_plan, config=replace(whole_plan.config, cache_bytes=part_bytes))
        _check(plan)
        stages = Stages(fuse_stages(get_decoding_plan(plan), _example_stages(plan)))
        parts.append(MixturePart(stages, plan, mixture.map_labels(manifest)))
    stages_of_all = (mix_datasets(whole, parts), batch_examples(whole), prefetch_batches(whole))
    stages = _with_options(stages_of_all, whole, deterministic=False)
    if split is None or not library.is_available():
        return stages
    asked = replace(whole, config=replace(whole.config, cache_bytes=config.cache_bytes))
    maker = open_mixed_engine(mixture, split, asked)
    if maker is None:
        return stages
    first = offer_engine(whole, maker, count_calls(whole), stages[:2])
    return Stages((first, *stages[1:]), stages.options)


def _serve(plan: ReadPlan, maker: AnyMaker) -> Stages:
    """Builds the stages of a pipeline whose batches the workers of a service make. Each request holds a thread."""
    stages = (*serve_stages(plan, maker, count_calls(plan)), prefetch_batches(plan))
    return Stages(stages, tf_data_options(plan.config, True, maker.steps_ahead))


def _check(plan: ReadPlan) -> None:
    """Refuses a plan that the data, its files or this machine's memory cannot serve."""
    plan.check()
    plan.source.check()
    _check_client(plan)
    if plan.config.cache != "none":
        check_cache_fits(plan)


def _check_client(plan: ReadPlan) -> None:
    """Refuses options with which TensorFlow must read, where it has no client."""
    file = plan.source.files[0]
    if plan.reads_store or file_io.can_tensorflow_read(file):
        return
    if not object_store.can_read(file):
        file_io.check_tensorflow_reads(file)
    raise ConfigError(
        "TensorFlow reads compressed files, and where a `service`, `cache_bytes`, `on_bad_record` skip or a number as "
        f"`shuffle_buffer_size` is asked for, and it cannot read {file}. Leave these out, or copy the dataset to a "
        "local disk."
    )


def _with_options(stages: tuple[Stage, ...], plan: ReadPlan, deterministic: bool) -> Stages:
    options = tf_data_options(plan.config, deterministic, count_held_threads(plan))
    plain = [without_autograph(stage) for stage in stages]
    return Stages(fuse_stages(get_decoding_plan(plan), plain, plan), options)
