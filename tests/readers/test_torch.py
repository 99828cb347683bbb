"""The reader for PyTorch."""

import contextlib
import json
import multiprocessing
import os
import pickle
import signal
import time
from itertools import chain, islice
from pathlib import Path
from unittest.mock import ANY

import pytest
import torch
from torch.utils.data import DataLoader

import tfpipe
from tests.beam_jobs.commands import wait_for
from tests.conftest import Processes
from tests.integrity.made import payload, write_dataset
from tests.readers.test_sampler import fake_ranks
from tests.refusals import refusal
from tfpipe.engine.config.pipeline_config import PipelineConfig, TfDataOptions
from tfpipe.errors import ConfigError, FormatError, MissingDependencyError
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline.build import build_dataset
from tfpipe.readers.numpy import NumpyBatches
from tfpipe.readers.torch import TorchBatches, data_loader, normalize, xla_loader

OPTIONS = {"image_size": 8, "batch_size": 4, "seed": 3, "extra_features": ("image/filename",)}


@pytest.fixture(scope="module")
def manifest(small_dataset: Path) -> Manifest:
    """12 images for training, JPEG and PNG, and 3 for evaluation."""
    return tfpipe.load_manifest(str(small_dataset))


def of(manifest: Manifest, split: str = "train", **options: object) -> TorchBatches:
    more = {name: options.pop(name) for name in ("start_step", "transform", "rank") if name in options}
    return TorchBatches(manifest, split, PipelineConfig(**{**OPTIONS, **options}), **more)


def names(batches) -> list[list[bytes]]:
    return [batch["image/filename"] for batch in batches]


def read_names(manifest: Manifest, steps: range) -> list[list[bytes]]:
    batches = NumpyBatches(manifest, "train", PipelineConfig(**OPTIONS))
    return [batches.read(step)["image/filename"] for step in steps]


