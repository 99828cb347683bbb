"""Checks the subject of a commit message: an imperative, as in "Add the record index".

python .ci/commit_subject.py .git/COMMIT_EDITMSG
"""

import sys
from pathlib import Path

MAX_LENGTH = 72

# The first words of a statement or a heading, where an imperative is meant.
NO_VERBS = frozenset(
    "A All An And Another As At Both By Each Every For From His How If In It Its New No None Nothing Now Of On "
    "One Only Or Our Own Some That The Their There These They This Those Three Two What When Where Which Who "
    "Why With".split()
)

# Imperatives that end like a participle, a gerund or a third person.
IMPERATIVES = frozenset(
    "Access Address Bless Bring Bypass Canvass Compress Cross Decompress Discuss Dismiss Embed Exceed Express "
    "Feed Focus Guess Miss Need Pass Ping Press Proceed Process Redress Reprocess Seed Shed Shred Speed Spring "
    "Stress String Succeed Suppress Swing Toss Wed Weed".split()
)

# Subjects that git writes itself.
BY_GIT = ("Merge ", "Revert ", "fixup! ", "squash! ", "amend! ")


def find_faults(subject: str) -> list[str]:
    """Returns a sentence for each rule that a subject breaks."""
    if subject.startswith(BY_GIT):
        return []
    faults = []
    first = subject.split(" ")[0]
    if not subject.strip():
        return ["The subject is empty."]
    if len(subject) > MAX_LENGTH:
        faults.append(f"The subject must have at most {MAX_LENGTH} characters, got {len(subject)}.")
    if not subject[0].isupper():
        faults.append(f"The subject must begin with a capital letter, got {subject[0]!r}.")
    if subject.endswith("."):
        faults.append("The subject must end without a full stop.")
    looks_inflected = first.endswith(("ed", "ing", "s")) and first.capitalize() not in IMPERATIVES
    if first.capitalize() in NO_VERBS or looks_inflected or not first.isalpha():
        faults.append(f"The subject must begin with an imperative, as in 'Add the record index', got {first!r}.")
    return faults


def main() -> int:
    """Checks the message in the file that git names; returns the exit code."""
    lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    subject = next((line for line in lines if not line.startswith("#")), "")
    faults = find_faults(subject)
    for fault in faults:
        sys.stderr.write(f"{fault}\n")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
