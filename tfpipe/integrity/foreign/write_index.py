"""Where `indexing.py` writes, and how: beside the final names first, so that whoever looks finds all of it or nothing.

```
OUTPUT/
  manifest.json                  last of all
  index/train-00003-of-00008.idx
  dali/, vahidk/                 the same for other readers, where that was asked for
  .tfpipe-index/                 while it is made; one that was left behind is replaced
```
"""

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format import file_names, manifest_json
from tfpipe.format.manifest import Manifest
from tfpipe.integrity.foreign.find_files import ForeignFiles
from tfpipe.system import file_io

Export: TypeAlias = Literal["dali", "vahidk"]
"""Readers that want an index for each file: NVIDIA DALI, and the `tfrecord` package of vahidk."""

_SUFFIX = {"dali": ".idx", "vahidk": ".index"}


@dataclass(frozen=True)
class Writing:
    """An output directory while it is filled.

    Attributes:
      directory: As the user named it.
      exports: Readers that get index files of their own.
      old: The manifest that is there already.
    """

    directory: str
    exports: Sequence[Export]
    old: Manifest | None

    @property
    def work(self) -> str:
        """Where everything is written first, on the same disk."""
        return os.path.join(self.directory, file_names.INDEX_WORK_DIR)

    def pending_index(self, shard: str) -> str:
        """Where a worker writes the index of a shard, whose folder is made here."""
        path = os.path.join(self.work, file_names.index_name(shard))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return path

    def root_of(self, files: ForeignFiles) -> str:
        """What the manifest names as the place of the shards."""
        return "." if os.path.realpath(self.directory) == os.path.realpath(files.root) else files.root

    def commit(self, manifest: Manifest) -> None:
        """Gives all of it its final name."""
        text = manifest_json.dumps(manifest).encode()
        final = os.path.join(self.directory, file_names.MANIFEST)
        if self.old is not None and manifest_json.dumps(self.old).encode() != text:
            os.remove(final)  # or it would stand beside indexes that are not its own
        new = {file_names.index_name(name) for name in _shards(manifest)}
        for name in _shards(self.old) if self.old is not None else ():
            if file_names.index_name(name) not in new:
                with contextlib.suppress(FileNotFoundError):
                    os.remove(os.path.join(self.directory, file_names.index_name(name)))
        for name in () if manifest.compression else _shards(manifest):
            pending = os.path.join(self.work, file_names.index_name(name))
            for reader in self.exports:
                self._move(shutil.copyfile(pending, f"{pending}.copy"), f"{reader}/{name}{_SUFFIX[reader]}")
            self._move(pending, file_names.index_name(name))
        with file_io.new_file(final, os.path.join(self.work, file_names.MANIFEST)) as file:
            file.write(text)

    def _move(self, path: str, name: str) -> None:
        target = os.path.join(self.directory, name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.replace(path, target)


@contextlib.contextmanager
def open_output(directory: str, exports: Sequence[Export]) -> Iterator[Writing]:
    """The output directory, made if it is not there; of what fails inside the block nothing is left.

    Raises:
      ConfigError: It holds a manifest of a dataset that tfpipe wrote, or one that is none.
      DataError: It cannot be written.
    """
    if file_io.is_url(directory):
        raise ConfigError(f"The index is written to a local directory, got {directory!r}. Copy it from there.")
    writing = Writing(directory, exports, _old_manifest(directory))
    made = not os.path.isdir(directory)
    try:
        shutil.rmtree(writing.work, ignore_errors=True)
        os.makedirs(writing.work)
        try:
            yield writing
        finally:
            shutil.rmtree(writing.work, ignore_errors=True)
            if made:
                with contextlib.suppress(OSError):
                    os.rmdir(directory)  # only an empty one
    except OSError as error:
        raise DataError(
            f"{error.filename or directory} cannot be written: {error.strerror or error}. Choose another place with "
            "--output."
        ) from error


def _old_manifest(directory: str) -> Manifest | None:
    path = os.path.join(directory, file_names.MANIFEST)
    try:
        old = manifest_json.loads(file_io.read_bytes(path, manifest_json.MAX_BYTES).decode(), path)
    except FileNotFoundError:
        return None
    except (FormatError, UnicodeDecodeError):
        raise ConfigError(
            f"{path} is no manifest that can be replaced. Remove it, or choose another place with --output."
        ) from None
    if old.foreign is None:
        raise ConfigError(
            f"{directory} is a dataset that `tfpipe shard` wrote and is indexed already: "
            f"{file_names.INDEX_DIR}/ is in the "
            f"form that {' and '.join(get_args(Export))} take."
        )
    return replace(old, directory=directory)


def _shards(manifest: Manifest) -> list[str]:
    return [shard.file for split in manifest.splits.values() for shard in split.shards]
