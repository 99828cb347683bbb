"""`tfpipe inspect --page`: the records of a dataset as a page, as it is written and as a browser shows it."""

import base64
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from beam_jobs.config import TableColumns
from tests.beam_jobs.datasets import make_dataset
from tests.beam_jobs.images import save_image, write_files
from tests.conftest import Tfpipe
from tests.mask_files import MASK_NAME, make_masked_images
from tfpipe.dataset.load import load_manifest
from tfpipe.images.masks import read_mask
from tfpipe.readers.data_source import data_source

HOSTILE = "</script><img src=x onerror=alert(1)>"
CLASS_1_TO_5 = [(230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178)]


def make_image(width: int, height: int) -> bytes:
    return save_image(Image.new("RGB", (width, height), (200, 30, 60)))


@pytest.fixture
def boxes(tmp_path: Path) -> Path:
    """Three records of two classes: a wide one, a high one with a box, and one whose caption wants to be a script."""
    rows = [
        {"image": "a.png", "label": "cat", "caption": "a wide one"},
        {"image": "b.png", "label": "dog", "caption": "a high one", "xmin": 0.25, "ymin": 0.5, "xmax": 0.75, "ymax": 1},
        {"image": "c.png", "label": "cat", "caption": HOSTILE},
    ]
    table = "".join(json.dumps(row) + "\n" for row in rows)
    images = {"a.png": make_image(40, 20), "b.png": make_image(20, 40), "c.png": make_image(30, 30)}
    write_files(tmp_path / "in", {**images, "t.jsonl": table.encode()})
    columns = TableColumns(caption_column="caption")
    make_dataset(tmp_path / "in" / "t.jsonl", tmp_path / "boxes", shuffle=False, columns=columns)
    return tmp_path / "boxes"


def write_page(tfpipe: Tfpipe, dataset: Path, count: int, *more: object) -> Path:
    path = dataset.parent / "page.html"
    assert tfpipe("inspect", dataset, "--page", count, path, *more).ok
    return path


def read_data(page: Path) -> Any:
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text("utf-8"))
    return json.loads(data)


def decode(address: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2])))


def test_the_page_has_each_record(tfpipe: Tfpipe, boxes: Path) -> None:
    page = read_data(write_page(tfpipe, boxes, 10))
    thumbnails = [decode(item.pop("image")) for item in page["items"]]
    assert [image.format for image in thumbnails] == ["JPEG"] * 3
    assert [image.size for image in thumbnails] == [(200, 100), (100, 200), (210, 210)]
    sizes = [len(record.encoded) for record in data_source(load_manifest(str(boxes)), "train")]
    assert page == {
        "title": str(boxes),
        "splits": {"train": 3},
        "records": 3,
        "items": [
            {"position": "train:0", "name": "a.png", "label": "cat", "caption": "a wide one", "bytes": sizes[0]}
            | {"split": "train", "width": 40, "height": 20},
            {"position": "train:1", "name": "b.png", "label": "dog", "caption": "a high one", "bytes": sizes[1]}
            | {"split": "train", "width": 20, "height": 40, "boxes": [[0.25, 0.5, 0.75, 1]]},
            {"position": "train:2", "name": "c.png", "label": "cat", "caption": HOSTILE, "bytes": sizes[2]}
            | {"split": "train", "width": 30, "height": 30},
        ],
    }


def test_masks_lie_over_their_images(tfpipe: Tfpipe, tmp_path: Path) -> None:
    make_dataset(write_files(tmp_path / "in", make_masked_images(1)), tmp_path / "out")
    (item,) = read_data(write_page(tfpipe, tmp_path / "out", 1))["items"]
    mask, image = decode(item["mask"]), decode(item["image"])
    assert mask.size == image.size
    (stored,) = data_source(load_manifest(str(tmp_path / "out")), "train")[0].features[MASK_NAME]
    classes = read_mask(stored, 10_000)
    step = mask.width // classes.shape[1]
    shown = np.asarray(mask.convert("RGBA"))[step // 2 :: step, step // 2 :: step]
    colors = np.array([(0, 0, 0, 0), *((*color, 255) for color in CLASS_1_TO_5)], np.uint8)
    assert shown.tolist() == colors[classes].tolist()


def test_a_split_and_json(tfpipe: Tfpipe, small_dataset: Path, tmp_path: Path) -> None:
    target = tmp_path / "p.html"
    document = json.loads(tfpipe("inspect", small_dataset, "--page", 4, target, "--split", "validation", "--json").out)
    assert document["page"] == {"file": str(target), "records": 3}
    assert [item["position"] for item in read_data(target)["items"]] == ["validation:0", "validation:1", "validation:2"]


def test_a_browser_finds_and_orders_records(tfpipe: Tfpipe, boxes: Path, browser: Any) -> None:
    page = write_page(tfpipe, boxes, 10)
    browser.get_log("browser")
    browser.get(page.as_uri())

    def list_positions() -> list[str]:
        script = "return [...document.querySelectorAll('figure')].map(e => e.textContent.match(/train:\\d/)[0])"
        return list(browser.execute_script(script))

    def choose(name: str, value: str) -> None:
        field = f"document.forms[0][{name!r}]"
        event = "new Event('input', {bubbles: true})"
        browser.execute_script(f"{field}.value = {value!r}; {field}.dispatchEvent({event})")

    assert browser.title == str(boxes)
    assert list_positions() == ["train:0", "train:2", "train:1"]
    assert browser.execute_script("return document.querySelectorAll('figure i').length") == 1
    choose("order", "small")
    assert list_positions() == ["train:0", "train:1", "train:2"]
    choose("text", "HIGH one")
    assert list_positions() == ["train:1"]
    choose("text", "")
    choose("label", "=cat")
    assert list_positions() == ["train:0", "train:2"]
    assert browser.find_element("css selector", "output").text == "2 of 3"
    assert HOSTILE in browser.execute_script("return document.querySelector('main').textContent")
    assert browser.get_log("browser") == []
