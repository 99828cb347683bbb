"""The entry point: tracebacks, interrupts, versions, and what each command says of a wrong path or option."""

import platform
import shutil
import signal
import socket
import tempfile
from importlib import metadata
from pathlib import Path
from string import Template

import pytest

from tests.beam_jobs.commands import run_python
from tests.conftest import PATH_OF_REPOSITORY, ROOT, DrawImages, Tfpipe
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
        pytest.param("tfpipe.service.server", "serve --root / --port 0", marks=pytest.mark.slow),
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


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_standard_output_that_cannot_be_written(unbuffered: str) -> None:
    code = "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1); from tfpipe.cli.main import main; main()"
    done = run_python("-c", code, "help", PYTHONUNBUFFERED=unbuffered)
    sentence = "Error: The standard output cannot be written: No space left on device.\n"
    assert (done.returncode, done.stderr) == (1, sentence)


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
    **{"repair": "$out", "export": "$out --to webdataset", "reshard": "$out", "merge": "$data $out"},
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


@pytest.fixture
def paths(small_dataset: Path, draw_images: DrawImages, tmp_path: Path) -> dict[str, Path]:
    """The things that a user may name, by what they are."""
    found = {name: tmp_path / name for name in ("nowhere", "empty", "unfinished", "records", "out")}
    (found["empty"]).mkdir()
    (found["unfinished"] / ".tfpipe").mkdir(parents=True)
    found["records"].mkdir()
    for shard in small_dataset.glob("*.tfrecord"):
        shutil.copy(shard, found["records"])
    return {**found, "images": small_dataset.parent / "images", "data": small_dataset}


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
    done = tfpipe(command, paths[kind], *Template(TAKE_DATASETS[command]).substitute(paths).split())
    assert (done.code, done.out, "Traceback" in done.err) == (1, "", False)
    assert str(paths[kind]) in done.err
    assert any(text.format(paths[kind]) in done.err for text in sentence), done.err


def test_what_holds_no_images(tfpipe: Tfpipe, paths: dict[str, Path]) -> None:
    for kind, sentence in (
        ("nowhere", "nowhere does not exist."),
        ("empty", "No images were found in"),
        ("data", IS_DATASET),
        ("records", "records holds TFRecords: `tfpipe index` describes them."),
    ):
        done = tfpipe("shard", paths[kind], paths["out"])
        assert (done.code, done.out, "Traceback" in done.err) == (1, "", False)
        assert sentence in done.err


