"""The install lines of the pages: each extra alone brings what its page does."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.beam_jobs.commands import ROOT
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
from tfpipe.service.processes import Service
with Service(ServiceConfig(root=(sys.argv[1],), port=0)) as service:
    workers = tfpipe.ServiceOptions(workers=service.addresses)
    dataset = tfpipe.NumpyBatches(sys.argv[1], "train", batch_size=4, image_size=32, service=workers)
    print(len(next(iter(dataset))["label"]))
"""
READERS = {
    "tensorflow": "tfpipe.build_dataset(sys.argv[1], 'train', batch_size=4, image_size=32)",
    "torch": "tfpipe.TorchBatches(sys.argv[1], 'train', batch_size=4, image_size=32)",
    "jax": "tfpipe.JaxBatches(sys.argv[1], 'train', batch_size=4, image_size=32)",
}


def run(extras: str, *args: object, **environment: str) -> str:
    """Runs Python as in an environment with some extras, and returns what it prints."""
    process = subprocess.run(
        [sys.executable, *map(str, args)],
        cwd=ROOT,
        env={**os.environ, **environment, "ONLY_EXTRAS": extras, "PYTHONPATH": HIDING},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def tfpipe(extras: str, *args: object, **environment: str) -> str:
    return run(extras, "-m", "tfpipe", *args, **environment)


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    tfpipe("shard", "shard", "sample_data", tmp_path / "shapes", "--num-shards", 2)
    return tmp_path / "shapes"


def test_every_line_is_tried() -> None:
    """A line with other extras needs a test here."""
    pages = [path for path in (ROOT / "docs").rglob("*.md") if "build" not in path.parts]
    pages += [ROOT / "README.md", ROOT / "beam_jobs" / "README.md", ROOT / "tfpipe" / "readers" / "README.md"]
    lines = re.findall(r"pip install (?:-\S+ )*'?\.\[([a-z,]+)\]", "".join(page.read_text() for page in pages))
    tried = {"beam", "beam,cloud", "cloud", "dataflow", "service", "shard", "shard,cloud", "shard,hf", "views"}
    assert {*lines} - {"docs", "test"} == tried | {*READERS} | {"tensorflow,shard"}


def test_what_no_extra_installs_is_hidden() -> None:
    script = "import click\ntry: import pyarrow\nexcept ModuleNotFoundError as error: print(error)"
    assert run("cloud", "-c", script) == "No module named 'pyarrow'\n"


def test_shard(dataset: Path, tmp_path: Path) -> None:
    assert json.loads(tfpipe("shard", "inspect", dataset, "--json"))["splits"]["train"]["records"] == 149
    tfpipe("shard", "reshard", dataset, tmp_path / "again", "--num-shards", 1)
    assert "149" in tfpipe("shard", "verify", tmp_path / "again")


@pytest.mark.slow
def test_buckets(cloud: Cloud) -> None:
    photos = cloud.put(
        f"{cloud.new()}/photos", {f"{name}/1.jpg": make_jpeg(seed, (8, 8)) for seed, name in enumerate(("cat", "dog"))}
    )
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


def test_views(dataset: Path) -> None:
    tfpipe("views", "view", dataset, "label = 'circle'", "--name", "round")
    (dataset.parent / "wrong.txt").write_text("circle/circle-1.jpg\n")
    tfpipe("views", "delete", dataset, dataset.parent / "wrong.txt")
    assert json.loads(tfpipe("views", "inspect", f"{dataset}@round", "--json"))["splits"]["train"]["records"] == 49


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
