"""The job from and to object stores: byte for byte the dataset that it makes on this disk."""

import csv
import io
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

import pytest

from beam_jobs.config import ShardConfig
from beam_jobs.shard_job import plan_shards
from tests.beam_jobs.commands import check_no_orphans, start_command, wait_for
from tests.beam_jobs.datasets import join_datasets, make_dataset, read_tree
from tests.beam_jobs.images import make_jpeg, make_photos, make_tar, write_files, write_zip
from tests.beam_jobs.records import write as write_records
from tests.object_stores.conftest import Cloud
from tests.refusals import refusal
from tfpipe import ConfigError, data_source, load_manifest
from tfpipe.integrity.verify import VerifyConfig, verify
from tfpipe.storage.file_store import split_url

# Is it done? Its lines of the plan; the shard, its index, facts, digests and row; the digests again, which tell
# duplicates.
# Google's store also removes one by one the two files of the working folder.
REQUESTS_PER_SHARD = {"gs": 10, "s3": 8}


@pytest.fixture(scope="module")
def photos() -> Mapping[str, bytes]:
    return {**make_photos({"cat": 4, "dog": 3}), "cat/[odd] *?.jpg": make_jpeg(99), "dog/läufer.jpg": make_jpeg(98)}


@pytest.fixture(scope="module")
def local(photos: Mapping[str, bytes], tmp_path_factory) -> Mapping[str, bytes]:
    folder = tmp_path_factory.mktemp("local")
    make_dataset(write_files(folder / "photos", photos), folder / "out", num_shards=4)
    return read_tree(folder / "out")


def test_a_job_from_and_to_a_store_makes_the_local_dataset(each_cloud, photos, local, tmp_path):
    cloud = each_cloud
    source, output = cloud.put(f"{cloud.new()}/photos", photos), f"{cloud.new()}/out"
    make_dataset(source, output, num_shards=4)
    files = cloud.tree(output)
    assert files == local  # the working folder is gone, too
    back = write_files(tmp_path / "back", files)
    assert load_manifest(str(back)).splits["train"].records == 9
    assert not verify(str(back), VerifyConfig(workers=1)).damaged
    assert len(data_source(str(back), "train")) == 9


def test_a_pipeline_of_records_writes_to_a_store(cloud: Cloud, tmp_path: Path) -> None:
    write_records(tmp_path / "out", range(9))
    output = f"{cloud.new()}/nested/out"
    write_records(output, range(9))
    assert cloud.tree(output) == read_tree(tmp_path / "out")  # the working folder is gone, too
    message = f"{output} must be empty or not exist yet, and holds dataset_info.json. Choose another directory."
    assert refusal(ConfigError, write_records, output, range(9)) == message


def test_tables_and_archives_are_read_in_place(cloud: Cloud, photos: Mapping[str, bytes], tmp_path: Path) -> None:
    """A member of an archive costs one ranged request."""
    rows = io.StringIO()
    csv.writer(rows).writerows([("image", "label"), *((name, name.split("/")[0]) for name in photos)])
    inputs = {
        "table/all.csv": rows.getvalue().encode(),
        **{f"table/{name}": data for name, data in photos.items()},
        "archives/photos.tar": make_tar(photos),
        "archives/packed.tar.gz": make_tar(photos, "w:gz"),
        "archives/photos.zip": write_zip(tmp_path / "photos.zip", photos).read_bytes(),
    }
    write_files(tmp_path, inputs)
    base = cloud.put(cloud.new(), inputs)
    for name in ("table/all.csv", *(name for name in inputs if name.startswith("archives/"))):
        make_dataset(tmp_path / name, tmp_path / "out" / name, num_shards=1)
        output = f"{cloud.new()}/out"
        make_dataset(f"{base}/{name}", output, num_shards=1)
        assert cloud.tree(output) == read_tree(tmp_path / "out" / name), name


def test_tars_of_pairs_are_read_in_place(cloud: Cloud, tmp_path: Path) -> None:
    pairs = {k: v for i in range(3) for k, v in ((f"{i}.jpg", make_jpeg(i)), (f"{i}.txt", b"caption %d" % i))}
    inputs = {"train/0.tar": make_tar(pairs), "test/0.tar.gz": make_tar(pairs, "w:gz"), "train/0.parquet": b"x"}
    write_files(tmp_path / "in", inputs)
    manifest = make_dataset(tmp_path / "in", tmp_path / "out", num_shards=1)
    output = f"{cloud.new()}/out"
    make_dataset(cloud.put(f"{cloud.new()}/in", inputs), output, num_shards=1)
    assert cloud.tree(output) == read_tree(tmp_path / "out")
    assert (sorted(manifest.splits), manifest.skipped) == (["test", "train"], {"*.parquet": 1})
    assert manifest.schema["caption"].kind == "text"


