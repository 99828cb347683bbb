"""Files, shards, images and labels, with numbers written by hand."""

from typing import Any

import numpy as np
import pytest

from tfpipe.doctor.data_checks import (
    check_decoder,
    check_files,
    check_first_record,
    check_image_size,
    check_labels,
    check_shard_size,
    check_shards,
    measure_alikeness,
)
from tfpipe.doctor.result import Check

COPY = "Copy the dataset again; `tfpipe verify` looks at every record."


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (
            ({"a": 10, "a.idx": None}, {"a": 10, "a.idx": 3}, 2),
            Check("files", "ok", "All 2 files are there, with the sizes they should have."),
        ),
        (
            ({"a": 10}, {"a": 10}, 2000),
            Check("files", "ok", "1 of 2,000 files were looked at: there, with the sizes they should have."),
        ),
        (
            ({"a": 10, "b": 1, "c": 1}, {"a": None, "b": None, "c": 1}, 3),
            Check("files", "failure", "a and 1 more are missing.", COPY),
        ),
        (({"a": 10}, {"a": None}, 1), Check("files", "failure", "a is missing.", COPY)),
        (
            ({"a": 1000, "b": 1}, {"a": 10, "b": 1}, 2),
            Check("files", "failure", "a must have 1,000 bytes, got 10.", COPY),
        ),
        (
            ({"a": None}, {"a": 0}, 1),
            Check("files", "warning", "a is empty.", "Check how the files were written."),
        ),
    ],
    ids=["all", "some", "missing", "one missing", "size", "empty"],
)
def test_files(facts: tuple[Any, ...], expected: Check) -> None:
    assert check_files(*facts) == expected


def test_first_record() -> None:
    assert check_first_record(None, (375, 500, 3)) == Check("first record", "ok", "It decodes to 375 × 500 × 3.")
    assert check_first_record("Unknown image file format") == Check(
        "first record",
        "failure",
        "The first record cannot be decoded: Unknown image file format.",
        "Run `tfpipe verify` to find all damaged records, or set `max_bad_records`.",
    )


@pytest.mark.parametrize(
    ("shards", "hosts", "cycle", "by_record", "expected"),
    [
        (2, 4, 8, True, Check("shards", "ok", "2 shards; hosts share out records, so any number will do.")),
        (64, 4, 8, False, Check("shards", "ok", "64 shards, 16 for each host, of which 8 are read side by side.")),
        (
            16,
            4,
            8,
            False,
            Check(
                "shards",
                "warning",
                "4 shards for each host, fewer than the `tf_data.cycle_length` of 8.",
                "Set `tf_data.cycle_length` to 4, write 32 shards or more, or read in exact order.",
            ),
        ),
        (
            3,
            4,
            8,
            False,
            Check(
                "shards",
                "failure",
                "4 hosts read whole shards, and there are only 3.",
                "Write 4 or more with `tfpipe shard --num-shards`, or read in exact order.",
            ),
        ),
    ],
)
def test_shards(shards: int, hosts: int, cycle: int, by_record: bool, expected: Check) -> None:
    assert check_shards(shards, hosts, cycle, by_record) == expected


@pytest.mark.parametrize(
    ("shards", "mean", "largest", "expected"),
    [
        (1024, 140e6, 150 * 10**6, Check("shard size", "ok", "140.0 MB on average, 150.0 MB at most.")),
        (8, 1e5, 10**5, Check("shard size", "ok", "100.0 KB on average, 100.0 KB at most.")),
        (
            5000,
            1e6,
            2 * 10**6,
            Check(
                "shard size",
                "warning",
                "5,000 shards of 1.0 MB on average, 2.0 MB at most: opening them costs more than reading.",
                "Write larger ones with `tfpipe shard --shard-size 128MiB`.",
            ),
        ),
        (
            8,
            3e9,
            4 * 10**9,
            Check(
                "shard size",
                "warning",
                "3.0 GB on average, 4.0 GB at most: TPU guides advise 100 to 200 MB, which share out and copy better.",
                "Write smaller ones with `tfpipe shard --shard-size 128MiB`.",
            ),
        ),
    ],
)
def test_shard_size(shards: int, mean: float, largest: int, expected: Check) -> None:
    assert check_shard_size(shards, mean, largest) == expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (
            (400, 224, "The stored images"),
            Check(
                "image size",
                "ok",
                "The stored images have a mean short side of about 400 px, and the model gets 224.",
            ),
        ),
        (
            (128, 224, "The stored images", True),
            Check(
                "image size",
                "warning",
                "The stored images have a short side of 128 px, and the model gets 224: they are enlarged, which "
                "costs time and adds no detail.",
                "Use a smaller `image_size`, or shard larger originals.",
            ),
        ),
        (
            (1080, 224, "The first image"),
            Check(
                "image size",
                "warning",
                "The first image has a short side of 1,080 px, and the model gets 224.",
                "`tfpipe shard --resize-short 256` or so makes them faster to read and to decode.",
            ),
        ),
    ],
    ids=["right", "small", "large"],
)
def test_image_size(facts: tuple[Any, ...], expected: Check) -> None:
    assert check_image_size(*facts) == expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (("native", None), Check("decoder", "ok", "The native library decodes, crops and resizes in one call.")),
        (
            ("tensorflow", "it was not built"),
            Check(
                "decoder",
                "ok",
                "TensorFlow decodes. The native library is faster, and it was not built.",
                "Install tfpipe again where a C compiler is: the library takes about 0.7 of the processor time.",
            ),
        ),
        (("tensorflow", None), Check("decoder", "ok", "TensorFlow decodes.")),
    ],
    ids=["native", "missing", "unfit"],
)
def test_decoder(facts: tuple[str, str | None], expected: Check) -> None:
    assert check_decoder(*facts) == expected


