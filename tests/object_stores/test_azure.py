"""The store of az://, against a small server on loopback."""

import base64
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from beam_jobs.storage import job_stores
from tests.beam_jobs.datasets import make_dataset, read_tree
from tests.beam_jobs.images import make_photos, write_files
from tests.object_stores.azure_server import ACCOUNT, AzureServer
from tfpipe import load_manifest
from tfpipe.errors import DataError
from tfpipe.storage import store as object_store
from tfpipe.storage import stores
from tfpipe.storage.store import Store


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
