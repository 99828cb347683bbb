"""The counts of the job as Beam's metrics, and the progress that they show without a common disk."""

import logging
from collections import Counter
from typing import Any

from apache_beam.metrics import Metrics, MetricsFilter

from tfpipe.system.progress import Progress
from tfpipe.writer.written_shard import WrittenShard

_logger = logging.getLogger(__name__)
_NAMESPACE = "tfpipe"
_BAD_KINDS = ("bad", "unreadable")  # as in `quarantined.jsonl`


class ShardMetrics:
    """The counters and distributions of the step that writes shards. Beam pickles them and sends them to the workers.

    The process pool of this machine reports images to Beam only at the end of their shard. So it counts whole shards.
    """

    def __init__(self) -> None:
        self._images = Metrics.counter(_NAMESPACE, "images")
        self._bytes = Metrics.counter(_NAMESPACE, "bytes")
        self._bad = {kind: Metrics.counter(_NAMESPACE, kind) for kind in _BAD_KINDS}
        self._shards = Metrics.counter(_NAMESPACE, "shards")
        self._kept = Metrics.counter(_NAMESPACE, "kept")
        self._image_bytes = Metrics.distribution(_NAMESPACE, "image_bytes")
        self._image_ms = Metrics.distribution(_NAMESPACE, "image_ms")

    def count_image(self, num_bytes: int, seconds: float, bad_kind: str | None) -> None:
        """Counts one image when it is done; `bad_kind` is None for a good one."""
        self._images.inc()
        self._bytes.inc(num_bytes)
        self._image_bytes.update(num_bytes)
        self._image_ms.update(round(seconds * 1000))
        if bad_kind is not None:
            self._bad[bad_kind].inc()

    def count_shard(self, shard: WrittenShard, *, by_image: bool) -> None:
        """Counts one shard when it is done, and its images unless `count_image` got them."""
        self._shards.inc()
        self._kept.inc(int(shard.kept))
        if shard.kept or not by_image:
            self._images.inc(shard.info.records + shard.num_left_out)
            for line in shard.left_out:
                self._bad[line["kind"]].inc()


def read_metrics(result: Any, num_images: int, num_shards: int) -> Progress | None:
    """Returns the progress of a running job, or None if the service does not answer: the job goes on unwatched."""
    try:
        counts = _sum_counters(result)
    except Exception as error:  # each runner has its own client library
        _logger.debug("No metrics: %s", error)
        return None
    # A shard that was tried twice counts twice.
    return Progress(
        done=min(counts["images"], num_images),
        total=num_images,
        bytes=counts["bytes"],
        bad=sum(counts[kind] for kind in _BAD_KINDS),
        shards=min(counts["shards"], num_shards),
        num_shards=num_shards,
    )


def _sum_counters(result: Any) -> Counter[str]:
    counters = result.metrics().query(MetricsFilter().with_namespace(_NAMESPACE))["counters"]
    sums: Counter[str] = Counter()
    for counter in counters:
        sums[counter.key.metric.name] += max(counter.attempted or 0, counter.committed or 0)
    return sums
