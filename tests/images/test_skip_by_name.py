"""The names of files that plainly are not images."""

import pytest

from tfpipe.images.skip_by_name import get_skip_reason


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("cat/1.jpg", ""),
        ("cat/no_ending", ""),
        ("cat/odd.ending", ""),
        ("cat/.1.jpg", "hidden"),
        (".git/cat/1.jpg", "hidden"),
        ("cat/Thumbs.db", "no image by name"),
        ("LICENSE", "no image by name"),
        ("__MACOSX/cat/1.jpg", "no image by name"),
        ("cat/@eaDir/1.jpg/THUMB.jpg", "no image by name"),
        ("#recycle/1.jpg", "no image by name"),
        ("cat/IMG_1.AAE", "*.aae"),
        ("cat/NOTES.TXT", "*.txt"),
        ("train.tfrecord", "*.tfrecord"),
    ],
)
def test_a_name_says_why_a_file_is_skipped(path: str, reason: str) -> None:
    assert get_skip_reason(path) == reason
