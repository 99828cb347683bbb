"""Checks of a plan before its batches are made: the options fit the records, the replicas and the devices."""

from __future__ import annotations

from tfpipe.engine.config.pipeline_config import MAX_IMAGES, PipelineConfig
from tfpipe.engine.features import BatchFeature
from tfpipe.engine.host import split_batch
from tfpipe.engine.order import check_fills_batch
from tfpipe.engine.plan import BatchPlan
from tfpipe.engine.source import Source
from tfpipe.errors import ConfigError


def check_plan(plan: BatchPlan) -> None:
    """Refuses labels and features that the source does not have, and what this host or the replicas cannot do."""
    config, source = plan.config, plan.source
    if source.label_key is None and (config.one_hot or config.as_supervised):
        option = "one_hot" if config.one_hot else "as_supervised"
        raise ConfigError(f"`{option}` needs labels, and {source.name} has none.")
    if config.one_hot and not source.num_classes:
        raise ConfigError(f"`one_hot` needs the number of classes of {source.name}: give `num_classes`.")
    _check_images(plan)
    if not source.has_images:
        _check_without_images(source, config)
    if not plan.features and not source.has_images:
        raise ConfigError(f"A batch must hold a feature, and the records of {source.name} have none.")
    check_shares(plan)


def check_shares(plan: BatchPlan) -> None:
    """Refuses a batch that replicas and hosts cannot share, or that the records do not fill."""
    split_batch(plan.config.batch_size, plan.host.num_replicas)
    if plan.config.training and plan.source.epoch_records is not None:
        check_fills_batch(plan.source.epoch_records, plan.config.batch_size)


def check_fits_devices(plan: BatchPlan) -> None:
    """Refuses features that devices do not hold: text, and tensors of several shapes."""
    text, ragged = list_text(plan.features), [feature.name for feature in plan.features if feature.is_ragged]
    if ragged:
        raise ConfigError(
            f"Arrays on devices must have one shape, and {', '.join(ragged)} has several. Give a size in `pad_to`, "
            f"as in {{{ragged[0]!r}: 77}}."
        )
    if text and not plan.config.extra_features:
        raise ConfigError(f"No device holds text, got {', '.join(text)}. Name the others in `extra_features`.")
    if text:
        raise ConfigError(
            f"`extra_features` must not name text, which no device holds, got {', '.join(text)}. Leave it out."
        )


def list_text(features: tuple[BatchFeature, ...]) -> list[str]:
    """Lists the features that hold text, by their names."""
    specs = [feature.spec for feature in features]
    return [spec.name for spec in specs if spec.dtype == "bytes" and spec.kind in ("values", "text")]


def _check_images(plan: BatchPlan) -> None:
    """Refuses a number of images that records do not have."""
    chosen, counts, name = plan.config.images, plan.source.per_record, plan.source.name
    if counts is None:
        if isinstance(chosen, int):
            raise ConfigError(f"`images` {chosen} needs records with several images, and {name} has none such.")
        return
    advice = f"Use first, or a number up to {min(counts.smallest, MAX_IMAGES)}."
    if chosen == "all" and counts.smallest != counts.largest:
        raise ConfigError(
            f"`images` all needs the same number of images in every record, and {name} has {counts.smallest} to "
            f"{counts.largest}. {advice}"
        )
    if (plan.num_images or 0) > min(counts.smallest, MAX_IMAGES):
        raise ConfigError(
            f"`images` {chosen} must give at most {MAX_IMAGES} images, and no more than each record of {name} has, "
            f"got {plan.num_images}. {advice}"
        )
    if plan.config.cache == "decoded" and plan.num_images is not None:
        raise ConfigError("`cache` decoded keeps one image a record. Set `cache` to bytes, or `images` to first.")


def _check_without_images(source: Source, config: PipelineConfig) -> None:
    """Refuses options that ask for images if the records have none."""
    asked = {
        "as_supervised": config.as_supervised,
        "augment": config.augment == "device",
        "cache": config.cache == "decoded",
    }
    for option, is_asked in asked.items():
        if is_asked:
            raise ConfigError(f"`{option}` {getattr(config, option)} needs images, and {source.name} has none.")
