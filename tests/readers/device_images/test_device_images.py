"""The reader for GPUs, on the CPU, held to `TorchBatches`; decoders that refuse and fail stand in for a GPU's."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import io
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import tfpipe
from tests.integrity.made import payload, write_dataset
from tests.seekable_jpegs import SAMPLINGS, draw, encode
from tfpipe.engine.config.pipeline_config import AugmentOptions, PipelineConfig
from tfpipe.errors import ConfigError, DataError, FormatError, MissingDependencyError
from tfpipe.format.image_form import ImageForm
from tfpipe.format.manifest import Manifest
from tfpipe.images.hardware_jpeg import read_hardware_header
from tfpipe.readers.device_images.decoders import CpuDecoder
from tfpipe.readers.device_images.device_images import REFUSED
from tfpipe.readers.torch import DeviceConfig, DeviceImages, TorchBatches, data_loader, normalize

# At full size, as a GPU decodes: the CPU's readers may decode large crops at a half.
OPTIONS = {
    "image_size": 12,
    "batch_size": 4,
    "seed": 3,
    "augment_options": AugmentOptions(dct_scaling=False),
    "decoder": "pillow",
}
NAMES = ("image/filename",)


class Decoder:
    """A decoder that counts its calls, and refuses some of the files as a GPU's would: with the whole batch."""

    def __init__(self, refuses: Callable[[bytes], bool] = lambda file: False) -> None:
        self.calls: list[list[int]] = []
        self._cpu = CpuDecoder(ImageForm())
        self._refuses = refuses

    def decode(self, files: list[torch.Tensor]) -> list[torch.Tensor]:
        self.calls.append([len(file) for file in files])
        if any(self._refuses(file.numpy().tobytes()) for file in files):
            raise RuntimeError("Error while decoding JPEG images: 4")
        return self._cpu.decode(files)


def make_images(manifest: Manifest, split: str = "train", device: str = "cpu", **options: Any) -> DeviceImages:
    more = {name: options.pop(name) for name in ("start_step", "rank", "device_config", "decoder") if name in options}
    return DeviceImages(
        manifest, split, PipelineConfig(**{**OPTIONS, "extra_features": NAMES, **options}), device, **more
    )


def read_reference(manifest: Manifest, epochs: int = 1, split: str = "train", **options: Any) -> list[Any]:
    """The batches of the reader that decodes on the CPU."""
    config = PipelineConfig(**{**OPTIONS, "extra_features": NAMES, **options})
    by_pillow = dataclasses.replace(config, decoder="pillow")
    loader = data_loader(TorchBatches(manifest, split, by_pillow), num_workers=0)
    return [batch for _ in range(epochs) for batch in loader]


def list_names(batches: Any) -> list[list[bytes]]:
    return [batch["image/filename"] for batch in batches]


def check_equal(batches: list[Any], expected: list[Any], largest: int = 1, mean: float = 0.3) -> None:
    """The same records, labels, boxes and flips; pixels that differ by no more levels."""
    for ours, theirs in zip(batches, expected, strict=True):
        assert ours["image/filename"] == theirs["image/filename"]
        assert torch.equal(ours["label"], theirs["label"])
        difference = (ours["image"].int() - theirs["image"].int()).abs()
        assert difference.max() <= largest
        assert difference.float().mean() < mean


def write_images(folder: Path, files: list[tuple[bytes, tuple[int, int]]], seekable: bool = False) -> Manifest:
    """Writes records of images with their heights and widths; of JPEGs, where that is asked for, seekable ones."""
    payloads = [
        payload(number, encoded=data, height=height, width=width)
        for number, (data, (height, width)) in enumerate(files)
    ]
    manifest = tfpipe.load_manifest(str(write_dataset(folder, {"train": payloads})))
    info = dataclasses.replace(
        manifest.splits["train"], formats={"JPEG": len(files)}, seekable_jpegs=len(files) * seekable
    )
    return dataclasses.replace(manifest, splits={"train": info})


def write_file(
    seed: int, size: tuple[int, int] = (40, 56), mode: str = "RGB", kind: str = "JPEG", **options: Any
) -> Any:
    buffer = io.BytesIO()
    Image.fromarray(draw(*size, seed)).convert(mode).save(buffer, kind, **options)
    return buffer.getvalue(), size


