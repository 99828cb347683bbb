"""A worker and what comes from a network: tokens, limits, odd tickets, and clients that do harm."""

import copy
import itertools
import json
import os
import random
import shutil
import socket
import threading
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyarrow import flight

from tests.beam_jobs.commands import wait_for
from tests.integrity.made import payload, write_dataset
from tests.refusals import refusal
from tests.service.test_messages import check_same
from tests.service.workers import start_workers
from tfpipe.engine.config.pipeline_config import AugmentOptions, PipelineConfig, ServiceOptions
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.readers.numpy import NumpyBatches
from tfpipe.service import server as module
from tfpipe.service.config import ServiceConfig
from tfpipe.service.messages import RELEASE, Ticket, describe_plan, receive
from tfpipe.service.server import FairQueue, Request, Server, Service

CONFIG = PipelineConfig(batch_size=8, image_size=8, seed=5)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("served") / "made", {"train": [payload(k) for k in range(20)]})


@pytest.fixture(scope="module")
def plan(made: Path) -> dict[str, Any]:
    return json.loads(json.dumps(describe_plan(NumpyBatches(made, "train", CONFIG)._maker.plan)))


def start(root: str | Path = "/") -> Server:
    return Server("grpc://127.0.0.1:0", (os.path.realpath(root),), 1)


@pytest.fixture(scope="module")
def worker(made: Path) -> Iterator[Server]:
    with start(made.parent) as running:
        yield running


def connect(worker: Server) -> flight.FlightClient:
    return flight.FlightClient(f"grpc://127.0.0.1:{worker.port}")


