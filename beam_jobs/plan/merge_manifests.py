"""Merges the manifests of finished datasets into the description of the dataset that their records make together.

Labels are merged by name: first the classes of the first dataset in its order, then the new classes of the others. So
the records of the first dataset, and of any other with the same classes, stay as they are. Everything else must agree.
Records that another program wrote get the features that tfpipe writes for the image and its class.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tfpipe.errors import ConfigError, DataError
from tfpipe.format import manifest_json
from tfpipe.format.image_form import ImageForm
from tfpipe.format.join_manifests import describe_spec, sum_counts
from tfpipe.format.manifest import Foreign, Manifest
from tfpipe.format.schema import CLASS_LABEL, IMAGE_ENCODED, FeatureSpec, Schema, class_schema, image_schema

MADE_FROM = "made_from"
"""The key, in a manifest's image form, of the earlier forms of the images. It is absent for originals."""

_NAMES_SHOWN = 5  # of the classes of a feature, in a message


@dataclass(frozen=True, slots=True)
class SourceDataset:
    """A finished dataset that records come from."""

    directory: str  # of the shards
    manifest_sha256: str
    square: bool  # whether its images are squeezed to squares; records then have the heights and widths from before
    labels: tuple[int, ...]  # the number of each of its classes in the new dataset
    foreign: Foreign | None = None  # whose `root` is not used
    columns: tuple[tuple[str, str], ...] = ()  # of each added column the dataset's address with its layer, and the name


@dataclass(frozen=True, slots=True)
class InputDatasets:
    """The finished datasets that records come from, for the workers and the new manifest."""

    sources: dict[str, SourceDataset]  # by the name that begins a record's location
    image: dict[str, Any]  # the image form for the new manifest
    reformed: bool  # whether images are brought into another form
    changed: dict[str, int]  # images by earlier change, summed over the manifests
    noticed: dict[str, int]  # images by property that they still have, summed over the manifests
    seekable: bool = False  # whether a manifest counts seekable JPEGs, so that each JPEG is checked
    dropped: tuple[str, ...] = ()  # features

    def locate(self, file: str) -> tuple[SourceDataset, str]:
        """Returns the dataset and the name of the shard for the `file` of a record's location."""
        name, _, shard = file.partition("/")
        return self.sources[name], shard


@dataclass(frozen=True, slots=True)
class MergedDatasets:
    """The dataset that several datasets make together."""

    name: str
    label_names: tuple[str, ...]
    schema: Schema
    form: ImageForm
    class_counts: dict[str, list[int]]  # by split
    datasets: InputDatasets


def check_nan(manifests: Iterable[Manifest], schema: Schema) -> None:
    """Refuses tensors with NaN among the features that are copied."""
    for manifest in manifests:
        for split in manifest.splits.values():
            for name, stats in split.tensors.items():
                if stats.nan_records and name in schema:
                    raise ConfigError(
                        f"Feature {name!r} must hold no NaN, since `refuse_nan` is set, but {stats.nan_records:,} of "
                        f"the {stats.records:,} tensors of {split.name!r} in {manifest.directory} do. Leave it out "
                        "with `drop_features`, or write its records anew."
                    )


def merge_manifests(
    datasets: Mapping[str, Manifest], changes: Mapping[str, Any], dropped: Sequence[str] = ()
) -> MergedDatasets:
    """Merges manifests, applies the changes of the image form, and leaves features out."""
    _check_dropped(datasets.values(), dropped)
    tensors = [spec for manifest in datasets.values() for spec in manifest.schema.tensors if spec.name in dropped]
    sizes = [spec.tensor.sizes for spec in tensors if spec.tensor is not None and spec.tensor.sizes is not None]
    dropped = tuple(dict.fromkeys((*dropped, *sizes)))  # the sizes of tensors go with them
    manifests = [_take_over(manifest, dropped) for manifest in datasets.values()]
    schema = _merge_schemas(manifests)
    label_names = _merge_labels(manifests)
    image = _merge_image_forms(manifests)
    old_form = ImageForm.recorded(image)
    if changes and all(manifest.image_key is None for manifest in manifests):
        raise ConfigError(f"`{next(iter(changes))}` changes images, and these datasets have none. Leave it out.")
    form = old_form.change(changes)
    is_reformed = form != old_form
    if is_reformed:
        image = form.to_json() | _describe_origin(old_form, form, image)
    number_of_name = {name: number for number, name in enumerate(label_names)}
    labels = [tuple(number_of_name[name] for name in manifest.label_names) for manifest in manifests]
    noticed = sum_counts(manifest.noticed for manifest in manifests)
    if is_reformed:  # all other properties are looked for again, in the changed images
        noticed = {kind: count for kind, count in noticed.items() if kind == "name_differs"}
    inputs = InputDatasets(
        sources={
            name: _make_source(each, old_form, own) for (name, each), own in zip(datasets.items(), labels, strict=True)
        },
        image=image,
        reformed=is_reformed,
        changed=sum_counts(manifest.changed for manifest in manifests),
        noticed=noticed,
        seekable=any(split.seekable_jpegs for manifest in manifests for split in manifest.splits.values()),
        dropped=dropped,
    )
    name = "+".join(dict.fromkeys(manifest.name for manifest in manifests))
    class_counts: dict[str, list[int]] = {}
    for manifest, new_labels in zip(manifests, labels, strict=True):
        for split in manifest.splits.values():
            counts = class_counts.setdefault(split.name, [0] * len(label_names))
            for label, count in zip(new_labels, split.class_counts, strict=False):  # a manifest may have no counts
                counts[label] += count
    return MergedDatasets(name, label_names, schema, form, class_counts, inputs)


