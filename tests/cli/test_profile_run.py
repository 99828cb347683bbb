"""`tfpipe profile --apply`, as a user runs it."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Tfpipe
from tests.profiler.profiles import make_profile
from tfpipe.engine.config import toml_json
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import DataError
from tfpipe.system.options import get_value

OPTIONS = ("--step-ms", 1, "--seconds", 0.5, "--json")


@pytest.fixture
def begin(tmp_path: Path) -> PipelineConfig:
    (tmp_path / "begin.toml").write_text("batch_size = 4\nimage_dtype = 'float32'\nas_supervised = true\n")
    return PipelineConfig.from_file(tmp_path / "begin.toml")


def test_the_options_that_help_are_written(small_dataset, tmp_path, tfpipe, begin: PipelineConfig, monkeypatch):
    def measure(_data: Any, _split: Any, config: PipelineConfig, *_: Any) -> tuple[float, float]:
        if config.cache != "none":
            raise DataError("There is no memory.")
        return (1000.0 if config == begin else 1500.0), 0.0

    monkeypatch.setattr("tfpipe.profiler.measure.profile.measure_rate", measure)
    costs = {"uint8": 3500.0, "device": 2000.0}  # what a real profile proposes depends on the other tests
    known = make_profile(config=begin, dataset={"records": 1000}, option_costs=costs)
    monkeypatch.setattr("tfpipe.profiler.measure.profile.profile_pipeline", lambda *_: known)
    path = tmp_path / "a.toml"
    done = tfpipe("profile", small_dataset, "--config", tmp_path / "begin.toml", *OPTIONS, "--apply", path)
    assert done.code == 0, done.err
    tried = [fix for fix in done.json["fixes"] if fix["kept"] is not None]
    kept = [fix for fix in tried if fix["kept"]]
    assert kept[0]["measured_images_per_second"] == 1500
    assert kept[0]["measured_gain"] == {"median": 1.5, "low": 1.5, "high": 1.5}
    assert done.json["after_images_per_second"] == 1500
    best = PipelineConfig.from_file(path)
    assert best != begin
    for name, value in kept[0]["changes"].items():
        assert get_value(best, name) == value
    options, notes = toml_json.read_with_notes(path)
    changed = {name.partition(".")[0] for fix in kept for name in fix["changes"]}
    assert set(options) == {"batch_size", "image_dtype", "as_supervised", *changed}
    assert options["as_supervised"] is True
    assert (notes["split"], notes["images_per_second"]) == ("train", 1500)
    assert done.err.splitlines()[-1] == f"Wrote {path}."
    assert re.search("^Not tried: cache = .* There is no memory.$", done.err, re.MULTILINE)


@pytest.mark.slow
def test_real_turns(small_dataset: Path, tmp_path: Path, tfpipe: Tfpipe, begin: PipelineConfig) -> None:
    path = tmp_path / "a.json"
    done = tfpipe("profile", small_dataset, "--config", tmp_path / "begin.toml", *OPTIONS, "--apply", path)
    assert (done.code, done.err) == (0, f"Wrote {path}.\n")
    tried = [fix for fix in done.json["fixes"] if fix["kept"] is not None]
    assert tried
    assert all(fix["measured_images_per_second"] > 0 for fix in tried)
    kept = {name for fix in tried if fix["kept"] for name in fix["changes"]}
    assert (PipelineConfig.from_file(path) != begin) == bool(kept)


@pytest.mark.usefixtures("begin")
def test_a_file_that_something_else_wrote_stays(small_dataset: Path, tmp_path: Path, tfpipe: Tfpipe) -> None:
    path = tmp_path / "begin.toml"
    before = path.read_text()
    done = tfpipe("profile", small_dataset, *OPTIONS, "--apply", path)
    assert (done.code, path.read_text()) == (2, before)
    assert "begin.toml is there already and `tfpipe profile --apply` did not write it. Move it away" in done.err


def test_without_a_step_the_rate_is_told(small_dataset: Path, tfpipe: Tfpipe, monkeypatch) -> None:
    monkeypatch.setattr("tfpipe.profiler.measure.clocks._read_machine_s", lambda: None)  # other tests run
    done = tfpipe("profile", small_dataset, "--batch-size", 4, "--image-size", 16, "--seconds", 0.3)
    assert done.code == 0, done.err
    assert re.fullmatch(r"\S.* limits? this pipeline: [\d,]+ images/s\.", done.lines[0])
    assert re.search(r"^This pipeline gives [\d,]+ images/s; this host's cores allow [\d,]+", done.out, re.MULTILINE)
    assert re.search(r"^decode +[\d,]+ +\d+%", done.out, re.MULTILINE)
    assert "idle" not in done.out
