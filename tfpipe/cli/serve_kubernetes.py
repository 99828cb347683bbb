"""The manifests with which `tfpipe serve --kubernetes` runs a service on a cluster.

```
Service tfpipe-dispatcher ── Deployment, one pod ── volume claim: the journal
Service tfpipe-worker (headless) ── StatefulSet: tfpipe-worker-0, tfpipe-worker-1, ...
```

A worker of a StatefulSet keeps its name when it starts again. So the dispatcher can know its workers by address, as
exact order needs.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tfpipe.errors import ConfigError

_DISPATCHER, _WORKER, _JOURNAL = "tfpipe-dispatcher", "tfpipe-worker", "/journal"
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9/.-]*")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|[kMGT]|[KMGT]i)?")
_WORDS = ("true", "false", "yes", "no", "on", "off", "null", "y", "n")
"""The words that YAML does not read as text."""

_DISPATCHER_RESOURCES = {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}
_NODE_USER = 1000
_MAX_PORT = 65535


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """The service of a cluster.

    Attributes:
        image: The container image that has tfpipe and TensorFlow.
        workers: The number of workers.
        port: The port of the dispatcher.
        worker_port: The port of each worker.
        worker_cpu: The cores that each worker asks for, as Kubernetes writes them.
        worker_memory: The memory that each worker asks for and may take, as Kubernetes writes it.

    Raises:
        ConfigError: A value cannot be used.
    """

    image: str
    workers: int
    port: int
    worker_port: int
    worker_cpu: str = "8"
    worker_memory: str = "8Gi"

    def __post_init__(self) -> None:
        if not self.image or re.search(r"\s", self.image):
            raise ConfigError(f"`image` must be the name of a container image, got {self.image!r}.")
        if self.workers < 1:
            raise ConfigError(f"`workers` must be at least 1, got {self.workers}.")
        for name in ("port", "worker_port"):
            if not 1 <= getattr(self, name) <= _MAX_PORT:
                raise ConfigError(f"`{name}` must be from 1 to {_MAX_PORT}, got {getattr(self, name)}.")
        for name in ("worker_cpu", "worker_memory"):
            if not _QUANTITY.fullmatch(getattr(self, name)):
                raise ConfigError(f"`{name}` must be like 8, 500m or 16Gi, got {getattr(self, name)!r}.")

    @property
    def worker_addresses(self) -> list[str]:
        """The addresses of the workers, which stay when a worker starts again."""
        return [f"{_WORKER}-{number}.{_WORKER}:{self.worker_port}" for number in range(self.workers)]


def make_manifests(config: ClusterConfig) -> list[dict[str, Any]]:
    """Makes the objects of Kubernetes for a service, in the order in which they are to be created."""
    return [
        _make_claim(),
        _make_service(_DISPATCHER, config.port),
        _make_dispatcher(config),
        # A worker is reached by its name before it is ready: it joins the dispatcher first.
        _make_service(_WORKER, config.worker_port, clusterIP="None", publishNotReadyAddresses=True),
        _make_workers(config),
    ]


def to_yaml(manifests: list[dict[str, Any]]) -> str:
    """Returns documents in YAML, in the order of their keys."""
    return "---\n".join("".join(f"{line}\n" for line in _yaml_lines(manifest)) for manifest in manifests)


def _make_claim() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": f"{_DISPATCHER}-journal", "labels": {"app": _DISPATCHER}},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }


def _make_service(name: str, port: int, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {**spec, "selector": {"app": name}, "ports": [{"name": "grpc", "port": port, "targetPort": "grpc"}]},
    }


def _make_dispatcher(config: ClusterConfig) -> dict[str, Any]:
    command = ["tfpipe", "serve", "--dispatcher-only", "--port", str(config.port), "--host", _DISPATCHER]
    command += ["--work-dir", _JOURNAL]
    for address in config.worker_addresses:
        command += ["--worker-address", address]
    container = {
        **_make_container("dispatcher", config.image, command, config.port),
        "resources": _DISPATCHER_RESOURCES,
        "volumeMounts": [{"name": "journal", "mountPath": _JOURNAL}],
    }
    pod = {
        "securityContext": {"fsGroup": _NODE_USER},  # so that a user who is not root can write the journal
        "containers": [container],
        "volumes": [{"name": "journal", "persistentVolumeClaim": {"claimName": f"{_DISPATCHER}-journal"}}],
    }
    # Two dispatchers must never write one journal, so the old one ends before the new one starts.
    spec = {"replicas": 1, "strategy": {"type": "Recreate"}, **_make_template(_DISPATCHER, pod)}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": _DISPATCHER}, "spec": spec}


def _make_workers(config: ClusterConfig) -> dict[str, Any]:
    command = ["tfpipe", "serve", "--dispatcher", f"grpc://{_DISPATCHER}:{config.port}"]
    command += ["--worker-port", str(config.worker_port), "--host", f"$(POD_NAME).{_WORKER}"]
    memory = {"memory": config.worker_memory}
    container = {
        **_make_container("worker", config.image, command, config.worker_port),
        "env": [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "resources": {"requests": {"cpu": config.worker_cpu, **memory}, "limits": memory},
    }
    spec = {
        "serviceName": _WORKER,
        "replicas": config.workers,
        "podManagementPolicy": "Parallel",
        **_make_template(_WORKER, {"containers": [container]}),
    }
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": _WORKER}, "spec": spec}


def _make_container(name: str, image: str, command: list[str], port: int) -> dict[str, Any]:
    look = {"tcpSocket": {"port": "grpc"}}
    return {
        "name": name,
        "image": image,
        "command": command,
        "ports": [{"name": "grpc", "containerPort": port}],
        "startupProbe": {**look, "periodSeconds": 2, "failureThreshold": 90},  # TensorFlow's import may take minutes
        "readinessProbe": {**look, "periodSeconds": 5},
        "livenessProbe": {**look, "periodSeconds": 20, "failureThreshold": 3},
    }


def _make_template(name: str, pod: dict[str, Any]) -> dict[str, Any]:
    labels = {"app": name}
    # Without links no variables of the namespace's other services reach the command.
    pod = {"enableServiceLinks": False, **pod}
    return {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}


def _yaml_lines(value: Any) -> Iterator[str]:
    """Yields the lines of a dictionary or a list. A scalar or an empty one stands behind its key."""
    for key, item in value.items() if isinstance(value, dict) else ((None, item) for item in value):
        mark = "-" if key is None else f"{key}:"
        if not isinstance(item, dict | list):
            yield f"{mark} {_quote(item)}"
            continue
        lines = _yaml_lines(item)
        if key is None:
            yield f"- {next(lines)}"
        else:
            yield mark
        yield from (f"  {line}" for line in lines)


def _quote(scalar: Any) -> str:
    """Returns a scalar as YAML reads it. Text in JSON's quotes is valid YAML."""
    plain = isinstance(scalar, str) and _PLAIN.fullmatch(scalar) and scalar.lower() not in _WORDS
    return str(scalar) if plain else json.dumps(scalar)
