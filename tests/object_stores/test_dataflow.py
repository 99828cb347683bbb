"""Jobs for Dataflow: the request to a service on loopback, and a run from that request alone."""

import functools
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from apache_beam.runners.dataflow.dataflow_runner import DataflowRunner

import tfpipe
from beam_jobs import shard_job
from beam_jobs.config import ShardConfig
from beam_jobs.runners import base, dataflow
from beam_jobs.runners.base import RunnerConfig
from beam_jobs.runners.dataflow import build_wheel
from tests.beam_jobs.commands import Ran, finish_command, run_python, start_command, wait_for
from tests.beam_jobs.datasets import make_dataset, read_tree
from tests.beam_jobs.images import make_photos, write_files
from tests.object_stores.conftest import Google
from tests.object_stores.proxy import Answer, Server, answer_json
from tests.object_stores.replay import fetch_graph, staged_files
from tests.refusals import refusal
from tests.release.test_containers import make_command
from tfpipe.errors import DataError

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


WHERE = ("--runner", "dataflow", "--project", "my-project", "--region", "europe-west4")
ENGINE = RunnerConfig(runner="dataflow", project="my-project", region="europe-west4", max_workers=3)


@pytest.fixture(scope="module")
def build_once(tmp_path_factory) -> Callable[..., str]:
    """Copies the wheel, which the first job makes."""
    wheel = functools.cache(lambda: build_wheel(str(tmp_path_factory.mktemp("wheel"))))
    return lambda folder: shutil.copy(wheel(), folder)


@pytest.fixture(scope="module")
def service(tmp_path_factory) -> Iterator[Service]:
    service = Service(tmp_path_factory.mktemp("dataflow"))
    yield service
    service.stop()


@pytest.fixture
def cloud(google: Google, service: Service, build_once: Callable[..., str], monkeypatch) -> Google:
    """A store and a service with a key for both, and a clock that makes Beam wait a tenth of the time."""
    from apache_beam.options.pipeline_options_validator import PipelineOptionsValidator
    from apache_beam.runners.dataflow import dataflow_runner

    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(service.credentials))
    # Beam wants an endpoint without a port, or calls it no service and leaves out half of what it does for one.
    monkeypatch.setattr(PipelineOptionsValidator, "validate_endpoint_url", lambda *_: True)
    service.refuse = service.state = service.worker_python = None

    class Clock:
        time = staticmethod(time.time)

        @staticmethod
        def sleep(seconds: float) -> None:
            time.sleep(seconds / 10)

    monkeypatch.setattr(dataflow_runner, "time", Clock)
    monkeypatch.setattr(base, "LIST_EVERY_S", 0.3)
    monkeypatch.setattr(dataflow, "build_wheel", build_once)
    return google


def arguments(service: Service, *more: str) -> tuple[str, ...]:
    return (*ENGINE.beam_args(), f"--dataflow_endpoint={service.url}", *more)


@pytest.fixture(scope="module")
def photos() -> dict[str, bytes]:
    return {**make_photos({"cat": 7, "dog": 6}), "cat/bad.jpg": b"bad"}


@pytest.mark.slow
def test_a_flex_template_writes_the_graph_and_the_service_runs_it(cloud, service, photos, tmp_path, tfpipe):
    """The launcher's part ends before the job begins; the graph at `template_location` then makes the dataset."""
    source, output = cloud.put(f"{cloud.new()}/photos", photos), f"{cloud.new()}/out"
    graph = f"{cloud.new()}/launches/job_object"
    given = [f"--input={source}", f"--output={output}", "--num_shards=4", f"--template_location={graph}"]
    words = make_command([*given, *arguments(service)])
    submitted = len(service.jobs)
    done = tfpipe(*words)
    message = f"The plan and the graph are written; the service runs the graph at {graph}.\n"
    assert (done.code, done.out) == (0, message), done.err
    assert len(service.jobs) == submitted
    assert "manifest.json" not in cloud.tree(output)

    name = service.submit(json.loads(cloud.get(graph.partition("gs://data/")[2])), "my-project", "europe-west4")["id"]
    wait_for(lambda: service.describe(name, "", "")["currentState"] != "JOB_STATE_RUNNING", 120)
    assert service.messages(name) == {"jobMessages": []}
    make_dataset(write_files(tmp_path / "photos", photos), tmp_path / "out", num_shards=4)
    written = {path: data for path, data in cloud.tree(output).items() if not path.startswith(".tfpipe/")}
    assert written == read_tree(tmp_path / "out")


def submit(service: Service, cloud: Google, photos: dict[str, bytes], *more: str, **options: Any) -> str:
    """Submits a job that somebody else cancels at once, and returns the error message."""
    service.state = "JOB_STATE_CANCELLED"
    config = ShardConfig(cloud.put(f"{cloud.new()}/photos", photos), f"{cloud.new()}/out", **options)
    return refusal(DataError, shard_job.run, config, arguments(service, *more))


