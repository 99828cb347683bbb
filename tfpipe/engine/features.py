"""The features of the records that a batch holds besides image and label, and the sizes that they are padded to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.source import Source
from tfpipe.errors import ConfigError
from tfpipe.format.schema import CLASS_TEXT, IMAGE_HEIGHT, IMAGE_WIDTH, RESERVED, FeatureSpec

_BOXES = "image/object/"


@dataclass(frozen=True)
class BatchFeature:
    """A feature of the records that a batch holds besides image and label."""

    spec: FeatureSpec
    pad_to: tuple[int, ...] | None = None  # the size of each unknown axis of a tensor, or of a list
    multi_hot: bool = False  # whether classes become a vector with a 1 for each

    @property
    def name(self) -> str:
        """The name of the feature, in the records and in the batch."""
        return self.spec.name

    @property
    def is_ragged(self) -> bool:
        """Whether records of one batch may have different shapes."""
        return self.num_unknown > 0 and self.pad_to is None and not self.multi_hot

    @property
    def num_unknown(self) -> int:
        """The number of axes whose size differs between records."""
        tensor = self.spec.tensor
        return int(self.spec.shape is None) if tensor is None else tensor.num_unknown

    @property
    def is_box(self) -> bool:
        """Whether the feature has a value for each bounding box; a batch does not hold the number of these values."""
        return self.name.startswith(_BOXES) and self.spec.tensor is None

    @property
    def sizes_name(self) -> str:
        """The name under which a batch holds the stored sizes of a padded tensor or list."""
        return f"{self.name}.sizes"

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape of a tensor in a batch, without the axis of the batch."""
        assert self.spec.tensor is not None
        unknown, shape = self.spec.tensor.num_unknown, self.spec.tensor.shape
        return shape if self.pad_to is None else (*self.pad_to, *shape[unknown:])


def list_batch_features(source: Source, config: PipelineConfig) -> tuple[BatchFeature, ...]:
    """Lists a batch's other features: `extra_features`, or all if none is named and the records have no image."""
    schema, names = source.schema, config.extra_features
    if not names and not source.has_images:
        left_out = {source.label_key, CLASS_TEXT, *schema.sizes_keys}
        names = tuple(name for name in schema.names if name not in left_out)
    if source.value_key is not None and source.value_key not in names:
        names = (*names, source.value_key)
    free = {name for name, is_used in (("image", source.has_images), ("label", source.label_key)) if not is_used}
    for name in names:
        if name in RESERVED and name not in free:
            raise ConfigError(f"`extra_features` must not name {name!r}: the pipeline uses this name itself.")
        if name not in schema:
            raise ConfigError(
                f"`extra_features` must name features of {source.name}, got {name!r}; it has {', '.join(schema.names)}."
            )
    sizes = {name: size if isinstance(size, tuple) else (size,) for name, size in config.pad_to.items()}
    boxes = (name for name in names if name.startswith(_BOXES) and schema[name].shape is None)
    sizes = {**dict.fromkeys(boxes, (config.max_boxes,)), **sizes}
    for name in config.multi_hot:
        if name not in names or not schema[name].names:
            listed = ", ".join(name for name in names if schema[name].names) or "none"
            raise ConfigError(f"`multi_hot` must name lists of classes in the batch ({listed}), got {name!r}.")
    features = tuple(BatchFeature(schema[name], sizes.pop(name, None), name in config.multi_hot) for name in names)
    for feature in (feature for feature in features if feature.pad_to is not None):
        if feature.multi_hot:
            raise ConfigError(f"`pad_to` must not name {feature.name!r}, which `multi_hot` names too. Choose one.")
        if (given := len(feature.pad_to or ())) != feature.num_unknown:
            what = feature.spec.tensor or feature.spec.kind
            raise ConfigError(
                f"`pad_to` must give {feature.name!r} a size for each unknown axis, got {given} for {what}."
            )
    if sizes:
        raise ConfigError(
            f"`pad_to` must name features of the batch, got {next(iter(sizes))!r}; it has {', '.join(names)}."
        )
    return features


def list_stored_features(source: Source, features: Sequence[BatchFeature]) -> tuple[str, ...]:
    """Lists the stored features that must be read to make a batch."""
    sizes = (IMAGE_HEIGHT, IMAGE_WIDTH) if source.has_sizes else ()
    names = [source.image_key, *source.more_images, source.label_key, *sizes]
    for feature in features:
        names += [feature.name, feature.spec.tensor.sizes if feature.spec.tensor is not None else None]
    return tuple(name for name in names if name is not None)
