"""What is said of a record's content."""

import numpy as np
import pytest

from tests.integrity.made import LABELS, SCHEMA, payload, png
from tests.mask_files import make_mask
from tfpipe.format.example import decode_example, encode_example
from tfpipe.format.image_form import ImageForm
from tfpipe.format.schema import MASK, FeatureSpec, Schema
from tfpipe.integrity.check_record import ContentCheck
from tfpipe.integrity.damage_kinds import Damage

CHECK = ContentCheck(SCHEMA, label_names=LABELS)
LISTS = Schema((FeatureSpec("a", "int64", ()), FeatureSpec("b", "float", (2,)), FeatureSpec("c", "bytes", None)))


def test_a_good_record() -> None:
    one = CHECK.check(payload(3))
    assert (one.faults, one.key) == ((), "dog/3.png")
    assert one.identity == CHECK.check(payload(3, label=1)).identity != CHECK.check(payload(4)).identity


@pytest.mark.parametrize(
    ("values", "faults"),
    [
        ({"a": 1, "b": [1.0, 2.0], "c": [b"x"]}, []),
        ({"a": 1, "b": [1.0, 2.0], "c": []}, []),
        ({"a": 1, "b": [1.0], "c": []}, ["feature 'b' must be 2 float, got 1"]),
        ({"a": b"1", "b": [1.0, 2.0], "c": []}, ["feature 'a' must be int64, got bytes"]),
        ({"a": None, "b": [1.0, 2.0], "c": []}, ["feature 'a' must be int64, got nothing"]),
        ({"a": 1, "b": [1.0, 2.0], "c": [3]}, ["feature 'c' must be a list of bytes, got int64"]),
        ({"a": 1, "c": []}, ["feature 'b' is missing"]),
        ({"a": 1, "b": [1.0, 2.0], "c": [], "d": 1}, ["feature 'd' is not in the schema"]),
    ],
)
def test_the_schema(values: dict[str, object], faults: list[str]) -> None:
    found = ContentCheck(LISTS).check(encode_example(values)).faults  # type: ignore[arg-type]
    assert [text for _, text in found] == faults
    assert {kind for kind, _ in found} <= {"schema"}


def test_raw_pixels_and_what_shall_not_be_decoded() -> None:
    raw = ContentCheck(SCHEMA, ImageForm("raw", square=4), LABELS)
    good = {"encoded": bytes(48), "format": "RAW", "height": 90, "width": 70}
    assert raw.check(payload(0, **good)).faults == ()
    (fault,) = raw.check(payload(0, **{**good, "encoded": bytes(47)})).faults
    assert fault == ("image", "47 bytes of raw pixels, not 4 x 4 x 3")
    cut = payload(0, encoded=png(0)[:-9])
    assert CHECK.check(cut).faults == (("image", "truncated PNG"),)
    assert ContentCheck(SCHEMA, label_names=LABELS, decode=False).check(cut).faults == ()


def test_strangers() -> None:
    anything = ContentCheck()
    assert anything.check(encode_example({"x": np.arange(3), "y": b"text"})).faults == ()
    (fault,) = anything.check(encode_example({"x": [b"\xff\xd8\xff", b"z"]})).faults
    assert fault == ("image", "feature 'x': truncated JPEG: it ends before the image data")
    ((kind, text),) = anything.check(b"\xff\xff").faults
    assert kind == "example"
    assert text.startswith("Not a tf.train.Example: ")


def test_damage_as_json() -> None:
    nothing = dict.fromkeys(("record", "offset", "key"))
    assert Damage("a", "sha256", "why").to_json() == {"file": "a", "kind": "sha256", "detail": "why", **nothing}


def test_masks() -> None:
    check = ContentCheck(Schema((*SCHEMA.features, MASK)), label_names=LABELS)
    record = decode_example(payload(0))
    width, height = int(record["image/width"][0]), int(record["image/height"][0])

    def find_faults(mask: bytes) -> tuple[tuple[str, str], ...]:
        return check.check(encode_example(record | {"image/mask": [mask]})).faults

    assert find_faults(make_mask(0, (width, height))) == ()
    for mask, fault in (
        (make_mask(0, (3, 5)), f" has 3 x 5 pixels, the image {width} x {height}"),
        (png(0), ": a mask must have one channel, and this PNG has red, green and blue"),
        (make_mask(0)[:-9], ": truncated PNG"),
    ):
        assert find_faults(mask) == (("image", f"feature 'image/mask'{fault}"),)
