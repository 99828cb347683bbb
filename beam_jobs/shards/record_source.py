"""The source of a job's records: image files, or the records of finished datasets, behind one set of methods."""

from typing import TypeAlias

from beam_jobs.shards.dataset_records import DatasetRecords
from beam_jobs.shards.image_files import ImageFiles
from beam_jobs.shards.work_dir import PlanHeader

RecordSource: TypeAlias = ImageFiles | DatasetRecords


def open_source(header: PlanHeader) -> RecordSource:
    """Returns the source that the plan names."""
    return ImageFiles(header) if header.records is None else DatasetRecords(header, header.records)