@pytest.mark.parametrize("start_method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_change_nothing_and_any_step_resumes(manifest: Manifest, start_method: str) -> None:
    expected = read_names(manifest, range(9))
    loader = data_loader(of(manifest), num_workers=2, start_method=start_method)
    assert len(loader) == 3
    assert names(batch for _ in range(3) for batch in loader) == expected
    assert loader.state_dict() == {"seed": 3, "epoch": 3, "step": 0, "order": 1, "data": ANY}
    loader.set_epoch(1)  # workers that live on hear of it
    assert names(islice(iter(loader), 2)) == expected[3:5]
    state = loader.state_dict()
    assert state == {"seed": 3, "epoch": 1, "step": 2, "order": 1, "data": ANY}
    assert names(loader) == expected[6:9]  # that pass was left, so this one is the next epoch
    other = data_loader(of(manifest), num_workers=0)
    other.load_state_dict(state)
    assert names(batch for _ in range(2) for batch in other) == expected[5:9]


@pytest.mark.parametrize(
    "workers",
    [
        {},
        pytest.param({"num_workers": 2}, marks=pytest.mark.slow),  # new processes for each of eight passes
        {"num_workers": 2, "persistent_workers": True},
    ],
    ids=str,
)
def test_passes_of_an_own_loader_advance(manifest: Manifest, workers: dict[str, object]) -> None:
    expected = read_names(manifest, range(12))
    images = of(manifest)
    loader = DataLoader(images, batch_size=None, **workers)
    assert [names(loader) for _ in range(2)] == [expected[:3], expected[3:6]]
    assert images.position == (2, 0)
    images.set_epoch(0)
    torch.manual_seed(1)
    assert names(loader) == expected[:3]
    torch.manual_seed(1)  # PyTorch then gives the workers of both passes the same seed
    assert names(loader) == expected[3:6]
    assert names(islice(loader, 2)) == expected[6:8]
    assert names(loader) == expected[9:12]
    copied = pickle.loads(pickle.dumps(images))
    copied.set_epoch(1)
    other = DataLoader(copied, batch_size=None, **workers)
    assert [names(other) for _ in range(2)] == [expected[3:6], expected[6:9]]


def test_the_dataset_of_a_loader_ends(manifest: Manifest) -> None:
    """Libraries make another loader of it."""
    expected = read_names(manifest, range(9))
    loader = data_loader(of(manifest), num_workers=0)
    assert names(loader) == expected[:3]
    for workers in (0, 2):
        loader.set_epoch(1)
        assert names(DataLoader(loader.dataset, batch_size=None, num_workers=workers)) == expected[3:6]


def start_late(worker: int) -> None:
    time.sleep(worker / 2)


def test_a_worker_that_starts_late_begins_the_same_passes(manifest: Manifest) -> None:
    expected = read_names(manifest, range(15))
    loader, other = (data_loader(images, num_workers=2) for images in [of(manifest)] * 2)
    loader.worker_init_fn = other.worker_init_fn = start_late
    next(iter(loader))
    assert names(loader) == expected[:3]
    own = DataLoader(of(manifest), None, num_workers=2, persistent_workers=True, worker_init_fn=start_late)
    next(iter(own))
    for one, begin in ((other, other), (own, own.dataset)):
        given = iter(one)
        first = next(given)
        begin.set_epoch(4)
        assert names([first, *given]) == expected[3:6]
        assert names(one) == expected[12:15]


def test_evaluations_run_at_once_and_workers_end_with_the_trainer(manifest: Manifest) -> None:
    loader, others = data_loader(of(manifest, training=False), 2), set(multiprocessing.active_children())
    before = signal.signal(signal.SIGTERM, lambda *_: None)  # workers inherit it
    expected = names(loader)
    assert names(chain(*zip(loader, loader, strict=True))) == [batch for batch in expected for _ in range(2)]
    signal.signal(signal.SIGTERM, before)
    workers = set(multiprocessing.active_children()) - others
    assert names(loader) == expected
    assert set(multiprocessing.active_children()) - others == workers  # they live on
    assert len(workers) == 2
    for worker in workers:
        worker.terminate()  # as multiprocessing does at the program's end
        worker.join()
        assert worker.exitcode == 0


def test_ranks_are_asked_for_and_checked_when_a_pass_begins(manifest: Manifest) -> None:
    num_workers = 1  # the harder case: a process has no group of its own
    expected = read_names(manifest, range(9))
    images = of(manifest)
    loader = data_loader(images, num_workers=num_workers)
    assert names(loader) == expected[:3]
    with fake_ranks(2):
        assert names(loader) == [batch[2:] for batch in expected[3:6]]
        assert loader.state_dict() == {"seed": 3, "epoch": 2, "step": 0, "order": 1, "data": ANY}
        own = DataLoader(of(manifest), batch_size=None, num_workers=num_workers)
        given = data_loader(of(manifest, rank=(0, 2)), num_workers=num_workers)
        assert names(own) == [batch[2:] for batch in expected[:3]]
        assert names(given) == [batch[:2] for batch in expected[:3]]
        assert names(pickle.loads(pickle.dumps(images))) == [batch[2:] for batch in expected[6:9]]
    loader = data_loader(of(manifest), num_workers=0)
    with fake_ranks(3):
        found = refusal(ConfigError, lambda: next(iter(loader)))
    assert found == "`batch_size` 4 must be divisible by 3 replicas; use 3 or 6."


def test_tuples_one_hot_labels_and_floats(manifest: Manifest) -> None:
    options = {"as_supervised": True, "one_hot": True, "extra_features": (), "image_dtype": "float32"}
    image, label = next(iter(of(manifest, **options)))
    assert (image.dtype, label.dtype, label.shape) == (torch.float32, torch.float32, (4, 3))
    assert label.sum(1).tolist() == [1.0] * 4
    plain = next(iter(of(manifest)))["image"]
    # A float is not rounded to a whole level before it is normalized.
    torch.testing.assert_close(image, normalize(plain), atol=0.51 / 255 / 0.224, rtol=0)
    assert not torch.equal(image, normalize(plain))
    rounded = next(iter(of(manifest, **{**options, "image_dtype": "bfloat16"})))[0]
    assert torch.equal(rounded, image.to(torch.bfloat16))
    white = torch.full((1, 3, 1, 1), 255, dtype=torch.uint8)
    torch.testing.assert_close(normalize(white).flatten(), torch.tensor([2.2489, 2.4286, 2.64]), atol=1e-4, rtol=0)
    assert normalize(plain, dtype=torch.bfloat16).dtype == torch.bfloat16
    image, _, mask = next(iter(of(manifest, "validation", **{**options, "training": False})))
    assert mask.tolist() == [1.0, 1.0, 1.0]
    assert image.is_contiguous(memory_format=torch.channels_last)


def noisy(image) -> torch.Tensor:
    assert image.mode == "RGB"
    return torch.tensor(image.size) + torch.rand(2)


def test_a_transform_draws_the_same_with_any_workers(manifest: Manifest) -> None:
    before = torch.get_rng_state()
    alone = [batch["image"] for batch in of(manifest, transform=noisy)]
    assert torch.equal(torch.get_rng_state(), before)
    spread = [batch["image"] for batch in data_loader(of(manifest, transform=noisy), num_workers=2)]
    assert torch.equal(torch.stack(alone), torch.stack(spread))
    assert len({row for batch in alone for row in map(tuple, (batch % 1).tolist())}) == 12
    empty = list(of(manifest, "validation", transform=noisy, training=False, rank=(0, 4)))
    assert [batch["image"].tolist() for batch in empty] == [[[0.0, 0.0]]]
    with pytest.raises(ConfigError, match=r"`transform` must return Tensors of one shape and dtype, got int\."):
        next(iter(of(manifest, transform=lambda image: 1)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"order": "throughput"},
            "`order` 'throughput' is for the TensorFlow pipeline only: here records are read one",
        ),
        ({"cache": "bytes", "cache_dir": "gs://a/b"}, "A cache in files needs `cache` bytes or decoded and a local"),
        ({"augment": "device"}, "`augment` 'device' is for"),
        ({"tf_data": TfDataOptions(cycle_length=2)}, "`tf_data` TfDataOptions("),
        ({"extra_features": ("nothing",)}, "`extra_features` must name features of"),
        ({"batch_size": 16}, "`batch_size` must be at most the"),
    ],
    ids=str,
)
def test_what_cannot_be_had_is_refused(manifest: Manifest, options: dict[str, object], message: str) -> None:
    assert refusal(ConfigError, of, manifest, **options).startswith(message)


