"""The manifests of `tfpipe serve --kubernetes`: their structure by hand, and against the schemas where those are."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.conftest import Tfpipe

ARGUMENTS = ("serve", "--kubernetes", "--image", "registry.example/tfpipe:1", "--workers", 3, "--worker-cpu", "16")


@pytest.fixture
def documents(tfpipe: Tfpipe) -> dict[tuple[str, str], dict[str, Any]]:
    done = tfpipe(*ARGUMENTS)
    assert (done.code, done.err) == (0, "")
    return {(item["kind"], item["metadata"]["name"]): item for item in yaml.safe_load_all(done.out)}


def test_json_and_yaml_hold_the_same_objects(tfpipe: Tfpipe, documents: dict[tuple[str, str], dict[str, Any]]) -> None:
    assert tfpipe(*ARGUMENTS, "--json").json == {"apiVersion": "v1", "kind": "List", "items": list(documents.values())}
    assert list(documents) == [("Service", "tfpipe-worker"), ("StatefulSet", "tfpipe-worker")]


def test_workers_have_stable_addresses_and_resources(documents: dict[tuple[str, str], dict[str, Any]]) -> None:
    spec = documents["StatefulSet", "tfpipe-worker"]["spec"]
    container = spec["template"]["spec"]["containers"][0]
    assert documents["Service", "tfpipe-worker"]["spec"]["clusterIP"] == "None"
    assert (spec["serviceName"], spec["replicas"]) == ("tfpipe-worker", 3)
    assert container["image"] == "registry.example/tfpipe:1"
    assert container["command"] == ["tfpipe", "serve", "--port", "5050"]
    assert container["resources"] == {"requests": {"cpu": "16", "memory": "8Gi"}, "limits": {"memory": "8Gi"}}


def test_selectors_labels_ports_and_probes_fit_each_other(documents: dict[tuple[str, str], dict[str, Any]]) -> None:
    service, spec = (documents[kind, "tfpipe-worker"]["spec"] for kind in ("Service", "StatefulSet"))
    labels = {"app": "tfpipe-worker"}
    assert service["selector"] == spec["selector"]["matchLabels"] == labels
    assert spec["template"]["metadata"]["labels"] == labels
    container = spec["template"]["spec"]["containers"][0]
    [port] = service["ports"]
    assert container["ports"] == [{"name": port["targetPort"], "containerPort": port["port"]}]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["tcpSocket"] == {"port": port["targetPort"]}


@pytest.mark.slow
def test_the_schemas_of_kubernetes_accept_every_object(documents: dict[tuple[str, str], dict[str, Any]]) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for document in documents.values():
        validate.validate(document, validate.latest_version(), strict=True)
