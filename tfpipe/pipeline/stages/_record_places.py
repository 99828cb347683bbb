"""The places of records: in the files of the source, or in those of a cache that is being filled.

A cache is filled shard by shard while the pipeline runs, so the answer changes for a shard, once: it is looked up
whenever a run of records is opened. This costs 5 us a run, and nothing without such a cache.
"""

import numpy as np
import tensorflow as tf

from tfpipe.pipeline.plan.read_plan import ReadPlan


class RecordPlaces:
    """The places of a plan's records, as operations of a graph.

    Records are numbered through all files, and from the number of records on once more, because a run may go on from
    the last file to the first one.

    Args:
        plan: The read plan, whose source has counted records.
    """

    def __init__(self, plan: ReadPlan) -> None:
        source, self._filling = plan.source, plan.filling
        starts = source.bases[:-1]
        self._num_records, self._num_files = int(source.bases[-1]), len(source.files)
        bases = np.concatenate([starts, starts + self._num_records, [2 * self._num_records]])
        with tf.init_scope():  # captured once; inside a function, each copy of it would store them again
            self._bases = tf.constant(bases)
            self._offsets = tf.constant(source.offsets())
            self._file_bytes = tf.constant([*source.file_bytes, *source.file_bytes], tf.int64)
            self._paths = tf.constant([*source.files, *source.files])
            self._chosen_before = None if plan.chosen is None else tf.constant(np.append(0, np.cumsum(plan.chosen)))
            self._cached_paths = tf.constant(self._filling.files if self._filling is not None else ("",))

    def locate(self, number: tf.Tensor, count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Finds a run of adjacent records, which may go on in the next files.

        Args:
            number: int64: the number of the first record.
            count: int64: the number of records.

        Returns:
            The paths of the files that hold the run, string [n]; the byte at which to begin in each, int64 [n]; and the
            bytes of the run in the first of them, int64. There is no file if the plan chooses no record of the run.
        """
        file = self._find_file(number)
        last_file = self._find_file(number + tf.maximum(count - 1, 0))
        path, begin, end = self._locate_part(file, number, count)
        paths = tf.concat([path[None], self._paths[file + 1 : last_file + 1]], axis=0)
        begins = tf.pad(begin[None], [[0, last_file - file]])
        if self._chosen_before is None:
            return paths, begins, end - begin
        files = tf.where(self.has_chosen(number, count), tf.size(paths), 0)
        return paths[:files], begins[:files], end - begin

    def has_chosen(self, number: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        """Returns whether the plan chooses a record of a run: bool."""
        if self._chosen_before is None:
            return tf.constant(True)
        return self._count_chosen(number + count) > self._count_chosen(number)

    def _count_chosen(self, number: tf.Tensor) -> tf.Tensor:
        """Counts the chosen records before this one."""
        before = tf.gather(self._chosen_before, number % self._num_records)
        return before + number // self._num_records * tf.gather(self._chosen_before, self._num_records)

    def _find_file(self, number: tf.Tensor) -> tf.Tensor:
        return tf.searchsorted(self._bases, number[None], side="right", out_type=tf.int64)[0] - 1

    def _locate_part(
        self, file: tf.Tensor, number: tf.Tensor, count: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Finds the part of a run that lies in its first file: the path, and the bytes at which it begins and ends."""
        stop = tf.minimum(number + count, self._bases[file + 1])
        begin = tf.gather(self._offsets, number % self._num_records)
        end = tf.gather(self._offsets, stop % self._num_records)
        end = tf.where(stop < self._bases[file + 1], end, self._file_bytes[file])
        if self._filling is None:
            return self._paths[file], begin, end
        # In one operation, which sees all of a shard's places or none.
        shard = file % self._num_files
        first = number % self._num_records + shard
        cached = tf.gather(self._filling.places, tf.stack([first, first + stop - number]))
        is_cached = tf.reduce_all(cached >= 0)
        begin, end = tf.unstack(tf.where(is_cached, cached, tf.stack([begin, end])))
        return tf.where(is_cached, self._cached_paths[shard], self._paths[file]), begin, end
