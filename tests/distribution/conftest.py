"""Processes that train, fake devices, and a small dataset whose size no batch divides."""

import json
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

CLASSES, RECORDS = 5, 250


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch) -> None:
    for name in ("TPU_NAME", "TPU_CONFIG", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TF_CONFIG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def train(processes: Any, shades: Path) -> Callable[..., list[dict]]:
    """Runs tasks of `replicas.py` on logical CPUs in several processes; returns the results of each process.

    One replica needs no devices of its own, and so no process.
    """
    script = Path(__file__).with_name("replicas.py")

    def run(cpus: int, *tasks: str, workers: int = 1) -> list[dict]:
        command = (str(script), str(shades), str(cpus), *tasks)
        if workers > 1:
            return processes.run_workers(workers, *command)
        if cpus > 1:
            return [processes.finish(processes.start(*command))]
        import tensorflow as tf

        spec = spec_from_file_location("replicas", script)
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return [json.loads(json.dumps(module.run(str(shades), tf.distribute.OneDeviceStrategy("/CPU:0"), tasks)))]

    return run


@pytest.fixture(scope="session")
def shades(tmp_path_factory) -> Path:
    """A dataset of 250 PNGs of 12 x 12 in each of `train` and `validation`: five classes, each of another shade."""
    from tests.beam_jobs.datasets import make_dataset

    folder, rng = tmp_path_factory.mktemp("shades"), np.random.default_rng(0)
    for split in ("train", "validation"):
        for i in range(RECORDS):
            label = i % CLASSES
            path = folder / "images" / split / f"shade{label}" / f"{i:03}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            # Shades are 40 apart and blurred by 60, so that a guess by one pixel is sometimes wrong.
            Image.fromarray(rng.integers(0, 60, (12, 12, 3), np.uint8) + np.uint8(40 * label)).save(path)
    make_dataset(folder / "images", folder / "data", num_shards=4)
    return folder / "data"


class Machine:
    """What TensorFlow says it has, and the strategies that would be made, in the order of the calls."""

    def __init__(self, monkeypatch) -> None:
        import tensorflow as tf

        self.devices: dict[str, int] = {"CPU": 1}
        self.details: dict[str, tuple[int, int]] = {"compute_capability": (8, 0)}
        self.calls: list = []
        for function in ("list_physical_devices", "list_logical_devices", "get_visible_devices"):
            monkeypatch.setattr(tf.config, function, self.list)
        monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda _: self.details)
        monkeypatch.setattr(tf.config, "experimental_connect_to_cluster", lambda _: self.calls.append("connect"))
        monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", lambda _: self.calls.append("initialize"))
        for name in ("OneDeviceStrategy", "MirroredStrategy", "TPUStrategy", "MultiWorkerMirroredStrategy"):
            monkeypatch.setattr(tf.distribute, name, self.strategy(name))

    def list(self, kind: str | None = None) -> list:
        return [
            SimpleNamespace(device_type=device_type, name=f"/device:{device_type}:{i}")
            for device_type, count in self.devices.items()
            if kind in (None, device_type)
            for i in range(count)
        ]

    def strategy(self, name: str) -> type:
        calls = self.calls

        def init(self, devices=None, cluster_resolver=None) -> None:
            calls.append((name, devices if isinstance(devices, str | list) else None))
            devices = [devices] if isinstance(devices, str) else devices
            self.num_replicas_in_sync = len(devices) if isinstance(devices, list) else 8
            self.extended = SimpleNamespace(worker_devices=devices)

        return type(name, (), {"__init__": init})


@pytest.fixture
def machine(monkeypatch) -> Machine:
    return Machine(monkeypatch)
