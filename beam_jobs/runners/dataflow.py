"""The runner for Google's Dataflow."""

import base64
import contextlib
import hashlib
import logging
import os
import re
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from apache_beam import Pipeline
from apache_beam.options import pipeline_options
from apache_beam.runners.runner import PipelineState

import beam_jobs
from beam_jobs.config import ShardConfig
from beam_jobs.runners.base import GraphWritten, Runner, ShardObserver, SubmittedJob
from beam_jobs.runners.beam_errors import GO_ON
from beam_jobs.shards.job import Job
from tfpipe import errors
from tfpipe.errors import ConfigError, DataError
from tfpipe.system.extras import importing

_logger = logging.getLogger(__name__)

_MAX_JOB_NAME_LENGTH = 63

_DISTRIBUTION = "tfpipe"
_TAG = "py3-none-linux_x86_64"
_ELF_X86_64 = re.compile(rb"\x7fELF.{14}\x3e\x00", re.DOTALL)
_PILLOW = re.compile(r"^Requires-Dist: pillow\b[^;\n]*", re.MULTILINE)
_PACKAGES = Path(beam_jobs.__file__).parent, Path(errors.__file__).parent
_SOURCES = Path("tfpipe", "native", "csrc")
_EARLIEST_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest of a zip file; equal code gives equal bytes


class DataflowRunner(Runner):
    """A job on Dataflow. The service runs the job to its end, whether or not this process watches."""

    has_same_codecs = False  # the workers' image has its own libraries, the same on every machine

    def check(self, config: ShardConfig) -> None:
        """Checks that the job can run on Dataflow."""
        with importing("The runner for Dataflow", "Beam's part for Google Cloud", "tfpipe[dataflow]"):
            from apache_beam.runners.dataflow.internal import apiclient  # noqa: F401
        cloud = self.options.view_as(pipeline_options.GoogleCloudOptions)
        for name in ("project", "region"):
            if not getattr(cloud, name):
                raise ConfigError(
                    f"Dataflow needs a project and a region to run in; give `{name}` too.",
                    page="clusters#dataflow",
                )
        for path in (*config.inputs, config.output, cloud.temp_location, cloud.staging_location):
            if path is not None and not path.startswith("gs://"):
                raise ConfigError(
                    f"Dataflow's machines read and write gs:// only, got {path}. Name a place in a bucket, or run "
                    "on this machine.",
                    page="clusters#dataflow",
                )
        if config.workers:
            raise ConfigError("`workers` are processes of this machine; on Dataflow it is `max_workers`.")
        if self.options.view_as(pipeline_options.TestOptions).dry_run:
            raise ConfigError(
                "A job is planned for the images of one run, so Beam cannot run it dry. Leave --dry_run out; "
                "`tfpipe shard --dry-run` prints the plan."
            )
        if cloud.template_location and config.overwrite:
            raise ConfigError(
                "`overwrite` replaces a dataset when the job has ended, which a launcher of templates does not see. "
                "Choose another OUTPUT."
            )

    @contextlib.contextmanager
    def prepare(self, job: Job) -> Iterator[None]:
        """Completes the options and makes the wheels that are sent with the job."""
        cloud = self.options.view_as(pipeline_options.GoogleCloudOptions)
        setup = self.options.view_as(pipeline_options.SetupOptions)
        cloud.temp_location = cloud.temp_location or job.work.path("dataflow")
        cloud.staging_location = cloud.staging_location or cloud.temp_location
        cloud.job_name = cloud.job_name or make_job_name(job.header.name)
        machines = self.options.view_as(pipeline_options.WorkerOptions)
        if machines.max_num_workers and not machines.num_workers:
            # All machines start at once: the plan knows that there is work for them. The service would notice that
            # late, because it sees only shard numbers, a few bytes each.
            machines.num_workers = min(machines.max_num_workers, len(job.header.shards))
        with _silence_threads(), tempfile.TemporaryDirectory(prefix="tfpipe-") as folder:
            if setup.sdk_location != "container":  # the user's own container image brings all that the job needs
                setup.extra_packages = [*(setup.extra_packages or ()), build_wheel(folder)]
            yield

    def submit(self, pipeline: Pipeline, observer: ShardObserver) -> None:
        """Submits the graph to the service, and passes the running job to the observer.

        With a `template_location`, as the launcher of a Flex Template gives it, the service runs the graph once this
        process has ended: `GraphWritten` is raised.
        """
        super().submit(pipeline, observer)
        cloud = self.options.view_as(pipeline_options.GoogleCloudOptions)
        if cloud.template_location:
            raise GraphWritten(
                f"The plan and the graph are written; the service runs the graph at {cloud.template_location}."
            )
        observer.submitted(SubmittedJob(self._result.job_id(), cloud.project, cloud.region))

    def wait(self) -> None:
        """Waits for the end of the job. Beam does not report a job that was canceled before the wait."""
        try:
            state = self._result.wait_until_finish()
        except AssertionError as error:  # a state that Beam could not ask for any more
            raise DataError(
                "Dataflow does not answer any more, but the job goes on. When it has ended, run the same command "
                "again: finished shards are kept."
            ) from error
        if state != PipelineState.DONE:
            raise DataError(f"The Dataflow job was ended before it was done (it is {state.lower()}). {GO_ON}")


