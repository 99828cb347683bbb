"""The entry point: tracebacks, interrupts, versions, and what each command says of a wrong path or option."""

import platform
import shutil
import signal
import socket
import tempfile
from importlib import metadata
from pathlib import Path

import pytest

from tests.beam_jobs.commands import run_python
from tests.conftest import PATH_OF_REPOSITORY, ROOT, DrawImages, Tfpipe
from tfpipe import __version__
from tfpipe.cli.main import describe_installation
from tfpipe.cli.main import tfpipe as commands
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


@pytest.mark.parametrize("args", ["--version --json", "--json --version"])
def test_the_versions_and_the_machine_for_a_bug_report(args: str, tfpipe: Tfpipe) -> None:
    lines = tfpipe("--version").lines
    assert lines[:2] == [f"tfpipe {__version__}", f"Python {platform.python_version()}"]
    assert f"pillow {metadata.version('pillow')}" in lines
    printed = tfpipe(*args.split()).json
    assert (printed["tfpipe"], printed["python"]) == (__version__, platform.python_version())
    assert printed["libraries"]["pillow"] == metadata.version("pillow")
    assert printed["cores"] <= printed["all_cores"]
    assert printed["available_bytes"] <= printed["memory_bytes"]
    assert not [name for name in (str(ROOT), str(Path.home()), socket.gethostname()) if name in str(printed)]


def test_what_is_told_of_a_machine(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Abacus 9000\n")
    (tmp_path / "proc" / "meminfo").write_text("MemTotal:       4000000 kB\nMemAvailable:   1000000 kB\n")
    (tmp_path / "dev").mkdir()
    for name in ("accel0", "accel1", "nvidia0", "nvidiactl"):
        (tmp_path / "dev" / name).touch()
    found = describe_installation(tmp_path)
    assert found["processor"] == "Abacus 9000"
    assert (found["memory_bytes"], found["available_bytes"]) == (4_096_000_000, 1_024_000_000)
    assert found["devices"] == {"NVIDIA GPU": 1, "TPU": 2}


# The commands that take a dataset, each with what else it needs.
TAKE_DATASETS = {
    **dict.fromkeys(("inspect", "verify", "doctor", "train"), ""),
    **{"repair": "OUT", "export": "OUT --to webdataset", "reshard": "OUT", "merge": "DATASET OUT"},
    "profile": "--step-ms 3",
}
NO_MANIFEST = (
    "holds no manifest.json: it is not a finished tfpipe dataset. `tfpipe shard` writes one out of images, `tfpipe "
    "index` one for TFRecords of others."
)
NOT_FINISHED = "An earlier run was not finished; run the same `tfpipe shard` command again to finish it."
IS_DATASET = (
    "is a dataset. `tfpipe reshard` writes it in another form, `tfpipe merge` joins it with others, `tfpipe inspect` "
    "shows it."
)
SHARD = ["shard", "a", "b"]
NEED_TENSORFLOW = ("doctor", "profile", "train")


@pytest.fixture
def paths(small_dataset: Path, draw_images: DrawImages, tmp_path: Path) -> dict[str, Path]:
    """The things that a user may name, by what they are."""
    found = {name: tmp_path / name for name in ("nowhere", "empty", "unfinished", "records")}
    (found["empty"]).mkdir()
    (found["unfinished"] / ".tfpipe").mkdir(parents=True)
    found["records"].mkdir()
    for shard in small_dataset.glob("*.tfrecord"):
        shutil.copy(shard, found["records"])
    return {**found, "images": small_dataset.parent / "images", "dataset": small_dataset}


def fill_in(command: str, more: str, path: Path, paths: dict[str, Path]) -> list[object]:
    words = {"DATASET": paths["dataset"], "OUT": paths["nowhere"].parent / "out"}
    return [command, path, *(words.get(word, word) for word in more.split())]


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("nowhere", ("does not exist.", "There is no {}.", "{} must be the directory of a dataset.")),
        ("images", (NO_MANIFEST,)),
        ("empty", (NO_MANIFEST,)),
        ("unfinished", (NOT_FINISHED,)),
    ],
)
@pytest.mark.parametrize("command", TAKE_DATASETS)
def test_what_is_no_dataset(tfpipe: Tfpipe, paths: dict[str, Path], command: str, kind: str, sentence: tuple[str, ...]):
    done = tfpipe(*fill_in(command, TAKE_DATASETS[command], paths[kind], paths))
    assert (done.code, done.out) == (1, "")
    assert "Traceback" not in done.err
    assert str(paths[kind]) in done.err
    assert any(text.format(paths[kind]) in done.err for text in sentence), done.err


