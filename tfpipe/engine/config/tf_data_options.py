"""TfDataOptions: the options of the textbook pipeline of `tf.data`."""

from __future__ import annotations

from dataclasses import dataclass

from tfpipe.system.options import Amount, Count, Flag, check_options, option, show_options


@dataclass(frozen=True, kw_only=True)
class TfDataOptions:
    """The options of the textbook pipeline, which reads files side by side and treats records one by one.

    Attributes:
        shuffle_buffer_size: The size of the shuffle buffer: a number counts records, text such as "256MiB" counts
            bytes. At least 1, as a number or a size such as 128MiB. Default: "256MiB".
        cycle_length: The number of files that are read side by side. None: 8. At least 1. Default: None.
        block_length: The number of records that are taken from one file before the next one has its turn. At least 1.
            Default: 16.
        read_parallel_calls: The number of threads that read files. None: one for each file of `cycle_length`.
            At least 1. Default: None.
        num_parallel_calls: The number of threads that decode and augment. None: AUTOTUNE. At least 1. Default: None.
        deterministic: Whether the order is kept when one read or decode is slower than the next. None: it is kept in
            evaluation only. Default: None.
        autotune: Whether tf.data adjusts the options that are AUTOTUNE. Otherwise there is a thread for each core, or
            for each file that is read. None: it does in training. It does not in evaluation, because its thread may
            hold up the end of a pass for as long as the pass took, up to a minute. Default: None.
        ram_budget: The memory that AUTOTUNE may plan with, in bytes or as text such as "8GiB". None: tf.data's share of
            the free memory. At least 1, as a number or a size such as 128MiB. Default: None.
        private_threadpool_size: The number of threads of a pool for this pipeline alone. None: it shares TensorFlow's
            pool. At least 1. Default: None.
        max_intra_op_parallelism: The number of threads within one operation of the pipeline. 0: TensorFlow decides.
            There are many images, so one thread for each is best: 1 saves 5 % of the processor time (2 cores, 256 px
            JPEG). At least 0. Default: 1.
        map_fusion: Whether `parse`, `decode` and `augment` run as one function. It saves 6 % of the processor time, and
            20 % in those stages (2 cores, 256 px JPEG). Default: True.
        inject_prefetch: Whether tf.data adds a prefetch if the last stage is not one. Default: True.

    Raises:
        ConfigError: A value cannot be used.
    """

    # The order is promised to nobody, so a buffer or a cycle of another size gives one that is as good.
    shuffle_buffer_size: int | str = option(Amount(), "256MiB")
    cycle_length: int | None = option(Count(1), None, affects="speed")
    block_length: int = option(Count(1), 16, affects="speed")
    read_parallel_calls: int | None = option(Count(1), None, affects="speed")
    num_parallel_calls: int | None = option(Count(1), None, affects="speed")
    deterministic: bool | None = option(Flag(), None)
    autotune: bool | None = option(Flag(), None, affects="speed")
    ram_budget: int | str | None = option(Amount(), None, affects="speed")
    private_threadpool_size: int | None = option(Count(1), None, affects="speed")
    max_intra_op_parallelism: int = option(Count(0), 1, affects="speed")
    map_fusion: bool = option(Flag(), True, affects="speed")
    inject_prefetch: bool = option(Flag(), True, affects="speed")

    __repr__ = show_options

    def __post_init__(self) -> None:
        check_options(self)
