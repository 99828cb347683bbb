"""A folder in which a job gathers its result, beside the place where the result appears as a whole.

    folder = LocalShardFolder("/data/out.tfpipe-repair")
    with folder.open(identity, "repairs into /data/out"):
        ...                                             # what an earlier run of this identity wrote is still there
        folder.publish("/data/out")

So the final name holds the whole result or nothing, and the same call completes a run that was killed.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from tfpipe.errors import ConfigError, DataError
from tfpipe.storage import file_io

_LOCK, _PLAN = "lock", "plan.json"


@dataclass(frozen=True)
class WorkingFolder:
    """A working folder; each kind of job says what it keeps there.

    Attributes:
        base: The path of the folder.
    """

    base: str
    # The folders in it that a run goes on with, if the run before had the same identity.
    parts: ClassVar[tuple[str, ...]] = ()

    def path(self, *parts: str) -> str:
        """Returns a path in the folder."""
        return file_io.join(self.base, *parts)

    def result(self, *parts: str) -> str:
        """Returns a path in the result until it is published, in a bucket its final one: no folder is renamed there."""
        if file_io.is_url(self.base):
            return file_io.join(self.base.rpartition("/")[0], *parts)
        return self.path("data", *parts)

    @contextlib.contextmanager
    def open(self, identity: str, busy: str) -> Iterator[None]:
        """Makes and locks the folder. It is removed if the block ends without an error. A bucket has no locks.

        Args:
            identity: The text that tells this job from others.
            busy: The work of the process that holds the folder, as in "repairs into /data/out".

        Raises:
            ConfigError: The output in a bucket holds what another job left unfinished.
            DataError: Another process holds the folder.
            OSError: The folder cannot be written.
        """
        if file_io.is_url(self.base):
            self._prepare_bucket(identity)
            yield
            file_io.remove_tree(self.base)
            return
        os.makedirs(self.base, exist_ok=True)
        with open(self.path(_LOCK), "wb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DataError(f"Another process {busy}; wait for it or choose another name.") from None
            self._prepare(identity)
            yield
            shutil.rmtree(self.base)

    def publish(self, output: str) -> None:
        """Gives the whole result in `data` its final name, and makes sure that the name is on disk."""
        if file_io.is_url(self.base):
            return
        for folder, _, _ in os.walk(self.path("data")):
            _sync(folder)  # the files themselves are on disk since they were written
        os.rename(self.path("data"), output)
        _sync(os.path.dirname(output))

    def _prepare_bucket(self, identity: str) -> None:
        """Removes everything from the folder if it belongs to another job, and refuses what that job has finished."""
        old_identity = b""
        with contextlib.suppress(FileNotFoundError):
            old_identity = file_io.read_whole(self.path(_PLAN))
        if old_identity != identity.encode():
            output, _, own = self.base.rpartition("/")
            if others := [name for name in file_io.list_names(output) if name != own]:
                raise ConfigError(f"{output} must not exist yet, and holds {others[0]}; choose another name.")
            file_io.remove_tree(self.base)
            file_io.write_file(self.path(_PLAN), identity.encode())

    def _prepare(self, identity: str) -> None:
        """Removes everything from the folder that does not belong to this job."""
        old_identity = ""
        with contextlib.suppress(OSError, UnicodeDecodeError), open(self.path(_PLAN), encoding="utf-8") as file:
            old_identity = file.read(1000)
        kept = {_LOCK, _PLAN, *self.parts} if old_identity == identity else {_LOCK}
        for name in set(os.listdir(self.base)) - kept:
            path = self.path(name)
            shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.remove(path)
        for name in self.parts:
            os.makedirs(self.path(name), exist_ok=True)
        file_io.write_file(self.path(_PLAN), identity.encode())


def get_base(output: str, ending: str) -> str:
    """Returns the path of the working folder: beside the output, in a bucket in it."""
    return file_io.join(output, ending) if file_io.is_url(output) else output + ending


def check_output(source: str, output: str, marker: str) -> tuple[str, str]:
    """Checks that a result can appear as the folder `output`, and returns both paths without links.

    Args:
        source: The folder that is read.
        output: The folder that is to appear: missing, empty, or the result of an earlier run.
        marker: The name of the file that every result holds.

    Raises:
        ConfigError: One folder lies in the other, or the output holds something else.
    """
    real, target = file_io.resolve_links(source), file_io.resolve_links(output)
    if target == real or target.startswith(real + os.sep) or real.startswith(target + os.sep):
        raise ConfigError(f"The output must lie outside of the dataset, got {output} for {source}.")
    if file_io.is_url(target):  # `WorkingFolder.open` looks at what it holds
        return real, target
    is_in_use = os.path.lexists(target) and (not os.path.isdir(target) or bool(os.listdir(target)))
    if is_in_use and not os.path.isfile(os.path.join(target, marker)):
        raise ConfigError(f"{output} must not exist yet; choose another name.")
    return real, target


def _sync(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
