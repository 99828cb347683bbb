"""A part of what `python -m tests.fuzz.jpeg` does for as long as one likes; `TFPIPE_FUZZ_SEED=N` repeats a run."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent.parent


@pytest.mark.slow
def test_the_native_decoder_is_tensorflows(tmp_path: Path) -> None:
    seed = int(os.environ.get("TFPIPE_FUZZ_SEED") or random.randrange(2**31))
    print(f"TFPIPE_FUZZ_SEED={seed}")
    options = ["--cases", "20000", "--seed", str(seed), "--output", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.jpeg", *options], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
