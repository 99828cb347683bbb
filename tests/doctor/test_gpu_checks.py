"""The check of images that a GPU is to decode."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest
from PIL import Image

from tests.integrity.made import payload, write_dataset
from tfpipe.dataset.load import load_manifest
from tfpipe.doctor import gpu_checks
from tfpipe.doctor.gpu_checks import UNREADABLE, ImageKinds, check_gpu_decode
from tfpipe.doctor.result import Check, TargetConfig
from tfpipe.doctor.run import run_checks
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.format.manifest import Manifest

ALL_BASELINE = "`tfpipe reshard --encoding jpeg --reencode-progressive` makes baseline JPEGs of all."


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (
            ImageKinds({}, 12, 12),
            Check("gpu decode", "ok", "A GPU decodes all of 12 images: baseline JPEG."),
        ),
        (
            ImageKinds({}, 3000, 3000, promised=True),
            Check("gpu decode", "ok", "A GPU decodes all of 3,000 images: baseline JPEG, as the manifest says."),
        ),
        (
            ImageKinds({"progressive JPEG": 20}, 2000, 1_281_167),
            Check(
                "gpu decode",
                "warning",
                "The CPU decodes 20 of 2,000 of 1,281,167 images that were looked at: 20 progressive JPEG.",
                "`tfpipe reshard --seekable` makes sequential JPEGs of them without loss, with the native library.",
            ),
        ),
        (
            ImageKinds({"PNG": 3, "CMYK JPEG": 1}, 12, 12),
            Check("gpu decode", "warning", "The CPU decodes 4 of 12 images: 1 CMYK JPEG, 3 PNG.", ALL_BASELINE),
        ),
        (
            ImageKinds({UNREADABLE: 1}, 1, 1),
            Check(
                "gpu decode",
                "warning",
                "The CPU decodes 1 of 1 image: 1 image with an unreadable header.",
                "Run `tfpipe verify` to find the damaged records.",
            ),
        ),
    ],
)
def test_the_kinds_are_named(kinds: ImageKinds, expected: Check) -> None:
    assert check_gpu_decode(kinds) == expected


def write_image(mode: str = "RGB", kind: str = "JPEG", **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (5, 4)).save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """Two baseline JPEGs and one of each kind that is refused."""
    refused = [write_image(progressive=True), write_image("CMYK"), write_image(kind="PNG"), b"no image"]
    files = [write_image(), write_image("L"), *refused]
    payloads = [payload(number, encoded=data) for number, data in enumerate(files)]
    loaded = load_manifest(str(write_dataset(tmp_path / "mixed", {"train": payloads})))
    info = dataclasses.replace(loaded.splits["train"], formats={"JPEG": 5, "PNG": 1})
    return dataclasses.replace(loaded, splits={"train": info})


def test_headers_are_read(manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = gpu_checks.count_image_kinds(manifest, manifest.splits["train"])
    assert kinds == ImageKinds({"progressive JPEG": 1, "CMYK JPEG": 1, "PNG": 1, UNREADABLE: 1}, 6, 6)
    monkeypatch.setattr(gpu_checks, "_HEADERS", 2)  # the first and the last
    assert gpu_checks.count_image_kinds(manifest, manifest.splits["train"]) == ImageKinds({UNREADABLE: 1}, 2, 6)


def test_what_the_manifest_says_is_not_read(manifest: Manifest) -> None:
    info = manifest.splits["train"]
    seekable = dataclasses.replace(info, seekable_jpegs=5)
    expected = ImageKinds({"PNG": 1}, 6, 6, promised=True)
    assert gpu_checks.count_image_kinds(manifest, seekable) == expected
    reencoded = dataclasses.replace(manifest, image={**manifest.image, "reencode_progressive": True})
    assert gpu_checks.count_image_kinds(reencoded, info) == expected


def test_the_check_runs_when_it_is_asked_for(manifest: Manifest) -> None:
    config = PipelineConfig(batch_size=2, image_size=8)
    names = ["gpu decode"]
    assert list(run_checks(manifest, "train", config, names=names)) == []
    (check,) = run_checks(manifest, "train", config, TargetConfig(gpu_decode=True), names=names)
    assert check.found == (
        "The CPU decodes 4 of 6 images: 1 CMYK JPEG, 1 PNG, 1 image with an unreadable header, 1 progressive JPEG."
    )
    remote = dataclasses.replace(manifest, directory="gs://bucket/mixed")
    (check,) = run_checks(remote, "train", config, TargetConfig(gpu_decode=True), names=names)
    assert (check.status, check.found) == (
        "skipped",
        "Headers are read from files on a local disk that are not compressed.",
    )