@pytest.mark.slow
def test_reshard_and_overwrite_work_in_a_bucket(cloud: Cloud, local: Mapping[str, bytes], tmp_path: Path) -> None:
    join_datasets([write_files(tmp_path / "in", local)], tmp_path / "out", num_shards=2)
    source, output = cloud.put(f"{cloud.new()}/in", local), f"{cloud.new()}/out"
    join_datasets([source], output, num_shards=3)
    join_datasets([source], output, num_shards=2, overwrite=True)
    assert cloud.tree(output) == read_tree(tmp_path / "out")
    assert not any(name.startswith(f"{split_url(output)[1]}.") for name in cloud.names())


def test_an_image_costs_one_request(cloud: Cloud, photos: Mapping[str, bytes]) -> None:
    """The input costs one listing, whatever its folders, after a look for tars of pairs at its top.

    A shard costs the same for any number of images.
    """
    source, output = cloud.put(f"{cloud.new()}/photos", photos), f"{cloud.new()}/out"
    make_dataset(source, output, num_shards=1)
    of_source = [seen for seen in cloud.proxy.log if split_url(source)[1] in unquote(seen.path)]
    images = [seen for seen in of_source if ".jpg" in unquote(seen.path)]
    assert len(images) == len({seen.path for seen in images}) == len(photos)
    assert {seen.method for seen in images} == {"GET"}
    assert len(of_source) - len(images) == 3  # that the bucket is there, the look, and the listing
    small = len(cloud.proxy.log) - len(images)
    cloud.proxy.log.clear()
    make_dataset(source, f"{cloud.new()}/out", num_shards=3)
    more = len(cloud.proxy.log) - len(images) - small
    assert more == 2 * REQUESTS_PER_SHARD[cloud.scheme], [f"{seen.method} {seen.path}" for seen in cloud.proxy.log]


def test_a_table_costs_one_listing_for_each_folder(cloud: Cloud, photos: Mapping[str, bytes]) -> None:
    base = cloud.put(cloud.new(), photos)
    rows = ["image,label", *(f'"{name}",x' for name in photos)]
    table = cloud.put(base, {"all.csv": "\n".join(rows).encode()}) + "/all.csv"
    cloud.proxy.log.clear()
    plan_shards(ShardConfig(table, f"{base}/out"))
    assert not any(".jpg" in unquote(seen.path) for seen in cloud.proxy.log)
    assert len([seen for seen in cloud.proxy.log if "delimiter=" in seen.path and "/cat/" in unquote(seen.path)]) == 1


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.slow
def test_commands_work_from_disk_and_within_a_store(cloud, photos, local, tmp_path, workers):
    """The commands run as users run them: from this disk, then within the store."""
    source, first, second = cloud.put(f"{cloud.new()}/photos", photos), f"{cloud.new()}/out", f"{cloud.new()}/out"
    write_files(tmp_path / "photos", photos)
    for where, output in ((tmp_path / "photos", first), (source, second)):
        cloud.run("shard", where, output, "--num-shards", 4, "--workers", workers)
        assert cloud.tree(output) == local


@pytest.mark.slow
def test_options_for_the_store_reach_every_process(amazon, photos: Mapping[str, bytes], local: Mapping[str, bytes]):
    """A wrong option after -- shows at once, and so does a missing one."""
    source, output = amazon.put(f"{amazon.new()}/photos", photos), f"{amazon.new()}/out"
    more = "--", f"--s3_endpoint_url={amazon.proxy.url}", "--s3_access_key_id=key", "--s3_secret_access_key=secret"
    amazon.environment, before = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_ENDPOINT_URL": ""}, amazon.environment
    try:
        amazon.run("shard", source, output, "--num-shards", 4, "--workers", 2, *more)
    finally:
        amazon.environment = before
    assert amazon.tree(output) == local


@pytest.mark.slow
def test_a_killed_command_can_go_on(cloud: Cloud, local: Mapping[str, bytes], photos: Mapping[str, bytes]) -> None:
    """Finished shards are kept, and the working folder in the bucket is removed at the end."""
    source, output = cloud.put(f"{cloud.new()}/photos", photos), f"{cloud.new()}/out"
    cloud.proxy.harm = lambda seen: 0.2  # slow enough to be caught in the middle
    rows = f"{split_url(output)[1]}/.tfpipe/rows/"
    args = source, output, "--num-shards", 4, "--workers", 1
    process = start_command(*args, env={**os.environ, **cloud.environment})
    wait_for(lambda: [name for name in cloud.names() if name.startswith(rows)], 60)
    process.kill()
    process.communicate()
    check_no_orphans(process)
    assert not any(name.endswith("manifest.json") for name in cloud.tree(output))
    cloud.proxy.reset()
    assert "finished before" in cloud.run("shard", *args).stdout
    assert cloud.tree(output) == local
