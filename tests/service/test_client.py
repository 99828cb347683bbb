"""Batches of workers are those of this host alone, for any number of workers, whoever ends, and for every face."""

import itertools
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfpipe
from tests.beam_jobs.commands import wait_for
from tests.flipped_bit import flip_bit
from tests.integrity.made import payload, write_dataset
from tests.refusals import refusal
from tests.service.test_messages import check_same
from tests.service.workers import start_workers
from tests.several_images import write_several
from tfpipe import fields
from tfpipe.engine.clocks import PhaseTime
from tfpipe.engine.config.pipeline_config import PipelineConfig, ServiceOptions
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.readers.numpy import NumpyBatches
from tfpipe.readers.torch import TorchBatches, data_loader
from tfpipe.service import client, server
from tfpipe.service.client import RemoteMaker, is_local
from tfpipe.service.config import ServiceConfig
from tfpipe.service.server import Service

CONFIG = PipelineConfig(batch_size=8, image_size=8, seed=5, extra_features=("image/filename",))
STEPS = 15  # more than two epochs of six


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Path:
    shards = {"train": [payload(k) for k in range(20)], "train:1": [payload(k) for k in range(20, 53)]}
    return write_dataset(tmp_path_factory.mktemp("served") / "made", shards)


def repeat(batches: NumpyBatches) -> Iterator[dict[str, Any]]:
    return itertools.chain.from_iterable(itertools.repeat(batches))


def take(data: Any, config: PipelineConfig, steps: int = STEPS) -> list[dict[str, Any]]:
    return list(itertools.islice(repeat(NumpyBatches(data, "train", config, num_threads=1)), steps))


def serve(workers: int | tuple[str, ...], **options: Any) -> PipelineConfig:
    """Returns the config of a trainer whose workers run at some addresses, or are started here."""
    addresses = start_workers(workers) if isinstance(workers, int) else workers
    return replace(CONFIG, service=ServiceOptions(workers=addresses, **options))


def check_all_same(given: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(given) == len(expected) > 0
    for one, other in zip(given, expected, strict=True):
        check_same(one, other)


def count_batches(maker: RemoteMaker) -> list[int]:
    return [worker.batches for worker in maker._workers._workers]


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_any_number_of_workers_gives_the_same_batches(made: Path, workers: int) -> None:
    served = NumpyBatches(made, "train", serve(workers))
    check_all_same(list(itertools.islice(repeat(served), STEPS)), take(made, CONFIG))
    counts = count_batches(served._maker)
    assert len(counts) == workers
    assert min(counts) > 0
    assert sum(counts) >= STEPS


def test_several_images_text_tensors_and_floats_are_served(made: Path, tmp_path: Path) -> None:
    addresses = start_workers(2)
    several = write_several(tmp_path / "several", number=None)
    records = [
        {"id": k, "tokens": np.full((k % 4, 2), k, np.int32), "caption": f"é {k}", "words": ["a"] * (k % 3)}
        for k in range(20)
    ]
    schema = {"id": fields.Values("int64"), "tokens": fields.Tensor("int32", (None, 2))}
    schema |= {"caption": fields.Text(), "words": fields.Values("bytes", None)}
    plain = tfpipe.write(records, tmp_path / "plain", schema, num_shards=2, workers=0)
    small = {"batch_size": 4, "image_size": 8}
    for data, options in (
        (several, {"images": 2, "extra_features": ("caption",), **small}),
        (several, {"images": "first", **small}),
        (made, {"image_dtype": "float32", "one_hot": True, **small}),
        (plain, {"batch_size": 4}),
        (plain, {"batch_size": 4, "pad_to": {"tokens": 3}}),
    ):
        config = PipelineConfig(**options)
        check_all_same(take(data, replace(config, service=ServiceOptions(workers=addresses)), 7), take(data, config, 7))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, "auto"])
def test_a_share_of_the_steps_is_made_here(made: Path, share: Any) -> None:
    served = NumpyBatches(made, "train", serve(2, share=share))
    given = list(itertools.islice(repeat(served), STEPS))
    check_all_same(given, take(made, CONFIG))
    came = sum(count_batches(served._maker))
    assert came >= (STEPS * (1 - share) - 1 if share != "auto" else 1)


