"""Runs DLIO's ResNet-50 workload in its own environment, and reads what it says.

dlio = Dlio(python="dlio/bin/python", data=Path("/tmp/dlio"), files=24)
dlio.generate()
run = dlio.train("tfpipe", step_s=0.01, epochs=3)       # run.utilization, run.samples_per_s
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

ROOT = Path(__file__).resolve().parents[3]
SAMPLES_PER_FILE = 1251  # as in DLIO's own workload
BATCH = 400
H100_STEP_S = 0.224
"""The time of a step of one simulated H100 in DLIO's workload `resnet50_h100`."""

STEPS_PER_DOUBLING = 8
SHORTEST = 8 * STEPS_PER_DOUBLING
"""The number of the shortest step that is tried, a 256th of an H100's."""

_PACKAGES = ("dlio-benchmark", "pydftracer", "mpi4py", "tfpipe")
_START_S = 120  # that a start may take, on a busy machine
_TRIES = 3  # DLIO's reader calls Python from tf.data's threads, which can wait for each other for ever

Reader = Literal["DLIO", "tfpipe"]
READERS: tuple[Reader, ...] = ("DLIO", "tfpipe")


class DlioError(Exception):
    """An environment or a run of DLIO that cannot be used, in one sentence."""


@dataclass(frozen=True)
class Training:
    """One run of the simulated training.

    Attributes:
        utilization: DLIO's accelerator utilization (AU), from 0 to 1: the mean of the epochs.
        is_fed: Whether DLIO says that the utilization meets its expectation, 90 %.
        samples_per_s: The mean throughput of the epochs but the first.
        cpu_s: The processor time of the whole process.
        others: The share of all cores that other processes took meanwhile.
    """

    utilization: float
    is_fed: bool
    samples_per_s: float
    cpu_s: float
    others: float


@dataclass(frozen=True)
class Dlio:
    """DLIO in an environment of its own.

    Attributes:
        python: The interpreter of that environment.
        data: The folder for the files that DLIO makes.
        files: The number of these files, of 143 MB each.
    """

    python: str
    data: Path
    files: int

    @property
    def num_samples(self) -> int:
        """The number of samples of an epoch."""
        return self.files * SAMPLES_PER_FILE // BATCH * BATCH

    def read_versions(self) -> dict[str, str]:
        """Reads the versions of the packages that count.

        Raises:
            DlioError: One is missing, or cannot be loaded.
        """
        code = (
            "import json, tensorflow, dlio_benchmark.main, mpi4py.MPI, tfpipe.readers.data_source\n"
            "from tfpipe.native import library; library.load()\n"
            "from importlib.metadata import version\n"
            f"versions = {{name: version(name) for name in {_PACKAGES}}}\n"
            "print(json.dumps(versions | {'tensorflow': tensorflow.__version__}))"
        )
        try:
            done = subprocess.run(
                [self.python, "-c", code], env=self._environment(), capture_output=True, text=True, check=False
            )
        except OSError as error:
            raise DlioError(
                f"{self.python} cannot be started: {error.strerror}. Make DLIO's environment as README.md says."
            ) from None
        if done.returncode:
            reason = (done.stderr.strip() or "no reason").splitlines()[-1]
            raise DlioError(
                f"{self.python} must be able to load DLIO, and tfpipe ({reason}): install "
                "dlio-benchmark 2.0.0 with --no-deps, then pydftracer 1.0.2, mpi4py 4.1.2, mpich 5.0.2, "
                "tensorflow-cpu 2.21.0, hydra-core 1.3.8, pandas, psutil, h5py, and this checkout."
            )
        versions: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
        return versions

    def generate(self) -> None:
        """Lets DLIO make its TFRecords, unless they are there, and reads them into memory."""
        have = sorted(self.data.glob("train/*.tfrecord"))
        if len(have) != self.files:
            if have:
                raise DlioError(
                    f"{self.data} must have {self.files} files of DLIO's, got {len(have)}. Delete it, or name another."
                )
            self._run(["++workload.workflow.generate_data=True", "++workload.workflow.train=False"], 3600)
        for path in self.data.glob("train/*.tfrecord"):
            path.read_bytes()

    def train(self, reader: Reader, step_s: float, epochs: int) -> Training:
        """Feeds simulated accelerators."""
        options = [f"++workload.train.computation_time={step_s:.6f}", f"++workload.train.epochs={epochs}"]
        if reader == "tfpipe":
            options += [
                "++workload.reader.data_loader_classname=tfpipe_loader.TfpipeLoader",
                "++workload.reader.data_loader_sampler=iterative",
            ]
        steps = self.num_samples // BATCH * epochs
        return self._run(options, _START_S + 5 * steps * max(step_s, 0.05))

    def _run(self, options: list[str], timeout_s: float) -> Any:
        """Runs DLIO once; again if it never ends."""
        for _ in range(_TRIES):
            with tempfile.TemporaryDirectory() as folder:
                (Path(folder) / "bin").mkdir()
                if shutil.which("tfrecord2idx") is None:  # DLIO calls it for an index that nobody reads here
                    os.symlink(str(shutil.which("true")), f"{folder}/bin/tfrecord2idx")
                common = [
                    "workload=resnet50_h100",
                    f"++workload.dataset.num_files_train={self.files}",
                    f"++workload.dataset.num_samples_per_file={SAMPLES_PER_FILE}",
                    f"++workload.dataset.data_folder={self.data}",
                    f"hydra.run.dir={folder}/out",
                ]
                usage = _Usage()
                try:
                    done = subprocess.run(
                        [self.python, "-m", "dlio_benchmark.main", *common, *options],
                        cwd=folder,
                        env=self._environment(f"{folder}/bin"),
                        capture_output=True,
                        text=True,
                        timeout=timeout_s,
                        check=False,
                    )
                except subprocess.TimeoutExpired:
                    continue
                if done.returncode:
                    raise DlioError(f"DLIO failed: {done.stderr.strip()[-2000:]}")
                summary = Path(folder, "out", "summary.json")
                return read_training(summary.read_text(), *usage.measure()) if summary.exists() else None
        raise DlioError(f"DLIO did not end within {timeout_s:.0f} s, {_TRIES} times. Try it on a quieter machine.")

    def _environment(self, folder: str = "") -> dict[str, str]:
        paths = [str(ROOT), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PATH": os.pathsep.join(filter(None, [os.environ.get("PATH", ""), folder])),
            "DFTRACER_ENABLE": "0",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }


