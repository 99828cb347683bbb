"""All that was listed in the input of a job. Every kind of input fills one `Listing`, and the plan is made from it."""

from collections import Counter
from dataclasses import dataclass

from beam_jobs.plan.image_table import ImageTable
from beam_jobs.plan.merge_manifests import United
from tfpipe.format.schema import FeatureSpec


@dataclass(frozen=True, slots=True)
class Listing:
    """All that was listed in the input.

    Attributes:
        name: A short name of the input, for the dataset.
        root: The folder that relative locations start from.
        images: The images, in any order.
        label_names: The class names; a name's position is its label. It is empty for unlabeled images.
        extra: The features of the table's further columns.
        skipped: The number of files that were passed over, by reason.
        numeric_labels: Whether the input gives labels as numbers. `label_names` are these numbers as text.
        dropped: The number of images that were left out because others hold the same bytes.
        unpack: The compressed tar files that must be unpacked before a worker can read from them at an offset.
        united: What finished datasets make together, where they are the input. Their images stand in the order to
            keep where nothing is shuffled, have the place of a record for a path, and know no label.
    """

    name: str
    root: str
    images: ImageTable
    label_names: tuple[str, ...] = ()
    extra: tuple[FeatureSpec, ...] = ()
    skipped: Counter[str] | None = None
    numeric_labels: bool = False
    dropped: int = 0
    unpack: tuple[str, ...] = ()
    united: United | None = None
