"""Writes a shard as an ArrayRecord file: the same `tf.train.Example` bytes, for random access by Grain and TFDS."""

import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from typing import IO

from tfpipe.format import tfds_metadata
from tfpipe.format.manifest import Manifest

ENDING = "array_record"


def write_array_record(file: IO[bytes], payloads: Iterable[bytes]) -> None:
    """Writes an ArrayRecord file in which each record can be read alone. Its library writes to a local path only."""
    from array_record.python import array_record_module

    with tempfile.NamedTemporaryFile() as made:
        writer = array_record_module.ArrayRecordWriter(made.name, "group_size:1")
        try:
            for payload in payloads:
                writer.write(payload)
        finally:
            writer.close()
        shutil.copyfileobj(made, file)


def describe_for_tfds(manifest: Manifest, splits: Iterable[str]) -> dict[str, bytes]:
    """Returns the files with which TFDS opens the folder; none for foreign records and names that it cannot nest."""
    if manifest.foreign is not None:
        return {}
    part = replace(manifest, splits={name: manifest.splits[name] for name in splits})
    return {name: text.encode() for name, text in tfds_metadata.make_files(part, ENDING).items()}
