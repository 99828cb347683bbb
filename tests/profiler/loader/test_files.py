"""What tfpipe finds out about the image files of a loader."""

from pathlib import Path

import pytest
from PIL import Image

from tfpipe.profiler.loader.measure import measure_draft_s


@pytest.mark.parametrize(
    ("size", "is_known"), [((25, 200), True), ((100, 800), False), ((25, 500), False), (None, False)]
)
def test_pillow_is_tried_where_a_smaller_size_is_enough(size: tuple[int, int] | None, is_known: bool, tmp_path: Path):
    """The size is a height and a width."""
    Image.new("RGB", (800, 100), "red").save(tmp_path / "a.jpg")
    (tmp_path / "b.jpg").write_bytes(b"no image")
    seconds = measure_draft_s([str(tmp_path / name) for name in ("b.jpg", "a.jpg", "gone.jpg")], size)
    assert (seconds is not None and 0 < seconds < 1) == is_known
