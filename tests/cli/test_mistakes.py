"""What each command says of a wrong path or option, or a missing library: a sentence with what to do, and a code."""

import shutil
from pathlib import Path

import pytest

from tests.conftest import DrawImages, Tfpipe
from tfpipe.cli.main import tfpipe as commands

# The commands that take a dataset, each with what else it needs.
TAKE_DATASETS = {
    "inspect": "",
    "verify": "",
    "repair": "OUT",
    "export": "OUT --to wds",
    "reshard": "OUT",
    "merge": "DATASET OUT",
    "doctor": "",
    "profile": "--step-ms 3",
    "train": "",
}
TAKE_IMAGES = {"shard": "OUT"}
NO_MANIFEST = (
    "holds no manifest.json: it is not a finished tfpipe dataset. `tfpipe shard` writes one out of images, `tfpipe "
    "index` one for TFRecords of others."
)
NOT_FINISHED = "An earlier run was not finished; run the same `tfpipe shard` command again to finish it."
IS_DATASET = (
    "is a dataset. `tfpipe reshard` writes it in another form, `tfpipe merge` joins it with others, `tfpipe inspect` "
    "shows it."
)
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


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("nowhere", "nowhere does not exist."),
        ("empty", "No images were found in"),
        ("dataset", IS_DATASET),
        ("records", "records holds TFRecords: `tfpipe index` describes them."),
    ],
)
@pytest.mark.parametrize("command", TAKE_IMAGES)
def test_what_holds_no_images(tfpipe: Tfpipe, paths: dict[str, Path], command: str, kind: str, sentence: str) -> None:
    done = tfpipe(*fill_in(command, TAKE_IMAGES[command], paths[kind], paths))
    assert (done.code, done.out) == (1, "")
    assert "Traceback" not in done.err
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
        (["shard", "a", "b", "--resize", "64"], "No such option '--resize'. Use --resize-short or --square."),
        (["shard", "a", "b", "--image-size", "64"], "No such option '--image-size'. Use --resize-short or --square."),
        (["train", "a", "--global-batch-size", "8"], "No such option '--global-batch-size'. Use --batch-size."),
        (["shard", "a", "b", "--num-workers", "8"], "No such option '--num-workers'. Use --workers."),
        (["inspect", "a", "--show", "12"], "Option '--show' requires 2 arguments. Give --show N OUT.png."),
        (["shard", "a"], "Missing argument 'OUTPUT'."),
        (["shard", "a", "b", "c"], "INPUT and OUTPUT must be two paths, got a third, 'c'."),
        (["shard", "a", "b", "--print-command", "--json"], "--print-command and --json exclude each other."),
        (["shard", "a", "b", "--part", "8/8"], "must be K/N, with K from 0 to N - 1, as in 3/8; or auto, or auto/N"),
        (["shard", "a", "b", "--part", "3"], "must be K/N, with K from 0 to N - 1, as in 3/8; or auto, or auto/N"),
        (["shard", "a", "b", "--part", "auto"], "auto needs SLURM_ARRAY_TASK_ID and SLURM_ARRAY_TASK_COUNT"),
        (["shard", "a", "b", "--part", "0/2", "--plan-only"], "--plan-only and --part exclude each other."),
        (["shard", "a", "b", "--part", "0/2", "--dry-run"], "--part and --dry-run exclude each other."),
        (["shard", "a", "b", "--plan-only", "--runner", "direct"], "--plan-only and a runner exclude each other."),
        (["shard", "a", "b", "--part", "0/2", "--square", "8"], "The plan in OUTPUT decides --square. Leave it out;"),
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
    path = paths["images"] if command in TAKE_IMAGES else paths["dataset"]
    done = tfpipe(*fill_in(command, {**TAKE_DATASETS, **TAKE_IMAGES}[command], path, paths))
    sentence = (
        f"`tfpipe {command}` needs TensorFlow. Install it with: pip install '.[tensorflow]' in a checkout of tfpipe."
    )
    assert (done.code, done.out, done.err) == (1, "", f"Error: {sentence}\n")
