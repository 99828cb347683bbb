"""Tables that name images, and Parquet files that hold them, as Hugging Face's `datasets` writes them."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

IMAGE = pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})


def write_columns(path: Path, columns: Mapping[str, Any], group_rows: int = 3, metadata: Any = None) -> Path:
    """Writes columns as a Parquet file without dictionaries."""
    table = pyarrow.table(dict(columns)).replace_schema_metadata(metadata)
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(table, path, row_group_size=group_rows, use_dictionary=False)
    return path


def write_parquet(path: Path, images: Sequence[Any], metadata: Any = None, group_rows: int = 2, **columns: Any) -> Path:
    structs = [{"bytes": image, "path": None} if isinstance(image, bytes) else image for image in images]
    columns = {"image": pyarrow.array(structs, IMAGE), **columns}
    return write_columns(path, columns, group_rows, None if metadata is None else {"huggingface": metadata})


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Writes rows as CSV, with lists as JSON, as JSONL or as Parquet: the name says which."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, [*dict.fromkeys(name for row in rows for name in row)])
            writer.writeheader()
            for row in rows:
                writer.writerow({k: json.dumps(v) if isinstance(v, list) else v for k, v in row.items()})
    elif path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
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
