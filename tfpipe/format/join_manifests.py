"""Joins the manifest of a dataset's first records and those of appended records into one."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from tfpipe.errors import FormatError
from tfpipe.format.manifest import Duplicates, Manifest, SplitInfo
from tfpipe.format.schema import FeatureSpec, Schema
from tfpipe.format.shard_stats import ShardStats, merge_stats


def join_manifests(manifests: Sequence[Manifest], folders: Sequence[str]) -> Manifest:
    """Joins manifests into one. Each folder is relative to that of the first, "". The last has all class names."""
    first, last = manifests[0], manifests[-1]
    names = dict.fromkeys(name for manifest in manifests for name in manifest.splits)
    return replace(
        first,
        splits={name: _join_splits(name, manifests, folders, len(last.label_names)) for name in names},
        label_names=last.label_names,
        schema=_join_schemas(manifests),
        changed=sum_counts(manifest.changed for manifest in manifests),
        noticed=sum_counts(manifest.noticed for manifest in manifests),
        skipped=sum_counts(manifest.skipped for manifest in manifests),
        quarantined=sum(manifest.quarantined for manifest in manifests),
        duplicates=Duplicates(
            sum_counts(manifest.duplicates.within for manifest in manifests),
            sum(manifest.duplicates.across for manifest in manifests),
            sum(manifest.duplicates.dropped for manifest in manifests),
        ),
        fingerprint=hashlib.sha256(json.dumps([manifest.fingerprint for manifest in manifests]).encode()).hexdigest(),
        layers=tuple(manifests),
    )


def sum_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Sums counts by name, and sorts the sums by name."""
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
            kinds = " and ".join(describe_spec(spec) for spec in (one, two))
            return f"The feature {name!r} must be as in {first.directory}, but they are {kinds}."
        if one.names != two.names[: len(one.names)]:
            return f"The classes of {name!r} must begin with those in {first.directory}, in their order."
    if other.label_names[: len(first.label_names)] != first.label_names:
        return f"The classes must begin with those of {first.directory}, in their order."
    forms = [[one.image.get(name) for name in ("encoding", "square", "resize_short")] for one in (first, other)]
    if first.image_key is not None and forms[0] != forms[1]:
        return f"The images must have the form of those in {first.directory}."
    return None


def describe_spec(spec: FeatureSpec) -> str:
    """Describes the number and kind of a feature's values in words, such as "a list of int64"."""
    kind = spec.dtype if spec.kind == "values" else spec.tensor or spec.kind
    return f"{'one' if spec.shape == () else 'a list of'} {kind}"


def _join_schemas(manifests: Sequence[Manifest]) -> Schema:
    """Joins the schemas of all manifests. The shape of a feature becomes None if its lists differ in length."""
    for before, manifest in pairwise(manifests):
        if (reason := explain_misfit(before, manifest)) is not None:
            raise FormatError(f"{manifest.directory} does not belong to its dataset: {reason}")
    specs = []
    for spec in manifests[0].schema.features:
        shape = spec.shape if len({manifest.schema[spec.name].shape for manifest in manifests}) == 1 else None
        specs.append(replace(spec, shape=shape, names=manifests[-1].schema[spec.name].names))
    return Schema(tuple(specs))


def _join_splits(name: str, manifests: Sequence[Manifest], folders: Sequence[str], num_classes: int) -> SplitInfo:
    found = [(one.splits[name], folder) for one, folder in zip(manifests, folders, strict=True) if name in one.splits]
    infos = [info for info, _ in found]
    shards = [
        shard._replace(file=f"{folder}/{shard.file}" if folder else shard.file)
        for info, folder in found
        for shard in info.shards
    ]
    stats = merge_stats(ShardStats.from_split_info(info) for info in infos)
    return stats.to_split_info(name, shards, num_classes if any(info.class_counts for info in infos) else 0)
