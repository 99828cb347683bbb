"""The wheel for other machines: it has all that it needs inside, and gives the pixels that TensorFlow gives."""

import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.native.conftest import Draw

ROOT = Path(__file__).parents[3]
HEIGHT, WIDTH = 60, 84

# It has no NumPy. It writes the pixels, then the libjpegs that this process has opened.
DECODE = f"""
import sys
from pathlib import Path
from tfpipe_kernels import decode, make_seekable
jpeg = Path(sys.argv[1]).read_bytes()
image = memoryview(bytearray({3 * HEIGHT * WIDTH})).cast("B", ({HEIGHT}, {WIDTH}, 3))
decode(make_seekable(jpeg), (0, 0, {HEIGHT}, {WIDTH}), image)
sys.stdout.buffer.write(image)
paths = {{line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libjpeg" in line}}
sys.stdout.buffer.write(" ".join(paths).encode())
"""
DECODE_BY_TENSORFLOW = f"""
import sys
from pathlib import Path
import tensorflow as tf
from tfpipe_kernels import OPERATION_PATH
options = dict(dtype="uint8", height={HEIGHT}, width={WIDTH}, max_ratio=1, max_pixels=10**6, threads=1, seeks=True)
values = dict(offset=[0.0] * 3, factor=[1.0] * 3)
jpeg, box = Path(sys.argv[1]).read_bytes(), (0, 0, {HEIGHT}, {WIDTH})
image = tf.load_op_library(OPERATION_PATH).tfpipe_decode(jpeg, box, False, **options, **values)
sys.stdout.buffer.write(image.numpy().tobytes())
"""
STAGE = """
import sys
from beam_jobs.runners.wheel import build_kernels_wheel
print(build_kernels_wheel(sys.argv[1]))
"""


def run(*command: object, **env: object) -> bytes:
    environment = {name: str(value) for name, value in env.items()}
    result = subprocess.run([str(part) for part in command], env=environment, capture_output=True, check=False)
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout


@pytest.mark.slow
def test_the_wheel_decodes_where_neither_compiler_nor_libjpeg_is(tmp_path: Path, draw_jpeg: Draw) -> None:
    wheels, jpeg, empty = tmp_path / "wheels", tmp_path / "image.jpg", tmp_path / "empty"
    printed = run(ROOT / "kernels" / "make_wheel.sh", wheels, **{**os.environ, "PYTHON": sys.executable})
    (wheel,) = wheels.iterdir()
    assert printed.decode() == f"{wheel}\n"
    assert re.fullmatch(r"tfpipe_kernels-[0-9.]+-py3-none-manylinux\w+(\.manylinux\w+)*\.whl", wheel.name)
    assert wheel.stat().st_size < 1_000_000
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
        (metadata,) = (content.read(name).decode() for name in names if name.endswith("/METADATA"))
        (license_text,) = (content.read(name) for name in names if name.endswith("/licenses/LICENSE"))
        operation = content.read("tfpipe_kernels/tfpipe_operation.so")
    assert [name for name in names if name.startswith("tfpipe_kernels.libs/libjpeg-")]
    assert not [name for name in names if "tensorflow" in name]
    assert "This software is based in part on the work of the Independent JPEG Group." in " ".join(metadata.split())
    assert license_text == (ROOT / "LICENSE").read_bytes()
    # Releases before 2.21 do not offer their functions to a library that does not name theirs.
    assert b"libtensorflow_framework.so.2\0" in operation
    assert b"libtensorflow_cc.so.2\0" in operation

    venv.create(empty, with_pip=True)
    nothing = tmp_path / "no programs"
    nothing.mkdir()
    python = empty / "bin" / "python"
    run(python, "-m", "pip", "install", "--no-index", "--no-deps", wheel, PATH=nothing)
    jpeg.write_bytes(draw_jpeg(HEIGHT, WIDTH, subsampling=2))
    expected = tf.io.decode_jpeg(jpeg.read_bytes()).numpy()
    output = run(python, "-I", "-c", DECODE, jpeg, PATH=nothing)
    np.testing.assert_array_equal(np.frombuffer(output[: expected.size], np.uint8), expected.reshape(-1))
    site = Path(sysconfig.get_path("purelib", vars={"base": str(empty)}))
    assert [path.parent for path in map(Path, output[expected.size :].decode().split())] == [
        site / "tfpipe_kernels.libs"
    ]

    output = run(sys.executable, "-c", DECODE_BY_TENSORFLOW, jpeg, **{**os.environ, "PYTHONPATH": site})
    assert output == expected.tobytes()

    # Dataflow's workers get what is installed at the launcher, as a wheel.
    (tmp_path / "staged").mkdir()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(site)])}
    staged = run(sys.executable, "-c", STAGE, tmp_path / "staged", **environment).decode().strip()
    with zipfile.ZipFile(staged) as content:
        assert {name for name in names if name.endswith(".so") or ".libs/lib" in name} <= set(content.namelist())
