"""A checkpoint that cannot be written says why in one sentence, and leaves the earlier ones."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("orbax.checkpoint")

from tfpipe.errors import DataError
from tfpipe.training.checkpoints import Position
from tfpipe.training.jax.checkpoints import JaxCheckpoints

FULL = "A checkpoint cannot be written: [Errno 28] No space left on device."


@pytest.fixture
def checkpoints(tmp_path: Path) -> JaxCheckpoints:
    state = {"weights": np.ones(1000, np.float32)}
    return JaxCheckpoints(str(tmp_path / "checkpoints"), lambda: state, lambda _: None, 3, 10)


def save(checkpoints: JaxCheckpoints, step: int) -> None:
    checkpoints.save(Position(7, 0, step), np.zeros((2, 4)))


def test_a_full_disk_is_refused_before_anything_is_written(
    checkpoints: JaxCheckpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(checkpoints, 1)
    monkeypatch.setattr("tfpipe.system.host_limits.free_disk_bytes", lambda _: 3999)
    with pytest.raises(DataError) as caught:
        save(checkpoints, 2)
    assert str(caught.value) == FULL
    assert [path.name for path in Path(checkpoints.directory).iterdir()] == ["1"]
    monkeypatch.setattr("tfpipe.system.host_limits.free_disk_bytes", lambda _: 4000)
    save(checkpoints, 2)
    saved = checkpoints.restore(7)
    assert saved is not None
    assert saved.position == Position(7, 0, 2)


def test_the_cause_is_found_behind_all_the_paths(checkpoints: JaxCheckpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ValueError(
            'RESOURCE_EXHAUSTED: Error writing "parameters.head.bias/0" in OCDBT database at local file "/runs/4.orbax'
            "-checkpoint-tmp/\": Failed to write 361496 bytes to file 18: No space left on device [os_error_code='28']"
        )

    monkeypatch.setattr(checkpoints._manager, "save", refuse)
    with pytest.raises(DataError) as caught:
        save(checkpoints, 1)
    assert str(caught.value) == FULL


def test_writers_that_end_after_the_error_say_nothing(
    checkpoints: JaxCheckpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a real future of tensorstore, whose event loop was closed meanwhile."""
    tensorstore = pytest.importorskip("tensorstore")
    told: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: told.append(str(unraisable.exc_value)))
    promise, future = tensorstore.Promise.new()
    loop = asyncio.new_event_loop()

    async def wait() -> None:
        await future

    task = loop.create_task(wait())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()

    def fail(*_: Any, **__: Any) -> None:
        promise.set_result(None)
        raise ValueError("Failed to write [os_error_code='28']")

    monkeypatch.setattr(checkpoints._manager, "save", fail)
    with pytest.raises(DataError) as caught:
        save(checkpoints, 1)
    assert str(caught.value) == FULL
    assert told == []
    sys.unraisablehook(SimpleNamespace(exc_value=RuntimeError("another error")))  # type: ignore[arg-type]
    assert told == ["another error"]
    task._log_destroy_pending = False  # type: ignore[attr-defined]
