"""One process holds a lock, and whoever waits gets it when that one lets go or is killed."""

import os
import signal
from pathlib import Path

from tests.refusals import refusal
from tfpipe.system.file_lock import lock_file


def fail() -> None:
    raise RuntimeError("held")


def test_a_killed_holder_frees_the_lock(tmp_path: Path) -> None:
    path = str(tmp_path / "new" / "lock")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        with lock_file(path, fail):
            os.write(write, b"1")
            signal.pause()
    assert os.read(read, 1) == b"1"
    assert refusal(RuntimeError, lock_file(path, fail).__enter__) == "held"
    with lock_file(path, lambda: os.kill(child, signal.SIGKILL)):  # and then it waits
        os.waitpid(child, 0)
        assert refusal(RuntimeError, lock_file(path, fail).__enter__) == "held"
    with lock_file(path, fail):
        pass


def test_a_lock_that_its_holder_removed_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder = lock_file(str(path), fail)
    holder.__enter__()

    def let_go() -> None:
        path.unlink()
        holder.__exit__(None, None, None)

    waiter = lock_file(str(path), let_go)
    waiter.__enter__()  # which had opened the file before
    assert refusal(RuntimeError, lock_file(str(path), fail).__enter__) == "held"
    waiter.__exit__(None, None, None)


def test_a_folder_that_its_holder_removed_is_made_anew(tmp_path: Path, monkeypatch) -> None:
    make, made = os.makedirs, []

    def make_first_in_vain(path: str, exist_ok: bool) -> None:
        make(path, exist_ok=exist_ok)
        made.append(path)
        if len(made) == 1:
            os.rmdir(path)

    monkeypatch.setattr(os, "makedirs", make_first_in_vain)
    with lock_file(str(tmp_path / "new" / "lock"), fail):
        assert (len(made), (tmp_path / "new" / "lock").exists()) == (2, True)
