"""`tfpipe profile --html` and `--apply`, as a user runs them."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.conftest import Tfpipe
from tests.profiler.profiles import make_profile
from tfpipe.cli.profile import profile
from tfpipe.engine.config import toml_json
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError, DataError, MissingDependencyError
from tfpipe.format.example import encode_example
from tfpipe.format.tfrecord import record_footer, record_header
from tfpipe.system.options import get_value

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = ("--step-ms", "2", "--batch-size", "4", "--seconds", "0.5")


def test_the_page_is_written_and_its_path_printed(small_dataset: Path, tmp_path: Path, tfpipe: Tfpipe) -> None:
    page = tmp_path / "report.html"
    done = tfpipe("profile", small_dataset, *OPTIONS, "--json", "--html", page, "--max-idle", "100%")
    assert (done.code, done.lines, done.err.splitlines()[-1]) == (0, [done.out.rstrip()], f"Wrote {page}.")
    assert done.json
    html = page.read_text(encoding="utf-8")
    assert html.startswith("<!doctype html>")
    assert html.endswith("</html>")
    assert 'id="timeline"' in html
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_what_the_page_lacks_is_said_before_anything_is_measured(tmp_path: Path, monkeypatch) -> None:
    from importlib.util import find_spec

    target = tmp_path / "none" / "report.html"
    done = CliRunner().invoke(profile, ["no such dataset", "--step-ms", "1", "--html", str(target)])
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception).startswith(f"{target} cannot be written: the folder {target.parent} does not exist.")
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *more: None if name == "jinja2" else find_spec(name))
    done = CliRunner().invoke(profile, ["none", "--step-ms", "1", "--html", str(tmp_path / "a.html")])
    assert isinstance(done.exception, MissingDependencyError)
    assert str(done.exception) == (
        "`tfpipe profile --html` needs Jinja2. Install it with: pip install '.[report]' in a checkout of tfpipe."
    )


def test_the_command_prints_json_and_fails_above_max_idle(small_dataset: Path, tfpipe: Tfpipe, monkeypatch) -> None:
    for name in ("jinja2", "tfpipe.profiler.report.html"):  # loading them would fail
        monkeypatch.setitem(sys.modules, name, None)
    options = ("--batch-size", 4, "--step-ms", 1, "--seconds", 0.5, "--json", "--max-idle", "0.1%")
    done = tfpipe("profile", small_dataset, *options)
    document = done.json
    assert (document["version"], document["required_images_per_second"]) == (6, pytest.approx(4000))
    assert {"read", "parse", "decode", "batch"} <= {stage["name"] for stage in document["stages"]}
    assert document["idle_fraction"] > 0.001  # 4,000 images/s, on two cores that run other tests too
    idle = f"{document['idle_fraction']:.1%}"
    assert (done.code, done.err.splitlines()[-1]) == (1, f"The accelerator is idle for {idle}, more than 0.1%.")


def test_an_image_that_cannot_be_decoded_ends_the_command(tmp_path: Path, tfpipe: Tfpipe) -> None:
    payload = encode_example({"image/encoded": [b"\xff\xd8\xff no more"], "image/class/label": [1]})
    (tmp_path / "train-00000").write_bytes(8 * (record_header(len(payload)) + payload + record_footer(payload)))
    done = tfpipe("profile", tmp_path / "train-*", "--step-ms", 5, "--batch-size", 4)
    # TensorFlow's own threads write too, and may do so last.
    (said,) = [line for line in done.err.splitlines() if line.startswith("Error: ")]
    assert said.startswith("Error: The pipeline failed: ")
    assert said.endswith(" If it is a record or an image, `tfpipe verify` names it.")
    assert (done.code, done.out) == (1, "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "--step-ms 5 --images-per-second 5",
            "An accelerator has one speed. Give one of --step-ms and --images-per-second.",
        ),
        (
            "--max-idle 5",
            "Without a step there is no idle time. Give --step-ms, or leave out --max-idle, --price-per-hour and "
            "--trainer.",
        ),
        ("--trainer fit", "Without a step there is no idle time."),
        ("--step-ms 0", "--step-ms must be above 0, got 0."),
        ("--step-ms 5 --max-idle 500", "--max-idle': must be from 0% to 100%, got '500'."),
        ("--step-ms 5 --max-idle few", "--max-idle': must be from 0% to 100%, got 'few'."),
        ("--train own_loader:step", "--train goes with --loader."),
    ],
)
def test_wrong_options_are_refused(tfpipe: Tfpipe, small_dataset: Path, options: str, message: str) -> None:
    done = tfpipe("profile", small_dataset, *options.split())
    assert done.code == 2
    assert message in done.err


SHORT_RUN = ("--step-ms", 1, "--seconds", 0.5, "--json")


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
    done = tfpipe("profile", small_dataset, "--config", tmp_path / "begin.toml", *SHORT_RUN, "--apply", path)
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
    before = (tmp_path / "begin.toml").read_text()  # which something else wrote, so it stays
    done = tfpipe("profile", small_dataset, *SHORT_RUN, "--apply", tmp_path / "begin.toml")
    assert (done.code, (tmp_path / "begin.toml").read_text()) == (2, before)
    assert "begin.toml is there already and `tfpipe profile --apply` did not write it. Move it away" in done.err


@pytest.mark.slow
def test_real_turns(small_dataset: Path, tmp_path: Path, tfpipe: Tfpipe, begin: PipelineConfig) -> None:
    path = tmp_path / "a.json"
    done = tfpipe("profile", small_dataset, "--config", tmp_path / "begin.toml", *SHORT_RUN, "--apply", path)
    assert (done.code, done.err) == (0, f"Wrote {path}.\n")
    tried = [fix for fix in done.json["fixes"] if fix["kept"] is not None]
    assert tried
    assert all(fix["measured_images_per_second"] > 0 for fix in tried)
    kept = {name for fix in tried if fix["kept"] for name in fix["changes"]}
    assert (PipelineConfig.from_file(path) != begin) == bool(kept)


def test_without_a_step_the_rate_is_told(small_dataset: Path, tfpipe: Tfpipe, monkeypatch) -> None:
    monkeypatch.setattr("tfpipe.profiler.measure.clocks._read_machine_s", lambda: None)  # other tests run
    done = tfpipe("profile", small_dataset, "--batch-size", 4, "--image-size", 16, "--seconds", 0.3)
    assert done.code == 0, done.err
    assert re.fullmatch(r"\S.* limits? this pipeline: [\d,]+ images/s\.", done.lines[0])
    assert re.search(r"^This pipeline gives [\d,]+ images/s; this host's cores allow [\d,]+", done.out, re.MULTILINE)
    assert re.search(r"^decode +[\d,]+ +\d+%", done.out, re.MULTILINE)
    assert "idle" not in done.out
