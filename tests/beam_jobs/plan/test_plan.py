"""Exact plans of listings made by hand and of every kind of input, and properties that hold for all plans."""

import hashlib
from bisect import bisect_right
from collections import Counter
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from beam_jobs.config import ShardConfig
from beam_jobs.plan import image_table, plan
from beam_jobs.plan.image_ref import ImageLocation, ImageRef, PlannedImage
from beam_jobs.plan.image_table import ImageTable
from beam_jobs.plan.listing import Listing
from beam_jobs.plan.plan import Plan, sort_by_hash
from beam_jobs.shard_job import plan_listing
from tests.beam_jobs.plans import CASES, make_plan, read_lines
from tests.refusals import refusal
from tfpipe.errors import ConfigError, DataError
from tfpipe.format.file_names import shard_name

# These are written down, so that no version of any library changes the order of a dataset unseen.
GOLDEN = {
    "train-00000-of-00003.tfrecord": ["a/2.jpg", "b/3.jpg"],
    "train-00001-of-00003.tfrecord": ["b/1.jpg", "a/0.jpg"],
    "train-00002-of-00003.tfrecord": ["a/6.jpg", "a/4.jpg", "b/5.jpg"],
}


def make_refs(count: int, size: int = 100) -> list[ImageRef]:
    return [ImageRef(f"{'ab'[i % 2]}/{i}.jpg", size, label="ab"[i % 2]) for i in range(count)]


def plan_refs(refs: list[ImageRef], fields: dict[str, Any] | None = None, **options: Any) -> Plan:
    labels = tuple(sorted({ref.label for ref in refs if ref.label is not None}))
    listing = Listing("photos", "/photos", ImageTable.from_refs(refs), **{"label_names": labels, **(fields or {})})
    return plan_listing(listing, ShardConfig("/photos", "/out", **options))


def list_paths(plan: Plan) -> dict[str, list[str]]:
    paths = [[image.path for image in lines] for lines in read_lines(plan)]
    return dict(zip([shard.file for shard in plan.shards], paths, strict=True))


def test_shards_are_exactly_these() -> None:
    plan = plan_refs(make_refs(7), num_shards=3)
    assert list_paths(plan) == GOLDEN
    keyed = sorted(
        (ref.path for ref in make_refs(7)),
        key=lambda path: blake2b(path.encode(), digest_size=8, key=b"0").digest()[::-1],
    )
    assert [path for shard in list_paths(plan).values() for path in shard] == keyed
    assert [(shard.split, shard.shard_index, shard.num_shards, shard.images) for shard in plan.shards] == [
        ("train", 0, 3, 2),
        ("train", 1, 3, 2),
        ("train", 2, 3, 3),
    ]
    assert (plan.shard_bytes, plan.class_counts) == ((200, 200, 300), {"train": [4, 3]})
    assert (plan.num_images, plan.num_bytes) == (7, 700)


def test_lines_are_exactly_these() -> None:
    details = {"boxes": ((0.0, 0.0, 1.0, 1.0),), "box_labels": (3,), "extra": ("e",)}
    zipped = ImageRef("b/1.jpg", 5, ImageLocation("x.zip", 30, 4, 77), label="b", **details)
    plan = plan_refs([zipped, ImageRef("a/1.jpg", 6, label="a")], shuffle=False)
    assert read_lines(plan)[0] == [
        PlannedImage("a/1.jpg", 6, 0),
        PlannedImage("b/1.jpg", 5, 1, ImageLocation("x.zip", 30, 4, 77), [[0.0, 0.0, 1.0, 1.0]], [3], ["e"]),
    ]
    unlabeled = plan_refs([ImageRef("1.jpg", 5)])
    assert read_lines(unlabeled) == [[PlannedImage("1.jpg", 5, -1)]]
    assert unlabeled.class_counts == {"train": []}


@pytest.mark.parametrize(
    ("shard_size", "num_shards"), [(10**9, 1), (1000, 1), (999, 2), (500, 2), (499, 3), (100, 10), (1, 10)]
)
def test_shard_size_decides_the_number(shard_size: int, num_shards: int) -> None:
    assert len(plan_refs(make_refs(10), shard_size_bytes=shard_size).shards) == num_shards


