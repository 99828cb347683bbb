"""What a manifest promises about the images of a split."""

from dataclasses import replace

import pytest

from tfpipe.engine.source import StoredImages
from tfpipe.format.manifest import Foreign, ImageSizes, Manifest, SplitInfo
from tfpipe.format.schema import image_schema

SPLIT = SplitInfo("train", (), {"JPEG": 3, "PNG": 1}, (), ImageSizes(4, 8, 6.0, 5, 9, 7.0), seekable_jpegs=3)
MANIFEST = Manifest(
    name="pets",
    splits={"train": SPLIT},
    schema=image_schema(labeled=False, boxes=False, box_labels=False),
    tool_version="0",
)


@pytest.mark.parametrize(("seekable_jpegs", "seekable"), [(0, False), (2, False), (3, True)])
@pytest.mark.parametrize("foreign", [None, Foreign(".", "image/encoded", None, 0, "")], ids=["own", "foreign"])
def test_a_split_is_seekable_if_all_of_its_jpegs_are(seekable_jpegs: int, seekable: bool, foreign: Foreign | None):
    split = replace(SPLIT, seekable_jpegs=seekable_jpegs)
    stored = StoredImages.from_manifest(replace(MANIFEST, splits={"train": split}, foreign=foreign), "train")
    assert stored == StoredImages(frozenset({"JPEG", "PNG"}), None, seekable)


def test_pngs_alone_are_not_seekable() -> None:
    split = replace(SPLIT, formats={"PNG": 4}, seekable_jpegs=0)
    assert not StoredImages.from_manifest(replace(MANIFEST, splits={"train": split}), "train").seekable
