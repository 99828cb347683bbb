"""The engine over a few records: the batches that it makes of them, and the records that it reads."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfpipe.dataset.load import load_manifest
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.source import Source, get_source, tfrecord_files
from tfpipe.errors import FormatError
from tfpipe.format.example import decode_example, encode_example
from tfpipe.integrity.foreign.index import IndexConfig, index
from tfpipe.pipeline.textbook_choice import is_by_engine
from tfpipe.profiler.measure.samples import make_decoder, make_reader, sample_records, write_sample

CONFIG = PipelineConfig(batch_size=4, image_size=16)


@pytest.fixture(scope="module")
def source(small_dataset: Path) -> Source:
    return get_source(load_manifest(str(small_dataset)), "train")


def get_labels(payloads: list[bytes], base: int = 0) -> list[int]:
    return [int(decode_example(payload)["image/class/label"][0]) - base for payload in payloads]  # type: ignore[index]


@pytest.mark.parametrize("cache", ["none", "decoded"])
def test_each_batch_has_all_records_and_other_crops(source: Source, cache: Any) -> None:
    payloads = sample_records(source)[:12]
    decode = make_decoder(source, replace(CONFIG, cache=cache), payloads)
    batches = [decode(), decode()]
    assert all(batch["label"].tolist() == get_labels(payloads) for batch in batches)
    assert [batch["image"].shape for batch in batches] == [(12, 16, 16, 3)] * 2
    assert (batches[0]["image"] != batches[1]["image"]).any(axis=(1, 2, 3)).sum() > 6


def test_damaged_images_are_an_error(source: Source) -> None:
    features: dict[str, Any] = dict(decode_example(sample_records(source)[0]))
    decode = make_decoder(source, CONFIG, [encode_example({**features, "image/encoded": [b"no image"]})] * 2)
    with pytest.raises(FormatError, match=r"^Record 0 of 'train': its image cannot be used, "):
        decode()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", ["own", "indexed", "files"])
def test_what_is_read_is_what_was_written(source: Source, foreign: Any, tmp_path: Path, kind: str, training: bool):
    """Each of the 8 steps of an epoch has as many records as the sample; an epoch has each 8 times."""
    if kind != "own":
        foreign.imagenet(tmp_path / "files", base=1)
        source = tfrecord_files(f"{tmp_path}/files/train-*")
    if kind == "indexed":
        index(IndexConfig(str(tmp_path / "files")))
        source = get_source(load_manifest(str(tmp_path / "files")), "train")
    payloads = sample_records(source)[:6]
    sample = write_sample(str(tmp_path / "sample"), source, payloads)
    assert is_by_engine(sample, CONFIG)
    read = make_reader(sample, replace(CONFIG, training=training))
    steps = [read() for _ in range(16)]
    for epoch in (steps[:8], steps[8:]):
        assert sorted(np.concatenate([step.numbers for step in epoch]).tolist()) == list(range(48))
    labels = [int(label) for step in steps for label in step.columns[str(source.label_key)].values]
    assert sorted(labels) == sorted(16 * get_labels(payloads))
