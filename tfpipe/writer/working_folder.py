"""A folder in which a job gathers its result, beside the place where the result appears as a whole.

    with open_working_folder("/data/out.tfpipe-repair", ("rows", "shards"), identity, "repairs into /data/out"):
        ...                                             # what an earlier run of this identity wrote is still there
        publish("/data/out.tfpipe-repair/data", "/data/out")

So the final name holds the whole result or nothing, and the same call completes a run that was killed.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tfpipe.errors import ConfigError, DataError
from tfpipe.system import file_io

_LOCK, _PLAN = "lock", "plan.json"


@dataclass(frozen=True)
class WorkingFolder:
    """The paths in a working folder; a job adds what it keeps there.

    Attributes:
        base: The path of the folder.
    """

    base: str

    def path(self, *parts: str) -> str:
        """Returns a path in the folder."""
        return os.path.join(self.base, *parts)


def check_output(source: str, output: str, marker: str) -> tuple[str, str]:
    """Checks that a result can appear as the folder `output`, and returns both paths without links.

    Args:
        source: The folder that is read.
        output: The folder that is to appear: missing, empty, or the result of an earlier run.
        marker: The name of the file that every result holds.

    Raises:
        ConfigError: One folder lies in the other, or the output holds something else.
    """
    real, target = os.path.realpath(source), os.path.realpath(output)
    if target == real or target.startswith(real + os.sep) or real.startswith(target + os.sep):
        raise ConfigError(f"The output must lie outside of the dataset, got {output} for {source}.")
    is_in_use = os.path.lexists(target) and (not os.path.isdir(target) or bool(os.listdir(target)))
    if is_in_use and not os.path.isfile(os.path.join(target, marker)):
        raise ConfigError(f"{output} must not exist yet; choose another name.")
    return real, target


@contextlib.contextmanager
def open_working_folder(folder: str, parts: Sequence[str], identity: str, busy: str) -> Iterator[None]:
    """Makes and locks a working folder. It is removed if the block ends without an error.

    Args:
        folder: The path of the folder.
        parts: The folders in it that a run goes on with, if the run before had the same identity.
        identity: The text that tells this job from others.
        busy: The work of the process that holds the folder, as in "repairs into /data/out".

    Raises:
        DataError: Another process holds the folder.
        OSError: The folder cannot be written.
    """
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, _LOCK), "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"Another process {busy}; wait for it or choose another name.") from None
        _prepare(folder, parts, identity)
        yield
        shutil.rmtree(folder)


def publish(data: str, output: str) -> None:
    """Gives the whole result its final name, and makes sure that the name is on disk."""
    for folder, _, _ in os.walk(data):
        _sync(folder)  # the files themselves are on disk since they were written
    os.rename(data, output)
    _sync(os.path.dirname(output))


def _prepare(folder: str, parts: Sequence[str], identity: str) -> None:
    """Removes everything from the working folder that does not belong to this job."""
    plan = os.path.join(folder, _PLAN)
    old_identity = ""
    with contextlib.suppress(OSError, UnicodeDecodeError), open(plan, encoding="utf-8") as file:
        old_identity = file.read(1000)
    for name in os.listdir(folder):
        is_kept = name == _LOCK or (old_identity == identity and name in (*parts, _PLAN))
        if not is_kept:
            path = os.path.join(folder, name)
            shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.remove(path)
    for name in parts:
        os.makedirs(os.path.join(folder, name), exist_ok=True)
    file_io.write_file(plan, identity.encode())


def _sync(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