def test_the_request_names_machines_and_staged_files(cloud: Google, service: Service, photos: dict[str, bytes]) -> None:
    assert submit(service, cloud, photos, num_shards=2) == (
        "The Dataflow job was ended before it was done (it is cancelled). Finished shards are kept; run the same "
        "command again to go on."
    )
    job = list(service.jobs.values())[-1]
    assert re.fullmatch(r"tfpipe-photos-\d{8}-\d{6}", job["name"])
    assert job["type"] == 1  # batch
    (pool,) = job["environment"]["workerPools"]
    assert (pool["kind"], pool["numWorkers"], pool["autoscalingSettings"]["maxNumWorkers"]) == ("harness", 2, 3)
    (image,) = pool["sdkHarnessContainerImages"]
    assert image["useSingleCorePerContainer"] is True  # a process for each core
    assert f"beam_python{sys.version_info.major}.{sys.version_info.minor}_sdk:" in image["containerImage"]
    options = job["environment"]["sdkPipelineOptions"]["options"]
    assert options["save_main_session"] is False
    assert "use_runner_v2" in options["experiments"]
    staged = staged_files(fetch_graph(job))
    wheel = f"tfpipe-{tfpipe.__version__}-py3-none-linux_x86_64.whl"
    # No pickled main session: the other two are notes of Beam's, what to install and what is installed here.
    assert staged.keys() == {wheel, "extra_packages.txt", "submission_environment_dependencies.txt"}
    assert {package["name"] for package in pool["packages"]} == staged.keys()
    assert all("/out/.tfpipe/dataflow/" in url for url in staged.values())


def test_a_refused_job_is_one_sentence(cloud: Google, service: Service, photos: dict[str, bytes]) -> None:
    service.refuse = 403, "The caller does not have permission"
    message = submit(service, cloud, photos)
    assert re.match(r"Beam's runner ended the job: 403 POST \S+: The caller does not have permission\. Fin", message)


def test_options_that_beam_finds_invalid_are_one_sentence(cloud: Google, service: Service, photos: dict[str, bytes]):
    source = cloud.put(f"{cloud.new()}/photos", photos)
    with pytest.raises(DataError, match=r"^Beam's .*: Pipeline has validations errors: Invalid Project ID \(p1\)\. "):
        shard_job.run(ShardConfig(source, f"{cloud.new()}/out"), arguments(service, "--project=p1"))


@pytest.mark.slow
def test_a_lost_service_leaves_the_job_running(cloud, service, photos, monkeypatch, capfd):
    lost = ConnectionError("after the eight minutes for which Beam tries")
    monkeypatch.setattr(DataflowRunner, "poll_for_job_completion", Mock(side_effect=lost))
    config = ShardConfig(cloud.put(f"{cloud.new()}/photos", photos), f"{cloud.new()}/out")
    service.state = "JOB_STATE_RUNNING"
    with pytest.raises(DataError, match=r"^Dataflow does not answer any more, but the job goes on\. "):
        shard_job.run(config, arguments(service))
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.slow
def test_a_failed_job_reports_the_error_of_its_worker(cloud: Google, service: Service, photos: dict[str, bytes]):
    """The worker's error comes back through the service as a sentence."""
    source = cloud.put(f"{cloud.new()}/photos", photos)
    with pytest.raises(DataError, match=r"^At most 0 of 14 images may be bad, got 1, the first cat/bad\.jpg: "):
        shard_job.run(ShardConfig(source, f"{cloud.new()}/out", max_bad=0), arguments(service))


@pytest.mark.slow
def test_the_wheel_works_in_a_clean_environment(cloud, service: Service, photos: dict[str, bytes], tmp_path):
    """`tfpipe shard` submits a job; its wheel does the work, installed beside Beam alone as on Dataflow's machines."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    service.worker_python = python = str(tmp_path / "venv" / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, f"apache-beam[gcp]=={version('apache-beam')}"], check=True)
    source, output = cloud.put(f"{cloud.new()}/photos", photos), f"{cloud.new()}/out"
    # Beam speaks HTTP to a localhost too; then it leaves out the checks that the other tests go through.
    endpoint = service.url.replace("127.0.0.1", "localhost")
    done = cloud.run("shard", source, output, *WHERE, "--num-shards", 4, "--", f"--dataflow_endpoint={endpoint}")
    print(done.stderr, done.stdout, sep="\n")
    job = list(service.jobs)[-1]
    page = f"https://console.cloud.google.com/dataflow/jobs/europe-west4/{job}?project=my-project"
    assert done.stderr.splitlines()[1] == f"Dataflow job {job}: {page}"
    assert done.stdout.splitlines()[0].startswith("train: 13 records, 4 shards, ")
    make_dataset(write_files(tmp_path / "photos", photos), tmp_path / "out", num_shards=4)
    assert cloud.tree(output) == read_tree(tmp_path / "out")
    listed = subprocess.run([*pip[:3], "list"], check=True, capture_output=True, text=True).stdout
    assert "tfpipe" in listed
    assert "tensorflow" not in listed


@pytest.mark.slow
def test_ctrl_c_leaves_the_job(cloud: Google, service: Service, photos: dict[str, bytes]) -> None:
    service.state = "JOB_STATE_RUNNING"
    source, output = cloud.put(f"{cloud.new()}/photos", photos), f"{cloud.new()}/out"
    endpoint = service.url.replace("127.0.0.1", "localhost")
    process = start_command(source, output, *WHERE, "--", f"--dataflow_endpoint={endpoint}")
    num_jobs = len(service.jobs)
    wait_for(lambda: len(service.jobs) > num_jobs and service.log[-1].method == "GET", 60)  # it watches the job
    process.send_signal(signal.SIGINT)
    code, out, err = finish_command(process)
    assert (code, out) == (130, "")
    job = list(service.jobs)[-1]
    assert err.rstrip().splitlines()[-2:] == [
        "Interrupted. The job goes on without this command; end it with: "
        f"gcloud dataflow jobs cancel {job} --project=my-project --region=europe-west4",
        "When it has ended, run the same command again: finished shards are kept.",
    ]
    assert any(name.endswith(".whl") for name in cloud.tree(output))  # machines that are added later need it
