"""One dataset of each kind goes all the way: written, checked, damaged, repaired, resharded, read, exported, back."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from click.testing import CliRunner
from numpy.typing import NDArray

import tfpipe
from tests.beam_jobs.datasets import join_datasets, make_dataset, read_payloads
from tests.beam_jobs.images import make_png, write_files, write_tar
from tests.export.datasets import describe_records
from tests.flipped_bit import copy_with_flipped_bit
from tests.mask_files import MASK_NAME, make_masked_images
from tests.several_images import write_several
from tfpipe import fields
from tfpipe.cli.main import tfpipe as command
from tfpipe.export.run import ExportConfig, Format, export
from tfpipe.integrity.repair import repair
from tfpipe.integrity.verify import VerifyConfig, verify
from tfpipe.readers.jax import JaxBatches
from tfpipe.readers.torch import TorchBatches, data_loader

COUNT, BATCH, STEPS = 24, 4, 8  # an epoch has 6 steps
FEATURES = {"latents": ("id", "latents"), "captions": ("caption", "n"), "masks": (MASK_NAME,)}


def write_dataset(kind: str, folder: Path) -> Path:
    """Writes a dataset of 24 records in 4 shards."""
    output = folder / "dataset"
    if kind == "latents":
        records = ({"id": k, "latents": np.full((2, 3), k / 2, ml_dtypes.bfloat16)} for k in range(COUNT))
        schema = {"id": fields.Values("int64"), "latents": fields.Tensor("bfloat16", (2, 3))}
        tfpipe.write(records, output, schema, num_shards=4, workers=0)
        return output
    if kind == "some":
        write_several(output, COUNT, None, num_shards=4)
        return output
    if kind == "masks":
        make_dataset(write_files(folder / "in", make_masked_images(COUNT)), output, num_shards=4, workers=1)
        return output
    if kind == "views":
        files: dict[str, bytes] = {}
        for k in range(COUNT):
            files |= {f"{k:02}.{place}.png": make_png(3 * k + n) for n, place in enumerate(("back", "front", "side"))}
            files[f"{k:02}.txt"] = f"Größe {k}".encode()
        make_dataset(write_tar(folder / "in.tar", files), output, num_shards=4, workers=1)
        return output
    rows = [{"image": f"{k}.png", "caption": f"Größe {k}", "n": k} for k in range(COUNT)]
    images = {f"{k}.png": make_png(k) for k in range(COUNT)}
    table = "\n".join(map(json.dumps, rows)).encode()
    make_dataset(write_files(folder / "in", {**images, "t.jsonl": table}) / "t.jsonl", output, num_shards=4, workers=1)
    return output


@pytest.fixture(
    scope="module", params=["latents", "captions", "masks", pytest.param("views", marks=pytest.mark.slow), "some"]
)
def kind(request) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def dataset(kind: str, tmp_path_factory) -> Path:
    return write_dataset(kind, tmp_path_factory.mktemp(kind))


def check(dataset: Path) -> tuple[int, int]:
    report = verify(str(dataset), VerifyConfig(workers=0))
    return report.records, len(report.damaged)


def read_sorted(dataset: Path) -> list[bytes]:
    return sorted(read_payloads(dataset))


def test_it_is_inspected_and_whole(dataset: Path) -> None:
    assert check(dataset) == (COUNT, 0)
    result = CliRunner().invoke(command, ["inspect", str(dataset), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["splits"]["train"]["records"] == COUNT


def test_a_flipped_bit_is_repaired_and_other_shards_hold_the_same_records(dataset: Path, tmp_path: Path) -> None:
    copy = copy_with_flipped_bit(dataset, tmp_path / "copy", next(dataset.glob("train-00001-*.tfrecord")).name)
    records, num_damages = check(copy)
    assert records < COUNT
    assert num_damages > 0
    assert repair(str(copy), str(tmp_path / "repaired"), workers=0).records == records
    assert check(tmp_path / "repaired") == (records, 0)
    assert set(read_payloads(tmp_path / "repaired")) < set(read_payloads(dataset))
    join_datasets([dataset], tmp_path / "again", num_shards=3, workers=1)
    assert len(list((tmp_path / "again").glob("*.tfrecord"))) == 3
    assert read_sorted(tmp_path / "again") == read_sorted(dataset)


def make_config(kind: str, *left_out: str) -> tfpipe.PipelineConfig:
    names = tuple(name for name in FEATURES.get(kind, ("caption",)) if name not in left_out)
    options: dict[str, Any] = {} if kind == "latents" else {"image_size": 12}
    if kind == "some":
        options["images"] = 2
    return tfpipe.PipelineConfig(batch_size=BATCH, seed=5, extra_features=names, **options)


def to_array(value: Any) -> NDArray[Any]:
    """Returns a value of any library in NumPy, with images channels last and without bfloat16."""
    import torch

    if isinstance(value, torch.Tensor):
        value = value.float() if value.dtype == torch.bfloat16 else value
        value = value.movedim(-3, -1) if value.ndim >= 4 else value
    value = np.asarray(value)
    return value.astype(np.float32) if value.dtype.name == "bfloat16" else value


Batch = dict[str, NDArray[Any]]


def read(
    dataset: Path, config: tfpipe.PipelineConfig, start_step: int = 0, context: tf.distribute.InputContext | None = None
) -> list[Batch]:
    manifest = tfpipe.load_manifest(str(dataset))
    batches = tfpipe.build_dataset(manifest, "train", config, context, start_step).take(STEPS - start_step)
    return [{name: to_array(value) for name, value in batch.items()} for batch in batches]


def check_equal(batches: list[Batch], expected: list[Batch]) -> None:
    """Checks that batches hold equal values; images may differ by one level, since each library resizes by itself."""
    assert len(batches) == len(expected) > 0
    for batch, other in zip(batches, expected, strict=True):
        for name in other:
            if name == "image":
                assert np.abs(batch[name].astype(int) - other[name].astype(int)).max() <= 1
            else:
                assert batch[name].tolist() == other[name].tolist(), name


@pytest.mark.slow
def test_any_number_of_hosts_reads_one_order_from_any_step_on(rng: random.Random, dataset: Path, kind: str) -> None:
    start = rng.randrange(1, STEPS)
    config = make_config(kind)
    whole = read(dataset, config)
    for num_hosts in (1, 2, 4):
        contexts = [tf.distribute.InputContext(num_hosts, host, num_hosts) for host in range(num_hosts)]
        parts = [read(dataset, config, start, context) for context in contexts]
        joined = [
            {name: np.concatenate([part[name] for part in step]) for name in step[0]}
            for step in zip(*parts, strict=True)
        ]
        for batch, expected in zip(joined, whole[start:], strict=True):
            for name, value in expected.items():
                np.testing.assert_array_equal(batch[name], value, err_msg=f"{name}, {num_hosts} hosts")


def test_tensorflow_pytorch_and_jax_read_equal_values(dataset: Path, kind: str) -> None:
    manifest, config = tfpipe.load_manifest(str(dataset)), make_config(kind)
    expected = read(dataset, config)

    def read_epochs(batches: Any) -> Iterator[Batch]:
        for _ in range(2):
            for batch in batches:
                yield {name: to_array(value) for name, value in batch.items()}

    in_torch = list(read_epochs(data_loader(TorchBatches(manifest, "train", config), num_workers=0)))[:STEPS]
    for batch in in_torch:  # PyTorch gives texts as a list
        batch.update({name: value.astype(object) for name, value in batch.items() if value.dtype.kind == "S"})
    check_equal(in_torch, expected)
    numbers = [{name: value for name, value in batch.items() if name != "caption"} for batch in expected]
    check_equal(list(read_epochs(JaxBatches(manifest, "train", make_config(kind, "caption"))))[:STEPS], numbers)


@pytest.mark.parametrize("to", ["parquet", "webdataset"])
def test_an_export_comes_back(dataset: Path, kind: str, to: Format, tmp_path: Path) -> None:
    if kind == "latents" and to != "parquet":
        pytest.skip("no other format comes back without images")
    if kind == "masks" and to == "webdataset":
        pytest.skip("tars come back without masks")
    export(ExportConfig(str(dataset), str(tmp_path / "out"), to, workers=1))
    labels = tmp_path / "out" / "labels.txt"
    make_dataset(tmp_path / "out", tmp_path / "again", workers=1, labels=str(labels) if labels.exists() else None)
    if kind == "latents":
        assert read_sorted(tmp_path / "again") == read_sorted(dataset)
        return
    assert describe_records(tmp_path / "again", "train") == describe_records(dataset, "train")
    again, made = (tfpipe.load_manifest(str(folder)) for folder in (tmp_path / "again", dataset))
    assert (again.schema.names, again.schema["image/encoded"]) == (made.schema.names, made.schema["image/encoded"])
    split, old = again.splits["train"], made.splits["train"]
    assert (split.masks, split.images_per_record) == (old.masks, old.images_per_record)
