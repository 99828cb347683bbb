"""The places of records in the files of a source."""

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
        source = plan.source
        starts = source.bases[:-1]
        self._num_records, self._num_files = int(source.bases[-1]), len(source.files)
        bases = np.concatenate([starts, starts + self._num_records, [2 * self._num_records]])
        self._starts = bases
        with tf.init_scope():  # captured once; inside a function, each copy of it would store them again
            self._bases = tf.constant(bases)
            self._offsets = tf.constant(source.offsets())
            self._file_bytes = tf.constant([*source.file_bytes, *source.file_bytes], tf.int64)
            self._paths = tf.constant([*source.files, *source.files])
            self._chosen_before = None if plan.chosen is None else tf.constant(np.append(0, np.cumsum(plan.chosen)))

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

    def locate_each(self, numbers: tf.Tensor) -> tf.Tensor:
        """Finds each of several records, wherever they lie.

        Args:
            numbers: int64 [n]: the numbers of the records.

        Returns:
            int64 [n, 3]: the number of the file, the byte at which the record begins, and the byte behind its end.
        """
        numbers %= self._num_records
        file = tf.searchsorted(self._bases, numbers, side="right", out_type=tf.int64) - 1
        is_last = tf.equal(numbers + 1, tf.gather(self._bases, file + 1))
        end = tf.gather(self._offsets, (numbers + 1) % self._num_records)
        end = tf.where(is_last, tf.gather(self._file_bytes, file), end)
        return tf.stack([file, tf.gather(self._offsets, numbers), end], axis=1)

    @property
    def paths(self) -> tf.Tensor:
        """The paths of the files, string [n], by their numbers."""
        return self._paths

    def locate_runs(self, numbers: tf.Tensor, count: int) -> tuple[tf.Tensor, ...]:
        """Finds several runs of equally many records at once: as many operations as for one.

        The plan must choose all records.

        Args:
            numbers: int64 [n]: the number of the first record of each run.
            count: The number of records of each.

        Returns:
            The paths of the files that may hold a run, string [n, files]; the byte at which to begin in each, int64
            [n, files]; how many of these files do hold a part of it, int64 [n]; and the bytes of the run in the first
            of them, int64 [n].
        """
        file, begin, _ = tf.unstack(self.locate_each(numbers), axis=1)
        last_file, _, end = tf.unstack(self.locate_each(numbers + count - 1), axis=1)
        files = (last_file - file) % self._num_files + 1
        end = tf.where(tf.equal(files, 1), end, tf.gather(self._file_bytes, file))
        most = self._count_files(count)
        candidates = tf.minimum(file[:, None] + tf.range(most, dtype=tf.int64), len(self._paths) - 1)
        paths, begins = tf.gather(self._paths, candidates), tf.pad(begin[:, None], [[0, 0], [0, most - 1]])
        return paths, begins, files, end - begin

    def _count_files(self, count: int) -> int:
        """Counts the most files that may hold parts of a run of `count` records: one that begins at a file's end."""
        starts = np.maximum(self._starts[1:] - 1, 0)
        first, last = (np.searchsorted(self._starts, at, side="right") for at in (starts, starts + count - 1))
        return int((last - first).max()) + 1

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
        return self._paths[file], begin, end
