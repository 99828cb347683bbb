"""Datasets of the job, read by TensorFlow's own client, which takes the emulator for the real store."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.beam_jobs.commands import ROOT
from tests.beam_jobs.datasets import make_dataset
from tests.beam_jobs.images import make_photos, write_files
from tests.object_stores.conftest import Google
from tests.object_stores.folder_store import pose_as_google
from tests.object_stores.proxy import Proxy
from tfpipe import PipelineConfig, build_dataset, load_manifest
from tfpipe.errors import DataError
from tfpipe.storage import stores

_READ = """
import itertools, json, sys
from dataclasses import replace
import tfpipe
from tfpipe.storage import stores
stores._has_obstore = lambda: False  # TensorFlow's own client is tested here
def read(place):
    manifest = tfpipe.load_manifest(place)
    config = tfpipe.PipelineConfig(batch_size=4, seed=3, extra_features=("image/filename",))
    evaluation = tfpipe.build_dataset(manifest, "train", replace(config, training=False))
    stages = tfpipe.build_stages(manifest, "train", config, start_step=2)
    trained = [batch["image/filename"].numpy() for batch in itertools.islice(stages.dataset(), 24)]
    return [
        [[float(x) for x in batch["image"].numpy().sum(axis=(1, 2, 3))] for batch in evaluation],
        stages[0].settings["order"],
        [len(names) for names in trained],
        sorted({name.decode() for names in trained for name in names}),
    ]
print(json.dumps([read(place) for place in sys.argv[1:]]))
"""


@pytest.fixture
def posing(google: Google, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment in which TensorFlow comes to the emulator."""
    pytest.importorskip("trustme")
    with pose_as_google(tmp_path, lambda tls: Proxy(google.proxy.target, tls)) as (_, environment):
        yield environment


@pytest.mark.slow
def test_tensorflow_reads_the_dataset(google: Google, posing: dict[str, str], tmp_path: Path) -> None:
    """It reads in throughput order, where a run goes on with any records; an evaluation is that of a local copy."""
    photos = google.put(f"{google.new()}/photos", make_photos({"cat": 9, "dog": 7}))
    output = f"{google.new()}/out"
    make_dataset(photos, output, num_shards=2)
    write_files(tmp_path / "local", google.tree(output))

    done = subprocess.run(
        [sys.executable, "-c", _READ, output, str(tmp_path / "local")],
        cwd=ROOT,
        env={**os.environ, **posing, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    remote, local = json.loads(done.stdout.splitlines()[-1])
    assert (remote.pop(1), local.pop(1)) == ("throughput", "exact")
    assert remote == local
    evaluation, batches, names = remote
    assert [len(sums) for sums in evaluation] == [4] * 4
    assert batches == [4] * 24
    assert len(names) == 16


def test_s3_is_refused_with_what_to_do(small_dataset: Path, monkeypatch) -> None:
    """TensorFlow has no client for s3://."""
    stores.configure()
    monkeypatch.setattr(stores, "can_read", lambda url: False)
    sentence = (
        r"^TensorFlow cannot read s3:// URLs, got s3://data/out.*\. Copy the dataset to a local disk or to gs://, "
        r"install tfpipe\[cloud\], or mount the bucket as a folder and name that\.$"
    )
    with pytest.raises(DataError, match=sentence):
        load_manifest("s3://data/out")
    manifest = replace(load_manifest(str(small_dataset)), directory="s3://data/out")
    with pytest.raises(DataError, match=sentence):
        build_dataset(manifest, "train", PipelineConfig(batch_size=2))
