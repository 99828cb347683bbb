"""What the job counts as Beam's metrics; how far it is by them, where workers leave no lines on this machine."""

import logging
from collections import Counter
from typing import Any

from apache_beam.metrics import Metrics, MetricsFilter

from beam_jobs.shards.work_dir import WrittenShard
from tfpipe.system.progress import Progress

_logger = logging.getLogger(__name__)
_NAMESPACE = "tfpipe"
_BAD_KINDS = ("bad", "unreadable")  # as in `quarantined.jsonl`


class ShardMetrics:
    """Counters and distributions of the step that writes shards; it travels to the workers with it.

    `images`, good or bad, `bytes` of their sources, `bad` and `unreadable` images, `shards`, and those of them that
    an earlier run had finished, `kept`; the distributions `image_bytes` and `image_ms`, from the reading of an image to
    its record. Counting costs about a microsecond an image. The process pool of this machine counts whole shards, and
    neither bytes nor distributions: Beam sees its images only at their shard's end.
    """

    def __init__(self) -> None:
        self._images = Metrics.counter(_NAMESPACE, "images")
        self._bytes = Metrics.counter(_NAMESPACE, "bytes")
        self._bad = {kind: Metrics.counter(_NAMESPACE, kind) for kind in _BAD_KINDS}
        self._shards = Metrics.counter(_NAMESPACE, "shards")
        self._kept = Metrics.counter(_NAMESPACE, "kept")
        self._image_bytes = Metrics.distribution(_NAMESPACE, "image_bytes")
        self._image_ms = Metrics.distribution(_NAMESPACE, "image_ms")

    def image(self, num_bytes: int, seconds: float, bad: str | None) -> None:
        """Counts one image when it is done; `bad` is its kind, where it is."""
        self._images.inc()
        self._bytes.inc(num_bytes)
        self._image_bytes.update(num_bytes)
        self._image_ms.update(round(seconds * 1000))
        if bad is not None:
            self._bad[bad].inc()

    def shard(self, row: WrittenShard, *, by_image: bool) -> None:
        """Counts one shard when it is done, with its images unless they were counted one by one."""
        self._shards.inc()
        self._kept.inc(int(row.kept))
        if row.kept or not by_image:
            self._images.inc(row.records + len(row.quarantined))
            for line in row.quarantined:
                self._bad[line["kind"]].inc()


def read_metrics(result: Any, num_images: int, num_shards: int) -> Progress | None:
    """How far a running job is.

    Args:
        result: What Beam's `run` returned.
        num_images: In the plan.
        num_shards: Likewise.

    Returns:
        None where the service does not say at the moment: the job goes on whether or not one can look.
    """
    try:
        counts = _counts(result)
    except Exception as error:  # of whatever client library asks this engine
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


def _counts(result: Any) -> Counter[str]:
    found = result.metrics().query(MetricsFilter().with_namespace(_NAMESPACE))["counters"]
    counts: Counter[str] = Counter()
    for one in found:
        counts[one.key.metric.name] += max(one.attempted or 0, one.committed or 0)
    return counts
