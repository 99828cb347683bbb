"""Datasets that real worker processes make: two of them, started as a user starts them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

from tfpipe.data_service import Service, ServiceConfig
from tfpipe.errors import ConfigError
from tfpipe.pipeline.service_client import check_address, distribute, split_address

ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def workers_of(dispatcher: str) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Starts two workers as a user starts them; yields the process that starts lost ones again, and the workers."""
    command = [sys.executable, "-m", "tfpipe", "serve", "--dispatcher", dispatcher, "--workers", "2", "--json"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        yield process.pid, json.loads(process.stdout.readline())["workers"]
        process.terminate()
        assert process.wait(10) == 0


@contextlib.contextmanager
def halted(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def epochs() -> tf.data.Dataset:
    """Shaped like training in throughput order: numbers of epochs, files, records; (epoch, record)."""
    files = tf.data.Dataset.range(2**62).flat_map(
        lambda epoch: tf.data.Dataset.range(4).map(lambda file: (file, epoch))
    )
    return files.interleave(
        lambda file, epoch: tf.data.Dataset.range(10).map(lambda record: (epoch, file * 10 + record)),
        cycle_length=2,
        num_parallel_calls=tf.data.AUTOTUNE,
    )


@pytest.mark.slow
@pytest.mark.parametrize("evaluates_again", [False, True])
def test_workers_evaluate_once_and_share_training_which_goes_on_without_a_lost_one(evaluates_again: bool) -> None:
    # One test, because the workers' import of TensorFlow takes longer than all of it.
    with (
        Service(ServiceConfig(host="127.0.0.1", port=0, workers=0)) as service,
        workers_of(service.dispatcher) as (starter, workers),
    ):
        check_that_an_evaluation_comes_exactly_once_and_in_order(service.dispatcher)
        batches = check_that_workers_share_the_epochs_of_training(service.dispatcher)
        with halted(starter):  # it would start the worker again
            os.kill(workers[0]["pid"], signal.SIGKILL)
            assert len(list(islice(batches, 2000))) == 2000
        check_that_a_lost_worker_comes_back(workers[0]["address"])
        if evaluates_again:
            # This process tried to reach the lost worker meanwhile, and gRPC waits longer from one try to the next.
            check_that_an_evaluation_comes_exactly_once_and_in_order(service.dispatcher)


def check_that_an_evaluation_comes_exactly_once_and_in_order(dispatcher: str) -> None:
    # Two sources that must stay side by side, and a last batch that is short: sharding would break both.
    runs = tf.data.Dataset.range(0, 200, 16).flat_map(lambda at: tf.data.Dataset.range(at, tf.minimum(at + 16, 200)))
    dataset = tf.data.Dataset.zip((runs.map(lambda x: x * x), tf.data.Dataset.range(200))).batch(16)
    distributed = distribute(dataset, dispatcher, training=False, limit_s=60)
    for _ in range(2):
        got = [pair for batch in distributed.as_numpy_iterator() for pair in zip(*batch, strict=True)]
        assert got == [(i * i, i) for i in range(200)]
    counted = dataset.apply(tf.data.experimental.assert_cardinality(13))
    assert distribute(counted, dispatcher, training=False).cardinality() == 13


def check_that_workers_share_the_epochs_of_training(dispatcher: str) -> Iterator[Any]:
    dataset = epochs().batch(10).apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    distributed = distribute(dataset, dispatcher, training=True, limit_s=60)
    assert distributed.cardinality() == tf.data.INFINITE_CARDINALITY
    batches = distributed.as_numpy_iterator()
    counts = Counter(pair for batch in islice(batches, 400) for pair in zip(*batch, strict=True))
    assert len(counts) == 4000  # no record twice in the same epoch, from whichever worker
    return batches


def check_that_a_lost_worker_comes_back(address: str) -> None:
    # On its old port: only there does a pass that was running ask for it again.
    deadline = time.monotonic() + 120
    while True:
        try:
            check_address(f"grpc://{address}")
            break
        except ConfigError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def test_a_dispatcher_that_does_not_answer() -> None:
    sentence = (
        r"`service` must name a running dispatcher, got grpc://127.0.0.1:9, which does not answer \(connection "
        r"refused\). Start one with: tfpipe serve"
    )
    with pytest.raises(ConfigError, match=sentence):
        distribute(tf.data.Dataset.range(3), "grpc://127.0.0.1:9", training=True, limit_s=60)
    with pytest.raises(ConfigError, match="`--x` must name a running dispatcher"):
        check_address("grpc://no-such-host.invalid:5050", "`--x`")


@pytest.mark.parametrize(("answer", "reason"), [(b"", "no answer within"), (b"SSH-2.0-OpenSSH", "something else than")])
def test_a_port_on_which_something_else_listens(monkeypatch, answer: bytes, reason: str) -> None:
    monkeypatch.setattr("tfpipe.pipeline.service_client._ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def talk() -> None:
            with server.accept()[0] as connection, contextlib.suppress(ConnectionError):
                connection.sendall(answer)
                while connection.recv(1024):  # until the other end closes
                    pass

        thread = threading.Thread(target=talk)
        thread.start()
        with pytest.raises(ConfigError, match=reason):
            check_address(f"grpc://127.0.0.1:{server.getsockname()[1]}")
        thread.join()


def test_addresses() -> None:
    assert split_address("grpc://host:5050") == ("host", 5050)
    assert split_address("grpc://[::1]:1") == ("::1", 1)
    for wrong in (
        "host:1",
        "grpc://host",
        "grpc://host:0",
        "grpc://host:65536",
        "grpc://::1:5",
        "grpc://a:1/b",
        "grpc://:1",
    ):
        with pytest.raises(ConfigError, match="`service` must be like grpc://host:5050, got "):
            split_address(wrong)