MISTAKES = {
    "inspct": "No such command 'inspct'. Did you mean 'inspect'?",
    "--json inspect a": "--json goes behind the command, or beside --version.",
    "shard a": "Missing argument 'OUTPUT'.",
    "shard a b c": "INPUT and OUTPUT must be two paths, got a third, 'c'. Write options for Beam after --.",
    "shard a b --part 8/8": "--part must be K/N, with K from 0 to N - 1, as in 3/8; or auto, or auto/N, got '8/8'.",
    "shard a b --part 3": "--part must be K/N, with K from 0 to N - 1, as in 3/8; or auto, or auto/N, got '3'.",
    "shard a b --part auto": "--part auto needs SLURM_ARRAY_TASK_ID and SLURM_ARRAY_TASK_COUNT in the ...",
    "shard a b --part 0/2 --plan-only": "--plan-only and --part exclude each other. Leave one of them out.",
    "shard a b --part 0/2 --dry-run": "--part and --dry-run exclude each other. Leave one of them out.",
    "shard a b --plan-only --runner direct": "--plan-only and a runner exclude each other. Leave one of them out.",
    "shard a b --part 0/2 --square 8": "The plan in OUTPUT decides --square. Leave it out; it goes with --plan-only.",
    "shard a b --shard-size x": "Invalid value for '--shard-size': must be a size such as 128MiB or 2GB, got 'x'.",
    "shard a b --encoding raw": "--encoding raw needs --square: all raw images have the same size.",
    "shard a b --splits a=0.5": "The shares of --splits must add up to 1, got 0.5.",
    "shard $images b --group-by x --splits a=1": (
        "--group-by names a column; it needs a CSV, JSONL or Parquet manifest, or tars of pairs, as input."
    ),
    "shard a b --region r": "--region goes with --runner dataflow, got --runner local. Leave one of them out.",
    "shard a b --encoding raw --square 8 --seekable": "--encoding raw and --seekable exclude each other: only a ...",
    "shard a b --runner dataflow -- --runner=A": "--runner dataflow and --runner=A after -- exclude each other. ...",
    "shard a b --num-shards 0": "--num-shards must be at least 1, got 0.",
    "shard a b --num-shards 2 --shard-size 1MB": "--num-shards and --shard-size exclude each other. Leave one of ...",
    "shard a b -- --nonsense=1": "Options after -- must be known to Beam, got --nonsense.",
    "merge a b c --part 0/2 --seed 8": "The plan in OUTPUT decides --seed. Leave it out; it goes with --plan-only.",
    "merge a b": "`tfpipe merge` needs at least two datasets and OUTPUT, got 2 of these paths.",
    "reshard a b c": "DATASET and OUTPUT must be two paths, got a third, 'c'. Write options for Beam after --. To ...",
    "reshard $data $data": "The output must not lie inside the input, got $data in $data. Choose another directory.",
    "reshard $data b --quality 50": "--quality is for images that are encoded again, and none would be. Change ...",
    "repair $data $data": "The output must not lie inside the input, got $data in $data. Choose another directory.",
    "inspect $data --split test": "The dataset has no split 'test'; it has train, validation.",
    "inspect $data --record train": "--record must be SPLIT:INDEX, such as train:0, got 'train'.",
    "inspect $data --record test:0": "The dataset has no split 'test'; it has train, validation.",
    "inspect $data --record train:12": "A record of 'train' must have an index from -12 to 11, got 12.",
    "inspect $data --record train:0 --show 1 a.png": "--record and --show exclude each other.",
    "inspect $data --record a:0 --split a": "--record already names the split, as in train:0. Leave out --split.",
    "inspect $data --output a": "--output needs a record. Name it with --record SPLIT:INDEX.",
    "inspect $data --record train:0 --output /": "/ must be a file, and is a folder or a device.",
    "inspect $data --show 0 a.png": "--show must be from 1 to 1000 images, got 0.",
    "inspect $data --page 0 a.html": "--page must be from 1 to 5,000 records, got 0.",
    "inspect $data --page 1 a.png": "--page writes HTML: the file's name must end in .html, got 'a.png'.",
    "inspect $data --record train:0 --page 1 a.html": "--record and --page exclude each other.",
    "inspect $data --show 1 a.jpg": "--show writes a PNG: the file's name must end in .png, got 'a.jpg'.",
    "index $data": "$data is a dataset that `tfpipe shard` wrote, and it has an index already: index/ has the ...",
    "index $data --split a-b": "A split's name must be letters, digits and underscores and begin with a letter, ...",
    "export $data out --to parquet --split val": "--split must be among train, validation, got 'val'.",
    "export a b": "Missing option '--to'. Choose from: ...",
    "train a --global-batch-size 8": "No such option '--global-batch-size'. Did you mean '--batch-size'?",
    "train $data --batch-size 16": "--batch-size must be at most the 12 records of an epoch, got 16. Use 12 or ...",
    "train $data --model vgg": "--model must be small_cnn, resnet50 or module:function, got 'vgg'.",
    "train $data --model no_such:thing": "--model: there is no module no_such. Run the command in the folder of ...",
    "train $data --checkpoint-every-steps 0": "--checkpoint-every-steps must be at least 1, got 0.",
    "train $data --split night": "The dataset has no split 'night'; it has train, validation. Choose one with --split.",
    "train $data/t*": "`tfpipe train` needs a dataset, got $data/t*. Make one with `tfpipe index`.",
    "predict run": "Name the images to classify: files, folders or patterns.",
    "profile a --step-ms 5 --images-per-second 5": (
        "An accelerator has one speed. Give one of --step-ms and --images-per-second."
    ),
    "profile a --html a.toml --apply ./a.toml": "--html and --apply must name two files, got a.toml for both. Name ...",
    "profile a --step-ms 1 --html no/a.html": "no/a.html cannot be written: the folder ...",
    "profile a --max-idle 5": (
        "Without a step there is no idle time. Give --step-ms, or leave out --max-idle, --price-per-hour and --trainer."
    ),
    "profile a --trainer fit": "Without a step there is no idle time. Give --step-ms, or leave out --max-idle, ...",
    "profile a --step-ms 0": "--step-ms must be above 0 and below 86,400,000, got 0.0.",
    "profile a --step-ms 5 --max-idle 500": "Invalid value for '--max-idle': must be from 0% to 100%, got '500'.",
    "profile a --step-ms 5 --max-idle few": "Invalid value for '--max-idle': must be from 0% to 100%, got 'few'.",
    "profile a --train own_loader:step": "--train goes with --loader. Name the function that makes the loader, or ...",
    "profile a --loader a:b --split train --html page.html": (
        "--loader profiles a loader as its code makes it. Leave out DATASET, --split, --html."
    ),
    "profile --loader a:b --apply kept.yaml": "A configuration file's name must end in .toml or .json, got ...",
    "doctor $data --config none.toml": "There is no configuration file none.toml. Check its name.",
    "doctor $data --num-replicas 0": "--num-replicas must be at least 1, got 0.",
    "doctor $data/train-* --split a": "Files found by a pattern have no splits, got --split a. Leave it out.",
    "serve --workers 0": "--workers must be at least 1, got 0.",
    "serve": "--root must name a folder or URL below which the datasets lie, such as /data.",
    "serve --root / --key k": "--certificate and --key belong together. Give both, or none.",
    "serve --port 65536": "--port must be from 0 to 65535, got 65536.",
    "serve --root / --port 65535 --workers 2": "--port must be at most 65534, so that all workers have one.",
    "serve --root / --certificate /c --key /k": (
        "--certificate must be a file that can be read, got /c: No such file or directory."
    ),
    "serve-check": "Missing argument 'HOST:PORT...'.",
    "serve-check a": "`HOST:PORT` must be a list of addresses like host:5050, got ('a',).",
}
"""What is said of the words of a command; a sentence that goes on ends with dots here."""

