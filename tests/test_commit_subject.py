"""The `commit-msg` hook: which subjects it takes, and what it says about the others."""

import subprocess
import sys
from pathlib import Path

import pytest

HOOK = Path(__file__).parent.parent / ".ci" / "commit_subject.py"
IMPERATIVE = "The subject must begin with an imperative, as in 'Add the record index', got "


def check_message(folder: Path, message: str) -> tuple[int, str]:
    path = folder / "COMMIT_EDITMSG"
    path.write_text(message, encoding="utf-8")
    done = subprocess.run([sys.executable, HOOK, path], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr.strip()


@pytest.mark.parametrize(
    "message",
    [
        *("Add the record index\n\nIt is read by seeking.\n", "Process images in order", "Feed the dispatcher first"),
        *("Say what a shard holds", "# a comment of git\nAdd the index\n# another.\n"),
        *("Merge branch 'main' into add-index", 'Revert "A line"', "A" + "d" * 71),
    ],
)
def test_an_imperative_is_taken(tmp_path: Path, message: str) -> None:
    assert check_message(tmp_path, message) == (0, "")


@pytest.mark.parametrize(
    ("subject", "fault"),
    [
        ("", "The subject is empty."),
        ("Add " + "a" * 69, "The subject must have at most 72 characters, got 73."),
        ("add the index", "The subject must begin with a capital letter, got 'a'."),
        ("Add the index.", "The subject must end without a full stop."),
        ("Added the index", f"{IMPERATIVE}'Added'."),
        ("Adding the index", f"{IMPERATIVE}'Adding'."),
        ("Adds the index", f"{IMPERATIVE}'Adds'."),
        ("A line of the right length", f"{IMPERATIVE}'A'."),
        ("The record index", f"{IMPERATIVE}'The'."),
        ("Feature: an index", f"{IMPERATIVE}'Feature:'."),
    ],
)
def test_another_subject_is_refused(tmp_path: Path, subject: str, fault: str) -> None:
    assert check_message(tmp_path, f"{subject}\n\nA text below.\n") == (1, fault)
