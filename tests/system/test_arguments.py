"""The sentences for arguments of a wrong type."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tfpipe
from tests.refusals import refusal
from tfpipe.engine.host import Host
from tfpipe.errors import ConfigError
from tfpipe.system.arguments import check_count, check_function, check_has, check_path

RANK = "`rank` must be a process's number, from 0, and that of processes, got"


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: check_count("epochs", "1"), "`epochs` must be a whole number, got '1'."),
        (lambda: check_count("epochs", True), "`epochs` must be a whole number, got True."),
        (lambda: check_count("epochs", 0, 1), "`epochs` must be at least 1, got 0."),
        (lambda: check_count("epochs", np.int64(-1)), "`epochs` must be at least 0, got -1."),
        (lambda: check_function("transform", 3), "`transform` must be a function, got 3."),
        (lambda: check_path("path", 3), "`path` must be a path, got 3."),
        (lambda: check_has("rank", 3, "size", "a mesh"), "`rank` must be a mesh, got 3."),
        (lambda: Host(start_step="7"), "`start_step` must be a whole number, got '7'."),  # type: ignore[arg-type]
        (lambda: Host.from_rank((0,)), f"{RANK} (0,)."),  # type: ignore[arg-type]
        (lambda: Host.from_rank((0, 1, 2)), f"{RANK} (0, 1, 2)."),  # type: ignore[arg-type]
        (lambda: tfpipe.tfrecord_files(3), "`pattern` must be a path, got 3."),  # type: ignore[arg-type]
        (lambda: tfpipe.PipelineConfig.from_file(3), "`path` must be a path, got 3."),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_argument_is_a_sentence(check: Callable[[], Any], message: str) -> None:
    assert refusal(ConfigError, check) == message


def test_numbers_of_numpy_are_whole_numbers() -> None:
    assert type(check_count("epochs", np.int32(3), 3)) is int
    assert Host(start_step=np.int64(7)).start_step == 7
