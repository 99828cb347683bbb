"""Measurements of a tf.data service: the rate of each of its workers, the wire, and what compression would change.

datasets = split_by_worker(plan, stages)                 # from `service_steps`
rates = measure_rates(name_workers(datasets), 300)       # batches a second, all workers at once
late = find_late_worker(rates)
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

import tensorflow as tf

from tfpipe.errors import TfpipeError

_WARM_BATCHES, _MEASURE_S, _LOOK_S = 3, 3.0, 0.05
"""The batches of each side that are not measured, the seconds that are, and the time between two looks at them."""
_LATE = 0.7  # of the median of the other workers
SAMPLED_BATCHES = 3
"""The number of batches that are compressed to try it."""


@dataclass(frozen=True)
class Compression:
    """The change that Snappy, the compression of a tf.data service, would make to batches.

    Attributes:
        batch_bytes: The mean size of a batch, in bytes.
        compressed_fraction: The size of a compressed batch, as a share of the batch.
        compress_s: The seconds of a core in which a worker compresses a batch.
        uncompress_s: The seconds of a core in which the trainer takes one apart.
    """

    batch_bytes: float
    compressed_fraction: float
    compress_s: float
    uncompress_s: float


def measure_rates(datasets: Mapping[str, tf.data.Dataset], limit_s: float) -> dict[str, float]:
    """Measures how many batches a second each of several datasets gives while all of them are read at once.

    Args:
        datasets: The datasets, by the names that an error gives them.
        limit_s: The seconds in which each must give its next batch, as `service_timeout_s` says.

    Raises:
        TfpipeError: A dataset gave no batch in this time.
        OpError: TensorFlow's own error of a dataset.
    """
    arrivals = read_side_by_side(datasets, limit_s, _MEASURE_S)
    begin = max(ends[_WARM_BATCHES - 1] for ends in arrivals.values())
    return {name: sum(end > begin for end in ends) / max(ends[-1] - begin, _LOOK_S) for name, ends in arrivals.items()}


def measure_intervals(datasets: Mapping[str, tf.data.Dataset], limit_s: float) -> list[float]:
    """Measures the seconds from one batch to the next of each of several datasets that are read at once.

    The arguments and errors are those of `measure_rates`. It takes a third of the time.
    """
    arrivals = read_side_by_side(datasets, limit_s, _MEASURE_S / 3).values()
    return [after - before for ends in arrivals for before, after in pairwise(ends[_WARM_BATCHES - 1 :])]


def read_side_by_side(
    datasets: Mapping[str, tf.data.Dataset], limit_s: float, seconds: float
) -> dict[str, list[float]]:
    """Reads several datasets at once, and returns when each batch came, by `time.perf_counter`.

    The errors are those of `measure_rates`.

    Args:
        datasets: The datasets, by the names that an error gives them.
        limit_s: The seconds in which each must give its next batch.
        seconds: The seconds of reading after each has given its first few batches.
    """
    arrivals: dict[str, list[float]] = {name: [] for name in datasets}
    errors: list[BaseException] = []
    stop = threading.Event()

    def read(dataset: tf.data.Dataset, ends: list[float]) -> None:
        try:
            for _ in dataset:
                ends.append(time.perf_counter())
                if stop.is_set():
                    break
        except BaseException as error:
            errors.append(error)
            stop.set()

    # Nobody waits without end for a thread whose worker hangs.
    threads = [
        threading.Thread(target=read, args=(dataset, arrivals[name]), name="tfpipe-measure", daemon=True)
        for name, dataset in datasets.items()
    ]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    # What is measured begins when each has given some batches, because the first ones take long.
    while not stop.wait(_LOOK_S):
        now = time.perf_counter()
        for name, ends in arrivals.items():
            if now - (ends[-1] if ends else started) > limit_s:
                stop.set()
                raise TfpipeError(
                    f"{name} must give a batch within {limit_s:g} s (`service_timeout_s`), and did not. Start it again "
                    "under its address, then run the same command."
                )
        warm = [ends[_WARM_BATCHES - 1] for ends in arrivals.values() if len(ends) >= _WARM_BATCHES]
        if len(warm) == len(arrivals) and now - max(warm) >= seconds:
            stop.set()
    deadline = time.perf_counter() + limit_s
    for thread in threads:
        thread.join(max(deadline - time.perf_counter(), 0))
    if errors:
        raise errors[0]
    return {name: list(ends) for name, ends in arrivals.items()}


def name_workers(datasets: Mapping[str, tf.data.Dataset]) -> dict[str, tf.data.Dataset]:
    """Returns datasets of workers by the names that errors give them, in the same order.

    Args:
        datasets: The datasets by the addresses of the workers.
    """
    return {f"The worker {address} of the tf.data service": dataset for address, dataset in datasets.items()}


def find_late_worker(rates: Mapping[str, float]) -> str | None:
    """Returns the slowest worker if it makes less than 0.7 of the median of the others; None if it makes more.

    Args:
        rates: The rate of each worker while all of them work, by its address.
    """
    slowest = min(rates, key=rates.__getitem__, default=None)
    others = [rate for worker, rate in rates.items() if worker != slowest]
    if slowest is None or not others or rates[slowest] >= _LATE * statistics.median(others):
        return None
    return slowest


def count_bytes(batch: Any) -> int:
    """Returns the bytes of a batch, without what tensors of texts take besides these."""
    return sum(_count_tensor_bytes(part) for part in tf.nest.flatten(batch, expand_composites=True))


def measure_compression(samples: Iterable[Any]) -> Compression:
    """Compresses the first few batches as a service would.

    Args:
        samples: At least one batch.
    """
    batches = [
        [tf.convert_to_tensor(part) for part in tf.nest.flatten(batch, expand_composites=True)]
        for batch in islice(samples, SAMPLED_BATCHES)
    ]
    _compress(batches[0])  # the first call takes longer
    figures = [_compress(parts) for parts in batches]
    sizes = sum(map(count_bytes, batches))
    packed_sizes, compress_s, uncompress_s = map(sum, zip(*figures, strict=True))
    count = len(batches)
    return Compression(sizes / count, packed_sizes / max(sizes, 1), compress_s / count, uncompress_s / count)


def _compress(parts: Sequence[tf.Tensor]) -> tuple[int, float, float]:
    """Compresses a batch, and returns its size then, and the seconds of a core there and back."""
    begin = time.thread_time()
    compressed = tf.raw_ops.CompressElement(components=parts)
    middle = time.thread_time()
    types, shapes = [part.dtype for part in parts], [part.shape for part in parts]
    tf.raw_ops.UncompressElement(compressed=compressed, output_types=types, output_shapes=shapes)
    end = time.thread_time()
    return len(tf.io.serialize_tensor(compressed).numpy()), middle - begin, end - middle


def _count_tensor_bytes(part: tf.Tensor) -> int:
    if part.dtype == tf.string:
        return int(tf.reduce_sum(tf.strings.length(part)))
    return int(tf.size(part)) * int(part.dtype.size)
