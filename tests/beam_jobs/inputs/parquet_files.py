"""Parquet files that hold images, as Hugging Face's `datasets` writes them, and damage in them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

IMAGE = pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})


def write_parquet(
    path: Path, images: Sequence[Any], group_rows: int = 2, metadata: str | None = None, **columns: Any
) -> Path:
    structs = [{"bytes": image, "path": None} if isinstance(image, bytes) else image for image in images]
    table = pyarrow.table({"image": pyarrow.array(structs, IMAGE), **columns})
    if metadata is not None:
        table = table.replace_schema_metadata({"huggingface": metadata})
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(table, path, row_group_size=group_rows, use_dictionary=False)
    return path


def describe_classes(*names: Any, column: str = "label") -> str:
    features = {"image": {"_type": "Image"}, column: {"_type": "ClassLabel", "names": list(names)}}
    return json.dumps({"info": {"features": features}})


def damage(path: Path, column: str, group: int) -> None:
    metadata = pyarrow.parquet.ParquetFile(path).metadata.row_group(group)
    chunks = [metadata.column(k) for k in range(metadata.num_columns)]
    chunk = next(chunk for chunk in chunks if chunk.path_in_schema == column)
    with path.open("r+b") as file:
        file.seek(chunk.data_page_offset)
        file.write(b"\xff" * chunk.total_compressed_size)
