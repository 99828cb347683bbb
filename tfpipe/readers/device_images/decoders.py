"""The decoders of whole batches: torchvision's or torchcodec's on a GPU, Pillow on the CPU, or one of your own.

A decoder is one function, so that another library can take its place:

    class MyDecoder:
        def decode(self, files: list[torch.Tensor]) -> list[torch.Tensor]: ...

    DeviceImages(manifest, "train", config, decoder=MyDecoder())
"""

from __future__ import annotations

from typing import Protocol

import torch

from tfpipe.errors import ConfigError, DataError, MissingDependencyError, first_line
from tfpipe.format.image_form import ImageForm
from tfpipe.images.decode import decode_pixels
from tfpipe.images.errors import BadImage
from tfpipe.images.hardware_jpeg import make_baseline_jpeg
from tfpipe.system.extras import importing

_USER = "`DeviceImages` on a GPU"
_OUT_OF_MEMORY = "out of memory"


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


class GpuDecoder:
    """A decoder by torchvision's `decode_jpeg`, or torchcodec's: an A100's or later GPU's JPEG engine, else its cores.

    Args:
        device: The GPU.

    Raises:
        MissingDependencyError: Neither library is installed, or the one that is does not decode on the GPU.
        DataError: The GPU's memory is full.
    """

    def __init__(self, device: torch.device) -> None:
        library = "torchvision"
        try:
            with importing(_USER, "torchvision or torchcodec 0.16", "tfpipe[torch-gpu]"):
                try:
                    from torchvision.io import ImageReadMode, decode_jpeg
                except ImportError:
                    library = "torchcodec"
                    from torchcodec.decoders import ImageReadMode, decode_jpeg
        except (OSError, RuntimeError) as error:  # its native code does not fit this PyTorch
            raise _describe_misfit(library, error) from error
        self._library = library
        self._device, self._decode, self._mode = device, decode_jpeg, ImageReadMode.RGB
        self._check()

    def decode(self, files: list[torch.Tensor]) -> list[torch.Tensor]:
        """Decodes JPEGs; see `JpegDecoder.decode`."""
        images: list[torch.Tensor] = self._decode(files, mode=self._mode, device=self._device)
        return images

    def _check(self) -> None:
        """Decodes a tiny JPEG. A library for CPUs would refuse each image, which the CPU would then decode unnoticed.

        Raises:
            MissingDependencyError: The library does not decode on the GPU.
        """
        try:
            self.decode([torch.frombuffer(bytearray(make_baseline_jpeg()), dtype=torch.uint8)])
        except (AttributeError, RuntimeError) as error:  # an AttributeError if native code did not load
            if is_full(error):
                raise describe_full_memory() from error
            raise _describe_misfit(self._library, error) from error


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


def is_full(error: Exception) -> bool:
    """Returns whether an error says that the GPU's memory is full."""
    return isinstance(error, torch.cuda.OutOfMemoryError) or _OUT_OF_MEMORY in str(error).lower()


def _describe_misfit(library: str, error: Exception) -> MissingDependencyError:
    return MissingDependencyError(
        f"{_USER} needs a {library} that decodes JPEGs there, and the installed one does not: {first_line(error)}. "
        f"Install a build for CUDA that fits PyTorch {torch.__version__}."
    )


def describe_full_memory() -> DataError:
    """Returns the error for a user whose GPU's memory is full."""
    return DataError(
        "The GPU's memory must hold the batches that are ready beside the model, and it is full. Lower "
        "`prefetch_batches`, or the batch size."
    )


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
        MissingDependencyError: The device is a GPU, and no library is installed that decodes there.
        DataError: The GPU's memory is full.
    """
    return CpuDecoder(form) if device.type == "cpu" else GpuDecoder(device)
