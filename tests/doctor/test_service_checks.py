"""The checks of a service: sentences from numbers, and one run against servers of TensorFlow in this process."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import tensorflow as tf
from tfpipe.data_service import claim_ports
from tfpipe.pipeline.service_client import announce_journal, announce_workers

from tests.conftest import Tfpipe
from tfpipe.doctor.result import Check
from tfpipe.doctor.service_checks import (
    ProbeAnswers,
    check_delivery,
    check_service,
    describe_journal,
    describe_reads,
    describe_speed,
    describe_versions,
    describe_wire,
    describe_workers,
)
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.source import Source, get_source
from tfpipe.open_dataset import load_manifest

GRPC = "grpc://d:5050"


def test_workers_that_answer_are_listed() -> None:
    assert describe_workers(GRPC, ("a:1", "b:1"), ("a:1", "b:1"), {}) == Check(
        "workers", "ok", "2 workers answer: a:1, b:1. The dispatcher knows them by address, as exact order needs."
    )
    assert describe_workers(GRPC, (), ("a:1",), {}) == Check(
        "workers",
        "warning",
        "1 worker answers: a:1. Any worker may join, so there is no exact order.",
        "Name the workers with --worker-address where the dispatcher starts, to get exact order.",
    )
    assert describe_workers(GRPC, (), (), {}) == Check(
        "workers",
        "failure",
        "No worker has joined the dispatcher.",
        "Start one with: tfpipe serve --dispatcher grpc://d:5050",
    )


def test_workers_that_do_not_answer_are_named() -> None:
    assert describe_workers(GRPC, ("a:1", "b:1"), ("a:1",), {"b:1": "connection refused"}) == Check(
        "workers",
        "failure",
        "1 of 2 workers answer; missing: b:1 (connection refused).",
        "Start it again under its address, with: tfpipe serve --dispatcher grpc://d:5050 --worker-port PORT",
    )


@pytest.mark.parametrize(
    ("answers", "known", "found"),
    [
        (ProbeAnswers((0, 1), (), None), ("a:1", "b:1"), "Every worker runs a pipeline of this TensorFlow, 2.0."),
        (ProbeAnswers((None, None), (), None), (), "Every worker runs a pipeline of this TensorFlow, 2.0."),
        (
            ProbeAnswers((0,), (), None),
            ("a:1", "b:1"),
            "b:1 did not run a small pipeline of TensorFlow 2.0 within 20 s.",
        ),
        (
            ProbeAnswers((None,), (), None),
            (),
            "1 of 2 workers did not run a small pipeline of TensorFlow 2.0 within 20 s.",
        ),
        (
            ProbeAnswers((), (), "Op type not registered"),
            (),
            "A pipeline of TensorFlow 2.0 failed in the service: Op type not registered.",
        ),
    ],
)
def test_versions(answers: ProbeAnswers, known: tuple[str, ...], found: str) -> None:
    check = describe_versions("2.0", answers, ("a:1", "b:1"), known)
    assert check.found == found
    assert check.status == ("ok" if found.startswith("Every") else "failure")


def test_a_worker_that_reads_other_files_is_named() -> None:
    assert describe_reads(ProbeAnswers((0, 1), ((1, "/d/1"), (1, "/d/2")), None), ("a:1", "b:1"), 2) == Check(
        "reads",
        "failure",
        "b:1 must read the first record of /d/1 as this machine does, and does not (2 such answers in all).",
        "The shards must lie under the same path or URL on every worker, and be the same files.",
    )
    assert describe_reads(ProbeAnswers((None,), ((None, "/d/1"),), None), (), 2).found == (
        "A worker must read the first record of /d/1 as this machine does, and does not."
    )
    assert describe_reads(ProbeAnswers((), (), None), (), 2).status == "skipped"


def test_a_worker_that_is_late_is_named() -> None:
    assert describe_speed({"a:1": 900.0, "b:1": 1000.0}) == Check(
        "speed", "ok", "The workers make 1,900 images/s: a:1 900, b:1 1,000."
    )
    assert describe_speed({"a:1": 1000.0, "b:1": 200.0, "c:1": 1100.0}) == Check(
        "speed",
        "warning",
        "The workers make 2,300 images/s: a:1 1,000, b:1 200, c:1 1,100. b:1 is late, and exact order waits for it: "
        "600 images/s come.",
        "Give it as many free cores and as near a dataset as the others have, or leave it out.",
    )


def test_the_wire_and_compression() -> None:
    assert describe_wire(150e6, 0.84, 0.015).found == (
        "150.0 MB a second, not compressed. Snappy would make a batch 16% smaller for 15 ms of a core."
    )
    assert describe_wire(150e6, 1.01, 0.015).found == (
        "150.0 MB a second, not compressed. Snappy would make a batch no smaller for 15 ms of a core."
    )


class Servers(NamedTuple):
    """A dispatcher and a worker of TensorFlow in this process."""

    dispatcher: str
    worker: str
    held: list[object]


@pytest.fixture
def servers() -> Iterator[Servers]:
    dispatcher, worker = (f"127.0.0.1:{port}" for port in claim_ports([(0, "port")] * 2))
    service = tf.data.experimental.service
    config = service.DispatcherConfig(port=int(dispatcher.split(":")[1]), worker_addresses=[worker])
    worker_config = service.WorkerConfig(dispatcher, worker, port=int(worker.split(":")[1]))
    held = [service.DispatchServer(config), service.WorkerServer(worker_config)]
    announce_workers(f"grpc://{dispatcher}", [worker])
    yield Servers(f"grpc://{dispatcher}", worker, held)
    held.clear()


def test_a_service_that_runs(
    servers: Servers, small_dataset: Path, tfpipe: Tfpipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfpipe.pipeline.service_measure._MEASURE_S", 0.2)
    source = get_source(load_manifest(str(small_dataset)), "train")
    checks = {check.name: check for check in check_service(servers.dispatcher, source)}
    assert {name: check.status for name, check in checks.items()} == {
        "dispatcher": "ok",
        "workers": "ok",
        "versions": "ok",
        "journal": "warning",
        "reads": "ok",
    }
    assert checks["workers"].found.startswith(f"1 worker answers: {servers.worker}. The dispatcher knows them")
    assert checks["reads"].found == (
        "Every worker that ran the pipeline read 2 files of the dataset as this machine does."
    )
    assert checks["journal"] == describe_journal(False)
    check_that_each_worker_is_measured(servers, source)
    announce_journal(servers.dispatcher)
    done = tfpipe("serve", "--check", servers.dispatcher.removeprefix("grpc://"), "--json")
    assert (done.code, done.json["ok"], done.json["dispatcher"]) == (0, True, servers.dispatcher)
    assert {check["name"]: check["status"] for check in done.json["checks"]} == {
        "dispatcher": "ok",
        "workers": "ok",
        "versions": "ok",
        "journal": "ok",
        "reads": "skipped",
    }


def check_that_each_worker_is_measured(servers: Servers, source: Source) -> None:
    config = PipelineConfig(global_batch_size=4, image_size=8, service=servers.dispatcher, order="exact")
    speed, wire = check_delivery(source, config)
    assert (speed.name, speed.status, wire.name, wire.status) == ("speed", "ok", "wire", "ok")
    assert re.fullmatch(rf"The workers make [\d,]+ images/s: {servers.worker} [\d,]+\.", speed.found)
    [skipped] = check_delivery(source, replace(config, order="auto"))
    assert (skipped.name, skipped.status) == ("speed", "skipped")


def test_a_dispatcher_that_does_not_answer_is_a_failure(tfpipe: Tfpipe) -> None:
    done = tfpipe("serve", "--check", "127.0.0.1:9", "--json")
    assert done.code == 1
    assert json.loads(done.out)["checks"] == [
        {
            "name": "dispatcher",
            "status": "failure",
            "found": "--check must name a running dispatcher, got grpc://127.0.0.1:9, which does not answer "
            "(connection refused).",
            "advice": "Start one with: tfpipe serve",
        }
    ]
