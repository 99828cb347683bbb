"""The pipeline of one host: of batches by their steps, which the engine makes, or the textbook's.

```
steps      list -> read -> decode -> batch -> prefetch                    an element is a batch: exact order, any caches
textbook   list -> read -> shuffle -> parse -> decode -> ... -> prefetch  an element is a record until `batch`
```

dataset = build_dataset(manifest, "train", PipelineConfig(batch_size=256))
print(build_stages(manifest, "train", config))
"""

from __future__ import annotations

import os
from dataclasses import replace

import tensorflow as tf

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.folder_cache.fill import fill_cache
from tfpipe.engine.folder_cache.folder import CacheFolder, without_cache
from tfpipe.engine.mixed_batch import AnyMaker, locate_split, make_maker
from tfpipe.engine.mixture import Mixture, apportion, get_whole_source
from tfpipe.engine.source import Source, get_source
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.open_dataset import load_if_path
from tfpipe.pipeline.plan.read_plan import InputContext, ReadPlan
from tfpipe.pipeline.stage import (
    Customize,
    Stages,
    customize_stages,
    prefer_textbook,
    tell_stages_apart,
    tf_data_options,
)
from tfpipe.pipeline.steps import count_held_threads, list_engine_stages, open_mixed_engine
from tfpipe.pipeline.textbook import list_textbook_stages
from tfpipe.service.remote import serve_remotely
from tfpipe.system import file_io, object_store


def build_dataset(
    manifest: Manifest | Source | Mixture | str | os.PathLike[str],
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
        manifest: A manifest from `load_manifest`, or a dataset's directory or URL; several datasets from `mix`; or
            files that something else wrote, from `tfrecord_files`.
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
        DataError: There are no records, the directory is not a finished dataset, or an index cannot be read.
        FormatError: A manifest or an index is damaged.
    """
    return build_stages(manifest, split, config, context, start_step, fill_first=False).dataset()


def build_stages(
    manifest: Manifest | Source | Mixture | str | os.PathLike[str],
    split: str | None,
    config: PipelineConfig,
    context: InputContext | None = None,
    start_step: int = 0,
    *,
    fill_first: bool = True,
    apart: bool = False,
    customize: Customize | None = None,
) -> Stages:
    """Builds the stages of `build_dataset`, to print, cut or time them.

    The other arguments, and the errors, are those of `build_dataset`.

    Args:
        manifest: The dataset, source or mixture to read, or the path of a dataset.
        split: The name of the split of a manifest, such as "train".
        config: The options.
        context: The host's place among the hosts, or None for one host.
        start_step: The step, counted from 0, to begin with.
        fill_first: Whether to return only when a cache in files is whole, so that what is timed is the steady state.
            Then a record of the source that is damaged, or a file that cannot be written, is an error (`fill_cache`).
        apart: Whether tf.data's statistics tell the stages apart, which costs up to 6 % (`tell_stages_apart`). It is
            for a dataset, not for a mixture.
        customize: A function that changes the stages. Unless `order` is exact, it gets those of the textbook pipeline,
            which treats records one by one.
    """
    config = prefer_textbook(config, customize)
    data: Manifest | Source | Mixture = load_if_path(manifest)
    if isinstance(data, Mixture):
        stages = _build_mixture(data, split, config, context, start_step)
    else:
        plan = ReadPlan.for_host(get_source(data, split), config, context, start_step)
        stages = build_planned_stages(plan, fill_first=fill_first, apart=apart)
    return customize_stages(stages, customize)


def build_planned_stages(plan: ReadPlan, *, fill_first: bool = True, apart: bool = False) -> Stages:
    """Builds the stages of a host from its read plan; the other arguments are those of `build_stages`.

    Raises:
        ConfigError: The data, its files or this machine's memory cannot serve the plan.
    """
    plan.check()
    if apart:
        plan = replace(plan, config=tell_stages_apart(plan.config))
    if plan.in_steps:
        batches = plan.make_batch_plan()
        if plan.config.cache_dir is None:
            plan.source.check()  # a whole cache in files needs no source
        elif fill_first:
            fill_cache(*locate_split(batches), plan.config)
        return _list_engine_stages(plan, serve_remotely(make_maker(batches)))
    plan.source.check()
    _check_client(plan)
    return Stages(list_textbook_stages(plan), tf_data_options(plan.config, plan.deterministic))


def check_stages(
    manifest: Manifest | Source, split: str | None, config: PipelineConfig, customize: Customize | None = None
) -> None:
    """Refuses what `build_stages` on one host would refuse, without filling a cache in files.

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
    config = prefer_textbook(config, customize)
    if config.cache_dir is not None and isinstance(manifest, Manifest) and split is not None:
        ReadPlan.for_host(get_source(manifest, split), config, None, 0).check()
        CacheFolder(manifest, split, config).check()
        config = without_cache(config)
    build_stages(manifest, split, config, customize=customize)


def _build_mixture(
    mixture: Mixture, split: str | None, config: PipelineConfig, context: InputContext | None, start_step: int
) -> Stages:
    """Builds the stages of a mixture, whose batches the engine makes of all of its datasets."""
    if not config.training or config.cache_dir is not None:
        refused = "evaluated" if not config.training else "cached in files"
        raise ConfigError(f"A mixture cannot be {refused} as a whole. Take its datasets one by one.")
    whole = ReadPlan.for_host(get_whole_source(mixture, split), config, context, start_step)
    maker = open_mixed_engine(mixture, split or "", whole)
    stages = _list_engine_stages(whole, maker)
    shares = apportion(mixture.weights, whole.global_batch_size, 1)
    datasets = [
        f"{share} of {whole.global_batch_size} from {manifest.directory}"
        for share, manifest in zip(shares, mixture.manifests, strict=True)
    ]
    listing = replace(stages[0], settings={**stages[0].settings, "datasets": ", ".join(datasets)})
    return Stages((listing, *stages[1:]), stages.options)


def _check_client(plan: ReadPlan) -> None:
    """Refuses files in a store that TensorFlow, whose operations the textbook pipeline is made of, cannot read."""
    file = plan.source.files[0]
    if not file_io.can_tensorflow_read(file) and object_store.can_read(file):
        raise ConfigError(
            f"TensorFlow must read {file}, because {plan.explain_textbook()}, and it cannot. Leave that out, or copy "
            "the dataset to a local disk."
        )
    file_io.check_tensorflow_reads(file)


def _list_engine_stages(plan: ReadPlan, maker: AnyMaker) -> Stages:
    options = tf_data_options(plan.config, plan.deterministic, count_held_threads(plan, maker))
    return Stages(list_engine_stages(plan, maker), options)