WITH_GOOGLE = {
    "shard a b --runner dataflow --project p": "Dataflow needs a project and a region to run in; give --region ...",
    "shard a gs://b --runner dataflow --project p --region r": (
        "Dataflow's machines read and write gs:// only, got a. Name a place in a bucket, or run on this machine. ..."
    ),
}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        *MISTAKES.items(),
        *(pytest.param(*row, marks=pytest.mark.needs("google.api_core")) for row in WITH_GOOGLE.items()),
    ],
)
def test_a_mistake_is_one_sentence(tfpipe: Tfpipe, small_dataset: Path, tmp_path: Path, monkeypatch, words, sentence):
    monkeypatch.chdir(tmp_path)
    places = {"data": small_dataset, "images": small_dataset.parent / "images"}
    done = tfpipe(*Template(words).substitute(places).split())
    assert (done.code, done.out, list(tmp_path.iterdir())) == (2, "", [])
    said, expected = done.err.rpartition("Error: ")[2], Template(sentence).substitute(places)
    assert done.err.count("Error: ") == 1
    assert said.startswith(expected.removesuffix(" ...")) if expected.endswith(" ...") else said == f"{expected}\n"


@pytest.mark.parametrize(
    ("words", "needs", "library", "extra"),
    [
        *((f"{name} $data", f"`tfpipe {name}`", "TensorFlow", "tensorflow") for name in ("doctor", "profile", "train")),
        ("profile a --step-ms 1 --html a.html", "`tfpipe profile --html`", "Jinja2", "report"),
        ("predict $empty $images", "The model in $empty", "TensorFlow", "tensorflow"),
    ],
)
def test_a_missing_library(tfpipe: Tfpipe, paths: dict[str, Path], monkeypatch, words, needs, library, extra) -> None:
    (paths["empty"] / "saved_model.pb").touch()
    missing = library.lower()
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: None if name == missing else object())
    done = tfpipe(*Template(words).substitute(paths).split())
    sentence = f"{needs} needs {library}. Install it with: pip install '.[{extra}]' in a checkout of tfpipe."
    assert done == (1, "", f"Error: {Template(sentence).substitute(paths)}\n")
