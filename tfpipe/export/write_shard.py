"""Writes one shard in another format. This is the work of an export's worker process."""

import json
from dataclasses import asdict, dataclass

from tfpipe.errors import DataError
from tfpipe.export import array_record, parquet, webdataset
from tfpipe.export.config import Format
from tfpipe.export.samples import ShardJob, read_payloads, read_samples
from tfpipe.format.manifest import Manifest
from tfpipe.integrity.check_file import Counters, FileReport, Progress
from tfpipe.storage import file_io
from tfpipe.writer.working_folder import WorkingFolder


@dataclass(frozen=True, slots=True)
class Written:
    """The part of an export that came from one shard.

    Attributes:
        split: The split.
        records: The number of records.
        files: The number of files.
        bytes: The size of the files.
    """

    split: str
    records: int
    files: int
    bytes: int


class Workshop(WorkingFolder):
    """The working folder of an unfinished export. Besides what every job keeps it has `parts/`: unfinished files."""

    ending = ".tfpipe-export"
    parts = ("parts", "rows", "data")

    def load(self, job: ShardJob) -> Written | None:
        """Reads the description of what a shard became; None if it is not finished."""
        try:
            return Written(**json.loads(file_io.read_whole(self.path("rows", f"{job.name}.json"))))
        except FileNotFoundError:
            return None


def export_shard(to: Format, manifest: Manifest, workshop: Workshop, counters: Counters | None, job: ShardJob) -> None:
    """Writes a shard and then its description, unless an earlier run did.

    Raises:
        FormatError: The shard is damaged, or an image is not an image file.
        DataError: The shard cannot be read, or the result cannot be written.
    """
    progress = Progress(counters)
    shard = job.file.shard
    assert shard is not None
    if workshop.load(job) is not None:
        progress.done(FileReport(job.file, shard.records, shard.bytes))
        return
    try:
        num_bytes = _write(to, manifest, workshop, progress, job)
        written = Written(job.file.split, job.num_records, 1, num_bytes)
        file_io.write_file(workshop.path("rows", f"{job.name}.json"), json.dumps(asdict(written)).encode())
    except OSError as error:
        raise DataError(f"{job.file.path} cannot be exported: {error.strerror or error}.") from error


def _write(to: Format, manifest: Manifest, workshop: Workshop, progress: Progress, job: ShardJob) -> int:
    """Writes a shard, and returns the bytes of its file."""
    shard = job.file.shard
    assert shard is not None
    endings = {"webdataset": webdataset.ENDING, "parquet": parquet.ENDING, "arrayrecord": array_record.ENDING}
    target, temporary = workshop.result(f"{job.name}.{endings[to]}"), workshop.path("parts", f"{job.name}.tmp")
    with file_io.create(target, temporary, expected_bytes=shard.bytes) as file:
        if to == "arrayrecord":
            array_record.write_array_record(file, (payload for _, payload in read_payloads(job, manifest, progress)))
        else:
            write = webdataset.write_webdataset if to == "webdataset" else parquet.write_parquet
            write(file, read_samples(job, manifest, progress), manifest)
        return file.tell()
