"""The engine's batches as a dataset of steps: the end of a program that reads them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.conftest import write_dataset

PROGRAM = """
import sys
sys.modules.update(keras=None, jax=None)  # TensorFlow starts in half the time
import tfpipe
options = dict(batch_size=4, image_size=16, prefetch_batches=64) | eval(sys.argv[2])
dataset = tfpipe.build_dataset(tfpipe.load_manifest(sys.argv[1]), "train", tfpipe.PipelineConfig(**options))
batches = iter(dataset)
next(batches)
print("left")
"""


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"training": False}, marks=pytest.mark.slow),
        pytest.param({"cache": "decoded"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_program_ends_while_batches_are_being_made(tmp_path: Path, options: dict) -> None:
    """A thread of TensorFlow that waits for Python's lock at the end would wait for ever, and the program for it."""
    command = [sys.executable, "-c", PROGRAM, write_dataset(tmp_path, train=(200, 200)).directory, repr(options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "left\n"), done.stderr[-2000:]
