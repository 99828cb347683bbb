"""Changes a dataset, by one process at a time: the lock of all changes, and the entry of a layer.

```
with open_layers("/data/flowers") as history:
    write_layer(history, Layer(...))
```
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import datetime, timezone

from tfpipe._version import __version__
from tfpipe.dataset.history import History, load_history
from tfpipe.dataset.load import split_address
from tfpipe.dataset.parts import check_links, list_fingerprints
from tfpipe.errors import ConfigError
from tfpipe.format import file_names
from tfpipe.format.layer import Kind, Layer, layer_file
from tfpipe.storage import file_io, local
from tfpipe.writer.working_folder import WorkingFolder


class _DatasetFolder(WorkingFolder):
    """The working folder in a dataset, whose lock keeps two changes of its parts apart."""

    ending = f"/{file_names.WORK_DIR}"  # as of `tfpipe shard`, which may replace the dataset


def lock_changes(directory: str) -> contextlib.AbstractContextManager[None]:
    """Keeps other processes from changing a finished dataset in the block. A bucket has no locks.

    Raises:
        DataError: Another process changes it, it cannot be written, or a link in it leads elsewhere.
    """
    check_links(directory)
    return _DatasetFolder(file_io.resolve_links(directory)).lock(f"changes {directory}")


@contextlib.contextmanager
def open_layers(dataset: str | os.PathLike[str]) -> Iterator[History]:
    """Yields the layers of a dataset, which no other process changes in the block. A bucket has no locks.

    Args:
        dataset: The dataset, without a view.

    Raises:
        ConfigError: It is a view or a layer, or describes files of another program.
        DataError: There is no dataset, or as for `lock_changes`.
        FormatError: A layer is damaged.
    """
    directory, view = split_address(os.fspath(dataset).removeprefix("file://"))
    if view:
        raise ConfigError(f"Layers belong to a dataset and not to {dataset}. Leave the @ out.")
    load_history(directory)  # which says what is wrong with the path, before a folder is made in it
    with file_io.explain_os_errors(f"write to {directory}"), lock_changes(directory):
        directory = file_io.resolve_links(directory)
        history = load_history(directory)
        if history.base.foreign is not None:
            raise ConfigError(
                f"{dataset} describes files of others, which have no layers. Write it anew by `tfpipe reshard`."
            )
        if history.base.stands_on:
            raise ConfigError(f"{dataset} is a column, which has no layers. Give its dataset.")
        yield history


def start_layer(history: History, kind: Kind) -> Layer:
    """Returns the entry of a new layer, to which the change itself is still to be added."""
    when = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    below = list_fingerprints(history.join_shards(history.newest))
    return Layer(history.newest + 1, kind, when, __version__, below)


def write_layer(history: History, layer: Layer) -> None:
    """Writes an entry. From then on it is the newest state of the dataset.

    Raises:
        DataError: It cannot be written.
    """
    path = file_io.join(history.base.directory, layer_file(layer.number))
    with file_io.explain_os_errors(f"write {path}"):
        file_io.write_file(path, layer.encode(), makes_folders=True)
        if not file_io.is_url(path):
            local.sync_folder(os.path.dirname(path))
            local.sync_folder(history.base.directory)