def test_a_dataset_has_no_more_shards_and_a_shard_no_more_records_than_can_be_read(monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("beam_jobs.plan.plan.MAX_SHARDS", 4)
        assert len(plan_refs(make_refs(10), num_shards=4).shards) == 4
        assert refusal(ConfigError, plan_refs, make_refs(10), num_shards=5) == (
            "A dataset must have at most 4 shards, got 5. Ask for fewer or larger ones with `num_shards` or "
            "`shard_size_bytes`."
        )
    monkeypatch.setattr("beam_jobs.plan.plan.MAX_RECORDS", 5)
    assert len(plan_refs(make_refs(10), num_shards=2).shards) == 2
    assert refusal(ConfigError, plan_refs, make_refs(10), num_shards=1) == (
        "A shard must have at most 5 records for its index to be read, got 10. Ask for more or smaller ones with "
        "`num_shards` or `shard_size_bytes`."
    )


def test_num_shards_is_for_every_split() -> None:
    refs = [ref._replace(split="test" if i < 3 else "train") for i, ref in enumerate(make_refs(10))]
    plan = plan_refs(refs, num_shards=5)
    assert Counter(shard.split for shard in plan.shards) == {"test": 3, "train": 5}
    assert plan.class_counts == {"test": [2, 1], "train": [3, 4]}
    assert [shard.split for shard in plan_refs(make_refs(60), splits={"z": 0.5, "a": 0.5}).shards] == ["z", "a"]


@pytest.mark.parametrize("shuffle", [True, False])
def test_equal_paths_keep_the_order_of_the_table(shuffle: bool) -> None:
    plan = plan_refs([ImageRef("1.jpg", 1, extra=(k,)) for k in range(20)], shuffle=shuffle)
    assert [tuple(image.extra) for image in read_lines(plan)[0]] == [(k,) for k in range(20)]


def test_two_paths_of_one_hash_come_in_the_order_of_the_paths() -> None:
    table = ImageTable.from_refs([ImageRef(path, k) for k, path in enumerate(["c", "b", "a", "b", "d"])])
    assert sort_by_hash(table, np.array([7, 7, 9, 7, 1], np.uint64)).tolist() == [4, 1, 3, 0, 2]


def plan_without_columns(refs: list[ImageRef], config: ShardConfig) -> dict[str, list[str]]:
    """Returns the paths of each shard, by plain lists and numbers instead of columns."""

    def hash_text(text: str, key: bytes) -> int:
        digest = blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8, key=key).digest()
        return int.from_bytes(digest, "little")

    bounds = [*list(accumulate(config.splits.values()))[:-1], float("inf")]
    shards = {}
    for name in config.splits or ["train"]:
        split_refs = [
            ref
            for ref in refs
            if not config.splits
            or name == [*config.splits][bisect_right(bounds, hash_text(ref.group or ref.path, b"split") / 2**64)]
        ]
        key = (lambda ref: hash_text(ref.path, str(config.seed).encode())) if config.shuffle else (lambda ref: ref.path)
        ordered = sorted(split_refs, key=key)
        num_shards = config.num_shards or -(-sum(ref.size for ref in split_refs) // config.shard_size_bytes)
        count = max(1, min(num_shards, len(ordered)))
        for k in range(count):
            begin, end = len(ordered) * k // count, len(ordered) * (k + 1) // count
            shards[shard_name(name, k, count)] = [ref.path for ref in ordered[begin:end]]
    return shards


PATHS = st.one_of(st.text(st.characters(codec="utf-8"), max_size=3), st.just("caf\udce9.jpg"))


@given(
    st.lists(st.tuples(PATHS, st.integers(0, 2**40), st.sampled_from(["", "", "g", "h"])), min_size=1, max_size=60),
    st.integers(-(2**63), 2**63 - 1),
    st.booleans(),
    st.sampled_from([None, 1, 3]),
    st.sampled_from([{}, {"a": 0.5, "b": 0.3, "c": 0.2}]),
)
def test_plans_are_those_of_plain_lists(images, seed, shuffle, num_shards, splits):
    refs = [ImageRef(path, size, group=group) for path, size, group in images]
    options = {"seed": seed, "shuffle": shuffle, "num_shards": num_shards, "splits": splits}
    config = ShardConfig("/photos", "/out", shard_size_bytes=2**41, **options)
    try:
        plan = plan_refs(refs, shard_size_bytes=2**41, **options)
    except DataError as error:
        assume("would get none" not in str(error))
        raise
    assert list_paths(plan) == plan_without_columns(refs, config)


def refuse(kind: type[Exception], refs: list[ImageRef], options: dict[str, Any] | None = None, **fields: Any) -> str:
    return refusal(kind, plan_refs, refs, fields, **options or {})


def test_what_cannot_be_planned_is_refused() -> None:
    assert refuse(DataError, []) == "No images were found in /photos."
    message = "No images were found in /photos. Skipped by name: 3 *.txt, 2 hidden."
    assert refuse(DataError, [], skipped=Counter({"hidden": 2, "*.txt": 3})) == message
    for options in ({"split": "test"}, {"splits": {"train": 1.0}}):
        message = "The input names its own splits; leave `split` and `splits` out."
        assert refuse(ConfigError, [ImageRef("1.jpg", split="train")], options) == message
    message = "Every image must have a split or none may, but 2 of 3 have none, such as 2.jpg."
    assert refuse(DataError, [ImageRef("1.jpg", split="train"), ImageRef("2.jpg"), ImageRef("3.jpg")]) == message
    message = "Split 'test' would get none of the 3 images; give it a larger share."
    assert refuse(DataError, make_refs(3), {"splits": {"train": 0.999, "test": 0.001}}) == message


# Of the lines of each plan. They are written down, so that no version changes a plan unseen.
DIGESTS = {
    "table": "f3f1e2726900d269",
    "table with splits": "c82e431fa349a6be",
    "table with groups": "5a8b029d803697d3",
    "table without copies": "fc9bcbfee97513f9",
    "table with boxes": "17c0a698df681f58",
    "table with several classes": "0050af7c30bcdf0c",
    "table with other columns": "6de0d2014079dfa1",
    "images in Parquet": "75219049a16b3dfd",
    "images in Parquet without copies": "ce08bf851615bb6d",
    "lists of images without copies": "0a38d483ed98a9f0",
    "tensors in Parquet without copies": "c0626c11ce553e60",
    "folder": "f8265d3cc4a2314e",
    "folder without copies": "8a2ef09e9fbb7a24",
    "archives": "3b5540d4316190f3",
    "archives without copies": "e99b719db07e5884",
}


@pytest.mark.parametrize("case", CASES)
def test_a_plan_stays_what_it_is(case: str, tmp_path: Path, monkeypatch) -> None:
    write, options = CASES[case]
    source = write(tmp_path / "in")
    expected = make_plan(source, tmp_path / "out", **options)
    assert hashlib.sha256(expected["plan.jsonl"]).hexdigest()[:16] == DIGESTS[case]
    assert (expected["dropped"] > 0) == ("without copies" in case)
    monkeypatch.setattr(image_table, "_ROWS_AT_ONCE", 7)
    monkeypatch.setattr(plan, "_ROWS_AT_ONCE", 5)
    assert make_plan(source, tmp_path / "out", **options) == expected
