"""The decoders of batches, at the boundary to the libraries that do the work."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

from tfpipe.errors import DataError, MissingDependencyError
from tfpipe.format.image_form import ImageForm
from tfpipe.readers.device_images.decoders import CpuDecoder, GpuDecoder, find_device, make_decoder


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


class Library:
    """Stands for a library that decodes on a GPU.

    Args:
        error: The error of every call.
    """

    ImageReadMode = SimpleNamespace(RGB="RGB")

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[dict[str, Any]] = []
        self._error = error

    def decode_jpeg(self, files: list[torch.Tensor], *, mode: str, device: torch.device) -> list[torch.Tensor]:
        self.calls.append({"files": len(files), "mode": mode, "device": device})
        if self._error is not None:
            raise self._error
        return [torch.zeros(3, 4, 5, dtype=torch.uint8) for _ in files]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes imports find libraries: `install(torchvision=library)`. No other is there."""

    def set_modules(torchvision: Any = None, torchcodec: Any = None) -> None:
        for name, part, module in (("torchvision", "io", torchvision), ("torchcodec", "decoders", torchcodec)):
            whole = module and SimpleNamespace(**{part: module})
            monkeypatch.setitem(sys.modules, name, whole)
            monkeypatch.setitem(sys.modules, f"{name}.{part}", module)

    return set_modules


GPU = torch.device("cuda", 1)


@pytest.mark.parametrize("name", ["torchvision", "torchcodec"])
def test_the_library_that_is_installed_decodes_all_files_with_one_call(install: Any, name: str) -> None:
    library = Library()
    install(**{name: library})
    decoder = GpuDecoder(GPU)
    library.calls.clear()
    assert len(decoder.decode([write_file("RGB"), write_file("L")])) == 2
    assert library.calls == [{"files": 2, "mode": "RGB", "device": GPU}]


def test_torchvision_comes_first(install: Any) -> None:
    libraries = Library(), Library()
    install(*libraries)
    GpuDecoder(GPU).decode([write_file("RGB")])
    assert [len(library.calls) for library in libraries] == [2, 0]  # the first call tries whether it decodes


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("decode_jpegs_cuda: torchvision not compiled with nvJPEG support\nException raised from ..."),
        AttributeError("decode_jpegs_cuda: torchvision not compiled with nvJPEG support"),
    ],
)
def test_a_library_for_cpus_is_refused_at_once(install: Any, error: Exception) -> None:
    library = Library(error)
    install(torchvision=library)
    with pytest.raises(MissingDependencyError) as caught:
        GpuDecoder(GPU)
    assert str(caught.value) == (
        "`DeviceImages` on a GPU needs a torchvision that decodes JPEGs there, and the installed one does not: "
        "decode_jpegs_cuda: torchvision not compiled with nvJPEG support. Install a build for CUDA that fits PyTorch "
        f"{torch.__version__}."
    )


@pytest.mark.parametrize(
    ("name", "part", "error"),
    [
        ("torchvision", "io", "RuntimeError('operator torchvision::nms does not exist')"),
        ("torchcodec", "decoders", "OSError('Could not load this library: libtorchcodec_image.so')"),
    ],
)
def test_a_library_that_does_not_fit_is_refused(  # the errors of the real ones beside a PyTorch for CPUs
    install: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, part: str, error: str
) -> None:
    install()
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / name / f"{part}.py").write_text(f"raise {error}")
    monkeypatch.syspath_prepend(tmp_path)
    for module in (name, f"{name}.{part}"):
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(MissingDependencyError) as caught:
        GpuDecoder(GPU)
    assert str(caught.value).startswith(
        f"`DeviceImages` on a GPU needs a {name} that decodes JPEGs there, and the installed one does not: "
        f"{error.split(chr(39))[1]}. Install a build for CUDA"
    )


def test_memory_that_is_full_before_the_first_batch_is_one_sentence(install: Any) -> None:
    install(torchcodec=Library(torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")))
    with pytest.raises(DataError, match=r"^The GPU's memory must hold .* and it is full\. Lower `prefetch_batches`"):
        GpuDecoder(GPU)
