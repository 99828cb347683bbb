"""The store of a scheme, against real protocol servers on loopback."""

import base64
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from beam_jobs import job_stores
from tests.beam_jobs.datasets import make_dataset, read_tree
from tests.beam_jobs.images import make_photos, write_files
from tests.object_stores.azure_server import ACCOUNT, AzureServer
from tests.object_stores.conftest import Amazon, Cloud, Google
from tests.refusals import refusal
from tfpipe import load_manifest
from tfpipe.errors import DataError, MissingDependencyError
from tfpipe.storage import buckets, file_io, stores
from tfpipe.storage import store as object_store
from tfpipe.storage.buckets import StoreOptions
from tfpipe.storage.failures import RetryConfig
from tfpipe.storage.file_store import split_url
from tfpipe.storage.store import Store

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
    sizes = {f"{folder}/{name}": len(data) for name, data in OBJECTS.items()}
    assert dict(store.list(f"{folder}/")) == sizes
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

    def write() -> None:
        with store.create(f"{folder}/a") as file:
            for _ in range(100):
                file.write(bytes(2**18))

    cloud.proxy.harm = lambda seen: 403 if "partNumber=2" in seen.path else None
    assert "Permission denied, the store says: HTTP status 403" in refusal(PermissionError, write)
    assert (cloud.tree(folder), cloud.unfinished()) == ({}, 0)


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
    opened: list[str] = []
    make = buckets._open_google

    def note(name: str, options: StoreOptions, client: dict[str, object]) -> object:
        opened.append(name)
        return make(name, options, client)

    monkeypatch.setattr(buckets, "_open_google", note)
    folder, store = google.put(google.new(), OBJECTS), Store("gs", retries=HASTY)
    assert [store.size(f"{folder}/{name}") for name in OBJECTS] == [*map(len, OBJECTS.values())]
    assert opened == [split_url(folder)[0]]


def test_amazon_tells_the_region_of_a_bucket(amazon: Amazon) -> None:
    import boto3

    amazon._client.create_bucket(Bucket="elsewhere", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    assert buckets._find_region(boto3.Session(), "elsewhere", "us-east-1") == "eu-west-1"
    assert buckets._find_region(boto3.Session(), "none", "us-east-2") == "us-east-2"


def test_without_the_package(monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    message = "gs:// needs obstore. Install it with: pip install '.[cloud]' in a checkout of tfpipe."
    assert refusal(MissingDependencyError, Store, "gs") == message


class _Expired:
    """Credentials that cannot be renewed."""

    config: Mapping[str, str] = {}

    def __call__(self) -> object:
        raise RuntimeError("Reauthentication is needed. Please log in.")


def test_credentials_that_cannot_be_renewed_are_one_sentence(google: Google, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(buckets, "_answer_emulator", buckets._Renewed(_Expired()))
    sentence = r"^The credentials for gs://data cannot be used: Reauthentication is needed\. Please log in\.$"
    with pytest.raises(DataError, match=sentence):
        Store("gs", retries=HASTY).check("gs://data/a")


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


def test_objects(azure: AzureServer, monkeypatch) -> None:
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
