"""The source of a job's records: image files, or the records of finished datasets, behind one set of methods.

source = open_source(header)
for image, read in source.read_all(planned_images):
record = read()                                     # or a `RejectedImage`, if none can be made of the image
"""

from typing import TypeAlias

from beam_jobs.shards.dataset_records import DatasetRecords
from beam_jobs.shards.image_files import ImageFiles
from beam_jobs.shards.work_dir import PlanHeader

RecordSource: TypeAlias = ImageFiles | DatasetRecords


def open_source(header: PlanHeader) -> RecordSource:
    """Returns the source that the plan names."""
    return ImageFiles(header) if header.records is None else DatasetRecords(header, header.records)
