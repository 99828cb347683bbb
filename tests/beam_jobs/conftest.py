"""Small real inputs drawn on the spot, and three ways to run the job: in this process, by Beam, as a command."""

from __future__ import annotations

import io
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest
from PIL import Image

from beam_jobs.config import ShardConfig
from beam_jobs.list_and_plan import plan_shards
from beam_jobs.shards.finish_dataset import finish_dataset
from beam_jobs.shards.output_dir import open_work
from beam_jobs.shards.write_shard import write_shard
from tfpipe.format.example import decode_example
from tfpipe.format.manifest import Manifest
from tfpipe.format.tfrecord import scan_records

ROOT = Path(__file__).resolve().parents[2]

Files = Mapping[str, bytes]


class Kit:
    """What the tests of this folder share."""

    root = ROOT

    def jpeg(self, seed: int, size: tuple[int, int] = (24, 16), **options: Any) -> bytes:
        return self._image(seed, size, "JPEG", **options)

    def png(self, seed: int, size: tuple[int, int] = (24, 16)) -> bytes:
        return self._image(seed, size, "PNG")

    def _image(self, seed: int, size: tuple[int, int], kind: str, **options: Any) -> bytes:
        pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, kind, **options)
        return buffer.getvalue()

    def photos(self, classes: Mapping[str, int], seed: int = 0) -> dict[str, bytes]:
        """`cat/000.jpg` and so on: so many different images of each class."""
        names = [f"{name}/{i:03d}.jpg" for name, count in classes.items() for i in range(count)]
        return {name: self.jpeg(1000 * seed + i) for i, name in enumerate(names)}

    def write(self, folder: Path, files: Files) -> Path:
        for name, data in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return folder

    def tar(self, path: Path, files: Files, mode: str = "w") -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.tar_bytes(files, mode))
        return path

    def tar_bytes(self, files: Files, mode: str = "w", extra: Sequence[tarfile.TarInfo] = ()) -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode=mode) as tar:  # type: ignore[call-overload]
            for name, data in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
            for info in extra:
                tar.addfile(info)
        return buffer.getvalue()

    def zip(self, path: Path, files: Files, method: int = zipfile.ZIP_DEFLATED) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(path, "w", method) as archive:
            for name, data in files.items():
                archive.writestr(name, data)
        return path

    def make(self, source: Path | str, output: Path | str, **options: Any) -> Manifest:
        """The whole job in this process, step by step, without Beam."""
        config = ShardConfig(str(source), str(output), **options)
        plan = plan_shards(config)
        with open_work(config, plan) as work:
            header = work.header()
            rows = [write_shard(work, header, k) for k in range(len(header.shards))]
            return finish_dataset(work, header, rows, config.max_bad_images(plan.num_images))

    def join(self, datasets: Sequence[Path | str], output: Path | str, **options: Any) -> Manifest:
        """`make` out of finished datasets."""
        return self.make(datasets[0], output, datasets=tuple(map(str, datasets)), **options)

    def tree(self, folder: Path) -> dict[str, bytes]:
        """Every file below a folder."""
        return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}

    def payloads(self, output: Path, split: str = "train") -> list[bytes]:
        """The bytes of the records of a split, in order."""
        found = []
        for path in sorted(output.glob(f"{split}-*.tfrecord")):
            with path.open("rb") as file:
                found += [payload for _, payload in scan_records(file)]
        return found

    def records(self, output: Path, split: str = "train") -> list[dict[str, Any]]:
        """The decoded records of a split, in order."""
        return [decode_example(payload) for payload in self.payloads(output, split)]

    def images(self, output: Path, split: str = "train") -> dict[str, bytes]:
        """File name -> stored bytes, in the order of the records."""
        records = self.records(output, split)
        return {os.fsdecode(r["image/filename"][0]): bytes(r["image/encoded"][0]) for r in records}

    def start(self, *args: object, command: str = "shard", **options: Any) -> subprocess.Popen[str]:
        """A real `python -m tfpipe shard`, in a session of its own so that all of its processes can be found."""
        return subprocess.Popen(
            [sys.executable, "-m", "tfpipe", command, *map(str, args)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **options,
        )

    def processes(self, session: int) -> list[int]:
        """Process ids of a session, those that ended but were not waited for left out."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if int(fields[3]) == session and fields[0] not in "ZX":
                    found.append(int(entry.name))
        return found

    def command(self, pid: int) -> str:
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            return ""

    def wait_for(self, condition: Any, seconds: float = 20.0) -> Any:
        """The first true value of `condition()`."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            value = condition()
            if value:
                return value
            time.sleep(0.01)
        raise AssertionError(f"nothing within {seconds} s")

    def finish(self, process: subprocess.Popen[str], seconds: float = 60) -> tuple[int, str, str]:
        """Exit code, standard output and standard error of what `start` started."""
        out, err = process.communicate(timeout=seconds)
        return process.returncode, out, err

    def no_orphans(self, process: subprocess.Popen[str]) -> None:
        """All processes of a killed run end by themselves: they would write beside the next one."""
        try:
            self.wait_for(lambda: not self.processes(process.pid), 5)
        except AssertionError:
            left = {pid: self.command(pid) for pid in self.processes(process.pid)}
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"still there: {left}") from None

    def kill_until_done(self, args: Sequence[object], output: Path, kills: int, longest: float, command: str) -> None:
        """Kills a real run at random moments, then lets it end."""
        seed = int.from_bytes(os.urandom(4), "little")
        print(f"seed {seed}")
        rng = random.Random(seed)
        story = []
        for _ in range(kills):
            process = self.start(*args, command=command)
            moment = rng.uniform(0.3, longest)
            try:
                process.wait(moment)
                story.append(f"done before {moment:.3f}")
            except subprocess.TimeoutExpired:
                process.kill()
                story.append(f"{moment:.3f}: {len([*output.glob('*.tfrecord')])} shards")
            process.wait()
            self.no_orphans(process)
            process.communicate()
        print(story)
        code, _, err = self.finish(self.start(*args, command=command))
        assert code == 0, err


@pytest.fixture(scope="session")
def kit() -> Kit:
    return Kit()


@pytest.fixture(scope="session")
def parse() -> Any:
    """TensorFlow's own reading of the shards of a split, by a parse spec."""
    import tensorflow as tf

    def read(output: Path, spec: Mapping[str, Any], split: str = "train") -> list[dict[str, Any]]:
        files = sorted(map(str, output.glob(f"{split}-*.tfrecord")))
        parsed = [tf.io.parse_single_example(one, dict(spec)) for one in tf.data.TFRecordDataset(files)]
        return [{name: value.numpy() for name, value in record.items()} for record in parsed]

    return read
