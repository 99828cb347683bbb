"""A process that fills a cache while this one trains.

    process = FillProcess(cache, lock.fileno())    # it holds the lock until it ends
    process.relay_log()                            # its log becomes this process' log
    process.poll(), process.explain_end()

It is a process and not a few threads, because a process has its own priority and Python's lock of its own, and the
trainer can end at any moment without waiting for it. It ends with the thread that started it, however that ends, gets
no Ctrl-C, and takes no accelerator. `multiprocessing` would import the user's script in it once more, with all that it
does outside of `if __name__ == "__main__":`; so this is Python with one line of its own.

It gets what the trainer leaves of the cores, and a share of what both could use (see `_NICE`). Where decoding kept two
cores busy, training went on at two thirds of its rate, and the cache was filled at a third of its own.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
from typing import IO

from tfpipe.errors import explain_pipeline_error
from tfpipe.pipeline.file_cache.cache_folder import CacheFolder
from tfpipe.system.child_process import die_with_direct_parent
from tfpipe.system.progress import Observer

_NICE = 5
"""Linux gives a thread of this niceness a third of the time of a usual one. With 19 it is a hundredth: beside a busy
trainer the cache would never be whole, and the trainer would decode forever."""

_ACCELERATORS_OFF = {"CUDA_VISIBLE_DEVICES": "-1", "TPU_LOAD_LIBRARY": "0"}
_READ_BYTES = 1 << 16
_ERROR = "error"


class FillProcess:
    """A process that fills a cache and holds its lock.

    It ends with the thread that creates it. That thread must hold back SIGINT, or Ctrl-C could meet the process before
    its first line.

    Args:
        cache: The cache.
        lock: The descriptor of the locked file. The process holds the lock on, so this one may close the file.

    Raises:
        OSError: The process cannot be started.
    """

    def __init__(self, cache: CacheFolder, lock: int) -> None:
        path = [str(folder) for folder in sys.path]
        code = f"import sys; sys.path[:] = {path!r}; from {__name__} import main; main({os.getpid()})"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # TensorFlow logs there as it loads; errors come through the pipe
            pass_fds=(lock,),
        )
        self.pid = self._process.pid
        self._unread, self._error = b"", ""
        with contextlib.suppress(BrokenPipeError):  # it has ended, and `explain_end` says how
            _get(self._process.stdin).write(pickle.dumps((cache.manifest, cache.split, cache.config)))
            _get(self._process.stdin).close()
        os.set_blocking(_get(self._process.stdout).fileno(), False)

    def poll(self) -> int | None:
        """Returns the exit code, or None while the process runs."""
        return self._process.poll()

    def relay_log(self) -> None:
        """Logs what the process has logged since the last call."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(_get(self._process.stdout).fileno(), _READ_BYTES):
                self._unread += data
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            kind, level, text = json.loads(line)
            if kind == _ERROR:
                self._error = text
            else:
                logging.getLogger(kind).log(level, "%s", text)

    def explain_end(self) -> str:
        """Returns why the process has ended, as one or two sentences; empty if the cache is filled."""
        code = self._process.returncode
        if code == 0 or self._error:
            return self._error
        if code < 0:
            name = signal.Signals(-code).name
            return f"Its process was ended by {name}; most often memory ran out. The next run goes on."
        return f"Its process ended with exit code {code} and did not say why."

    def close(self) -> None:
        """Ends the process, if it still runs."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                _get(pipe).close()


def main(parent_pid: int) -> None:
    """Fills the cache that comes through standard input, and ends; the main function of the process."""
    die_with_direct_parent(parent_pid)
    os.setpgid(0, 0)  # a terminal's signals to a group are for the parent
    os.nice(_NICE)
    for name, value in _ACCELERATORS_OFF.items():
        os.putenv(name, value)  # before TensorFlow is loaded
    messages = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints is not a message
    manifest, split, config = pickle.load(sys.stdin.buffer)  # from the parent
    logger = logging.getLogger("tfpipe")
    logger.addHandler(_Sender(messages))
    logger.setLevel(logging.INFO)
    code = 0
    try:
        from tfpipe.pipeline.file_cache.cache import fill_locked

        fill_locked(CacheFolder(manifest, split, config), Observer())
    except Exception as error:  # whatever it is goes to the parent
        _send(messages, _ERROR, 0, str(explain_pipeline_error(error)))
        code = 1
    messages.flush()
    os._exit(code)  # at once: TensorFlow's threads take a while to end, and nothing is left to be done


class _Sender(logging.Handler):
    """A handler that sends each line of the log to the parent."""

    def __init__(self, messages: IO[str]) -> None:
        super().__init__()
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        _send(self._messages, record.name, record.levelno, record.getMessage())


def _send(messages: IO[str], kind: str, level: int, text: str) -> None:
    messages.write(json.dumps([kind, level, text]) + "\n")


def _get(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe
