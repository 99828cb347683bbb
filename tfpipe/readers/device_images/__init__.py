"""Batches for PyTorch that are decoded on the GPU: threads read, and one call decodes a whole batch.

`device_images` has the reader and `config` its options. `host_batches` reads records and says what is to be decoded,
`decoders` decode, and `resize` crops, resizes and flips; with Triton `resize_triton` does it in one kernel.
"""

from tfpipe.system.extras import importing

with importing("`tfpipe.readers.torch`", "PyTorch", "tfpipe[torch]"):
    import torch  # noqa: F401  (the modules of this package then need not ask)
