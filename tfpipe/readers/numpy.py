"""Batches as NumPy arrays, for a framework that has no reader here, or for a look at what a step got."""

from __future__ import annotations

from typing import Any

from tfpipe.engine.config.pipeline_config import PipelineConfig, choose_config
from tfpipe.engine.host import Host
from tfpipe.errors import ConfigError
from tfpipe.readers.base import BatchTransform, Data, EpochBatches, Finish, ImageTransform, open_data, seed_transform
from tfpipe.system.arguments import check_count


class NumpyBatches(EpochBatches):
    """The batches of one process, as an iterable of epochs.

    Each pass is the next whole epoch, even if the last pass was left early; only the pass after `load_state_dict`,
    `set_epoch` or a `start_step` begins where these say. A look at one batch does not count as a pass. In evaluation
    each pass is the whole split, every record once. Threads make the batches, two steps ahead or as many as
    `prefetch_batches` says. In training they also make the first batches of the next epoch ahead.

    Args:
        data: A manifest from `load_manifest`, a dataset's directory or URL, or several datasets from `tfpipe.mix`.
        split: The name of a split.
        config: The options of `build_dataset`. Options that only tf.data supports are refused.
        start_step: The global step of the run with which training begins, in whichever epoch it lies.
        rank: The number of this process, from 0, and the number of processes that share each batch.
        num_threads: The number of threads that decode. None: one for each core, or what `cpu_budget` leaves.
        transform: A function that replaces crop, resize and flip: from a whole Pillow image and a
            `numpy.random.Generator` to an array, all of one shape and dtype. The record seeds the generator, so its
            numbers depend on no thread, host or resume. Several threads may call the function at once.
        batch_transform: A function from a finished batch, as a dictionary, to the dictionary that the trainer gets. The
            threads that make batches call it.
        changes: Options that replace those of the config, or stand in for a config, such as `batch_size=256`.

    A batch is a dictionary of "image", uint8 or float32 [batch, height, width, 3], where bfloat16 comes as its bits,
    uint16; "label", int64 [batch] or one-hot float32 [batch, classes]; the features in `extra_features`, or all if
    records have no image: text as lists of bytes, tensors of open size as lists of arrays unless `pad_to` gives them a
    size. In evaluation "mask", bool [batch], is False in rows that fill a batch up. With `as_supervised`: (image,
    label), in evaluation with the mask as a third; of one process the last batch is then as small as the records that
    are left.

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
        num_threads: int | None = None,
        *,
        transform: ImageTransform | None = None,
        batch_transform: BatchTransform | None = None,
        **changes: Any,
    ) -> None:
        config = choose_config(config, changes)
        maker = open_data(data, split, config, Host.from_rank(rank), seed_transform(transform))
        self._finish = Finish(maker, batch_transform)
        super().__init__(maker, start_step, num_threads, self._finish)

    def read(self, step: int) -> Any:
        """Makes the batch of any global step of the run; in evaluation, of any step of the pass.

        Raises:
            ConfigError: There is no such step.
            FormatError: A file is missing or damaged, or an image is.
            DataError: A file cannot be read.
        """
        if not self.config.training and not 0 <= step < len(self):
            raise ConfigError(f"`step` must be from 0 to {len(self) - 1} in evaluation, got {step}.")
        check_count("step", step)
        return self._finish(self._maker.make(*divmod(step, len(self)), self._threads))
