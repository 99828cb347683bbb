"""Recovers tfpipe's errors from Beam, which wraps them or turns them into text."""

import contextlib
import re
import traceback
from collections.abc import Iterator

from tfpipe import errors
from tfpipe.errors import DataError, TfpipeError, first_line
from tfpipe.system.process_pool import kill_all

GO_ON = "Finished shards are kept; run the same command again to go on."

_WHERE_IN_GRAPH = r" \[while running '.*'\]$"  # Beam adds it to a message
_OUR_ERROR = re.compile(r"^tfpipe\.errors\.(\w+): (.*?)(?: \[while running '.*'\])?$", re.MULTILINE)
_MISSING_MODULE = re.compile(r"ModuleNotFoundError\W+No module named '([\w.]+)'")
_RAISED = re.compile(r"^[\w.]*(?:Error|Exception): (?!Traceback ).*", re.MULTILINE)
_DETAILS = re.compile(r'^\s*details = "(.*)"$', re.MULTILINE)  # in an error of gRPC


@contextlib.contextmanager
def unwrap_errors(*, explains_all: bool = False) -> Iterator[None]:
    """Raises tfpipe's own errors as they were before Beam wrapped them, and leaves no worker process behind.

    With `explains_all` every other error becomes a `DataError` with its reason.
    """
    try:
        yield
    except TfpipeError as error:
        raise remove_graph_step(error) from error
    except Exception as error:  # Beam turns an interruption or a worker's error into another one
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


def remove_graph_step(error: TfpipeError) -> TfpipeError:
    """Returns the error without the name of the graph's step that Beam adds to its message."""
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
    """Returns the reason for an error in one line without a final period; of a traceback as text, the first error's."""
    text = str(error)
    whole = first_line(RuntimeError(re.sub(r":\s*\n", ": ", text)))  # Beam breaks a line behind a colon
    reasons: list[str] = [*_DETAILS.findall(text), *_RAISED.findall(text), whole]
    return reasons[0].rstrip(".")[:300]
