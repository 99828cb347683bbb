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

    An epoch deals its records to the rows of its batch, so another size can begin with an epoch only.

        config, step = tfpipe.change_batch_size(manifest, "train", config, 5000, 128)
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
        ConfigError: The run has no exact order; it gives no global batch size; or the step lies within an epoch. The
            error says with which step the next epoch begins.
    """
    if config.global_batch_size is None:
        raise ConfigError(
            "`global_batch_size` must be given, got `per_replica_batch_size`. Multiply it by the replicas."
        )
    old = ReadPlan(get_source(data, split), config, 1, 0, 1, step)
    if not old.exact:
        raise ConfigError("Only a run in exact order can go on with another batch size, got throughput order.")
    epoch, step_in_epoch = old.start
    new = replace(old, config=replace(config, global_batch_size=global_batch_size), start_step=0)
    first_step = (epoch + bool(step_in_epoch)) * (new.steps_per_epoch or 0)
    if step_in_epoch:
        raise ConfigError(
            f"Another batch size must begin with an epoch, got step {step}, which is step {step_in_epoch} of epoch "
            f"{epoch}. Finish this epoch of {human_count(old.steps_per_epoch or 0, 'step')}, and go on with "
            f"global_batch_size={global_batch_size} from start_step={first_step}."
        )
    return new.config, first_step
