"""Payloads of records: whole files, or runs of records at byte offsets, several at once.

Every element that leaves `read` is `(payload, record, seed)`: the bytes of one `tf.train.Example`, its number counted
through all files, and the int32 [2] that its random numbers of this epoch are made of. In exact order only payloads
leave, and `windows.shuffle_exact` adds the rest. What is damaged or cannot be read leaves as a hole: see `damage.py`.

Costs: a run of records is one open and one seek, about 100 us of a core on a local disk.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tfpipe.errors import ConfigError
from tfpipe.order import evaluation_order, expand_runs
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.pipeline.stages import _bad_records, _order_ops
from tfpipe.pipeline.stages._bad_records import HOLE
from tfpipe.system.hash_permutation import FILES, IntArray, key_of

_BUFFER_BYTES = 256 * 1024  # of each open file, as in tf.data's own reader


# list


def list_files(plan: ReadPlan, epochs: tf.data.Dataset) -> tf.data.Dataset:
    """This host's files in a new order every epoch: number of the file, epoch."""
    if len(plan.source.files) < plan.num_hosts:
        raise ConfigError(
            f"{plan.num_hosts} input pipelines but only {len(plan.source.files)} files in {plan.source.name}. Write "
            f"{plan.num_hosts} or more shards, or read in exact order, which shares out records."
        )
    own = np.arange(plan.host, len(plan.source.files), plan.num_hosts, dtype=np.int64)
    prefix = key_of(FILES, plan.config.seed, plan.start_step)

    def files(epoch: tf.Tensor) -> tf.data.Dataset:
        order = _order_ops.permutation(_order_ops.extend_key(prefix, epoch), tf.constant(len(own)))
        return tf.data.Dataset.from_tensor_slices(tf.gather(tf.constant(own), order)).map(lambda file: (file, epoch))

    return epochs.flat_map(files)


def evaluation_runs(plan: ReadPlan) -> IntArray:
    """This host's share of the evaluation: int64 [n, 3]."""
    return evaluation_order(plan.source.shard_records or (), plan.num_hosts, plan.host)


def list_all(plan: ReadPlan) -> tf.data.Dataset:
    """Files that nobody counted, once and in order, for one host: number of the file, epoch 0."""
    zero = tf.constant(0, tf.int64)
    return tf.data.Dataset.range(len(plan.source.files)).map(lambda file: (file, zero))


def list_once(plan: ReadPlan, runs: IntArray) -> tf.data.Dataset:
    """Runs that are read once, in this order."""
    pieces = split_runs(runs, plan.config.block_length)
    return tf.data.Dataset.from_tensor_slices(tuple(tf.constant(pieces[:, column]) for column in (0, 1, 2, 2)))


