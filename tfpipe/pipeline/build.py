"""The input pipeline of one host: the engine's, which makes each step's batch, or the textbook's of single records."""

import logging
import os
from dataclasses import replace
from typing import Any

import tensorflow as tf

from tfpipe.engine.batch import Maker
from tfpipe.engine.config.pipeline_config import PipelineConfig, choose_config
from tfpipe.engine.host import Host
from tfpipe.engine.mixture import Mixture, get_whole_source, open_any
from tfpipe.engine.open_maker import open_maker, open_mixture
from tfpipe.engine.plan import BatchPlan, check_plan, plan_batches
from tfpipe.engine.source import Source, get_source
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline.stage import Customize, Stages, prefer_textbook, tf_data_options, without_autograph
from tfpipe.pipeline.steps import list_engine_stages
from tfpipe.pipeline.textbook import list_textbook_stages
from tfpipe.pipeline.textbook_choice import check_engine, check_textbook, explain_textbook
from tfpipe.service import serve_remotely
from tfpipe.system.arguments import check_count, check_function, check_has

_logger = logging.getLogger(__name__)


def build_dataset(
    data: Manifest | Source | Mixture | str | os.PathLike[str],
    split: str | None,
    config: PipelineConfig | None = None,
    context: tf.distribute.InputContext | None = None,
    start_step: int = 0,
    epochs: int | None = None,
    **changes: Any,
) -> tf.data.Dataset:
    """Builds the input pipeline of one host.

    A cache in a file (`cache_dir`) is filled with what is read. What it lacks comes from the source, with the same
    pixels and in the same order, and the next run goes on from there. If it cannot be written, a warning says why.

    Args:
        data: A manifest from `load_manifest`, or a dataset's directory or URL; several datasets from `mix`; or
            files that something else wrote, from `tfrecord_files`.
        split: Name of a split; None for foreign files.
        config: The options: the order, the batch and the changes to each image.
        context: This host among all hosts, as `tf.distribute` passes it; None for one host with one replica.
        start_step: The global step at which training begins; it may lie in any epoch. In exact order the batches equal
            those of a run that was never stopped.
        epochs: The epochs of one pass over the dataset; 0: no pass ends. The next pass goes on with the epochs after
            them, so with 1 each epoch of Keras' `fit` is one of the run. A first pass within an epoch has the rest of
            it. None: 1 with `as_supervised` in exact order, so that `fit` ends by itself, else 0.
        changes: Options that replace those of the config, or stand in for a config, such as `batch_size=256`.

    Returns:
        Batches for one replica each. A host with several replicas takes one batch for each of them. Dictionaries of
        "image", [batch, height, width, 3] of `image_dtype`, or for several images of a record
        [batch, images, height, width, 3]; "label", int32 [batch] or one-hot float32 [batch, classes];
        the features in `extra_features`, or all if the records have no image; those of open size are tf.RaggedTensor
        unless `pad_to` gives them a size, and masks are int32 [batch, height, width], cropped as their images. In
        evaluation "mask", bool [batch], is False for the padding in the last batch. With augment="device" images are
        uint8 of `decoded_size`, as masks are then, and come with "crop", float32 [batch, 4]: ymin, xmin, ymax, xmax as
        shares of the image, and "flip", uint8 [batch]. With `as_supervised` a batch is (image, label), in evaluation
        (image, label, mask) with a float32 mask; for one replica that is not a TPU's the last batch is not filled up
        then, and rows are of unknown number. Training ends after `epochs`; evaluation is one pass. The textbook
        pipeline reads one image, a label, and features of one size, and refuses all else.

    Raises:
        ConfigError: The config does not fit the data or the number of hosts.
        DataError: There are no records, the directory is not a finished dataset, or an index cannot be read.
        FormatError: A manifest or an index is damaged.
    """
    config, opened = choose_config(config, changes), open_any(data)
    epochs = choose_epochs(opened, split, config, epochs)
    stages = build_stages(opened, split, config, context, start_step, epochs)
    dataset = stages.dataset()
    dataset.tfpipe_passes = stages.passes
    return dataset