def test_what_holds_no_images(tfpipe: Tfpipe, paths: dict[str, Path]) -> None:
    for kind, sentence in (
        ("nowhere", "nowhere does not exist."),
        ("empty", "No images were found in"),
        ("dataset", IS_DATASET),
        ("records", "records holds TFRecords: `tfpipe index` describes them."),
    ):
        done = tfpipe(*fill_in("shard", "OUT", paths[kind], paths))
        assert (done.code, done.out, "Traceback" in done.err) == (1, "", False)
        assert sentence in done.err


@pytest.mark.parametrize("command", commands.modules)
def test_an_unknown_option(tfpipe: Tfpipe, command: str) -> None:
    done = tfpipe(command, "--frobnicate")
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[-1].startswith("Error: No such option '--frobnicate'.")


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["inspct"], "No such command 'inspct'. Did you mean 'inspect'?"),
        (["train", "a", "--global-batch-size", "8"], "'--global-batch-size'. Did you mean '--batch-size'?"),
        (["shard", "a"], "Missing argument 'OUTPUT'."),
        ([*SHARD, "c"], "INPUT and OUTPUT must be two paths, got a third, 'c'."),
        ([*SHARD, "--part", "8/8"], "must be K/N, with K from 0 to N - 1, as in 3/8; or auto, or auto/N"),
        ([*SHARD, "--part", "3"], "must be K/N, with K from 0 to N - 1, as in 3/8; or auto, or auto/N"),
        ([*SHARD, "--part", "auto"], "auto needs SLURM_ARRAY_TASK_ID and SLURM_ARRAY_TASK_COUNT"),
        ([*SHARD, "--part", "0/2", "--plan-only"], "--plan-only and --part exclude each other."),
        ([*SHARD, "--part", "0/2", "--dry-run"], "--part and --dry-run exclude each other."),
        ([*SHARD, "--plan-only", "--runner", "direct"], "--plan-only and a runner exclude each other."),
        ([*SHARD, "--part", "0/2", "--square", "8"], "The plan in OUTPUT decides --square. Leave it out;"),
        (["merge", "a", "b", "c", "--part", "0/2", "--seed", "8"], "The plan in OUTPUT decides --seed. Leave it out;"),
        (["merge", "a", "b"], "`tfpipe merge` needs at least two datasets and OUTPUT, got 2 of these paths."),
        (["--json", "inspect", "a"], "--json goes behind the command, or beside --version."),
        (["serve-check"], "Missing argument 'HOST:PORT...'."),
        (["predict", "run"], "Name the images to classify: files, folders or patterns."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_in_the_command(tfpipe: Tfpipe, args: list[str], sentence: str) -> None:
    done = tfpipe(*args)
    assert (done.code, done.out) == (2, "")
    assert sentence in done.err


@pytest.mark.parametrize("command", NEED_TENSORFLOW)
def test_a_missing_library(tfpipe: Tfpipe, paths: dict[str, Path], monkeypatch, command: str) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: None if name == "tensorflow" else object())
    done = tfpipe(*fill_in(command, TAKE_DATASETS[command], paths["dataset"], paths))
    sentence = (
        f"`tfpipe {command}` needs TensorFlow. Install it with: pip install '.[tensorflow]' in a checkout of tfpipe."
    )
    assert (done.code, done.out, done.err) == (1, "", f"Error: {sentence}\n")
