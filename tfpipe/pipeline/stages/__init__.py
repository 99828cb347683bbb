"""The named stages that `build.py` chooses from: what each does to a dataset, its settings, and its reason.

Elements on the way: numbers of epochs, then of runs or files; `(payload, record, seed)` from `read` on; dictionaries
of features from `parse` on, with the image once it is decoded; batches.
"""

from tfpipe.pipeline.stages.caching import cache_bytes, cache_decoded, filled_cache, repeat_cached, repeat_pass
from tfpipe.pipeline.stages.images import augment, decode, parse
from tfpipe.pipeline.stages.mix import Part, mix
from tfpipe.pipeline.stages.output import batch, prefetch
from tfpipe.pipeline.stages.reading import (
    list_exact,
    list_files,
    list_first_use,
    list_once,
    read_exact,
    read_files,
    read_first_use,
    read_once,
    repeat,
    shuffle_buffer,
    shuffle_exact,
)

__all__ = [
    "Part",
    "augment",
    "batch",
    "cache_bytes",
    "cache_decoded",
    "decode",
    "filled_cache",
    "list_exact",
    "list_files",
    "list_first_use",
    "list_once",
    "mix",
    "parse",
    "prefetch",
    "read_exact",
    "read_files",
    "read_first_use",
    "read_once",
    "repeat",
    "repeat_cached",
    "repeat_pass",
    "shuffle_buffer",
    "shuffle_exact",
]
