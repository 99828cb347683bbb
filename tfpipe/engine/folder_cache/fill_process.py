"""A process that fills a cache while this one trains.

    start_filling(folder)       # returns at once; a thread of this process hears the other one

It is a process and not a few threads, because a process has its own priority and Python's lock of its own, and the
trainer can end at any moment without waiting for it. It ends with the trainer, however that ends, gets no Ctrl-C, and
loads no framework. `multiprocessing` would import the user's script in it once more, with all that it does outside of
`if __name__ == "__main__":`; so this is Python with one line of its own.

It gets what the trainer leaves of the cores, and a share of what both could use (see `_NICE`). Where decoding kept two
cores busy, training went on at two thirds of its rate, and the cache was filled at a third of its own.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading

from tfpipe.engine.folder_cache.fill import fill_locked
from tfpipe.engine.folder_cache.folder import CacheFolder
from tfpipe.errors import explain_pipeline_error
from tfpipe.system.child_process import die_with_direct_parent

logger = logging.getLogger(__name__)

_NICE = 5
"""Linux gives a thread of this niceness a third of the time of a usual one. With 19 it is a hundredth: beside a busy
trainer the cache would never be whole, and the trainer would decode forever."""

_FAILED = 3  # the exit code of a process whose last line says why

_fillings: dict[str, Filling] = {}  # those that run, and those that failed
_lock = threading.Lock()


def start_filling(folder: CacheFolder) -> None:
    """Lets a process fill a cache, once no other one does. This process tries it once for each cache.

    If it fails, a warning says why, and what the cache lacks comes from the source until the end of this process.

    Raises:
        ConfigError: The disk is too small.
        DataError: The folder of all caches cannot be written.
    """
    with _lock:
        if folder.path not in _fillings:
            folder.prepare()
            _fillings[folder.path] = Filling(folder)
            _fillings[folder.path].start()


class Filling(threading.Thread):
    """The thread that starts the process, logs what that logs, and warns of its failure.

    Args:
        folder: The cache.

    Attributes:
        process: The process that fills; None before it begins.
    """

    def __init__(self, folder: CacheFolder) -> None:
        super().__init__(name="tfpipe-cache", daemon=True)
        self._folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """Fills the cache."""
        try:
            reason = self._fill()
        except Exception as error:  # nothing here may end the training
            reason = str(explain_pipeline_error(error))
        if reason:
            text = "The cache in %s is not filled any further, and what it lacks is read from the source: %s"
            logger.warning(text, self._folder.path, reason)
        else:
            _fillings.pop(self._folder.path, None)

    def _fill(self) -> str:
        """Returns once the cache is filled, or else the reason why it is not."""
        folder = self._folder
        with folder.explain_errors(), folder.lock() as lock:
            path = [str(place) for place in sys.path]
            code = f"import sys; sys.path[:] = {path!r}; from {__name__} import main; main({os.getpid()})"
            self.process = process = subprocess.Popen(
                [sys.executable, "-c", code],
                bufsize=0,  # a buffer has a lock, and Python must not find it taken when it ends
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # errors come through the pipe
                pass_fds=(lock.fileno(),),  # the process holds the lock on
                start_new_session=True,  # a terminal's signals to a group are for the parent
            )
        assert process.stdin is not None
        assert process.stdout is not None
        line, task = "", pickle.dumps((folder.manifest, folder.split, folder.config))
        with process:
            with contextlib.suppress(BrokenPipeError):  # it has ended, and the exit code says how
                while task:
                    task = task[process.stdin.write(task) :]
                process.stdin.close()
            for printed in process.stdout:
                line = printed.decode().rstrip("\n")
                logger.info("%s", line)
        return line if process.returncode == _FAILED else _explain_end(process.returncode)


def _explain_end(code: int) -> str:
    if code < 0:
        name = signal.Signals(-code).name
        return f"Its process was ended by {name}; most often memory ran out. The next run goes on."
    return f"Its process ended with exit code {code} and did not say why." if code else ""


def main(parent_pid: int) -> None:
    """Fills the cache that comes through standard input, and ends; the main function of the process.

    It prints its log. If it fails, the last line is the reason.
    """
    die_with_direct_parent(parent_pid)
    os.nice(_NICE)
    logging.basicConfig(stream=os.fdopen(os.dup(1), "w"), format="%(message)s", level=logging.INFO)
    os.dup2(2, 1)  # what a library prints is not for the log
    folder = CacheFolder(*pickle.load(sys.stdin.buffer))  # from the parent
    try:
        fill_locked(folder)
    except Exception as error:  # whatever it is goes to the parent
        logger.error("%s", explain_pipeline_error(error))
        os._exit(_FAILED)  # at once: nothing is left to be done
    os._exit(0)
