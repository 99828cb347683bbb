"""A Dataflow service on loopback. It takes a job, runs it by replaying the staged files, and serves its metrics."""

import json
import os
import re
import subprocess
import sys
import threading
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_JOBS = re.compile(r"/sandbox/v1b3/projects/([^/]+)/locations/([^/]+)/jobs(?:/([^/?]+))?(/messages|/metrics)?")
_NOW = "2026-11-21T00:00:00Z"


class Service:
    """A service that runs until it is stopped. It also hands out tokens for a service account that it invents."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jobs: dict[str, dict[str, Any]] = {}
        self.refuse: tuple[int, str] | None = None
        self.state: str | None = None
        self.worker_python: str | None = None
        self.looks = 0
        self._ended: dict[str, subprocess.CompletedProcess[str]] = {}

        class Handler(_Handler):
            service = self

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def url(self) -> str:
        """The address. Beam speaks HTTP to an endpoint with this word, and still takes it for the real service."""
        return f"http://127.0.0.1:{self._server.server_port}/sandbox"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @cached_property
    def credentials(self) -> Path:
        """The key file of a service account whose tokens come from here. It is written when it is first needed."""
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import rsa

        key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        path = self.folder / "key.json"
        path.write_text(
            json.dumps(
                {
                    "type": "service_account",
                    "project_id": "my-project",
                    "private_key_id": "1",
                    "private_key": key.decode(),
                    "client_email": "test@my-project.iam.gserviceaccount.com",
                    "client_id": "1",
                    "token_uri": f"http://127.0.0.1:{self._server.server_port}/token",
                }
            )
        )
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
            self._ended[name] = subprocess.run(
                [sys.executable, "-m", "tests.object_stores.replay", *words],
                cwd=ROOT,
                capture_output=True,
                text=True,
                env=os.environ,
                check=False,
            )

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

    def metrics(self, name: str) -> dict[str, Any]:
        self.looks += 1
        done = self._ended.get(name)
        counts = {"images": self.looks, "bytes": 1000 * self.looks}  # while it runs, an image for each look
        if done is not None and not done.returncode:
            counts = json.loads(done.stdout.splitlines()[-1])
        return {
            "metricTime": _NOW,
            "metrics": [
                {
                    "name": {
                        "origin": "user",
                        "name": word,
                        "context": {"namespace": "tfpipe", "step": "s3", **tentative},
                    },
                    "scalar": count,
                    "updateTime": _NOW,
                }
                for word, count in counts.items()
                for tentative in ({}, {"tentative": "true"})
            ],
        }


class _Handler(BaseHTTPRequestHandler):
    service: Service
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/token":
            self._answer({"access_token": "token", "expires_in": 3600, "token_type": "Bearer"})
        elif self.service.refuse is not None:
            status, message = self.service.refuse
            self._answer({"error": {"code": status, "message": message}}, status)
        elif match := _JOBS.match(self.path):
            self._answer(self.service.submit(json.loads(body), match[1], match[2]))
        else:
            self._answer({"error": {"code": 404, "message": self.path}}, 404)

    def do_GET(self) -> None:
        match = _JOBS.match(self.path)
        if match is None or match[3] not in self.service.jobs:
            self._answer({"error": {"code": 404, "message": self.path}}, 404)
        elif match[4] == "/messages":
            self._answer(self.service.messages(match[3]))
        elif match[4] == "/metrics":
            self._answer(self.service.metrics(match[3]))
        else:
            self._answer(self.service.describe(match[3], match[1], match[2]))

    def _answer(self, value: dict[str, Any], status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
