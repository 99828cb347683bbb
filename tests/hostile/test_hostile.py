"""Datasets made to do harm end in one clear error, within a second of CPU and 200 MB, wherever they are opened."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.hostile.cases import INDEXES, MANIFESTS, PLACES, RECORDS, SHARD, write_good
from tfpipe.storage.local import hash_stream

REPOSITORY = Path(__file__).parent.parent.parent
MAX_BYTES = 200 * 10**6
CASES = {**MANIFESTS, **PLACES, **INDEXES, **RECORDS}
BAD_MANIFESTS = {*MANIFESTS, *(name for name in PLACES if name.startswith("manifest.json"))}

# What each entry point is given. `tfpipe verify` would read the holes for long; a first record needs a shard.
GIVEN = {
    **{entry: list(CASES) for entry in ("load", "open", "source", "inspect", "record")},
    **{entry: [name for name, case in CASES.items() if case.quick] for entry in ("verify", "export")},
    "foreign": [name for name in CASES if name in RECORDS or name.startswith("train-")],
}

Said = Mapping[str, Mapping[str, str]]


@pytest.fixture(
    scope="module", params=[pytest.param(1, id="all", marks=pytest.mark.slow), pytest.param(6, id="a sixth")]
)
def said(request, tmp_path_factory) -> Said:
    """What each entry point said of each case, or an empty text if it read it; in one process without TensorFlow.

    The quick run gives an entry point every sixth case, each another sixth than the one before it.
    """
    given = {entry: names[k % request.param :: request.param] for k, (entry, names) in enumerate(GIVEN.items())}
    folder = tmp_path_factory.mktemp("hostile")
    good = write_good(folder / "good")
    folders = {name: folder / str(k) for k, name in enumerate(CASES)}
    for name, case in CASES.items():
        case.change(shutil.copytree(good, folders[name]))
    # The kernel makes pages of a hole when it is read first. That takes up to a second, and is none of tfpipe's time.
    with open(folders["a hole of a quarter of a gigabyte"] / SHARD, "rb", buffering=0) as file:
        hash_stream(file)
    words = [word for entry, names in given.items() for word in (entry, *(str(folders[name]) for name in names))]
    command = [sys.executable, "-m", "tests.hostile.measure", *words]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    pairs = [(entry, name) for entry, names in given.items() for name in names]
    found: dict[str, dict[str, str]] = {entry: {} for entry in given}
    for (entry, name), line in zip(pairs, done.stdout.splitlines(), strict=True):
        one = json.loads(line)
        assert one["kind"] != "failed", (entry, name, one)
        assert one["cpu_s"] < 1.0, (entry, name, one)
        assert one["bytes"] < MAX_BYTES, (entry, name, one)
        found[entry][name] = one["said"] if one["kind"] == "refused" else ""
    return found


def check_messages(said: Mapping[str, str]) -> None:
    for name, message in said.items():
        assert CASES[name].message in message, (name, message)
        assert len(message) < 1000
        assert "Traceback" not in message


def test_manifests_are_refused(said: Said) -> None:
    check_messages({name: message for name, message in said["load"].items() if name in BAD_MANIFESTS})
    assert {message for name, message in said["load"].items() if name not in BAD_MANIFESTS} == {""}


def test_records_are_refused(said: Said) -> None:
    check_messages(said["open"])


@pytest.mark.parametrize("entry", ["inspect", "record"])
def test_inspect_says_so_in_one_sentence(said: Said, entry: str) -> None:
    for name, message in said[entry].items():
        if entry == "record" or name in BAD_MANIFESTS:
            words = " ".join(message.split())
            assert words.startswith("Error: "), (name, words)
            assert CASES[name].message in words, (name, words)


def test_a_pipeline_does_not_begin_with_them(said: Said) -> None:
    """Files and indexes are looked at; what is in a record shows when it is read."""
    assert [name for name, message in said["source"].items() if name not in RECORDS and not message] == []


def test_verify_finds_them(said: Said) -> None:
    assert [name for name, message in said["verify"].items() if not message] == []


def test_an_export_refuses_what_it_reads(said: Said) -> None:
    """It reads no index."""
    of_index = [name for name in said["export"] if name in INDEXES or name.startswith("index/")]
    assert [name for name, message in said["export"].items() if name not in of_index and not message] == []


def test_foreign_files_end_within_the_limits(said: Said) -> None:
    """A first record may be read, with or without an error."""
    assert len(said["foreign"]) in (len(GIVEN["foreign"]), len(GIVEN["foreign"][1::6]))
