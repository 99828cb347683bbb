"""Records that are damaged or cannot be read: they raise an error with their place, or are left out and counted.

`tf.data` itself names no file, and with `ignore_errors` it loses the rest of a file. So the stage `read` numbers what
it reads, and puts holes at the end of a run that lacks records. A record is bad if another one was read in its place.
"""

from typing import Any

import tensorflow as tf

from tfpipe.pipeline.plan.read_plan import ReadPlan

HOLE = ""


def leave_out(plan: ReadPlan, records: tf.data.Dataset) -> tf.data.Dataset:
    """Drops holes, and counts each missing record once in all epochs.

    More than `max_bad_records` of them end the reading with an error.
    """

    def count(bad: tf.Tensor, element: Any) -> tuple[tf.Tensor, Any]:
        (place, _), (record, *_) = element
        return tf.cond(tf.equal(place, record), lambda: bad, lambda: _add_bad_record(plan, bad, record)), element

    counted = records.scan(tf.zeros([0], tf.int64), count)
    return counted.filter(lambda read, number: tf.equal(read[0], number[0]))


def or_raise(plan: ReadPlan, payload: tf.Tensor, place: tf.Tensor, record: tf.Tensor) -> tf.Tensor:
    """Returns a payload, or several, or raises an error if one is not that of the expected record.

    A read loses everything after the damage, and the records behind come later in any order. So the first record that
    is missing is the damaged one.

    Args:
        plan: The read plan.
        payload: Scalar string, or strings of shape [n].
        place: int64 of the same shape: the number of the record that was read.
        record: int64 of the same shape: the number of the record that was expected, which the error names.
    """
    is_whole = tf.equal(place, record)

    def fail() -> tf.Tensor:
        sentence = tf.strings.join(
            [
                "A record must be whole and readable: ",
                _describe(plan, record if record.shape.rank == 0 else tf.boolean_mask(record, ~is_whole)[0]),
                " is damaged, or its file cannot be read. Copy the file again, save the rest with `tfpipe repair`, or "
                "set on_bad_record to skip.",
            ]
        )
        with tf.control_dependencies([tf.debugging.Assert(False, [sentence])]):
            return tf.identity(payload)

    return tf.cond(is_whole if record.shape.rank == 0 else tf.reduce_all(is_whole), lambda: payload, fail)


def _add_bad_record(plan: ReadPlan, bad: tf.Tensor, record: tf.Tensor) -> tf.Tensor:
    """Adds a record to the numbers of bad records, and reports it if it is new."""
    record %= plan.source.num_records  # so that it is the same one if the order has counted on
    limit = plan.config.max_bad_records

    def report() -> tf.Tensor:
        place, extended = _describe(plan, record), tf.concat([bad, record[None]], axis=0)
        sentence = tf.strings.join(
            [f"At most {limit} bad records may be left out (`max_bad_records`); one more is ", place, "."]
        )
        notice = tf.print("tfpipe leaves out", place, "as damaged:", tf.size(extended), "so far")
        with tf.control_dependencies([notice, tf.debugging.Assert(tf.size(extended) <= limit, [sentence])]):
            return tf.identity(extended)

    return tf.cond(tf.reduce_any(tf.equal(bad, record)), lambda: bad, report)


def _describe(plan: ReadPlan, record: tf.Tensor) -> tf.Tensor:
    """Says where a record lies: "record 3 of /data/train-00000-of-00008.tfrecord".

    Paths are constants of the function that asks. If it captured them, tf.data could not fuse the stage `parse` with
    the next one, which takes 6 % of the processor time. The record's byte is left out, since a table is too large.
    """
    number, bases = record % plan.source.num_records, tf.constant(plan.source.bases)
    file = tf.searchsorted(bases, number[None], side="right", out_type=tf.int64)[0] - 1
    path = tf.gather(tf.constant(plan.source.files), file)
    return tf.strings.join(["record ", tf.strings.as_string(number - tf.gather(bases, file)), " of ", path])
