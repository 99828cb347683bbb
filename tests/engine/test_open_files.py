"""Many shards and few files that a process may open."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

import tfpipe
from tests.integrity.made import payload, write_dataset
from tfpipe.engine import record_reader
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import DataError
from tfpipe.readers.numpy import NumpyBatches

SHARDS = 1500

PROGRAM = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
import tfpipe
from tfpipe.readers.numpy import NumpyBatches
config = tfpipe.PipelineConfig(batch_size=700, image_size=8, extra_features=("image/filename",))
batches = NumpyBatches(sys.argv[1], "train", config)
print(len({name for batch in batches for name in batch["image/filename"]}))
"""


def test_a_batch_may_have_records_of_more_shards_than_can_be_open(tmp_path: Path) -> None:
    shards = {f"train:{k}" if k else "train": [payload(k)] for k in range(SHARDS)}
    folder = write_dataset(tmp_path / "pets", shards)
    done = subprocess.run([sys.executable, "-c", PROGRAM, folder], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1400\n", "")


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (
            errno.EMFILE,
            "opened: this process has as many open files as it may have. Close some, or raise the limit by "
            "`ulimit -n`.",
        ),
        (errno.EACCES, "read: Permission denied."),
    ],
)
def test_what_is_not_damage_is_not_called_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, reason: str
) -> None:
    folder = write_dataset(tmp_path / "pets", {"train": [payload(k) for k in range(4)]})
    batches = NumpyBatches(folder, "train", PipelineConfig(batch_size=4, image_size=8))
    batches.read(0)
    batches._maker.reader.close()

    def refuse(path: Any) -> NoReturn:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(record_reader, "open_file", lambda path: refuse(path))
    with pytest.raises(DataError) as caught:
        batches.read(1)
    shard = folder / tfpipe.load_manifest(str(folder)).splits["train"].shards[0].file
    assert str(caught.value) == f"{shard} cannot be {reason}"
