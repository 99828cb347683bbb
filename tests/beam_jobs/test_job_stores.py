"""Local files, which appear whole or not at all, and URLs."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from beam_jobs import job_stores
from tests.beam_jobs.datasets import make_dataset, read_tree
from tests.beam_jobs.images import make_jpeg, make_photos, make_tar, write_files, write_tar
from tfpipe.storage import file_io


@pytest.mark.parametrize(
    ("base", "parts", "joined"),
    [
        ("/a", ("b", "c"), "/a/b/c"),
        ("", ("b",), "b"),
        ("/a", ("/b",), "/b"),
        ("/a", ("s3://x/y",), "s3://x/y"),
        ("s3://x", ("y", "z"), "s3://x/y/z"),
        ("s3://x", ("/abs",), "/abs"),
    ],
)
def test_parts_are_joined_below_paths_and_urls(base: str, parts: tuple[str, ...], joined: str) -> None:
    assert file_io.join(base, *parts) == joined


def test_a_path_becomes_absolute_and_a_url_stays(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert file_io.make_absolute("a/../b/") == f"{tmp_path}/b"
    assert file_io.make_absolute("s3://x/y/") == "s3://x/y"


def test_an_error_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def fail() -> None:
        with file_io.create(str(path), str(tmp_path / "tmp" / "a"), makes_folders=True) as out:
            out.write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_bytes() == b"old"
    assert [*(tmp_path / "tmp").iterdir()] == []


def test_sizes_are_those_of_regular_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"123")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "gone").symlink_to("nowhere")
    names = ("a", "pipe", "link", "gone", ".", "none")
    assert file_io.get_sizes([str(tmp_path / name) for name in names]) == [3, -1, 3, -1, -1, -1]
    assert [file_io.exists(str(tmp_path / name)) for name in names] == [True, True, True, False, True, False]


class TestObjectStore:
    """Every function by URL, over a file system of Beam that keeps objects in a dict."""

    @pytest.fixture(autouse=True)
    def store(self) -> Any:
        import io

        from apache_beam.io.filesystem import FileMetadata, FileSystem

        job_stores.configure(())
        objects: dict[str, bytes] = {}

        class Closing(io.BytesIO):
            def __init__(self, path: str) -> None:
                super().__init__()
                self.path = path

            def close(self) -> None:
                if not self.closed:
                    objects[self.path] = self.getvalue()
                super().close()

        class Memory(FileSystem):  # type: ignore[misc]
            @classmethod
            def scheme(cls) -> str:
                return "memtest"

            def join(self, basepath: str, *paths: str) -> str:
                return "/".join([basepath, *paths])

            def split(self, path: str) -> Any:
                return path.rsplit("/", 1)

            def mkdirs(self, path: str) -> None:
                raise AssertionError("an object store has no folders")

            def has_dirs(self) -> bool:
                return False

            def _list(self, dir_or_prefix: str) -> Any:
                for path in sorted(objects):
                    if path.startswith(dir_or_prefix):
                        yield FileMetadata(path, len(objects[path]), 0.0)

            def create(self, path: str, mime_type: Any = None, compression_type: Any = None) -> Any:
                assert compression_type == "uncompressed"
                return Closing(path)

            def open(self, path: str, mime_type: Any = None, compression_type: Any = None) -> Any:
                assert compression_type == "uncompressed"
                if path not in objects:
                    raise FileNotFoundError(errno.ENOENT, "no such object", path)
                return io.BytesIO(objects[path])

            def copy(self, sources: Any, targets: Any) -> None:
                raise NotImplementedError

            def rename(self, sources: list[str], targets: list[str]) -> None:
                for source, target in zip(sources, targets, strict=True):
                    objects[target] = objects.pop(source)

            def exists(self, path: str) -> bool:
                return path in objects

            def size(self, path: str) -> int:
                return len(objects[path])

            def last_updated(self, path: str) -> float:
                return 0.0

            def checksum(self, path: str) -> str:
                return ""

            def metadata(self, path: str) -> Any:
                return FileMetadata(path, len(objects[path]), 0.0)

            def delete(self, paths: list[str]) -> None:
                for path in paths:
                    for key in [key for key in objects if key == path or (path.endswith("/") and key.startswith(path))]:
                        del objects[key]

        yield objects
        # Beam finds file systems among the living subclasses.
        Memory.scheme = classmethod(lambda cls: "memtest-gone")  # type: ignore[method-assign,assignment]

    def test_objects(self, store: dict[str, bytes]) -> None:
        file_io.write_file("memtest://b/d/a", b"0123", makes_folders=True)
        file_io.write_file("memtest://b/d/x/c", b"45", makes_folders=True)
        assert store == {"memtest://b/d/a": b"0123", "memtest://b/d/x/c": b"45"}
        assert file_io.read_whole("memtest://b/d/a") == b"0123"
        assert file_io.read_range("memtest://b/d/a", 1, 2) == b"12"
        assert file_io.get_size("memtest://b/d/a") == 4
        assert file_io.get_size("memtest://b/d/none") == -1
        assert file_io.get_sizes(["memtest://b/d/a", "memtest://b/none", "memtest://b/d/x/c"]) == [4, -1, 2]
        assert [*file_io.list_tree("memtest://b/d/")] == [("a", 4), ("x/c", 2)]
        assert file_io.list_names("memtest://b/d") == ["a", "x"]
        file_io.rename("memtest://b/d/a", "memtest://b/d/z")
        assert file_io.exists("memtest://b/d/z")
        file_io.remove("memtest://b/d/z")
        file_io.remove("memtest://b/d/z")
        file_io.remove_tree("memtest://b/d")
        file_io.remove_tree("memtest://b/d")
        assert store == {}

    def test_a_job_from_and_to_an_object_store(self, store: dict[str, bytes], tmp_path: Path) -> None:
        photos = make_photos({"cat": 3, "dog": 2})
        store.update({f"memtest://in/photos/{name}": data for name, data in photos.items()})
        store["memtest://in/photos/cat.tar"] = make_tar({"tarred.jpg": make_jpeg(77)})
        write_files(tmp_path / "photos", photos)
        write_tar(tmp_path / "photos" / "cat.tar", {"tarred.jpg": make_jpeg(77)})
        for num_shards in (4, 2):  # the second one replaces the first
            make_dataset("memtest://in/photos", "memtest://out/ds", num_shards=num_shards, overwrite=num_shards == 2)
            make_dataset(tmp_path / "photos", tmp_path / f"{num_shards}/ds", num_shards=num_shards)
            remote = {name.removeprefix("memtest://out/ds/"): data for name, data in store.items() if "//out" in name}
            assert remote == read_tree(tmp_path / f"{num_shards}/ds")
