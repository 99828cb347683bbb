"""Strategies on real devices in processes of their own, and on fake devices."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from unittest.mock import Mock

import pytest
import tensorflow as tf

from tests.refusals import refusal
from tfpipe.distribution import strategy as strategies
from tfpipe.errors import ConfigError
from tfpipe.readers.numpy import NumpyBatches

# Processes of their own

# Without Keras, and without JAX, which it would load, TensorFlow starts in half the time.
START = """
import json, logging, sys, time
sys.modules.update(keras=None, jax=None)
import tensorflow as tf
from tfpipe.distribution import strategy as strategies
from tfpipe.errors import ConfigError
lines = []
handler = logging.Handler()
handler.emit = lambda record: lines.append(record.getMessage())
logging.getLogger("tfpipe").addHandler(handler)
logging.getLogger("tfpipe").setLevel(logging.INFO)
began = time.perf_counter()
"""

SILENT_TPU = """
strategies._CONNECT_S = 0.5
began = time.perf_counter()
try:
    strategies.resolve_strategy(sys.argv[1])
    answer = "a strategy"
except ConfigError as error:
    answer = str(error)
print(json.dumps([answer, time.perf_counter() - began]))
"""

ROWS = """
import tfpipe
strategy = strategies.resolve_strategy()
options = {"batch_size": 4, "image_size": 8, "extra_features": ("image/filename",), "epochs": 1}
data = strategy.experimental_distribute_dataset(tfpipe.build_dataset(sys.argv[1], "train", **options))
parts = [part for batch in data for part in strategy.experimental_local_results(batch["image/filename"])]
print(json.dumps([lines, [[name.decode() for name in part.numpy()] for part in parts]]))
"""


@pytest.mark.slow  # a node that nobody knows ends in the same way, here in this process
def test_a_tpu_address_that_never_says_a_word_is_an_error_in_time(processes) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:  # it connects
        silent = f"grpc://127.0.0.1:{server.getsockname()[1]}"
        # The stuck thread must not keep the process, or `finish` gives up.
        unheard, unheard_s = processes.finish(processes.start("-c", START + SILENT_TPU, silent))
    assert unheard == (
        f"The TPU '{silent}' that was asked for does not answer (connecting took more than 0.5 s); "
        "check that it is up and not in use by another process."
    )
    assert unheard_s < 30  # of 60


@pytest.mark.slow
def test_workers_share_the_batches_of_a_dataset_that_tensorflow_distributes(processes, small_dataset) -> None:
    (lines, one), (other_lines, other) = processes.run_workers(2, "-c", START + ROWS, str(small_dataset))
    for i, found in enumerate((lines, other_lines)):
        assert found == [
            "TF_CONFIG names 2 workers; waiting for all of them.",
            "CPU: 2 replicas in 2 processes (MultiWorkerMirroredStrategy); "
            f"TF_CONFIG names 2 workers, and this is worker {i}",
        ]
    expected = NumpyBatches(small_dataset, "train", batch_size=4, image_size=8, extra_features=("image/filename",))
    names = [[name.decode() for name in expected.read(step)["image/filename"]] for step in range(3)]
    assert [sorted(mine + others) for mine, others in zip(one, other, strict=True)] == [sorted(step) for step in names]


def test_a_tpu_address_that_refuses_is_an_error_in_time(processes) -> None:
    refuses = f"grpc://127.0.0.1:{processes.free_ports(1)[0]}"
    began = time.perf_counter()
    refused = refusal(ConfigError, strategies.resolve_strategy, refuses)
    assert time.perf_counter() - began < 30  # of 60
    assert refused.startswith(f"The TPU '{refuses}' that was asked for does not answer ([Errno ")
    assert refused.endswith("Connection refused); check that it is up and not in use by another process.")


def test_no_tpu_is_decided_at_once() -> None:
    began = time.perf_counter()
    assert strategies._connect_tpu(None) is None
    assert time.perf_counter() - began < 8  # of 10


@pytest.mark.parametrize(
    ("devices", "strategy", "named", "text"),
    [
        ({"CPU": 1}, "OneDeviceStrategy", "/CPU:0", "CPU: 1 replica in 1 process ({}); no TPU and no GPU were found"),
        (
            *({"CPU": 2, "GPU": 1}, "OneDeviceStrategy", "/GPU:0"),
            "GPU: 1 replica in 1 process ({}); no TPU was found, and 1 GPU",
        ),
        (
            *({"CPU": 1, "GPU": 3}, "MirroredStrategy", ["/GPU:0", "/GPU:1", "/GPU:2"]),
            "GPU: 3 replicas in 1 process ({}); no TPU was found, and 3 GPUs",
        ),
    ],
)
def test_the_devices_make_the_strategy(machine, devices: dict, strategy: str, named: object, text: str) -> None:
    machine.devices = devices
    assert strategies.describe_strategy(strategies.resolve_strategy()) == text.format(strategy)
    assert machine.calls == [(strategy, named)]


@pytest.mark.parametrize("sign", ["TPU", "TPU_SYSTEM"])
def test_a_tpu_of_this_machine_comes_before_its_gpus(machine, sign: str) -> None:
    machine.devices = {"CPU": 1, "GPU": 1, sign: 1}
    strategy = strategies.resolve_strategy()
    assert machine.calls == ["connect", "initialize", ("TPUStrategy", None)]
    assert strategies.describe_strategy(strategy) == "TPU: 8 replicas in 1 process (TPUStrategy); a TPU answered"


@pytest.mark.parametrize("by_environment", [True, False])
def test_a_named_tpu_is_connected(machine, monkeypatch, by_environment: bool) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        name = f"grpc://127.0.0.1:{server.getsockname()[1]}"
        if by_environment:
            monkeypatch.setenv("TPU_NAME", name)
        strategies.resolve_strategy(None if by_environment else name)
    assert machine.calls == ["connect", "initialize", ("TPUStrategy", None)]


@pytest.mark.parametrize(("name", "tpu"), [("local", None), ("", "local")])
def test_a_local_tpu_asks_no_network(machine, monkeypatch, name: str, tpu: str) -> None:
    monkeypatch.setenv("TPU_NAME", name)
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: pytest.fail("it does"))
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: pytest.fail("it does"))
    strategies.resolve_strategy(tpu)
    assert machine.calls == ["connect", "initialize", ("TPUStrategy", None)]


def test_a_tpu_that_does_not_start_is_no_cpu_run(machine, monkeypatch) -> None:
    sentence = "TPUs not found in the cluster. Failed in initialization: No OpKernel"
    refuse = Mock(side_effect=tf.errors.NotFoundError(None, None, sentence))
    monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", refuse)
    machine.devices = {"CPU": 1, "TPU_SYSTEM": 1}
    assert refusal(ConfigError, strategies.resolve_strategy) == (
        "The TPU that TensorFlow sees on this machine does not answer (TPUs not found in the cluster); "
        "check that it is up and not in use by another process."
    )


@pytest.mark.parametrize("by_environment", [True, False])
def test_a_node_that_nobody_knows(machine, monkeypatch, by_environment: bool) -> None:
    def never(*_: object, **__: object) -> None:
        time.sleep(30)

    monkeypatch.setattr(strategies, "_RESOLVE_S", 0.2)
    monkeypatch.setattr("urllib.request.urlopen", never)
    if by_environment:
        monkeypatch.setenv("TPU_NAME", "node-1")
    began = time.perf_counter()
    assert refusal(ConfigError, strategies.resolve_strategy, None if by_environment else "node-1") == (
        f"The TPU 'node-1' that {'the environment names' if by_environment else 'was asked for'} does not answer "
        "(finding its address took more than 0.2 s); check that it is up and not in use by another process."
    )
    assert time.perf_counter() - began < 20  # of 30
    assert not machine.calls


def test_an_empty_tpu_name_names_none_and_a_tpu_library_without_a_tpu_is_said(machine, monkeypatch, caplog) -> None:
    monkeypatch.setenv("TPU_NAME", "")
    strategies.resolve_strategy("")
    assert machine.calls == [("OneDeviceStrategy", "/CPU:0")]
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object())
    strategies.resolve_strategy()
    assert "install tensorflow-tpu" in caplog.text


@pytest.mark.parametrize("value", ["{", '{"zone": "z"}'])
def test_a_broken_tpu_config(machine, monkeypatch, value: str) -> None:
    monkeypatch.setenv("TPU_CONFIG", value)
    with pytest.raises(ConfigError, match="TPU_CONFIG in the environment must be JSON with `tpu_node_name`; mend or"):
        strategies.resolve_strategy()


# TF_CONFIG

TWO = {"worker": ["a:1", "b:1"]}
CHIEF = {"chief": ["a:1"], "worker": ["b:1"]}
WHICH = "TF_CONFIG must say which of its 2 workers this process is, got task"


@pytest.mark.parametrize(
    ("value", "strategy_name"),
    [
        ({}, "OneDeviceStrategy"),
        ({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}, "OneDeviceStrategy"),
        ({"cluster": TWO, "task": {"type": "evaluator", "index": 0}}, "OneDeviceStrategy"),
        ({"cluster": TWO, "task": {"type": "worker", "index": 1}}, "MultiWorkerMirroredStrategy"),
        ({"cluster": CHIEF, "task": {"type": "chief", "index": 0}}, "MultiWorkerMirroredStrategy"),
    ],
)
def test_more_than_one_worker_makes_a_cluster(machine, monkeypatch, value: dict, strategy_name: str) -> None:
    monkeypatch.setattr(strategies, "describe_strategy", lambda _: "")
    monkeypatch.setenv("TF_CONFIG", json.dumps(value))
    strategies.resolve_strategy()
    assert [name for name, _ in machine.calls] == [strategy_name]


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("{", r"TF_CONFIG in the environment cannot be read \(.+\); mend or unset it\."),
        ('{"cluster": 3}', r"TF_CONFIG in the environment cannot be read \(.+\); mend or unset it\."),
        (json.dumps({"cluster": TWO}), f"{WHICH} None None; set `task` to "),
        (json.dumps({"cluster": TWO, "task": {"type": "worker", "index": 2}}), f"{WHICH} worker 2; set `task` to "),
        (
            json.dumps({"cluster": {**TWO, "ps": ["c:1"]}}),
            "TF_CONFIG must name workers only, got parameter servers; remove `ps` from its cluster.",
        ),
    ],
)
def test_a_broken_tf_config(machine, monkeypatch, value: str, sentence: str) -> None:
    monkeypatch.setenv("TF_CONFIG", value)
    with pytest.raises(ConfigError, match="^" + sentence):
        strategies.resolve_strategy()
    assert not machine.calls


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
def test_precision_fits_the_device(machine, policy, devices, capability, precision, name, given):
    machine.devices, machine.details = devices, {"compute_capability": capability} if capability else {}
    assert strategies.set_precision(precision, strategies.resolve_strategy() if given else None) == name
    assert policy() == name


def test_an_unknown_precision() -> None:
    with pytest.raises(ConfigError, match=r"^`precision` must be auto, float32 or bfloat16, got 'float16'\.$"):
        strategies.set_precision("float16")
