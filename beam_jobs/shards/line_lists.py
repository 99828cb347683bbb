"""The lists of lines beside the shards, bad images and duplicates, which are written in parts if they are large."""

import json
from collections.abc import Iterable, Iterator

from beam_jobs.shards.work_dir import WorkDir
from tfpipe.format import file_names
from tfpipe.storage import file_io
from tfpipe.writer.written_shard import WrittenShard


def encode_quarantine(work: WorkDir, shards: Iterable[WrittenShard]) -> Iterator[bytes]:
    """Yields the line about each bad image of some shards."""
    for shard in shards:
        if shard.num_left_out:
            yield from (json.dumps(line).encode() + b"\n" for line in work.read_left_out(shard.info.file))


def write_list(work: WorkDir, name: str, lines: Iterable[bytes]) -> None:
    """Writes a list of lines, in parts if it is large, and removes the parts that a longer list of another run left."""
    num_parts = 0
    for part in file_names.cut_list(lines):
        part_name = file_names.list_part_name(name, num_parts)
        with file_io.create(work.target(part_name), work.temporary(part_name), makes_folders=True) as out:
            out.writelines(part)
        num_parts += 1
    remove_parts(work, name, num_parts)


def remove_parts(work: WorkDir, name: str, first: int) -> None:
    """Removes the parts of a list from number `first` on."""
    folder, _, base = name.rpartition("/")
    for file in file_io.list_names(work.target(folder) if folder else work.output):
        part = file_names.parse_list_part(base, file)
        if part is not None and part >= first:
            file_io.remove(work.target(folder, file) if folder else work.target(file))