def _make_source(manifest: Manifest, form: ImageForm, labels: tuple[int, ...]) -> SourceDataset:
    foreign = manifest.foreign and replace(manifest.foreign, root=".")  # the directory does not shape the new dataset
    described = "".join(map(manifest_json.dumps, [replace(manifest, foreign=foreign), *manifest.columns]))
    return SourceDataset(
        directory=manifest.shard_directory(manifest.directory),
        manifest_sha256=hashlib.sha256(described.encode()).hexdigest(),
        square=form.square is not None,
        labels=labels,
        foreign=foreign,
        columns=tuple((f"{manifest.directory}@{manifest.layer}", column.name) for column in manifest.columns),
    )


def _check_dropped(manifests: Collection[Manifest], dropped: Collection[str]) -> None:
    """Checks that each feature to leave out exists, and that a dataset can do without it."""
    optional = sorted({name for manifest in manifests for name in _list_optional(manifest)})
    listed = ", ".join(optional) or "none here"
    for name in dropped:
        if name in optional:
            continue
        needed = any(name in (*manifest.schema.names, *_get_own_schema(manifest).names) for manifest in manifests)
        why = ", which every dataset of images needs" if needed else ""
        raise ConfigError(f"`drop_features` must name features that can be left out ({listed}), got {name!r}{why}.")


def _list_optional(manifest: Manifest) -> list[str]:
    """Returns the features of a dataset that can be left out, in the order of its schema."""
    written, foreign = set(_get_own_schema(manifest).names), manifest.foreign
    written |= manifest.schema.sizes_keys  # these go with their tensors
    if foreign is not None:  # a second image or class would be lost unnoticed
        written -= {IMAGE_ENCODED, CLASS_LABEL} - {foreign.image_key, foreign.label_key}
    needed = {*manifest.image_keys, manifest.label_key, *written}
    return [name for name in manifest.schema.names if name not in needed]


def _take_over(manifest: Manifest, dropped: Collection[str]) -> Manifest:
    """Returns the manifest with the features and the image form that its records will have in the new dataset."""
    optional = {*_list_optional(manifest), *manifest.schema.sizes_keys}
    kept = [spec for spec in manifest.schema.features if spec.name in optional and spec.name not in dropped]
    if manifest.foreign is None:
        specs = [spec for spec in manifest.schema.features if spec.name not in dropped]
        return replace(manifest, schema=Schema(tuple(specs)))
    own = _get_own_schema(manifest)
    _check_names(manifest, [spec.name for spec in kept], own.names)
    # The counts of changes and properties of its images are made again, image by image.
    schema = Schema((*own.features, *kept))
    return replace(manifest, schema=schema, image=ImageForm().to_json(), changed={}, noticed={})


def _get_own_schema(manifest: Manifest) -> Schema:
    labeled = bool(manifest.label_names) or (manifest.foreign is None and CLASS_LABEL in manifest.schema)
    if manifest.image_key is None:
        return class_schema() if labeled else Schema(())
    return image_schema(labeled=labeled, boxes=False, box_labels=False, images=manifest.images_shape)


def _check_names(manifest: Manifest, extra: Sequence[str], own: Sequence[str]) -> None:
    for name in extra:
        if name == CLASS_LABEL and manifest.label_key is None and (why := manifest.schema[name].doc):
            raise DataError(
                f"The class {name!r} must be one number in every record, -1 for none, but it is {why} of "
                f"{manifest.directory}. Write it into all and index them again, or drop all labels with "
                "`drop_features`."
            )
        must = "have text on both sides of each '/'" if "" in name.split("/") else ""
        for other in (IMAGE_ENCODED, CLASS_LABEL, *own, *(other for other in extra if other != name)):
            if f"{other}/".startswith(f"{name}/") or name.startswith(f"{other}/"):
                must = f"differ from {other!r}, and neither hold the other at a '/', where readers nest names"
        if must:
            raise DataError(
                f"The name of a feature must {must}, got {name!r} in {manifest.directory}. Leave it out with "
                "`drop_features`."
            )


