"""Some seconds of the fuzzers of the C sources: images of every kind, records, and files of records."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).parents[1] / "fuzz" / "native"
FILES, SECONDS = 300, 15


@pytest.mark.slow
def test_changed_images_break_nothing(tmp_path: Path, seed: int) -> None:
    writer = [sys.executable, "-m", "tests.native.jpeg_writer", str(tmp_path), str(FILES), str(seed)]
    subprocess.run(writer, cwd=FUZZ.parents[2], check=True)
    files = sorted(path.name for path in tmp_path.glob("*.jpg"))
    command = [str(FUZZ / "run.sh"), "jpegs", str(SECONDS), str(seed), *files]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = re.fullmatch(rf"(\d+) cases from seed {seed}, (\d+) results with pixels, no finding\n", done.stdout)
    assert found
    assert int(found[2]) > int(found[1]) > 0


@pytest.mark.slow
@pytest.mark.parametrize(("target", "counted"), [("records", "features"), ("reads", "records")])
def test_damaged_records_break_nothing(target: str, counted: str, seed: int) -> None:
    command = [str(FUZZ / "run.sh"), target, "3", str(seed)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    found = re.fullmatch(rf"(\d+) cases from seed {seed}, (\d+) {counted}, no finding\n", result.stdout)
    assert found
    assert int(found[2]) > int(found[1]) > 0