SORTED = [np.full(256, label, np.int64) for label in (0, 3, 5, 9)]
MIXED = list(np.random.default_rng(0).integers(0, 10, (4, 256)))
EVEN = (100,) * 10


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (
            ([np.zeros(12, np.int64)], EVEN, 0.4, 8),
            Check(
                "labels",
                "ok",
                "12 labels were looked at, too few to tell whether they are sorted. The order mixes 0.40 of 1.",
            ),
        ),
        (
            (MIXED, EVEN, 0.05, 256),
            Check(
                "labels",
                "ok",
                "Labels of 1,024 records in 4 places are mixed as by chance. The order mixes 0.05 of 1.",
            ),
        ),
        (
            (SORTED, EVEN, 0.53, 256),
            Check(
                "labels",
                "warning",
                "Records that lie together have like labels (100% of the way from chance to sorted); of a batch of "
                "256, 53% count as drawn independently. The order mixes 0.53 of 1.",
                "Lower `block_records`, or shard again: `tfpipe shard` shuffles.",
            ),
        ),
        (
            (SORTED, EVEN, 0.9, 256),
            Check(
                "labels",
                "ok",
                "Records that lie together have like labels (100% of the way from chance to sorted); of a batch of "
                "256, 90% count as drawn independently. The order mixes 0.90 of 1.",
            ),
        ),
        (
            (SORTED, EVEN, None, 256, 0.0021),
            Check(
                "labels",
                "warning",
                "Records that lie together have like labels (100% of the way from chance to sorted), and the shuffle "
                "buffer holds 0.2% of the records.",
                "Read in exact order, enlarge `tf_data.shuffle_buffer_size`, or write the data with `tfpipe shard`, "
                "which shuffles.",
            ),
        ),
        (
            (SORTED, EVEN, None, 256, 1.0),
            Check(
                "labels",
                "ok",
                "Records that lie together have like labels (100% of the way from chance to sorted). The shuffle "
                "buffer holds all of them.",
            ),
        ),
    ],
    ids=["few", "mixed", "sorted", "sorted, well mixed", "sorted, buffer", "sorted, whole buffer"],
)
def test_labels(facts: tuple[Any, ...], expected: Check) -> None:
    assert check_labels(*facts) == expected


def test_alikeness_of_mixed_labels_is_0_whatever_the_classes() -> None:
    random = np.random.default_rng(1)
    for shares in ([0.5, 0.5], [0.9, 0.1], [0.05] * 20, [0.98, 0.01, 0.01]):
        for length in (16, 64, 256):
            samples = list(random.choice(len(shares), (4, length), p=shares))
            assert measure_alikeness(samples, [round(1000 * share) for share in shares]) <= 0.1


def test_alikeness_of_shards_with_a_few_classes_each() -> None:
    random = np.random.default_rng(2)
    samples = [random.integers(10 * shard, 10 * shard + 2, 256) for shard in range(4)]
    assert measure_alikeness(samples, (10,) * 100) == pytest.approx(0.48, abs=0.03)


def test_alikeness_without_counts_is_that_of_the_samples() -> None:
    assert measure_alikeness(SORTED) > 0.8
    assert measure_alikeness(MIXED) < 0.05
    assert measure_alikeness([np.zeros(256, np.int64)]) == 0.0  # one class: nothing to tell apart
    assert measure_alikeness([np.zeros(1, np.int64)]) == 0.0
    assert measure_alikeness([]) == 0.0
