"""A plain loop and the monitor agree about a real, compiled training on a machine that does nothing else."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "idle_agreement.py"
PLANTED = ("0%", "5%", "25%", "50%", "75%")


@pytest.mark.slow
@pytest.mark.skipif("PYTEST_XDIST_WORKER" in os.environ, reason="needs the machine for itself: run it with -n 0")
@pytest.mark.parametrize("loop", ["loop", "keras"])
def test_loop_and_monitor_agree(tmp_path: Path, loop: str) -> None:
    rows = tmp_path / "rows.json"
    options = ["--rounds", "3", "--loop", loop, "--json", str(rows)]
    for planted in PLANTED:
        options += ["--only", planted]
    subprocess.run([sys.executable, str(BENCHMARK), *options], check=True, capture_output=True)
    all_rows = json.loads(rows.read_text())
    assert {row["input"] for row in all_rows} == set(PLANTED)
    for planted in PLANTED:
        planted_rows = [row for row in all_rows if row["input"] == planted]
        assert abs(statistics.median(row["training"] - row["monitor"] for row in planted_rows)) < 0.03, planted_rows