class _Usage:
    """The use of the processor since this was made."""

    def __init__(self) -> None:
        self._begin = self._read()

    def measure(self) -> tuple[float, float]:
        """Returns the seconds of the children that have ended since, and the share of all cores of other processes."""
        own, busy, total = (now - then for now, then in zip(self._read(), self._begin, strict=True))
        return own, max(busy - own, 0.0) / max(total, 1e-9)

    def _read(self) -> tuple[float, float, float]:
        used, machine = resource.getrusage(resource.RUSAGE_CHILDREN), psutil.cpu_times()
        total = sum(machine[:8])  # user, nice, system, idle, iowait, irq, softirq, steal
        return used.ru_utime + used.ru_stime, total - machine.idle - machine.iowait, total


def read_training(summary: str, cpu_s: float, others: float) -> Training:
    """Reads the result of a training from DLIO's `summary.json`.

    Raises:
        DlioError: It says nothing of a training.
    """
    metric = json.loads(summary).get("metric", {})
    if "train_au_mean_percentage" not in metric:
        raise DlioError(
            "DLIO's summary.json must name `train_au_mean_percentage`, as that of dlio-benchmark 2.0.0 does."
        )
    rates = metric["train_throughput_samples_per_second"]
    later = rates[1:] or rates
    return Training(
        utilization=metric["train_au_mean_percentage"] / 100,
        is_fed=metric["train_au_meet_expectation"] == "success",
        samples_per_s=sum(later) / len(later),
        cpu_s=cpu_s,
        others=others,
    )


def get_step_s(number: int) -> float:
    """Returns the time of a step by its number: 0 is an H100's, and each further one is 8 % shorter."""
    return H100_STEP_S * 2 ** (-number / STEPS_PER_DOUBLING)


class Search:
    """A search for the shortest step at which a reader feeds the accelerators, by halving the range.

    Attributes:
        fed: The largest number of a step that was fed; -1 if none was.
        starved: The smallest number of one that was not.
    """

    def __init__(self, is_fed: Callable[[int], bool]) -> None:
        self._is_fed = is_fed
        self.fed, self.starved = -1, SHORTEST + 1

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to try."""
        return self.starved - self.fed == 1

    def go_on(self) -> None:
        """Tries one step."""
        number = (self.fed + self.starved) // 2
        if self._is_fed(number):
            self.fed = number
        else:
            self.starved = number