def test_local_steps_are_spread_evenly() -> None:
    assert [step for step in range(20) if is_local(step, 0.25)] == [3, 7, 11, 15, 19]
    assert [step for step in range(10) if is_local(step, 0.7)] == [1, 2, 4, 5, 7, 8, 9]
    assert not any(is_local(step, 0.0) for step in range(100))
    for share in (0.1, 1 / 3, 0.9):
        assert sum(is_local(step, share) for step in range(10**6, 10**6 + 9000)) == pytest.approx(9000 * share, abs=1)


def count_reads(maker: RemoteMaker) -> int:
    """Counts the batches that were read here, or came from workers."""
    return maker.clocks.read().get("read", PhaseTime()).calls


def test_this_host_makes_steps_while_workers_have_enough(made: Path, monkeypatch) -> None:
    free = threading.Event()
    make = server.Server._make

    def wait(self: server.Server, *request: Any) -> Any:
        free.wait(10)
        return make(self, *request)

    monkeypatch.setattr(server.Server, "_make", wait)
    batches = NumpyBatches(made, "train", serve(1, share="auto"))
    maker = batches._maker
    assert maker.steps_ahead == 4
    made_here = [threading.Thread(target=maker.make, args=(0, step)) for step in range(4)]
    for thread in made_here:
        thread.start()
    wait_for(lambda: count_reads(maker) == 2)
    free.set()
    for thread in made_here:
        thread.join()
    assert (count_reads(maker), count_batches(maker)[0]) == (4, 2)


def test_this_host_goes_on_alone_without_any_worker(made: Path) -> None:
    with server.Server("grpc://127.0.0.1:0", ("/",), 1) as worker:
        maker = NumpyBatches(made, "train", serve((f"127.0.0.1:{worker.port}",), share="auto"))._maker
        given = [maker.make(0, 0)]
    assert count_batches(maker)[0] == 1
    check_all_same([*given, *(maker.make(*divmod(step, 6)) for step in range(1, STEPS))], take(made, CONFIG))
    assert count_batches(maker)[0] == 1


def test_a_run_goes_on_with_other_workers(made: Path) -> None:
    whole = take(made, CONFIG)
    first = NumpyBatches(made, "train", serve(1))
    given = list(itertools.islice(repeat(first), 8))
    second = NumpyBatches(made, "train", serve(3))
    second.load_state_dict(first.state_dict())
    given += list(itertools.islice(repeat(second), STEPS - 8))
    check_all_same(given, whole)
    served = NumpyBatches(made, "train", serve(2))
    served._maker.make(0, 0)
    check_same(pickle.loads(pickle.dumps(served._maker)).make(0, 3), NumpyBatches(made, "train", CONFIG).read(3))


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service(ServiceConfig(root=("/",), port=0, workers=2)) as running:
        yield running


def test_a_killed_worker_costs_no_batch(service: Service, made: Path, caplog, monkeypatch) -> None:
    batches = NumpyBatches(made, "train", serve(service.addresses))
    iterator = repeat(batches)
    expected = take(made, CONFIG, 40)
    given = list(itertools.islice(iterator, 10))
    killed = service.pids[0]
    os.kill(killed, signal.SIGKILL)
    given += list(itertools.islice(iterator, 20))
    maker = batches._maker
    wait_for(lambda: f"The worker {service.addresses[0]} of the service is lost" in caplog.text)
    stop = threading.Event()
    watch = threading.Thread(target=service.run_until, args=(stop.is_set,))
    watch.start()
    wait_for(lambda: f"The worker {service.addresses[0]} of the service answers again." in caplog.text, 30)
    before = count_batches(maker)[0]
    given += list(itertools.islice(iterator, 10))
    stop.set()
    watch.join()
    check_all_same(given, expected)
    assert count_batches(maker)[0] > before
    assert service.pids[0] != killed


