"""Two processes that train together, one of which has a slow stage: the report names it."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensorflow")

from tests.conftest import Tfpipe


@pytest.mark.slow
def test_the_host_with_a_slow_stage_is_late(processes: Any, colors: Path, tmp_path: Path, tfpipe: Tfpipe) -> None:
    output = tmp_path / "run"
    config = tmp_path / "pipeline.toml"
    config.write_text("prefetch_batches = 1\nbatch_size = 8\nimage_size = 16\n")  # or 30 steps are made ahead
    options = ("--epochs", "5", "--config", str(config), "--stages")
    command = ("-m", "tfpipe", "train", str(colors), "--output", str(output), "--json", *options)
    processes.run_workers(2, *command, "tests.training.tensorflow.slow_host:on_worker_1")
    assert sorted(path.name for path in (output / "hosts").iterdir()) == ["host-00000.json", "host-00001.json"]
    report = tfpipe("profile", "--hosts", output, "--json").json
    first, second = report["hosts"]
    assert (report["late"], report["num_hosts"], report["missing"]) == ([1], 2, [])
    assert report["steps"] == 20  # of 30, less the warm-up
    assert second["input_wait_fraction"] > 0.5  # 4 images for each step, 0.05 s each
    assert first["waits_for_others_fraction"] == pytest.approx(report["lost_fraction"], abs=0.01)
    assert first["images_per_second"] == pytest.approx(second["images_per_second"], rel=0.1)