@pytest.fixture(scope="module")
def jpegs(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """12 JPEGs of noise, of which every third is gray."""
    folder = tmp_path_factory.mktemp("jpegs") / "noise"
    return write_images(folder, [write_file(k, (40 + k, 56 - k), "L" if k % 3 == 2 else "RGB") for k in range(12)])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"augment_options": AugmentOptions(antialias=True, flip=False, dct_scaling=False)},
        {"augment": "none", "order": "exact"},
    ],
    ids=["crops", "antialias", "whole"],
)
def test_batches_are_those_of_the_reader_on_the_cpu(jpegs: Manifest, options: dict[str, Any]) -> None:
    images = make_images(jpegs, **options)
    batches = [batch for _ in range(2) for batch in images]
    check_equal(batches, read_reference(jpegs, epochs=2, **options))
    assert (batches[0]["image"].shape, batches[0]["image"].dtype) == ((4, 3, 12, 12), torch.uint8)
    assert batches[0]["image"].is_contiguous(memory_format=torch.channels_last)
    assert batches[0]["label"].dtype == torch.int64
    assert images.fallbacks == {}
    assert images.state_dict() == {"seed": 3, "epoch": 2, "step": 0, "order": 1}


def test_only_the_crops_part_of_a_seekable_jpeg_reaches_the_decoder(tmp_path: Path) -> None:
    size = (160, 320)
    sampling = SAMPLINGS[2]
    files = [(encode(draw(*size, seed), sampling), size) for seed in range(8)]
    options = {"augment_options": AugmentOptions(scale=(0.05, 0.1), dct_scaling=False)}
    seekable = write_images(tmp_path / "seekable", files, seekable=True)
    whole, cut = (Decoder() for _ in range(2))
    plain = dataclasses.replace(
        seekable, splits={"train": dataclasses.replace(seekable.splits["train"], seekable_jpegs=0)}
    )
    from_whole = list(make_images(plain, decoder=whole, **options))
    from_cut = list(make_images(seekable, decoder=cut, **options))
    for ours, theirs in zip(from_cut, from_whole, strict=True):
        assert torch.equal(ours["image"], theirs["image"])
    check_equal(from_cut, read_reference(seekable, **options))
    assert sum(map(sum, whole.calls[:2])) == sum(len(data) for data, _ in files)
    assert sum(map(sum, cut.calls[:2])) < 0.5 * sum(map(sum, whole.calls[:2]))


def test_what_a_header_gives_away_never_reaches_the_decoder(tmp_path: Path) -> None:
    files = [
        *(write_file(k) for k in range(4)),
        write_file(4, progressive=True),
        write_file(5, mode="CMYK"),
        write_file(6, mode="L", kind="PNG"),
        write_file(7, mode="L"),
    ]
    manifest = write_images(tmp_path / "mixed", files)
    decoder = Decoder()
    images = make_images(manifest, decoder=decoder)
    check_equal(list(images), read_reference(manifest))
    assert images.fallbacks == {"progressive JPEG": 1, "CMYK JPEG": 1, "PNG": 1}
    assert sum(map(len, decoder.calls[:2])) == 5


def test_what_the_decoder_refuses_is_decoded_by_the_cpu(jpegs: Manifest) -> None:
    def is_gray(file: bytes) -> bool:
        header = read_hardware_header(file, 10**6).jpeg
        return header is not None and header.components == 1

    images = make_images(jpegs, decoder=Decoder(is_gray))
    check_equal(list(images), read_reference(jpegs))
    assert images.fallbacks == {REFUSED: 4}


def test_a_gray_image_of_one_channel_gets_three(jpegs: Manifest) -> None:
    class OneChannel(Decoder):
        def decode(self, files: list[torch.Tensor]) -> list[torch.Tensor]:
            images = super().decode(files)
            return [image[:1] if torch.equal(image[0], image[2]) else image for image in images]

    check_equal(list(make_images(jpegs, decoder=OneChannel())), read_reference(jpegs))


def test_floats_are_normalized_levels(jpegs: Manifest) -> None:
    plain = next(iter(make_images(jpegs)))["image"]
    options = {"image_dtype": "bfloat16", "as_supervised": True, "one_hot": True, "extra_features": ()}
    image, label = next(iter(make_images(jpegs, device_config=DeviceConfig(channels_last=False), **options)))
    assert (image.dtype, label.dtype, label.shape) == (torch.bfloat16, torch.float32, (4, 2))
    assert image.is_contiguous()
    torch.testing.assert_close(image, normalize(plain, dtype=torch.bfloat16), atol=0.02, rtol=0.01)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_any_step_resumes(jpegs: Manifest, num_threads: int) -> None:
    expected = list_names(read_reference(jpegs, epochs=3))
    images = make_images(jpegs, device_config=DeviceConfig(num_threads=num_threads, prefetch_batches=3))
    assert len(images) == 3
    assert list_names(islice(iter(images), 2)) == expected[:2]
    state = images.state_dict()
    assert state == {"seed": 3, "epoch": 0, "step": 2, "order": 1}
    assert list_names(chain(images, images)) == expected[2:6]  # left early, it goes on there
    again = make_images(jpegs)
    again.load_state_dict(state)
    assert list_names(chain(again, again)) == expected[2:6]
    again.set_epoch(2)
    assert list_names(again) == expected[6:9]
    assert list_names(make_images(jpegs, start_step=7)) == expected[7:9]