def test_a_worker_that_is_halted_counts_as_lost(service: Service, made: Path, monkeypatch) -> None:
    monkeypatch.setattr(client, "SILENCE_S", 1.0)
    batches = NumpyBatches(made, "train", serve(service.addresses))
    iterator = repeat(batches)
    given = list(itertools.islice(iterator, 5))
    halted = service.pids[1]
    os.kill(halted, signal.SIGSTOP)
    try:
        given += list(itertools.islice(iterator, 10))
    finally:
        os.kill(halted, signal.SIGCONT)
    check_all_same(given, take(made, CONFIG))


def test_an_error_names_the_workers_when_all_are_gone(made: Path) -> None:
    with Service(ServiceConfig(root=("/",), port=0, workers=1)) as running:
        config = serve(running.addresses, timeout_s=1)
        batches = NumpyBatches(made, "train", config)
        batches.read(0)
    begin = time.monotonic()
    assert refusal(DataError, batches.read, 1) == (
        "The `service` must give a batch within 1 s (its `timeout_s`), and gave none for step 1 of epoch 0: "
        f"{running.addresses[0]} (connection refused). Start the workers again, then run the same command."
    )
    assert time.monotonic() - begin > 0.9


def test_who_leaves_waits_for_nobody(made: Path) -> None:
    before = set(threading.enumerate())  # of other tests
    with Service(ServiceConfig(root=("/",), port=0, workers=1)) as running:
        batches = NumpyBatches(made, "train", serve(running.addresses))
        next(iter(batches))
    threads = [thread for thread in {*threading.enumerate()} - before if thread.name.startswith("tfpipe-read")]
    assert threads
    batches._passes._batches.close()
    for thread in threads:
        thread.join(5)
    assert not any(thread.is_alive() for thread in threads)


def test_no_worker_at_the_start_is_a_sentence(made: Path, caplog) -> None:
    assert refusal(ConfigError, NumpyBatches, made, "train", serve(("127.0.0.1:9",))) == (
        "`service` must name running workers, and none serves this trainer: 127.0.0.1:9 (connection refused). Start "
        "one of the same release with: tfpipe serve --root DIR. Put the token that it prints into the `token_file`, or "
        "TFPIPE_SERVICE_TOKEN for a command."
    )
    config = serve(("127.0.0.1:9", *start_workers(1)))
    check_all_same(take(made, config, 5), take(made, CONFIG, 5))
    assert "The worker 127.0.0.1:9 of the service does not serve this trainer (connection refused)." in caplog.text


def test_another_release_is_refused_on_both_sides(made: Path, monkeypatch) -> None:
    addresses = start_workers(1)
    monkeypatch.setattr(client, "RELEASE", "tfpipe 0.0")
    found = refusal(ConfigError, NumpyBatches, made, "train", serve(addresses))
    assert f": {addresses[0]} (it has the release {server.RELEASE}, not tfpipe 0.0). Start" in found
    monkeypatch.undo()
    monkeypatch.setattr(client, "_CALL_EVERY_S", 60)
    batches = NumpyBatches(made, "train", serve(1))
    monkeypatch.setattr(client, "RELEASE", "tfpipe 0.0")
    with pytest.raises(ConfigError, match=r"^At the worker 127.*: A ticket must be that of a trainer of this release"):
        batches.read(0)


