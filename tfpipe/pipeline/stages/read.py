"""The stage `read`: payloads of records, from whole files or from runs of records at byte offsets, several at once.

Every element that leaves is `((place, payload), (record, seed))`: the bytes of one `tf.train.Example`, its number
counted through all files, and the int32 [2] from which its random numbers of this epoch are drawn. `place` is the
record that the reader has read. If it is another one, `record` is damaged or cannot be read: see `_bad_records`. Where
a cache keeps a part of the records, the others have a third value beside the seed: true, because they are chosen.

Costs: a run of records is one open and one seek, about 150 us of a core on a local disk. Payloads are never copied once
they are read: a batch of them, to be permuted and cut again, would cost 100 us for each record of 110 KB.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfpipe.pipeline import native_operations
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.pipeline.stage import Stage
from tfpipe.pipeline.stages import _bad_records, _exact_order, _order_ops
from tfpipe.pipeline.stages._bad_records import HOLE
from tfpipe.pipeline.stages._record_places import RecordPlaces
from tfpipe.pipeline.stages.list import (
    evaluation_runs,
    first_use_numbers,
    join_into_runs,
    list_runs_once,
    record_numbers,
)
from tfpipe.pipeline.store_records import StoreRecords
from tfpipe.system.hash_permutation import IntArray

_FILE_BUFFER_BYTES = 2**21  # of each whole file; with tf.data's 256 KiB, far storage is waited for eight times as often
_MAX_RUN_BUFFER_BYTES = 2**22  # a shorter run is read at once, and no byte behind it
_NUMBERS_PER_FILE = 2**40  # record numbers set aside for each file whose records nobody counted


def read_exact(plan: ReadPlan) -> Stage:
    """Reads runs so that records leave in the exact order: from each of the lanes in turn."""

    def apply(tracks: tf.data.Dataset) -> tf.data.Dataset:
        payloads = _read_in_turns(plan, tracks, _make_run_reader(plan))
        return _number_in_order(plan, payloads, _exact_order.list_epochs(plan))

    reason = "each row reads blocks of its own, so that a batch mixes many, and none is held back to be shuffled"
    return Stage("read", apply, _read_settings(plan, 1, True), reason)


def read_batches(plan: ReadPlan) -> Callable[[tf.data.Dataset], tf.data.Dataset]:
    """Makes the function that reads the records of each batch that `_exact_order.list_batches` lists.

    Each batch is one call of the native library, which reads each record from its place, 25 us of a core for 110 KB in
    place of 100. What is not in the page cache is asked for before the first record is waited for, with the rest of its
    run, which the next batches need. An object store is asked in the same way, by `StoreRecords`.
    """
    if plan.reads_store:
        read_places: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]] = StoreRecords(plan).read
    else:
        places_of, ahead = RecordPlaces(plan), round(plan.ahead_records * plan.source.record_bytes)

        def read_places(numbers: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            places = places_of.locate_each(numbers)
            return native_operations.read_records(places_of.paths, places, plan.read_threads, ahead)

    def read(numbers: tf.Tensor, seeds: tf.Tensor) -> tuple[Any, Any]:
        payloads, whole = read_places(numbers)
        return (tf.where(whole, numbers, -1), payloads), (numbers, seeds)

    return lambda batches: batches.map(read, num_parallel_calls=plan.batches_read, deterministic=True)


def read_steps(plan: ReadPlan) -> Stage:
    """Reads the records of single steps, a turn of a lane at once.

    A run is as short as one record. So what can be computed for all runs of a step is not computed for each of them.
    """
    places, size = RecordPlaces(plan), plan.track_records
    holes = _make_holes()

    def locate(first: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return first, *places.locate_runs(first, size)

    def read_track(
        first: tf.Tensor, paths: tf.Tensor, begins: tf.Tensor, files: tf.Tensor, run_bytes: tf.Tensor
    ) -> Any:
        if size > 1:
            paths, begins = paths[:files], begins[:files]
        return _read_located(first, tf.constant(size, tf.int64), (paths, begins, run_bytes), holes)

    def number(first: tf.Tensor, seeds: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.reshape(first[:, None] + tf.range(size, dtype=tf.int64), [-1]), tf.reshape(seeds, [-1, 2])

    def apply(steps: tf.data.Dataset) -> tf.data.Dataset:
        payloads = _interleave_ahead(plan, steps.map(locate).unbatch(), read_track)
        return tf.data.Dataset.zip((payloads, steps.map(number).unbatch()))

    reason = "by offsets from the index: the runs around them are for other steps, which other workers make"
    return Stage("read", apply, _read_settings(plan, size, True), reason)


def read_files(plan: ReadPlan) -> Stage:
    """Reads the records of files, a block of each in turn."""
    settings = _read_settings(plan, plan.config.block_length, plan.deterministic)
    return Stage("read", lambda files: _interleave_files(plan, files), settings, "several files side by side")


def read_once(plan: ReadPlan) -> Stage:
    """Reads the records of an evaluation."""
    if plan.source.shard_records is None:
        return read_files(plan)
    block = plan.config.block_length

    def apply(runs: tf.data.Dataset) -> tf.data.Dataset:
        return _add_numbers(
            plan, read_runs(plan, runs, block), _number_once(record_numbers(plan, evaluation_runs(plan)))
        )

    return Stage("read", apply, _read_settings(plan, block, True), "in the order of the files")


def read_first_use(plan: ReadPlan) -> Stage:
    """Reads the records that a cache keeps: those of the first epoch in its order, then the others."""

    def apply(tracks: tf.data.Dataset) -> tf.data.Dataset:
        read_run = _make_run_reader(plan)  # one for both, since it reads the indexes
        payloads = _read_in_turns(plan, tracks, read_run)
        if plan.leaves_out:
            first_epoch = tf.data.Dataset.range(plan.start[0], plan.start[0] + 1)
            payloads = _number_in_order(plan, payloads, first_epoch).map(lambda read, _: read)
        first, others = first_use_numbers(plan)
        if len(others):
            rest = list_runs_once(plan, join_into_runs(plan, others))
            payloads = payloads.concatenate(_interleave_runs(plan, rest, plan.config.block_length, read_run))
        # The stage `repeat` gives each epoch its seeds.
        return _add_numbers(plan, payloads, _number_once(np.concatenate([first, others])))

    settings = _read_settings(plan, 1, True)
    return Stage("read", apply, settings, "once: from then on records come from the cache")


def read_runs(plan: ReadPlan, runs: tf.data.Dataset, block_length: int) -> tf.data.Dataset:
    """Reads the payloads of runs of at most `block_length` records, in the order of the runs."""
    return _interleave_runs(plan, runs, block_length, _make_run_reader(plan))


def _interleave_runs(
    plan: ReadPlan, runs: tf.data.Dataset, block_length: int, read_run: Callable[..., tf.data.Dataset]
) -> tf.data.Dataset:
    # A block is as long as the longest run, so each run is read to its end and the order is that of the list.
    return runs.interleave(
        read_run,
        cycle_length=plan.cycle_length,
        block_length=block_length,
        num_parallel_calls=plan.config.read_parallel_calls or _choose_reads(plan),
        deterministic=True,
    )


def _choose_reads(plan: ReadPlan) -> int:
    """Chooses the number of runs that are read at once. Without autotuning, AUTOTUNE would mean one for each core."""
    return tf.data.AUTOTUNE if plan.config.autotunes else plan.cycle_length


def _read_in_turns(
    plan: ReadPlan, tracks: tf.data.Dataset, read_run: Callable[..., tf.data.Dataset]
) -> tf.data.Dataset:
    """Reads the tracks of `_exact_order` in the exact order."""

    def read_track(first: tf.Tensor, count: tf.Tensor) -> tf.data.Dataset:
        if not plan.in_lanes:
            return read_run(first, count)
        runs = tf.data.Dataset.from_tensor_slices((first, count))
        return runs.take(tf.math.count_nonzero(count)).flat_map(read_run)

    payloads = _interleave_ahead(plan, tracks, read_track)
    return payloads.skip(plan.early_records) if plan.early_records else payloads


def _interleave_ahead(
    plan: ReadPlan, tracks: tf.data.Dataset, read_track: Callable[..., tf.data.Dataset]
) -> tf.data.Dataset:
    """Reads tracks side by side as `Dataset.interleave` does, as far ahead as the plan says.

    `Dataset.interleave` has no options for that. It would read two turns and one record of each lane ahead, so far
    storage would be waited for, and it would always open the tracks of the next epoch.
    """
    specs: list[Any] = []

    def open_track(*track: tf.Tensor) -> tf.Tensor:
        dataset = read_track(*track)
        specs.append(dataset.element_spec)
        return tf.data.experimental.to_variant(dataset)

    function = tf.function(open_track, input_signature=tracks.element_spec, autograph=False).get_concrete_function()
    spec = specs[-1]
    parts = tf.nest.flatten(spec)
    payloads = tf.raw_ops.ParallelInterleaveDatasetV4(
        input_dataset=tf.data.experimental.to_variant(tracks),
        other_arguments=function.captured_inputs,
        cycle_length=plan.cycle_length,
        block_length=plan.track_records if plan.by_steps else plan.order.turn_records,
        buffer_output_elements=plan.lane_buffer_records,
        prefetch_input_elements=plan.tracks_ahead,
        num_parallel_calls=plan.read_threads,
        f=function,
        output_types=[part.dtype for part in parts],
        output_shapes=[part.shape for part in parts],
        deterministic="true",
    )
    dataset = tf.data.experimental.from_variant(payloads, spec)
    setattr(dataset, "_inputs", lambda: [tracks])  # noqa: B010 -- the profiler follows a pipeline back to its source
    return dataset


def _number_once(numbers: IntArray) -> tf.data.Dataset:
    """Lists record numbers, with zeros for seeds."""
    no_seed = tf.zeros([2], tf.int32)
    return tf.data.Dataset.from_tensor_slices(tf.constant(numbers)).map(lambda record: (record, no_seed))


def _interleave_files(plan: ReadPlan, files: tf.data.Dataset) -> tf.data.Dataset:
    """Reads whole files, a block of records of each in turn."""
    if plan.source.shard_records is None:
        read_file = _make_uncounted_file_reader(plan)
    else:
        read_file = _make_part_reader(plan) if plan.scatters else _make_file_reader(plan)
    return files.interleave(
        read_file,
        cycle_length=plan.cycle_length,
        block_length=plan.config.block_length,
        num_parallel_calls=plan.read_threads,
        deterministic=plan.deterministic,
    )


def _make_file_reader(plan: ReadPlan) -> Callable[..., tf.data.Dataset]:
    """Makes a function from a file and an epoch to a dataset of its records."""
    bases, read_part = tf.constant(plan.source.bases), _make_part_reader(plan)

    def read_file(file: tf.Tensor, epoch: tf.Tensor) -> tf.data.Dataset:
        return read_part(file, tf.zeros_like(file), bases[file + 1] - bases[file], epoch)

    return read_file


def _make_part_reader(plan: ReadPlan) -> Callable[..., tf.data.Dataset]:
    """Makes a function from a part of a file and an epoch to a dataset of its records, read as one run."""
    bases = tf.constant(plan.source.bases)
    skips_bad, block, seed = plan.config.on_bad_record == "skip", plan.config.block_length, plan.config.seed
    read_run = _make_run_reader(plan)

    def check(read: tuple[tf.Tensor, ...], number: tuple[tf.Tensor, ...]) -> tuple[Any, ...]:
        # Here and not in `parse`: the shuffle buffer would give the records that were lost behind the bad one first.
        return (read[0], _bad_records.or_raise(plan, read[1], read[0], number[0])), number

    def read_part(file: tf.Tensor, first: tf.Tensor, count: tf.Tensor, epoch: tf.Tensor) -> tf.data.Dataset:
        records = bases[file] + tf.range(first, first + count)
        numbers = tf.data.Dataset.from_tensor_slices((records, _order_ops.make_seeds(seed, epoch, records)))
        if skips_bad:
            # In blocks, because a run with damage is in memory whole.
            starts = tf.data.Dataset.range(0, count, block)
            payloads = starts.flat_map(lambda at: read_run(records[0] + at, tf.minimum(count - at, block)))
        else:
            payloads = read_run(bases[file] + first, count)
        joined = _add_numbers(plan, payloads, numbers)
        return joined if skips_bad else joined.map(check)

    return read_part


def _make_uncounted_file_reader(plan: ReadPlan) -> Callable[..., tf.data.Dataset]:
    """Makes a function from a file and an epoch to a dataset of its uncounted records.

    The number of records in earlier files is not known, so each file gets a separate range of numbers.
    """
    paths, compression, seed = tf.constant(plan.source.files), plan.source.compression, plan.config.seed

    def read_file(file: tf.Tensor, epoch: tf.Tensor) -> tf.data.Dataset:
        numbers = tf.data.Dataset.range(file * _NUMBERS_PER_FILE, (file + 1) * _NUMBERS_PER_FILE)
        numbers = numbers.map(lambda record: (record, _order_ops.make_seeds(seed, epoch, record)))
        payloads = tf.data.TFRecordDataset(tf.gather(paths, file), compression, buffer_size=_FILE_BUFFER_BYTES)
        places = numbers.map(lambda record, _: record)
        return tf.data.Dataset.zip(((places, payloads), numbers))

    return read_file


def _make_run_reader(plan: ReadPlan) -> Callable[..., tf.data.Dataset]:
    """Makes a function from a run to a dataset of its places and payloads, with holes for records that are missing.

    A run is the number of its first record, counted through all files, and a count; see `RecordPlaces`.
    """
    places_of, holes = RecordPlaces(plan), _make_holes()

    def read_run(number: tf.Tensor, count: tf.Tensor) -> tf.data.Dataset:
        return _read_located(number, count, places_of.locate(number, count), holes)

    def read_run_around_damage(number: tf.Tensor, count: tf.Tensor) -> tf.data.Dataset:
        """Reads on after each damaged record. This needs a second copy of the run, and about a tenth more of a core."""
        numbers, has_chosen = tf.range(number, number + count), places_of.has_chosen(number, count)

        def read_on(position: tf.Tensor, result: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            remaining = count - position
            places, payloads = read_run(number + position, remaining).batch(remaining).get_single_element()
            bad = tf.where(tf.not_equal(places, numbers[position:]))[:1, 0]
            good = tf.concat([bad, [remaining]], axis=0)[0]
            done = tf.minimum(good + 1, remaining)  # the hole itself included
            payloads = tf.concat([payloads[:good], tf.fill([done - good], HOLE)], axis=0)
            return position + done, tf.concat([result[:position], payloads, result[position + done :]], axis=0)

        start = tf.zeros_like(count)
        shapes = (start.shape, tf.TensorShape([None]))
        _, result = tf.while_loop(
            lambda position, _: (position < count) & has_chosen, read_on, (start, tf.fill([count], HOLE)), shapes
        )
        places = tf.where(tf.equal(result, HOLE), tf.constant(-1, tf.int64), numbers)
        return tf.data.Dataset.from_tensor_slices((places, result))

    return read_run_around_damage if plan.config.on_bad_record == "skip" else read_run


def _make_holes() -> tf.data.Dataset:
    """Makes places and payloads of records that are missing, without end."""
    return tf.data.Dataset.from_tensors((tf.constant(-1, tf.int64), HOLE)).repeat()


def _read_located(
    number: tf.Tensor, count: tf.Tensor, located: tuple[tf.Tensor, ...], holes: tf.data.Dataset
) -> tf.data.Dataset:
    """Reads a run of `count` records, the first of which is `number`, from where `RecordPlaces` found it."""
    paths, offsets, run_bytes = located
    run_bytes = tf.maximum(run_bytes, 1)
    buffer_bytes = tf.where(run_bytes > _MAX_RUN_BUFFER_BYTES, tf.constant(_FILE_BUFFER_BYTES, tf.int64), run_bytes)
    # After an error the reader goes on in the next file: then the places do not fit, and give the damage away. A file
    # that cannot be opened gives its error again and again, so `ignore_errors` would never end. A `zip` ends with its
    # first part, so after `count` attempts.
    payloads = _read_from(paths, offsets, buffer_bytes)
    read = tf.data.Dataset.zip((tf.data.Dataset.range(number, number + count), payloads))
    return read.ignore_errors(log_warning=True).concatenate(holes).take(count)


def _read_from(paths: tf.Tensor, offsets: tf.Tensor, buffer_bytes: tf.Tensor) -> tf.data.Dataset:
    """Reads payloads from a byte offset in each file to the end of the file, `buffer_bytes` at once.

    It works only inside an `interleave` or `flat_map`: as a pipeline's first dataset the operation loses its last
    argument.
    """
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=paths, compression_type="", buffer_size=buffer_bytes, byte_offsets=offsets
    )
    return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))


def _number_in_order(plan: ReadPlan, payloads: tf.data.Dataset, epochs: tf.data.Dataset) -> tf.data.Dataset:
    """Joins payloads of the exact order with their numbers, without the records that the plan does not choose."""
    numbered = tf.data.Dataset.zip((payloads, _exact_order.list_records(plan, epochs)))
    return _exact_order.keep_chosen(plan, numbered)


def _add_numbers(plan: ReadPlan, payloads: tf.data.Dataset, numbers: tf.data.Dataset) -> tf.data.Dataset:
    """Joins payloads with the numbers and the seeds of their records. A map that only renames would cost 10 us each."""
    joined = tf.data.Dataset.zip((payloads, numbers))
    if plan.config.on_bad_record == "skip" or not plan.caches_whole:
        return joined

    # A cache that is fetched from asks on after an error, and meets the records that were lost behind the damaged one.
    def remember(bad: tf.Tensor, element: Any) -> tuple[tf.Tensor, Any]:
        (place, _), (record, _) = element
        bad = tf.where((bad < 0) & tf.not_equal(place, record), record, bad)
        return bad, (*element, bad)

    def check(read: tuple[tf.Tensor, ...], number: Any, bad: tf.Tensor) -> tuple[Any, ...]:
        return (number[0], _bad_records.or_raise(plan, read[1], none, bad)), number

    none = tf.constant(-1, tf.int64)
    return joined.scan(none, remember).map(check)


def _read_settings(plan: ReadPlan, block_length: int, deterministic: bool) -> dict[str, object]:
    config = plan.config
    return {
        "cycle_length": plan.cycle_length,
        "block_length": block_length,
        "num_parallel_calls": config.read_parallel_calls,
        "deterministic": deterministic,
    }
