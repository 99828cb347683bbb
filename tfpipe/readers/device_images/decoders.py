"""The decoders of whole batches: torchvision's on a GPU, Pillow on the CPU, or one of your own.

A decoder is one function, so that another library can take its place:

    class MyDecoder:
        def decode(self, files: list[torch.Tensor]) -> list[torch.Tensor]: ...

    DeviceImages(manifest, "train", config, decoder=MyDecoder())
"""

from __future__ import annotations

from typing import Protocol

import torch

from tfpipe.errors import ConfigError
from tfpipe.format.image_form import ImageForm
from tfpipe.images.decode import decode_pixels
from tfpipe.images.errors import BadImage
from tfpipe.system.extras import importing


class JpegDecoder(Protocol):
    """A decoder of many JPEGs at once."""

    def decode(self, files: list[torch.Tensor]) -> list[torch.Tensor]:
        """Decodes JPEGs.

        Args:
            files: The files, at least one, each uint8 [bytes] in the host's memory, pinned if the device is a GPU. The
                memory is used again once the work that was started on the current stream is done.

        Returns:
            The pixels of each on the device: uint8 [3, height, width], or [1, height, width] if it is gray.

        Raises:
            RuntimeError: A file cannot be decoded. Halves are then tried alone, and a single file is left to the CPU.
            torch.cuda.OutOfMemoryError: The device has no memory left.
        """


class TorchvisionDecoder:
    """A decoder by torchvision's `decode_jpeg`: the JPEG engine of an A100 or later GPU, else its other cores.

    Args:
        device: The GPU.

    Raises:
        MissingDependencyError: torchvision is not installed.
    """

    def __init__(self, device: torch.device) -> None:
        with importing("`DeviceImages` on a GPU", "torchvision", "tfpipe[torch-gpu]"):
            from torchvision.io import ImageReadMode, decode_jpeg
        self._device, self._decode, self._mode = device, decode_jpeg, ImageReadMode.RGB

    def decode(self, files: list[torch.Tensor]) -> list[torch.Tensor]:
        """Decodes JPEGs; see `JpegDecoder.decode`."""
        images: list[torch.Tensor] = self._decode(files, mode=self._mode, device=self._device)
        return images


class CpuDecoder:
    """A decoder by Pillow, for tests and for machines without a GPU.

    Args:
        form: The form of the images, of which `max_pixels` is used.
    """

    def __init__(self, form: ImageForm) -> None:
        self._form = form

    def decode(self, files: list[torch.Tensor]) -> list[torch.Tensor]:
        """Decodes JPEGs; see `JpegDecoder.decode`."""
        try:
            pixels = [decode_pixels(file.numpy().tobytes(), self._form) for file in files]
        except BadImage as error:
            raise RuntimeError(str(error)) from error
        return [torch.from_numpy(image).permute(2, 0, 1) for image in pixels]


def find_device(name: str | torch.device) -> torch.device:
    """Finds a device: a GPU by its number, or the CPU.

    Raises:
        ConfigError: The name is not that of a device, PyTorch sees no such GPU, or it is of another kind.
    """
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise ConfigError(f'`device` must be a device such as "cuda", "cuda:1" or "cpu", got {name!r}.') from None
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise ConfigError(f'`device` must be "cuda" or "cpu", got {str(name)!r}. Copy batches elsewhere yourself.')
    if not torch.cuda.is_available():
        raise ConfigError(
            f'`device` {str(name)!r} needs a GPU, and PyTorch sees none here. Use device="cpu", or install PyTorch '
            "for CUDA and a driver."
        )
    count = torch.cuda.device_count()
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= count:
        raise ConfigError(
            f"`device` must be one of the {count} GPUs from cuda:0 to cuda:{count - 1}, got {str(name)!r}."
        )
    return torch.device("cuda", index)


def make_decoder(device: torch.device, form: ImageForm) -> JpegDecoder:
    """Makes the decoder for a device.

    Raises:
        MissingDependencyError: The device is a GPU, and torchvision is not installed.
    """
    return CpuDecoder(form) if device.type == "cpu" else TorchvisionDecoder(device)