def test_something_else_at_the_address_is_a_sentence(made: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with listener.accept()[0] as connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.recv(1000)

        thread = threading.Thread(target=answer)
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        found = r"none serves .* \(trying to connect an http1\.x server \(http status 400\)\)"
        with pytest.raises(ConfigError, match=found):
            NumpyBatches(made, "train", serve((address,)))
        thread.join()


def test_an_answer_without_a_batch_is_asked_for_again(made: Path, monkeypatch) -> None:
    real, given = server.Server._make, []

    def make(self: server.Server, *request: Any) -> Any:
        given.append(real(self, *request))
        return given[-1] if len(given) > 1 else {}

    monkeypatch.setattr(server.Server, "_make", make)
    batches = NumpyBatches(made, "train", serve(1))
    check_all_same([batches.read(0)], [NumpyBatches(made, "train", CONFIG).read(0)])
    assert len(given) == 2


def test_a_worker_that_breaks_each_batch_is_asked_ever_less(made: Path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(server.Server, "_make", lambda *_: {})
    batches = NumpyBatches(made, "train", serve(1, timeout_s=3))
    assert "(its answer holds no batch)" in refusal(DataError, batches.read, 0)
    assert 2 <= caplog.text.count("of the service is lost") <= 5


def test_errors_of_the_engine_come_from_the_worker(made: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(made, tmp_path / "copied"))
    manifest = tfpipe.load_manifest(str(copied))
    config = replace(CONFIG, batch_size=53, service=ServiceOptions(workers=start_workers(1)))
    shard = copied / manifest.splits["train"].shards[0].file
    flip_bit(shard, 60)
    local = refusal(FormatError, NumpyBatches(manifest, "train", replace(config, service=ServiceOptions())).read, 0)
    found = refusal(FormatError, NumpyBatches(manifest, "train", config).read, 0)
    assert found == f"At the worker {config.service.workers[0]}: {local}"


def test_a_dataset_that_a_worker_lacks_is_a_sentence(made: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(made, tmp_path / "copied"))
    batches = NumpyBatches(copied, "train", serve(1))
    copied.rename(tmp_path / "moved")
    with pytest.raises(DataError, match=rf"^At the worker .*: Workers must reach the dataset under .* {copied}: "):
        batches.read(0)
    shards = {"train": [payload(k) for k in range(1, 21)], "train:1": [payload(k) for k in range(20, 53)]}
    write_dataset(copied, shards)  # of the same sizes
    assert "must have the trainer's records and columns, and has others here" in refusal(DataError, batches.read, 0)


def test_a_transform_is_refused_and_one_of_batches_is_called_here(made: Path) -> None:
    sentence = "A `transform` runs in this process, and a `service` makes batches elsewhere. Leave one out."
    assert refusal(ConfigError, TorchBatches, made, "train", serve(("a:1",)), transform=lambda image: image) == sentence

    def sum_up(batch: dict[str, Any]) -> dict[str, Any]:
        return {"sum": int(batch["image"].sum())}

    expected = [int(NumpyBatches(made, "train", CONFIG).read(step)["image"].sum()) for step in range(3)]
    batches = NumpyBatches(made, "train", serve(1), batch_transform=sum_up)
    assert [batch["sum"] for batch in itertools.islice(batches, 3)] == expected


def test_processes_of_a_loader_connect_for_themselves(made: Path) -> None:
    images = TorchBatches(made, "train", serve(1), rank=(0, 1))
    loader = data_loader(images, num_workers=1)
    assert loader.multiprocessing_context.get_start_method() == "spawn"


def test_several_replicas_of_a_host_get_whole_images(made: Path) -> None:
    import tensorflow as tf

    context = tf.distribute.InputContext(num_input_pipelines=2, input_pipeline_id=1, num_replicas_in_sync=4)
    served = replace(CONFIG, augment="device", service=ServiceOptions(workers=start_workers(2), share=0.5))
    given, expected = (
        list(tfpipe.build_dataset(made, "train", config, context, start_step=4).take(10).as_numpy_iterator())
        for config in (served, replace(served, service=ServiceOptions()))
    )
    check_all_same(given, expected)


ENDING = """
import sys, tfpipe
from tfpipe.service.config import ServiceConfig
from tfpipe.service.server import Service
with Service(ServiceConfig(root=(sys.argv[1],), port=0)) as service:
    workers = tfpipe.ServiceOptions(workers=service.addresses)
    options = {"batch_size": 8, "image_size": 8, "service": workers}
    iterators = [iter(getattr(tfpipe, face)(sys.argv[1], "train", **options)) for face in sys.argv[2:]]
    list(map(next, iterators))
print("the workers ended")
"""


@pytest.mark.parametrize(
    "faces", [["NumpyBatches"], pytest.param(["TorchBatches", "build_dataset"], marks=pytest.mark.slow)], ids=str
)
def test_a_trainer_ends_after_its_workers(made: Path, faces: list[str]) -> None:
    """Threads that work ahead wait for lost workers, but not when the program ends."""
    command = [sys.executable, "-c", ENDING, str(made), *faces]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (0, "the workers ended\n"), ended.stderr
