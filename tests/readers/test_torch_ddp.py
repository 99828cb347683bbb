"""The README's DistributedDataParallel example, run as it stands: two processes on gloo."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import tfpipe
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.pipeline.build import build_dataset

README = Path(tfpipe.__file__).parent / "readers" / "README.md"

# What torchrun does, without its own process: the environment is how `init_process_group` learns of the others.
STARTER = (
    "import os, sys; os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT=sys.argv[1], WORLD_SIZE='2', "
    "RANK=sys.argv[2]); code = open(sys.argv[3]).read(); sys.argv = sys.argv[3:]\n"
    "exec(code, {'__name__': '__main__'})\n"
)


def train(script: Path, dataset: Path, checkpoint: Path, epochs: int) -> list[list[list[str]]]:
    """The lines of both ranks, in words."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    arguments = [str(script), str(dataset), str(checkpoint), str(epochs)]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", STARTER, port, str(rank), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    lines = []
    for process in started:
        out, error = process.communicate(timeout=120)
        assert process.returncode == 0, error
        lines.append([line.split() for line in out.splitlines()])
    return lines


@pytest.fixture
def script(tmp_path: Path) -> Path:
    code = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)[0]
    path = tmp_path / "train.py"
    # Batches of the test's few images.
    path.write_text(code.replace("batch_size=8", "batch_size=4"))
    return path


@pytest.mark.slow
def test_two_ranks_share_the_epochs_and_go_on_exactly(script: Path, small_dataset: Path, tmp_path: Path) -> None:
    whole = train(script, small_dataset, tmp_path / "whole.pt", 2)
    config = PipelineConfig(batch_size=4, image_size=32, seed=1, extra_features=("image/filename",))
    dataset = build_dataset(tfpipe.load_manifest(str(small_dataset)), "train", config)
    expected = [[name.decode() for name in batch["image/filename"]] for batch in dataset.take(6).as_numpy_iterator()]
    assert [left[4:] + right[4:] for left, right in zip(*whole, strict=True)] == expected
    for epoch in (expected[:3], expected[3:]):
        assert len({name for batch in epoch for name in batch}) == 12
    train(script, small_dataset, tmp_path / "parts.pt", 1)
    rest = train(script, small_dataset, tmp_path / "parts.pt", 2)
    assert rest == [lines[3:] for lines in whole]  # positions, records, and the loss to its last digit
