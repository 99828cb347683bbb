"""Joins the manifests of the first layer of a dataset and of those that were appended to it into one."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, zip_longest

from tfpipe.errors import FormatError
from tfpipe.format.manifest import Duplicates, ImageSizes, ImagesPerRecord, Manifest, SplitInfo
from tfpipe.format.schema import FeatureSpec, Schema
from tfpipe.format.tensors.mask_stats import MaskStats
from tfpipe.format.tensors.tensor_stats import TensorStats


def join_manifests(parts: Sequence[Manifest], folders: Sequence[str]) -> Manifest:
    """Returns the manifest of a dataset whose records are those of all parts, part by part.

    Args:
        parts: The manifests. Labels of a later one begin with those of the one before.
        folders: The folder of each part, relative to the directory of the first; empty for that itself.

    Raises:
        FormatError: The features or the labels of a part are not those of the first.
    """
    first, last = parts[0], parts[-1]
    names = dict.fromkeys(name for part in parts for name in part.splits)
    facts = [part.fingerprint for part in parts]
    return replace(
        first,
        splits={name: _join_splits(name, parts, folders, len(last.label_names)) for name in names},
        label_names=last.label_names,
        schema=_join_schemas(parts),
        changed=sum_counts(part.changed for part in parts),
        noticed=sum_counts(part.noticed for part in parts),
        skipped=sum_counts(part.skipped for part in parts),
        quarantined=sum(part.quarantined for part in parts),
        duplicates=Duplicates(
            sum_counts(part.duplicates.within for part in parts),
            sum(part.duplicates.across for part in parts),
            sum(part.duplicates.dropped for part in parts),
        ),
        fingerprint=hashlib.sha256(json.dumps(facts).encode()).hexdigest(),
        parts=tuple(parts),
    )


def sum_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Returns the sum of counts by name, in the order of the names."""
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(sorted(total.items()))


def explain_misfit(first: Manifest, other: Manifest) -> str | None:
    """Returns why records cannot be appended to those of a dataset, as a sentence; None if they can."""
    mine, theirs = first.schema, other.schema
    for name in (*mine.names, *theirs.names):
        if name not in theirs:
            return f"Every record must have the feature {name!r}, as those of {first.directory} have, and these do not."
        if name not in mine:
            return f"The records of {first.directory} have no feature {name!r}, and these do."
        one, two = mine[name], theirs[name]
        fits = one.shape == two.shape or () not in (one.shape, two.shape)
        if not fits or (one.dtype, one.kind, one.tensor) != (two.dtype, two.kind, two.tensor):
            kinds = " and ".join(_describe(spec) for spec in (one, two))
            return f"The feature {name!r} must be as in {first.directory}, but they are {kinds}."
        if one.names != two.names[: len(one.names)]:
            return f"The classes of {name!r} must begin with those in {first.directory}, in their order."
    if other.label_names[: len(first.label_names)] != first.label_names:
        return f"The classes must begin with those of {first.directory}, in their order."
    if first.image_key is not None and _list_form(first) != _list_form(other):
        return f"The images must have the form of those in {first.directory}."
    return None


def _describe(spec: FeatureSpec) -> str:
    return f"{'one' if spec.shape == () else 'a list of'} {spec.tensor or spec.kind} ({spec.dtype})"


def _list_form(manifest: Manifest) -> list[object]:
    return [manifest.image.get(name) for name in ("encoding", "square", "resize_short")]


def _join_schemas(parts: Sequence[Manifest]) -> Schema:
    """Returns the features of all parts. A shape is left open if lists have different lengths."""
    for before, part in pairwise(parts):
        if (reason := explain_misfit(before, part)) is not None:
            raise FormatError(f"{part.directory} does not belong to its dataset: {reason}")
    specs = []
    for spec in parts[0].schema.features:
        shapes = {part.schema[spec.name].shape for part in parts}
        shape = spec.shape if len(shapes) == 1 else None
        specs.append(replace(spec, shape=shape, names=parts[-1].schema[spec.name].names))
    return Schema(tuple(specs))


def _join_splits(name: str, parts: Sequence[Manifest], folders: Sequence[str], num_classes: int) -> SplitInfo:
    found = [(part.splits[name], folder) for part, folder in zip(parts, folders, strict=True) if name in part.splits]
    infos = [info for info, _ in found]
    shards = [
        replace(shard, file=f"{folder}/{shard.file}" if folder else shard.file)
        for info, folder in found
        for shard in info.shards
    ]
    tensors: dict[str, TensorStats] = {}
    masks: dict[str, MaskStats] = {}
    for info in infos:
        for key, stats in info.tensors.items():
            tensors.setdefault(key, TensorStats()).merge(stats)
        for key, mask_stats in info.masks.items():
            masks.setdefault(key, MaskStats()).merge(mask_stats)
    lists = dict.fromkeys(key for info in infos for key in info.label_counts)
    counts = _add_up([info.class_counts for info in infos])
    return SplitInfo(
        name,
        tuple(shards),
        sum_counts(info.formats for info in infos),
        (*counts, *[0] * (num_classes - len(counts))) if counts else (),
        _join_sizes(infos),
        sum(info.seekable_jpegs for info in infos),
        tensors,
        masks,
        _join_images_per_record([info.images_per_record for info in infos if info.images_per_record is not None]),
        {key: _add_up([info.label_counts.get(key, ()) for info in infos]) for key in lists},
    )


def _add_up(counts: Sequence[Sequence[int]]) -> tuple[int, ...]:
    return tuple(map(sum, zip_longest(*counts, fillvalue=0)))


def _join_images_per_record(counts: Sequence[ImagesPerRecord]) -> ImagesPerRecord | None:
    if not counts:
        return None
    smallest, largest = min(each.smallest for each in counts), max(each.largest for each in counts)
    return ImagesPerRecord(sum(each.total for each in counts), smallest, largest)


def _join_sizes(infos: Sequence[SplitInfo]) -> ImageSizes:
    """Returns the sizes of all images. Their means are rounded, so the mean of all is close."""
    weighed = [(info.sizes, sum(info.formats.values())) for info in infos if info.sizes.max_height]
    images = sum(count for _, count in weighed)
    if not images:
        return infos[0].sizes
    return ImageSizes(
        min_height=min(sizes.min_height for sizes, _ in weighed),
        max_height=max(sizes.max_height for sizes, _ in weighed),
        mean_height=round(sum(sizes.mean_height * count for sizes, count in weighed) / images, 1),
        min_width=min(sizes.min_width for sizes, _ in weighed),
        max_width=max(sizes.max_width for sizes, _ in weighed),
        mean_width=round(sum(sizes.mean_width * count for sizes, count in weighed) / images, 1),
    )
