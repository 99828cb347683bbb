"""One dataset on a server that speaks as Hugging Face does: `hf://datasets/me/photos`, in memory."""

import base64
import hashlib
import json
import re
from urllib.parse import parse_qs, unquote, urlsplit

from tests.object_stores.proxy import Answer, Server, answer_json, answer_object

REPOSITORY = "me/photos"
_API = re.compile(rf"/api/datasets/{REPOSITORY}(?:/(?P<verb>[a-z-]+)/main(?:/(?P<path>.*))?)?")
_FILE = re.compile(rf"/datasets/{REPOSITORY}/resolve/main/(?P<path>.+)")


class HubServer(Server):
    """A server with one dataset."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, bytes] = {".gitattributes": b"", "README.md": b""}
        self.commits: list[str] = []

    def ask(self, command: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        parts = urlsplit(path)
        name = unquote(parts.path)
        if (file := _FILE.fullmatch(name)) is not None:
            return self._send(file["path"], headers)
        if (asked := _API.fullmatch(name)) is None:
            return Answer(404, [("X-Error-Code", "RepoNotFound")], b"{}")
        below = asked["path"] or ""
        match asked["verb"]:
            case "tree":
                return self._list(below, parse_qs(parts.query).get("recursive", ["false"])[0].lower() == "true")
            case "paths-info":
                paths = parse_qs(body.decode())["paths"] if body[:1] != b"{" else json.loads(body)["paths"]
                return answer_json([entry for entry in self._entries("", True) if entry["path"] in paths])
            case "preupload":
                files = [{**file, "uploadMode": "regular", "shouldIgnore": False} for file in json.loads(body)["files"]]
                return answer_json({"files": files})
            case "commit":
                return self._commit(body)
        return answer_json({"_id": "1", "id": REPOSITORY, "sha": "0" * 40, "siblings": [], "tags": [], "downloads": 0})

    def _send(self, name: str, headers: dict[str, str]) -> Answer:
        if name not in self.files:
            return Answer(404, [("X-Error-Code", "EntryNotFound")], b"")
        data = self.files[name]
        return answer_object(len(data), lambda begin, end: data[begin:end], headers, [])

    def _list(self, folder: str, recursive: bool) -> Answer:
        entries = self._entries(folder, recursive)
        return answer_json(entries) if entries else Answer(404, [("X-Error-Code", "EntryNotFound")], b"")

    def _entries(self, folder: str, recursive: bool) -> list[dict[str, object]]:
        start = f"{folder}/" if folder else ""
        found: dict[str, dict[str, object]] = {}
        for name, data in sorted(self.files.items()):
            if not name.startswith(start):
                continue
            steps = name[len(start) :].split("/")
            for depth in range(1, len(steps) if recursive else min(2, len(steps))):
                path = start + "/".join(steps[:depth])
                found[path] = {"type": "directory", "path": path, "size": 0, "oid": "1"}
            if recursive or len(steps) == 1:
                oid = hashlib.sha1(data).hexdigest()
                found[name] = {"type": "file", "path": name, "size": len(data), "oid": oid}
        return list(found.values())

    def _commit(self, body: bytes) -> Answer:
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                self.commits.append(value["summary"])
            elif line["key"] == "file":
                self.files[value["path"]] = base64.b64decode(value["content"])
            else:
                del self.files[value["path"]]
        url = f"{self.url}/datasets/{REPOSITORY}/commit/{'1' * 40}"
        return answer_json({"success": True, "commitUrl": url, "commitOid": "1" * 40})
