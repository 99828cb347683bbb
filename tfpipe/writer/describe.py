"""The files of a dataset of records besides its shards and their indexes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from tfpipe._version import __version__
from tfpipe.format import file_names, manifest_json, tfds_metadata
from tfpipe.format.manifest import Manifest, ShardInfo
from tfpipe.format.shard_stats import ShardStats
from tfpipe.writer.fields import RecordForm


def make_manifest(
    name: str, form: RecordForm, splits: Mapping[str, tuple[Sequence[ShardInfo], ShardStats]]
) -> Manifest:
    """Makes the manifest of a dataset.

    Args:
        name: The name of the dataset.
        form: The form of its records.
        splits: The shards of each split, in order, and the counts over all of them.
    """
    labels = form.label_names
    infos = {split: stats.to_split_info(split, shards, len(labels)) for split, (shards, stats) in splits.items()}
    facts = [split.fingerprint for split in infos.values()]
    return Manifest(
        name=name or "dataset",
        splits=infos,
        label_names=labels,
        schema=form.schema,
        image={} if form.image_form is None else form.image_form.to_json(),
        fingerprint=hashlib.sha256(json.dumps(facts).encode()).hexdigest(),
        tool_version=__version__,
    )


def make_dataset_files(manifest: Manifest) -> dict[str, bytes]:
    """Returns the content of each file by its name, the manifest last, in the order in which they must be written."""
    files = {name: text.encode() for name, text in tfds_metadata.make_files(manifest).items()}
    return files | {file_names.MANIFEST: manifest_json.dumps(manifest).encode()}
