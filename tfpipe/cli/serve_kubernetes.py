"""The manifests with which `tfpipe serve --kubernetes` runs workers on a cluster.

```
Service tfpipe-worker (headless) ── StatefulSet: tfpipe-worker-0, tfpipe-worker-1, ...
```

A worker of a StatefulSet keeps its name when it starts again, so trainers find it again.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tfpipe.errors import ConfigError
from tfpipe.service.config import MAX_PORT

_WORKER = "tfpipe-worker"
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9/.-]*")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|[kMGT]|[KMGT]i)?")
_WORDS = ("true", "false", "yes", "no", "on", "off", "null", "y", "n")
"""The words that YAML does not read as text."""


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """The service of a cluster.

    Attributes:
        image: The container image that has tfpipe.
        workers: The number of workers.
        port: The port of each worker.
        worker_cpu: The cores that each worker asks for, as Kubernetes writes them.
        worker_memory: The memory that each worker asks for and may take, as Kubernetes writes it.

    Raises:
        ConfigError: A value cannot be used.
    """

    image: str
    workers: int
    port: int
    worker_cpu: str = "8"
    worker_memory: str = "8Gi"

    def __post_init__(self) -> None:
        if not self.image or re.search(r"\s", self.image):
            raise ConfigError(f"`image` must be the name of a container image, got {self.image!r}.")
        if self.workers < 1:
            raise ConfigError(f"`workers` must be at least 1, got {self.workers}.")
        if not 1 <= self.port <= MAX_PORT:
            raise ConfigError(f"`port` must be from 1 to {MAX_PORT}, got {self.port}.")
        for name in ("worker_cpu", "worker_memory"):
            if not _QUANTITY.fullmatch(getattr(self, name)):
                raise ConfigError(f"`{name}` must be like 8, 500m or 16Gi, got {getattr(self, name)!r}.")


def make_manifests(config: ClusterConfig) -> list[dict[str, Any]]:
    """Makes the objects of Kubernetes for a service, in the order in which they are to be created."""
    return [_make_service(config), _make_workers(config)]


def to_yaml(manifests: list[dict[str, Any]]) -> str:
    """Returns documents in YAML, in the order of their keys."""
    return "---\n".join("".join(f"{line}\n" for line in _yaml_lines(manifest)) for manifest in manifests)


def _make_service(config: ClusterConfig) -> dict[str, Any]:
    ports = [{"name": "batches", "port": config.port, "targetPort": "batches"}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": _WORKER, "labels": {"app": _WORKER}},
        "spec": {"clusterIP": "None", "selector": {"app": _WORKER}, "ports": ports},
    }


def _make_workers(config: ClusterConfig) -> dict[str, Any]:
    look, memory, labels = {"tcpSocket": {"port": "batches"}}, {"memory": config.worker_memory}, {"app": _WORKER}
    container = {
        "name": "worker",
        "image": config.image,
        "command": ["tfpipe", "serve", "--port", str(config.port)],
        "ports": [{"name": "batches", "containerPort": config.port}],
        "startupProbe": {**look, "periodSeconds": 2, "failureThreshold": 30},
        "readinessProbe": {**look, "periodSeconds": 5},
        "livenessProbe": {**look, "periodSeconds": 20, "failureThreshold": 3},
        "resources": {"requests": {"cpu": config.worker_cpu, **memory}, "limits": memory},
    }
    # Without links no variables of the namespace's other services reach the command.
    pod = {"enableServiceLinks": False, "containers": [container]}
    spec = {
        "serviceName": _WORKER,
        "replicas": config.workers,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": _WORKER}, "spec": spec}


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
