"""Writes the entry of a layer, by one process at a time.

```
with open_layers("/data/flowers", "hides records of") as history:
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
from tfpipe.dataset.parts import list_fingerprints
from tfpipe.errors import ConfigError
from tfpipe.format import file_names
from tfpipe.format.layer import Kind, Layer, layer_file
from tfpipe.storage import file_io, local
from tfpipe.writer.shard_folder import ShardFolder


class LayerFolder(ShardFolder):
    """The working folder beside a dataset, whose lock keeps two changes of its layers apart.

    ```
    data/     the dataset as one layer, while it is made; after the exchange what it was before
    old/      what it was before, where the system cannot exchange two folders
    ```
    """

    ending = ".tfpipe-layers"

    def exchange(self) -> None:
        """Puts the folder `data` in the place of the dataset, which is removed then."""
        local.take_place(self.path("data"), self.output, self.path("old"))
        local.sync_folder(os.path.dirname(self.output))
        self.clear()

    def finish(self) -> None:
        """Completes the exchange that a killed process began between two names."""
        if os.path.exists(self.path("old")) and not os.path.exists(self.output):
            os.rename(self.path("data"), self.output)
            local.sync_folder(os.path.dirname(self.output))

    def clear(self) -> None:
        """Removes everything but the lock. Of a dataset the manifest goes first, so that no half of one is left."""
        for name in ("data", "old"):
            file_io.remove(self.path(name, file_names.MANIFEST))
        for name in ("data", "old", *self.parts):
            file_io.remove_tree(self.path(name))


@contextlib.contextmanager
def open_layers(dataset: str | os.PathLike[str], busy: str) -> Iterator[History]:
    """Yields the layers of a dataset, which no other process changes in the block. A bucket has no locks.

    Args:
        dataset: The dataset, without a view.
        busy: The work of this process, as in "hides records of".

    Raises:
        ConfigError: It is a view or a layer, or describes files of another program.
        DataError: There is no dataset, or another process changes its layers.
        FormatError: A layer is damaged.
    """
    directory, view = split_address(os.fspath(dataset).removeprefix("file://"))
    if view:
        raise ConfigError(f"Layers belong to a dataset and not to {dataset}. Leave the @ out.")
    directory = file_io.resolve_links(directory)
    folder = LayerFolder(directory)
    if not file_io.is_url(directory) and os.path.exists(folder.path("old")):
        with folder.lock(f"{busy} {dataset}"):
            folder.finish()
            folder.clear()
    load_history(directory)  # which says what is wrong with the path, before a folder is made beside it
    with file_io.explain_os_errors(f"write to {directory}"), folder.lock(f"{busy} {dataset}"):
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
