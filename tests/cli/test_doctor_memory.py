"""The memory that doctor predicts, beside that of a process that trains."""

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.integrity.made import payload, write_dataset

CODE = """
import itertools, json, os, sys
import tfpipe
from tfpipe.cli import doctor_run
from tfpipe.cli.doctor_checks import TargetConfig
from tfpipe.system.host_limits import peak_memory_bytes

directory, options = sys.argv[1], json.loads(sys.argv[2])
config = tfpipe.PipelineConfig(batch_size=64, **options)
manifest = tfpipe.load_manifest(directory)
doctor_run.CHECKS = {"memory": doctor_run.CHECKS["memory"]}
(check,) = doctor_run.run_checks(manifest, "train", config, TargetConfig())
for _ in itertools.islice(tfpipe.build_dataset(manifest, "train", config), 60):
    pass
print(json.dumps([check.found, peak_memory_bytes()]), flush=True)
os._exit(0)  # TensorFlow sometimes takes a minute to delete an iterator
"""


@pytest.fixture(scope="module")
def large_records(tmp_path_factory) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (300, 400, 3), np.uint8)
    encoded = io.BytesIO()
    Image.fromarray(pixels).save(encoded, "JPEG", quality=95)
    payloads = [payload(0, encoded=encoded.getvalue(), format="JPEG", height=300, width=400)] * 1500
    return write_dataset(tmp_path_factory.mktemp("large") / "noise", {"train": payloads})


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"order": "throughput"}, {"cache": "bytes"}, {"training": False}], ids=str)
def test_the_process_takes_what_doctor_says(large_records: Path, options: dict[str, object]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(large_records), json.dumps(options)],
        capture_output=True,
        text=True,
        check=True,
    )
    found, peak_bytes = json.loads(done.stdout.splitlines()[-1])
    amount, unit = found.split(" with the program ")[1].split(". ")[0].split()
    assert float(amount) * {"MB": 1e6, "GB": 1e9}[unit] == pytest.approx(peak_bytes, rel=0.2), found