def split_runs(runs: IntArray, most: int) -> IntArray:
    """The same records in runs of at most `most`, so that several are read at once: int64 [n, 3]."""
    shard, first, count = runs.T
    parts = -(-count // most)
    row = np.repeat(np.arange(len(runs)), parts)
    at = (np.arange(len(row)) - np.repeat(np.cumsum(parts) - parts, parts)) * most
    return np.stack([shard[row], first[row] + at, np.minimum(count[row] - at, most)], axis=1)


# read


def read_runs(plan: ReadPlan, runs: tf.data.Dataset, block_length: int) -> tf.data.Dataset:
    """Payloads of runs of at most `block_length` records, in the order of the runs."""
    read_run = _run_reader(plan)
    # With a block as long as the longest run each run is read out in its turn, so the order is that of the list.
    return runs.interleave(
        read_run,
        cycle_length=plan.config.cycle_length,
        block_length=block_length,
        num_parallel_calls=plan.config.read_parallel_calls or tf.data.AUTOTUNE,
        deterministic=True,
    )


def read_files(plan: ReadPlan, files: tf.data.Dataset) -> tf.data.Dataset:
    """Records of whole files, a block of each in turn."""
    paths = tf.constant(plan.source.files)
    bases = tf.constant(plan.source.bases)
    counted, seed = plan.source.shard_records is not None, plan.config.seed
    read_run = _run_reader(plan) if counted else None

    def read(file: tf.Tensor, epoch: tf.Tensor) -> tf.data.Dataset:
        if read_run is None:
            # Numbers of the files' own: nobody knows how many records lie before.
            numbers = tf.data.Dataset.range(file * 2**40, (file + 1) * 2**40)
            numbers = numbers.map(lambda record: (record, _order_ops.example_seed(seed, epoch, record)))
            packed = plan.source.compression
            records = tf.data.TFRecordDataset(tf.gather(paths, file), packed, buffer_size=_BUFFER_BYTES)
        else:
            first, end = bases[file], bases[file + 1]
            every = tf.range(first, end)
            numbers = tf.data.Dataset.from_tensor_slices((every, _order_ops.example_seed(seed, epoch, every)))
            if plan.config.on_bad_record == "skip":
                step = plan.config.block_length
                starts = tf.data.Dataset.range(0, end - first, step)
                records = starts.flat_map(lambda at: read_run(file, at, *(2 * [tf.minimum(end - first - at, step)])))
            else:
                records = read_run(file, tf.zeros_like(first), end - first, end - first)
        return tf.data.Dataset.zip((records, numbers)).map(
            lambda payload, number: (_checked(plan, payload, number[0]) if counted else payload, *number)
        )

    return files.interleave(
        read,
        cycle_length=plan.config.cycle_length,
        block_length=plan.config.block_length,
        num_parallel_calls=plan.config.read_parallel_calls or tf.data.AUTOTUNE,
        deterministic=plan.deterministic,
    )


def number_records(plan: ReadPlan, payloads: tf.data.Dataset, runs: IntArray) -> tf.data.Dataset:
    """Gives the payloads of `list_once` their records' numbers, and no seeds."""
    numbers = tf.data.Dataset.from_tensor_slices(tf.constant(numbers_of(plan, runs)))
    none = tf.zeros([2], tf.int32)
    return tf.data.Dataset.zip((payloads, numbers)).map(
        lambda payload, record: (_checked(plan, payload, record), record, none)
    )


def numbers_of(plan: ReadPlan, runs: IntArray) -> IntArray:
    """The records of runs, counted through all files: int64 [records]."""
    shard, record = expand_runs(runs).T
    numbers: IntArray = plan.source.bases[shard] + record
    return numbers


def shuffle_buffer(plan: ReadPlan, records: tf.data.Dataset) -> tf.data.Dataset:
    """The classic shuffle: each element is drawn from a buffer."""
    return records.shuffle(plan.shuffle_records, seed=key_of(FILES, plan.config.seed, plan.start_step, 1) >> 1)


def _checked(plan: ReadPlan, payload: tf.Tensor, record: tf.Tensor) -> tf.Tensor:
    """The payload; or the error for a hole. Here, where records still come in the order of their file."""
    if plan.config.on_bad_record == "skip":
        return payload
    return _bad_records.or_raise(plan, payload, record[None][: tf.cast(tf.equal(payload, HOLE), tf.int32)])


def _run_reader(plan: ReadPlan) -> Callable[..., tf.data.Dataset]:
    """A function from a run to a dataset of its payloads, with holes for what is missing."""
    paths = tf.constant(plan.source.files)
    bases = tf.constant(plan.source.bases)
    offsets = tf.constant(plan.source.offsets())
    holes = tf.data.Dataset.from_tensors(HOLE).repeat()

    def payloads(file: tf.Tensor, record: tf.Tensor, count: tf.Tensor, slots: tf.Tensor) -> tf.data.Dataset:
        # A run without records is padding and may begin behind the last record.
        offset = tf.gather(offsets, tf.minimum(record, offsets.shape[0] - 1))
        # A file that cannot be opened gives its error for ever, which `ignore_errors` would wait out. A pair ends with
        # its first part, whatever the second one gives: after `count` attempts.
        pairs = tf.data.Dataset.zip((tf.data.Dataset.range(count), _records_at(tf.gather(paths, file), offset)))
        found = pairs.map(lambda _, payload: payload)
        return found.ignore_errors(log_warning=True).concatenate(holes).take(slots)

    def read(file: tf.Tensor, first: tf.Tensor, count: tf.Tensor, slots: tf.Tensor) -> tf.data.Dataset:
        return payloads(file, bases[file] + first, count, slots)

    def read_around_damage(file: tf.Tensor, first: tf.Tensor, count: tf.Tensor, slots: tf.Tensor) -> tf.data.Dataset:
        """Goes on behind each damaged record. The run is in memory once more: about a tenth more of a core."""

        def go_on(position: tf.Tensor, result: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            left = count - position
            read = payloads(file, bases[file] + first + position, left, left).batch(left).get_single_element()
            bad = tf.where(tf.equal(read, HOLE))[:1, 0]
            good = tf.concat([bad, [left]], axis=0)[0]
            done = tf.minimum(good + 1, left)  # the hole itself
            return position + done, tf.concat([result[:position], read[:done], result[position + done :]], axis=0)

        result = tf.fill([slots], HOLE)
        start = tf.zeros_like(count)
        shapes = (start.shape, tf.TensorShape([None]))
        _, result = tf.while_loop(lambda position, _: position < count, go_on, (start, result), shapes)
        return tf.data.Dataset.from_tensor_slices(result)

    return read_around_damage if plan.config.on_bad_record == "skip" else read


def _records_at(path: tf.Tensor, offset: tf.Tensor) -> tf.data.Dataset:
    """Payloads from a byte offset on. Only inside an `interleave` or `flat_map`: as a pipeline's own first dataset
    this operation loses its last argument.
    """
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=path[None], compression_type="", buffer_size=_BUFFER_BYTES, byte_offsets=offset[None]
    )
    return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
