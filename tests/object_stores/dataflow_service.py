"""A Dataflow service on loopback. It takes a job, runs it by replaying the staged files, and serves its state."""

import json
import re
import threading
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.beam_jobs.commands import Ran, run_python
from tests.object_stores.proxy import Answer, Server, answer_json

_JOBS = re.compile(r"/sandbox/v1b3/projects/([^/]+)/locations/([^/]+)/jobs(?:/([^/?]+))?(/messages)?")
_NOW = "2026-11-21T00:00:00Z"


class Service(Server):
    """A service that runs until it is stopped. It also hands out tokens for a service account that it invents."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.jobs: dict[str, dict[str, Any]] = {}
        self.refuse: tuple[int, str] | None = None
        self.state: str | None = None
        self.worker_python: str | None = None
        self._ended: dict[str, Ran] = {}

    @property
    def url(self) -> str:
        """The address. Beam speaks HTTP to an endpoint with this word, and still takes it for the real service."""
        return f"{super().url}/sandbox"

    def ask(self, command: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        if path == "/token":
            return answer_json({"access_token": "token", "expires_in": 3600, "token_type": "Bearer"})
        if command == "POST" and self.refuse is not None:
            status, message = self.refuse
            return answer_json({"error": {"code": status, "message": message}}, status)
        match = _JOBS.match(path)
        if match is not None and command == "POST":
            return answer_json(self.submit(json.loads(body), match[1], match[2]))
        if match is None or match[3] not in self.jobs:
            return answer_json({"error": {"code": 404, "message": path}}, 404)
        name = match[3]
        return answer_json(self.messages(name) if match[4] else self.describe(name, match[1], match[2]))

    @cached_property
    def credentials(self) -> Path:
        """The key file of a service account whose tokens come from here. It is written when it is first needed."""
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import rsa

        key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        path = self.folder / "key.json"
        account = {"type": "service_account", "project_id": "my-project", "private_key_id": "1", "client_id": "1"}
        account |= {"private_key": key.decode(), "client_email": "test@my-project.iam.gserviceaccount.com"}
        path.write_text(json.dumps({**account, "token_uri": f"{super().url}/token"}))
        return path

    def submit(self, job: dict[str, Any], project: str, region: str) -> dict[str, Any]:
        name = f"2026-11-21_00_00_00-{len(self.jobs)}"
        self.jobs[name] = job
        threading.Thread(target=self._run, args=(name,), daemon=True).start()
        return self.describe(name, project, region)

    def _run(self, name: str) -> None:
        request = self.folder / f"{name}.json"
        request.write_text(json.dumps(self.jobs[name]))
        words = [str(request), str(self.folder / name), *([self.worker_python] if self.worker_python else [])]
        if self.state is None:
            self._ended[name] = run_python("-m", "tests.object_stores.replay", *words)

    def describe(self, name: str, project: str, region: str) -> dict[str, Any]:
        state = self.state or "JOB_STATE_RUNNING"
        if name in self._ended:
            state = "JOB_STATE_FAILED" if self._ended[name].returncode else "JOB_STATE_DONE"
        job = {"id": name, "projectId": project, "location": region, "currentState": state, "createTime": _NOW}
        return {**job, "name": self.jobs[name]["name"]}

    def messages(self, name: str) -> dict[str, Any]:
        done = self._ended.get(name)
        if done is None or not done.returncode:
            return {"jobMessages": []}
        error = {"id": "1", "time": _NOW, "messageText": done.stderr, "messageImportance": "JOB_MESSAGE_ERROR"}
        return {"jobMessages": [error]}
