"""Servers of protocols on loopback: emulators of Google, with its XML interface, and of Amazon, behind proxies."""

import hashlib
import threading
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

from beam_jobs import job_stores
from tests.beam_jobs.commands import Ran, run_python
from tests.object_stores.proxy import Answer, Proxy, answer_list, answer_object, answer_xml
from tfpipe.storage.file_store import split_url

_XML_DATED = ("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")


class GoogleProxy(Proxy):
    """A proxy before the emulator. It serves requests of the XML interface from the emulator's memory."""

    def __init__(self, target: tuple[str, int], storage: Any) -> None:
        super().__init__(target)
        self.storage = storage
        self._uploads: dict[str, dict[int, bytes]] = {}
        self._generations: dict[tuple[str, str], int] = {}
        self._numbers = count()
        self._lock_storage = threading.RLock()  # the emulator is not made for several threads

    def unfinished(self) -> int:
        """Returns the uploads in parts that were neither completed nor aborted."""
        return len(self._uploads)

    def ask(self, command: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        """Answers for the XML interface, and asks the emulator in all other cases."""
        parts = urlsplit(path)
        bucket, _, name = unquote(parts.path).lstrip("/").partition("/")
        query = parse_qs(parts.query, keep_blank_values=True)
        if bucket in ("storage", "upload", "download", "batch", "resumable", "b", ""):
            return super().ask(command, path, headers, body)
        if bucket not in self.storage.buckets:
            return _refuse(404, "NoSuchBucket", "The specified bucket does not exist.")
        if not name:
            return self._list(bucket, query)
        if "uploads" in query or "uploadId" in query:
            return self._upload(command, bucket, name, query, body)
        answer = {"GET": self._read, "HEAD": self._read, "PUT": self._write, "DELETE": self._delete}[command]
        with self._lock_storage:
            return answer(bucket, name, headers, body)

    def _list(self, bucket: str, query: dict[str, list[str]]) -> Answer:
        prefix, delimiter = query.get("prefix", [None])[0], query.get("delimiter", [None])[0]
        found, folders = self.storage.get_file_list(bucket, prefix, delimiter)
        return answer_list(((one["name"], one["size"]) for one in found), folders)

    def _read(self, bucket: str, name: str, headers: dict[str, str], body: bytes) -> Answer:
        data = self.get(bucket, name)
        if data is None:
            return _NO_KEY
        generation = ("x-goog-generation", str(self._generations.get((bucket, name), 1)))
        described = [_XML_DATED, ("ETag", _digest(data)), generation]
        return answer_object(len(data), lambda begin, end: data[begin:end], headers, described)

    def _write(self, bucket: str, name: str, headers: dict[str, str], body: bytes) -> Answer:
        if source := headers.get("x-goog-copy-source"):
            found = self.get(*unquote(source).lstrip("/").split("/", 1))
            if found is None:
                return _NO_KEY
            body = found
        there = 0 if self.get(bucket, name) is None else self._generations.get((bucket, name), 1)
        if headers.get("x-goog-if-generation-match", str(there)) != str(there):
            return _refuse(412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold.")
        self.put(bucket, name, body)
        return Answer(200, [("ETag", _digest(body))], b"")

    def _delete(self, bucket: str, name: str, headers: dict[str, str], body: bytes) -> Answer:
        if self.get(bucket, name) is None:
            return _NO_KEY
        self.storage._hard_delete_file(bucket, name)
        return Answer(204, [], b"")

    def _upload(self, command: str, bucket: str, name: str, query: dict[str, list[str]], body: bytes) -> Answer:
        """Begins an upload in parts, takes one, or makes an object of them or forgets them."""
        if "uploads" in query:
            number = str(next(self._numbers))
            self._uploads[number] = {}
            return answer_xml(
                f"<InitiateMultipartUploadResult><UploadId>{number}</UploadId></InitiateMultipartUploadResult>"
            )
        number = query["uploadId"][0]
        if number not in self._uploads:
            # The store says once more that an upload is complete, for a client that did not get the first answer.
            known = command == "POST" and self.get(bucket, name) is not None
            return _completed(name) if known else _refuse(404, "NoSuchUpload", "There is no such upload.")
        if command == "PUT":
            self._uploads[number][int(query["partNumber"][0])] = body
            return Answer(200, [("ETag", _digest(body))], b"")
        parts = self._uploads.pop(number)
        if command == "DELETE":
            return Answer(204, [], b"")
        self.put(bucket, name, b"".join(parts[key] for key in sorted(parts)))
        return _completed(name)

    def get(self, bucket: str, name: str) -> bytes | None:
        """Returns an object, or None if there is none."""
        from gcp_storage_emulator.exceptions import NotFound

        try:
            self.storage.get_file_obj(bucket, name)
            return self.storage.get_file(bucket, name)
        except NotFound:
            return None

    def put(self, bucket: str, name: str, data: bytes) -> None:
        from gcp_storage_emulator.handlers import objects

        resource = objects._make_object_resource(self.url, bucket, name, "application/octet-stream", str(len(data)))
        self.storage.create_file(bucket, name, data, objects._checksums(data, resource))
        self._generations[bucket, name] = next(self._numbers) + 2


def _digest(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


def _completed(name: str) -> Answer:
    document = f"<ETag>1</ETag><Key>{escape(name)}</Key>"
    return answer_xml(f"<CompleteMultipartUploadResult>{document}</CompleteMultipartUploadResult>")


def _refuse(status: int, code: str, message: str) -> Answer:
    return answer_xml(f"<Error><Code>{code}</Code><Message>{message}</Message></Error>", status)


_NO_KEY = _refuse(404, "NoSuchKey", "The specified key does not exist.")


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