OTHER_VERSION = (
    "The position must be of a run in order version 1, got version {}, in which other records come at each step. Begin "
    "a new run, or go on with the release of tfpipe that the run began with."
)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"seed": 4}, "The position must be of a run with seed 3, got seed 4."),
        (None, "A position must be a dict of seed, epoch, step, order and data, got None."),
        (
            {"step": 3},
            "The position must lie in an epoch of 3 steps, got epoch 0 and step 3. Use the batch size and the data "
            "that it was saved with.",
        ),
        ({"order": 2}, OTHER_VERSION.format(2)),
        ({"order": 0}, OTHER_VERSION.format(0)),
        (
            {"part": 1},
            "A position must have seed, epoch, step, order and data, got seed, epoch, step, order, data, part.",
        ),
        (
            {"data": 1},
            "The position is of other records than those of {address}, or of the same in another order. Open the "
            "dataset or view as it was when the position was saved, or begin a new run.",
        ),
    ],
)
def test_another_runs_state_is_refused(manifest: Manifest, state: dict[str, int] | None, message: str) -> None:
    loader = data_loader(of(manifest), num_workers=0)
    found = refusal(ConfigError, loader.load_state_dict, state and {**loader.state_dict(), **state})
    assert found.startswith(message.format(address=manifest.address))


def test_after_an_error_a_pass_begins_with_the_same_batch(tmp_path: Path) -> None:
    payloads = [payload(k, **({"encoded": b"no image"} if k == 5 else {})) for k in range(12)]
    images = of(tfpipe.load_manifest(str(write_dataset(tmp_path / "pets", {"train": payloads}))))
    loader = data_loader(images, num_workers=0)
    given = []
    with contextlib.suppress(FormatError):
        for batch in loader:
            given.append(batch)
    state = loader.state_dict()
    assert (state["epoch"], state["step"]) == (0, len(given))
    with pytest.raises(FormatError, match=r"^Record 5 of 'train': its image cannot be used, "):
        next(iter(loader))
    assert loader.state_dict() == state


def count_open_files(folder: str) -> int:
    """Counts the open files below a folder; 0 where the system does not list them."""
    links = Path("/proc/self/fd")
    paths = []
    for link in links.iterdir() if links.is_dir() else ():
        with contextlib.suppress(OSError):
            paths.append(os.readlink(link))
    return sum(path.startswith(os.path.realpath(folder)) for path in paths)


def test_a_copy_opens_its_own_files(manifest: Manifest) -> None:
    images = of(manifest)
    expected = names(images)
    images.set_epoch(0)
    before = count_open_files(manifest.directory)
    copied = pickle.loads(pickle.dumps(images))
    assert names(copied) == expected
    del copied
    wait_for(lambda: count_open_files(manifest.directory) == before)  # threads end a moment after the last batch


def test_a_dataset_in_place_of_its_reader_is_refused() -> None:
    sentence = "`data_loader` takes TorchBatches(dataset, split, batch_size=256), got 'shapes'."
    assert refusal(ConfigError, data_loader, "shapes") == sentence


def test_a_missing_torch_xla_is_named(manifest: Manifest) -> None:
    assert refusal(MissingDependencyError, xla_loader, data_loader(of(manifest), num_workers=0)) == (
        "`xla_loader` needs the `torch_xla` package. Install it with: pip install 'torch_xla[tpu]'."
    )


def test_torchs_own_loader_reads_a_data_source_in_batches(manifest: Manifest, monkeypatch) -> None:
    records, asked = tfpipe.data_source(manifest, "train"), []
    real = type(records).__getitems__
    monkeypatch.setattr(type(records), "__getitems__", lambda self, rows: asked.append(rows) or real(self, rows))
    loader = torch.utils.data.DataLoader(records, batch_size=5, collate_fn=lambda batch: [one.name for one in batch])
    assert list(chain(*loader)) == [record.name for record in records]
    assert asked == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]


