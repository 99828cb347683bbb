"""Batches that the workers of a tf.data service make with the native library."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfpipe
from tests.integrity.made import payload, write_dataset
from tests.native.conftest import Draw
from tfpipe.data_service import Service, ServiceConfig
from tfpipe.doctor.service_checks import check_decoder
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.source import Source
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline import service_client
from tfpipe.pipeline.build import build_dataset, build_stages
from tfpipe.pipeline.plan.read_plan import ReadPlan

CONFIG = PipelineConfig(global_batch_size=8, image_size=16, order="exact", extra_features=("image/filename",))
STEPS = 12  # an epoch has 7


@dataclasses.dataclass
class Host:
    """A host's place among others."""

    num_input_pipelines: int
    input_pipeline_id: int
    num_replicas_in_sync: int


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory, draw_jpeg: Draw) -> Manifest:
    """60 JPEGs in three shards."""
    payloads = [
        payload(k, encoded=draw_jpeg(20 + k % 7, 30 - k % 5), format="JPEG", height=20 + k % 7, width=30 - k % 5)
        for k in range(60)
    ]
    shards = {"train": payloads[:13], "train:1": payloads[13:40], "train:2": payloads[40:]}
    made = write_dataset(tmp_path_factory.mktemp("served") / "made", shards)
    path = made / "manifest.json"
    path.write_text(path.read_text().replace('"PNG": 60', '"JPEG": 60'))
    return tfpipe.load_manifest(str(made))


def read(manifest: Manifest, config: PipelineConfig, start_step: int = 0, count: int = STEPS) -> list[dict[str, Any]]:
    return list(build_dataset(manifest, "train", config, None, start_step).take(count).as_numpy_iterator())


def check_same(batches: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(batches) == len(expected)
    for batch, other in zip(batches, expected, strict=True):
        assert batch.keys() == other.keys()
        assert all(np.array_equal(batch[name], other[name]) for name in batch)


@pytest.mark.parametrize("host", [None, Host(1, 0, 4), Host(2, 1, 4), Host(4, 2, 4)])
@pytest.mark.parametrize("options", [{}, {"run_records": 4, "lanes": 2, "num_streams": 2}], ids=str)
def test_a_worker_makes_any_steps_as_the_host_would(
    manifest: Manifest, host: Host | None, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_client, "check_address", lambda address: None)
    monkeypatch.setattr(service_client, "count_native_cpus", lambda address: 3)
    config = dataclasses.replace(CONFIG, **options)
    stages = build_stages(manifest, "train", dataclasses.replace(config, service="grpc://a:1"), host).until("batch")
    merged = stages.merge_neighbors()
    assert [merged[place].settings.get("reader", merged[place].settings.get("decoder")) for place in (2, 4)] == [
        "native",
        "native",
    ]
    assert merged[4].settings["threads"] == 3
    replicas = 1 if host is None else host.num_replicas_in_sync // host.num_input_pipelines
    local = list(build_dataset(manifest, "train", config, host).take(STEPS * replicas).as_numpy_iterator())
    steps = tf.data.Dataset.range(2, STEPS, 3)
    expected = [local[int(step) * replicas + replica] for step in steps for replica in range(replicas)]
    check_same(list(stages.apply_to(steps).as_numpy_iterator()), expected)


@pytest.mark.slow
def test_workers_load_the_operations_and_say_so(manifest: Manifest) -> None:
    with Service(ServiceConfig(host="127.0.0.1", port=0, workers=1)) as service:
        assert service_client.count_native_cpus(service.dispatcher)
        for options in ({}, {"decoder": "native"}, {"decoder": "pillow"}):
            served = dataclasses.replace(CONFIG, service=service.dispatcher, **options)
            check_same(read(manifest, served, 3), read(manifest, CONFIG, 3))
        once = dataclasses.replace(CONFIG, order="auto", training=False)
        served = dataclasses.replace(once, service=service.dispatcher)
        check_same(read(manifest, served, count=20), read(manifest, once, count=20))
        unordered = read(manifest, dataclasses.replace(CONFIG, order="throughput", service=service.dispatcher), count=3)
        assert [batch["image"].shape for batch in unordered] == [(8, 16, 16, 3)] * 3


def test_a_worker_without_the_package_leaves_all_to_tensorflow(manifest: Manifest) -> None:
    workers = ("a.invalid:1", "b.invalid:1")
    with Service(ServiceConfig(host="127.0.0.1", port=0, workers=0, worker_addresses=workers)) as service:
        address = service.dispatcher
        service_client.announce_native_library(address, workers[0])
        served = dataclasses.replace(CONFIG, service=address)
        assert build_stages(manifest, "train", served).merge_neighbors()[4].settings["decoder"] == "tensorflow"
        plan = ReadPlan(Source.from_manifest(manifest, "train"), served)
        assert check_decoder(plan).found == (
            "TensorFlow decodes. The native library is faster, and not every worker of the `service` has the release "
            "of this machine."
        )
        with pytest.raises(tfpipe.ConfigError) as caught:
            build_stages(manifest, "train", dataclasses.replace(served, decoder="native"))
        assert str(caught.value) == (
            f"`decoder` native needs tfpipe {tfpipe.__version__} with its native library in every worker of the "
            f"`service`, and the dispatcher {address} does not know it of all. Install it there and start the workers "
            "again, or use auto."
        )
        service_client.announce_native_library(address, workers[1])
        assert build_stages(manifest, "train", served).merge_neighbors()[4].settings["decoder"] == "native"
        assert check_decoder(plan).found == "The native library decodes, crops and resizes in one call."
    assert check_decoder(plan).status == "skipped"


def test_each_worker_says_its_cores_once(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = ("a.invalid:1", "b.invalid:1")
    with Service(ServiceConfig(host="127.0.0.1", port=0, workers=0, worker_addresses=workers)) as service:
        assert service_client.count_native_cpus(service.dispatcher) is None
        for worker, cores in (*zip(workers, (4, 16), strict=True), (workers[1], 32)):
            monkeypatch.setattr("tfpipe.system.host_limits.usable_cpus", lambda cores=cores: cores)
            service_client.announce_native_library(service.dispatcher, worker)
        assert service_client.count_native_cpus(service.dispatcher) == 16
        monkeypatch.setattr("tfpipe.pipeline.service_client.__version__", "9.9")
        assert service_client.count_native_cpus(service.dispatcher) is None


def test_the_plan_counts_the_cores_of_the_workers(manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfpipe.system.host_limits.usable_cpus", lambda: 4)
    config = dataclasses.replace(CONFIG, service="grpc://a:1")
    plan = ReadPlan(Source.from_manifest(manifest, "train"), config)
    assert (plan.decoder, plan.reads_batches, plan.cpus, plan.lacks_native_library) == ("tensorflow", False, 4, False)
    plan = dataclasses.replace(plan, worker_cpus=64)
    assert (plan.decoder, plan.reads_batches, plan.cpus) == ("native", True, 64)
    assert plan.ahead_records == plan.order.turn_records
