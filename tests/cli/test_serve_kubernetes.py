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
    assert list(documents) == [
        ("PersistentVolumeClaim", "tfpipe-dispatcher-journal"),
        ("Service", "tfpipe-dispatcher"),
        ("Deployment", "tfpipe-dispatcher"),
        ("Service", "tfpipe-worker"),
        ("StatefulSet", "tfpipe-worker"),
    ]


def test_the_dispatcher_knows_the_workers_and_keeps_a_journal(documents: dict[tuple[str, str], dict[str, Any]]) -> None:
    spec = documents["Deployment", "tfpipe-dispatcher"]["spec"]
    pod = spec["template"]["spec"]
    container = pod["containers"][0]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    assert (
        container["command"]
        == (
            "tfpipe serve --dispatcher-only --port 5050 --host tfpipe-dispatcher --work-dir /journal "
            "--worker-address tfpipe-worker-0.tfpipe-worker:5051 --worker-address tfpipe-worker-1.tfpipe-worker:5051 "
            "--worker-address tfpipe-worker-2.tfpipe-worker:5051"
        ).split()
    )
    assert container["volumeMounts"] == [{"name": "journal", "mountPath": "/journal"}]
    claim = {"claimName": "tfpipe-dispatcher-journal"}
    assert pod["volumes"] == [{"name": "journal", "persistentVolumeClaim": claim}]


def test_workers_have_stable_addresses_and_resources(documents: dict[tuple[str, str], dict[str, Any]]) -> None:
    spec = documents["StatefulSet", "tfpipe-worker"]["spec"]
    container = spec["template"]["spec"]["containers"][0]
    service = documents["Service", "tfpipe-worker"]["spec"]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    assert (spec["serviceName"], spec["replicas"]) == ("tfpipe-worker", 3)
    assert container["image"] == "registry.example/tfpipe:1"
    command = (
        "tfpipe serve --dispatcher grpc://tfpipe-dispatcher:5050 --worker-port 5051 --host $(POD_NAME).tfpipe-worker"
    )
    assert container["command"] == command.split()
    assert container["resources"] == {"requests": {"cpu": "16", "memory": "8Gi"}, "limits": {"memory": "8Gi"}}


def test_selectors_labels_ports_and_probes_fit_each_other(documents: dict[tuple[str, str], dict[str, Any]]) -> None:
    for kind, name in (("Deployment", "tfpipe-dispatcher"), ("StatefulSet", "tfpipe-worker")):
        service, spec = documents["Service", name]["spec"], documents[kind, name]["spec"]
        labels = {"app": name}
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
