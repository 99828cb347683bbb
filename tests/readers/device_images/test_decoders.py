"""The decoders of batches, at the boundary to the libraries that do the work."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

from tfpipe.format.image_form import ImageForm
from tfpipe.readers.device_images.decoders import CpuDecoder, TorchvisionDecoder, find_device, make_decoder


def write_file(mode: str) -> torch.Tensor:
    buffer = io.BytesIO()
    Image.new(mode, (5, 4), 99).save(buffer, "JPEG")
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def test_pillow_decodes_to_three_channels() -> None:
    decoder = make_decoder(find_device("cpu"), ImageForm())
    images = decoder.decode([write_file("RGB"), write_file("L")])
    assert [(image.shape, image.dtype) for image in images] == [((3, 4, 5), torch.uint8)] * 2
    assert images[1].unique().tolist() == [99]


def test_what_pillow_refuses_is_a_runtime_error_as_of_any_decoder() -> None:
    with pytest.raises(RuntimeError, match="5 x 4 pixels, more than `max_pixels` 19 allows"):
        CpuDecoder(ImageForm(max_pixels=19)).decode([write_file("RGB")])


def test_torchvision_decodes_all_files_with_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []

    def decode_jpeg(files: list[torch.Tensor], mode: str, device: torch.device) -> list[torch.Tensor]:
        calls.append({"files": len(files), "mode": mode, "device": device})
        return [torch.zeros(3, 4, 5, dtype=torch.uint8) for _ in files]

    fake = SimpleNamespace(decode_jpeg=decode_jpeg, ImageReadMode=SimpleNamespace(RGB="RGB"))
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace(io=fake))
    monkeypatch.setitem(sys.modules, "torchvision.io", fake)
    device = torch.device("cuda", 1)
    images = TorchvisionDecoder(device).decode([write_file("RGB"), write_file("L")])
    assert len(images) == 2
    assert calls == [{"files": 2, "mode": "RGB", "device": device}]
