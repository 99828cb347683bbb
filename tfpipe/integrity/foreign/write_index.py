"""The output directory of `index.py`. Everything is known before anything is written, and the manifest comes last.

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
from collections.abc import Iterator, Mapping, Sequence
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
        old: The manifest that the directory held before; None without one.
    """

    directory: str
    old: Manifest | None

    @property
    def work(self) -> str:
        """The folder in which files are written first, on the same disk."""
        return file_io.join(self.directory, file_names.INDEX_WORK_DIR)

    def get_root(self, files: ForeignFiles) -> str:
        """Returns the directory of the shards, as the manifest names it."""
        return "." if file_io.resolve_links(self.directory) == file_io.resolve_links(files.root) else files.root

    def commit(self, manifest: Manifest, indexes: Mapping[str, bytes], exports: Sequence[Export]) -> None:
        """Writes the indexes, by the names of their shards, and the manifest.

        Args:
            manifest: The manifest.
            indexes: The index of each shard that is not compressed.
            exports: The other readers for which index files are written.
        """
        text = manifest_json.dumps(manifest).encode()
        if self.old is not None:
            if manifest_json.dumps(self.old).encode() != text:  # else it would stand beside new indexes after a crash
                file_io.remove(file_io.join(self.directory, file_names.MANIFEST))
            names = {shard.file for split in self.old.splits.values() for shard in split.shards}
            for name in names - indexes.keys():
                file_io.remove(file_io.join(self.directory, file_names.index_name(name)))
        for name, index in indexes.items():
            for reader in exports:
                self._write(f"{reader}/{name}{_SUFFIX[reader]}", index)
            self._write(file_names.index_name(name), index)
        self._write(file_names.MANIFEST, text)

    def _write(self, name: str, data: bytes) -> None:
        path = file_io.join(self.directory, name)
        file_io.make_folder(path.rpartition("/")[0])
        file_io.write_file(path, data, file_io.join(self.work, "file"))


@contextlib.contextmanager
def open_output(directory: str) -> Iterator[IndexOutput]:
    """Opens the output directory and makes it if needed. If the block fails, nothing of its work is left.

    Raises:
        ConfigError: The directory holds a dataset that tfpipe wrote, or a file that is not a valid manifest.
        DataError: The directory cannot be written, or a link in it leads elsewhere.
    """
    file_io.refuse_links(directory, (file_names.INDEX_WORK_DIR, file_names.INDEX_DIR, *get_args(Export)))
    output = IndexOutput(directory, _old_manifest(directory))
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
