"""What finished datasets have in common, and how one is made of their records: functions of their manifests alone.

Labels unite by name, in the order of the first dataset; what the others add follows. So the records of the first one,
and of any that names the same classes, stay as they are. Everything else must agree.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tfpipe.errors import ConfigError, DataError
from tfpipe.format import manifest_json
from tfpipe.format.image_form import ImageForm
from tfpipe.format.manifest import Manifest
from tfpipe.format.schema import CLASS_LABEL, FeatureSpec, Schema

MADE_FROM = "made_from"
"""Key in a manifest's image form: the forms that the images had before, where those were not originals any more."""


@dataclass(frozen=True, slots=True)
class SourceDataset:
    """A finished dataset that records come from.

    Attributes:
        directory: The directory where it lies, which does not shape the new dataset.
        manifest_sha256: The SHA-256 of its manifest, which knows the checksum of every shard.
        square: Whether its images are squeezed. Its records then have the heights and widths from before that.
        labels: The new number of each of its classes.
    """

    directory: str
    manifest_sha256: str
    square: bool
    labels: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InputDatasets:
    """The finished datasets that records come from, for the workers and the new manifest.

    Attributes:
        sources: The datasets, by the name that begins the location of each of their records.
        image: The image form for the new manifest.
        reformed: Whether images are brought into another form; else they are copied as they are.
        changed: The sums of the manifests: how the images were changed before.
        noticed: The sums of the manifests, as far as they still hold.
    """

    sources: dict[str, SourceDataset]
    image: dict[str, Any]
    reformed: bool
    changed: dict[str, int]
    noticed: dict[str, int]

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "InputDatasets":
        """Returns what `dataclasses.asdict` gave, by way of JSON."""
        sources = {
            name: SourceDataset(**{**source, "labels": tuple(source["labels"])})
            for name, source in fields["sources"].items()
        }
        return cls(**{**fields, "sources": sources})

    def get_fingerprint_facts(self) -> dict[str, Any]:
        """Returns all that shapes the new dataset: everything but the directories."""
        fields = asdict(self)
        for source in fields["sources"].values():
            del source["directory"]
        return fields


@dataclass(frozen=True, slots=True)
class MergedDatasets:
    """The dataset that several datasets make together.

    Attributes:
        name: The name of the new dataset.
        label_names: Its classes.
        schema: The features of its records.
        form: The form of its images.
        class_counts: The number of images of each class, by split.
        datasets: The datasets that the records come from.
    """

    name: str
    label_names: tuple[str, ...]
    schema: Schema
    form: ImageForm
    class_counts: dict[str, list[int]]
    datasets: InputDatasets

    def leave_out(self, images: Iterable[tuple[str, int]]) -> "MergedDatasets":
        """Returns the same without some images.

        Args:
            images: The split and the label of each image; -1 if it has no label.
        """
        counts = {split: list(of_split) for split, of_split in self.class_counts.items()}
        for split, label in images:
            if 0 <= label < len(self.label_names):
                counts[split][label] -= 1
        return replace(self, class_counts=counts)


def merge_manifests(datasets: Mapping[str, Manifest], changes: Mapping[str, Any]) -> MergedDatasets:
    """Decides what comes out.

    Args:
        datasets: The manifests by a name of one's own for each, in order.
        changes: Fields of `ImageForm` that the images shall have; empty: they stay as they are.

    Raises:
        ConfigError: The changes would enlarge reduced images, change nothing, or exclude each other.
        DataError: Labels, features or image forms do not go together; the sentence names the datasets and what to do.
        FormatError: A manifest names an image form that cannot be.
    """
    manifests = list(datasets.values())
    schema = _unite_schemas(manifests)
    names = _unite_labels(manifests)
    image = _unite_images(manifests)
    form = ImageForm.recorded(image)
    new = _changed_form(form, changes)
    if new != form:
        image = asdict(new) | _made_from(form, image)
    numbers = {name: number for number, name in enumerate(names)}
    labels = [tuple(numbers[name] for name in manifest.label_names) for manifest in manifests]
    kept = {"name_differs"} if new != form else None  # the rest is noticed again, in the images as they are now
    noticed = _total(manifest.noticed for manifest in manifests)
    inputs = InputDatasets(
        sources={
            key: SourceDataset(
                directory=manifest.directory,
                manifest_sha256=hashlib.sha256(manifest_json.dumps(manifest).encode()).hexdigest(),
                square=form.square is not None,
                labels=mapped,
            )
            for (key, manifest), mapped in zip(datasets.items(), labels, strict=True)
        },
        image=image,
        reformed=new != form,
        changed=_total(manifest.changed for manifest in manifests),
        noticed={kind: count for kind, count in noticed.items() if kept is None or kind in kept},
    )
    name = "+".join(dict.fromkeys(manifest.name for manifest in manifests))
    return MergedDatasets(name, names, schema, new, _class_counts(manifests, labels, len(names)), inputs)


def _unite_schemas(manifests: Sequence[Manifest]) -> Schema:
    """The features of the first; a shape is left open where lists have different lengths."""
    first, *others = manifests
    specs = {spec.name: spec for spec in first.schema.features}
    for other in others:
        for has, lacks in ((first, other), (other, first)):
            for name in has.schema.names:
                if name not in lacks.schema:
                    raise DataError(
                        f"Every dataset must have the same features, but {lacks.directory} has no {name!r}, which "
                        f"{has.directory} has."
                    )
        for spec in other.schema.features:
            specs[spec.name] = _unite_specs(specs[spec.name], spec, first.directory, other.directory)
    return Schema(tuple(specs.values()))


