"""A data loader of DLIO's that reads by tfpipe: the records of an indexed dataset, in exact order.

It gives the simulated trainer what DLIO's own TensorFlow reader gives it: a tuple of one fixed uint8 array for each
batch. As with that reader, every record of the batch has been read, checked against its checksums and parsed before.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf
from dlio_benchmark.common.enumerations import DataLoaderType, DatasetType, FormatType
from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader

import tfpipe
from tfpipe.engine.host import Host
from tfpipe.engine.order import Order, choose_block

INDEX_FOLDER = "tfpipe"
"""The folder below DLIO's data folder to which `tfpipe index` has written its manifest."""

_GAP_BYTES = 1 << 14  # of two records that are read together


class TfpipeLoader(BaseDataLoader):
    """The loader that DLIO makes for a run.

    Args:
        format_type: The format of the files, which must be TFRecords.
        dataset_type: The training or the validation data.
        epoch: The number of the first epoch.
    """

    def __init__(self, format_type: FormatType, dataset_type: DatasetType, epoch: int) -> None:
        super().__init__(format_type, dataset_type, epoch, DataLoaderType.TENSORFLOW)

    def read(self) -> None:
        """Opens the dataset. Reading begins with the first batch."""
        manifest = tfpipe.load_manifest(os.path.join(self._args.data_folder, INDEX_FOLDER))
        (split,) = manifest.splits
        shards = manifest.splits[split].shards
        self._records = tfpipe.data_source(manifest, split)
        num_records, batch = sum(shard.records for shard in shards), self.batch_size * self._args.comm_size
        mean_bytes = sum(shard.bytes for shard in shards) / num_records
        self._order = Order(num_records, batch, choose_block(mean_bytes, num_records, batch))
        ranks = self._args.comm_size
        self._rows = Host(self._args.my_rank, ranks, ranks).share(batch)
        record_bytes = max(shard.bytes // shard.records for shard in shards) + _GAP_BYTES
        # DLIO's own reader has as many threads, and a batch for each of them and two more in memory.
        threads = max(self._args.read_threads, 1)
        num_memories = threads + self._args.prefetch_size
        self._free = deque(np.empty(self.batch_size * record_bytes, np.uint8) for _ in range(num_memories))
        self._started: deque[tuple[Future[dict[str, Any]], Any]] = deque()
        self._readers = ThreadPoolExecutor(threads)
        self._next_step = 0
        self._fixed = tf.convert_to_tensor(self._args.resized_image, dtype=tf.uint8)

    def next(self) -> Iterator[tuple[tf.Tensor]]:
        """Yields batches without end: DLIO stops at the end of its epoch, and goes on in the next one."""
        super().next()
        while True:
            while self._free:
                self._start(self._free.popleft())
            batch, memory = self._started.popleft()
            columns = batch.result()
            if len(columns["image"]) != self.batch_size or len(columns["size"]) != self.batch_size:
                raise RuntimeError(f"A batch must have {self.batch_size} records, got {len(columns['image'])}.")
            self._free.append(memory)  # it is read into when the trainer asks for the next batch
            yield (self._fixed,)

    def finalize(self) -> None:
        """Does nothing: what is read ahead belongs to the next epoch."""

    def _start(self, memory: np.ndarray[Any, Any]) -> None:
        """Lets a thread read the next batch of the run."""
        self._started.append((self._readers.submit(self._read, self._next_step, memory), memory))
        self._next_step += 1

    def _read(self, global_step: int, memory: np.ndarray[Any, Any]) -> dict[str, Any]:
        numbers = self._order.list_numbers(*self._order.locate(global_step), self._rows)
        return self._records.read_columns(numbers, ["image", "size"], memory)
