"""Errors on their way out of Beam, which wraps them, turns them into text or waits instead of raising them."""

import contextlib
import logging
import os
import re
import signal
import threading
import traceback
from collections.abc import Iterator
from typing import Any

import grpc

from tfpipe import errors
from tfpipe.errors import DataError, TfpipeError, first_line
from tfpipe.system.process_pool import kill_all

_logger = logging.getLogger(__name__)

GO_ON = "Finished shards are kept; run the same command again to go on."

_GRACE_S = 0.5  # a worker that ends because the job is over leaves this process time to end, too
_WORKER_THREAD = "run_worker"  # Beam's name for the thread that waits for a worker process
_WHERE_IN_GRAPH = r" \[while running '.*'\]$"  # Beam adds it to a message
_OUR_ERROR = re.compile(r"^tfpipe\.errors\.(\w+): (.*?)(?: \[while running '.*'\])?$", re.MULTILINE)
_MISSING_MODULE = re.compile(r"ModuleNotFoundError\W+No module named '([\w.]+)'")
_RAISED = re.compile(r"^[\w.]*(?:Error|Exception): (?!Traceback ).*", re.MULTILINE)
_DETAILS = re.compile(r'^\s*details = "(.*)"$', re.MULTILINE)  # in an error of gRPC


@contextlib.contextmanager
def unwrap_errors(*, explains_all: bool = False) -> Iterator[None]:
    """Raises tfpipe's own errors as they were before Beam wrapped them, and leaves no worker process behind.

    With `explains_all` every other error becomes a sentence, too.
    """
    # Beam turns an interruption or a worker's error into these; other runners of it may raise anything.
    wrapping = (Exception,) if explains_all else (RuntimeError, ImportError)
    try:
        with fail_on_worker_death():
            yield
    except TfpipeError as error:
        raise remove_graph_place(error) from error
    except wrapping as error:
        if str(error).startswith("KeyboardInterrupt"):
            raise KeyboardInterrupt from error
        our_error = find_error("".join(traceback.format_exception(error)))
        if our_error is None and explains_all:
            our_error = DataError(f"Beam's runner ended the job: {find_reason(error)}. {GO_ON}")
        if our_error is None:
            raise
        raise our_error from error
    finally:
        kill_all()


@contextlib.contextmanager
def fail_on_worker_death() -> Iterator[None]:
    """Ends the block with an error when a worker process of Beam dies. Beam itself would wait forever."""
    died, over = threading.Event(), threading.Event()
    before = threading.excepthook

    def hook(args: Any) -> None:
        if isinstance(args.exc_value, grpc.RpcError):  # Beam's own threads, cut off from the dead worker
            _logger.debug("Connection to a Beam worker lost", exc_info=args.exc_value)
        elif args.thread is None or args.thread.name != _WORKER_THREAD:
            before(args)
        elif not over.wait(_GRACE_S) and not died.is_set():
            died.set()
            if hasattr(signal, "pthread_kill"):  # wakes the main thread out of its waiting
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            else:
                os.kill(os.getpid(), signal.SIGINT)

    threading.excepthook = hook
    try:
        yield
    except BaseException as error:
        if died.is_set():
            raise DataError(f"A Beam worker process died: it was killed, or memory ran out. {GO_ON}") from error
        raise
    finally:
        over.set()
        threading.excepthook = before


def remove_graph_place(error: TfpipeError) -> TfpipeError:
    """Returns the error without the place in the graph that Beam adds to its message."""
    return type(error)(re.sub(_WHERE_IN_GRAPH, "", str(error), flags=re.DOTALL), page=error.page)


def find_error(text: str) -> TfpipeError | None:
    """Returns the error of tfpipe that a traceback shows, or None if it shows none."""
    if our_error := _OUR_ERROR.search(text):
        name, message = our_error.groups()
        error: TfpipeError = getattr(errors, name, DataError)(message)
        return error
    if missing := _MISSING_MODULE.search(text):
        return DataError(
            f"A worker of the cluster could not import {missing[1]}. Install the same tfpipe on all of its machines, "
            "with the same extras as here."
        )
    return None


def find_reason(error: BaseException) -> str:
    """Returns one line of an error, without a full stop: of a traceback as text, what was raised first."""
    text = str(error)
    reasons: list[str] = [*_DETAILS.findall(text), *_RAISED.findall(text), first_line(error)]
    return reasons[0].rstrip(".")[:300]
