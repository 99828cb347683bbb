"""Faults planted in real pipelines and loaders: the right bottleneck, the right first fix, and its gain."""

import functools
import os
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.profiler.faults import run_fault
from tests.profiler.faults.cases import FAULTS
from tests.profiler.faults.loader_cases import FAULTS as LOADER_FAULTS
from tests.profiler.faults.run_in_process import COMPILER, run_loader_fault, why_unavailable
from tests.profiler.faults.run_in_process import run_fault as run_in_process

WITHIN, MEDIAN_WITHIN = 0.2, 0.1

RunFault = Callable[[str], dict[str, Any]]

needs_the_machine = pytest.mark.skipif(
    "PYTEST_XDIST_WORKER" in os.environ, reason="needs the machine for itself: run it with -n 0"
)


@pytest.fixture(scope="session")
def run_once(tmp_path_factory) -> RunFault:
    """Returns a function that runs a fault in a process of its own, and keeps its result for the other tests."""
    folder = tmp_path_factory.mktemp("faults")
    return functools.cache(lambda name: run_in_process(name, folder))


def check(result: dict[str, Any]) -> None:
    assert result["right_stage"], result
    assert result["right_fix"], result


@pytest.mark.slow
def test_a_planted_fault_is_found(tmp_path: Path, monkeypatch) -> None:
    """This one is clear within seconds, and on a machine that runs other tests, whose time is not counted."""
    fault = FAULTS["slow_accelerator"]
    shards = replace(fault.shards, images=replace(fault.shards.images, name="few", number=64), copies=1)
    monkeypatch.setitem(FAULTS, "few", replace(fault, shards=shards))
    for setting, value in (("SECONDS", 1.5), ("MAX_WARM_UP_S", 1.5), ("TRIES", 1), ("CALM_S", 0.0)):
        monkeypatch.setattr(run_fault, setting, value)
    monkeypatch.setattr("tfpipe.profiler.measure.option_costs.measure_option_costs", lambda *_: {})
    monkeypatch.setattr("tfpipe.profiler.measure.clocks._read_machine_s", lambda: None)
    check(run_fault.diagnose_fault("few", tmp_path, follow=False))


@pytest.mark.slow
@needs_the_machine
@pytest.mark.parametrize("name", FAULTS)
def test_the_first_fix_gives_what_it_promises(name: str, run_once: RunFault) -> None:
    if reason := why_unavailable(name):
        pytest.skip(reason)
    result = run_once(name)
    check(result)
    assert abs(result.get("ratio", 1.0) - 1) <= WITHIN, result


@pytest.mark.slow
@needs_the_machine
def test_half_of_all_predictions_are_within_a_tenth(run_once: RunFault) -> None:
    results = [run_once(name) for name in FAULTS if why_unavailable(name) is None]
    errors = {result["fault"]: abs(result["ratio"] - 1) for result in results if "ratio" in result}
    assert len(errors) >= len(FAULTS) // 2
    assert statistics.median(errors.values()) <= MEDIAN_WITHIN, errors


@pytest.mark.slow
@needs_the_machine
@pytest.mark.parametrize("name", LOADER_FAULTS)
def test_a_fault_planted_in_a_loader_is_found(name: str, tmp_path_factory) -> None:
    pytest.importorskip("torch")
    if LOADER_FAULTS[name].delay_us and COMPILER is None:
        pytest.skip("slow storage needs a C compiler")
    folder = Path(tmp_path_factory.getbasetemp()) / "loader-faults"
    folder.mkdir(exist_ok=True)
    result = run_loader_fault(name, folder)
    assert result["right_wall"], result
    assert result["right_fix"], result
    # On a machine with few cores fewer workers cost nothing, and give little.
    assert result.get("measured", 1.0) > (0.9 if "many" in name else 1.0) or not LOADER_FAULTS[name].fix, result
