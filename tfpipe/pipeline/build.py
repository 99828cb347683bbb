"""The whole pipeline on one screen: which stages, in which order, and why.

dataset = build_dataset(manifest, "train", PipelineConfig(global_batch_size=256))
print(build_stages(manifest, "train", config))
"""

from __future__ import annotations

from dataclasses import replace

import tensorflow as tf

from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline import service_client
from tfpipe.pipeline import stages as stage
from tfpipe.pipeline.config.pipeline_config import PipelineConfig
from tfpipe.pipeline.file_cache import cache
from tfpipe.pipeline.plan.mixture import Mixture, apportion, source_of
from tfpipe.pipeline.plan.output_checks import check_outputs
from tfpipe.pipeline.plan.read_plan import InputContext, ReadPlan
from tfpipe.pipeline.plan.source import Source, as_source
from tfpipe.pipeline.stage import Stage, Stages, tf_data_options, without_autograph
from tfpipe.pipeline.stages import _memory_cache


def build_dataset(
    manifest: Manifest | Source | Mixture,
    split: str | None,
    config: PipelineConfig,
    context: tf.distribute.InputContext | None = None,
    start_step: int = 0,
) -> tf.data.Dataset:
    """Builds the input pipeline of one host.

    Args:
        manifest: From `load_manifest`; several datasets from `mix`; or files that something else wrote, from
            `tfrecord_files`.
        split: Name of a split; None for foreign files.
        config: What is read, in which order, and what becomes of each image.
        context: Which host of how many this is, as `tf.distribute` hands it over; None for one host with one replica.
        start_step: Training begins at this global step of the run, in whichever epoch it lies: in exact order with
            just the batches that would have come, after reading at most one window of records.

    Returns:
        Batches for one replica, `config.batch_size` images each; a host with several replicas takes one for each.
        Dictionaries of "image", [batch, height, width, 3] of `image_dtype`, "label", int32 [batch] or one-hot float32
        [batch, classes], and what `extra_features` names; in evaluation "mask", bool [batch], False where the last
        batch is
        filled up. With augment="device" images are uint8 of `decoded_size` and come with "height" and "width", int64
        [batch], and in training "seed", int32 [batch, 2]. With `as_supervised`: (image, label), in evaluation with the
        mask as a third, float32. Training goes on for ever; evaluation is one pass.

    Raises:
        ConfigError: The config cannot be had with this data, or on so many hosts.
        DataError: There are no records, or an index cannot be read.
        FormatError: An index is damaged.
    """
    return build_stages(manifest, split, config, context, start_step).dataset()


def build_stages(
    manifest: Manifest | Source | Mixture,
    split: str | None,
    config: PipelineConfig,
    context: InputContext | None = None,
    start_step: int = 0,
) -> Stages:
    """The stages of `build_dataset`, to print, to cut or to time; arguments and errors are the same."""
    if config.service is not None:
        service_client.check_address(config.service)
    if isinstance(manifest, Mixture):
        return _mixture_stages(manifest, split, config, context, start_step)
    filled: tuple[Stage, ...] = ()
    if config.cache_dir is not None:
        if not isinstance(manifest, Manifest) or split is None:
            raise ConfigError("`cache_dir` needs a split of a dataset with a manifest. Leave it out to use memory.")
        manifest = cache.cached_manifest(manifest, split, config)
        filled = (stage.filled_cache(manifest, split, config),)
        config = cache.without_cache(config)
    plan = ReadPlan.of(as_source(manifest, split), config, context, start_step)
    check_outputs(plan)
    plan.source.check()
    if config.cache != "none":
        _memory_cache.check_fits(plan)
    return _stages((*filled, *_input(plan), *_output(plan)), config, plan.deterministic)


def _stages(stages: tuple[Stage, ...], config: PipelineConfig, deterministic: bool) -> Stages:
    return Stages([without_autograph(one) for one in stages], tf_data_options(config, deterministic))


