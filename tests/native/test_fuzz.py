"""A few seconds of the fuzzers of the C sources: images of every kind, records, and files of records."""

import random
import re
import subprocess
from pathlib import Path

import pytest

from tests.native.conftest import Draw
from tests.native.test_decode import KINDS
from tfpipe.native.jpeg import make_seekable

FUZZ = Path(__file__).parents[1] / "fuzz" / "native"


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
    command = [str(FUZZ / "run.sh"), "images", "5", str(seed), *sorted(path.name for path in tmp_path.iterdir())]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    found = re.fullmatch(rf"(\d+) cases from seed {seed}, (\d+) results with pixels, no finding\n", result.stdout)
    assert found
    assert int(found[2]) > int(found[1]) > 0


@pytest.mark.slow
@pytest.mark.parametrize(("target", "counted"), [("records", "features"), ("reads", "records")])
def test_damaged_records_break_nothing(target: str, counted: str) -> None:
    seed = random.randrange(2**32)
    command = [str(FUZZ / "run.sh"), target, "3", str(seed)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    found = re.fullmatch(rf"(\d+) cases from seed {seed}, (\d+) {counted}, no finding\n", result.stdout)
    assert found
    assert int(found[2]) > int(found[1]) > 0
