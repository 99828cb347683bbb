"""The entry point: tracebacks, and interrupts where Python ignores exceptions, as in a garbage collection."""

import platform
import signal
import socket
import tempfile
from importlib import metadata
from pathlib import Path

import pytest

from tests.beam_jobs.commands import run_python
from tests.conftest import PATH_OF_REPOSITORY, ROOT, Tfpipe
from tfpipe import __version__
from tfpipe.cli.main import describe_installation
from tfpipe.errors import DataError

# Runs a command, and sends itself three SIGINT in garbage collections once a module is being loaded.
_INTERRUPTED_COMMAND = f"""
import gc, os, sys, threading

module = sys.argv.pop(1)
strikes = iter(range(3))

def strike(phase, info):
    main = threading.current_thread() is threading.main_thread()
    if main and module in sys.modules and next(strikes, None) is not None:
        os.kill(os.getpid(), {int(signal.SIGINT)})
        for _ in range(100):
            pass

gc.callbacks.append(strike)
gc.set_threshold(20)
from tfpipe.cli.main import main
if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("tfpipe.integrity.verify", "verify DATASET"),
        pytest.param("tfpipe.integrity.repair", "repair DATASET out", marks=pytest.mark.slow),
        ("beam_jobs.shard_job", "reshard DATASET out --num-shards 2"),
        pytest.param(
            "tfpipe.profiler.measure.profile", "profile DATASET --step-ms 10 --batch-size 4", marks=pytest.mark.slow
        ),
        pytest.param("tfpipe.training.train", "train DATASET --epochs 9", marks=pytest.mark.slow),
        pytest.param("tfpipe.cli.doctor_run", "doctor DATASET", marks=pytest.mark.slow),
        pytest.param("tfpipe.service.processes", "serve --root / --port 0", marks=pytest.mark.slow),
    ],
)
def test_an_interrupt_in_a_garbage_collection(module: str, command: str, small_dataset: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_INTERRUPTED_COMMAND)
    arguments = [str(small_dataset) if word == "DATASET" else word for word in command.split()]
    run = run_python(script, module, *arguments, cwd=tmp_path, PYTHONPATH=PATH_OF_REPOSITORY)
    assert run.returncode == 130, run.stderr
    assert "Exception ignored" not in run.stderr
    assert "Traceback" not in run.stderr


def test_debug_leaves_the_error_to_python_which_shows_the_traceback(tfpipe: Tfpipe) -> None:
    with pytest.raises(DataError, match=r"There is no nowhere\."):
        tfpipe("verify", "nowhere", "--debug")


def test_no_folder_for_temporary_files(tfpipe: Tfpipe, monkeypatch: pytest.MonkeyPatch, small_dataset: Path) -> None:
    with monkeypatch.context() as changed:
        changed.setattr(tempfile, "tempdir", None)
        changed.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/nowhere"])
        done = tfpipe("view", small_dataset, "width > 3", "--name", "v")
    assert done.code == 1
    assert done.err == (
        "Error: No usable temporary directory found in ['/nowhere']. Set TMPDIR to a folder that can be written and "
        "has space.\n"
    )


def test_the_versions(tfpipe: Tfpipe) -> None:
    lines = tfpipe("--version").lines
    assert lines[:2] == [f"tfpipe {__version__}", f"Python {platform.python_version()}"]
    assert f"pillow {metadata.version('pillow')}" in lines


@pytest.mark.parametrize("args", ["--version --json", "--json --version"])
def test_the_facts_for_a_bug_report(args: str, tfpipe: Tfpipe) -> None:
    printed = tfpipe(*args.split()).json
    assert (printed["tfpipe"], printed["python"]) == (__version__, platform.python_version())
    assert printed["libraries"]["pillow"] == metadata.version("pillow")
    assert printed["cores"] <= printed["all_cores"]
    assert printed["available_bytes"] <= printed["memory_bytes"]
    assert not [name for name in (str(ROOT), str(Path.home()), socket.gethostname()) if name in str(printed)]


def test_the_facts_of_a_machine(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Abacus 9000\n")
    (tmp_path / "proc" / "meminfo").write_text("MemTotal:       4000000 kB\nMemAvailable:   1000000 kB\n")
    (tmp_path / "dev").mkdir()
    for name in ("accel0", "accel1", "nvidia0", "nvidiactl"):
        (tmp_path / "dev" / name).touch()
    facts = describe_installation(tmp_path)
    assert facts["processor"] == "Abacus 9000"
    assert (facts["memory_bytes"], facts["available_bytes"]) == (4_096_000_000, 1_024_000_000)
    assert facts["devices"] == {"NVIDIA GPU": 1, "TPU": 2}
