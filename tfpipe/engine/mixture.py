"""Several datasets read as one, each with a fixed share of every batch: whole records, not drawn at random."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tfpipe.dataset.load import load_if_path, load_manifest
from tfpipe.engine.source import Source, get_source
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.system.units import shorten


@dataclass(frozen=True)
class Mixture:
    """The datasets that are read as one, from `mix`."""

    manifests: tuple[Manifest, ...]
    weights: tuple[float, ...]  # above 0; only their ratios count

    def __repr__(self) -> str:
        datasets = (f"{weight:g} of {data.address}" for weight, data in zip(self.weights, self.manifests, strict=True))
        return f"<{', '.join(datasets)}>"

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of all classes: those of the first dataset, then the new ones of each further dataset."""
        return tuple(dict.fromkeys(name for manifest in self.manifests for name in manifest.label_names))


def mix(weights: Mapping[str, float] | Mapping[os.PathLike[str], float]) -> Mixture:
    """Opens several datasets to be read as one. Classes with the same name become one class.

    Args:
        weights: A weight above 0 for each directory or URL of a dataset; they need not sum to 1.

    Raises:
        ConfigError: There is no dataset, a weight is not above 0, or only some datasets have labels.
        DataError: A directory is not a finished dataset.
        FormatError: A manifest cannot be used.
    """
    if not isinstance(weights, Mapping):
        raise ConfigError(
            f"`weights` must give each dataset a weight, as in {{'photos': 0.7}}, got {shorten(weights)}."
        )
    if not weights:
        raise ConfigError("A mixture must have a dataset, got none.")
    for directory, weight in weights.items():
        if not (isinstance(weight, int | float) and 0 < weight < float("inf")):
            raise ConfigError(f"A weight must be a number above 0, got {weight!r} for {directory}.")
    manifests = tuple(load_manifest(directory) for directory in weights)
    if compressed := next((manifest for manifest in manifests if not manifest.random_access), None):
        raise ConfigError(
            f"A mixture must have files that are not compressed; those of {compressed.directory} are. `tfpipe reshard "
            "--opaque` writes them so that each record is packed on its own."
        )
    if len({bool(manifest.label_names) for manifest in manifests}) > 1:
        without = next(manifest.directory for manifest in manifests if not manifest.label_names)
        raise ConfigError(f"All datasets of a mixture must have labels, or none; {without} has none.")
    return Mixture(manifests, tuple(float(weight) for weight in weights.values()))


def open_any(data: Manifest | Source | Mixture | str | os.PathLike[str]) -> Manifest | Source | Mixture:
    """Opens the manifest of the dataset at a path or URL; returns a manifest, files or a mixture unchanged."""
    return load_if_path(data, Manifest, Source, Mixture)


def get_whole_source(data: Manifest | Source | Mixture, split: str | None) -> Source:
    """Returns one source for all the data. That of a mixture has the records and classes of all its datasets."""
    if not isinstance(data, Mixture):
        return get_source(data, split)
    sources = [get_source(manifest, split) for manifest in data.manifests]
    return replace(
        sources[0],
        name=" and ".join(source.name for source in sources),
        files=tuple(path for source in sources for path in source.files),
        total_bytes=sum(source.total_bytes for source in sources),
        shard_records=tuple(source.epoch_records or 0 for source in sources),
        num_classes=len(data.label_names) or None,
        manifest=None,
        chosen=None,
    )


def apportion(weights: Sequence[float], total: int) -> tuple[int, ...]:
    """Divides the rows of a batch in proportion to weights, by the largest remainder method."""
    exact = [weight / sum(weights) * total for weight in weights]
    shares = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda index: (shares[index] - exact[index], index))
    for index in by_remainder[: total - sum(shares)]:
        shares[index] += 1
    if 0 in shares:
        index = shares.index(0)
        raise ConfigError(
            f"Every dataset of a mixture must have a share of each batch of {total}, and a weight of "
            f"{weights[index]:g} among {sum(weights):g} gives none. Raise it, or the batch size."
        )
    return tuple(shares)
