"""The other interface of Google's store, XML, which obstore speaks. The emulator has little of it."""

import hashlib
import threading
from itertools import count
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.object_stores.proxy import Answer, Proxy, answer_list, answer_object, answer_xml

_DATED = ("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")


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
        described = [_DATED, ("ETag", _digest(data)), generation]
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