def ask(worker: Server, ticket: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns a batch and the info before it, as a client that does not play by the rules gets them."""
    text = ticket if isinstance(ticket, bytes) else json.dumps(ticket).encode()
    with connect(worker) as client:
        info, batch = receive(client.do_get(flight.Ticket(text), flight.FlightCallOptions(timeout=60)))
        return batch, info


def make_ticket(plan: Any, **changes: Any) -> dict[str, Any]:
    return {"release": RELEASE, "plan": plan, "epoch": 0, "step": 0, "rows": [0, 8], **changes}


def as_ticket(plan: dict[str, Any]) -> flight.Ticket:
    return flight.Ticket(json.dumps(make_ticket(plan)).encode())


def check_serves(worker: Server, plan: dict[str, Any], made: Path) -> None:
    check_same(ask(worker, make_ticket(plan))[0], NumpyBatches(made, "train", CONFIG).read(0))


def change(plan: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {**plan, "options": {**plan["options"], **options}}


def place(plan: dict[str, Any], address: Any) -> dict[str, Any]:
    return {**plan, "sources": [{**plan["sources"][0], "address": address}]}


def test_a_plan_holds_no_more_than_a_batch_needs(plan: dict[str, Any], made: Path) -> None:
    plan = copy.deepcopy(plan)
    assert plan.keys() == {"sources", "split", "options", "shares", "host"}
    assert plan["options"].pop("augment_options").keys() == {field.name for field in fields(AugmentOptions)}
    assert plan["options"] == {
        **{"batch_size": 8, "image_size": 8, "training": True, "images": "all", "augment": "host"},
        **{"image_dtype": "uint8", "one_hot": False, "extra_features": [], "pad_to": {}, "multi_hot": []},
        **{"max_boxes": 64, "seed": 5},
    }
    (source,) = plan["sources"]
    assert source.keys() == {"address", "records", "columns"}
    assert source["address"] == str(made)


def test_a_client_makes_a_worker_write_nothing(
    worker: Server, plan: dict[str, Any], made: Path, tmp_path: Path
) -> None:
    target = tmp_path / "chosen" / "by" / "the" / "client"
    for options in ({"cache": "bytes", "cache_dir": str(target)}, {"cache_dir": str(target)}, {"cache": "decoded"}):
        _, end = ask(worker, make_ticket(change(plan, **options)))
        assert end["error"] == "ConfigError"
        assert end["text"].startswith("A ticket must be that of a trainer of this release, ")
    assert list(tmp_path.iterdir()) == []
    check_serves(worker, plan, made)


PLAN_OF = f"A ticket must be that of a trainer of this release, {RELEASE}, got b'"
MUCH = "A service makes"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batch_size": 10**9, "training": False}, MUCH),
        ({"batch_size": 1 << 17, "image_size": 224}, "A service makes at most 2,000,000,000 bytes of a batch at once"),
        ({"batch_size": 8, "image_size": 65500}, MUCH),
        ({"augment": "device", "decoded_size": 65500}, MUCH),
        ({"max_boxes": 10**10}, MUCH),
        ({"extra_features": ["image/filename"], "pad_to": {"image/filename": 10**10}}, MUCH),
        ({"order": "throughput"}, PLAN_OF),
        ({"tf_data": {"autotune": True}}, PLAN_OF),
        ({"max_bad_records": 5}, PLAN_OF),
        ({"service": {"workers": ["127.0.0.1:9"]}}, PLAN_OF),
        ({"prefetch_batches": 10**9}, PLAN_OF),
        ({"batch_size": "8"}, "The plan of a trainer: `batch_size` must be"),
        ({"image_dtype": []}, "The plan of a trainer: `image_dtype` must be"),
        ({"seed": 2**80}, "The plan of a trainer: `seed` must be"),
        ({"augment_options": {"std": [1e-308]}}, "The plan of a trainer: "),
        ({"augment_options": 5}, "The plan of a trainer: `augment_options` must be a table of options, got 5."),
    ],
    ids=lambda value: json.dumps(value)[:50],
)
def test_odd_options_are_refused_before_anything_is_opened(
    worker: Server, plan: dict[str, Any], options: dict[str, Any], text: str, monkeypatch
) -> None:
    monkeypatch.setattr(Ticket, "open", lambda *_: pytest.fail("opened"))
    rows = size if isinstance(size := options.get("batch_size"), int) else 8
    _, end = ask(worker, make_ticket(change(plan, **options), rows=[0, rows]))
    assert end["error"] == "ConfigError"
    assert end["text"].startswith(text)


@pytest.mark.parametrize(
    "changes",
    [
        *({"sources": sources} for sources in ([], [{}], 3)),
        *({"shares": shares} for shares in ([9], [-1, 9], [10**9, 10**9])),
        *({"host": host} for host in ([-1, -1], [0, 10**12], [0, 1e308], "ab")),
        *({"split": {}}, {"split": "\ud800"}, {"options": [1]}, {"more": 1}),
    ],
    ids=lambda changes: json.dumps(changes),
)
def test_odd_plans_are_refused(worker: Server, plan: dict[str, Any], made: Path, changes: dict[str, Any]) -> None:
    changed = {**plan, **changes}
    if "shares" in changes and len(changes["shares"]) == 2:
        changed["sources"] = plan["sources"] * 2
    _, end = ask(worker, make_ticket(changed))
    assert end["error"] in ("ConfigError", "DataError")
    assert "could not be made" not in end["text"]
    check_serves(worker, plan, made)


def test_a_long_ticket_and_many_datasets_are_refused(worker: Server, plan: dict[str, Any]) -> None:
    _, end = ask(worker, make_ticket({**plan, "split": "x" * 70_000}))
    assert end["text"].startswith("A ticket must have at most 65,536 bytes, got 7")
    many = {**change(plan, batch_size=300), "sources": plan["sources"] * 300, "shares": [1] * 300}
    _, end = ask(worker, make_ticket(many, rows=[0, 300]))
    assert end["text"] == (
        "A service makes batches of at most 131,072 rows, of 64 datasets, for 65,536 hosts, got 300, 300 and 1."
    )


@pytest.mark.parametrize(
    "ticket",
    [
        *(b"{", b"[]", b"9" * 6000, b"\xff\xfe", b'{"a":' * 9000, b"[" * 60000, b"null", b'{"release": 1}'),
        *({"rows": "ab"}, {"rows": [0, True]}, {"rows": [0, 9]}, {"rows": [0, 3]}, {"rows": [0]}, {"rows": [1, 8]}),
        *({"epoch": -1}, {"epoch": 2**70}, {"step": 1.5}, {"plan": None}, {"release": "tfpipe 0.0"}),
    ],
    ids=lambda ticket: repr(ticket)[:40],
)
def test_odd_tickets_are_refused(worker: Server, plan: dict[str, Any], ticket: Any) -> None:
    _, end = ask(worker, ticket if isinstance(ticket, bytes) else {**make_ticket(plan), **ticket})
    assert end["error"] == "ConfigError"
    assert "could not be made" not in end["text"]


def test_random_tickets_hang_nothing(rng: random.Random, worker: Server, plan: dict[str, Any], made: Path) -> None:
    refused, whole = 0, json.dumps(make_ticket(plan)).encode()
    for _ in range(200):
        ticket = bytearray(whole)
        for _ in range(rng.choice((1, 1, 2, 5))):
            ticket[rng.randrange(len(ticket))] = rng.randrange(256)
        _, end = ask(worker, bytes(ticket[: rng.choice((len(ticket), rng.randrange(1, len(ticket))))]))
        refused += "error" in end
    assert refused > 100
    check_serves(worker, plan, made)


@pytest.mark.parametrize(
    "address", ["/etc", "/", "/a\0b", 17, ["a"], "/" + "a/" * 9000, "http://127.0.0.1:1/x", "gs://b/x"]
)
def test_other_paths_are_refused(worker: Server, plan: dict[str, Any], address: Any) -> None:
    _, end = ask(worker, make_ticket(place(plan, address)))
    assert end["error"] in ("DataError", "ConfigError")
    assert "lies elsewhere" in end["text"] or end["text"].startswith(PLAN_OF)


def test_no_way_leads_out_of_the_roots(plan: dict[str, Any], made: Path, tmp_path: Path) -> None:
    """Neither a path with dots, nor a link, nor a file of the dataset that is one."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(made)
    linked = Path(shutil.copytree(made, root / "linked"))
    shard = next(linked.glob("*.tfrecord"))
    shutil.copy(shard, tmp_path / "elsewhere")
    shard.unlink()
    shard.symlink_to(tmp_path / "elsewhere")
    shutil.copytree(made, tmp_path / "root2" / "made")
    good = str(shutil.copytree(made, root / "good"))
    with start(root) as worker:
        outside = (f"{root}/../root2/made", f"{tmp_path}/root2/made", f"{root}/link", str(linked), f"file://{made}")
        for address in outside:
            _, end = ask(worker, make_ticket(place(plan, address)))
            assert end == {
                "error": "DataError",
                "text": f"A worker opens only datasets below the paths that it was given, and {address} lies "
                "elsewhere, or a file of it does. Start it with --root and a folder that holds them.",
                "page": "",
            }
        check_serves(worker, place(plan, good), made)


@pytest.mark.parametrize(
    "address", ["gs://b/database", "gs://b/data/../c", "gs://b/data/%2E%2e/c", "gs://c/data", "/data"]
)
def test_no_way_leads_out_of_a_url(plan: dict[str, Any], address: str) -> None:
    with Server("grpc://127.0.0.1:0", ("gs://b/data",), 1) as worker:
        _, end = ask(worker, make_ticket(place(plan, address)))
    assert f"and {address} lies elsewhere" in end["text"]


def test_a_token_is_asked_for(made: Path, tmp_path: Path) -> None:
    addresses, token = start_workers(1, token="secret"), tmp_path / "token"
    options = ServiceOptions(workers=addresses)
    for given in (None, "wrong", "secre", "secret2"):
        if given is not None:
            token.write_text(given)
        named = options if given is None else replace(options, token_file=str(token))
        assert refusal(ConfigError, NumpyBatches, made, "train", replace(CONFIG, service=named)) == (
            f"`service` must name running workers, and none serves this trainer: {addresses[0]} (the token is missing "
            "or wrong). Put the token that it prints into the `token_file`, or TFPIPE_SERVICE_TOKEN for a command."
        )
    token.write_text("secret\n")
    served = NumpyBatches(made, "train", replace(CONFIG, service=replace(options, token_file=str(token))))
    check_same(served.read(0), NumpyBatches(made, "train", CONFIG).read(0))
    assert "secret" not in repr(served) + repr(served.config) + served.config.to_toml()
    for unfit in (b"\xef\xbb\xbfsecret", b"secret\nsecret", "s\xe4cret".encode()):  # gRPC would abort the trainer
        token.write_bytes(unfit)
        assert refusal(ConfigError, NumpyBatches, made, "train", replace(CONFIG, service=named)) == (
            f"{token} must hold a token of printable ASCII in one line, no BOM."
        )


def test_connections_are_encrypted(made: Path, plan: dict[str, Any], tmp_path: Path) -> None:
    trustme = pytest.importorskip("trustme")
    authority, other = trustme.CA(), trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    chain = b"".join(part.bytes() for part in issued.cert_chain_pems)
    tls = (chain, issued.private_key_pem.bytes())
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    other.cert_pem.write_to_path(str(tmp_path / "other.pem"))
    with Server("grpc+tls://127.0.0.1:0", ("/",), 1, token="secret", tls=tls) as worker:
        (tmp_path / "token").write_text("secret")
        files = {"certificate": str(tmp_path / "authority.pem"), "token_file": str(tmp_path / "token")}
        options = ServiceOptions(workers=(f"127.0.0.1:{worker.port}",), **files)
        served = NumpyBatches(made, "train", replace(CONFIG, service=options))
        check_same(served.read(0), NumpyBatches(made, "train", CONFIG).read(0))
        for wrong in (replace(options, certificate=str(tmp_path / "other.pem")), replace(options, certificate=None)):
            assert refusal(ConfigError, NumpyBatches, made, "train", replace(CONFIG, service=wrong)).endswith(
                "). If it serves with TLS, name its `certificate`, or that of its authority; if not, name none."
            )
    issued.private_key_pem.write_to_path(key := str(tmp_path / "key"))
    misfits = ServiceConfig(root=("/",), port=0, certificate=files["certificate"], key=key)
    end = " `key` must be the private key of `certificate`, in PEM and without a passphrase."
    assert refusal(TfpipeError, Service(misfits).__enter__).endswith(f"Server did not start properly).{end}")
    sentence = f"`certificate` must be a file in PEM that holds a certificate, got {key}."
    assert refusal(ConfigError, Service, replace(misfits, certificate=key)) == sentence
    with pytest.raises(ConfigError, match=r"^`certificate` must be a file that can be read, got .*/none\.pem: No such"):
        NumpyBatches(made, "train", replace(CONFIG, service=replace(options, certificate=f"{tmp_path}/none.pem")))


def test_silent_connections_and_half_prefixes_shut_nobody_out(worker: Server, plan: dict[str, Any], made: Path) -> None:
    connections = [socket.create_connection(("127.0.0.1", worker.port)) for _ in range(200)]
    try:
        for number, connection in enumerate(connections):
            connection.sendall((b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))[: number % 34])
        check_serves(worker, plan, made)
    finally:
        for connection in connections:
            connection.close()


