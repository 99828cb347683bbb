"""The sources of a job's records: image files, or the records of finished datasets.

`tfpipe shard` makes records of image files, `reshard` and `merge` copy those of finished datasets. All that differs
between the two once the shards are planned is behind one interface:

    source = open_source(header)
    for image, read in source.read_all(planned_images):
        record = read()
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from beam_jobs.plan.image_ref import PlannedImage
from beam_jobs.shards.dataset_records import DatasetRecords
from beam_jobs.shards.image_files import ImageFiles
from beam_jobs.shards.record import Record
from beam_jobs.shards.work_dir import PlanHeader, PlannedShard, WorkDir


class RecordSource(Protocol):
    """The source of a job's records."""

    @property
    def image_form(self) -> Mapping[str, Any]:
        """The form of the stored images, as the manifest records it."""

    @property
    def changed(self) -> Mapping[str, int]:
        """The number of images that were changed before this job, by the kind of change."""

    @property
    def noticed(self) -> Mapping[str, int]:
        """The number of images with a property that was noticed before this job, by property."""

    @property
    def is_seekable(self) -> Callable[[bytes], bool] | None:
        """The function that tells a stored JPEG with restart markers; None if there are none."""

    @property
    def advice(self) -> str:
        """The advice about bad images, as a part of a sentence."""

    def get_fingerprint_facts(self) -> dict[str, Any]:
        """Returns the facts that shape the dataset besides the header's other fields, as JSON values."""

    def read_all(self, planned: Iterable[PlannedImage]) -> Iterator[tuple[PlannedImage, Callable[[], Record]]]:
        """Yields each image with the function that makes its record.

        The function raises a `RejectedImage` if the image cannot be read, or if no record can be made of it.
        """

    def save_names(self, work: WorkDir, file: str, names: Sequence[str]) -> None:
        """Saves the names of the images in a shard, in the order of its records, if the plan does not hold them."""

    def list_names(self, work: WorkDir, planned: PlannedShard) -> list[str]:
        """Returns the names of the images in a finished shard, in the order of its records."""


def open_source(header: PlanHeader) -> RecordSource:
    """Returns the source that the plan names."""
    return ImageFiles(header) if header.records is None else DatasetRecords(header, header.records)
