"""Meshes of DTensor: rows are split over `data` alone, and a model that is split learns what one device learns."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tensorflow.experimental import dtensor

import tfpipe
from tests.distribution.on_mesh import EVALUATE, SIZE, TRAIN, hash_rows
from tests.refusals import refusal
from tfpipe.distribution.mesh import distribute_over_mesh
from tfpipe.engine.host import Host
from tfpipe.errors import ConfigError

CONFIG = tfpipe.PipelineConfig(**TRAIN)
PARTS, ROWS = 2, 8  # of the data, and of each part in a batch of 16


def check_mesh(processes: list[Any], dataset: Path, batches: list[list[int]] | None = None) -> None:
    """Checks what processes saw on a mesh, against the batches of one device."""
    manifest = tfpipe.load_manifest(str(dataset))
    expected = list(tfpipe.build_dataset(manifest, "train", CONFIG).take(3))
    sums = [hash_rows(batch["image"]) for batch in expected]
    assert batches is None or batches[:3] == sums
    losses = follow_on_one_device([batch["image"].numpy() for batch in expected])
    labels: dict[int, Counter] = {}
    for places, layout, held, found_losses, evaluated, steps in processes:
        assert layout == ["['data', 'unsharded', 'unsharded', 'unsharded']", "['data']"]
        for step_sums, parts in zip(sums, held, strict=True):
            assert parts == [step_sums[part * ROWS : (part + 1) * ROWS] for part, _ in places]
        assert found_losses == pytest.approx(losses, rel=1e-4)
        assert steps == 4
        for (part, _), seen in zip(places, evaluated, strict=True):
            assert labels.setdefault(part, Counter(seen)) == Counter(seen)  # whole along `model`
    assert sorted(labels) == list(range(PARTS))
    whole = tfpipe.build_dataset(manifest, "validation", replace(CONFIG, **EVALUATE))
    assert sum(labels.values(), Counter()) == Counter(
        label for batch in whole for label in batch["label"].numpy()[batch["mask"].numpy()].tolist()
    )


def follow_on_one_device(images: list[np.ndarray[Any, Any]]) -> list[float]:
    """Returns the losses of the model of `on_mesh.py`, by NumPy."""
    weights = (np.arange(SIZE * 6, dtype=np.float64) / 1e4).reshape(SIZE, 6)
    losses = []
    for batch in images:
        flat = batch.reshape(16, SIZE) / 255.0
        products = flat @ weights
        losses.append(float((products**2).mean()))
        weights = weights - 0.01 * flat.T @ (2 * products / products.size)
    return losses


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "devices", "layout"),
    [(2, 2, "data"), (2, 2, "model"), (4, 1, "data")],  # along `model`: in a process, over two, over two of four
)
def test_processes_train_on_one_mesh(processes: Any, shades: Path, count: int, devices: int, layout: str) -> None:
    script = str(Path(__file__).with_name("on_mesh.py"))
    addresses = [f"127.0.0.1:{port}" for port in processes.free_ports(count)]
    command = (script, str(shades), str(devices), layout)
    started = [processes.start(*command, str(number), *addresses) for number in range(count)]
    try:
        results = [processes.finish(process) for process in started]
    finally:
        for process in started:
            process.kill()
    assert sum(len(result[0]) for result in results) == 4
    check_mesh(results, shades)


def test_a_mesh_of_one_device_reads_what_a_pipeline_reads(shades: Path) -> None:
    mesh = dtensor.create_mesh([("data", 1), ("model", 1)], device_type="CPU")
    manifest, config = tfpipe.load_manifest(str(shades)), replace(CONFIG, as_supervised=True)
    batches = tfpipe.distribute_over_mesh(mesh, shades, "train", config, 16)  # a path is as good as a manifest
    expected = tfpipe.build_dataset(manifest, "train", config, start_step=16).take(2)
    for _ in range(2):  # each pass begins at the start step
        for (image, label), (expected_image, expected_label) in zip(batches, expected, strict=False):
            assert dtensor.unpack(label)[0].numpy().tolist() == expected_label.numpy().tolist()
            assert hash_rows(dtensor.unpack(image)[0]) == hash_rows(expected_image)
    assert batches.steps_per_epoch == 15


def make_mesh(dims: dict[str, int], num_local: int, process: int = 0) -> Any:
    """Stands for a mesh whose devices this machine does not have."""
    shape, own = tuple(dims.values()), range(process * num_local, (process + 1) * num_local)
    places = [dict(zip(dims, map(int, np.unravel_index(i, shape)), strict=True)) for i in range(np.prod(shape))]
    return SimpleNamespace(
        dim_names=list(dims),
        num_local_devices=lambda: num_local,
        local_device_ids=lambda: list(own),
        unravel_index=lambda: dict(enumerate(places)),
        local_device_locations=lambda: [places[number] for number in own],
    )


@pytest.mark.parametrize(
    ("mesh", "options", "sentence"),
    [
        (make_mesh({"batch": 2, "model": 2}, 4), {}, "`mesh` must have a dimension data, got batch, model."),
        (
            *(make_mesh({"model": 2, "data": 3}, 2, 1), {}),
            "Each process must hold adjacent rows, as many as every other, got slices 0, 2 of 3 in process 1. Order "
            "the mesh's devices by their process.",
        ),
        (make_mesh({"data": 3}, 3), {}, "`batch_size` 16 must be divisible by 3 replicas; use 15 or 18."),
        (
            *(make_mesh({"data": 2, "model": 2}, 1, 3), {"order": "throughput"}),
            "Processes that hold the same rows of a mesh must read the same records, and `order` throughput "
            "gives each process others. Use exact order.",
        ),
        (
            *(make_mesh({"data": 2}, 2), {"extra_features": ("image/filename",)}),
            "No device holds text, got image/filename. Leave it out.",
        ),
    ],
)
def test_what_a_mesh_cannot_share_is_refused(shades: Path, mesh: Any, options: dict[str, Any], sentence: str) -> None:
    assert refusal(ConfigError, distribute_over_mesh, mesh, shades, "train", replace(CONFIG, **options)) == sentence


def test_hosts_of_one_model_group_read_the_same_rows(shades: Path, monkeypatch) -> None:
    hosts: list[Host] = []

    def take(data: Any, split: Any, config: Any, host: Host, **others: Any) -> Any:
        hosts.append(host)
        return SimpleNamespace(dataset=lambda: None)

    monkeypatch.setattr("tfpipe.distribution.mesh.build_host_stages", take)
    manifest = tfpipe.load_manifest(str(shades))
    for process in range(4):  # of two devices each: two processes hold each part
        distribute_over_mesh(make_mesh({"data": 2, "model": 4}, 2, process), manifest, "train", CONFIG)
    assert hosts == [Host(0, 2, 2), Host(0, 2, 2), Host(1, 2, 2), Host(1, 2, 2)]
