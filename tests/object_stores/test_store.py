"""The stores of Google, Amazon, Azure and Hugging Face, against servers on loopback that speak as they do."""

import base64
import gc
import hashlib
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

from beam_jobs import job_stores
from tests.beam_jobs.datasets import make_dataset, read_tree
from tests.beam_jobs.images import make_jpeg, make_photos, make_tar, write_files
from tests.beam_jobs.inputs.parquet_files import write_parquet
from tests.object_stores.conftest import Amazon, Cloud, Google
from tests.object_stores.hub_server import HubServer
from tests.object_stores.proxy import Answer, Server, answer_object, answer_xml
from tests.refusals import refusal
from tfpipe import load_manifest
from tfpipe.errors import DataError, MissingDependencyError
from tfpipe.export.run import ExportConfig, export
from tfpipe.integrity.verify import VerifyConfig, verify
from tfpipe.storage import buckets, file_io, hugging_face, stores
from tfpipe.storage import store as object_store
from tfpipe.storage.buckets import StoreOptions
from tfpipe.storage.failures import RetryConfig
from tfpipe.storage.file_store import split_url
from tfpipe.storage.store import Store

ACCOUNT = "devstoreaccount1"
_DATE = "Thu, 01 Jan 2026 00:00:00 GMT"
_ENTRY = (
    "<Blob><Name>{key}</Name><Properties><Last-Modified>{date}</Last-Modified><Content-Length>{size}</Content-Length>"
    "<Content-Type>application/octet-stream</Content-Type><Etag>1</Etag></Properties></Blob>"
)
_DELETED = re.compile(rb"DELETE (\S+) HTTP/1.1")


