"""Strategies on real devices in processes of their own, and on devices that are made up."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace

import pytest

from tfpipe.errors import ConfigError

tf = pytest.importorskip("tensorflow")

from tfpipe import distribution  # noqa: E402

TPU_VARIABLES = ("TPU_NAME", "TPU_CONFIG", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TF_CONFIG")


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in TPU_VARIABLES:
        monkeypatch.delenv(name, raising=False)


# Processes of their own

START = """
import json, logging, sys, time
import tensorflow as tf
from tfpipe import distribution
from tfpipe.errors import ConfigError
lines = []
handler = logging.Handler()
handler.emit = lambda record: lines.append(record.getMessage())
logging.getLogger("tfpipe").addHandler(handler)
logging.getLogger("tfpipe").setLevel(logging.INFO)
began = time.perf_counter()
"""

FOUR_CPUS = """
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
strategy = distribution.resolve_strategy()
seconds = time.perf_counter() - began
total = strategy.reduce("SUM", strategy.run(lambda: tf.distribute.get_replica_context().replica_id_in_sync_group), None)
print(json.dumps([seconds, lines, int(total), strategy.extended.worker_devices]))
"""

TPU_NOBODY_HAS = """
answers = []
def ask(tpu):
    began = time.perf_counter()
    try:
        distribution.resolve_strategy(tpu)
        answers.append("a strategy")
    except ConfigError as error:
        answers.append(str(error))
    answers.append(time.perf_counter() - began)

ask(sys.argv[1])
distribution._CONNECT_S = 0.5
ask(sys.argv[2])
print(json.dumps(answers))
"""

WORKER = """
strategy = distribution.resolve_strategy()
def step():
    return tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group + 1, tf.float32) * 10
