"""Some seconds of the fuzzer in C of the JPEG functions, on drawn files."""

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent.parent
FILES, SECONDS = 300, 15


@pytest.mark.slow
def test_changed_files_break_nothing(tmp_path: Path) -> None:
    seed = int(os.environ.get("TFPIPE_FUZZ_SEED") or random.randrange(2**31))
    print(f"TFPIPE_FUZZ_SEED={seed}")
    writer = [sys.executable, "-m", "tests.native.jpeg_writer", str(tmp_path), str(FILES), str(seed)]
    subprocess.run(writer, cwd=REPOSITORY, check=True)
    files = sorted(path.name for path in tmp_path.glob("*.jpg"))
    command = [str(REPOSITORY / "tests" / "fuzz" / "native" / "run_jpegs.sh"), str(SECONDS), str(seed), *files]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = re.fullmatch(rf"(\d+) cases from seed {seed}, (\d+) results with pixels, no finding\n", done.stdout)
    assert found
    assert int(found[2]) > int(found[1]) > 0
