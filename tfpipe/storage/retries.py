"""The rules by which a request to an object store is repeated.

obstore repeats requests too. But it cannot be interrupted meanwhile, and it gives up where the answer to a listing, a
copy or a removal breaks off. So a single request is repeated here, and only the parts of a large object by obstore.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any, TypeVar

from tfpipe.storage import failures

Result = TypeVar("Result")

_LONGEST_PAUSE_S = 16.0


@dataclass(frozen=True)
class RetryConfig:
    """The limits on a request that a store does not serve. Whichever limit is reached first ends it.

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


def repeat(call: Callable[[], Result], retries: RetryConfig, is_first: bool = False) -> Result:
    """Calls a function again while it raises an error that may pass.

    Args:
        call: The function. It makes one request, which may be made twice.
        retries: The limits.
        is_first: Whether the limits of the first request of a job hold.
    """
    attempts = retries.first_attempts if is_first else retries.attempts
    end = time.monotonic() + (retries.first_s if is_first else retries.retry_s)
    longest_pause = retries.first_pause_s
    for attempt in count(1):
        try:
            return call()
        except Exception as error:
            pause = random.uniform(longest_pause / 2, longest_pause)
            if not failures.may_pass(error) or attempt >= attempts or time.monotonic() + pause > end:
                raise
        time.sleep(pause)
        longest_pause = min(2 * longest_pause, _LONGEST_PAUSE_S)
    raise AssertionError("unreachable")


def make_client_options(retries: RetryConfig) -> dict[str, Any]:
    """Returns obstore's options for the client of a bucket. The time for a whole object has no limit."""
    return {
        "connect_timeout": timedelta(seconds=retries.connect_s),
        "read_timeout": timedelta(seconds=retries.read_s),
        "timeout": timedelta(days=1),
    }


def make_retry_options(retries: RetryConfig) -> dict[str, Any]:
    """Returns obstore's options for requests that it repeats itself."""
    pauses = {
        "init_backoff": timedelta(seconds=retries.first_pause_s),
        "max_backoff": timedelta(seconds=_LONGEST_PAUSE_S),
        "base": 2,
    }
    return {
        "max_retries": retries.attempts - 1,
        "retry_timeout": timedelta(seconds=retries.retry_s),
        "backoff": pauses,
    }
