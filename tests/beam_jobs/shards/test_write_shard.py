"""One shard: its records, its index, what is known of it, and what becomes of bad images."""

import hashlib
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from beam_jobs.config import ShardConfig
from beam_jobs.shard_job import plan_shards
from beam_jobs.shards.output_dir import open_work_dir
from beam_jobs.shards.work_dir import WorkDir
from beam_jobs.shards.write_shard import write_shard
from tests.beam_jobs.datasets import make_dataset, parse_with_tensorflow, read_quarantine, read_records, read_tree
from tests.beam_jobs.images import make_image, make_jpeg, make_photos, make_png, write_files
from tests.flipped_bit import flip_bit
from tfpipe.format.manifest import ShardInfo
from tfpipe.format.shard_stats import ShardStats, SideStats
from tfpipe.writer.written_shard import WrittenShard

TEXT = "not an image: it begins like text"


def write_shards(source: Path, output: Path, **options: Any) -> tuple[WorkDir, list[WrittenShard]]:
    """Writes the shards of a plan and nothing after them; returns the directory and the shards."""
    config = ShardConfig(str(source), str(output), **options)
    plan = plan_shards(config)
    try:
        with open_work_dir(config, plan) as work:
            header = work.read_header()
            shards = [write_shard(work, header, k) for k in range(len(header.shards))]
            raise StopIteration  # leaves the working folder as a run that ends here would
    except StopIteration:
        return work, shards


def test_records_equal_the_sources(tmp_path: Path) -> None:
    import tensorflow as tf

    photos = write_files(tmp_path / "in", make_photos({"cat": 5, "dog": 4}))
    (photos / "dog" / "last.png").write_bytes(make_png(5, (9, 11)))
    output = tmp_path / "out"
    make_dataset(photos, output, num_shards=3)
    names = [f"train-0000{k}-of-00003.tfrecord" for k in range(3)]
    assert sorted(path.name for path in output.glob("*.tfrecord")) == names
    texts = "encoded", "format", "filename", "sha256", "class/text", "colorspace"
    spec = {f"image/{name}": tf.io.FixedLenFeature((), tf.string) for name in texts}
    numbers = "height", "width", "channels", "class/label"
    spec |= {f"image/{name}": tf.io.FixedLenFeature((), tf.int64) for name in numbers}
    seen = []
    for record in parse_with_tensorflow(output, spec):
        name = record["image/filename"].decode()
        source = (photos / name).read_bytes()
        seen.append(name)
        png = name.endswith(".png")
        assert record == (
            {"image/encoded": source, "image/format": b"PNG" if png else b"JPEG", "image/height": 11 if png else 16}
            | {"image/width": 9 if png else 24, "image/channels": 3, "image/colorspace": b"RGB"}
            | {"image/filename": name.encode(), "image/sha256": hashlib.sha256(source).hexdigest().encode()}
            | {"image/class/label": int(name.startswith("dog")), "image/class/text": name[:3].encode()}
        )
    assert sorted(seen) == sorted(read_tree(photos))


def test_what_is_known_of_a_written_shard(tmp_path: Path) -> None:
    files = {"1.jpg": make_jpeg(1, (20, 10)), "2.jpg": make_jpeg(2, (30, 40), progressive=True)}
    files |= {"3.jpeg": make_png(3, (8, 50)), "4.gif": make_image(4, (16, 16), "GIF"), "bad.jpg": b"no image"}
    work, (shard,) = write_shards(write_files(tmp_path / "in", files), tmp_path / "out", shuffle=False)
    data = (tmp_path / "out" / "train-00000-of-00001.tfrecord").read_bytes()
    assert shard == WrittenShard(
        ShardInfo("train-00000-of-00001.tfrecord", 4, len(data), hashlib.sha256(data).hexdigest()),
        stats=ShardStats(
            images=4,
            formats=Counter({"JPEG": 2, "PNG": 2}),
            changed=Counter({"gif_to_png": 1}),
            noticed=Counter({"progressive": 1, "name_differs": 1}),
            heights=SideStats(smallest=10, largest=50, total=116),
            widths=SideStats(smallest=8, largest=30, total=74),
        ),
        left_out=[
            {"path": "bad.jpg", "split": "train", "label": -1, "kind": "bad", "reason": TEXT}
            | {"exception": f"BadImage: {TEXT}"}
        ],
        num_left_out=1,
    )
    assert work.find_written(shard.info.file) == shard
    digests = Path(work.digests_path(shard.info.file)).read_bytes()[: 32 * shard.info.records]
    good = [data for name, data in files.items() if name != "bad.jpg"]
    assert digests == b"".join(hashlib.sha256(data).digest() for data in good)


