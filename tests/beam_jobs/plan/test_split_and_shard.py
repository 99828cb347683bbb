"""Which image goes where: exact plans of hand-made listings, and what holds for all of them."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter
from hashlib import blake2b
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from beam_jobs.config import ShardConfig
from beam_jobs.plan.image_ref import ImageLocation, ImageRef, PlannedImage
from beam_jobs.plan.image_table import ImageTable
from beam_jobs.plan.listing import Listing
from beam_jobs.plan.split_and_shard import Plan, assign_splits, make_plan
from tfpipe.errors import ConfigError, DataError
from tfpipe.format.file_names import shard_name

# Written down, so that no version of anything changes the order of a dataset unseen.
GOLDEN = {
    "train-00000-of-00003.tfrecord": ["a/2.jpg", "b/3.jpg"],
    "train-00001-of-00003.tfrecord": ["b/1.jpg", "a/0.jpg"],
    "train-00002-of-00003.tfrecord": ["a/6.jpg", "a/4.jpg", "b/5.jpg"],
}


def listing(refs: list[ImageRef], **fields: Any) -> Listing:
    labels = tuple(sorted({ref.label for ref in refs if ref.label is not None}))
    return Listing("photos", "/photos", ImageTable.from_refs(refs), **{"label_names": labels, **fields})


def images(count: int, size: int = 100) -> list[ImageRef]:
    return [ImageRef(f"{'ab'[i % 2]}/{i}.jpg", size, label="ab"[i % 2]) for i in range(count)]


def plan_of(refs: list[ImageRef], **options: Any) -> Plan:
    config = ShardConfig("/photos", "/out", **options)
    return make_plan(assign_splits(listing(refs), config), config)


def paths(plan: Plan) -> dict[str, list[str]]:
    """File name -> paths in it, in order."""
    return {shard.file: [plan.listing.images[i].path for i in shard.images] for shard in plan.shards}


def split_of(refs: list[ImageRef], **splits: float) -> dict[str, str]:
    config = ShardConfig("/photos", "/out", splits=splits)
    return {ref.path: ref.split for ref in assign_splits(listing(refs), config).images}


# Shards


def test_exact_shards() -> None:
    plan = plan_of(images(7), num_shards=3)
    assert paths(plan) == GOLDEN
    keyed = sorted(
        (ref.path for ref in plan.listing.images),
        key=lambda path: blake2b(path.encode(), digest_size=8, key=b"0").digest()[::-1],
    )
    assert [path for shard in paths(plan).values() for path in shard] == keyed
    assert [(shard.split, shard.shard_index, shard.num_shards, shard.bytes) for shard in plan.shards] == [
        ("train", 0, 3, 200),
        ("train", 1, 3, 200),
        ("train", 2, 3, 300),
    ]
    assert plan.class_counts == {"train": [4, 3]}
    assert (plan.num_images, plan.num_bytes) == (7, 700)


def test_exact_lines() -> None:
    refs = [
        ImageRef(
            "b/1.jpg",
            5,
            ImageLocation("x.zip", 30, 4, 77),
            label="b",
            boxes=((0.0, 0.0, 1.0, 1.0),),
            box_labels=(3,),
            extra=("e",),
        ),
        ImageRef("a/1.jpg", 6, label="a"),
    ]
    plan = plan_of(refs, shuffle=False)
    assert list(plan.lines(plan.shards[0])) == [
        PlannedImage("a/1.jpg", 6, 0),
        PlannedImage("b/1.jpg", 5, 1, ImageLocation("x.zip", 30, 4, 77), ((0.0, 0.0, 1.0, 1.0),), (3,), ("e",)),
    ]
    unlabelled = plan_of([ImageRef("1.jpg", 5)])
    assert list(unlabelled.lines(unlabelled.shards[0])) == [PlannedImage("1.jpg", 5, -1)]
    assert unlabelled.class_counts == {"train": []}


@given(st.integers(1, 60), st.integers(1, 70))
def test_every_image_once_balanced_and_no_shard_empty(count: int, num_shards: int) -> None:
    plan = plan_of(images(count), num_shards=num_shards)
    sizes = [len(shard.images) for shard in plan.shards]
    assert len(sizes) == min(count, num_shards)
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1
    assert sorted(i for shard in plan.shards for i in shard.images) == list(range(count))


@pytest.mark.parametrize(
    ("shard_size", "num_shards"), [(10**9, 1), (1000, 1), (999, 2), (500, 2), (499, 3), (100, 10), (1, 10)]
)
def test_shard_size_decides_the_number(shard_size: int, num_shards: int) -> None:
    assert len(plan_of(images(10), shard_size_bytes=shard_size).shards) == num_shards


def test_num_shards_goes_before_shard_size() -> None:
    assert len(plan_of(images(10), num_shards=4, shard_size_bytes=1).shards) == 4


def test_images_of_unknown_size_make_one_shard() -> None:
    assert len(plan_of(images(10, size=0), shard_size_bytes=1).shards) == 1


def test_no_more_shards_are_planned_than_a_manifest_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("beam_jobs.plan.split_and_shard.MAX_SHARDS", 4)
    assert len(plan_of(images(10), num_shards=4).shards) == 4
    with pytest.raises(ConfigError) as caught:
        plan_of(images(10), num_shards=5)
    assert str(caught.value) == (
        "A dataset must have at most 4 shards, got 5. Ask for fewer or larger ones with `num_shards` or "
        "`shard_size_bytes`."
    )


def test_no_shard_has_more_records_than_an_index_may_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("beam_jobs.plan.split_and_shard.MAX_RECORDS", 5)
    assert len(plan_of(images(10), num_shards=2).shards) == 2
    with pytest.raises(ConfigError) as caught:
        plan_of(images(10), num_shards=1)
    assert str(caught.value) == (
        "A shard must have at most 5 records for its index to be read, got 10. Ask for more or smaller ones with "
        "`num_shards` or `shard_size_bytes`."
    )


def test_num_shards_is_for_every_split() -> None:
    refs = [ref._replace(split="test" if i < 3 else "train") for i, ref in enumerate(images(10))]
    plan = plan_of(refs, num_shards=5)
    assert Counter(shard.split for shard in plan.shards) == {"test": 3, "train": 5}
    assert plan.class_counts == {"test": [2, 1], "train": [3, 4]}


# Order


def test_order_does_not_depend_on_the_listing() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    refs = images(50)
    first = paths(plan_of(refs, num_shards=4))
    for _ in range(5):
        rng.shuffle(refs)
        assert paths(plan_of(refs, num_shards=4)) == first


def test_order_changes_with_the_seed() -> None:
    orders = {seed: next(iter(paths(plan_of(images(50), seed=seed)).values())) for seed in (0, 1, -1, 2**63 - 1)}
    assert len({tuple(order) for order in orders.values()}) == 4
    assert len({tuple(sorted(order)) for order in orders.values()}) == 1


def test_no_shuffle_is_by_path() -> None:
    refs = [ImageRef(path, 1) for path in ("b/2.jpg", "a/10.jpg", "a/9.jpg", "B/1.jpg")]
    plan = plan_of(refs, shuffle=False, num_shards=2)
    assert paths(plan) == {
        "train-00000-of-00002.tfrecord": ["B/1.jpg", "a/10.jpg"],
        "train-00001-of-00002.tfrecord": ["a/9.jpg", "b/2.jpg"],
    }


@pytest.mark.parametrize("shuffle", [True, False])
def test_equal_paths_keep_the_order_of_the_table(shuffle: bool) -> None:
    refs = [ImageRef("1.jpg", 1, extra=(k,)) for k in range(20)]
    plan = plan_of(refs, shuffle=shuffle)
    assert [plan.listing.images[i].extra for i in plan.shards[0].images] == [(k,) for k in range(20)]


def test_a_name_that_is_no_utf8_is_ordered_too() -> None:
    refs = [ImageRef(b"caf\xe9.jpg".decode("utf-8", "surrogateescape"), 1), ImageRef("a.jpg", 1)]
    assert plan_of(refs).num_images == 2


def plan_by_hand(refs: list[ImageRef], config: ShardConfig) -> dict[str, list[str]]:
    """Shards and paths by plain lists and numbers: what plans were before they were made in columns."""

    def hashed(text: str, key: bytes) -> int:
        digest = blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8, key=key).digest()
        return int.from_bytes(digest, "little")

    bounds = [*list(accumulate(config.splits.values()))[:-1], float("inf")]
    shards = {}
    for name in config.splits or ["train"]:
        mine = [
            ref
            for ref in refs
            if not config.splits
            or name == [*config.splits][bisect_right(bounds, hashed(ref.group or ref.path, b"split") / 2**64)]
        ]
        key = (lambda ref: hashed(ref.path, str(config.seed).encode())) if config.shuffle else (lambda ref: ref.path)
        ordered = sorted(mine, key=key)
        asked = config.num_shards or -(-sum(ref.size for ref in mine) // config.shard_size_bytes)
        count = max(1, min(asked, len(ordered)))
        for k in range(count):
            begin, end = len(ordered) * k // count, len(ordered) * (k + 1) // count
            shards[shard_name(name, k, count)] = [ref.path for ref in ordered[begin:end]]
    return shards


@given(
    st.lists(
        st.tuples(
            st.one_of(st.text(st.characters(codec="utf-8"), max_size=3), st.just("caf\udce9.jpg")),
            st.integers(0, 2**40),
            st.sampled_from(["", "", "g", "h"]),
        ),
        min_size=1,
        max_size=60,
    ),
    st.integers(-(2**63), 2**63 - 1),
    st.booleans(),
    st.sampled_from([None, 1, 3]),
    st.sampled_from([{}, {"a": 0.5, "b": 0.3, "c": 0.2}]),
)
def test_plans_by_hand(
    images: list[tuple[str, int, str]], seed: int, shuffle: bool, num_shards: int | None, splits: dict[str, float]
) -> None:
    refs = [ImageRef(path, size, group=group) for path, size, group in images]
    options = {"seed": seed, "shuffle": shuffle, "num_shards": num_shards, "splits": splits}
    config = ShardConfig("/photos", "/out", shard_size_bytes=2**41, **options)
    try:
        plan = make_plan(assign_splits(listing(refs), config), config)
    except DataError as error:
        assume("would get none" not in str(error))
        raise
    assert paths(plan) == plan_by_hand(refs, config)


# Splits


@given(st.sets(st.integers(0, 10_000), min_size=40, max_size=80), st.sets(st.integers(0, 10_000), max_size=80))
def test_splits_stay_when_images_are_added(some: set[int], more: set[int]) -> None:
    shares = {"train": 0.5, "validation": 0.5}
    before = split_of([ImageRef(f"{i}.jpg") for i in some], **shares)
    after = split_of([ImageRef(f"{i}.jpg") for i in some | more], **shares)
    assert {path: after[path] for path in before} == before


def test_splits_do_not_depend_on_seed_or_shards() -> None:
    plans = [plan_of(images(100), splits={"a": 0.5, "b": 0.5}, seed=seed, num_shards=seed + 1) for seed in (0, 5)]
    members = [{ref.path: ref.split for ref in plan.listing.images} for plan in plans]
    assert members[0] == members[1]


def test_shares_are_roughly_right() -> None:
    found = Counter(
        split_of([ImageRef(f"{i}.jpg") for i in range(20_000)], train=0.8, validation=0.15, test=0.05).values()
    )
    assert abs(found["train"] - 16_000) < 200
    assert abs(found["validation"] - 3_000) < 200
    assert abs(found["test"] - 1_000) < 120


def test_splits_come_in_the_order_asked_for() -> None:
    plan = plan_of(images(60), splits={"z": 0.5, "a": 0.5})
    assert [shard.split for shard in plan.shards] == ["z", "a"]


def test_group_by_keeps_groups_in_one_split() -> None:
    refs = [ImageRef(f"{i}.jpg", group=f"patient {i % 50}") for i in range(1000)]
    config = ShardConfig("t.csv", "/out", splits={"train": 0.5, "test": 0.5}, group_by="patient")
    assigned = list(assign_splits(listing(refs), config).images)
    by_group = {ref.group: {other.split for other in assigned if other.group == ref.group} for ref in assigned}
    assert all(len(splits) == 1 for splits in by_group.values())
    assert {split for splits in by_group.values() for split in splits} == {"train", "test"}


def test_one_split_by_name() -> None:
    assert [shard.file for shard in plan_of(images(3)).shards] == ["train-00000-of-00001.tfrecord"]
    assert [shard.file for shard in plan_of(images(3), split="eval").shards] == ["eval-00000-of-00001.tfrecord"]


def test_named_splits_are_kept() -> None:
    refs = [ImageRef("1.jpg", split="b"), ImageRef("2.jpg", split="a")]
    assert [shard.file for shard in plan_of(refs).shards] == [
        "a-00000-of-00001.tfrecord",
        "b-00000-of-00001.tfrecord",
    ]


# Errors


def refuse(kind: type[Exception], refs: list[ImageRef], options: dict[str, Any] | None = None, **fields: Any) -> str:
    with pytest.raises(kind) as caught:
        assign_splits(listing(refs, **fields), ShardConfig("/photos", "/out", **(options or {})))
    return str(caught.value)


def test_no_images() -> None:
    assert refuse(DataError, []) == "No images were found in /photos."
    skipped = Counter({"hidden": 2, "*.txt": 3})
    assert refuse(DataError, [], skipped=skipped) == (
        "No images were found in /photos. Skipped by name: 3 *.txt, 2 hidden."
    )


@pytest.mark.parametrize("options", [{"split": "test"}, {"splits": {"train": 1.0}}])
def test_splits_named_twice(options: dict[str, Any]) -> None:
    assert refuse(ConfigError, [ImageRef("1.jpg", split="train")], options) == (
        "The input names its own splits; leave `split` and `splits` out."
    )


def test_only_some_have_a_split() -> None:
    refs = [ImageRef("1.jpg", split="train"), ImageRef("2.jpg"), ImageRef("3.jpg")]
    assert refuse(DataError, refs) == (
        "Every image must have a split or none may, but 2 of 3 have none, such as 2.jpg."
    )


def test_a_split_that_gets_no_image() -> None:
    assert refuse(DataError, images(3), {"splits": {"train": 0.999, "test": 0.001}}) == (
        "Split 'test' would get none of the 3 images; give it a larger share."
    )
