"""`ImageForm` refuses what cannot be meant."""

from dataclasses import asdict

import pytest

from tests.refusals import refusal
from tfpipe.errors import ConfigError, FormatError
from tfpipe.format.image_form import ImageForm

RAW_AND_SEEKABLE = "`encoding` raw and `seekable` exclude each other: only a JPEG has restart markers."


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoding": "webp"}, "`encoding` must be keep, jpeg or raw, got 'webp'."),
        ({"resize_short": 0}, "`resize_short` must be from 1 to 65500, got 0."),
        ({"resize_short": 1.5}, "`resize_short` must be a whole number, got 1.5."),
        ({"square": -1}, "`square` must be from 1 to 65500, got -1."),
        ({"quality": 101}, "`quality` must be from 1 to 100, got 101."),
        ({"max_pixels": 0}, "`max_pixels` must be at least 1, got 0."),
        ({"square": 8, "resize_short": 8}, "`square` and `resize_short` exclude each other. Give one of them."),
        ({"encoding": "raw"}, "`encoding` raw needs `square`: all raw images have the same size."),
        ({"encoding": "raw", "square": 8, "seekable": True}, RAW_AND_SEEKABLE),
        ({"seekable": 1}, "`seekable` must be true or false, got 1."),
    ],
)
def test_wrong_options(options: dict[str, object], message: str) -> None:
    assert refusal(ConfigError, ImageForm, **options) == message


def test_seekable_is_written_only_if_it_is_true() -> None:
    assert ImageForm().to_json() == (
        {"encoding": "keep", "resize_short": None, "square": None, "quality": 95}
        | {"reencode_progressive": False, "max_pixels": 64_000_000}
    )
    form = ImageForm(seekable=True)
    assert form.to_json() == ImageForm().to_json() | {"seekable": True}
    assert ImageForm.recorded(form.to_json()) == form
    assert ImageForm.recorded(ImageForm().to_json()) == ImageForm()


def test_what_a_manifest_says() -> None:
    form = ImageForm("raw", square=8)
    assert ImageForm.recorded(asdict(form) | {"later": 1}) == form
    assert ImageForm.recorded({}) == ImageForm()
    assert refusal(FormatError, ImageForm.recorded, {"encoding": "raw"}) == (
        "The manifest's image form cannot be used: `encoding` raw needs `square`: all raw images have the same size."
    )
