"""Writes a shard as a tar of WebDataset: the files of a sample lie side by side under one key.

```
000000017.jpg     the image file
000000017.cls     the class, counted from 0, if there is one
000000017.json    all other features
000000017.latents.npy   the tensor `latents`
000000017.mask.png      the mask, if there is one
```

Several images of a record are `000000017.0.jpg`, `000000017.1.jpg` and so on.

The key is the number of the record in its split, so no name of a file becomes a name in the tar.
"""

import io
import json
import re
import tarfile
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfpipe.export.samples import Sample, list_columns
from tfpipe.export.values import make_json_row
from tfpipe.format.manifest import Manifest
from tfpipe.format.schema import FeatureSpec

ENDING = "tar"


def write_webdataset(path: str, samples: Iterable[Sample], manifest: Manifest) -> None:
    """Writes a tar, whose bytes depend on the samples alone."""
    columns = list_columns(manifest)
    tensors = name_tensors(columns)
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for sample in samples:
            key = f"{sample.number:09d}"
            for number, file in enumerate(sample.files):
                place = f".{number}" if manifest.has_several_images else ""
                _add(tar, f"{key}{place}.{file.ending}", file.data)
            for mask in sample.masks:
                _add(tar, f"{key}.mask.png", mask)
            if sample.label is not None:
                _add(tar, f"{key}.cls", str(sample.label).encode())
            _add(tar, f"{key}.json", json.dumps(make_json_row(columns, sample)).encode())
            for name, ending in tensors.items():
                if name in sample.features:
                    _add(tar, f"{key}.{ending}", _save(sample.features[name]))


def name_tensors(columns: Iterable[FeatureSpec]) -> dict[str, str]:
    """Returns the ending of the file that holds each tensor: `latents.npy`, with `_` for what a path or a key takes."""
    endings: dict[str, str] = {}
    for spec in columns:
        if spec.kind == "tensor":
            name = re.sub(r"[^A-Za-z0-9_-]", "_", spec.name).lower()
            while f"{name}.npy" in endings.values():
                name += "_"
            endings[spec.name] = f"{name}.npy"
    return endings


def _save(array: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))
