"""The settings of a run of `tfpipe.write`, which worker processes share."""

from __future__ import annotations

import os
from dataclasses import dataclass

from tfpipe.writer.fields import RecordForm

WORKING = ".tfpipe-write"
"""The ending of the folder in which an unfinished dataset is gathered."""


@dataclass(frozen=True)
class WriteJob:
    """The settings of a run.

    ```
    OUTPUT.tfpipe-write/
      plan.json            the identity of the job
      shards/NAME, *.idx   shards under their final names, finished or not
      rows/NAME.json       the description of each finished shard, written after it
      data/                the dataset, put together at the end and then renamed to OUTPUT
      lock                 held by the process that writes
    ```

    Attributes:
        folder: The path of the working folder.
        form: The form of the records.
        key: The feature that identifies a record; None if its place does.
        refuse_nan: Whether a tensor with NaN is an error.
        workers: The number of processes or threads; 0 for this one alone.
    """

    folder: str
    form: RecordForm
    key: str | None
    refuse_nan: bool
    workers: int

    def path(self, *parts: str) -> str:
        """Returns a path in the working folder."""
        return os.path.join(self.folder, *parts)
