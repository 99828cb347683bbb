"""The working folder of a job that writes, and the output folder where its result appears.

The final name holds the whole result or nothing, and the same call completes a run that was killed.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from tfpipe.errors import ConfigError, DataError
from tfpipe.storage import file_io, local
from tfpipe.system.file_lock import lock_file

_LOCK, _PLAN = "lock", "plan.json"


@dataclass(frozen=True)
class WorkingFolder:
    """A working folder; each kind of job has a subclass that says where it lies and what an interrupted run keeps."""

    output: str  # without links
    # The text after the output's path in the path of the working folder; in a bucket, its name inside the output.
    ending: ClassVar[str]
    # The folders inside that a run keeps from an earlier run of the same identity.
    folders: ClassVar[tuple[str, ...]] = ()

    @property
    def base(self) -> str:
        """The path of the working folder: beside the output; in a bucket, inside the output."""
        if file_io.is_url(self.output):
            return f"{self.output}/{self.ending.removeprefix('/')}"
        return self.output + self.ending

    def path(self, *names: str) -> str:
        """Returns a path in the working folder."""
        return file_io.join(self.base, *names)

    def result(self, *names: str) -> str:
        """Returns the path of a file of the result before `publish`; in a bucket, the path is final already."""
        return file_io.join(self.output, *names) if file_io.is_url(self.output) else self.path("data", *names)

    @contextlib.contextmanager
    def lock(self, busy: str) -> Iterator[None]:
        """Keeps other processes out of the folder; their error says what this one does: `busy`, as in "repairs into X".

        An empty folder is removed at the end of the block. An object store has no locks.
        """
        if file_io.is_url(self.output):
            yield
            return

        def refuse() -> None:
            raise DataError(f"Another process {busy}; wait until it is done.")

        file_io.refuse_links(os.path.dirname(self.base), [os.path.basename(self.base)])
        is_new = not os.path.exists(self.output)
        with contextlib.ExitStack() as stack:
            with file_io.explain_os_errors(f"write to {self.output}"):
                stack.enter_context(lock_file(self.path(_LOCK), refuse))
            try:
                yield
            finally:
                if file_io.list_names(self.base) == [_LOCK]:
                    file_io.remove_tree(self.base)
                    if is_new:
                        with contextlib.suppress(OSError):  # it was never made, or it is not empty
                            os.rmdir(self.output)

    @contextlib.contextmanager
    def open(self, identity: str, busy: str) -> Iterator[None]:
        """Makes and locks the folder. It is removed if the block ends without an error. A bucket has no locks."""
        with file_io.explain_os_errors(f"write to {self.output}"), self.lock(busy):
            if not file_io.is_url(self.output):
                os.makedirs(self.base, exist_ok=True)
                kept = {_LOCK, _PLAN, *self.folders} if self.read_identity() == identity.encode() else {_LOCK}
                for path in map(self.path, set(os.listdir(self.base)) - kept):
                    shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.remove(path)
                for folder in map(self.path, self.folders):
                    os.makedirs(folder, exist_ok=True)
                    for name in os.listdir(folder):
                        if name.endswith(".tmp"):  # a killed run was writing it
                            os.remove(os.path.join(folder, name))
                self.save_identity(identity.encode())
            elif self.read_identity() != identity.encode():  # the output of a finished job is refused
                check_output(self.output, is_ours=self.ending.__eq__, alone=True)
                file_io.remove_tree(self.base)
                self.save_identity(identity.encode())
            yield
            file_io.remove_tree(self.base)

    def find_report(self, name: str, identity: str) -> dict[str, Any] | None:
        """Returns the report of a finished result, or None if there is none; refuses the report of another job."""
        try:
            document = json.loads(file_io.read_whole(file_io.join(self.output, name)))
        except FileNotFoundError:
            return None
        except ValueError:
            document = None
        if not isinstance(document, dict) or document.get("identity") != identity:
            what = name.removesuffix(".json")
            raise ConfigError(f"{self.output} holds the result of another {what}; choose another name.")
        return document

    def remove(self) -> None:
        """Removes the folder, whose job is done."""
        file_io.remove_tree(self.base)

    def publish(self) -> None:
        """Gives the whole result in `data` its final name, and makes sure that the name is on disk."""
        if file_io.is_url(self.base):
            return
        for folder, _, _ in os.walk(self.path("data")):
            local.sync_folder(folder)  # the files themselves are on disk since they were written
        os.rename(self.path("data"), self.output)
        local.sync_folder(os.path.dirname(self.output))

    def read_identity(self) -> bytes:
        """Returns the text that tells the job of this folder from others; empty without one."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return file_io.read_whole(self.path(_PLAN))
        return b""

    def save_identity(self, identity: bytes) -> None:
        """Saves the text that tells this job from others."""
        file_io.write_file(self.path(_PLAN), identity, makes_folders=True)


def hash_values(*values: object) -> str:
    """Returns the SHA-256 of values as JSON: the identity of a job, or of a dataset, from all that decides it."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def check_output(
    output: str,
    sources: Iterable[str] = (),
    is_ours: Callable[[str], bool] = lambda name: False,
    *,
    alone: bool = False,
) -> str:
    """Checks that a result can appear as the folder `output`, and returns its path without links.

    It must not lie in `sources`, and must be missing, empty, or hold a name that `is_ours` knows; `alone`: no other.
    """
    target = file_io.resolve_links(output)
    for path in sources:
        source = file_io.resolve_links(path)
        if target == source or target.startswith(source + "/"):
            raise ConfigError(
                f"The output must not lie inside the input, got {output} in {path}. Choose another directory."
            )
    if not file_io.is_url(target) and os.path.exists(target) and not os.path.isdir(target):
        raise ConfigError(f"The output must be a directory, but {output} is a file.")
    names = file_io.list_names(target)
    others = [name for name in names if not is_ours(name)]
    if others and (alone or len(others) == len(names)):
        raise ConfigError(f"{output} must be empty or not exist yet, and holds {others[0]}. Choose another directory.")
    file_io.refuse_links(target, filter(is_ours, names))
    return target
