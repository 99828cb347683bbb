"""A folder as a bucket of Google's store, for TensorFlow's own client: what is read is as fast as the machine."""

import os
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from tests.object_stores.proxy import Answer, Server, answer_json, answer_list, answer_object
from tfpipe.storage import stores

_OBJECT = re.compile(r"/storage/v1/b/data/o/(?P<name>.+)")
_CONTENT = re.compile(r"/data/(?P<name>.+)")
_LISTED = "/storage/v1/b/data/o"
_FOLDER = "/data"
_CHANGED = {"generation": "1", "updated": "2026-01-01T00:00:00.000Z"}  # what the client compares
_DATED = [("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT"), ("ETag", '"1"')]


class FolderStore(Server):
    """A store whose bucket `gs://data` is a folder. It can be read, but not written."""

    def __init__(self, folder: Path, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(tls)
        self._folder = folder

    def ask(self, command: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        parts = urlsplit(path)
        if command == "GET" and parts.path == _LISTED:
            return self._list_objects(parse_qs(parts.query))
        if command == "GET" and parts.path == _FOLDER and "list-type" in parts.query:
            query = parse_qs(parts.query)
            return self._list_folder(query["prefix"][0], is_deep="delimiter" not in query)
        for pattern, answer in ((_OBJECT, self._describe), (_CONTENT, self._read)):
            match = pattern.fullmatch(parts.path)
            if command in ("GET", "HEAD") and match is not None:
                name = unquote(match["name"])
                file = self._folder / name
                return answer(name, file, headers) if file.is_file() else Answer(404, [], b"")
        return Answer(501, [], b"")

    def _list_objects(self, query: dict[str, list[str]]) -> Answer:
        prefix = query.get("prefix", [""])[0]
        # Path.rglob would not follow a link.
        folders = os.walk(self._folder / os.path.dirname(prefix), followlinks=True)
        files = (Path(folder) / name for folder, _, names in folders for name in names)
        names = sorted(path.relative_to(self._folder).as_posix() for path in files)
        most = int(query.get("maxResults", ["1000"])[0])
        items = [{"name": name, **_CHANGED} for name in names if name.startswith(prefix)][:most]
        return answer_json({"items": items} if items else {})

    def _list_folder(self, prefix: str, is_deep: bool) -> Answer:
        """Lists what lies in a folder, or all files below it, in the form of the other interface, Amazon's too."""
        folder = self._folder / prefix
        paths = sorted(folder.rglob("*") if is_deep else folder.iterdir()) if folder.is_dir() else []
        keys = {path: path.relative_to(self._folder).as_posix() for path in paths}
        sizes = [(keys[path], path.stat().st_size) for path in paths if path.is_file()]
        return answer_list(sizes, [f"{keys[path]}/" for path in paths if path.is_dir() and not is_deep])

    def _describe(self, name: str, file: Path, _: dict[str, str]) -> Answer:
        return answer_json({"name": name, "size": str(file.stat().st_size), **_CHANGED})

    def _read(self, _: str, file: Path, headers: dict[str, str]) -> Answer:
        with file.open("rb") as opened:
            number, size = opened.fileno(), file.stat().st_size
            return answer_object(size, lambda begin, end: os.pread(number, end - begin, begin), headers, _DATED)


@contextmanager
def pose_as_google(folder: Path) -> Iterator[tuple[FolderStore, dict[str, str]]]:
    """Starts a store of a folder that answers for Google, with our certificate.

    TensorFlow knows no other address than Google's. Its HTTP library looks at two variables, obstore at another one.
    """
    import trustme

    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("www.googleapis.com", "storage.googleapis.com").configure_cert(context)
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    server = FolderStore(folder, context)
    try:
        certificate = str(folder / "ca.pem")
        named = {"CURL_CA_BUNDLE": certificate, "SSL_CERT_FILE": certificate}
        yield server, {"https_proxy": server.url, "NO_GCE_CHECK": "true", **named}
    finally:
        server.stop()


@contextmanager
def serve_to_this_process(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[FolderStore]:
    """Starts such a store, to which this process comes instead of Google's."""
    with pose_as_google(folder) as (store, environment):
        for name, value in environment.items():
            patch.setenv(name, value)
        stores.configure()
        yield store
        stores.configure()
