"""Plans of every kind of input: which images they have, whatever the pieces of a table, and faults of an input."""

import hashlib
from pathlib import Path

import pytest

from beam_jobs.plan import image_table, plan
from tests.beam_jobs.plans import CASES, make_plan

# Of the lines of each plan. They are written down, so that no version changes a plan unseen.
DIGESTS = {
    "table": "f3f1e2726900d269",
    "table with splits": "c82e431fa349a6be",
    "table with groups": "5a8b029d803697d3",
    "table without copies": "fc9bcbfee97513f9",
    "table with boxes": "17c0a698df681f58",
    "table with several classes": "0050af7c30bcdf0c",
    "table with other columns": "6de0d2014079dfa1",
    "images in Parquet": "75219049a16b3dfd",
    "images in Parquet without copies": "ce08bf851615bb6d",
    "lists of images without copies": "0a38d483ed98a9f0",
    "tensors in Parquet without copies": "c0626c11ce553e60",
    "folder": "f8265d3cc4a2314e",
    "folder without copies": "8a2ef09e9fbb7a24",
    "archives": "3b5540d4316190f3",
    "archives without copies": "ea00802d62689a4f",
}


@pytest.mark.parametrize("case", CASES)
def test_a_plan_stays_what_it_is(case: str, tmp_path: Path, monkeypatch) -> None:
    write, options = CASES[case]
    source = write(tmp_path / "in")
    expected = make_plan(source, tmp_path / "out", **options)
    assert hashlib.sha256(expected["plan.jsonl"]).hexdigest()[:16] == DIGESTS[case]
    assert (expected["dropped"] > 0) == ("without copies" in case)
    monkeypatch.setattr(image_table, "_ROWS_AT_ONCE", 7)
    monkeypatch.setattr(plan, "_ROWS_AT_ONCE", 5)
    assert make_plan(source, tmp_path / "out", **options) == expected
