"""The runner for Dataflow: its checks, the options that it completes, and the sentences about a job's end."""

import base64
import csv
import hashlib
import re
import sys
import zipfile
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from apache_beam.options.pipeline_options import GoogleCloudOptions, SetupOptions, WorkerOptions

from beam_jobs.config import ShardConfig
from beam_jobs.graph import choose_runner as make_runner
from beam_jobs.runners import dataflow
from beam_jobs.runners.base import GraphWritten, Runner, RunnerConfig
from beam_jobs.runners.dataflow import build_wheel
from tests.beam_jobs.commands import ROOT
from tests.beam_jobs.datasets import read_tree
from tests.beam_jobs.plans import make_job
from tests.observers import Recorder
from tests.refusals import refusal
from tfpipe._version import __version__
from tfpipe.errors import ConfigError, DataError, MissingDependencyError

pytestmark = pytest.mark.needs("google.api_core")
CONFIG = ShardConfig("gs://in", "gs://out")
ONLY = "Dataflow's machines read and write gs:// only, got"


def make_dataflow(*more: str) -> Runner:
    return make_runner([*RunnerConfig("dataflow", "my-project", "europe-west4").beam_args(), *more])


@pytest.mark.parametrize(
    ("config", "more", "message"),
    [
        (CONFIG, ["--project="], "Dataflow needs a project and a region to run in; give `project` too."),
        (CONFIG, ["--region="], "Dataflow needs a project and a region to run in; give `region` too."),
        (ShardConfig("photos", "gs://out"), [], f"{ONLY} photos. Name a place in a bucket, or run on this machine."),
        (ShardConfig("gs://in", "s3://out"), [], f"{ONLY} s3://out. "),
        (CONFIG, ["--temp_location=/tmp"], f"{ONLY} /tmp. "),
        (replace(CONFIG, workers=4), [], "`workers` are processes of this machine; on Dataflow it is `max_workers`."),
        (
            *(replace(CONFIG, overwrite=True), ["--template_location=gs://t"]),
            "`overwrite` replaces a dataset when the job has ended, which a launcher of templates does not see. "
            "Choose another OUTPUT.",
        ),
        (CONFIG, ["--dry_run=true"], "A job is planned for the images of one run, "),
    ],
)
def test_bad_options_are_refused(config: ShardConfig, more: list[str], message: str) -> None:
    assert refusal(ConfigError, make_dataflow(*more).check, config).startswith(message)


def test_a_graph_for_a_launcher_is_not_watched() -> None:
    runner, observer = make_dataflow("--template_location=gs://t/job_object", "--temp_location=gs://t"), Recorder()
    runner.check(CONFIG)
    pipeline: Any = SimpleNamespace(run=lambda: SimpleNamespace(has_job=False))
    with pytest.raises(GraphWritten) as caught:
        runner.submit(pipeline, observer)
    assert str(caught.value) == ("The plan and the graph are written; the service runs the graph at gs://t/job_object.")
    assert (caught.value.exit_code, observer.submissions) == (0, [])


def test_without_beams_part_for_google_its_extra_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "apache_beam.runners.dataflow.internal", None)
    assert refusal(MissingDependencyError, make_dataflow().check, CONFIG) == (
        "The runner for Dataflow needs Beam's part for Google Cloud. "
        "Install it with: pip install '.[dataflow]' in a checkout of tfpipe."
    )


def test_a_job_gets_folders_a_name_machines_and_a_wheel() -> None:
    runner = make_dataflow("--max_num_workers=9")
    options = runner.options
    cloud, setup = options.view_as(GoogleCloudOptions), options.view_as(SetupOptions)
    with runner.prepare(make_job("gs://out/pets", "Oxford Pets!")):
        assert cloud.temp_location == cloud.staging_location == "gs://out/pets/.tfpipe/dataflow"
        assert re.fullmatch(r"tfpipe-oxford-pets-\d{8}-\d{6}", cloud.job_name)
        assert options.view_as(WorkerOptions).num_workers == 4
        assert setup.save_main_session is False
        (wheel,) = setup.extra_packages
        assert Path(wheel).is_file()
    assert not Path(wheel).exists()


