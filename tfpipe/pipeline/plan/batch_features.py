"""The features of the records that a batch holds beside image and label, and the sizes that they are padded to.

extra_features=("tokens", "caption"), pad_to=("tokens=77",)
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tfpipe.errors import ConfigError
from tfpipe.format.schema import CLASS_TEXT, RESERVED, FeatureSpec
from tfpipe.pipeline.config.pipeline_config import PipelineConfig
from tfpipe.pipeline.plan.source import Source

_PAD_TO = re.compile(r"(.+)=([0-9]{1,9}(?:x[0-9]{1,9})*)")


@dataclass(frozen=True)
class BatchFeature:
    """A feature of the records that a batch holds.

    Attributes:
        spec: The feature as it is stored.
        pad_to: The size that each unknown axis of a tensor is padded or cut to; None if nothing is.
    """

    spec: FeatureSpec
    pad_to: tuple[int, ...] | None = None

    @property
    def name(self) -> str:
        """The name of the feature, in the records and in the batch."""
        return self.spec.name

    @property
    def is_ragged(self) -> bool:
        """Whether records of one batch may have different shapes."""
        tensor = self.spec.tensor
        return tensor is not None and tensor.num_unknown > 0 and self.pad_to is None

    @property
    def sizes_name(self) -> str:
        """The name under which a batch has the sizes that a padded tensor is stored with."""
        return f"{self.name}.sizes"

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape of a tensor in a batch, without the axis of the batch."""
        assert self.spec.tensor is not None
        unknown, shape = self.spec.tensor.num_unknown, self.spec.tensor.shape
        return shape if self.pad_to is None else (*self.pad_to, *shape[unknown:])


def list_batch_features(source: Source, config: PipelineConfig) -> tuple[BatchFeature, ...]:
    """Lists the features that a batch holds beside image and label.

    These are `extra_features`. If the records have no image and none is named, these are all.

    Raises:
        ConfigError: A feature does not exist or has a reserved name, or is padded although its size is known.
    """
    schema, names = source.schema, config.extra_features
    if not names and not source.has_images:
        left_out = {source.label_key, CLASS_TEXT, *schema.sizes_keys}
        names = tuple(name for name in schema.names if name not in left_out)
    for name in names:
        if name in RESERVED:
            raise ConfigError(f"`extra_features` must not name {name!r}: the pipeline uses this name itself.")
        if name not in schema:
            raise ConfigError(
                f"`extra_features` must name features of {source.name}, got {name!r}; it has {', '.join(schema.names)}."
            )
    sizes = dict(_read_pad_to(entry) for entry in config.pad_to)
    features = tuple(BatchFeature(schema[name], sizes.pop(name, None)) for name in names)
    for feature in features:
        _check_sizes(feature)
    if sizes:
        raise ConfigError(
            f"`pad_to` must name features of the batch, got {next(iter(sizes))!r}; it has {', '.join(names)}."
        )
    return features


def _read_pad_to(entry: str) -> tuple[str, tuple[int, ...]]:
    match = _PAD_TO.fullmatch(entry)
    sizes = tuple(map(int, match[2].split("x"))) if match else ()
    if not match or not all(sizes):
        raise ConfigError(f"`pad_to` must have entries such as 'tokens=77' or 'frames=16x128', got {entry!r}.")
    return match[1], sizes


def _check_sizes(feature: BatchFeature) -> None:
    if feature.pad_to is None:
        return
    tensor = feature.spec.tensor
    unknown = 0 if tensor is None else tensor.num_unknown
    if len(feature.pad_to) != unknown:
        what = f"{feature.spec.kind}" if tensor is None else str(tensor)
        raise ConfigError(
            f"`pad_to` must give {feature.name!r} a size for each unknown axis, got {len(feature.pad_to)} for {what}."
        )
