"""A container of Azure's store in memory. It knows what one store asks of it, and checks no signature."""

import hashlib
import re
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.object_stores.proxy import Answer, Server, answer_object, answer_xml

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
