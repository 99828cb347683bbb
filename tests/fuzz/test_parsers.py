"""A few seconds of what `python -m tests.fuzz` does for as long as one likes, and of the fuzzers of the C sources."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.fuzz import targets

SLOW = ("resync", "manifest", "schema", "form", "tfds", "view", "catalog", "column")
RUNS = {**dict.fromkeys(targets.TARGETS, 1000), **dict.fromkeys(SLOW, 100), "checked_json": 20}


@pytest.mark.parametrize("name", targets.TARGETS)
def test_valid_inputs_are_read(name: str) -> None:
    read = [targets.run(name, data) for data in targets.TARGETS[name].seeds]
    assert sum(read) >= (len(read) + 1) // 2


@pytest.mark.parametrize("name", targets.TARGETS)
def test_changed_inputs_are_read_or_refused(name: str, seed: int) -> None:
    tried = targets.inputs(name, seed)
    data = next(tried)
    for _ in range(RUNS[name]):
        data = tried.send(targets.run(name, data))


def test_the_command_keeps_what_fails_and_repeats_it(tmp_path: Path) -> None:
    """A parser that fails, in place of one of the project's."""
    code = (
        "import sys, tests.fuzz.targets as t, tests.fuzz.__main__ as command\n"
        "def fail(data):\n"
        "    if len(data) % 3 == 0: raise KeyError('planted')\n"
        "t.TARGETS['naming'] = t.TARGETS['naming']._replace(parse=fail)\n"
        "command.main(['--target', 'naming', '--seed', '1', '--output', sys.argv[1]])\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, "KeyError: 'planted'" in done.stderr) == (1, True)
    (kept,) = tmp_path.glob("naming-*")
    assert f"python -m tests.fuzz --target naming --input {kept}\n" in done.stdout
    assert len(kept.read_bytes()) % 3 == 0
    again = [sys.executable, "-m", "tests.fuzz", "--target", "naming", "--input", str(kept)]
    done = subprocess.run(again, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout in ("naming: read\n", "naming: refused, as it must be\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "seconds", "counted"),
    [("jpegs", 15, "results with pixels"), ("records", 3, "features"), ("reads", 3, "records")],
)
def test_damage_breaks_no_c_source(target: str, seconds: int, counted: str, tmp_path: Path, seed: int) -> None:
    if target == "jpegs":
        writer = [sys.executable, "-m", "tests.native.jpeg_writer", str(tmp_path), "300", str(seed)]
        subprocess.run(writer, cwd=ROOT, check=True)
    files = sorted(path.name for path in tmp_path.glob("*.jpg"))
    command = [str(ROOT / "tests/fuzz/native/run.sh"), target, str(seconds), str(seed), *files]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = re.fullmatch(rf"(\d+) cases from seed {seed}, (\d+) {counted}, no finding\n", done.stdout)
    assert found
    assert int(found[2]) > int(found[1]) > 0
