"""Runs faults in processes of their own: slow storage is a library that is loaded before all others."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.other_libraries import install_libraries
from tests.profiler.faults.cases import FAULTS
from tests.profiler.faults.loader_cases import FAULTS as LOADER_FAULTS

ROOT = Path(__file__).resolve().parents[3]
COMPILER = shutil.which("cc") or shutil.which("gcc")


def why_unavailable(name: str) -> str | None:
    """Returns why a fault cannot be planted on this machine, or None if it can."""
    if FAULTS[name].delay_us and (COMPILER is None or sys.platform != "linux"):
        return "slow storage needs Linux and a C compiler"
    return None


def run_fault(name: str, folder: Path) -> dict[str, Any]:
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "COLUMNS": "100"}
    return _run("run_fault", name, folder, env, FAULTS[name].delay_us)


def _run(module: str, name: str, folder: Path, env: dict[str, str], delay_us: int) -> dict[str, Any]:
    if delay_us:
        env = {**env, "LD_PRELOAD": str(build_slow_storage(folder)), "DELAY_US": str(delay_us)}
    command = [sys.executable, "-W", "ignore", "-m", f"tests.profiler.faults.{module}", name, str(folder.resolve())]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} failed:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def run_loader_fault(name: str, folder: Path) -> dict[str, Any]:
    """Returns the result of `run_loader_fault.py` for a fault. Grain is installed in the folder if it is missing."""
    fault, env = LOADER_FAULTS[name], {**os.environ, "PYTHONPATH": str(ROOT)}
    if fault.needs == "grain" and importlib.util.find_spec("grain") is None:
        libraries = folder / "grain"
        if not libraries.exists():
            install_libraries(libraries, "grain==0.2.18")
        env["PYTHONPATH"] = os.pathsep.join([str(libraries), str(ROOT)])
    return _run("run_loader_fault", name, folder, env, fault.delay_us)


def build_slow_storage(folder: Path) -> Path:
    library = folder.resolve() / "slow_storage.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        source = Path(__file__).with_name("slow_storage.c")
        assert COMPILER is not None
        subprocess.run([COMPILER, "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"], check=True)
    return library
