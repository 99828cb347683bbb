"""BatchPlan: which records make the batch of a step on one host. Frozen, without a framework.

```
plan = BatchPlan(source, config, order, global_batch_size=256, rows=range(128), num_hosts=2)
plan.steps_per_epoch, plan.batch_size       # 128 rows of each batch are made here
plan.list_numbers(epoch, step)              # int64 [n]: its records, counted through all shards
```

The batch of a step depends on nothing but the data, the config and the step: not on the number of hosts, and not on the
batches before.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.features import BatchFeature, list_batch_features
from tfpipe.engine.order import Order
from tfpipe.engine.source import Source
from tfpipe.system.hash_permutation import IntArray


@dataclass(frozen=True)
class BatchPlan:
    """The batches of one host.

    Attributes:
        source: The records.
        config: The options.
        order: The order of training; None in evaluation.
        global_batch_size: The number of rows of a batch of all hosts.
        rows: The rows of the global batch that this host has.
        num_hosts: The number of hosts that share an evaluation.
        host: The number of this host, from 0.
    """

    source: Source
    config: PipelineConfig
    order: Order | None
    global_batch_size: int
    rows: range
    num_hosts: int = 1
    host: int = 0

    @property
    def batch_size(self) -> int:
        """The number of rows that this host has in each batch."""
        return len(self.rows)

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches in an epoch. Training has full batches only; evaluation has every record."""
        if self.order is not None:
            return self.order.steps_per_epoch
        largest_share = -(-(self.source.num_records or 0) // self.num_hosts)
        return -(-largest_share // (self.global_batch_size // self.num_hosts))

    @cached_property
    def features(self) -> tuple[BatchFeature, ...]:
        """The features that a batch holds beside images and labels."""
        return list_batch_features(self.source, self.config)

    @cached_property
    def masks(self) -> tuple[str, ...]:
        """The features that hold masks, which follow the crop of the image."""
        named = tuple(feature.name for feature in self.features if feature.spec.kind == "mask")
        return named if self.source.has_images else ()

    @cached_property
    def num_images(self) -> int | None:
        """The number of images of a record in a batch; None if there is one, without an axis for more."""
        counts, chosen = self.source.per_record, self.config.images
        if counts is None or chosen == "first":
            return None
        return counts.smallest if chosen == "all" else chosen

    def list_numbers(self, epoch: int, step: int) -> IntArray:
        """Lists the records of this host's rows in a step, counted through all shards: int64 [n].

        In evaluation host h has the records from `N * h // num_hosts` to `N * (h + 1) // num_hosts` of all N, so its
        last batches may have fewer than `batch_size`.
        """
        if self.order is None:
            records, share = self.source.num_records or 0, self.global_batch_size // self.num_hosts
            begin, end = (records * part // self.num_hosts for part in (self.host, self.host + 1))
            first = begin + step * share + self.rows.start - self.host * share
            return np.arange(first, max(min(first + self.batch_size, end), first))
        return self.order.list_numbers(epoch, step, self.rows)