def test_a_file_too_large_for_a_record(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("beam_jobs.shards.record.MAX_SOURCE_BYTES", 1000)
    big = make_jpeg(1, (64, 64))
    source = write_files(tmp_path / "in", {"big.jpg": big, "ok.jpg": make_jpeg(1, (8, 8))})
    _, (shard,) = write_shards(source, tmp_path / "out")
    reason = f"{len(big)} bytes, more than the 1000 that one record can hold"
    assert [line["reason"] for line in shard.left_out] == [reason]


def test_bytes_of_bad_images_are_kept_by_content(tmp_path: Path) -> None:
    files = {"odd.J%G": b"\xff\xd8\xff odd", "same.jpg": b"GIF89a", "again.jpg": b"GIF89a", "ok.jpg": make_jpeg(1)}
    files |= {"empty.jpg": b"", "key.jpg": b"-----BEGIN OPENSSH PRIVATE KEY-----"}
    output = tmp_path / "out"
    _, (shard,) = write_shards(write_files(tmp_path / "in", files), output, keep_quarantined=True, shuffle=False)
    odd, same = (hashlib.sha256(data).hexdigest() for data in (files["odd.J%G"], b"GIF89a"))
    assert {line["path"]: line.get("bytes") for line in shard.left_out} == {
        "odd.J%G": f"bytes/{odd}",
        "same.jpg": f"bytes/{same}.jpg",
        "again.jpg": f"bytes/{same}.jpg",
        "empty.jpg": None,
        "key.jpg": None,  # what is no image may be private, and stays where it is
    }
    assert read_tree(output / "quarantine") == {f"bytes/{odd}": files["odd.J%G"], f"bytes/{same}.jpg": b"GIF89a"}


def test_hostile_names_in_a_table_never_become_paths(tmp_path: Path) -> None:
    write_files(tmp_path, {"up.jpg": b"GIF89a", "in/ok.jpg": make_jpeg(1)})
    table = tmp_path / "in" / "t.csv"
    table.write_text("image\nin/../up.jpg\nin/ok.jpg\n")
    before = set(read_tree(tmp_path))
    make_dataset(table, tmp_path / "out", keep_quarantined=True, image_root=f"{tmp_path}/in/..")
    new = set(read_tree(tmp_path)) - before
    assert all(name.startswith("out/") for name in new)
    assert f"out/quarantine/bytes/{hashlib.sha256(b'GIF89a').hexdigest()}.jpg" in new


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    make_dataset(
        write_files(tmp_path / "in", {f"{name}/{name}.jpg": make_jpeg(1), f"{name}/bad.jpg": b"x"}), tmp_path / "out"
    )
    (record,) = read_records(tmp_path / "out")
    assert (record["image/filename"], record["image/class/text"]) == ([b"caf\xe9/caf\xe9.jpg"], [b"caf\xe9"])
    (info,) = (tmp_path / "out/index").glob("*.parquet")
    assert pq.read_table(info)["name"].to_pylist() == ["caf\\udce9/caf\\udce9.jpg"]
    (line,) = read_quarantine(tmp_path / "out")
    assert line["path"] == f"{name}/bad.jpg"


def lasting(tree: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in tree.items() if "/progress/" not in name and not name.endswith("/lock")}


def index_of(work: WorkDir, file: str) -> Path:
    return Path(work.result("index", file.replace(".tfrecord", ".idx")))


@pytest.mark.parametrize(
    "damage",
    [
        lambda work, file: flip_bit(Path(work.result(file)), os.path.getsize(work.result(file)) // 2),
        lambda work, file: os.truncate(work.result(file), 100),
        lambda work, file: os.remove(work.result(file)),
        lambda work, file: index_of(work, file).unlink(),
        lambda work, file: index_of(work, file).write_bytes(b"0 1\n"),
        lambda work, file: os.truncate(work.path("rows", f"{file}.json"), 20),
        lambda work, file: os.truncate(work.path("rows", f"{file}.json"), 0),
        lambda work, file: Path(work.path("rows", f"{file}.json")).write_text("[1, 2]"),
        lambda work, file: Path(work.path("rows", f"{file}.json")).write_text("{}"),
    ],
    ids="damaged short no-shard no-index other-index cut-row empty-row other-row row-without-fields".split(),
)
def test_a_damaged_shard_is_made_again(tmp_path: Path, damage: Any) -> None:
    source = write_files(tmp_path / "in", make_photos({"cat": 6}))
    work, first = write_shards(source, tmp_path / "out", num_shards=2)
    before = lasting(read_tree(tmp_path / "out"))
    damage(work, first[1].info.file)
    _, second = write_shards(source, tmp_path / "out", num_shards=2)
    assert [shard.kept for shard in second] == [True, False]
    assert lasting(read_tree(tmp_path / "out")) == before
