"""Datasets on Hugging Face: `hf://datasets/OWNER/NAME[@REVISION][/PATH]`, by the file system of `huggingface_hub`.

Each written file is a commit, so a job keeps its working files, in folders like `.tfpipe`, on this machine.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from tfpipe.errors import DataError
from tfpipe.storage import local
from tfpipe.storage.failures import shorten
from tfpipe.storage.file_store import FileStore
from tfpipe.system.extras import importing

SCHEME = "hf"
_WORKING = "/.tfpipe"
_UNFINISHED = Path("~/.cache/tfpipe/unfinished")
_CLIENTS = ("huggingface_hub", "httpx2", "httpx", "requests")  # whose errors have no common class
_OF_THE_SITE = (".gitattributes", "README.md")  # every new repository has these files


class HuggingFaceStore(FileStore):
    """A `FileStore` for datasets on Hugging Face; `FileStore` describes the methods."""

    def __init__(self, url: str) -> None:
        if not url.startswith("hf://datasets/") or url.count("/") < 4:
            raise DataError(f"A dataset on Hugging Face is named hf://datasets/OWNER/NAME, got {url}.")
        with importing("hf://", "huggingface_hub", "tfpipe[hf]"):
            import huggingface_hub
        self._hub: Any = huggingface_hub
        self._files: Any = huggingface_hub.HfFileSystem(skip_instance_cache=True)

    def check(self, url: str) -> None:
        """Implements `FileStore.check`."""
        try:
            with self._explain(url):
                self._files.resolve_path(url)
        except FileNotFoundError as error:
            raise DataError(
                f"There is no dataset {url}, or these credentials may not see it. Check the name, create it on "
                "huggingface.co, or log in with `hf auth login`."
            ) from error

    def open(self, url: str) -> BinaryIO:
        """Implements `FileStore.open`, without reading ahead."""
        if path := _find_local(url):
            return local.open_file(path)
        with self._explain(url):
            return cast(BinaryIO, self._files.open(url, "rb", cache_type="none"))

    def read(self, url: str, offset: int = 0, size: int | None = None) -> bytes:
        """Implements `FileStore.read`."""
        with self._explain(url):
            return super().read(url, offset, size)

    @contextlib.contextmanager
    def create(self, url: str) -> Iterator[IO[bytes]]:
        """Opens a new file that is sent, as one commit, when the block ends without an error."""
        if path := _find_local(url):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with local.new_file(path) as file:
                yield file
            return
        with tempfile.TemporaryFile() as made:
            yield cast(IO[bytes], made)
            made.seek(0)
            self._commit(url, [self._hub.CommitOperationAdd(self._resolve(url).path_in_repo, made)], "Add")

    def size(self, url: str) -> int:
        """Implements `FileStore.size`."""
        if path := _find_local(url):
            return local.get_file_size(path)
        entry = self._look_up(url)
        return -1 if entry is None or entry["type"] != "file" else int(entry["size"])

    def version(self, url: str) -> str | None:
        """Implements `FileStore.version`."""
        entry = None if _find_local(url) else self._look_up(url)
        return None if entry is None else str(entry["blob_id"])

    def list(self, folder: str, recursive: bool = True) -> Iterator[tuple[str, int]]:
        """Implements `FileStore.list`, without the files that every repository has."""
        base = folder.rstrip("/")
        if path := _find_local(base):
            for file in sorted(Path(path).rglob("*") if recursive else Path(path).glob("*")):
                name = f"{base}/{file.relative_to(path).as_posix()}"
                if not file.is_dir():
                    yield name, file.stat().st_size
                elif not recursive:
                    yield f"{name}/", -1
            return
        try:
            depth = None if recursive else 1
            with self._explain(folder):
                found = self._files.find(base, maxdepth=depth, withdirs=True, detail=True, refresh=True)
        except FileNotFoundError:
            return
        for entry in found.values():
            name = f"hf://{entry['name']}"
            if entry["type"] == "file" and name.rpartition("/")[2] not in _OF_THE_SITE and name != base:
                yield name, int(entry["size"])
            elif entry["type"] != "file" and not recursive and name != base:
                yield f"{name}/", -1

    def rename(self, source: str, target: str) -> None:
        """Implements `FileStore.rename`."""
        with self.open(source) as file, self.create(target) as new:
            while data := file.read(local.HASH_CHUNK_BYTES):
                new.write(data)
        self.delete([source])

    def delete(self, urls: Iterable[str]) -> None:
        """Implements `FileStore.delete`."""
        remote = []
        for url in urls:
            if path := _find_local(url):
                Path(path).unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # it may hold other files
                    os.removedirs(os.path.dirname(path))
            elif self.size(url) >= 0:
                remote.append(url)
        if remote:
            paths = [self._resolve(url).path_in_repo for url in remote]
            self._commit(remote[0], [self._hub.CommitOperationDelete(path) for path in paths], "Remove")

    def _look_up(self, url: str) -> dict[str, Any] | None:
        with contextlib.suppress(FileNotFoundError), self._explain(url):
            return cast(dict[str, Any], self._files.info(url, refresh=True))
        return None

    def _resolve(self, url: str) -> Any:
        with self._explain(url):
            return self._files.resolve_path(url)

    def _commit(self, url: str, operations: Sequence[Any], verb: str) -> None:
        resolved = self._resolve(url)
        with self._explain(url):
            self._hub.HfApi().create_commit(
                resolved.repo_id,
                operations,
                repo_type=resolved.repo_type,
                revision=resolved.revision,
                commit_message=f"{verb} {operations[0].path_in_repo}",
            )
        self._files.invalidate_cache()

    @contextlib.contextmanager
    def _explain(self, url: str) -> Iterator[None]:
        """Turns errors of the HTTP clients into a `DataError`. A missing file raises `FileNotFoundError` already."""
        try:
            yield
        except FileNotFoundError:
            raise
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in _CLIENTS:
                raise
            raise DataError(
                f"{url} cannot be reached: {shorten(str(error))}. Check the name and the network, or log in with "
                "`hf auth login`."
            ) from error


def _find_local(url: str) -> str | None:
    """Returns the local path of a file in a working folder; None for a file of the repository."""
    return str(_UNFINISHED.expanduser() / url.removeprefix("hf://")) if _WORKING in url else None
