"""What the textbook pipeline refuses, and the way that each sentence names."""

import gzip
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tfpipe
from tests.beam_jobs.datasets import make_dataset
from tests.beam_jobs.images import write_files
from tests.format.tensors.datasets import write_tensors
from tests.mask_files import MASK_NAME, make_masked_images
from tests.refusals import refusal
from tests.several_images import write_several
from tfpipe.engine.config.augment_config import AugmentOptions
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.source import tfrecord_files
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline.build import build_dataset, build_stages

EXACT = "Use order='exact', in which stages of your own get whole batches."
INDEX = "Run `tfpipe index FILES --output INDEX`, and read INDEX: the engine makes its batches."
ORDER = "that is for batches by their steps, and `order` is throughput."


def refuse(data: Any, split: str | None = "train", build: Callable[..., Any] = build_dataset, **options: Any) -> str:
    config = PipelineConfig(**{"batch_size": 2, "image_size": 8, **options})
    return refusal(ConfigError, build, data, split, config)


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"extra_features": ("marks",)}, "The feature 'marks' is a list of any length"),
        ({"extra_features": ("words",), "pad_to": {"words": 2}}, "The feature 'words' is a list of any length"),
        (
            {"extra_features": ("id", "image/object/bbox/xmin")},
            "The feature 'image/object/bbox/xmin' is a list of any length",
        ),
        ({"augment": "device"}, "`augment` is device"),
        ({"augment_options": AugmentOptions(dct_scaling=True)}, "`augment_options.dct_scaling` is True"),
    ],
)
def test_records_and_crops_that_the_engine_makes(few: Manifest, options: dict[str, Any], refused: str) -> None:
    assert refuse(few, order="throughput", **options) == f"{refused}: {ORDER} {EXACT}"
    build_dataset(few, "train", PipelineConfig(batch_size=2, image_size=8, **options))
    own = partial(build_stages, customize=lambda stages: stages)
    assert refuse(few, build=own, **options) == f"{refused}: {ORDER} {EXACT}"


def test_masks_several_images_and_tensors(tmp_path: Path) -> None:
    make_dataset(write_files(tmp_path / "in", make_masked_images(6)), tmp_path / "masks", num_shards=1)
    masks, several = str(tmp_path / "masks"), write_several(tmp_path / "several")
    assert refuse(masks, order="throughput", extra_features=(MASK_NAME,)) == (
        f"The feature 'image/mask' is a mask: {ORDER} {EXACT}"
    )
    next(iter(build_dataset(masks, "train", PipelineConfig(batch_size=2, image_size=8, order="throughput"))))
    assert refuse(several, order="throughput", images="first") == (
        f"A record of 'train' of {several.directory} has several images: {ORDER} {EXACT}"
    )
    (tmp_path / "tensors").mkdir()
    write_tensors(tmp_path / "tensors")
    assert refuse(str(tmp_path / "tensors"), order="throughput") == f"The feature 'tokens' is a tensor: {ORDER} {EXACT}"


def test_files_without_an_index(foreign: Path, tmp_path: Path) -> None:
    files = tfrecord_files(str(foreign / "train-*"))
    why = f"that is for batches by their steps, and {files.name} are files without a manifest."
    for options, refused in (
        ({"extra_features": ("marks",)}, "The feature 'marks' is a list of any length"),
        ({"augment": "device"}, "`augment` is device"),
    ):
        assert refuse(files, None, **options) == f"{refused}: {why} {INDEX}"
    for path in foreign.glob("train-*"):
        (tmp_path / path.name).write_bytes(gzip.compress(path.read_bytes()))
    packed = tfrecord_files(str(tmp_path / "train-*"))
    assert refuse(packed, None, augment="device") == (
        f"`augment` is device: that is for batches by their steps, and the files of {packed.name} are GZIP compressed, "
        "and are read from their beginning only. Write the files anew by `tfpipe reshard --opaque FILES OUTPUT`, and "
        "read OUTPUT."
    )


def test_what_it_names_works(foreign: Path, tmp_path: Path) -> None:
    from tfpipe.integrity.foreign.index import IndexConfig, index

    index(IndexConfig(target=str(foreign / "train-*"), output=str(tmp_path / "index")))
    config = PipelineConfig(batch_size=2, image_size=8, augment="device", extra_features=("marks",))
    batch = next(iter(build_dataset(tfpipe.load_manifest(str(tmp_path / "index")), "train", config)))
    assert set(batch) == {"image", "crop", "flip", "label", "marks"}
