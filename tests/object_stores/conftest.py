"""Real protocol servers on loopback: an emulator of Google's store and one of Amazon's, each behind a proxy."""

from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from beam_jobs import job_stores
from tests.beam_jobs.commands import Ran, run_python
from tests.object_stores.google_xml import GoogleProxy
from tests.object_stores.proxy import Proxy
from tfpipe.storage.file_store import split_url

_numbers = count()


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of this folder as those that need clients of object stores and emulators."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.needs("moto", "gcp_storage_emulator", "obstore", "huggingface_hub"))


class Cloud:
    """One store with one bucket, `gs://data` or `s3://data`.

    Each has `put`, `names` and `get`, and `unfinished`: the uploads in parts that were neither completed nor aborted.
    """

    scheme: str
    environment: Mapping[str, str]

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy

    def new(self) -> str:
        """Returns the URL of a folder that no test has used."""
        return f"{self.scheme}://data/{next(_numbers)}"

    def tree(self, url: str) -> dict[str, bytes]:
        """Returns every object below a URL in the form of `read_tree`, past the proxy."""
        folder = split_url(url)[1].rstrip("/") + "/"
        return {name[len(folder) :]: self.get(name) for name in sorted(self.names()) if name.startswith(folder)}

    def run(self, *args: object, code: int = 0, **environment: str) -> Ran:
        """Runs a real `tfpipe` command that finds this store."""
        process = run_python("-m", "tfpipe", *args, **{**self.environment, **environment})
        assert process.returncode == code, process.stderr
        return process


class Google(Cloud):
    scheme = "gs"

    proxy: GoogleProxy

    def __init__(self, proxy: GoogleProxy) -> None:
        super().__init__(proxy)
        self.environment = {"STORAGE_EMULATOR_HOST": proxy.url}

    def put(self, url: str, objects: Mapping[str, bytes]) -> str:
        bucket, folder = split_url(url)
        for path, data in objects.items():
            self.proxy.put(bucket, f"{folder}/{path}", data)
        return url

    def names(self) -> list[str]:
        return [one["name"] for one in self.proxy.storage.get_file_list("data")[0]]

    def get(self, name: str) -> bytes:
        return self.proxy.get("data", name)

    def unfinished(self) -> int:
        return self.proxy.unfinished()


class Amazon(Cloud):
    scheme = "s3"

    def __init__(self, proxy: Proxy) -> None:
        super().__init__(proxy)
        self.keys = {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        self.environment = {**self.keys, "AWS_ENDPOINT_URL": proxy.url}
        self.direct = "http://{}:{}".format(*proxy.target)

    @cached_property
    def _client(self) -> Any:
        import boto3

        keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
        return boto3.client("s3", endpoint_url=self.direct, region_name="us-east-1", **keys)

    def put(self, url: str, objects: Mapping[str, bytes]) -> str:
        bucket, folder = split_url(url)
        client = self._client
        for path, data in objects.items():
            client.put_object(Bucket=bucket, Key=f"{folder}/{path}", Body=data)
        return url

    def names(self) -> list[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket="data")
        return [entry["Key"] for page in pages for entry in page.get("Contents", ())]

    def get(self, name: str) -> bytes:
        return self._client.get_object(Bucket="data", Key=name)["Body"].read()

    def unfinished(self) -> int:
        return len(self._client.list_multipart_uploads(Bucket="data").get("Uploads", ()))


@pytest.fixture(scope="session")
def google_server() -> Iterator[Google]:
    from gcp_storage_emulator.server import create_server

    server = create_server("127.0.0.1", 0, in_memory=True, default_bucket="data")
    server._storage._write_config_to_file = lambda: None  # it would describe all objects anew at each write
    server.start()
    proxy = GoogleProxy(("127.0.0.1", server._api._httpd.server_port), server._storage)
    yield Google(proxy)
    proxy.stop()
    server.stop()


@pytest.fixture(scope="session")
def amazon_server() -> Iterator[Amazon]:
    import botocore.session
    from moto.moto_server.threaded_moto_server import ThreadedMotoServer

    # Every test makes its own client; so the description of the protocol is read once, not for each of them.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", cache(botocore.session.create_loader))
        server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        server.start()
        proxy = Proxy(server.get_host_and_port())
        cloud = Amazon(proxy)
        cloud._client.create_bucket(Bucket="data")
        yield cloud
    proxy.stop()
    server.stop()


@pytest.fixture
def google(google_server: Google, monkeypatch) -> Iterator[Google]:
    yield from _lent(google_server, monkeypatch)


@pytest.fixture
def amazon(amazon_server: Amazon, monkeypatch) -> Iterator[Amazon]:
    yield from _lent(amazon_server, monkeypatch)


@pytest.fixture(params=["gs", pytest.param("s3", marks=pytest.mark.slow)])
def cloud(request) -> Cloud:
    """A store, for what is the same above `Store`: the slow tests take the other one too."""
    return request.getfixturevalue({"gs": "google", "s3": "amazon"}[request.param])


@pytest.fixture(params=["gs", "s3"])
def each_cloud(request) -> Cloud:
    return request.getfixturevalue({"gs": "google", "s3": "amazon"}[request.param])


def _lent(cloud: Any, monkeypatch) -> Iterator[Any]:
    """Yields a store with the environment of its clients set, and mends its faults afterwards."""
    for name, value in cloud.environment.items():
        monkeypatch.setenv(name, value)
    cloud.proxy.reset()
    job_stores.configure(())
    yield cloud
    cloud.proxy.reset()
    job_stores.configure(())
