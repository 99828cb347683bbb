"""One input pipeline for each host of a strategy, and the batches of all of them as one dataset."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tensorflow as tf

from tfpipe.distribution.strategy import count_hosts, get_device_kind, is_remote_tpu
from tfpipe.engine.config.pipeline_config import PipelineConfig, choose_config
from tfpipe.engine.host import Host
from tfpipe.engine.mixture import Mixture, get_whole_source, open_any
from tfpipe.engine.plan import BatchPlan, check_shares, list_text, plan_batches
from tfpipe.engine.source import Source
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline.build import build_host_stages, choose_epochs, get_host
from tfpipe.pipeline.stage import Customize, prefer_textbook
from tfpipe.storage.file_io import is_url
from tfpipe.system.arguments import check_has


def distribute_dataset(
    strategy: tf.distribute.Strategy,
    data: Manifest | Source | Mixture | str | os.PathLike[str],
    split: str | None,
    config: PipelineConfig | None = None,
    start_step: int = 0,
    epochs: int | None = None,
    options: tf.distribute.InputOptions | None = None,
    watch: Callable[[tf.data.Dataset], tf.data.Dataset] | None = None,
    customize: Customize | None = None,
    **changes: Any,
) -> tf.distribute.DistributedDataset:
    """Builds the pipeline of every host, each for its share of the records, and joins them.

    It serves Keras `fit` and `evaluate` (with `as_supervised`: the mask is then the sample weight) and loops that pass
    each element to `strategy.run`. In exact order the global batches, taken replica after replica, are the same for any
    strategy.

    Args:
        strategy: The strategy that trains, from `resolve_strategy`.
        data: A manifest from `load_manifest`, or a dataset's directory or URL; several datasets from `mix`; or
            foreign files from `tfrecord_files`.
        split: The name of a split; None for foreign files.
        config: The options of `build_dataset`. Each replica gets an equal part of `batch_size`.
        start_step: The global step at which training begins.
        epochs: The epochs of one pass, as for `build_dataset`: 1 unless you say so with `as_supervised`; 0: no pass
            ends.
        options: The way in which elements reach the devices. By default they are copied there ahead of their step. With
            an extra feature of text they stay in the host's memory, because no accelerator holds text.
        watch: A function that gets each host's pipeline whole and returns another: `IdleMonitor.watch`, or one that
            maps its batches.
        customize: A function that changes the stages of each host's pipeline.
        changes: Options that replace those of the config, or stand in for a config, such as `batch_size=256`.

    Returns:
        A dataset of the batches of `build_dataset`, one for each replica and step. Training ends after `epochs`.

    Raises:
        ConfigError: Replicas or hosts cannot share the batch equally, a TPU would get text, a TPU on other machines
            would read files of this one, or `build_dataset` refuses the config.
        DataError: There are no records, or an index cannot be read.
        FormatError: An index is damaged.
    """
    config = prefer_textbook(choose_config(config, changes), customize)
    opened = open_any(data)
    if is_remote_tpu(strategy):
        config = _fit_to_remote_tpu(config, get_whole_source(opened, split))
    epochs = choose_epochs(opened, split, config, epochs)
    plan = _make_plan(strategy, opened, split, config, start_step, epochs)
    if options is None:  # batches are copied to their device ahead of time, but no accelerator holds text
        kind, text = get_device_kind(strategy), list_text(plan.features)
        if text and kind == "TPU":
            fault = f"`extra_features` must not name text for a TPU, which holds numbers only, got {', '.join(text)}."
            advice = "give `options` with experimental_fetch_to_device=False, and keep it out of `strategy.run`."
            raise ConfigError(f"{fault} Leave it out; or {advice}")
        options = tf.distribute.InputOptions(experimental_fetch_to_device=kind == "CPU" or not text)
    passes: list[Any] = []

    def build_for_host(context: tf.distribute.InputContext) -> tf.data.Dataset:
        stages = build_host_stages(opened, split, config, get_host(context, start_step, epochs), customize=customize)
        passes.extend(stages.passes)
        dataset = stages.dataset()
        return dataset if watch is None else watch(dataset)

    dataset = strategy.distribute_datasets_from_function(build_for_host, options)
    dataset.tfpipe_passes = passes
    steps = plan.steps_per_epoch * (epochs or 0 if config.training else 1)
    if steps:
        # TensorFlow counts the batches of one host, of which a step takes one for each replica. Keras takes that for
        # steps, and with `validation_steps` finds the next evaluation empty. There is no public way to correct it.
        dataset._cardinality = steps
    return dataset


def steps_per_epoch(
    data: Manifest | Source | Mixture | str | os.PathLike[str],
    split: str | None,
    config: PipelineConfig | None = None,
    strategy: tf.distribute.Strategy | None = None,
    **changes: Any,
) -> int:
    """Returns the steps of an epoch, for Keras' `steps_per_epoch` and for a schedule of learning rates.

    Args:
        data: The data, as for `distribute_dataset`.
        split: The name of a split; None for foreign files.
        config: The options of the pipeline. In training a step is a full global batch; in evaluation the last batch may
            be filled up.
        strategy: The strategy that trains; by default the one in scope, else one replica.
        changes: Options that replace those of the config, or stand in for a config, such as `batch_size=256`.

    Raises:
        ConfigError: The records were never counted, do not fill a batch, or cannot be shared equally.
    """
    config = choose_config(config, changes)
    plan = _make_plan(strategy or tf.distribute.get_strategy(), open_any(data), split, config)
    steps = plan.steps_per_epoch
    if not steps:
        fault = f"The steps of an epoch need the number of records, which is unknown for {plan.source.name}."
        raise ConfigError(f"{fault} Choose a number of steps yourself.")
    return steps


def _fit_to_remote_tpu(config: PipelineConfig, source: Source) -> PipelineConfig:
    """Returns the config for the hosts of a remote TPU, which run TensorFlow's operations alone, and open the files."""
    if config.order == "exact":
        fault = (
            "`order` exact is made by this program, and the hosts of a remote TPU run TensorFlow's operations alone."
        )
        raise ConfigError(f"{fault} Use order='throughput', or train on the TPU's own machines.")
    if not is_url(source.files[0]):
        fault = f"The hosts of a remote TPU cannot read files of this machine, got {source.name}."
        raise ConfigError(f"{fault} Copy the dataset to gs:// and load it from there.")
    if config.cache_dir is not None:
        fault = f"The hosts of a remote TPU cannot read a cache on this machine, got `cache_dir` {config.cache_dir!r}."
        raise ConfigError(f"{fault} Leave it out.")
    return replace(config, order="throughput")


def _make_plan(
    strategy: tf.distribute.Strategy,
    data: Manifest | Source | Mixture,
    split: str | None,
    config: PipelineConfig,
    start_step: int = 0,
    epochs: int | None = None,
) -> BatchPlan:
    """Makes the plan of the first host, and refuses what hosts cannot share before a cache is filled."""
    check_has(
        "strategy", strategy, "num_replicas_in_sync", "a tf.distribute.Strategy, such as tfpipe.resolve_strategy()"
    )
    replicas, hosts = strategy.num_replicas_in_sync, count_hosts(strategy)
    plan = plan_batches(get_whole_source(data, split), config, Host(0, hosts, replicas, start_step, epochs))
    check_shares(plan)
    return plan