@pytest.mark.parametrize("at", [1, 3])
def test_a_position_that_is_set_in_a_pass_counts_for_the_next(jpegs: Manifest, at: int) -> None:
    expected = list_names(read_reference(jpegs, epochs=3))
    images = make_images(jpegs)
    given = []
    for number, batch in enumerate(images, start=1):
        given.append(batch["image/filename"])
        if number == at:
            images.set_epoch(2)
    assert given == expected[:3]
    assert images.position == (2, 0)
    assert list_names(images) == expected[6:9]


def test_hosts_share_each_batch(jpegs: Manifest) -> None:
    whole = list_names(read_reference(jpegs))
    parts = [list(make_images(jpegs, rank=(rank, 2))) for rank in range(2)]
    assert [list(chain(*step)) for step in zip(*map(list_names, parts), strict=True)] == whole
    assert all(batch["image"].shape[0] == 2 for batch in chain(*parts))


@pytest.mark.parametrize("ranks", [1, 2])
def test_evaluation_gives_every_record_once(jpegs: Manifest, ranks: int) -> None:
    options = {"training": False, "batch_size": 5 * ranks}
    seen = []
    for rank in range(ranks):
        images = make_images(jpegs, rank=(rank, ranks), **options)
        batches = list(images)
        assert len(batches) == len(images) == 3 // ranks + ranks // 2
        for batch in batches:
            assert batch["image"].shape == (5, 3, 12, 12)
            assert not batch["image"][~batch["mask"]].any()
            seen += [name for name, real in zip(batch["image/filename"], batch["mask"], strict=True) if real]
        assert list_names(images) == list_names(batches)  # each pass is the whole split
    assert seen == [f"{'dog' if k % 2 else 'cat'}/{k}.png".encode() for k in range(12)]


def test_no_more_is_decoded_ahead_than_was_asked_for(jpegs: Manifest) -> None:
    decoder = Decoder()
    images = make_images(jpegs, decoder=decoder, device_config=DeviceConfig(num_threads=4, prefetch_batches=2))
    batches = iter(images)
    next(batches)
    wait_for(lambda: len(decoder.calls) == 3)  # the one that was given, and two that are ready
    time.sleep(0.05)  # a moment in which a reader without bounds would decode many more
    assert len(decoder.calls) == 3
    next(batches)
    wait_for(lambda: len(decoder.calls) == 4)
    batches.close()


def wait_for(condition: Callable[[], bool]) -> None:
    """Waits until a condition holds, at most a minute."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "It did not happen."
        time.sleep(0.005)


def list_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("tfpipe-")}


@pytest.mark.parametrize("end", ["dropped", "an epoch later", "closed"])
def test_the_threads_end(jpegs: Manifest, end: str) -> None:
    before = list_threads()
    images = make_images(jpegs)
    if end == "dropped":
        batches = iter(images)
        next(batches)
        assert list_threads() - before
        del batches, images
    else:
        list(images)
        assert list_threads() - before  # they read the next epoch ahead
        if end == "closed":
            images.close()
        else:
            del images
    gc.collect()
    wait_for(lambda: not list_threads() - before)


def test_a_damaged_image_is_named_and_the_next_pass_begins_with_its_batch(tmp_path: Path) -> None:
    files = [write_file(k) for k in range(12)]
    whole, size = files[5]
    files[5] = whole[: len(whole) // 2], size
    images = make_images(write_images(tmp_path / "noise", files))
    message = r"^Record 5 of 'train': its image cannot be used, JPEG that cannot be decoded: no end marker\.$"
    given = []
    with contextlib.suppress(FormatError):
        for batch in images:
            given.append(batch)
    state = images.state_dict()
    assert (state["epoch"], state["step"]) == (0, len(given))
    with pytest.raises(FormatError, match=message):
        next(iter(images))
    assert images.state_dict() == state


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"no image", "its image cannot be used, not an image: it begins like text."),
        (write_file(1, (8, 8))[0], "8 x 8 pixels, which is not the size that its record gives"),
    ],
    ids=["text", "size"],
)
def test_an_image_that_is_not_what_its_record_says_is_named(tmp_path: Path, data: bytes, message: str) -> None:
    manifest = write_images(tmp_path / "noise", [(data, (40, 56))] * 4)
    with pytest.raises(FormatError) as caught:
        next(iter(make_images(manifest, augment="none")))
    assert str(caught.value).startswith("Record ")
    assert message in str(caught.value)


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    manifest = write_images(tmp_path / "noise", [write_file(k) for k in range(4)])
    shard = next(Path(manifest.directory).glob("*.tfrecord"))
    data = bytearray(shard.read_bytes())
    data[500] ^= 1
    shard.write_bytes(data)
    with pytest.raises(FormatError, match=f"^{shard}: "):
        next(iter(make_images(manifest)))


class Failing(Decoder):
    """A decoder that fails with an error."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def decode(self, files: list[torch.Tensor]) -> list[torch.Tensor]:
        raise self._error


