"""Runs faults in processes of their own: slow storage is a library that is loaded before all others."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from cases import FAULTS  # noqa: E402

__all__ = ["FAULTS", "run_fault", "unavailable"]

COMPILER = shutil.which("cc") or shutil.which("gcc")


def unavailable(name: str) -> str | None:
    """Why a fault cannot be planted on this machine."""
    if FAULTS[name].delay_us and (COMPILER is None or sys.platform != "linux"):
        return "slow storage needs Linux and a C compiler"
    return None


def run_fault(name: str, folder: Path, follow: bool = True) -> dict[str, Any]:
    """What `run_fault.py` says of a fault.

    Args:
        name: Of the fault.
        folder: Where images and shards are kept.
        follow: Do what the first fix says, and measure again.
    """
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "COLUMNS": "100"}
    if FAULTS[name].delay_us:
        env |= {"LD_PRELOAD": str(_slow_storage(folder)), "DELAY_US": str(FAULTS[name].delay_us)}
    command = [sys.executable, str(HERE / "run_fault.py"), name, str(folder), *([] if follow else ["--no-fix"])]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _slow_storage(folder: Path) -> Path:
    library = folder / "slow_storage.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        source = HERE / "slow_storage.c"
        assert COMPILER is not None
        subprocess.run([COMPILER, "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"], check=True)
    return library
