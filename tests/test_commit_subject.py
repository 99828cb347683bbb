"""The `commit-msg` hook: which subjects it takes, and what it says about the others."""

import subprocess
import sys
from pathlib import Path

import pytest

HOOK = Path(__file__).parent.parent / ".ci" / "commit_subject.py"
IMPERATIVE = "The subject must begin with an imperative, as in 'Add the record index', got "


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ("Add the record index\n\nIt is read by seeking.\n", ""),
        ("# a comment of git\nAdd the index\n# another.\n", ""),
        *((subject, "") for subject in ("Process images in order", "Feed the dispatcher first", "Say what it holds")),
        *((subject, "") for subject in ("Merge branch 'main' into add-index", 'Revert "A line"', "A" + "d" * 71)),
        ("\n\nA text below.\n", "The subject is empty."),
        ("Add " + "a" * 69, "The subject must have at most 72 characters, got 73."),
        ("add the index", "The subject must begin with a capital letter, got 'a'."),
        ("Add the index.", "The subject must end without a full stop."),
        *((f"{word} index", f"{IMPERATIVE}'{word}'.") for word in ("Added", "Adding", "Adds", "A", "The", "Feature:")),
    ],
)
def test_an_imperative_alone_is_taken(tmp_path: Path, message: str, fault: str) -> None:
    path = tmp_path / "COMMIT_EDITMSG"
    path.write_text(message, encoding="utf-8")
    done = subprocess.run([sys.executable, HOOK, path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (int(fault != ""), fault)