def make_job_name(dataset: str) -> str:
    """Returns `tfpipe-NAME-20261121-093000`: lower-case letters, digits and dashes, as the service requires."""
    moment = time.strftime("%Y%m%d-%H%M%S")
    word = re.sub("[^a-z0-9]+", "-", dataset.lower()).strip("-")
    room = _MAX_JOB_NAME_LENGTH - len(f"tfpipe--{moment}")
    return "-".join(filter(None, ("tfpipe", word[:room].rstrip("-"), moment)))


@contextlib.contextmanager
def _silence_threads() -> Iterator[None]:
    """Keeps the thread in which Beam asks for the job's state from printing its traceback."""
    before = threading.excepthook
    threading.excepthook = lambda args: _logger.debug("A thread of Beam's ended", exc_info=args.exc_value)
    try:
        yield
    finally:
        threading.excepthook = before


def build_wheel(folder: str) -> str:
    """Writes the wheel of tfpipe, from the packages that this process imports and the installed distribution.

    It requires the version of Pillow that is installed here: another one may encode the same pixels as other bytes.
    """
    try:
        distribution = metadata.distribution(_DISTRIBUTION)
    except metadata.PackageNotFoundError as error:
        raise DataError(
            "The workers get tfpipe as it is installed here, but it is not installed. Install it with pip, as in "
            "`pip install -e .` in its folder."
        ) from error
    library = Path(errors.__file__).parent / "native" / "libtfpipe_native.so"
    if not (library.exists() and _ELF_X86_64.match(library.read_bytes())):
        raise DataError(
            "The workers run Linux on x86-64, and get tfpipe as it is installed here, without a native library for "
            "that system. Start the job on Linux, or let `sdk_location` be a container."
        )
    # The format allows no dash in name and version.
    stem = "-".join(re.sub("-+", "_", text) for text in (distribution.metadata["Name"], distribution.version))
    info = {name: distribution.read_text(name) for name in ("METADATA", "entry_points.txt")}
    texts = {name: _pin_packages(text) for name, text in info.items() if text is not None}
    texts["WHEEL"] = f"Wheel-Version: 1.0\nGenerator: tfpipe\nRoot-Is-Purelib: false\nTag: {_TAG}\n"
    dist_info = ((f"{stem}.dist-info/{name}", text.encode()) for name, text in texts.items())
    return _write_wheel(folder, stem, (*_read_code(_PACKAGES), *dist_info))


def _write_wheel(folder: str, stem: str, files: Iterable[tuple[str, bytes]]) -> str:
    path = os.path.join(folder, f"{stem}-{_TAG}.whl")
    record = f"{stem}.dist-info/RECORD"
    lines = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files:
            wheel.writestr(_make_entry(name), data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(data)}\n")
        wheel.writestr(_make_entry(record), "".join([*lines, f"{record},,\n"]))
    return path


def _make_entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _EARLIEST_TIME)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    return entry


def _pin_packages(text: str) -> str:
    version, client = metadata.version("pillow"), f"Requires-Dist: obstore=={metadata.version('obstore')}\n"
    if client not in text:
        text = _PILLOW.sub(rf"{client}\g<0>", text)
    if "+" in version:  # a local build, which no package index has
        return text
    return _PILLOW.sub(f"Requires-Dist: pillow=={version}", text)


def _read_code(packages: Iterable[Path]) -> Iterator[tuple[str, bytes]]:
    for package in packages:
        for path in sorted(package.rglob("*")):
            inside = path.relative_to(package.parent)
            if path.is_file() and "__pycache__" not in inside.parts and _SOURCES not in inside.parents:
                yield inside.as_posix(), path.read_bytes()
