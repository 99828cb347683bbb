"""Faults planted in loaders: the right bottleneck, the right first fix, and a gain."""

import os
from pathlib import Path

import pytest

from tests.profiler.faults.loader_cases import FAULTS
from tests.profiler.faults.run_in_process import COMPILER, run_loader_fault

pytest.importorskip("torch")


@pytest.mark.slow
@pytest.mark.skipif("PYTEST_XDIST_WORKER" in os.environ, reason="needs the machine for itself: run it with -n 0")
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str, tmp_path_factory) -> None:
    if FAULTS[name].delay_us and COMPILER is None:
        pytest.skip("slow storage needs a C compiler")
    folder = Path(tmp_path_factory.getbasetemp()) / "loader-faults"
    folder.mkdir(exist_ok=True)
    result = run_loader_fault(name, folder)
    assert result["right_wall"], result
    assert result["right_fix"], result
    # On a machine with few cores fewer workers cost nothing, and give little.
    assert result.get("measured", 1.0) > (0.9 if "many" in name else 1.0) or not FAULTS[name].fix, result
