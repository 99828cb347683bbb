"""ShardConfig: everything that the job can be asked for. Frozen, validated, without Beam."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tfpipe.errors import ConfigError
from tfpipe.format.file_names import check_split_name
from tfpipe.format.image_form import ImageForm

DEFAULT_MAX_BAD_SHARE = 0.01
DEFAULT_MAX_BAD_AT_LEAST = 10


@dataclass(frozen=True)
class ShardConfig:
    """What goes in, what comes out, and how.

    Attributes:
        input: A folder, a CSV, JSONL or Parquet manifest, or a tar or zip archive; a path or URL.
        output: The dataset directory to write; a path or URL.
        split: Name of the one split; None: `train`, unless the input names splits or `splits` is given.
        splits: Share of each split, summing to 1; images are assigned by a stable hash of their path.
        group_by: Column of the manifest whose equal values must come into one split.
        labels: File with one class name per line, fixing the labels; None: names in sorted order.
        num_shards: Shards of every split; None: decided from `shard_size_bytes`. Never more than images.
        shard_size_bytes: Size of a shard where `num_shards` is None. 128 MiB: large enough that opening a file
            costs nothing beside reading it, small enough for hundreds of them in a data set the size of ImageNet;
            the tf.data guide asks for 100 MB and more.
        shuffle: Mix all images of a split; False: by path.
        seed: Seed of the shuffle; 64 bits.
        form: What the stored images shall look like.
        max_bad: How many images may be quarantined: a count (int) or a share (float below 1);
            None: 1 %, but never fewer than 10.
        keep_quarantined: Store the bytes of quarantined images too.
        drop_duplicates: Leave out all but one of the images with equal bytes.
        overwrite: Replace another dataset in `output` once the new one is complete.
        workers: Processes that read, check and write; 0: one per core.
        datasets: Finished datasets whose records go in, united, instead of what `input` holds; they bring their own
            splits, labels and image form. `input` then is their name for messages.
        form_changes: Fields of `ImageForm` to change in the images of `datasets`; empty: they stay as they are.
    """

    input: str
    output: str
    split: str | None = None
    splits: Mapping[str, float] = field(default_factory=dict)
    group_by: str | None = None
    labels: str | None = None
    num_shards: int | None = None
    shard_size_bytes: int = 128 * 2**20
    shuffle: bool = True
    seed: int = 0
    form: ImageForm = field(default_factory=ImageForm)
    max_bad: int | float | None = None
    keep_quarantined: bool = False
    drop_duplicates: bool = False
    overwrite: bool = False
    workers: int = 0
    datasets: tuple[str, ...] = ()
    form_changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The paths or URLs to read from."""
        return self.datasets or (self.input,)

    def __post_init__(self) -> None:
        if self.split is not None:
            check_split_name(self.split)
            if self.splits:
                raise ConfigError("--split and --splits exclude each other.")
        self._check_splits()
        if self.group_by and not self.splits:
            raise ConfigError("--group-by keeps groups together between --splits; give --splits too.")
        if self.num_shards is not None and self.num_shards < 1:
            raise ConfigError(f"`num_shards` must be at least 1, got {self.num_shards}.")
        if not -(2**63) <= self.seed < 2**63:
            raise ConfigError(f"`seed` must fit into 64 bits, got {self.seed}.")
        if self.shard_size_bytes < 1:
            raise ConfigError(f"`shard_size_bytes` must be at least 1, got {self.shard_size_bytes}.")
        if self.max_bad is not None and not (
            self.max_bad >= 0 and (isinstance(self.max_bad, int) or self.max_bad <= 1)
        ):
            raise ConfigError(f"`max_bad` must be a count or a share between 0 and 1, got {self.max_bad}.")
        if self.workers < 0:
            raise ConfigError(f"`workers` must be at least 1, or 0 for all cores, got {self.workers}.")
        if self.form_changes and not self.datasets:
            raise ConfigError("`form_changes` are for `datasets`; the form of images is `form`.")

    def _check_splits(self) -> None:
        for name, share in self.splits.items():
            check_split_name(name)
            if not 0 < share <= 1:
                raise ConfigError(f"The share of split {name!r} must be above 0 and at most 1, got {share}.")
        if self.splits and not math.isclose(sum(self.splits.values()), 1, abs_tol=1e-6):
            raise ConfigError(f"The shares of --splits must add up to 1, got {sum(self.splits.values()):g}.")

    def max_bad_images(self, num_images: int) -> int:
        """How many of `num_images` may be quarantined."""
        if self.max_bad is None:
            return max(DEFAULT_MAX_BAD_AT_LEAST, int(num_images * DEFAULT_MAX_BAD_SHARE))
        return self.max_bad if isinstance(self.max_bad, int) else int(num_images * self.max_bad)
