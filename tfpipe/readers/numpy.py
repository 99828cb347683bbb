"""Batches as NumPy arrays, for a framework that has no reader here, or for a look at what a step got.

```
batches = NumpyBatches("/data/flowers", "train", PipelineConfig(batch_size=256))
for batch in batches:               # one epoch; the next pass goes on
    batch["image"], batch["label"]  # uint8 [256, 224, 224, 3], int64 [256]
batches.read(1000)                  # the batch of step 1000 of the run, at once
```

Records, order and crops are those of all other readers.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from functools import partial
from typing import Any

from tfpipe.engine.ahead import Passes, list_positions, make_ahead
from tfpipe.engine.batch import Batch
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.host import Host
from tfpipe.engine.mixed_batch import AnyMaker
from tfpipe.engine.mixture import Mixture
from tfpipe.engine.position import Position, Resumable
from tfpipe.format.manifest import Manifest
from tfpipe.readers.open_data import form_batch, locate, open_data, weigh_mask
from tfpipe.system.host_limits import usable_cpus


class NumpyBatches(Resumable):
    """The batches of one process, as an iterable of epochs.

    Each pass begins where the last one was left, and ends with the epoch; in evaluation it is the whole split, every
    record once. Threads make the batches, two steps ahead. In training they go on with the next epoch meanwhile.

    Args:
        data: A manifest from `load_manifest`, a dataset's directory or URL, or several datasets from `tfpipe.mix`.
        split: The name of a split.
        config: The options of `build_dataset`. Options that only tf.data supports are refused.
        start_step: The global step of the run with which training begins, in whichever epoch it lies.
        rank: The number of this process, from 0, and the number of processes that share each batch.
        num_threads: The number of threads that decode. None: one for each core.

    A batch is a dictionary of "image", uint8 or float32 [batch, height, width, 3], where bfloat16 comes as its bits,
    uint16; "label", int64 [batch] or one-hot float32 [batch, classes]; the features in `extra_features`, or all if
    records have no image: text as lists of bytes, tensors of open size as lists of arrays unless `pad_to` gives them a
    size. In evaluation "mask", bool [batch], is False in rows that fill a batch up. With `as_supervised`: (image,
    label), in evaluation with the mask as a third.

    Raises:
        ConfigError: The config does not fit this reader, the data or the number of processes.
        DataError: There are no records, or the directory is not a finished dataset.
        FormatError: While reading: a file is missing or damaged, or an image is.
    """

    def __init__(
        self,
        data: Manifest | Mixture | str | os.PathLike[str],
        split: str,
        config: PipelineConfig,
        start_step: int = 0,
        rank: tuple[int, int] = (0, 1),
        num_threads: int | None = None,
    ) -> None:
        index, ranks = rank
        self.config = config
        self._maker = open_data(data, split, config, Host(index, ranks, ranks))
        self._threads = usable_cpus() if num_threads is None else num_threads
        start = partial(_start, self._maker, self._threads)
        self._passes = Passes(start, len(self), locate(self._maker, start_step), config.training)

    def __len__(self) -> int:
        """Returns the number of batches in a whole epoch."""
        return self._maker.plan.steps_per_epoch

    def __iter__(self) -> Iterator[Any]:
        return iter(self._passes)

    @property
    def position(self) -> Position:
        """The position of the batch that comes next."""
        return self._passes.position

    @position.setter
    def position(self, position: Position) -> None:
        self._passes.position = position

    @property
    def _run_seed(self) -> int:
        return self.config.seed

    def read(self, step: int) -> Any:
        """Makes the batch of a global step of the run, of any epoch; in evaluation of a step of the pass.

        Raises:
            ConfigError: There is no such step.
            FormatError: A file is missing or damaged, or an image is.
            DataError: A file cannot be read.
        """
        position = locate(self._maker, step) if self.config.training else Position(0, step)
        return _form(self.config, self._maker.make(*position, self._threads))


def _start(maker: AnyMaker, threads: int, begin: Position) -> Generator[Any]:
    """Begins to make batches at a position, without end in training."""
    positions = list_positions(begin, maker.plan.steps_per_epoch, maker.plan.config.training)
    return make_ahead(maker, positions, threads, partial(_form, maker.plan.config))


def _form(config: PipelineConfig, batch: Batch) -> Any:
    return form_batch(weigh_mask(batch, config), config)
