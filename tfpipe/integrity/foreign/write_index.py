"""The output directory of `index.py`. Files are written under other names first, so all of them appear or none.

```
OUTPUT/
  manifest.json                  written last
  index/train-00003-of-00008.idx
  dali/, vahidk/                 the same indexes for other readers, if requested
  .tfpipe-index/                 exists during the run; one that a killed run left behind is replaced
```
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format import file_names, manifest_json
from tfpipe.format.manifest import Manifest
from tfpipe.integrity.foreign.find_files import ForeignFiles
from tfpipe.storage import file_io

Export: TypeAlias = Literal["dali", "vahidk"]
"""The readers that need an index for each file: NVIDIA DALI, and the `tfrecord` package of vahidk."""

_SUFFIX = {"dali": ".idx", "vahidk": ".index"}


@dataclass(frozen=True)
class IndexOutput:
    """An output directory that is being filled.

    Attributes:
        directory: The directory, as the user named it.
        exports: The other readers for which index files are written.
        old: The manifest that the directory held before; None without one.
    """

    directory: str
    exports: Sequence[Export]
    old: Manifest | None

    @property
    def work(self) -> str:
        """The folder in which everything is written first, on the same disk."""
        return file_io.join(self.directory, file_names.INDEX_WORK_DIR)

    def pending_index(self, shard: str) -> str:
        """Returns the path where a worker writes the index of a shard, and makes its folder."""
        path = file_io.join(self.work, file_names.index_name(shard))
        file_io.make_folder(path.rpartition("/")[0])
        return path

    def get_root(self, files: ForeignFiles) -> str:
        """Returns the directory of the shards, as the manifest names it."""
        return "." if file_io.resolve_links(self.directory) == file_io.resolve_links(files.root) else files.root

    def commit(self, manifest: Manifest) -> None:
        """Gives all files their final names."""
        text = manifest_json.dumps(manifest).encode()
        final = file_io.join(self.directory, file_names.MANIFEST)
        if self.old is not None and manifest_json.dumps(self.old).encode() != text:
            file_io.remove(final)  # otherwise the old manifest would stand beside the new indexes after a crash
        new = {file_names.index_name(name) for name in _shards(manifest)}
        for name in _shards(self.old) if self.old is not None else ():
            if file_names.index_name(name) not in new:
                file_io.remove(file_io.join(self.directory, file_names.index_name(name)))
        for name in () if manifest.compression else _shards(manifest):
            pending = file_io.join(self.work, file_names.index_name(name))
            for reader in self.exports:
                copy = f"{pending}.copy"
                file_io.write_file(copy, file_io.read_whole(pending))
                file_io.rename(copy, file_io.join(self.directory, reader, f"{name}{_SUFFIX[reader]}"))
            file_io.rename(pending, file_io.join(self.directory, file_names.index_name(name)))
        file_io.write_file(final, text, file_io.join(self.work, file_names.MANIFEST))


@contextlib.contextmanager
def open_output(directory: str, exports: Sequence[Export]) -> Iterator[IndexOutput]:
    """Opens the output directory and makes it if needed. If the block fails, nothing of its work is left.

    Raises:
        ConfigError: The directory holds a dataset that tfpipe wrote, or a file that is not a valid manifest.
        DataError: The directory cannot be written.
    """
    output = IndexOutput(directory, exports, _old_manifest(directory))
    is_new = not file_io.is_url(directory) and not os.path.isdir(directory)
    try:
        file_io.remove_tree(output.work)
        file_io.make_folder(output.work)
        try:
            yield output
        finally:
            file_io.remove_tree(output.work)
            if is_new:
                with contextlib.suppress(OSError):
                    os.rmdir(directory)  # only an empty one
    except OSError as error:
        raise DataError(
            f"{error.filename or directory} cannot be written: {error.strerror or error}. Choose another place with "
            "`output`."
        ) from error


def _old_manifest(directory: str) -> Manifest | None:
    path = file_io.join(directory, file_names.MANIFEST)
    try:
        old = manifest_json.loads(file_io.read_bytes(path, manifest_json.MAX_BYTES).decode(), path)
    except FileNotFoundError:
        return None
    except (FormatError, UnicodeDecodeError):
        raise ConfigError(
            f"{path} is not a manifest that can be replaced. Remove it, or choose another place with `output`."
        ) from None
    if old.foreign is None:
        raise ConfigError(
            f"{directory} is a dataset that `tfpipe shard` wrote, and it has an index already: {file_names.INDEX_DIR}/ "
            f"has the form that {' and '.join(get_args(Export))} read."
        )
    return replace(old, directory=directory)


def _shards(manifest: Manifest) -> list[str]:
    return [shard.file for split in manifest.splits.values() for shard in split.shards]
