"""Batches for Keras with any backend: `model.fit(KerasBatches(...), epochs=90, shuffle=False)` ends by itself.

Without `shuffle=False` Keras draws an order of the batches of its own; each epoch still has all of its batches.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Generator
from dataclasses import replace
from typing import Any

from tfpipe.engine.ahead import close_at_exit, list_positions, make_ahead
from tfpipe.engine.batch import view_bfloat16
from tfpipe.engine.config.pipeline_config import PipelineConfig, choose_config
from tfpipe.engine.host import Host
from tfpipe.engine.position import Position, count_look
from tfpipe.errors import ConfigError
from tfpipe.readers.base import Batches, BatchTransform, Data, Finish, ImageTransform, locate, open_data, seed_transform
from tfpipe.system.extras import importing

with importing("`tfpipe.readers.keras`", "Keras", "keras"):
    import keras  # type: ignore[import-untyped]


class KerasBatches(Batches, keras.utils.PyDataset):  # type: ignore[misc]
    """The batches of one process as Keras takes them: (image, label), in evaluation with weights.

    Threads make them ahead. An evaluation has each record once. With several processes, or a `keras.distribution`, its
    last batch is filled up with rows of weight 0: give metrics as `weighted_metrics`, and the loss as one of them.

    Args:
        data: A manifest from `load_manifest`, a dataset's directory or URL, or several datasets from `tfpipe.mix`.
        split: The name of a split.
        config: The options of `build_dataset`. Options that only tf.data supports are refused; `as_supervised` is set.
        start_step: The global step of the run with which training begins. Within an epoch, the first pass has the rest
            of it; give `fit` the callback `EndFirstEpoch` then.
        rank: The number of this process, from 0, and the number of processes that share each batch.
        transform: A function that replaces crop, resize and flip, as for `NumpyBatches`.
        batch_transform: A function from a finished batch, as a dictionary of NumPy arrays, to the dictionary whose
            image and label Keras gets. The threads that make batches call it.
        changes: Options that replace those of the config, or stand in for a config, such as `batch_size=256`.

    Attributes:
        config: The options of the pipeline.

    Raises:
        ConfigError: The config does not fit this reader, the data or the number of processes.
        DataError: There are no records, or the directory is not a finished dataset.
        FormatError: While reading: a file is missing or damaged, or an image is.
    """

    def __init__(
        self,
        data: Data,
        split: str,
        config: PipelineConfig | None = None,
        start_step: int = 0,
        rank: tuple[int, int] = (0, 1),
        *,
        transform: ImageTransform | None = None,
        batch_transform: BatchTransform | None = None,
        **changes: Any,
    ) -> None:
        super().__init__(workers=1, use_multiprocessing=False)  # this object makes batches ahead in threads of its own
        config = replace(choose_config(config, changes), as_supervised=True)
        self._maker = open_data(data, split, config, Host.from_rank(rank), seed_transform(transform))
        several = keras.distribution.distribution() is not None  # its devices share the rows of a batch equally
        self._finish = Finish(self._maker, batch_transform, view_bfloat16, fills_up=several)
        self._begin = self._next = locate(self._maker, start_step)
        self._taken, self._last = 0, -1  # batches taken of the pass that began at `_begin`; the last one's index
        self._asks_for_pass = self._begins_epoch = False
        self._ahead: Generator[Any] | None = None
        self._lock = threading.Lock()

    @property
    def epoch(self) -> int:
        """The epoch in which the current pass began."""
        return self._begin.epoch

    @property
    def num_batches(self) -> int:
        """The number of batches in an epoch; when Keras begins an epoch, that of the next pass."""
        self._asks_for_pass = True
        return self.count_next_steps() if self._begins_epoch else len(self)

    @property
    def next_step(self) -> int:
        """The global step with which the next pass begins."""
        epoch, step = self._find_next()
        return epoch * len(self) + step

    @next_step.setter
    def next_step(self, step: int) -> None:
        self._begin, self._taken = Position(*divmod(step, len(self))), 0

    def count_next_steps(self) -> int:
        """Counts the batches of the next pass."""
        return len(self) - self._find_next().step

    def __getitem__(self, index: int) -> Any:
        """Returns one batch of the epoch. Batches that are asked for in order are made ahead."""
        index = int(index)
        with self._lock:
            position = self._locate(index)
            if not index:  # threads make the batches from here to the end of the epoch
                if self._ahead is not None:
                    self._ahead.close()
                positions = list_positions(position, len(self), goes_on=False)
                threads, waiting = self.config.max_threads, self.config.prefetch_batches
                self._ahead = close_at_exit(make_ahead(self._maker, positions, threads, self._finish, waiting))
                self._next = position
            if self._ahead is None or position != self._next:
                return self._finish(self._maker.make(*position, self.config.max_threads))
            batch = next(self._ahead)
            self._next = Position(position.epoch, position.step + 1)
            return batch

    def on_epoch_begin(self) -> None:
        """Lets the next batch begin a pass. With `steps_per_epoch` Keras continues the last pass instead."""
        self._begins_epoch = True

    def on_epoch_end(self) -> None:
        """Lets no batch begin a pass before the next epoch."""
        self._begins_epoch = False

    def _describe_position(self) -> str:
        return f"epoch {self.epoch}, step 0"

    def _find_next(self) -> Position:
        """Finds where the next pass begins: where this pass did, if Keras only looked at this pass."""
        steps = len(self) - self._begin.step
        is_counted = self._taken > min(count_look(steps), steps - 1)
        return Position(self._begin.epoch + 1, 0) if is_counted else self._begin

    def _locate(self, index: int) -> Position:
        """Returns the position of the batch that Keras asks for, which may be the first of the next pass."""
        if not self.config.training:
            return Position(0, index)
        # Keras asks for the number of batches when it begins a pass, and in between, too.
        is_over = self._taken in (0, len(self) - self._begin.step)
        is_new = self._asks_for_pass and (is_over or index != self._last + 1)
        begin = self._find_next() if is_new else self._begin
        if self._begins_epoch or not is_new:  # else Keras only looks at the shapes of the first batches
            self._taken = 1 if is_new else self._taken + 1
            self._begin, self._last = begin, index
            self._asks_for_pass = self._begins_epoch = False
        step = begin.step + index
        return Position(begin.epoch + step // len(self), step % len(self))


class EndFirstEpoch(keras.callbacks.Callback):  # type: ignore[misc]
    """A callback that ends the epoch in which a run resumes: `fit(again, callbacks=[EndFirstEpoch(again), ...])`.

    Keras expects each epoch to be whole, and calls the train step of a shorter one once too often. With TensorFlow that
    call fails only after it has raised `optimizer.iterations` and decayed the weights. This callback ends the epoch
    before that call. It also makes sure that the run trains on the batches that Keras looks at before it trains.

    Args:
        data: The dataset that `build_dataset` or `distribute_dataset` returned, before any `map`; or `KerasBatches`.

    Raises:
        ConfigError: It is anything else.
    """

    def __init__(self, data: Any) -> None:
        super().__init__()
        self._passes: list[Any] = [data] if isinstance(data, KerasBatches) else getattr(data, "tfpipe_passes", [])
        if not self._passes:
            raise ConfigError(
                "`EndFirstEpoch` needs a dataset whose passes end, as `build_dataset(..., epochs=1)` returns it before "
                f"any `map`, or KerasBatches, got {type(data).__name__}."
            )
        self._next_step = self._passes[0].next_step
        self._left: int | None = None
        self._silence: warnings.catch_warnings[None] | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Lets the first pass begin at the step at which this callback was made, whatever Keras has looked at since."""
        for passes in self._passes:
            passes.next_step = self._next_step
        steps = self._passes[0].count_next_steps()
        self._left = steps if steps < self._passes[0].num_batches else None

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Ends the epoch, as the end of the data would, if no step is left."""
        if self._left is None:
            return
        if self._silence is None and batch + (self.model.steps_per_execution or 1) >= self._left:
            self._silence = warnings.catch_warnings()
            self._silence.__enter__()
            warnings.filterwarnings("ignore", "Your input ran out of data")
        if batch >= self._left and keras.backend.backend() == "tensorflow":
            raise StopIteration  # other backends ask for the batch before they count the step

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Turns this callback off, or counts the steps left if `steps_per_epoch` ended the epoch before the pass."""
        if self._silence is not None:
            self._silence.__exit__(None, None, None)
            self._left = self._silence = None
        elif self._left is not None:
            self._left -= self.params["steps"]

    def on_train_end(self, logs: Any = None) -> None:
        """Keeps the step with which the next `fit` begins."""
        self._next_step = self._passes[0].next_step
