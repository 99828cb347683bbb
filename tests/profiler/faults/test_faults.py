"""Faults planted in real pipelines: the right wall, the right first fix, and it gives what was promised."""

from __future__ import annotations

import importlib.util
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

_SPEC = importlib.util.spec_from_file_location("planting", Path(__file__).with_name("planting.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
planting: Any = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(planting)

QUICK = ("slow_accelerator",)
"""Clear within seconds, also on a machine that runs other tests; the others need a quiet one."""
WITHIN, MEDIAN_WITHIN = 0.2, 0.1

_errors: dict[str, float] = {}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


def check(found: dict[str, Any]) -> None:
    assert found["right_stage"], found
    assert found["right_fix"], found


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_fault_is_found(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, with few images; what other tests take of the processor is not counted."""
    import run_fault  # type: ignore[import-not-found,unused-ignore]

    fault = planting.FAULTS[name]
    few = replace(fault.shards, images=replace(fault.shards.images, name="few", number=64), copies=1)
    monkeypatch.setitem(run_fault.FAULTS, name, replace(fault, shards=few))
    for setting, value in (("SECONDS", 1.5), ("MAX_WARM_UP_S", 1.5), ("TRIES", 1), ("CALM_S", 0.0)):
        monkeypatch.setattr(run_fault, setting, value)
    monkeypatch.setattr("tfpipe.profiler.measure.profile.try_changes", lambda *_: {})
    monkeypatch.setattr("tfpipe.profiler.measure.host_usage._machine_s", lambda: None)
    check(run_fault.main(name, folder, follow=False))


@pytest.mark.slow
@pytest.mark.parametrize("name", planting.FAULTS)
def test_the_first_fix_gives_what_it_promises(name: str, folder: Path) -> None:
    if reason := planting.unavailable(name):
        pytest.skip(reason)
    found = planting.run_fault(name, folder)
    check(found)
    if "ratio" in found:
        _errors[name] = abs(found["ratio"] - 1)
        assert _errors[name] <= WITHIN, found


@pytest.mark.slow
def test_half_of_all_predictions_are_within_a_tenth() -> None:
    """Of those that ran in this process: with `-n 0` all of them."""
    if len(_errors) < len(planting.FAULTS) // 2:
        pytest.skip("too few faults ran in this process; give -n 0")
    assert statistics.median(_errors.values()) <= MEDIAN_WITHIN, _errors
