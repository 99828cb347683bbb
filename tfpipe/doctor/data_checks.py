"""The checks of files, their sizes, images and labels. Pure: plain values in, a `Check` out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tfpipe.doctor.result import Check
from tfpipe.system.units import human_bytes, human_count

_SMALL_SHARD_BYTES, _MANY_SHARDS = 10 * 10**6, 1000
_HUGE_SHARD_BYTES = 10**9
_TOO_LARGE = 2.0  # times the needed side; above it pixels are read and decoded in vain
_TOO_SMALL = 1.0

_ENOUGH_LABELS = 64
_ALIKE = 0.1  # on the scale from chance (0) to all alike (1)
_MIXED_ENOUGH = 0.7  # below this score clearly fewer images of a batch are independent than it has

IntArray = NDArray[np.int64]


def check_files(expected: Mapping[str, int | None], actual: Mapping[str, int | None], total: int) -> Check:
    """Checks that shards and indexes exist with the sizes in the manifest.

    Args:
        expected: The bytes of each file that was looked at; None if any size above 0 will do.
        actual: The bytes that it has; None for a file that is missing or cannot be read.
        total: The number of files of the split, also those that were not looked at.
    """
    advice = "Copy the dataset again; `tfpipe verify` looks at every record."
    missing = [path for path in expected if actual.get(path) is None]
    if missing:
        return Check("files", "failure", f"{_name_first(missing)} missing.", advice)
    odd_sized = [path for path, size in expected.items() if actual[path] != size and size is not None]
    if odd_sized:
        path = odd_sized[0]
        finding = f"{path} must have {expected[path]:,} bytes, got {actual[path]:,}{_count_more(odd_sized)}."
        return Check("files", "failure", finding, advice)
    empty = [path for path in expected if actual[path] == 0]
    if empty:
        return Check("files", "warning", f"{_name_first(empty)} empty.", "Check how the files were written.")
    num_checked = len(expected)
    which = (
        f"All {num_checked:,} files are"
        if num_checked == total
        else f"{num_checked:,} of {total:,} files were looked at:"
    )
    return Check("files", "ok", f"{which} there, with the sizes they should have.")


def check_first_record(error: str | None, shape: Sequence[int] = ()) -> Check:
    """Checks that the first record decodes; `error` says why it does not."""
    if error is not None:
        advice = "Run `tfpipe verify` to find all damaged records, or set `max_bad_records`."
        return Check("first record", "failure", f"The first record cannot be decoded: {error}.", advice)
    decoded = f"It decodes to {' × '.join(map(str, shape))}." if shape else "It can be read, and has no image."
    return Check("first record", "ok", decoded)


def check_shards(num_shards: int, num_hosts: int, cycle_length: int, shares_records: bool) -> Check:
    """Checks that there are enough shards to be read side by side.

    Args:
        num_shards: Files of the split.
        num_hosts: Hosts that share them.
        cycle_length: Files that a host reads side by side.
        shares_records: Whether hosts share out records and not shards, as in the exact order and in evaluation.
    """
    name = "shards"
    shards, per_host = human_count(num_shards, "shard"), num_shards // num_hosts
    if shares_records:
        return Check(name, "ok", f"{shards}; hosts share out records, so any number will do.")
    if not per_host:
        advice = f"Write {num_hosts} or more with `tfpipe shard --num-shards`, or read in exact order."
        return Check(name, "failure", f"{num_hosts} hosts read whole shards, and there are only {num_shards}.", advice)
    if per_host < cycle_length:
        enough = cycle_length * num_hosts
        advice = f"Set `tf_data.cycle_length` to {per_host}, write {enough} shards or more, or read in exact order."
        finding = (
            f"{human_count(per_host, 'shard')} for each host, fewer than the `tf_data.cycle_length` of {cycle_length}."
        )
        return Check(name, "warning", finding, advice)
    return Check(name, "ok", f"{shards}, {per_host:,} for each host, of which {cycle_length} are read side by side.")


def check_shard_size(num_shards: int, mean_bytes: float, largest_bytes: int) -> Check:
    """Checks that shards have about 100 to 200 MB; it warns only if many are tiny or some are huge."""
    name, finding = "shard size", f"{human_bytes(mean_bytes)} on average, {human_bytes(largest_bytes)} at most"
    rule = "TPU guides advise 100 to 200 MB"
    if num_shards > _MANY_SHARDS and mean_bytes < _SMALL_SHARD_BYTES:
        advice = "Write larger ones with `tfpipe shard --shard-size 128MiB`."
        return Check(
            name, "warning", f"{num_shards:,} shards of {finding}: opening them costs more than reading.", advice
        )
    if largest_bytes > _HUGE_SHARD_BYTES:
        advice = "Write smaller ones with `tfpipe shard --shard-size 128MiB`."
        return Check(name, "warning", f"{finding}: {rule}, which share out and copy better.", advice)
    return Check(name, "ok", f"{finding}.")


def check_image_size(stored: float, target: int, subject: str, fixed: bool = False) -> Check:
    """Checks that images are stored about as large as the model takes them.

    Args:
        stored: The mean short side as stored, in pixels.
        target: The side that the model gets, in pixels.
        subject: The images in a sentence: "The stored images" or "The first image".
        fixed: Whether all images are stored in one size.
    """
    name = "image size"
    about = "a short side of" if fixed or subject.startswith("The first") else "a mean short side of about"
    verb = "has" if subject.startswith("The first") else "have"
    finding = f"{subject} {verb} {about} {stored:,.0f} px, and the model gets {target}"
    if stored < _TOO_SMALL * target:
        advice = "Use a smaller `image_size`, or shard larger originals."
        return Check(name, "warning", f"{finding}: they are enlarged, which costs time and adds no detail.", advice)
    if stored > _TOO_LARGE * target:
        keep = round(target * 8 / 7 / 32 + 0.5) * 32
        advice = f"`tfpipe shard --resize-short {keep}` or so makes them faster to read and to decode."
        return Check(name, "warning", f"{finding}.", advice)
    return Check(name, "ok", f"{finding}.")


def check_decoder(decoder: str, missing: str | None) -> Check:
    """Tells who decodes the images.

    Args:
        decoder: The decoder of the plan, "native" or "tensorflow".
        missing: Why the native library cannot be used; None if it can, or if it would not decode these images.
    """
    name = "decoder"
    if decoder == "native":
        return Check(name, "ok", "The native library decodes, crops and resizes in one call.")
    if missing is not None:
        advice = "Install tfpipe again where a C compiler is: the library takes about 0.7 of the processor time."
        return Check(name, "ok", f"TensorFlow decodes. The native library is faster, and {missing}.", advice)
    return Check(name, "ok", "TensorFlow decodes.")


def check_labels(
    samples: Sequence[IntArray],
    class_counts: Sequence[int],
    mixing: float | None,
    batch_size: int,
    buffer_share: float = 0.0,
) -> Check:
    """Checks that labels are mixed: in the files, or by the order in which they are read.

    Args:
        samples: The labels of adjacent records, one array for each place that was looked at.
        class_counts: The records of each class; empty if they were never counted.
        mixing: The score of the exact order, see `tfpipe.engine.order.mixing_score`; None for the throughput order.
        batch_size: The images of one step.
        buffer_share: The share of the records that the throughput order's shuffle buffer holds.
    """
    name = "labels"
    score = "" if mixing is None else f" The order mixes {mixing:.2f} of 1."
    num_labels = sum(map(len, samples))
    if num_labels < _ENOUGH_LABELS:
        return Check(name, "ok", f"{num_labels} labels were looked at, too few to tell whether they are sorted.{score}")
    alike = measure_alikeness(samples, class_counts)
    if alike <= _ALIKE:
        finding = f"Labels of {num_labels:,} records in {human_count(len(samples), 'place')} are mixed as by chance."
        return Check(name, "ok", finding + score)
    finding = f"Records that lie together have like labels ({alike:.0%} of the way from chance to sorted)."
    if mixing is None:
        if buffer_share >= 1:
            return Check(name, "ok", f"{finding} The shuffle buffer holds all of them.")
        held = f"the shuffle buffer holds {buffer_share:.1%} of the records"
        advice = (
            "Read in exact order, enlarge `tf_data.shuffle_buffer_size`, or write the data with `tfpipe shard`, which "
            "shuffles."
        )
        return Check(name, "warning", f"{finding[:-1]}, and {held}.", advice)
    # Kish's design effect counts pairs that are certainly alike. Here only this share of them is.
    effective = 1 / (1 + (1 / mixing - 1) * alike)
    kept = f"of a batch of {batch_size:,}, {effective:.0%} count as drawn independently"
    if effective >= _MIXED_ENOUGH:
        return Check(name, "ok", f"{finding[:-1]}; {kept}.{score}")
    advice = "Lower `block_records`, or shard again: `tfpipe shard` shuffles."
    return Check(name, "warning", f"{finding[:-1]}; {kept}.{score}", advice)


def measure_alikeness(samples: Sequence[IntArray], class_counts: Sequence[int] = ()) -> float:
    """Returns how much more often two adjacent records share a label than two random records; 0 to 1.

    Neighbors show a sort by label, and pairs within one sample show shards with a few classes each. The larger of the
    two counts.
    """
    samples = [sample for sample in samples if len(sample) > 1]
    if not samples:
        return 0.0
    counts = np.asarray(class_counts, np.float64)
    if not counts.sum():
        counts = np.unique(np.concatenate(samples), return_counts=True)[1].astype(np.float64)
    shares = counts / counts.sum()
    chance = float((shares**2).sum())
    if chance >= 1:
        return 0.0  # all records have one class
    adjacent = np.concatenate([sample[1:] == sample[:-1] for sample in samples])
    pairs = equal = 0
    for sample in samples:
        sizes = np.unique(sample, return_counts=True)[1]
        pairs += len(sample) * (len(sample) - 1)
        equal += int((sizes * (sizes - 1)).sum())
    # Few labels may be alike by accident, so three standard deviations do not count.
    accident = 3 * (chance * (1 - chance) / adjacent.size) ** 0.5
    spread = float((shares**3).sum()) - chance**2
    accident_of_pairs = 3 * (4 * max(spread, 0) / (adjacent.size + 1) + 2 * chance * (1 - chance) / pairs) ** 0.5
    together: float = max(float(adjacent.mean()) - accident, equal / pairs - accident_of_pairs)
    return max(together - chance, 0.0) / (1.0 - chance)


def _name_first(paths: Sequence[str]) -> str:
    return f"{paths[0]}{_count_more(paths)} {'is' if len(paths) == 1 else 'are'}"


def _count_more(paths: Sequence[str]) -> str:
    return f" and {len(paths) - 1:,} more" if len(paths) > 1 else ""