def _merge_schemas(manifests: Sequence[Manifest]) -> Schema:
    """Returns the features of all datasets, which must agree. A shape is left open if lists have different lengths."""
    first, *others = manifests
    specs = {spec.name: spec for spec in first.schema.features}
    for other in others:
        for has, lacks in ((first, other), (other, first)):
            for name in has.schema.names:
                if name not in lacks.schema:
                    advice = " Leave it out with `drop_features`." if name in _list_optional(has) else ""
                    raise DataError(
                        f"Every dataset must have the same features, but {lacks.directory} has no {name!r}, which "
                        f"{has.directory} has.{advice}"
                    )
        for spec in other.schema.features:
            specs[spec.name] = _merge_specs(specs[spec.name], spec, first.directory, other.directory)
    return Schema(tuple(specs.values()))


def _merge_specs(first: FeatureSpec, second: FeatureSpec, first_directory: str, second_directory: str) -> FeatureSpec:
    are_lists = () not in (first.shape, second.shape)
    kinds = [(spec.dtype, spec.kind, spec.tensor) for spec in (first, second)]
    if kinds[0] != kinds[1] or (first.shape != second.shape and not are_lists):
        what, (one, two) = "be of one kind", map(describe_spec, (first, second))
    elif first.names != second.names:
        what, shown = "have the same classes in the same order", _NAMES_SHOWN
        one, two = (
            ", ".join([*map(repr, spec.names[:shown]), *["..."] * (len(spec.names) > shown)]) or "none"
            for spec in (first, second)
        )
    else:
        return first if first.shape == second.shape else replace(first, shape=None)
    raise DataError(
        f"Feature {first.name!r} must {what}, got {one} in {first_directory} and {two} in {second_directory}. Leave it "
        "out with `drop_features`."
    )


def _merge_labels(manifests: Sequence[Manifest]) -> tuple[str, ...]:
    first, *others = manifests
    for one, other in [*((first, other) for other in others), *((other, first) for other in others)]:
        names = one.label_names
        # Class 3 of one dataset need not be class 3 of the other.
        if names != other.label_names and names == tuple(str(k + one.label_base) for k in range(len(names))):
            advice = "`tfpipe shard --labels`" if one.foreign is None else "a file labels.txt and `tfpipe index`"
            raise DataError(
                f"Labels are merged by name, but {one.directory} only numbers its {len(names)} classes, and "
                f"{other.directory} has {len(other.label_names)} others. Name them with {advice}."
            )
    if CLASS_LABEL in first.schema and not first.label_names and others:
        raise DataError(f"Labels are merged by name, but {first.directory} does not say how many classes it has.")
    return tuple(dict.fromkeys(name for manifest in manifests for name in manifest.label_names))


def _merge_image_forms(manifests: Sequence[Manifest]) -> dict[str, Any]:
    """Returns the image form that all datasets share, and raises an error if there is none."""
    forms = [ImageForm.recorded(manifest.image) for manifest in manifests]
    image = dict(manifests[0].image)
    if len(manifests) == 1:
        return image
    for manifest, form in zip(manifests, forms, strict=True):
        if _get_shape(form) != _get_shape(forms[0]):
            raise DataError(
                f"The images of all datasets must have one form, but those of {manifests[0].directory} are "
                f"{forms[0].describe()}, and those of {manifest.directory} {form.describe()}. Bring them into one "
                "first with `tfpipe reshard`."
            )
    image |= ImageForm.join_limits(forms)
    if not all(form.seekable for form in forms):
        image.pop("seekable", None)
    before = "; ".join(dict.fromkeys(str(m.image[MADE_FROM]) for m in manifests if m.image.get(MADE_FROM)))
    return image | ({MADE_FROM: before} if before else {})


def _get_shape(form: ImageForm) -> dict[str, Any]:
    """Returns those fields of a form that readers depend on."""
    return {"encoding": form.encoding, "square": form.square, "resize_short": form.resize_short}


def _describe_origin(form: ImageForm, new_form: ImageForm, image: Mapping[str, Any]) -> dict[str, str]:
    """Returns the entry `made_from` of a new image form, with the earlier forms of the images; empty for originals."""
    before = str(image.get(MADE_FROM) or "")
    only_markers = set(form.to_json().items()) ^ set(new_form.to_json().items()) == {("seekable", True)}
    if _get_shape(form) != _get_shape(ImageForm()) and not only_markers:
        before = "; ".join(filter(None, [before, form.describe(whole=True)]))
    return {MADE_FROM: before} if before else {}