def build_stages(
    data: Manifest | Source | Mixture | str | os.PathLike[str],
    split: str | None,
    config: PipelineConfig | None = None,
    context: tf.distribute.InputContext | None = None,
    start_step: int = 0,
    epochs: int | None = None,
    *,
    customize: Customize | None = None,
    **changes: Any,
) -> Stages:
    """Builds the stages of `build_dataset`, to print, cut or time them.

    The other arguments, and the errors, are those of `build_dataset`.

    Args:
        data: The dataset, source or mixture to read, or the path of a dataset.
        split: The name of the split of a manifest, such as "train".
        config: The options.
        context: The host's place among the hosts, or None for one host.
        start_step: The step, counted from 0, to begin with.
        epochs: The epochs of one pass, or None or 0 for passes without end.
        changes: Options that replace those of the config, or stand in for a config, such as `batch_size=256`.
        customize: A function that changes the stages. Unless `order` is exact, it gets those of the textbook pipeline,
            which treats records one by one.
    """
    check_function("customize", customize)
    host = get_host(context, start_step, epochs)
    opened = open_any(data)
    config = choose_config(config, changes)
    return build_host_stages(opened, split, config, host, customize=customize)


def build_host_stages(
    data: Manifest | Source | Mixture,
    split: str | None,
    config: PipelineConfig,
    host: Host,
    *,
    customize: Customize | None,
) -> Stages:
    """Builds the stages of a host; arguments and errors are those of `build_stages`."""
    config = prefer_textbook(config, customize)
    if isinstance(data, Mixture):
        stages = _build_mixture(data, split, config, host)
    else:
        plan = plan_batches(get_source(data, split), config, host)
        check_plan(plan)
        if reason := explain_textbook(plan.source, config):
            check_textbook(plan, reason)
            plain = [without_autograph(stage) for stage in list_textbook_stages(plan)]
            stages = Stages(plain, tf_data_options(config, config.keeps_order))
        else:
            check_engine(config)
            stages = _build_by_engine(plan, open_maker(plan))
    customized = stages if customize is None else customize(stages)
    if not isinstance(customized, Stages) or not customized:
        raise ConfigError(f"The function that changes the stages must return tfpipe.Stages, got {customized!r:.80}.")
    return customized


def choose_epochs(
    data: Manifest | Source | Mixture, split: str | None, config: PipelineConfig, epochs: int | None
) -> int | None:
    """Chooses the epochs of a pass: `epochs` if given, 1 for Keras in exact order, else None: no pass ends."""
    if epochs is not None or not (config.training and config.as_supervised):
        return get_host(None, epochs=epochs).epochs
    if isinstance(data, Mixture) or explain_textbook(get_source(data, split), config) is None:
        return 1
    _logger.warning(
        "These batches never end, and neither does `model.fit` with them alone. Give "
        "`steps_per_epoch=tfpipe.steps_per_epoch(...)` to `fit`, or read in exact order."
    )
    return None


def get_host(context: tf.distribute.InputContext | None, start_step: int = 0, epochs: int | None = None) -> Host:
    """Returns the host of a `tf.distribute` context; None: one host with one replica; 0 epochs: no pass ends."""
    if epochs is not None:
        check_count("epochs", epochs)
    if context is None:
        return Host(start_step=start_step, epochs=epochs or None)
    check_has("context", context, "input_pipeline_id", "the tf.distribute.InputContext of a dataset function")
    number, hosts, replicas = context.input_pipeline_id, context.num_input_pipelines, context.num_replicas_in_sync
    return Host(number, hosts, replicas, start_step, epochs or None)


def _build_mixture(mixture: Mixture, split: str | None, config: PipelineConfig, host: Host) -> Stages:
    """Builds the stages of a mixture, whose batches the engine makes from all of its datasets."""
    for manifest in mixture.manifests:
        if reason := explain_textbook(get_source(manifest, split), config):
            advice = "Leave out order='throughput'; with stages of your own use order='exact'."
            raise ConfigError(
                f"A mixture is read in exact order, and {reason}. "
                f"{advice if config.order == 'throughput' else 'Leave that out.'}"
            )
    check_engine(config)
    whole = plan_batches(get_whole_source(mixture, split), config, host)
    maker = open_mixture(mixture, split or "", config, host)
    stages = _build_by_engine(whole, maker)
    datasets = [
        f"{each.config.batch_size} of {whole.config.batch_size} from {manifest.directory}"
        for each, manifest in zip(maker.plan.plans, mixture.manifests, strict=True)
    ]
    return stages.replace("list", replace(stages[0], settings={**stages[0].settings, "datasets": ", ".join(datasets)}))


def _build_by_engine(plan: BatchPlan, maker: Maker) -> Stages:
    """Builds the stages of a pipeline whose batches the engine makes."""
    stages, calls = list_engine_stages(plan, serve_remotely(maker))
    # `calls` threads of tf.data wait in calls of the engine: for a batch, an object store or a worker.
    options = tf_data_options(plan.config, True, calls)
    if plan.host.epochs is not None:  # a prefetch would reach the end of a pass ahead of the trainer
        options.experimental_optimization.inject_prefetch = False
    return Stages([without_autograph(stage) for stage in stages], options)
