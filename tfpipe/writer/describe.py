"""The files of a dataset of records besides its shards and their indexes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from tfpipe._version import __version__
from tfpipe.format import file_names, manifest_json, tfds_metadata
from tfpipe.format.manifest import Manifest, SplitInfo
from tfpipe.writer.fields import RecordForm


def make_manifest(name: str, form: RecordForm, splits: Mapping[str, SplitInfo]) -> Manifest:
    """Makes the manifest of a dataset."""
    facts = [split.fingerprint for split in splits.values()]
    return Manifest(
        name=name or "dataset",
        splits=splits,
        label_names=form.label_names,
        schema=form.schema,
        image={} if form.image_form is None else form.image_form.to_json(),
        fingerprint=hashlib.sha256(json.dumps(facts).encode()).hexdigest(),
        tool_version=__version__,
    )


def make_dataset_files(manifest: Manifest) -> dict[str, bytes]:
    """Returns the content of each file by its name, the manifest last, in the order in which they must be written."""
    files = {name: text.encode() for name, text in tfds_metadata.make_files(manifest).items()}
    return files | {file_names.MANIFEST: manifest_json.dumps(manifest).encode()}
