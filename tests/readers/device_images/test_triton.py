"""The kernel for GPUs: in Triton's interpreter it gives the pixels of PyTorch's operations, and it compiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.other_libraries import install_libraries, run_script

CAPABILITIES = (75, 80, 86, 89, 90, 100, 120)  # 7.5 to 12.0: Turing, Ampere, Ada, Hopper, Blackwell

AGREES = """
import torch
from tests.readers.device_images.test_resize import SIZE, draw_batch
from tfpipe.readers.device_images.crops import ResizeConfig
from tfpipe.readers.device_images.resize import resize_by_torch
from tfpipe.readers.device_images.resize_triton import resize_by_triton

images, crops = draw_batch()
for antialias in (False, True):
    config = ResizeConfig(antialias, (1.0, 20.0, 100.0), (0.5, 0.25, 0.125))
    for dtype, memory_format in ((torch.uint8, torch.channels_last), (torch.bfloat16, torch.contiguous_format)):
        ours, theirs = (
            torch.full((len(images) + 1, 3, *SIZE), 7, dtype=dtype).contiguous(memory_format=memory_format)
            for _ in range(2)
        )
        resize_by_triton(images, crops, ours, config)
        resize_by_torch(images, crops, theirs, config)
        difference = (ours.float() - theirs.float()).abs()
        print(antialias, dtype, difference.max().item() <= 1, difference.mean().item() < 0.001)
resize_by_triton([], [], ours, config)
"""

COMPILES = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from tfpipe.readers.device_images.resize_triton import _resize_kernel

for capability in map(int, sys.argv[1:]):
    for out, antialias in (("*u8", False), ("*bf16", True)):
        kinds = {"table": "*i64", "out": out, **dict.fromkeys(("antialias", "is_float", "block"), "constexpr")}
        kinds |= {f"{name}_{channel}": "fp32" for name in ("offset", "factor") for channel in range(3)}
        signature = {name: kinds.get(name, "i32") for name in _resize_kernel.arg_names}
        constants = {"antialias": antialias, "is_float": out != "*u8", "block": 128}
        source = ASTSource(_resize_kernel, signature, constants)
        compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32))
        print(capability, out, len(compiled.asm["cubin"]) > 0)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Installs Triton from the package index, without a GPU."""
    folder = tmp_path_factory.mktemp("triton")
    return {**install_libraries(folder, "--no-deps", "triton>=3"), "TRITON_CACHE_DIR": str(folder / "cache")}


@pytest.mark.slow
def test_the_kernel_gives_the_pixels_of_pytorchs_operations(environment: dict[str, str], tmp_path: Path) -> None:
    printed = run_script(AGREES, {**environment, "TRITON_INTERPRET": "1"}, tmp_path)
    assert printed.splitlines() == [
        "False torch.uint8 True True",
        "False torch.bfloat16 True True",
        "True torch.uint8 True True",
        "True torch.bfloat16 True True",
    ]


@pytest.mark.slow
def test_the_kernel_compiles_for_gpus(environment: dict[str, str], tmp_path: Path) -> None:
    printed = run_script(COMPILES, environment, tmp_path, *CAPABILITIES)
    assert printed.splitlines() == [f"{number} {out} True" for number in CAPABILITIES for out in ("*u8", "*bf16")]
