"""A folder as a bucket: what TensorFlow's client asks for, and how fast it is answered."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.object_stores.folder_store import FolderStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FolderStore]:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a b").write_bytes(bytes(range(100)))
    (tmp_path / "photos" / "c").write_bytes(b"c")
    store = FolderStore(tmp_path)
    yield store
    store.stop()


def get(store: FolderStore, path: str, byte_range: str = "") -> bytes:
    headers = {"Range": byte_range} if byte_range else {}
    with urlopen(Request(store.url + path, headers=headers), timeout=10) as response:
        content: bytes = response.read()
    return content


def test_it_gives_objects_and_parts_of_them(store: FolderStore) -> None:
    assert get(store, "/data/photos%2Fa%20b") == bytes(range(100))
    assert get(store, "/data/photos%2Fa%20b", "bytes=3-5") == bytes([3, 4, 5])
    assert get(store, "/data/photos%2Fa%20b", "bytes=98-67108863") == bytes([98, 99])
    assert [seen.range for seen in store.log] == ["", "bytes=3-5", "bytes=98-67108863"]


def test_it_describes_and_lists_objects(store: FolderStore) -> None:
    described = json.loads(get(store, "/storage/v1/b/data/o/photos%2Fa%20b?fields=size"))
    assert (described["name"], described["size"]) == ("photos/a b", "100")
    listed = json.loads(get(store, "/storage/v1/b/data/o?prefix=photos%2F"))
    assert [item["name"] for item in listed["items"]] == ["photos/a b", "photos/c"]
    listed = json.loads(get(store, "/storage/v1/b/data/o?prefix=photos%2F&maxResults=1"))
    assert [item["name"] for item in listed["items"]] == ["photos/a b"]
    assert json.loads(get(store, "/storage/v1/b/data/o?prefix=other%2F")) == {}


@pytest.mark.parametrize(
    ("path", "byte_range", "status"),
    [
        ("/data/photos%2Fother", "", 404),
        ("/storage/v1/b/data/o/photos", "", 404),
        ("/data/photos%2Fc", "bytes=1-2", 416),
        ("/", "", 501),
    ],
)
def test_it_refuses_what_is_not_there(store: FolderStore, path: str, byte_range: str, status: int) -> None:
    with pytest.raises(HTTPError) as caught:
        get(store, path, byte_range)
    assert caught.value.code == status


def test_it_answers_late_and_sends_slowly(store: FolderStore) -> None:
    begun = time.perf_counter()
    get(store, "/data/photos%2Fa%20b")
    store.harm = lambda _: 0.1
    store.bytes_per_s = 1000
    late = time.perf_counter()
    get(store, "/data/photos%2Fa%20b")
    assert time.perf_counter() - late >= 0.2 > late - begun
