"""Explains obstore's errors, and repeats single requests in Python, where the user can interrupt them."""

import contextlib
import errno
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from tfpipe.errors import DataError
from tfpipe.storage.file_store import get_bucket_url

NOT_FOUND, BEHIND_THE_END = 404, 416
_DENIED = (401, 403)
_STATUS = re.compile(r"non-2xx status code: (\d{3}) ?([^:\n]*):? ?(.*)", re.DOTALL)
_REASONS = (re.compile(r"<Message>(.+?)</Message>", re.DOTALL), re.compile(r"<Code>(.+?)</Code>"))
_SYSTEM_REASON = re.compile(r'(?:message|error): "([^"]+)"')
_DEBUG = "\n\nDebug source:"
_MARKS = {
    "TimedOut": "no answer in time",
    "kind: Timeout": "no answer in time",
    "IncompleteMessage": "the connection was closed",
    "IncompleteBody": "the connection was closed",
    "UnexpectedEof": "the connection was closed",
    "error sending request": "the request could not be sent",  # from obstore's writer, whose errors say no more
}

Result = TypeVar("Result")
LONGEST_PAUSE_S = 16.0


@dataclass(frozen=True)
class RetryConfig:
    """The limits on repeating a request that fails. The first limit that is reached ends it.

    Attributes:
        first_s: The seconds for the first request of a job. A wrong name or a missing network should show soon.
        retry_s: The seconds for any other request, with all its repetitions.
        first_attempts: The attempts at the first request of a job.
        attempts: The attempts at any other request. The pauses between ten attempts take 80 s at most.
        connect_s: The seconds for one attempt to connect.
        read_s: The seconds for which an open connection may be silent.
        first_pause_s: The most seconds before the first repetition; each pause may be twice as long as the one before.
    """

    first_s: float = 15.0
    retry_s: float = 120.0
    first_attempts: int = 6
    attempts: int = 10
    connect_s: float = 5.0
    read_s: float = 30.0
    first_pause_s: float = 0.25


RETRIES = RetryConfig()


class CredentialsError(Exception):
    """The error for credentials that the cloud's library cannot renew. obstore raises its own error with this text."""


_NOT_RENEWED = re.compile(r"CredentialsError: (.*)")


def read_failure(error: BaseException) -> tuple[int | None, str]:
    """Returns the HTTP status, if there is one, and the useful part of the message."""
    message, _, debug = str(error).partition(_DEBUG)
    if found := _STATUS.search(message):
        status, phrase, body = int(found[1]), found[2], found[3]
        reason = next((match[1] for pattern in _REASONS if (match := pattern.search(body))), phrase)
        return status, f"HTTP status {status}, {reason}" if reason else f"HTTP status {status}"
    if found := _NOT_RENEWED.search(message):
        return None, found[1]
    if isinstance(error, FileNotFoundError):
        return NOT_FOUND, message
    if reasons := _SYSTEM_REASON.findall(debug):
        return None, str(reasons[-1])
    return None, next((words for mark, words in _MARKS.items() if mark in str(error)), message)


def may_pass(error: BaseException) -> bool:
    """Returns whether the same request may succeed later, because the store or the network failed for a while."""
    from obstore.exceptions import BaseError, InvalidPathError

    if not isinstance(error, (BaseError, OSError)) or isinstance(error, InvalidPathError):
        return False
    status = read_failure(error)[0]
    return status is None or status in (408, 429) or status >= 500


def make_error(url: str, error: BaseException) -> Exception:
    """Returns the error to raise for a request about one object that failed for good."""
    status, reason = read_failure(error)
    if status == NOT_FOUND:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url)
    if status in _DENIED:
        return PermissionError(errno.EACCES, f"{os.strerror(errno.EACCES)}, the store says: {shorten(reason)}", url)
    return DataError(
        f"{get_bucket_url(url)} failed again and again, at last with: {shorten(reason)}. Run the same command "
        "again; one that writes shards goes on with those that are missing."
    )


def make_first_error(url: str, error: BaseException) -> DataError:
    """Returns the error to raise for the first request of a job, which is about the bucket."""
    bucket, (status, reason) = get_bucket_url(url), read_failure(error)
    if status == NOT_FOUND:
        return DataError(f"There is no bucket {bucket}. Create it, or check the name.")
    if status in _DENIED:
        return DataError(f"{bucket} must let these credentials list and read it, but says: {shorten(reason)}.")
    if _NOT_RENEWED.search(str(error)):
        return DataError(f"The credentials for {bucket} cannot be used: {shorten(reason)}.")
    return DataError(f"{bucket} cannot be reached: {shorten(reason)}. Check the network and the store's endpoint.")


@contextlib.contextmanager
def explain(url: str) -> Iterator[None]:
    """Turns an error of obstore into an `OSError` about the object or a `DataError` about the store."""
    from obstore.exceptions import BaseError, InvalidPathError

    try:
        yield
    except (InvalidPathError, ValueError) as error:
        if not isinstance(error, InvalidPathError) and "parse path" not in str(error):
            raise
        raise DataError(
            f"The names of objects must have no empty part, no '.' and no '..' between their slashes, got {url}: "
            f"{shorten(str(error))}. Rename the object."
        ) from error
    except (BaseError, OSError) as error:
        raise make_error(url, error) from error


def shorten(reason: str) -> str:
    """Returns the first line of a library's message, at most 300 characters of it, without its full stop."""
    lines = reason.strip().splitlines() or ["no reason given"]
    return lines[0][:300].rstrip(". ")


def repeat(call: Callable[[], Result], retries: RetryConfig, is_first: bool = False) -> Result:
    """Repeats a request while it fails with a temporary error; the first request of a job has its own limits."""
    attempts = retries.first_attempts if is_first else retries.attempts
    end = time.monotonic() + (retries.first_s if is_first else retries.retry_s)
    attempt, longest_pause = 1, retries.first_pause_s
    while True:
        try:
            return call()
        except Exception as error:
            pause = random.uniform(longest_pause / 2, longest_pause)
            if not may_pass(error) or attempt >= attempts or time.monotonic() + pause > end:
                raise
        time.sleep(pause)
        attempt, longest_pause = attempt + 1, min(2 * longest_pause, LONGEST_PAUSE_S)