def test_heavy_plans_delay_another_client_little(made: Path, plan: dict[str, Any], monkeypatch) -> None:
    """Of one address even; those of others are served before."""
    free, opened, make = threading.Event(), [], Server._make

    def wait(self: Server, request: Request, ticket: Ticket) -> Any:
        opened.append(ticket.config.seed)
        free.wait(60)
        return make(self, request, ticket)

    monkeypatch.setattr(Server, "_make", wait)
    monkeypatch.setattr(module, "_AT_ONCE", 4)
    with start(made.parent) as worker:
        client = connect(worker)
        heavy = [client.do_get(as_ticket(change(plan, seed=100 + number % 16))) for number in range(160)]
        wait_for(lambda: len(worker._serving.requests) == 160)
        stream = client.do_get(as_ticket(plan))
        wait_for(lambda: len(worker._serving.requests) == 161)
        free.set()
        check_same(receive(stream)[1], NumpyBatches(made, "train", CONFIG).read(0))
        for stream in heavy:
            stream.cancel()
    assert opened.index(5) < 4 + 16 + 4  # after four that began before, one of each other plan, and four beside it


def test_clients_that_take_nothing_end_the_worker_when_others_wait(
    made: Path, plan: dict[str, Any], monkeypatch
) -> None:
    monkeypatch.setattr(module, "_AT_ONCE", 2)
    monkeypatch.setattr(module, "_SEND_LIMIT_S", 0.2)
    monkeypatch.setattr(module, "_LOOK_EVERY_S", 0.1)
    ended = threading.Event()
    monkeypatch.setattr(module, "os", SimpleNamespace(_exit=lambda code: ended.set()))
    large = as_ticket(change(plan, image_size=2000, image_dtype="float32"))
    with start() as worker:
        client = connect(worker)
        left = [client.do_get(large) for _ in range(2)]
        wait_for(lambda: sum(each.granted.is_set() for each in worker._serving.requests) == 2)
        waiting = client.do_get(as_ticket(plan))
        assert ended.wait(60)
        for stream in (*left, waiting):
            stream.cancel()


