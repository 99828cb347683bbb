"""The memory of the files of a batch: pinned for a GPU, used again, and never too small."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import tfpipe
from tests.integrity.made import payload, write_dataset
from tests.seekable_jpegs import SAMPLINGS, draw, encode
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.host import Host
from tfpipe.readers.device_images import host_batches
from tfpipe.readers.device_images.host_batches import HostBatches
from tfpipe.readers.open_data import open_data


def make_host(folder: Path) -> HostBatches:
    files = [encode(draw(32, 48, seed), SAMPLINGS[0]) for seed in range(4)]
    payloads = [payload(number, encoded=file, height=32, width=48) for number, file in enumerate(files)]
    manifest = tfpipe.load_manifest(str(write_dataset(folder, {"train": payloads})))
    config = PipelineConfig(batch_size=4, image_size=8)
    return HostBatches(open_data(manifest, "train", config, Host()), pins_memory=False)


@pytest.mark.parametrize(("cuts", "pinned"), [(False, [True, False]), (True, [False, True])])
def test_what_goes_to_the_gpu_is_pinned(monkeypatch: pytest.MonkeyPatch, cuts: bool, pinned: list[bool]) -> None:
    asked: list[bool] = []
    real = torch.empty

    def note(size: int, dtype: torch.dtype, pin_memory: bool) -> torch.Tensor:
        asked.append(pin_memory)
        return real(size, dtype=dtype)

    monkeypatch.setattr(torch, "empty", note)
    host_batches._Memory(100, pins=True, cuts=cuts)
    assert asked == pinned
    asked.clear()
    host_batches._Memory(100, pins=False, cuts=cuts)
    assert asked == [False, False]


def test_memory_is_used_again_once_it_was_released(tmp_path: Path) -> None:
    host = make_host(tmp_path / "made")
    first, second = host.read(0, 0), host.read(1, 0)
    assert first.memory is not second.memory
    host.release(first)
    assert host.read(2, 0).memory is first.memory


def test_a_file_that_does_not_fit_gets_memory_of_its_own() -> None:
    memory = host_batches._Memory(8, pins=False, cuts=True)
    files = [b"abcde", b"fghij", b"klm"]
    tensors = [memory.place(file) for file in files]
    assert [tensor.numpy().tobytes() for tensor in tensors] == files
    memory.clear()
    again = memory.place(b"xy")
    assert again.data_ptr() == tensors[0].data_ptr()


def test_what_must_not_be_written_to_is_copied() -> None:
    data = np.arange(5, dtype=np.uint8)
    memory = host_batches._Memory(8, pins=False, cuts=False)
    assert memory.place(data).data_ptr() == data.ctypes.data
    data.flags.writeable = False
    copied = memory.place(data)
    assert copied.data_ptr() != data.ctypes.data
    assert copied.tolist() == [0, 1, 2, 3, 4]
