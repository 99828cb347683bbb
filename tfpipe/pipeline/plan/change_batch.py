"""Going on with another batch size: the records that come next, and the options that keep their order."""

from __future__ import annotations

from dataclasses import replace

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.source import Source, get_source
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.system.units import human_count


def change_batch_size(
    data: Manifest | Source, split: str | None, config: PipelineConfig, step: int, global_batch_size: int
) -> tuple[PipelineConfig, int]:
    """Finds the options and the step with which a run in exact order goes on with another global batch size.

    The epoch that has begun goes on with the records that it has not given: no record comes twice in it. If the images
    so far are no whole number of the new batches, fewer than one new batch of them are left out. The streams, lanes and
    runs stay those of the old batch size, in later epochs too, so keep the options that this function returns.

        config, step = tfpipe.change_batch_size(manifest, "train", config, 1000, 128)
        dataset = tfpipe.build_dataset(manifest, "train", config, start_step=step)

    Args:
        data: A dataset, from `load_manifest`, or described files, from `tfrecord_files`.
        split: The name of the split; None for described files.
        config: The options of the run so far, with `global_batch_size`.
        step: The number of steps so far, counted from the beginning of the run.
        global_batch_size: The number of images in a batch of all replicas together from now on.

    Returns:
        The options from now on, and the step to begin with.

    Raises:
        ConfigError: The run has no exact order; it gives no global batch size; or batches of the new size would take
            records from other lanes. At the end of an epoch any size is possible, and the error says how.
    """
    if config.global_batch_size is None:
        raise ConfigError(
            "`global_batch_size` must be given, got `per_replica_batch_size`. Multiply it by the replicas."
        )
    old = ReadPlan(get_source(data, split), config, 1, 0, 1, step)
    if not old.exact:
        raise ConfigError("Only a run in exact order can go on with another batch size, got throughput order.")
    new = replace(old.pin_order(), start_step=0)
    new = replace(new, config=replace(new.config, global_batch_size=global_batch_size))
    epoch, step_in_epoch = old.start
    if global_batch_size % old.order.num_streams or new.order != old.order:
        fresh = replace(old, config=replace(config, global_batch_size=global_batch_size), start_step=0)
        next_step = (epoch + bool(step_in_epoch)) * (fresh.steps_per_epoch or 0)
        raise ConfigError(
            f"Within an epoch, a batch of {global_batch_size} must take its records in turn from the lanes from which "
            f"one of {old.global_batch_size} takes them ({human_count(old.order.num_streams, 'stream')} of "
            f"{human_count(old.order.lanes, 'lane')}), and it does not. Change at the end of an epoch: "
            f"global_batch_size={global_batch_size} with start_step={next_step}."
        )
    steps = new.steps_per_epoch or 0
    done = -(-step_in_epoch * old.global_batch_size // global_batch_size)
    return new.config, epoch * steps + min(done, steps)
