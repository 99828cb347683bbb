"""The install lines of the pages: each extra alone brings what its page does."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from tests.beam_jobs.commands import ROOT, run_python
from tests.beam_jobs.images import make_jpeg
from tests.object_stores.conftest import Cloud
from tests.object_stores.hub_server import HubServer

HIDING = os.pathsep.join((str(ROOT / "tests" / "docs" / "only_extras"), str(ROOT)))
FIRST_BATCH = """
import sys, tfpipe
dataset = {}
print(len(next(iter(dataset))["label"]))
assert not {{"tensorflow", "torch", "jax"}} - {{"{}"}} & set(sys.modules)
"""
SERVED_BATCH = """
import sys, tfpipe
from tfpipe.service.config import ServiceConfig
from tfpipe.service.server import Service
with Service(ServiceConfig(root=(sys.argv[1],), port=0)) as service:
    workers = tfpipe.ServiceOptions(workers=service.addresses)
    dataset = tfpipe.NumpyBatches(sys.argv[1], "train", batch_size=4, image_size=32, service=workers)
    print(len(next(iter(dataset))["label"]))
"""
COMMANDS = """
import json, sys
from click.testing import CliRunner
from tfpipe.cli.main import tfpipe as cli
results = [CliRunner().invoke(cli, words, catch_exceptions=False) for words in json.loads(sys.argv[1])]
assert not any(result.exit_code for result in results), [result.output for result in results]
print(json.dumps([result.stdout for result in results]))
"""
READERS = {
    "tensorflow": "tfpipe.build_dataset(sys.argv[1], 'train', batch_size=4, image_size=32)",
    "torch": "tfpipe.TorchBatches(sys.argv[1], 'train', batch_size=4, image_size=32)",
    "jax": "tfpipe.JaxBatches(sys.argv[1], 'train', batch_size=4, image_size=32)",
}


def run(extras: str, *args: object, **environment: str) -> str:
    """Runs Python as in an environment with some extras, and returns what it prints."""
    process = run_python(*args, **environment, ONLY_EXTRAS=extras, PYTHONPATH=HIDING)
    assert process.returncode == 0, process.stderr
    return process.stdout


def tfpipe(extras: str, *args: object, **environment: str) -> str:
    return run(extras, "-m", "tfpipe", *args, **environment)


def run_all(extras: str, *commands: list[object]) -> list[str]:
    """Runs several commands of tfpipe in one process, and returns what each prints."""
    words = json.dumps([list(map(str, command)) for command in commands])
    return json.loads(run(extras, "-c", COMMANDS, words).splitlines()[-1])


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "shapes"
    tfpipe("shard", "shard", "sample_data", folder, "--num-shards", 2)
    return folder


def test_every_line_is_tried() -> None:
    """A line with other extras needs a test here."""
    pages = [path for path in (ROOT / "docs").rglob("*.md") if "build" not in path.parts]
    pages += [ROOT / "README.md", ROOT / "beam_jobs" / "README.md", ROOT / "tfpipe" / "readers" / "README.md"]
    lines = re.findall(r"pip install (?:-\S+ )*'?\.\[([a-z,]+)\]", "".join(page.read_text() for page in pages))
    tried = {"beam", "beam,cloud", "cloud", "dataflow", "service", "shard", "shard,cloud", "shard,hf", "views"}
    assert {*lines} - {"docs", "test"} == tried | {"torch", "jax", "tensorflow,shard"}


def test_what_no_extra_installs_is_hidden() -> None:
    script = "import click\ntry: import pyarrow\nexcept ModuleNotFoundError as error: print(error)"
    assert run("cloud", "-c", script) == "No module named 'pyarrow'\n"


def test_shard(dataset: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    commands = ["inspect", dataset, "--json"], ["reshard", dataset, again, "--num-shards", 1], ["verify", again]
    inspected, _, verified = run_all("shard", *commands)
    assert json.loads(inspected)["splits"]["train"]["records"] == 149
    assert "149" in verified


@pytest.mark.slow
def test_buckets(cloud: Cloud) -> None:
    images = {f"{name}/1.jpg": make_jpeg(seed, (8, 8)) for seed, name in enumerate(("cat", "dog"))}
    photos = cloud.put(f"{cloud.new()}/photos", images)
    out = f"{cloud.new()}/out"
    tfpipe("shard,cloud", "shard", photos, out, **cloud.environment)
    assert "2 intact records" in tfpipe("cloud", "verify", out, **cloud.environment)
    tfpipe("cloud", "repair", out, f"{out}-clean", **cloud.environment)
    tfpipe("cloud", "index", f"{out}/train-*", "--output", f"{out}-described", **cloud.environment)
    tfpipe("cloud", "export", out, f"{out}-wds", "--to", "webdataset", **cloud.environment)
    assert "export.json" in cloud.tree(f"{out}-wds")


@pytest.mark.slow
def test_hugging_face(dataset: Path, tmp_path: Path) -> None:
    hub = HubServer()
    try:
        environment = {"HF_ENDPOINT": hub.url, "HOME": str(tmp_path)}
        tfpipe("shard,hf", "export", dataset, "hf://datasets/me/photos", "--to", "parquet", **environment)
        file = next(name for name in hub.files if name.endswith(".parquet"))
        tfpipe("shard,hf", "shard", f"hf://datasets/me/photos/{file}", tmp_path / "back", **environment)
    finally:
        hub.stop()
    assert (tmp_path / "back" / "manifest.json").is_file()


def test_views(dataset: Path, tmp_path: Path) -> None:
    grown = shutil.copytree(dataset, tmp_path / "shapes")
    (tmp_path / "wrong.txt").write_text("circle/circle-1.jpg\n")
    view, delete = ["view", grown, "label = 'circle'", "--name", "round"], ["delete", grown, tmp_path / "wrong.txt"]
    *_, inspected = run_all("views", view, delete, ["inspect", f"{grown}@round", "--json"])
    assert json.loads(inspected)["splits"]["train"]["records"] == 49


@pytest.mark.slow
def test_service(dataset: Path) -> None:
    assert run("service", "-c", SERVED_BATCH, dataset) == "4\n"


@pytest.mark.slow
@pytest.mark.parametrize("extras", ["beam", "beam,cloud", "dataflow"])
def test_beam(extras: str, tmp_path: Path) -> None:
    tfpipe(extras, "shard", "sample_data", tmp_path / "out", "--runner", "direct")
    assert (tmp_path / "out" / "manifest.json").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("extras", [*READERS, "tensorflow,shard"])
def test_readers(extras: str, dataset: Path) -> None:
    library = extras.partition(",")[0]
    pytest.importorskip(library)
    assert run(extras, "-c", FIRST_BATCH.format(READERS[library], library), dataset) == "4\n"