# Two real processes


SHARED = {"batch_size": 4, "image_size": 8, "seed": 1, "extra_features": ("image/filename",)}

RANK = f"""
import json, sys
import torch
from tfpipe import TorchBatches, data_loader

torch.distributed.init_process_group("gloo")
loader = data_loader(TorchBatches(sys.argv[1], "train", **{SHARED}), num_workers=1)
if len(sys.argv) > 2:
    loader.load_state_dict(json.loads(sys.argv[2]))
names = [[name.decode() for name in batch["image/filename"]] for _ in range(2) for batch in loader]
print(json.dumps(names))
"""


def read_global(processes: Processes, *arguments: str) -> list[list[str]]:
    """The names in each global batch."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(processes.free_ports(1)[0]), "WORLD_SIZE": "2"}
    started = [processes.start("-c", RANK, *arguments, **place, RANK=str(rank)) for rank in range(2)]
    ranks = [processes.finish(process) for process in started]
    return [left + right for left, right in zip(*ranks, strict=True)]


@pytest.mark.slow
def test_two_ranks_share_the_epochs_and_go_on(processes: Processes, small_dataset: Path) -> None:
    dataset = build_dataset(small_dataset, "train", **SHARED).take(9).as_numpy_iterator()
    expected = [[name.decode() for name in batch["image/filename"]] for batch in dataset]
    assert read_global(processes, str(small_dataset)) == expected[:6]
    for epoch in (expected[:3], expected[3:6]):
        assert len({name for batch in epoch for name in batch}) == 12
    state = {**NumpyBatches(small_dataset, "train", **SHARED).state_dict(), "epoch": 1, "step": 1}
    assert read_global(processes, str(small_dataset), json.dumps(state)) == expected[4:9]


MESHED = PipelineConfig(image_size=8, batch_size=4, seed=3, extra_features=("image/height",))
MESH = """
import json, os, sys
import torch
from dataclasses import replace
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
import tfpipe
from tfpipe.readers.torch import TorchBatches, data_loader, normalize
from tfpipe.engine.config.pipeline_config import PipelineConfig

torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
config = PipelineConfig(image_size=8, batch_size=4, seed=3, extra_features=("image/height",))
manifest = tfpipe.load_manifest(sys.argv[1])
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(192, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
whole = [parameter.detach().clone() for parameter in net.parameters()]
parallelize_module(net, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
images = TorchBatches(manifest, "train", config, rank=mesh)
steps = []
for batch in data_loader(images, num_workers=0):
    flat = normalize(batch["image"]).flatten(1)
    hidden = torch.relu(flat @ whole[0].T + whole[1])
    error = (net(flat) - (hidden @ whole[2].T + whole[3])).abs().max().item()
    steps.append([batch["label"].tolist(), batch["image/height"].tolist(), error])
evaluation = TorchBatches(manifest, "validation", replace(config, training=False), rank=mesh)
evaluated = [batch["label"][batch["mask"]].tolist() for batch in data_loader(evaluation, num_workers=0)]
print(json.dumps([mesh.get_coordinate(), steps, evaluated]))
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_pytorch_splits_rows_over_data_alone(small_dataset: Path, processes: Processes) -> None:
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(processes.free_ports(1)[0]), "WORLD_SIZE": "4"}
    started = [processes.start("-c", MESH, str(small_dataset), **shared, RANK=str(rank)) for rank in range(4)]
    results = [processes.finish(process) for process in started]
    assert [coordinate for coordinate, _, _ in results] == [[0, 0], [0, 1], [1, 0], [1, 1]]
    for number, expected in enumerate(build_dataset(small_dataset, "train", MESHED).take(3).as_numpy_iterator()):
        for (part, _), steps, _ in results:
            labels, heights, error = steps[number]
            assert labels == expected["label"][2 * part : 2 * part + 2].tolist()
            assert heights == expected["image/height"][2 * part : 2 * part + 2].ravel().tolist()
            assert error < 1e-5  # two matrices, split over `tensor`
    assert [evaluated for _, _, evaluated in results] == [[[1]], [[1]], [[0, 2]], [[0, 2]]]


def test_a_mesh_without_data_is_refused(small_dataset: Path) -> None:
    class Mesh:  # a real one needs processes
        mesh_dim_names = ("replicate", "shard")

    sentence = "`rank` must be a mesh with a dimension data, got replicate, shard."
    assert refusal(ConfigError, TorchBatches, small_dataset, "train", MESHED, rank=Mesh()) == sentence
