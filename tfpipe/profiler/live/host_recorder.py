"""Writes the record of one host of a training, which `tfpipe profile --hosts` compares with those of the others."""

from __future__ import annotations

import logging
import socket
import time
from collections import deque

from tfpipe.errors import TfpipeError
from tfpipe.profiler.hosts.read import encode_record, name_record
from tfpipe.profiler.hosts.types import HostCall, HostRecord, HostUsage
from tfpipe.profiler.live.step_ledger import TrainCall
from tfpipe.profiler.measure.host_usage import HostTime
from tfpipe.storage import file_io
from tfpipe.system import host_limits

logger = logging.getLogger(__name__)

_MAX_CALLS = 2000  # a file of about 80 kB
_WRITE_EVERY_S = 10.0


class HostRecorder:
    """The last steps of one host, and the file in which they are kept."""

    def __init__(self, folder: str, index: int, num_hosts: int) -> None:
        """Sets the file, which appears with the first steps after the warm-up.

        Args:
            folder: The folder of all hosts' records, which may be a URL.
            index: The number of this host, from 0.
            num_hosts: The number of hosts that train together.
        """
        self.path = file_io.join(folder, name_record(index))
        self._folder, self._index, self._num_hosts = folder, index, num_hosts
        self._calls: deque[HostCall] = deque(maxlen=_MAX_CALLS)
        self._began: HostTime | None = None
        self._written_at = float("-inf")
        self._failed = False

    def add(self, call: TrainCall) -> None:
        """Adds a call that has ended and whose wait is known."""
        assert call.end is not None
        assert call.wait_s is not None
        self._began = self._began or HostTime.now()
        self._calls.append(HostCall(call.last_step, call.steps, call.images, call.end - call.begin, call.wait_s))

    def write(self, compute_s: float | None, *, at_once: bool = False) -> None:
        """Writes the record, unless it was written a few seconds ago. A training goes on if this fails.

        Args:
            compute_s: The compute time of a step on the device; None if it is idle exactly while the host waits.
            at_once: Whether to write it in any case.
        """
        if self._began is None or self._failed:
            return
        if not at_once and time.monotonic() - self._written_at < _WRITE_EVERY_S:
            return
        cores = host_limits.usable_cpus()
        usage = HostUsage(cores, *HostTime.now().compute_fractions(self._began, cores))
        record = HostRecord(self._index, self._num_hosts, socket.gethostname(), tuple(self._calls), compute_s, usage)
        try:
            file_io.make_folder(self._folder)
            file_io.write_file(self.path, encode_record(record))
        except (OSError, TfpipeError) as error:
            self._failed = True
            logger.warning("%s cannot be written, so this host is not in the comparison: %s", self.path, error)
        self._written_at = time.monotonic()