def test_options_of_the_user_stay() -> None:
    runner = make_dataflow(
        *("--temp_location=gs://a/t", "--staging_location=gs://a/s", "--job_name=mine", "--num_workers=2"),
        *("--max_num_workers=9", "--sdk_location=container", "--extra_package=mine.whl"),
    )
    cloud = runner.options.view_as(GoogleCloudOptions)
    with runner.prepare(make_job("gs://out/pets")):
        assert (cloud.temp_location, cloud.staging_location, cloud.job_name) == ("gs://a/t", "gs://a/s", "mine")
        assert runner.options.view_as(WorkerOptions).num_workers == 2
        assert runner.options.view_as(SetupOptions).extra_packages == ["mine.whl"]


@pytest.mark.parametrize("dataset", ["x" * 100, "-", "Ä", "2020 photos "])
def test_job_names_keep_the_rules_of_the_service(dataset: str) -> None:
    name = dataflow.make_job_name(dataset)
    assert len(name) <= 63
    assert re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", name)


STEM = f"tfpipe-{__version__}"


def test_the_wheel_holds_all_code_pins_packages_and_lists_every_file(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    wheel = Path(build_wheel(str(tmp_path / "first")))
    assert wheel.name == f"{STEM}-py3-none-linux_x86_64.whl"
    with zipfile.ZipFile(wheel) as opened:
        inside = {name: opened.read(name) for name in opened.namelist()}
    assert {name: data for name, data in inside.items() if not name.startswith(STEM)} == {
        f"{package}/{name}": data
        for package in ("tfpipe", "beam_jobs")
        for name, data in read_tree(ROOT / package).items()
        if "__pycache__" not in name and not name.startswith("native/csrc/")
    }
    about = inside[f"{STEM}.dist-info/METADATA"].decode()
    assert "Name: tfpipe\n" in about
    assert f"Requires-Dist: pillow=={metadata.version('pillow')}\n" in about
    assert f"Requires-Dist: obstore=={metadata.version('obstore')}\n" in about
    assert "Requires-Dist: google-crc32c>=" in about
    assert b"tfpipe = tfpipe.cli.main:main" in inside[f"{STEM}.dist-info/entry_points.txt"]
    lines = list(csv.reader(inside[f"{STEM}.dist-info/RECORD"].decode().splitlines()))
    assert [line[0] for line in lines] == [*inside]
    for name, digest, size in lines[:-1]:
        expected = base64.urlsafe_b64encode(hashlib.sha256(inside[name]).digest()).decode().rstrip("=")
        assert (digest, int(size)) == (f"sha256={expected}", len(inside[name]))
    assert lines[-1][1:] == ["", ""]
    assert Path(build_wheel(str(tmp_path / "second"))).read_bytes() == wheel.read_bytes()


ARM = b"\x7fELF" + bytes(14) + b"\xb7\0" + bytes(44)


@pytest.mark.parametrize("data", [None, ARM, b"\xcf\xfa\xed\xfe" + bytes(60)], ids=["none", "arm", "macOS"])
def test_a_library_that_workers_cannot_load_is_refused(data: bytes | None, tmp_path: Path, monkeypatch):
    package = tmp_path / "tfpipe"
    (package / "native").mkdir(parents=True)
    if data is not None:
        (package / "native" / "libtfpipe_native.so").write_bytes(data)
    monkeypatch.setattr("tfpipe.errors.__file__", str(package / "errors.py"))
    assert refusal(DataError, build_wheel, str(tmp_path)) == (
        "The workers run Linux on x86-64, and get tfpipe as it is installed here, without a native library for that "
        "system. Start the job on Linux, or let `sdk_location` be a container."
    )


def test_code_that_is_not_installed_is_refused(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(metadata, "distribution", Mock(side_effect=metadata.PackageNotFoundError))
    with pytest.raises(DataError, match=r"^The workers get tfpipe as it is installed here, but it is not installed\. "):
        build_wheel(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
