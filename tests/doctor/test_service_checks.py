"""The checks of a service: sentences from numbers, and one run against workers in threads of this process."""

from __future__ import annotations

import json
import re
import socket
import threading
from pathlib import Path

import pytest

from tests.conftest import Tfpipe
from tfpipe.dataset.load import load_manifest
from tfpipe.doctor import service_checks
from tfpipe.doctor.result import Check
from tfpipe.doctor.service_checks import check_service, check_speed, describe_speed, describe_workers
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.config.service_options import ServiceOptions
from tfpipe.service.measure import ServiceRates, WorkerRate
from tfpipe.service.server import Server


def test_workers_are_listed() -> None:
    assert describe_workers(("a:1", "b:1"), {}) == Check("workers", "ok", "2 workers answer: a:1, b:1.")
    assert describe_workers(("a:1",), {}) == Check("workers", "ok", "1 worker answers: a:1.")


def test_workers_that_do_not_answer_are_named() -> None:
    assert describe_workers(("a:1", "b:1"), {"b:1": "connection refused"}) == Check(
        "workers",
        "failure",
        "1 of 2 workers answer; missing: b:1 (connection refused).",
        "Start it on its machine with: tfpipe serve. All machines need the same release of tfpipe.",
    )


def test_the_speed_is_that_of_all_workers() -> None:
    rates = ServiceRates((WorkerRate("a:1", 9.0, 1.0), WorkerRate("b:1", 10.0, 0.9)), 20.0, 15e6)
    assert describe_speed(rates, 100) == Check(
        "speed", "ok", "The workers give 1,900 images/s, 285.0 MB/s: a:1 900, b:1 1,000."
    )


@pytest.fixture
def address() -> str:
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=Server(1).serve, args=(listener,), daemon=True).start()
    return f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_service_that_runs(
    address: str, small_dataset: Path, tfpipe: Tfpipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_checks, "_MEASURE_S", 0.1)
    manifest = load_manifest(str(small_dataset))
    workers, reads = check_service((address,), manifest, "train")
    assert workers == Check("workers", "ok", f"1 worker answers: {address}.")
    assert reads == Check(
        "reads",
        "ok",
        f"1 worker made the first and the last record of 'train' of {small_dataset} as this machine does.",
    )
    for training in (True, False):
        service = ServiceOptions(workers=(address,))
        config = PipelineConfig(batch_size=4, image_size=8, training=training, service=service)
        [speed] = check_speed(manifest, "train", config)
        assert re.fullmatch(rf"The workers give [\d,]+ images/s, [\d.]+ [KM]B/s: {address} [\d,]+\.", speed.found)
    done = tfpipe("serve-check", address, "--dataset", small_dataset, "--json")
    assert (done.code, done.json["ok"]) == (0, True)
    assert [(check["name"], check["status"]) for check in done.json["checks"]] == [("workers", "ok"), ("reads", "ok")]


def test_a_worker_that_does_not_answer_is_a_failure(tfpipe: Tfpipe) -> None:
    done = tfpipe("serve-check", "127.0.0.1:9", "--json")
    assert done.code == 1
    workers, reads = json.loads(done.out)["checks"]
    assert workers["found"] == "0 of 1 worker answer; missing: 127.0.0.1:9 (connection refused)."
    assert (workers["status"], reads["status"]) == ("failure", "skipped")
