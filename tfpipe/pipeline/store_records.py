"""Records of an object store, those of a batch at once, by tfpipe's own client instead of TensorFlow's.

A call of Python reads a batch. It waits without Python's lock. It works in this process only, so not in the workers of
a service.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfpipe.format.tfrecord import unframe
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.system.hash_permutation import IntArray
from tfpipe.system.object_store import Range, RangeReader

_MAX_AHEAD_BYTES = 2**22  # of one request


class StoreRecords:
    """The records of a plan whose files lie in an object store.

    Args:
        plan: The read plan, whose source has counted records.
    """

    def __init__(self, plan: ReadPlan) -> None:
        source = plan.source
        self._bases, self._num_records = source.bases, int(source.bases[-1])
        self._begins = source.offsets()
        self._ends = np.append(self._begins[1:], 0)
        self._ends[self._bases[1:] - 1] = source.file_bytes
        self._ranges = RangeReader(source.files)
        self._ahead = max(min(plan.ahead_records, int(_MAX_AHEAD_BYTES / source.record_bytes)), 1)

    def read(self, numbers: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Reads records and checks them. What follows a record in its run is held for the next batches.

        Args:
            numbers: int64 [n]: the numbers of the records. From the number of records on they count from the first one
                again.

        Returns:
            The payloads, string [n], and whether each record is whole, bool [n]. The payload of one that is not is
            empty.
        """
        # An iterator whose state is saved must not hold a function with a state of its own. What this one holds changes
        # nothing but the time.
        payloads, whole = tf.numpy_function(self._read, [numbers], [tf.string, tf.bool], stateful=False)
        return tf.ensure_shape(payloads, numbers.shape), tf.ensure_shape(whole, numbers.shape)

    def _read(self, numbers: IntArray) -> tuple[Any, Any]:
        numbers = numbers % self._num_records
        files = np.searchsorted(self._bases, numbers, side="right") - 1
        last = np.minimum(numbers + self._ahead, self._bases[files + 1]) - 1
        places = np.stack((files, self._begins[numbers], self._ends[numbers], self._ends[last]), axis=1)
        frames = self._ranges.read([Range(*place) for place in places.tolist()])
        payloads = [unframe(frame) for frame in frames]
        whole = np.array([payload is not None for payload in payloads], np.bool_)
        return np.array([payload or b"" for payload in payloads], object), whole
