"""Datasets made to do harm end in one clear error, within a second of CPU and 200 MB, wherever they are opened."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.hostile.cases import INDEXES, MANIFESTS, PLACES, RECORDS, Case, write_good

REPOSITORY = Path(__file__).parent.parent.parent
MAX_CPU_S = 1.0
MAX_BYTES = 200 * 10**6
CASES = {**MANIFESTS, **PLACES, **INDEXES, **RECORDS}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One dataset for each case, and a good one."""
    folder = tmp_path_factory.mktemp("hostile")
    good = write_good(folder / "good")
    for k, case in enumerate(CASES.values()):
        case.change(shutil.copytree(good, folder / str(k)))
    return folder


def run(folder: Path, entry: str, cases: Mapping[str, Case]) -> dict[str, str]:
    """What was said of each case, after a look at what it took; in a process without TensorFlow."""
    numbers = [list(CASES).index(name) for name in cases]
    command = [sys.executable, "-m", "tests.hostile.measure", entry, *(str(folder / str(k)) for k in numbers)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = dict(zip(cases, map(json.loads, done.stdout.splitlines()), strict=True))
    for name, one in found.items():
        assert one["kind"] != "failed", (entry, name, one)
        assert one["cpu_s"] < MAX_CPU_S, (entry, name, one)
        assert one["bytes"] < MAX_BYTES, (entry, name, one)
    return {name: one["said"] if one["kind"] == "refused" else "" for name, one in found.items()}


def check_messages(said: Mapping[str, str]) -> None:
    for name, message in said.items():
        assert CASES[name].message in message, (name, message)
        assert len(message) < 1000
        assert "Traceback" not in message


def unreadable(loads: bool) -> dict[str, Case]:
    return {name: case for name, case in CASES.items() if case.loads == loads}


def test_manifests_are_refused(folder: Path) -> None:
    check_messages(run(folder, "load", unreadable(False)))
    assert set(run(folder, "load", unreadable(True)).values()) == {""}


def test_records_are_refused(folder: Path) -> None:
    check_messages(run(folder, "open", CASES))


@pytest.mark.parametrize("entry", ["inspect", "record"])
def test_inspect_says_so_in_one_sentence(folder: Path, entry: str) -> None:
    said = run(folder, entry, CASES)
    for name, case in CASES.items():
        if entry == "record" or not case.loads:
            words = " ".join(said[name].split())
            assert words.startswith("Error: "), (name, words)
            assert case.message in words, (name, words)


def test_a_pipeline_does_not_begin_with_them(folder: Path) -> None:
    """Files and indexes are looked at; what is in a record shows when it is read."""
    said = run(folder, "source", CASES)
    assert [name for name in CASES if name not in RECORDS and not said[name]] == []


def test_verify_finds_them(folder: Path) -> None:
    cases = {name: case for name, case in CASES.items() if case.quick}
    said = run(folder, "verify", cases)
    assert [name for name, message in said.items() if not message] == []


def test_foreign_files_are_refused_by_their_first_record(folder: Path) -> None:
    shards = {name: case for name, case in CASES.items() if name in RECORDS or name.startswith("train-")}
    run(folder, "foreign", shards)
