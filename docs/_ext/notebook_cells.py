"""Prepares the kernel of a notebook, from the hidden cell at its top:

from notebook_cells import begin

begin(get_ipython())
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SAMPLE_DATA = Path(__file__).resolve().parents[2] / "sample_data"


def begin(shell: Any) -> None:
    """Goes to a new folder with `sample_data`, also as `photos`, and lets `!` run commands as a log shows them.

    Args:
        shell: The notebook's own IPython shell.
    """
    shell.system = run_command
    os.environ.update(COLUMNS="88", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="", MPLBACKEND="agg")
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    os.chdir(tempfile.mkdtemp())
    sys.path.insert(0, "")  # what a page writes can be imported
    for name in ("sample_data", "photos"):
        shutil.copytree(SAMPLE_DATA, name)


def run_command(command: str) -> None:
    """Runs a command in a shell without the terminal that Jupyter gives it, which would put progress lines on the page.

    Raises:
        CalledProcessError: The command failed.
    """
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", command], stdout=-1, stderr=-2, text=True, check=False)
    print(done.stdout, end="")  # noqa: T201 (the cell's output)
    done.check_returncode()