def test_a_client_that_leaves_gives_its_slot_back(made: Path, plan: dict[str, Any], monkeypatch) -> None:
    monkeypatch.setattr(module, "_LOOK_EVERY_S", 0.1)
    monkeypatch.setattr(module, "_AT_ONCE", 2)
    large = as_ticket(change(plan, image_size=2000, image_dtype="float32"))
    with start() as worker:
        for _ in range(6):
            with connect(worker) as client:
                client.do_get(large).cancel()
        check_serves(worker, plan, made)
        wait_for(lambda: not worker._serving.requests)


def test_more_requests_than_may_wait_are_refused(plan: dict[str, Any], monkeypatch) -> None:
    free = threading.Event()
    monkeypatch.setattr(module, "_AT_ONCE", 1)
    monkeypatch.setattr(module, "_MOST_WAITING", 2)
    monkeypatch.setattr(Server, "_make", lambda *_: (free.wait(60), {})[1])
    with start() as worker:
        client = connect(worker)
        streams = [client.do_get(as_ticket(plan)) for _ in range(3)]
        wait_for(lambda: len(worker._serving.requests) == 3)
        with pytest.raises(flight.FlightUnavailableError, match="it has too many requests"):
            receive(client.do_get(as_ticket(plan)))
        free.set()
        assert [receive(stream)[0] for stream in streams] == [{}] * 3


