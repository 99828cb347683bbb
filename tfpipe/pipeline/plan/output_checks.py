"""Whether a source can give what a config asks for. No TensorFlow."""

from __future__ import annotations

from tfpipe.errors import ConfigError
from tfpipe.pipeline.plan.read_plan import ReadPlan

RESERVED = ("image", "label", "mask", "height", "width", "seed", "encoded", "flip", "number")
"""Keys of the pipeline's own; no feature may be included under one of them."""


def check_outputs(plan: ReadPlan) -> None:
    """Refuses what the source cannot give.

    Raises:
        ConfigError: A label is wanted and there is none, or an included feature is missing or has a reserved name.
    """
    config, source = plan.config, plan.source
    if config.on_bad_record == "skip" and source.shard_records is None:
        raise ConfigError(
            f"`on_bad_record` skip needs to know where each record begins, and {source.unplaced}. Use raise."
        )
    if source.label_key is None and (config.one_hot or config.as_supervised):
        wish = "one_hot" if config.one_hot else "as_supervised"
        raise ConfigError(f"`{wish}` needs labels, and {source.name} has none.")
    if config.one_hot and not source.num_classes:
        raise ConfigError(f"`one_hot` needs the number of classes of {source.name}: give `num_classes`.")
    for name in config.extra_features:
        if name in RESERVED:
            raise ConfigError(
                f"`extra_features` must not name {name!r}: the pipeline hands over something of that name."
            )
        if name not in source.schema:
            raise ConfigError(
                f"`extra_features` must name features of {source.name}, got {name!r}; "
                f"it has {', '.join(source.schema.names)}."
            )
