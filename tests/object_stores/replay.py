"""Runs a job that was submitted to Dataflow, as its machines would: from the request and the staged files alone.

    python -m tests.object_stores.replay JOB.json FOLDER [WORKER_PYTHON]

The graph and the packages are fetched from where the request says. Without WORKER_PYTHON the wheel is unpacked into
FOLDER and the worker, a process of this Python elsewhere, takes it from there; with it, the wheel is installed into
that environment with all that it asks for. Prints what the job counted, as JSON.
"""

import json
import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_provision_api_pb2, beam_runner_api_pb2
from apache_beam.runners.portability.fn_api_runner import fn_runner
from apache_beam.transforms import environments
from google.protobuf import struct_pb2

from tfpipe.storage import file_io


def staged_files(graph: Any) -> dict[str, str]:
    urls = {}
    for environment in graph.components.environments.values():
        for dependency in environment.dependencies:
            role = beam_runner_api_pb2.ArtifactStagingToRolePayload.FromString(dependency.role_payload)
            urls[role.staged_name] = beam_runner_api_pb2.ArtifactUrlPayload.FromString(dependency.type_payload).url
    return urls


def fetch_graph(job: dict[str, Any]) -> Any:
    options = job["environment"]["sdkPipelineOptions"]["options"]
    return beam_runner_api_pb2.Pipeline.FromString(file_io.read_whole(options["pipelineUrl"]))


def replay(job: dict[str, Any], folder: Path, worker_python: str | None = None) -> dict[str, int]:
    """Runs the job to its end and returns its counters."""
    graph = fetch_graph(job)
    for name, url in staged_files(graph).items():
        wheel = folder / name
        wheel.write_bytes(file_io.read_whole(url))
        if wheel.suffix == ".whl" and worker_python:
            install = [worker_python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel)]
            subprocess.run(install, check=True, stdout=sys.stderr)
        elif wheel.suffix == ".whl":
            zipfile.ZipFile(wheel).extractall(folder)
    path = "" if worker_python else f"PYTHONPATH={shlex.quote(str(folder))} "
    worker = f"cd / && exec env {path}{worker_python or sys.executable} -m apache_beam.runners.worker.sdk_worker_main"
    here = environments.SubprocessSDKEnvironment.from_command_string(worker).to_runner_api(None)
    for environment in graph.components.environments.values():
        if environment.urn == common_urns.environments.DOCKER.urn:
            environment.urn, environment.payload = here.urn, here.payload
            del environment.dependencies[:]
    given = struct_pb2.Struct()
    given.update({f"beam:option:{name}:v1": value for name, value in _worker_options(job).items()})
    info = beam_provision_api_pb2.ProvisionInfo(pipeline_options=given)
    runner = fn_runner.FnApiRunner(provision_info=fn_runner.ExtendedProvisionInfo(info))
    result = runner.run_via_runner_api(graph, PipelineOptions([]))
    result.wait_until_finish()
    counters = result.metrics().query()["counters"]
    return {c.key.metric.name: c.committed for c in counters if c.key.metric.namespace == "tfpipe"}


def _worker_options(job: dict[str, Any]) -> dict[str, Any]:
    options = job["environment"]["sdkPipelineOptions"]["options"]
    return {name: options[name] for name in ("project",) if name in options}


if __name__ == "__main__":
    request, target, *python = sys.argv[1:]
    os.makedirs(target, exist_ok=True)
    print(json.dumps(replay(json.loads(Path(request).read_text()), Path(target), *python)))