def _input(plan: ReadPlan) -> tuple[Stage, ...]:
    """From files to decoded images. Where epochs begin and where a cache stands depends on what is kept."""
    config = plan.config
    parse_and_decode = (stage.parse(plan), stage.decode(plan))
    if not config.training:
        # One pass: the order is the files', and what is cached is what comes out, augmented.
        read = (stage.list_once(plan), stage.read_once(plan))
        if config.cache == "bytes":
            return (*read, stage.cache_bytes(plan), *parse_and_decode)
        return (*read, *parse_and_decode)
    if config.cache == "none":
        # Epochs come first: each has an order of its own, and the last images of one are read with the next one's.
        if plan.exact:
            order = (stage.repeat(plan), stage.list_exact(plan), stage.read_exact(plan), stage.shuffle_exact(plan))
        else:
            order = (stage.repeat(plan), stage.list_files(plan), stage.read_files(plan), stage.shuffle_buffer(plan))
        return (*order, *parse_and_decode)
    if not plan.exact:
        return _input_foreign_cached(plan)
    # Every record once into the cache; then epochs fetch from it in the exact order.
    read = (stage.list_first_use(plan), stage.read_first_use(plan))
    if config.cache == "bytes":
        return (*read, stage.cache_bytes(plan), stage.repeat_cached(plan), *parse_and_decode)
    return (*read, *parse_and_decode, stage.cache_decoded(plan), stage.repeat_cached(plan))


def _input_foreign_cached(plan: ReadPlan) -> tuple[Stage, ...]:
    """Nobody knows how many records there are, so none can be fetched by its number: the field's usual order."""
    read = (stage.list_files(plan), stage.read_files(plan))
    if plan.config.cache == "bytes":
        after = (stage.cache_bytes(plan), stage.repeat_pass(plan), stage.shuffle_buffer(plan))
        return (*read, *after, stage.parse(plan), stage.decode(plan))
    before = (stage.shuffle_buffer(plan), stage.parse(plan), stage.decode(plan))
    return (*read, *before, stage.cache_decoded(plan), stage.repeat_pass(plan))


def _output(plan: ReadPlan) -> tuple[Stage, ...]:
    """From decoded images to batches."""
    if not plan.config.training and plan.config.cache == "decoded":
        return stage.augment(plan), stage.cache_decoded(plan), stage.batch(plan), stage.prefetch(plan)
    return stage.augment(plan), stage.batch(plan), stage.prefetch(plan)


def _mixture_stages(
    mixture: Mixture, split: str | None, config: PipelineConfig, context: InputContext | None, start_step: int
) -> Stages:
    """A pipeline up to `augment` for each dataset, then one batch of all of them."""
    if not config.training or config.cache_dir is not None:
        wish = "evaluated" if not config.training else "cached in files"
        raise ConfigError(f"A mixture cannot be {wish} as a whole. Take its datasets one by one.")
    sources = [as_source(manifest, split) for manifest in mixture.manifests]
    whole = ReadPlan.of(source_of(mixture, split), config, context, start_step)
    shares = apportion(mixture.weights, whole.global_batch_size, whole.num_hosts)
    parts = []
    for manifest, source, share in zip(mixture.manifests, sources, shares, strict=True):
        own = replace(
            config,
            global_batch_size=share,
            per_replica_batch_size=None,
            num_streams=None,
            decoded_size=whole.decoded_size,
        )
        plan = replace(whole, source=source, config=own, num_replicas=whole.num_hosts)
        check_outputs(plan)
        source.check()
        if config.cache != "none":
            _memory_cache.check_fits(plan)
        stages = Stages((*_input(plan), stage.augment(plan)))
        parts.append(stage.Part(stages, plan, mixture.labels_of(manifest)))
    return _stages((stage.mix(whole, parts), stage.batch(whole), stage.prefetch(whole)), config, False)