@pytest.mark.parametrize(
    "error",
    [
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("CUDA error: out of memory"),
    ],
    ids=["PyTorch", "CUDA"],
)
def test_full_memory_says_what_to_lower(jpegs: Manifest, error: Exception) -> None:
    with pytest.raises(DataError) as caught:
        next(iter(make_images(jpegs, decoder=Failing(error))))
    assert str(caught.value) == (
        "The GPU's memory must hold the batches that are ready beside the model, and it is full. Lower "
        "`prefetch_batches`, or the batch size."
    )


def test_a_device_that_fails_is_one_sentence(jpegs: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    images = make_images(jpegs)

    def fail(*arguments: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with DSA.")

    monkeypatch.setattr(images._finisher, "_resize", fail)
    with pytest.raises(DataError) as caught:
        next(iter(images))
    assert str(caught.value) == "The pipeline failed: CUDA error: an illegal memory access was encountered."


def test_pixels_of_another_size_are_refused(jpegs: Manifest) -> None:
    class Wrong(Decoder):
        def decode(self, files: list[torch.Tensor]) -> list[torch.Tensor]:
            return [image[:, 1:] for image in super().decode(files)]

    with pytest.raises(FormatError, match=r"as its header says, and the decoder returned 3 x \d+ x \d+\.$"):
        next(iter(make_images(jpegs, decoder=Wrong())))


def test_files_are_released_when_the_device_is_done_with_them(jpegs: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls to a GPU's stream, in their order, on a machine that has none."""
    order: list[str] = []

    class Event:
        def __init__(self, blocking: bool) -> None:
            assert blocking  # else the thread would keep a core busy while it waits

        def record(self, stream: str) -> None:
            order.append(f"record on {stream}")

        def synchronize(self) -> None:
            order.append("wait")

    @contextlib.contextmanager
    def use_stream(stream: str) -> Iterator[None]:
        order.append(f"begin {stream}")
        yield
        order.append(f"end {stream}")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", use_stream)
    images = make_images(jpegs, device_config=DeviceConfig(prefetch_batches=1))
    monkeypatch.setattr(images._finisher, "_stream", "the side stream")
    monkeypatch.setattr(images._host, "release", lambda batch: order.append("release"))
    list(images)
    images.close()
    steps = ["begin the side stream", "record on the side stream", "wait", "end the side stream", "release"]
    assert order[:15] == steps * 3


@pytest.mark.parametrize(
    ("device", "message"),
    [
        (
            "cuda",
            "`device` 'cuda' needs a GPU, and PyTorch sees none here. Use device=\"cpu\", or install PyTorch for CUDA "
            "and a driver.",
        ),
        ("meta", '`device` must be "cuda" or "cpu", got \'meta\'. Copy batches elsewhere yourself.'),
        ("tpu9", '`device` must be a device such as "cuda", "cuda:1" or "cpu", got \'tpu9\'.'),
    ],
)
def test_a_device_that_is_not_there_is_refused(
    jpegs: Manifest, device: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError) as caught:
        make_images(jpegs, device=device)
    assert str(caught.value) == message


def test_a_gpu_that_is_not_there_is_refused(jpegs: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError) as caught:
        make_images(jpegs, device="cuda:2")
    assert str(caught.value) == "`device` must be one of the 2 GPUs from cuda:0 to cuda:1, got 'cuda:2'."


def test_a_missing_library_is_named(jpegs: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for library in ("torchvision.io", "torchcodec.decoders"):
        monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingDependencyError) as caught:
        make_images(jpegs, device="cuda:0")
    assert str(caught.value) == (
        "`DeviceImages` on a GPU needs torchvision or torchcodec 0.16. Install it with: pip install "
        "'.[torch-gpu]' in a checkout of tfpipe."
    )


def test_a_config_that_does_not_fit_is_refused(jpegs: Manifest) -> None:
    with pytest.raises(ConfigError, match=r"^`order` 'throughput' is for the TensorFlow pipeline only"):
        make_images(jpegs, order="throughput")
    for options in ({"cache": "decoded"}, {"cache": "bytes", "cache_dir": "/tmp/a"}):
        with pytest.raises(ConfigError, match=r"^`DeviceImages` decodes on the device, so it reads no cache"):
            make_images(jpegs, **options)
    with pytest.raises(ConfigError, match=r"^`prefetch_batches` must be from 1 to 16, got 17\.$"):
        DeviceConfig(prefetch_batches=17)
