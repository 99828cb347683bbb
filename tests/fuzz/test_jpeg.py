"""A part of what `python -m tests.fuzz.jpeg` does for as long as one likes, and its changes to files.

The seed is printed; `TFPIPE_FUZZ_SEED=N` repeats a run.
"""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.jpeg import files, mutate
from tests.native.jpeg_writer import draw_jpeg

REPOSITORY = Path(__file__).parent.parent.parent
CASES = 20_000


def test_a_file_is_the_sum_of_its_segments() -> None:
    for seed in range(100):
        data = draw_jpeg(seed, most=40).data
        joined = b"".join(one.join() for one in mutate.split(data))
        assert joined == data or b"\xff\xff" in data  # fill bytes are left out before a marker


def test_a_seed_gives_one_file() -> None:
    drawn = [files.draw_file(seed, ()) for seed in range(60)]
    assert drawn == [files.draw_file(seed, ()) for seed in range(60)]
    assert {one.sound for one in drawn} == {False, True}


def test_every_change_leaves_bytes() -> None:
    files = [draw_jpeg(seed, most=20).data for seed in range(40)]
    for seed in range(1000):
        data, said = mutate.change(files[seed % len(files)], random.Random(seed))
        assert isinstance(data, bytes), said


@pytest.mark.slow
def test_the_native_decoder_is_tensorflows(tmp_path: Path) -> None:
    seed = int(os.environ.get("TFPIPE_FUZZ_SEED") or random.randrange(2**31))
    print(f"TFPIPE_FUZZ_SEED={seed}")
    options = ["--cases", str(CASES), "--seed", str(seed), "--output", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.jpeg", *options], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