def test_the_makers_of_the_last_plans_stay_open(made: Path, plan: dict[str, Any]) -> None:
    with start() as worker:
        for seed in range(20):
            ask(worker, make_ticket(change(plan, seed=seed)))
        assert len(worker._makers) == 16


def list_granted(*requests: Request) -> list[bool]:
    return [each.granted.is_set() for each in requests]


def test_clients_are_served_in_rotation_and_so_are_their_plans() -> None:
    queue = FairQueue(1, 0, 100)
    first = queue.enter("a", "1")
    waiting = {name: queue.enter(*name.split()) for name in ("a 1", "a 2", "b 1", "c 1")}
    waiting |= {"b 2": queue.enter("b", "2"), "a 1 again": queue.enter("a", "1")}
    order, working = [], first
    while waiting:
        queue.leave(working)
        name, working = next((name, each) for name, each in waiting.items() if each.granted.is_set())
        order.append(name)
        del waiting[name]
    # "a" was served before "b" and "c" came; then they come first, and after them the plan of "a" that was not served.
    assert order == ["a 1", "b 1", "c 1", "a 2", "b 2", "a 1 again"]


def test_new_plans_do_not_pass_by_one_that_waits() -> None:
    queue = FairQueue(1, 0, 1000)
    working = queue.enter("a", "good")
    good = queue.enter("a", "good")
    numbers = itertools.count()
    bad = [queue.enter("a", f"new {number}") for number in range(20)]
    queue.leave(working)
    while not good.granted.is_set():
        (working,) = (each for each in bad if each.granted.is_set())
        bad.remove(working)
        bad.append(queue.enter("a", f"newer {next(numbers)}"))
        queue.leave(working)
    assert len(bad) == 20
    assert good.granted.is_set()


def test_a_plan_takes_half_of_the_slots_and_bytes_are_shared() -> None:
    queue = FairQueue(4, 0, 100)
    asked = [queue.enter("a", "1") for _ in range(4)]
    assert list_granted(*asked) == [True, True, False, False]
    others = [queue.enter("a", "2"), queue.enter("b", "1"), queue.enter("c", "1")]
    assert list_granted(*others) == [True, True, False]
    queue.leave(asked[0])
    assert list_granted(asked[2], asked[3], others[2]) == [False, False, True]
    queue = FairQueue(8, 100, 100)
    large = queue.enter("a", "1", 150)
    small, medium = queue.enter("b", "1", 60), queue.enter("c", "1", 50)
    assert list_granted(large, small, medium) == [True, False, False]
    queue.leave(large)
    assert list_granted(small, medium) == [True, False]
    queue.leave(small)
    assert list_granted(medium) == [True]


def test_clients_share_the_room_for_those_that_wait() -> None:
    queue = FairQueue(1, 0, 4)
    working = queue.enter("a", "1")
    greedy = [queue.enter("greedy", str(number)) for number in range(4)]
    full = pytest.raises(flight.FlightUnavailableError, match="it has too many requests")
    with full:
        queue.enter("greedy", "5")
    good = [queue.enter("good", str(number)) for number in range(2)]
    with full:
        queue.enter("good", "3")  # half of the room
    queue.enter("other", "1")
    queue.leave(greedy[0])  # one that waits may leave
    queue.leave(working)
    assert list_granted(*greedy[1:], *good) == [True, False, False, False, False]
