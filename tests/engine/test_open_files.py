"""Many shards and few files that a process may open."""

import errno
import os
from pathlib import Path
from unittest.mock import Mock

import pytest

import tfpipe
from tests.beam_jobs.commands import run_python
from tests.integrity.made import payload, write_dataset
from tests.refusals import refusal
from tfpipe.engine import record_reader
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import DataError
from tfpipe.readers.numpy import NumpyBatches

LIMIT = 256

FACES = {
    "numpy": "NumpyBatches(folder, 'train', config, start)",
    "torch": "torch.data_loader(torch.TorchBatches(folder, 'train', config, start))",
    "jax": "jax.JaxBatches(folder, 'train', config, start)",
    "tf.data": "tfpipe.build_dataset(tfpipe.load_manifest(folder), 'train', config, start_step=start)",
}

PROGRAM = f"""
import os, resource, sys
import numpy as np
import tfpipe
from tfpipe.readers.numpy import NumpyBatches
face, folder, batch_size, start = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
if face == "torch":
    from tfpipe.readers import torch
elif face == "jax":
    from tfpipe.readers import jax
elif face == "tf.data":
    import tensorflow
resource.setrlimit(resource.RLIMIT_NOFILE, ({LIMIT}, {LIMIT}))
config = tfpipe.PipelineConfig(batch_size=batch_size, image_size=8, extra_features=("image/class/label",))
"""

READ = """
for step, batch in zip(range(start, start + 2), {batches}):
    epoch, place = divmod(step, len(NumpyBatches(folder, "train", config)))
    numbers = NumpyBatches(folder, "train", config)._maker.plan.list_numbers(epoch, place)
    np.testing.assert_array_equal(np.asarray(batch["image/class/label"]), numbers)
print(len(os.listdir("/proc/self/fd")) < 128)
"""

FULL = """
def fill():
    try:
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
held = []
one, other = (NumpyBatches(folder, "train", config) for _ in range(2))
expected = one.read(start)["image/class/label"].tolist()
print(other.read(start)["image/class/label"].tolist() == expected)
fill()
print(other.read(start)["image/class/label"].tolist() == expected)
print(one.read(start)["image/class/label"].tolist() == expected)
for batches in (one, other):
    batches._maker.reader.close()
fill()
try:
    one.read(start)
except tfpipe.DataError as error:
    print("as many open files as it may have" in str(error))
"""


def write_shards(folder: Path, count: int) -> Path:
    """Writes shards of one record each, which has its number as its class."""
    return write_dataset(folder, {f"train:{k}": [payload(k, label=k)] for k in range(count)})


def run(program: str, *args: object) -> tuple[int, str, str]:
    done = run_python("-c", PROGRAM + program, *args, TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
    return done.returncode, done.stdout, done.stderr[-2000:]


def test_a_batch_may_have_records_of_more_shards_than_can_be_open(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "pets", 700)
    assert run(READ.format(batches=FACES["numpy"]), "numpy", folder, 350, 1) == (0, "True\n", "")


def test_what_readers_keep_open_is_closed_before_one_fails(tmp_path: Path) -> None:
    assert run(FULL, "numpy", write_shards(tmp_path / "pets", 200), 100, 0) == (0, "True\n" * 4, "")


@pytest.fixture(scope="module")
def many_shards(tmp_path_factory) -> Path:
    return write_shards(tmp_path_factory.mktemp("many") / "pets", 100_000)


@pytest.mark.slow
@pytest.mark.parametrize("face", FACES)
def test_a_hundred_thousand_shards_are_read_with_256_files(many_shards: Path, face: str) -> None:
    code, out, err = run(READ.format(batches=FACES[face]), face, many_shards, 2048, 47)
    assert (code, out) == (0, "True\n"), err


FULL_TABLE = (
    "opened: this process has as many open files as it may have. Close some, or raise the limit by `ulimit -n`."
)


@pytest.mark.parametrize(
    ("number", "reason", "bad_records"),
    [(errno.EMFILE, FULL_TABLE, 0), (errno.EACCES, "read: Permission denied.", 0), (errno.EMFILE, FULL_TABLE, 100)],
)
def test_what_is_not_damage_is_not_called_damage(tmp_path: Path, monkeypatch, number, reason, bad_records) -> None:
    folder = write_dataset(tmp_path / "pets", {"train": [payload(k) for k in range(4)]})
    config = PipelineConfig(batch_size=4, image_size=8, max_bad_records=bad_records)
    batches = NumpyBatches(folder, "train", config)
    batches.read(0)
    batches._maker.reader.close()
    refuse = Mock(side_effect=OSError(number, os.strerror(number)))
    monkeypatch.setattr(record_reader, "open_descriptor", refuse)
    shard = folder / tfpipe.load_manifest(str(folder)).splits["train"].shards[0].file
    assert refusal(DataError, batches.read, 1) == f"{shard} cannot be {reason}"
    assert not bad_records or len(batches._maker.bad_records) == 0


def test_many_readers_keep_few_files_open(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "pets", 70)
    before = len(os.listdir("/proc/self/fd"))
    readers = [record_reader.RecordReader(str(folder), tfpipe.load_manifest(str(folder)), "train") for _ in range(5)]
    expected = readers[0].read_payloads(range(70))
    for reader in readers * 2:
        assert reader.read_payloads(range(70)) == expected
        assert len(os.listdir("/proc/self/fd")) - before <= 256
    for reader in readers:
        reader.close()
