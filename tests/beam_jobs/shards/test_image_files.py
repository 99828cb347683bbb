"""Image files as a source of records."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from beam_jobs.config import ShardConfig
from beam_jobs.make_plan import plan_shards
from beam_jobs.plan.image_ref import PlannedImage
from beam_jobs.shards.image_files import ImageFiles
from beam_jobs.shards.plan_file import make_plan_header
from beam_jobs.shards.record import RejectedImage
from tests.beam_jobs.images import make_image, make_jpeg, write_files
from tfpipe.format.example import decode_example
from tfpipe.format.image_form import ImageForm

OpenSource = Callable[..., ImageFiles]


@pytest.fixture
def open_files(tmp_path: Path) -> OpenSource:
    """Returns the source of two good images and two others, with options of `ShardConfig`."""
    files = {"cat/a.jpg": make_jpeg(1), "dog/b.gif": make_image(2, (30, 10), "GIF"), "dog/c.jpg": b"text"}
    write_files(tmp_path / "in", files)
    (tmp_path / "in" / "dog" / "d.jpg").symlink_to("nowhere")

    def open_source(**options: Any) -> ImageFiles:
        config = ShardConfig(str(tmp_path / "in"), str(tmp_path / "out"), **options)
        return ImageFiles(make_plan_header(config, plan_shards(config)))

    return open_source


def test_a_record_is_made_of_an_image(open_files: OpenSource) -> None:
    data = make_jpeg(1)
    record = open_files().read(PlannedImage("cat/a.jpg", len(data), 0))
    label = record.features["image/class/label"]
    assert (label, record.name, record.sha256) == (0, "cat/a.jpg", hashlib.sha256(data).digest())
    (image,) = record.images
    assert (image.encoded, image.format, image.changed) == (data, "JPEG", ())
    features = decode_example(record.payload)
    assert (features["image/encoded"], features["image/class/text"]) == ([data], [b"cat"])


def test_the_digest_is_that_of_the_file_and_not_of_what_is_stored(open_files: OpenSource) -> None:
    data = make_image(2, (30, 10), "GIF")
    record = open_files().read(PlannedImage("dog/b.gif", len(data), 1))
    (image,) = record.images
    assert (image.format, image.changed) == ("PNG", ("gif_to_png",))
    assert record.sha256 == hashlib.sha256(data).digest()


def test_a_bad_image_comes_with_its_bytes(open_files: OpenSource) -> None:
    with pytest.raises(RejectedImage) as caught:
        open_files().read(PlannedImage("dog/c.jpg", 4, 1))
    rejected = caught.value
    assert (rejected.kind, rejected.reason, rejected.data) == ("bad", "not an image: it begins like text", b"text")


def test_an_unreadable_image_has_no_bytes(open_files: OpenSource) -> None:
    with pytest.raises(RejectedImage) as caught:
        open_files().read(PlannedImage("dog/d.jpg", 0, 1))
    rejected = caught.value
    assert (rejected.kind, rejected.data) == ("unreadable", b"")
    assert rejected.reason == "cannot be read: No such file or directory"


def test_the_manifest_has_the_form_that_was_asked_for(open_files: OpenSource) -> None:
    form = ImageForm(resize_short=8)
    source = open_files(form=form)
    assert (source.image_form, source.changed, source.noticed) == (form.to_json(), {}, {})
