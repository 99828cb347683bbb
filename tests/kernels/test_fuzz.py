"""A few seconds of the kernels' fuzzer, on files of every kind."""

import random
import re
import subprocess
from pathlib import Path

import pytest
from tfpipe_kernels import make_seekable

from tests.kernels.conftest import Draw
from tests.kernels.test_decode import KINDS

RUN = Path(__file__).parents[2] / "kernels" / "fuzz" / "run.sh"


@pytest.mark.slow
def test_damaged_images_break_nothing(draw_jpeg: Draw, tmp_path: Path) -> None:
    for kind, options in KINDS.items():
        for size in ((97, 64), (1, 1)):
            data = draw_jpeg(*size, **options)
            name = f"{kind.replace(':', '')}-{size[0]}"
            (tmp_path / f"{name}.jpg").write_bytes(data)
            if kind != "CMYK":
                (tmp_path / f"{name}-seekable.jpg").write_bytes(make_seekable(data))
    seed = random.randrange(2**32)
    command = [str(RUN), "5", str(seed), *sorted(path.name for path in tmp_path.iterdir())]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    found = re.fullmatch(rf"(\d+) cases from seed {seed}, (\d+) results with pixels, no finding\n", result.stdout)
    assert found
    assert int(found[2]) > int(found[1]) > 0
