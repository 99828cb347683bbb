"""Decides which features of finished datasets a new dataset takes over: all but those that are left out.

Records that another program wrote get the features that tfpipe writes for the image and its class. Their other features
keep their names, types and values.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from tfpipe.errors import ConfigError, DataError
from tfpipe.format.image_form import ImageForm
from tfpipe.format.manifest import Manifest
from tfpipe.format.schema import CLASS_LABEL, IMAGE_ENCODED, Schema, class_schema, image_schema


def check_dropped(manifests: Sequence[Manifest], dropped: Collection[str]) -> None:
    """Checks that each feature to leave out exists, and that a dataset can do without it."""
    optional = sorted({name for manifest in manifests for name in list_optional(manifest)})
    listed = ", ".join(optional) or "none here"
    for name in dropped:
        if name in optional:
            continue
        needed = any(name in (*manifest.schema.names, *_get_own_schema(manifest).names) for manifest in manifests)
        why = ", which every dataset of images needs" if needed else ""
        raise ConfigError(f"`drop_features` must name features that can be left out ({listed}), got {name!r}{why}.")


def list_optional(manifest: Manifest) -> list[str]:
    """Returns the features of a dataset that can be left out, in the order of its schema."""
    written, foreign = set(_get_own_schema(manifest).names), manifest.foreign
    written |= manifest.schema.sizes_keys  # these go with their tensors
    if foreign is not None:  # a second image or class would be lost unnoticed
        written -= {IMAGE_ENCODED, CLASS_LABEL} - {foreign.image_key, foreign.label_key}
    needed = {manifest.image_key, manifest.label_key, *written}
    return [name for name in manifest.schema.names if name not in needed]


def add_sizes(manifests: Sequence[Manifest], dropped: Collection[str]) -> tuple[str, ...]:
    """Returns the features to leave out together with those that hold the sizes of their tensors."""
    tensors = [spec for manifest in manifests for spec in manifest.schema.tensors if spec.name in dropped]
    sizes = [spec.tensor.sizes for spec in tensors if spec.tensor is not None and spec.tensor.sizes is not None]
    return tuple(dict.fromkeys((*dropped, *sizes)))


def take_over(manifest: Manifest, dropped: Collection[str]) -> Manifest:
    """Returns the manifest with the features and the image form that its records will have in the new dataset."""
    kept = [manifest.schema[name] for name in list_optional(manifest) if name not in dropped]
    if manifest.foreign is None:
        specs = [spec for spec in manifest.schema.features if spec.name not in dropped]
        return replace(manifest, schema=Schema(tuple(specs)))
    own = _get_own_schema(manifest)
    _check_names(manifest, [spec.name for spec in kept], own.names)
    # Its notes about images are made again, image by image.
    schema = Schema((*own.features, *kept))
    return replace(manifest, schema=schema, image=ImageForm().to_json(), changed={}, noticed={})


def _get_own_schema(manifest: Manifest) -> Schema:
    labeled = bool(manifest.label_names) or (manifest.foreign is None and CLASS_LABEL in manifest.schema)
    if manifest.image_key is None:
        return class_schema() if labeled else Schema(())
    images = manifest.schema[IMAGE_ENCODED].shape if manifest.has_several_images else ()
    return image_schema(labeled=labeled, boxes=False, box_labels=False, images=images)


def _check_names(manifest: Manifest, extra: Sequence[str], own: Sequence[str]) -> None:
    assert manifest.foreign is not None
    places = {IMAGE_ENCODED: ("image", manifest.foreign.image_key), CLASS_LABEL: ("class", manifest.foreign.label_key)}
    for name in extra:
        if name in places:
            what, key = places[name]
            other = f"its {what} is {key!r}" if key else "it holds no class that can be used"
            raise DataError(
                f"Every dataset of tfpipe has its {what} in {name!r}, but in {manifest.directory} {other}. Leave the "
                f"feature {name!r} out with `drop_features`."
            )
        if "" in name.split("/"):
            raise DataError(
                f"The name of a feature must have text on both sides of each '/', got {name!r} in "
                f"{manifest.directory}. Leave it out with `drop_features`."
            )
        # Readers that nest by '/' cannot hold a value and a group of values under one name.
        around = next((other for other in (*own, *extra) if name.startswith(other + "/")), None)
        inside = next((other for other in own if other.startswith(name + "/")), None)
        if around or inside:
            outer, inner = (around, name) if around else (name, inside)
            raise DataError(
                f"{inner!r} would lie inside the feature {outer!r} of {manifest.directory}, since readers nest names "
                f"at '/'. Leave {name!r} out with `drop_features`."
            )