class AzureServer(Server):
    """A server with the container `az://data`."""

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, bytes] = {}
        self._blocks: dict[str, bytes] = {}

    def ask(self, command: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        parts = urlsplit(path)
        _, container, name = (*unquote(parts.path).lstrip("/").split("/", 2), "")[:3]
        query = {key: value[0] for key, value in parse_qs(parts.query).items()}
        if container != "data":
            return Answer(404, [], b"<Error><Code>ContainerNotFound</Code></Error>")
        if query.get("comp") == "list":
            return self._list(query.get("prefix", ""), query.get("delimiter"))
        if query.get("comp") == "batch":
            return self._delete(body)
        if command == "PUT":
            return self._write(name, query, headers, body)
        if name not in self.objects:
            return Answer(404, [], b"<Error><Code>BlobNotFound</Code></Error>")
        data = self.objects[name]
        described = [("Last-Modified", _DATE), ("ETag", f'"{hashlib.md5(data).hexdigest()}"')]
        return answer_object(len(data), lambda begin, end: data[begin:end], headers, described)

    def _list(self, prefix: str, delimiter: str | None) -> Answer:
        found = {name: data for name, data in sorted(self.objects.items()) if name.startswith(prefix)}
        inside = {name for name in found if delimiter and delimiter in name[len(prefix) :]}
        folders = sorted({f"{prefix}{name[len(prefix) :].split('/')[0]}/" for name in inside})
        blobs = "".join(
            _ENTRY.format(key=escape(name), size=len(data), date=_DATE)
            for name, data in found.items()
            if name not in inside
        )
        blobs += "".join(f"<BlobPrefix><Name>{escape(name)}</Name></BlobPrefix>" for name in folders)
        return answer_xml(f"<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker/></EnumerationResults>")

    def _delete(self, body: bytes) -> Answer:
        paths = [unquote(match.decode()) for match in _DELETED.findall(body)]
        answers = []
        for number, path in enumerate(paths):
            known = self.objects.pop(path.split("/data/", 1)[1], None) is not None
            status = "202 Accepted" if known else "404 The specified blob does not exist."
            error = "" if known else "x-ms-error-code: BlobNotFound\r\n"
            answers.append(
                f"--b\r\nContent-Type: application/http\r\nContent-ID: {number}\r\n\r\n"
                f"HTTP/1.1 {status}\r\n{error}x-ms-request-id: 1\r\n\r\n"
            )
        return Answer(202, [("Content-Type", "multipart/mixed; boundary=b")], f"{''.join(answers)}--b--".encode())

    def _write(self, name: str, query: dict[str, str], headers: dict[str, str], body: bytes) -> Answer:
        if query.get("comp") == "block":
            self._blocks[query["blockid"]] = body
        elif query.get("comp") == "blocklist":
            numbers = re.findall(r"<(?:Uncommitted|Latest)>(.*?)</", body.decode())
            self.objects[name] = b"".join(self._blocks[number] for number in numbers)
        elif source := headers.get("x-ms-copy-source"):
            key = unquote(urlsplit(source).path).split("/data/", 1)[1]
            if key not in self.objects:
                return Answer(404, [], b"<Error><Code>BlobNotFound</Code></Error>")
            self.objects[name] = self.objects[key]
        else:
            self.objects[name] = body
        return Answer(201, [("ETag", '"1"'), ("Last-Modified", _DATE)], b"")


HASTY = RetryConfig(first_s=1, retry_s=1, first_attempts=2, attempts=3, first_pause_s=0.02)
SLOW = pytest.mark.slow
OBJECTS = {"a": b"0123456789", "x/b": b"bb", "x/[odd] *?%41.jpg": b"odd", "x/läufer": b"", "y/c": b"c"}


@pytest.fixture
def cloud(each_cloud: Cloud) -> Cloud:
    return each_cloud


@pytest.fixture
def store(cloud: Cloud) -> Store:
    return Store(cloud.scheme, retries=HASTY)


@pytest.fixture
def folder(cloud: Cloud) -> str:
    return cloud.put(cloud.new(), OBJECTS)


def test_objects_are_read_whole_and_in_part(store: Store, folder: str) -> None:
    assert {name: store.read(f"{folder}/{name}") for name in OBJECTS} == OBJECTS
    assert store.read(f"{folder}/a", 3, 4) == b"3456"
    assert store.read(f"{folder}/a", 8, 4) == b"89"
    assert store.read(f"{folder}/a", 8) == b"89"
    assert store.read(f"{folder}/a", 10, 4) == store.read(f"{folder}/a", 3, 0) == b""
    with store.open(f"{folder}/a") as file:
        assert (file.seek(-4, os.SEEK_END), file.read(2), file.tell(), file.read()) == (6, b"67", 8, b"89")
    assert [store.size(f"{folder}/{name}") for name in ("a", "x/läufer", "none")] == [10, 0, -1]


def test_folders_are_listed(store: Store, folder: str, cloud: Cloud) -> None:
    assert dict(store.list(f"{folder}/")) == {f"{folder}/{name}": len(data) for name, data in OBJECTS.items()}
    assert dict(store.list(f"{folder}/", recursive=False)) == {
        f"{folder}/a": 10,
        f"{folder}/x/": -1,
        f"{folder}/y/": -1,
    }
    assert [*store.list(f"{folder}/none/")] == []
    stores.configure()
    assert file_io.find(f"{folder}/*/[bc]") == [f"{folder}/x/b", f"{folder}/y/c"]
    marked = cloud.put(cloud.new(), {"x/a": b"a", "x/": b"", "": b""})
    assert [*store.list(f"{marked}/")] == [(f"{marked}/x/a", 1)]
    assert [*store.list(f"{marked}/", recursive=False)] == [(f"{marked}/x/", -1)]


def test_objects_are_written_renamed_and_removed(cloud: Cloud, store: Store, folder: str) -> None:
    store.write(f"{folder}/new", b"new")
    store.rename(f"{folder}/new", f"{folder}/x/newer")
    assert cloud.tree(folder) == {**OBJECTS, "x/newer": b"new"}
    store.delete([f"{folder}/{name}" for name in ("a", "none", "x/newer", "x/b")])
    assert cloud.tree(folder).keys() == OBJECTS.keys() - {"a", "x/b"}
    with pytest.raises(FileNotFoundError, match=f"No such file or directory: '{folder}/none'"):
        store.rename(f"{folder}/none", f"{folder}/other")


def test_an_object_is_written_if_it_is_new_and_replaced_if_it_is_the_same(cloud: Cloud, store: Store) -> None:
    folder = cloud.new()
    assert store.write_new(f"{folder}/new", b"first")
    assert not store.write_new(f"{folder}/new", b"second")
    assert store.read(f"{folder}/new") == b"first"
    url = f"{cloud.new()}/catalog"
    assert store.get_replaceable(url) is None
    assert store.replace(url, b"one", None)
    assert not store.replace(url, b"two", None)
    first = store.get_replaceable(url)
    assert store.replace(url, b"two", first)
    assert not store.replace(url, b"three", first)
    assert store.read(url) == b"two"
    assert store.replace(url, b"two", first)  # as if an answer was lost
    second = store.get_replaceable(url)
    lost = iter(["lost"])
    cloud.proxy.harm = lambda seen: next(lost, None) if seen.method == "PUT" else None
    assert store.replace(url, b"four", second)
    assert store.read(url) == b"four"


def test_an_object_that_is_too_large_to_copy_goes_through_this_machine(amazon: Amazon, monkeypatch) -> None:
    """Amazon refuses to copy more than 5 GiB at once."""
    monkeypatch.setattr(object_store, "PART_BYTES", 5 * 2**20)
    folder, data = amazon.new(), bytes(range(256)) * (6 * 2**20 // 256)
    amazon.put(folder, {"large": data})
    amazon.proxy.harm = lambda seen: 400 if seen.method == "PUT" and "partNumber" not in seen.path else None
    Store("s3", retries=HASTY).rename(f"{folder}/large", f"{folder}/renamed")
    assert amazon.tree(folder) == {"renamed": data}


@pytest.mark.parametrize("size", [0, 3, 6 * 2**20], ids=["empty", "small", "in parts"])
def test_a_new_object_appears_when_the_block_ends(cloud: Cloud, store: Store, size: int, monkeypatch) -> None:
    monkeypatch.setattr(object_store, "PART_BYTES", 5 * 2**20)
    folder = cloud.new()
    with store.create(f"{folder}/a") as file:
        for begin in range(0, size, 2**20):
            file.write(bytes(min(2**20, size - begin)))
        assert cloud.tree(folder) == {}
    assert cloud.tree(folder) == {"a": bytes(size)}


def test_an_upload_that_fails_ends_the_block(cloud: Cloud, store: Store, monkeypatch) -> None:
    monkeypatch.setattr(object_store, "PART_BYTES", 2**18)
    folder = cloud.new()

    def write(count: int, error: BaseException | None = None) -> None:
        with store.create(f"{folder}/a") as file:
            for _ in range(count):
                file.write(bytes(2**18))
            file.write(b"end")
            if error is not None:
                raise error

    cloud.proxy.harm = lambda seen: 403 if "partNumber=2" in seen.path else None
    assert "Permission denied, the store says: HTTP status 403" in refusal(PermissionError, write, 100)
    assert (cloud.tree(folder), cloud.unfinished()) == ({}, 0)
    cloud.proxy.harm = lambda seen: "drop" if "partNumber=2" in seen.path else None
    assert "failed again and again, at last with: the request could not be sent." in refusal(DataError, write, 1)
    cloud.proxy.harm = lambda seen: None
    assert refusal(KeyboardInterrupt, write, 2, KeyboardInterrupt()) == ""
    gc.collect()
    assert (cloud.tree(folder), cloud.unfinished()) == ({}, 0)


def test_a_second_interrupt_does_not_wait_for_the_bytes_that_are_sent(store: Store, monkeypatch) -> None:
    goes_on = threading.Event()
    writer = Mock(write=Mock(side_effect=lambda data: goes_on.wait(60)), __exit__=lambda *_: goes_on.wait(60))
    monkeypatch.setattr("obstore.open_writer", lambda *_, **__: writer)
    main = threading.get_ident()

    def write() -> None:
        for delay_s in (0.2, 0.4):
            threading.Timer(delay_s, signal.pthread_kill, (main, signal.SIGINT)).start()
        with store.create("gs://photos/a") as file:
            file.write(bytes(object_store.PART_BYTES))

    begin_s = time.monotonic()
    assert refusal(KeyboardInterrupt, write) == ""
    assert 0.4 <= time.monotonic() - begin_s < 30
    goes_on.set()


@pytest.mark.parametrize("fault", [429, "cut", "lost", *(pytest.param(x, marks=SLOW) for x in (503, "drop"))])
def test_every_request_is_repeated(cloud: Cloud, store: Store, folder: str, fault: int | str) -> None:
    cloud.proxy.harm = lambda seen: fault if seen.number % 2 == 0 else None
    store.check(folder)
    assert store.read(f"{folder}/a") == OBJECTS["a"]
    assert store.size(f"{folder}/a") == 10
    store.write(f"{folder}/new", b"new")
    assert len([*store.list(f"{folder}/")]) == len(OBJECTS) + 1
    store.rename(f"{folder}/new", f"{folder}/newer")
    store.delete([f"{folder}/newer"])
    assert cloud.tree(folder) == OBJECTS


def test_a_name_that_obstore_does_not_take_is_a_sentence(amazon: Amazon) -> None:
    folder = amazon.put(amazon.new(), {"x//a": b""})
    store = Store("s3", retries=HASTY)
    names = r"^The names of objects must have no empty part, no '\.' and no '\.\.' between their slashes, got "
    with pytest.raises(DataError, match=names):
        list(store.list(f"{folder}/"))
    with pytest.raises(DataError, match=names):
        store.read(f"{folder}/x//a")


def test_options_come_before_the_environment(amazon: Amazon, monkeypatch) -> None:
    folder = amazon.put(amazon.new(), OBJECTS)
    for name in amazon.environment:
        if name != "AWS_EC2_METADATA_DISABLED":
            monkeypatch.delenv(name)
    options = StoreOptions(endpoint=amazon.proxy.url, access_key_id="key", secret_access_key="secret")
    assert Store("s3", options, HASTY).read(f"{folder}/a") == OBJECTS["a"]
    with pytest.raises(DataError, match=r"^S3's client refuses its options: Invalid endpoint: nowhere\.$"):
        Store("s3", StoreOptions(endpoint="nowhere"), HASTY).check(folder)


def test_a_bucket_is_opened_once(google: Google, monkeypatch) -> None:
    opened = Mock(wraps=buckets._open_google)
    monkeypatch.setattr(buckets, "_open_google", opened)
    folder, store = google.put(google.new(), OBJECTS), Store("gs", retries=HASTY)
    assert [store.size(f"{folder}/{name}") for name in OBJECTS] == [*map(len, OBJECTS.values())]
    assert [call.args[0] for call in opened.mock_calls] == [split_url(folder)[0]]


def test_amazon_tells_the_region_of_a_bucket(amazon: Amazon) -> None:
    import boto3

    amazon._client.create_bucket(Bucket="elsewhere", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    assert buckets._find_region(boto3.Session(), "elsewhere", "us-east-1") == "eu-west-1"
    assert buckets._find_region(boto3.Session(), "none", "us-east-2") == "us-east-2"


def test_without_the_package(monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    message = "gs:// needs obstore. Install it with: pip install '.[cloud]' in a checkout of tfpipe."
    assert refusal(MissingDependencyError, Store, "gs") == message


def test_credentials_that_cannot_be_renewed_are_one_sentence(google: Google, monkeypatch, tmp_path: Path) -> None:
    expired = Mock(config={}, side_effect=RuntimeError("Reauthentication is needed. Please log in."))
    monkeypatch.setattr(buckets, "_answer_emulator", buckets._Renewed(expired))
    sentence = "The credentials for gs://data cannot be used: Reauthentication is needed. Please log in."
    assert refusal(DataError, Store("gs", retries=HASTY).check, "gs://data/a") == sentence


def test_parts_have_an_end(cloud: Cloud, store: Store, monkeypatch) -> None:
    """No store takes more than 10,000 parts; here it is 10, each of 5 MiB."""
    monkeypatch.setattr(object_store, "PART_BYTES", 5 * 2**20)
    monkeypatch.setattr(object_store, "_MOST_PARTS", 10)
    url, piece = f"{cloud.new()}/large", bytes(2**20)
    cloud.proxy.log.clear()
    with store.create(url) as file:
        for _ in range(26):
            file.write(piece)
        assert file.tell() == 26 * 2**20
    assert sum("partNumber=" in seen.path for seen in cloud.proxy.log) == 6
    assert store.size(url) == 26 * 2**20
    monkeypatch.setattr(object_store, "_MOST_PARTS", 2)
    with pytest.raises(DataError) as error, store.create(f"{url}r") as file:
        file.write(11 * piece)
    assert str(error.value) == f"{url}r would have more than 0 GiB. Write more shards, each smaller."
    assert store.size(f"{url}r") == -1


def test_google_is_not_written_without_credentials(google: Google) -> None:
    store = Store("gs", StoreOptions(credentials="none"), HASTY)
    assert dict(store.list(google.put(google.new(), {"a": b"1"}))) != {}
    assert refusal(DataError, store.write, "gs://data/out", b"") == (
        "gs://data cannot be written without credentials. Log in with `gcloud auth application-default login`, and "
        "leave --no_auth out."
    )


@pytest.fixture
def azure(monkeypatch, tmp_path: Path) -> Iterator[AzureServer]:
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    server = AzureServer()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", base64.b64encode(b"key").decode())
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"{server.url}/{ACCOUNT}")
    job_stores.configure(())
    stores.configure()
    yield server
    job_stores.configure(())
    stores.configure()
    server.stop()


def test_objects_of_azure(azure: AzureServer, monkeypatch) -> None:
    monkeypatch.setattr(object_store, "PART_BYTES", 2**18)
    store = Store("az")
    store.check("az://data/x")
    store.write("az://data/x/a", b"0123456789")
    with store.create("az://data/x/y/[odd] *?.jpg") as file:
        file.write(bytes(2**18 + 3))
    assert azure.objects == {"x/a": b"0123456789", "x/y/[odd] *?.jpg": bytes(2**18 + 3)}
    assert (store.read("az://data/x/a"), store.read("az://data/x/a", 8, 9)) == (b"0123456789", b"89")
    assert [store.size("az://data/x/a"), store.size("az://data/x/none")] == [10, -1]
    assert dict(store.list("az://data/x/")) == {"az://data/x/a": 10, "az://data/x/y/[odd] *?.jpg": 2**18 + 3}
    assert dict(store.list("az://data/x/", recursive=False)) == {"az://data/x/a": 10, "az://data/x/y/": -1}
    store.rename("az://data/x/a", "az://data/z")
    store.delete(["az://data/x/y/[odd] *?.jpg", "az://data/none"])
    assert azure.objects == {"z": b"0123456789"}
    with pytest.raises(DataError, match=r"^There is no bucket az://none\. Create it, or check the name\.$"):
        store.check("az://none/x")


def test_a_job_makes_the_local_dataset_which_is_read_in_place(azure: AzureServer, tmp_path: Path) -> None:
    photos = make_photos({"cat": 3, "dog": 2})
    azure.objects |= {f"photos/{name}": data for name, data in photos.items()}
    make_dataset("az://data/photos", "az://data/out", num_shards=2)
    make_dataset(write_files(tmp_path / "photos", photos), tmp_path / "out", num_shards=2)
    made = {name[4:]: data for name, data in azure.objects.items() if name.startswith("out/")}
    assert made == read_tree(tmp_path / "out")
    assert load_manifest("az://data/out").splits["train"].records == 5


def test_a_missing_account_is_one_sentence(azure: AzureServer, monkeypatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME")
    with pytest.raises(DataError, match=r"^az://data needs the name of its account in AZURE_STORAGE_ACCOUNT_NAME, and"):
        Store("az").check("az://data/x")


HUB = "hf://datasets/me/photos"


@pytest.fixture
def hub(monkeypatch, tmp_path: Path) -> Iterator[HubServer]:
    constants = pytest.importorskip("huggingface_hub.constants")
    server = HubServer()
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    files = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
    monkeypatch.setattr(hugging_face, "_UNFINISHED", tmp_path / "unfinished")
    stores.configure()
    yield server
    stores.configure()
    server.stop()


def test_files_on_hugging_face(hub: HubServer) -> None:
    hub.files |= {"a": b"0123456789", "x/b": b"bb", "x/y/c": b""}
    assert file_io.read_whole(f"{HUB}/a") == b"0123456789"
    assert file_io.read_range(f"{HUB}/a", 3, 4) == b"3456"
    assert file_io.read_range(f"{HUB}/a", 8, 4) == b"89"
    with file_io.open_file(f"{HUB}/a") as file:
        assert (file.seek(-4, 2), file.read(2), file.tell()) == (6, b"67", 8)
    assert dict(file_io.list_tree(HUB)) == {"a": 10, "x/b": 2, "x/y/c": 0}
    assert dict(file_io.list_children(HUB)) == {"a": 10, "x/": -1}
    assert [*file_io.list_tree(f"{HUB}/none")] == []
    assert file_io.get_sizes([f"{HUB}/a", f"{HUB}/x", f"{HUB}/z"]) == [10, -1, -1]
    assert file_io.find(f"{HUB}/x/*") == [f"{HUB}/x/b"]
    file_io.write_file(f"{HUB}/x/d", b"new")
    file_io.rename(f"{HUB}/x/d", f"{HUB}/e")
    file_io.remove(f"{HUB}/x/d")
    assert hub.files["e"] == b"new"
    assert "x/d" not in hub.files
    with pytest.raises(KeyboardInterrupt), file_io.create(f"{HUB}/f") as file:
        raise KeyboardInterrupt
    assert hub.commits == ["Add x/d", "Add e", "Remove x/d"]
    for name in ("x", "y"):
        file_io.write_file(f"{HUB}/.tfpipe/rows/{name}", b"row")
    assert file_io.list_names(f"{HUB}/.tfpipe/rows") == ["x", "y"]
    assert file_io.list_names(f"{HUB}/.tfpipe") == ["rows"]
    file_io.remove_tree(f"{HUB}/.tfpipe")
    assert file_io.list_names(f"{HUB}/.tfpipe") == []
    assert len(hub.commits) == 3  # a job's own files stay here


def test_what_is_not_on_hugging_face_is_a_sentence(hub: HubServer, monkeypatch) -> None:
    with pytest.raises(FileNotFoundError):
        file_io.read_whole(f"{HUB}/none")
    message = "There is no dataset hf://datasets/me/none, or these credentials may not see"
    assert refusal(DataError, verify, "hf://datasets/me/none", VerifyConfig(workers=0)).startswith(message)
    stores.configure()
    with pytest.raises(DataError, match=r"^A dataset on Hugging Face is named hf://datasets/OWNER/NAME, got hf://me/x"):
        verify("hf://me/x", VerifyConfig(workers=0))


def test_hugging_face_without_the_package(monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    message = "hf:// needs huggingface_hub. Install it with: pip install '.[hf]' in a checkout of tfpipe."
    assert refusal(MissingDependencyError, hugging_face.HuggingFaceStore, HUB) == message


def test_images_on_hugging_face_are_sharded_where_they_are(hub: HubServer, tmp_path: Path) -> None:
    photos = make_photos({"cat": 3, "dog": 2})
    table = write_parquet(tmp_path / "table.parquet", [make_jpeg(k) for k in range(4)], label=["x"] * 4)
    pairs = {k: v for i in range(3) for k, v in ((f"{i}.jpg", make_jpeg(i)), (f"{i}.txt", b"caption %d" % i))}
    inputs = {
        **{f"folder/train/{name}": data for name, data in photos.items()},
        "table/train-00000.parquet": table.read_bytes(),
        "tars/train/0.tar": make_tar(pairs),
    }
    hub.files |= inputs
    write_files(tmp_path / "in", inputs)
    for name in ("folder", "table/train-00000.parquet", "tars"):
        make_dataset(tmp_path / "in" / name, tmp_path / "out" / name, num_shards=1)
        make_dataset(f"{HUB}/{name}", tmp_path / "there" / name, num_shards=1)
        assert read_tree(tmp_path / "there" / name) == read_tree(tmp_path / "out" / name), name


def test_a_dataset_is_written_to_hugging_face(hub: HubServer, tmp_path: Path) -> None:
    photos = write_files(tmp_path / "photos", make_photos({"cat": 3, "dog": 2}))
    make_dataset(photos, tmp_path / "out", num_shards=2)
    make_dataset(photos, f"{HUB}/records", num_shards=2)
    written = {name[8:]: data for name, data in hub.files.items() if name.startswith("records/")}
    assert written == read_tree(tmp_path / "out")
    job_stores.configure(())
    report = export(ExportConfig(str(tmp_path / "out"), str(tmp_path / "parquet"), "parquet", workers=0))
    hub.files.clear()
    hub.files["README.md"] = b""
    assert export(ExportConfig(str(tmp_path / "out"), HUB, "parquet", workers=0)) == report
    assert hub.files == {"README.md": b"", **read_tree(tmp_path / "parquet")}
    assert not (tmp_path / "unfinished").exists()