total = strategy.reduce("SUM", strategy.run(tf.function(step)), None)
print(json.dumps([lines, float(total), list(distribution.replica_batch_size(strategy, global_batch_size=8))]))
"""


def start(body: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", START + body, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", **environment},
    )


def finish(process: subprocess.Popen[str]) -> list:
    try:
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, err[-3000:]
    return json.loads(out.splitlines()[-1])


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def test_four_logical_cpus_are_mirrored_and_no_tpu_is_decided_at_once() -> None:
    seconds, lines, total, devices = finish(start(FOUR_CPUS))
    assert lines == ["CPU: 4 replicas in 1 process (MirroredStrategy); no TPU and no GPU were found"]
    assert total == 0 + 1 + 2 + 3
    assert [device[-5:] for device in devices] == ["CPU:0", "CPU:1", "CPU:2", "CPU:3"]
    assert seconds < 1


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Connects, and never says a word."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield server.getsockname()[1]


def test_a_tpu_address_that_does_not_answer_is_an_error_in_time(silent_port: int) -> None:
    refuses = f"grpc://127.0.0.1:{free_ports(1)[0]}"
    silent = f"grpc://127.0.0.1:{silent_port}"
    began = time.perf_counter()
    refused, refused_s, unheard, unheard_s = finish(start(TPU_NOBODY_HAS, refuses, silent))
    assert refused.startswith(f"The TPU '{refuses}' that was asked for does not answer ([Errno ")
    assert refused.endswith("Connection refused); check that it is up and not in use by another process.")
    assert refused_s < 5
    assert unheard == (
        f"The TPU '{silent}' that was asked for does not answer (connecting took more than 0.5 s); "
        "check that it is up and not in use by another process."
    )
    assert unheard_s < 5
    assert time.perf_counter() - began < 30  # the stuck thread does not keep the process


def test_two_workers_of_tf_config_reduce_a_sum() -> None:
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    processes = [
        start(WORKER, TF_CONFIG=json.dumps({"cluster": cluster, "task": {"type": "worker", "index": i}}))
        for i in range(2)
    ]
    for i, (lines, total, sizes) in enumerate([finish(process) for process in processes]):
        assert lines == [
            "TF_CONFIG names 2 workers; waiting for all of them.",
            "CPU: 2 replicas in 2 processes (MultiWorkerMirroredStrategy); "
            f"TF_CONFIG names 2 workers, and this is worker {i}",
        ]
        assert total == 10 + 20
        assert sizes == [8, 4]


# TPU and GPU that are made up


class Machine:
    """What TensorFlow says it has, and the strategies that would be made, in the order of the calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.devices: dict[str, int] = {"CPU": 1}
        self.capability: tuple[int, int] | None = (8, 0)
        self.calls: list = []
        self.names: dict = {"TPU_NAME": None}
        for function in ("list_physical_devices", "list_logical_devices", "get_visible_devices"):
            monkeypatch.setattr(tf.config, function, self.list)
        monkeypatch.setattr(tf.config.experimental, "get_device_details", self.details)
        monkeypatch.setattr(tf.config, "experimental_connect_to_cluster", lambda _: self.calls.append("connect"))
        monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", lambda _: self.calls.append("initialize"))
        for name in ("OneDeviceStrategy", "MirroredStrategy", "TPUStrategy", "MultiWorkerMirroredStrategy"):
            monkeypatch.setattr(tf.distribute, name, self.strategy(name))

    def list(self, kind: str | None = None) -> list:
        return [
            SimpleNamespace(device_type=one, name=f"/device:{one}:{i}")
            for one, count in self.devices.items()
            if kind in (None, one)
            for i in range(count)
        ]

    def details(self, _: object) -> dict:
        return {} if self.capability is None else {"compute_capability": self.capability}

    def strategy(self, name: str) -> type:
        calls = self.calls

        def init(self, devices=None, cluster_resolver=None) -> None:
            calls.append((name, devices if isinstance(devices, str | list) else None))
            devices = [devices] if isinstance(devices, str) else devices
            self.num_replicas_in_sync = len(devices) if isinstance(devices, list) else 8
            self.extended = SimpleNamespace(worker_devices=devices)

        return type(name, (), {"__init__": init})


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.mark.parametrize(
    ("devices", "call", "text"),
    [
        (
            {"CPU": 1},
            ("OneDeviceStrategy", "/CPU:0"),
            "CPU: 1 replica in 1 process (OneDeviceStrategy); no TPU and no GPU were found",
        ),
        (
            {"CPU": 2, "GPU": 1},
            ("OneDeviceStrategy", "/GPU:0"),
            "GPU: 1 replica in 1 process (OneDeviceStrategy); no TPU was found, and 1 GPU",
        ),
        (
            {"CPU": 1, "GPU": 3},
            ("MirroredStrategy", ["/GPU:0", "/GPU:1", "/GPU:2"]),
            "GPU: 3 replicas in 1 process (MirroredStrategy); no TPU was found, and 3 GPUs",
        ),
    ],
)
def test_the_devices_make_the_strategy(machine: Machine, devices: dict, call: tuple, text: str) -> None:
    machine.devices = devices
    strategy = distribution.resolve_strategy()
    assert machine.calls == [call]
    assert distribution.describe_strategy(strategy) == text


@pytest.mark.parametrize("sign", ["TPU", "TPU_SYSTEM"])
def test_a_tpu_of_this_machine_comes_before_its_gpus(machine: Machine, sign: str) -> None:
    machine.devices = {"CPU": 1, "GPU": 1, sign: 1}
    strategy = distribution.resolve_strategy()
    assert machine.calls == ["connect", "initialize", ("TPUStrategy", None)]
    assert distribution.describe_strategy(strategy) == "TPU: 8 replicas in 1 process (TPUStrategy); a TPU answered"


@pytest.mark.parametrize("by_environment", [True, False])
def test_a_named_tpu_is_connected(machine: Machine, monkeypatch: pytest.MonkeyPatch, by_environment: bool) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        name = f"grpc://127.0.0.1:{server.getsockname()[1]}"
        if by_environment:
            monkeypatch.setenv("TPU_NAME", name)
        distribution.resolve_strategy(None if by_environment else name)
    assert machine.calls == ["connect", "initialize", ("TPUStrategy", None)]


