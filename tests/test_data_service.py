"""The parts of the service that need no server. Tests of servers are in tests/cli/test_serve.py and tests/pipeline."""

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tfpipe import data_service
from tfpipe.data_service import ServiceConfig, claim_ports
from tfpipe.errors import ConfigError, TfpipeError


def test_free_ports_are_different_and_a_taken_one_is_refused() -> None:
    ports = claim_ports([(0, "port"), *[(0, "worker_port")] * 20])
    assert len(set(ports)) == 21
    with pytest.raises(TfpipeError, match=r"address already in use\)\. Choose another `worker_port`\."):
        claim_ports([(ports[0], "port"), (ports[0], "worker_port")])


def test_the_address_of_this_machine_is_found_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    assert data_service._find_own_address(("127.0.0.1", 9)) == "127.0.0.1"

    def fail(*_: object, **__: object) -> None:
        raise OSError("Network is unreachable")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert data_service._find_own_address(("192.0.2.1", 9)) == "127.0.0.1"
    assert data_service._join_address("::1", 5) == "[::1]:5"


def test_the_end_of_a_process_is_described() -> None:
    assert [data_service._describe_exit(code) for code in (-9, 1, None)] == [
        "killed by SIGKILL",
        "exit code 1",
        "it does not answer",
    ]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"dispatcher": "grpc://a:1", "workers": 0},
            "`workers` must be at least 1 where `dispatcher` runs elsewhere, got 0.",
        ),
        ({"dispatcher": "grpc://a:1", "work_dir": "/tmp"}, "`work_dir` is for a dispatcher"),
        (
            {"dispatcher": "grpc://a:1", "worker_addresses": ("b:2",)},
            "`worker_addresses` is for a dispatcher here, `dispatcher` names another. Leave out one of them.",
        ),
        ({"worker_addresses": ("b",)}, "`worker_addresses` must be like host:5051, got 'b'."),
        ({"port": -1}, "`port` must be from 0 to 65535, got -1."),
        ({"worker_port": 65535, "workers": 2}, "`worker_port` must be from 0 to 65534, got 65535."),
    ],
)
def test_wrong_options_and_pairs_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        ServiceConfig(**options)


def test_the_parent_of_workers_loads_no_tensorflow() -> None:
    code = "import tfpipe.data_service, sys; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[1], check=True)