def _unite_specs(one: FeatureSpec, other: FeatureSpec, first: str, second: str) -> FeatureSpec:
    if one.dtype != other.dtype or (one.shape != other.shape and () in (one.shape, other.shape)):
        kinds = [f"{'one' if spec.shape == () else 'a list of'} {spec.dtype}" for spec in (one, other)]
        raise DataError(
            f"Feature {one.name!r} must be of one kind, but is {kinds[0]} in {first} and {kinds[1]} in {second}."
        )
    return one if one.shape == other.shape else replace(one, shape=None)


def _unite_labels(manifests: Sequence[Manifest]) -> tuple[str, ...]:
    first, *others = manifests
    for other in others:
        if other.label_names != first.label_names:
            for one, another in ((first, other), (other, first)):
                _check_named(one, another)
    if CLASS_LABEL in first.schema and not first.label_names and others:
        raise DataError(f"Labels unite by name, but {first.directory} does not say how many classes it has.")
    return tuple(dict.fromkeys(name for manifest in manifests for name in manifest.label_names))


def _check_named(manifest: Manifest, other: Manifest) -> None:
    """Refuses classes that have numbers only: class 3 here need not be class 3 there."""
    names = manifest.label_names
    if names == tuple(map(str, range(len(names)))):
        raise DataError(
            f"Labels unite by name, but {manifest.directory} only numbers its {len(names)} classes, and "
            f"{other.directory} has {len(other.label_names)} others. Name them with `tfpipe shard --labels`."
        )


def _unite_images(manifests: Sequence[Manifest]) -> dict[str, Any]:
    """The form that all have: at least of the lowest quality, within the highest limit of pixels."""
    forms = [ImageForm.recorded(manifest.image) for manifest in manifests]
    image = dict(manifests[0].image)
    if len(manifests) == 1:
        return image
    wanted = _common_form(forms)
    for manifest, form in zip(manifests, forms, strict=True):
        if _shape(form) != _shape(wanted):
            options = " ".join(_options(form, wanted))
            raise DataError(
                f"The images of all datasets must have one form, but those of {manifest.directory} "
                f"({_describe(form)}) are not like the others. Bring them into one first: tfpipe reshard "
                f"{manifest.directory} OUTPUT {options}"
            )
    image |= {
        "quality": min(form.quality for form in forms),
        "max_pixels": max(form.max_pixels for form in forms),
        "reencode_progressive": all(form.reencode_progressive for form in forms),
    }
    before = "; ".join(dict.fromkeys(str(m.image[MADE_FROM]) for m in manifests if m.image.get(MADE_FROM)))
    return image | ({MADE_FROM: before} if before else {})


def _common_form(forms: Sequence[ImageForm]) -> ImageForm:
    """What all can be brought into without enlarging an image that was reduced."""
    side = min((side for form in forms for side in (form.square, form.resize_short) if side), default=None)
    encodings = {form.encoding for form in forms}
    encoding = next(encoding for encoding in ("raw", "jpeg", "keep") if encoding in encodings)
    if any(form.square for form in forms):
        return ImageForm(encoding, square=side)
    return ImageForm(encoding, resize_short=side)


def _shape(form: ImageForm) -> tuple[Any, ...]:
    """What readers go by."""
    return form.encoding, form.square, form.resize_short


def _options(form: ImageForm, wanted: ImageForm) -> Iterator[str]:
    if wanted.encoding != form.encoding:
        yield f"--encoding {wanted.encoding}"
    if wanted.square != form.square:
        yield f"--square {wanted.square}"
    if wanted.resize_short not in (form.resize_short, None):
        yield f"--resize-short {wanted.resize_short}"


def _describe(form: ImageForm) -> str:
    sizes = {"square": form.square, "resize_short": form.resize_short}
    return ", ".join(
        f"{name} {value}" for name, value in ({"encoding": form.encoding} | sizes).items() if value is not None
    )


def _changed_form(form: ImageForm, changes: Mapping[str, Any]) -> ImageForm:
    """The form that was asked for; a new size takes the place of the old."""
    sizes = {"square": None, "resize_short": None} if changes.keys() & {"square", "resize_short"} else {}
    new = replace(form, **{**sizes, **changes})
    if new != form and replace(new, quality=form.quality) == form:
        raise ConfigError(
            "--quality is that of images encoded anew, and none would be. Give --encoding, --resize-short or --square "
            "too, and another than the images have."
        )
    for name, side in (("resize_short", new.resize_short), ("square", new.square)):
        limit = form.resize_short or form.square
        if side and limit and side > limit:
            raise ConfigError(
                f"The images were reduced to {limit} pixels and cannot be enlarged again: "
                f"--{name.replace('_', '-')} must be at most that, got {side}."
            )
    return new


def _made_from(form: ImageForm, image: Mapping[str, Any]) -> dict[str, str]:
    """Nothing where the images were originals."""
    before = str(image.get(MADE_FROM) or "")
    if _shape(form) != _shape(ImageForm()):
        before = "; ".join(filter(None, [before, f"{_describe(form)}, quality {form.quality}"]))
    return {MADE_FROM: before} if before else {}


def _class_counts(
    manifests: Sequence[Manifest], labels: Sequence[Sequence[int]], num_classes: int
) -> dict[str, list[int]]:
    counts: dict[str, list[int]] = {}
    for manifest, mapped in zip(manifests, labels, strict=True):
        for name, split in manifest.splits.items():
            of_split = counts.setdefault(name, [0] * num_classes)
            for label, count in zip(mapped, split.class_counts, strict=False):  # none where nobody counted
                of_split[label] += count
    return counts


def _total(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(sorted(total.items()))