@pytest.mark.parametrize(("name", "tpu"), [("local", None), ("", "local")])
def test_a_local_tpu_asks_no_network(machine: Machine, monkeypatch: pytest.MonkeyPatch, name: str, tpu: str) -> None:
    monkeypatch.setenv("TPU_NAME", name)
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: pytest.fail("it does"))
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: pytest.fail("it does"))
    distribution.resolve_strategy(tpu)
    assert machine.calls == ["connect", "initialize", ("TPUStrategy", None)]


def test_a_tpu_that_does_not_start_is_no_cpu_run(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise tf.errors.NotFoundError(
            None, None, "TPUs not found in the cluster. Failed in initialization: No OpKernel"
        )

    monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", refuse)
    machine.devices = {"CPU": 1, "TPU_SYSTEM": 1}
    with pytest.raises(ConfigError) as caught:
        distribution.resolve_strategy()
    assert str(caught.value) == (
        "The TPU that TensorFlow sees on this machine does not answer (TPUs not found in the cluster); "
        "check that it is up and not in use by another process."
    )


@pytest.mark.parametrize("by_environment", [True, False])
def test_a_node_that_nobody_knows(machine: Machine, monkeypatch: pytest.MonkeyPatch, by_environment: bool) -> None:
    def never(*_: object, **__: object) -> None:
        time.sleep(30)

    monkeypatch.setattr(distribution, "_RESOLVE_S", 0.2)
    monkeypatch.setattr("urllib.request.urlopen", never)
    if by_environment:
        monkeypatch.setenv("TPU_NAME", "node-1")
    began = time.perf_counter()
    with pytest.raises(ConfigError) as caught:
        distribution.resolve_strategy(None if by_environment else "node-1")
    assert str(caught.value) == (
        f"The TPU 'node-1' that {'the environment names' if by_environment else 'was asked for'} does not answer "
        "(finding its address took more than 0.2 s); check that it is up and not in use by another process."
    )
    assert time.perf_counter() - began < 2
    assert not machine.calls


def test_an_empty_tpu_name_names_none(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_NAME", "")
    distribution.resolve_strategy("")
    assert machine.calls == [("OneDeviceStrategy", "/CPU:0")]


def test_a_tpu_library_without_a_tpu_is_said(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object())
    distribution.resolve_strategy()
    assert machine.calls == [("OneDeviceStrategy", "/CPU:0")]
    assert "install tensorflow-tpu" in caplog.text


@pytest.mark.parametrize("value", ["{", '{"zone": "z"}'])
def test_a_broken_tpu_config(machine: Machine, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("TPU_CONFIG", value)
    with pytest.raises(ConfigError, match="TPU_CONFIG in the environment must be JSON with `tpu_node_name`; mend or"):
        distribution.resolve_strategy()


# TF_CONFIG

TWO = {"worker": ["a:1", "b:1"]}


@pytest.mark.parametrize(
    ("value", "made"),
    [
        ({}, "OneDeviceStrategy"),
        ({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}, "OneDeviceStrategy"),
        ({"cluster": TWO, "task": {"type": "evaluator", "index": 0}}, "OneDeviceStrategy"),
        ({"cluster": TWO, "task": {"type": "worker", "index": 1}}, "MultiWorkerMirroredStrategy"),
        (
            {"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": {"type": "chief", "index": 0}},
            "MultiWorkerMirroredStrategy",
        ),
    ],
)
def test_more_than_one_worker_makes_a_cluster(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, value: dict, made: str
) -> None:
    monkeypatch.setattr(distribution, "describe_strategy", lambda _: "")
    monkeypatch.setenv("TF_CONFIG", json.dumps(value))
    distribution.resolve_strategy()
    assert [name for name, _ in machine.calls] == [made]


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("{", r"TF_CONFIG in the environment cannot be read \(.+\); mend or unset it\."),
        ('{"cluster": 3}', r"TF_CONFIG in the environment cannot be read \(.+\); mend or unset it\."),
        (
            json.dumps({"cluster": TWO}),
            "TF_CONFIG must say which of its 2 workers this process is, got task None None; set `task` to ",
        ),
        (
            json.dumps({"cluster": TWO, "task": {"type": "worker", "index": 2}}),
            "TF_CONFIG must say which of its 2 workers this process is, got task worker 2; set `task` to ",
        ),
        (
            json.dumps({"cluster": {**TWO, "ps": ["c:1"]}}),
            "TF_CONFIG must name workers only, got parameter servers; remove `ps` from its cluster.",
        ),
    ],
)
def test_a_broken_tf_config(machine: Machine, monkeypatch: pytest.MonkeyPatch, value: str, sentence: str) -> None:
    monkeypatch.setenv("TF_CONFIG", value)
    with pytest.raises(ConfigError, match="^" + sentence):
        distribution.resolve_strategy()
    assert not machine.calls


# Precision


@pytest.fixture
def policy() -> Iterator[object]:
    yield lambda: tf.keras.mixed_precision.global_policy().name
    tf.keras.mixed_precision.set_global_policy("float32")


@pytest.mark.parametrize(
    ("devices", "capability", "precision", "name"),
    [
        ({"CPU": 1}, None, "auto", "float32"),
        ({"CPU": 1}, None, "bfloat16", "mixed_bfloat16"),
        ({"CPU": 1, "GPU": 1}, (7, 5), "auto", "float32"),
        ({"CPU": 1, "GPU": 1}, None, "auto", "float32"),
        ({"CPU": 1, "GPU": 2}, (8, 0), "auto", "mixed_bfloat16"),
        ({"CPU": 1, "GPU": 2}, (9, 0), "float32", "float32"),
        ({"CPU": 1, "TPU": 8}, None, "auto", "mixed_bfloat16"),
    ],
)
@pytest.mark.parametrize("given", [True, False])
def test_precision_fits_the_device(
    machine: Machine, policy, devices: dict, capability: tuple | None, precision: str, name: str, given: bool
) -> None:
    machine.devices, machine.capability = devices, capability
    strategy = distribution.resolve_strategy() if given else None
    assert distribution.set_precision(precision, strategy) == name
    assert policy() == name


def test_an_unknown_precision() -> None:
    with pytest.raises(ConfigError, match=r"^`precision` must be auto, float32 or bfloat16, got 'float16'\.$"):
        distribution.set_precision("float16")


# Batch sizes


@pytest.mark.parametrize(
    ("sizes", "found"),
    [({"global_batch_size": 96}, (96, 12)), ({"per_replica_batch_size": 12}, (96, 12))],
)
def test_batch_sizes(sizes: dict, found: tuple) -> None:
    assert distribution.replica_batch_size(SimpleNamespace(num_replicas_in_sync=8), **sizes) == found


EXACTLY_ONE = "Exactly one of `global_batch_size` and `per_replica_batch_size` must be given, got "


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ({"global_batch_size": 100}, "Global batch size 100 must be divisible by 8 replicas; use 96 or 104."),
        ({"global_batch_size": 3}, "Global batch size 3 must be divisible by 8 replicas; use 8."),
        ({"global_batch_size": 0}, "`global_batch_size` must be at least 1, got 0."),
        ({"per_replica_batch_size": -1}, "`per_replica_batch_size` must be at least 1, got -1."),
        ({}, EXACTLY_ONE + "neither."),
        ({"global_batch_size": 96, "per_replica_batch_size": 12}, EXACTLY_ONE + "96 and 12."),
    ],
)
def test_batch_sizes_that_cannot_be(sizes: dict, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        distribution.replica_batch_size(SimpleNamespace(num_replicas_in_sync=8), **sizes)
    assert str(caught.value) == sentence
