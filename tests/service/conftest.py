"""Workers in threads of this process, and a dataset whose batches have every kind of part."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integrity.made import payload, write_dataset
from tfpipe.service.server import Server

StartWorkers = Callable[[int], tuple[str, ...]]


@pytest.fixture(scope="session")
def start_workers() -> StartWorkers:
    """Starts workers and returns their addresses."""
    listeners: list[socket.socket] = []

    def start(count: int) -> tuple[str, ...]:
        addresses = []
        for _ in range(count):
            listener = socket.create_server(("127.0.0.1", 0))
            listeners.append(listener)
            threading.Thread(target=Server(1).serve, args=(listener,), daemon=True).start()
            addresses.append(f"127.0.0.1:{listener.getsockname()[1]}")
        return tuple(addresses)

    return start


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 53 records in two shards, and 11 in another split."""
    shards = {"train": [payload(k) for k in range(20)], "train:1": [payload(k) for k in range(20, 53)]}
    others = {"validation": [payload(k) for k in range(11)]}
    return write_dataset(tmp_path_factory.mktemp("served") / "made", shards | others)
