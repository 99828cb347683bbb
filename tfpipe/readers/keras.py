"""Batches for Keras with any backend: `model.fit(KerasBatches(...), epochs=90)` ends by itself.

```
config = tfpipe.PipelineConfig(batch_size=256, image_dtype="float32")
train = KerasBatches("/data/flowers", "train", config)
validation = KerasBatches("/data/flowers", "validation", dataclasses.replace(config, training=False))
model.fit(train, epochs=90, shuffle=False, validation_data=validation)
```

Keras draws an order of batches of its own unless `shuffle=False` is given. Each epoch has all of its batches in any
case.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from dataclasses import replace
from typing import Any

from tfpipe.engine.ahead import close_at_exit, list_positions, make_ahead
from tfpipe.engine.config.pipeline_config import PipelineConfig, choose_config
from tfpipe.engine.host import Host
from tfpipe.engine.mixed_batch import AnyPlan
from tfpipe.engine.mixture import Mixture
from tfpipe.engine.position import Position
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.readers.finish import BatchTransform, Finish, ImageTransform, seed_transform
from tfpipe.readers.open_data import describe_reader, locate, open_data
from tfpipe.system import notebook
from tfpipe.system.extras import importing

with importing("`tfpipe.readers.keras`", "Keras", "keras"):
    import keras  # type: ignore[import-untyped]


class KerasBatches(keras.utils.PyDataset):  # type: ignore[misc]
    """The batches of one process as Keras takes them: (image, label), in evaluation with weights.

    Threads make them ahead. The weights of an evaluation are 0 in rows that fill a batch up, so Keras
    counts each record once; give metrics as `weighted_metrics`.

    Args:
        data: A manifest from `load_manifest`, a dataset's directory or URL, or several datasets from `tfpipe.mix`.
        split: The name of a split.
        config: The options of `build_dataset`. Options that only tf.data supports are refused; `as_supervised` is set.
        start_step: The global step of the run with which training begins: that of an epoch's beginning.
        rank: The number of this process, from 0, and the number of processes that share each batch.
        transform: A function in place of crop, resize and flip: from a whole Pillow image and a
            `numpy.random.Generator` to an array, all of one shape and dtype. The record seeds the generator, so its
            numbers depend on no thread, host or resume. Several threads may call the function at once.
        batch_transform: A function from a finished batch, as a dictionary of NumPy arrays, to the dictionary whose
            image and label Keras gets. The threads that make batches call it.
        changes: Options in place of a config, or other than in it, such as `batch_size=256`.

    Attributes:
        config: The options of the pipeline.
        epoch: The epoch of the batches, which Keras ends and begins.

    Raises:
        ConfigError: The config does not fit this reader, the data or the number of processes; or the start step lies
            within an epoch.
        DataError: There are no records, or the directory is not a finished dataset.
        FormatError: While reading: a file is missing or damaged, or an image is.
    """

    def __init__(
        self,
        data: Manifest | Mixture | str | os.PathLike[str],
        split: str,
        config: PipelineConfig | None = None,
        start_step: int = 0,
        rank: tuple[int, int] = (0, 1),
        *,
        transform: ImageTransform | None = None,
        batch_transform: BatchTransform | None = None,
        **changes: Any,
    ) -> None:
        super().__init__(workers=1, use_multiprocessing=False)  # threads of this object work ahead
        index, ranks = rank
        self.config = replace(choose_config(config, changes), as_supervised=True)
        self._maker = open_data(data, split, self.config, Host(index, ranks, ranks), seed_transform(transform))
        self._finish = Finish(self._maker, batch_transform)
        self.epoch, step = self._next = locate(self._maker, start_step)
        self._has_begun = False
        self._ahead: Generator[Any] | None = None
        self._lock = threading.Lock()
        if step:
            steps = len(self)
            raise ConfigError(
                f"`start_step` must begin an epoch of {steps} steps, as Keras does, got {start_step}. Use "
                f"{start_step - step} or {start_step - step + steps}."
            )

    def __len__(self) -> int:
        """Returns the number of batches in an epoch."""
        return self._maker.plan.steps_per_epoch

    def __repr__(self) -> str:
        return describe_reader(self, self._maker.plan, Position(self.epoch, 0))

    def _repr_html_(self) -> str | None:
        return notebook.show(self)

    @property
    def plan(self) -> AnyPlan:
        """The plan of the batches."""
        return self._maker.plan

    @property
    def num_batches(self) -> int:
        """The number of batches in an epoch."""
        return len(self)

    def __getitem__(self, index: int) -> Any:
        """Returns one batch of the epoch. Batches that are asked for in order are made ahead."""
        position = Position(self.epoch if self.config.training else 0, int(index))
        with self._lock:
            if not position.step:
                self._start(position)
            if self._ahead is None or position != self._next:
                return self._finish(self._maker.make(*position, self.config.max_threads))
            batch = next(self._ahead)
            self._next = Position(position.epoch, position.step + 1)
            return batch

    def on_epoch_begin(self) -> None:
        """Goes on with the next epoch, which has another order."""
        self.epoch += self._has_begun
        self._has_begun = True

    def _start(self, position: Position) -> None:
        """Begins to make the batches of an epoch."""
        if self._ahead is not None:
            self._ahead.close()
        positions = list_positions(position, len(self), goes_on=False)
        threads, waiting = self.config.max_threads, self.config.prefetch_batches
        self._ahead = close_at_exit(make_ahead(self._maker, positions, threads, self._finish, waiting))
        self._next = position
