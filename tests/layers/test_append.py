"""`tfpipe append`: the records of a new layer follow those that there were, for every reader and command."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest
import tensorflow as tf

import tfpipe as library
from beam_jobs.append_job import Appended, AppendedBefore
from tests.beam_jobs.datasets import join_datasets, make_dataset, read_tree
from tests.beam_jobs.images import make_jpeg, make_png, write_files
from tests.conftest import Tfpipe
from tests.layers.growth import add_view, append, draw_more, find_part, list_names, read_parts
from tests.refusals import refusal
from tests.writer.test_every_writer import write_and_vanish
from tfpipe.dataset.find_files import find_files
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.export.run import ExportConfig, export
from tfpipe.format.image_form import ImageForm
from tfpipe.layers.delete import delete_records
from tfpipe.lookups.data_lock import lock_data
from tfpipe.lookups.steps import look_up_step
from tfpipe.readers.data_source import data_source
from tfpipe.readers.grain import GrainBatches, RecordSource
from tfpipe.readers.jax import JaxBatches
from tfpipe.readers.numpy import NumpyBatches
from tfpipe.readers.torch import TorchBatches, data_loader
from tfpipe.writer.changes import open_change

NAME = "image/filename"
CONFIG = PipelineConfig(image_size=8, batch_size=6, seed=3)


def read_epochs(batches: Any, steps: int) -> list[np.ndarray[Any, Any]]:
    return [batches.read(step)["image"] for step in range(steps)]


def test_layers_of_equal_shards_have_values_of_their_own(pets: str, tmp_path: Path) -> None:
    more = write_files(tmp_path / "more", {"train/cat/9.jpg": make_jpeg(9)})
    append(pets, more, num_shards=1)
    append(pets, more, num_shards=1, seed=1)
    library.add_column(pets, "index", lambda record: record.index, library.fields.Values("int64"))
    assert [int(record.features["index"][0]) for record in data_source(pets, "train")] == [*range(14)]
    with open_change(pets) as change:  # earlier versions let both layers share the files
        change.commit([replace(change.history.catalog.find("column", "index", 2), number=3)])
    add_view(pets, "all", "index >= 0")
    assert library.load_manifest(f"{pets}@all").splits["train"].records == 14


def test_the_records_follow_those_that_there_were(grown: str, small_dataset: Path) -> None:
    before, after = library.load_manifest(str(small_dataset)), library.load_manifest(grown)
    assert list_names(grown)[:12] == list_names(small_dataset)
    new = [f"train/{name}.jpg" for name in ("ant/0", "ant/1", "owl/7", "owl/8", "owl/9")]
    assert sorted(list_names(grown)[12:]) == new
    assert list_names(grown, "validation")[3:] == ["validation/cat/7.jpg"]
    assert after.layer == 2
    assert after.label_names == (*before.label_names, "ant")
    old, new = before.splits["train"], after.splits["train"]
    assert (new.class_counts, new.records_per_shard) == ((6, 4, 5, 2), (6, 6, 2, 3))
    assert new.formats == {"JPEG": 11, "PNG": 6}
    sizes = [record.image.shape[:2] for record in data_source(grown, "train")]
    assert (new.sizes.max_height, new.sizes.max_width) == tuple(np.max(sizes, axis=0))
    assert new.sizes.mean_width == pytest.approx(np.mean(sizes, axis=0)[1], abs=0.1)
    assert new.bytes == old.bytes + after.layers[1].splits["train"].bytes
    labels = {record.name.split("/")[1]: record.label_name for record in data_source(grown, "train")}
    assert labels == {name: name for name in ("cat", "dog", "owl", "ant")}


def test_no_byte_of_the_first_layer_changes_and_its_order_stays(pets: str, tmp_path: Path) -> None:
    before, expected = read_tree(Path(pets)), read_epochs(NumpyBatches(pets, "train", CONFIG), 5)
    fingerprint = library.load_manifest(pets).splits["train"].fingerprint
    append(pets, draw_more(tmp_path / "more"))
    after = read_tree(Path(pets))
    assert {path: after[path] for path in before} == before
    assert {path.split("/")[0] for path in after.keys() - before.keys()} == {"layers", "catalog"}
    assert sorted(os.listdir(tmp_path)) == ["more", "pets"]
    assert library.load_manifest(f"{pets}@1").splits["train"].fingerprint == fingerprint
    np.testing.assert_array_equal(read_epochs(NumpyBatches(f"{pets}@1", "train", CONFIG), 5), expected)


def test_the_same_images_give_the_same_bytes(small_dataset: Path, grown: str, tmp_path: Path) -> None:
    again = shutil.copytree(small_dataset, tmp_path / "again")
    append(again, draw_more(tmp_path / "more"))
    assert read_parts(grown) == read_parts(again)


def test_the_order_is_that_of_one_dataset_with_the_same_records(grown: str, tmp_path: Path) -> None:
    """A dataset of one layer with as many records in as many shards has the same records at every step."""
    join_datasets([grown], tmp_path / "whole", shuffle=False, num_shards=1)
    assert list_names(tmp_path / "whole") == list_names(grown)
    config = replace(CONFIG, block_records=1, extra_features=(NAME,))
    one, layered = (NumpyBatches(str(data), "train", config) for data in (tmp_path / "whole", grown))
    for step in (0, 1, 5, 100):
        np.testing.assert_array_equal(layered.read(step)[NAME], one.read(step)[NAME])
        np.testing.assert_array_equal(layered.read(step)["image"], one.read(step)["image"])


FACES = {
    "numpy": lambda data, step, rank: NumpyBatches(data, "train", CONFIG, start_step=step, rank=rank),
    "torch": lambda data, step, rank: TorchBatches(data, "train", CONFIG, start_step=step, rank=rank),
    "tensorflow": lambda data, step, rank: library.build_dataset(
        data, "train", CONFIG, tf.distribute.InputContext(rank[1], *rank), step
    ),
}


@pytest.mark.parametrize(("address", "hosts"), [("{grown}", 3), ("{grown}@1", 1)])
@pytest.mark.parametrize("face", FACES)
def test_hosts_share_the_batches_and_resume_with_another_number(grown: str, address: str, hosts: int, face: str):
    data = address.format(grown=grown)
    delete_records(grown, [list_names(grown)[1]])
    batches = NumpyBatches(data, "train", CONFIG)
    expected, end = read_epochs(batches, len(batches)), len(batches) - 1
    for number, step, images in ((hosts, 0, expected), (hosts % 3 + 1, end, expected[end:])):
        parts = [iter(FACES[face](data, step, (rank, number))) for rank in range(number)]
        for image in images:
            together = np.concatenate([np.asarray(next(part)["image"]) for part in parts])
            np.testing.assert_array_equal(np.moveaxis(together, 1, -1) if face == "torch" else together, image)


def load_with_torch(*args: Any) -> Any:
    return data_loader(TorchBatches(*args))


@pytest.mark.parametrize("face", [NumpyBatches, JaxBatches, load_with_torch])
def test_a_position_in_another_layer_is_refused(pets: str, tmp_path: Path, face: Any) -> None:
    old = face(pets, "train", CONFIG)
    old.set_epoch(2)
    first = old.state_dict()
    assert first == {"seed": 3, "epoch": 2, "step": 0, "order": 1, "data": ANY}
    append(pets, draw_more(tmp_path / "more"))
    assert refusal(ConfigError, face(pets, "train", CONFIG).load_state_dict, first) == (
        f"The position is of layer 1 of {pets}, and this is layer 2, which has other records. Open {pets}@1 to go on "
        "with the same batches."
    )
    face(f"{pets}@1", "train", CONFIG).load_state_dict(first)
    second = face(pets, "train", CONFIG).state_dict()
    assert second == {"seed": 3, "epoch": 0, "step": 0, "order": 1, "data": ANY, "layer": 2}
    face(pets, "train", CONFIG).load_state_dict(second)
    with pytest.raises(ConfigError, match=r"^The position is of layer 2 of .* Open .*@2 to go on"):
        face(f"{pets}@1", "train", CONFIG).load_state_dict(second)


@pytest.mark.parametrize("face", [NumpyBatches, load_with_torch])
def test_a_position_of_a_mixture_knows_the_layer_of_each_dataset(pets: str, grown: str, tmp_path: Path, face: Any):
    first = face(library.mix({pets: 1, grown: 1}), "train", CONFIG).state_dict()
    assert first == {"seed": 3, "epoch": 0, "step": 0, "order": 1, "data": ANY, "layer_2": 2}
    face(library.mix({pets: 1, grown: 1}), "train", CONFIG).load_state_dict(first)
    append(grown, draw_more(tmp_path / "more", 700))
    assert refusal(ConfigError, face(library.mix({pets: 1, grown: 1}), "train", CONFIG).load_state_dict, first) == (
        f"The position is of layer 2 of {grown}, and this is layer 3, which has other records. Open {grown}@2 to go on "
        "with the same batches."
    )
    mixed = face(library.mix({pets: 1, f"{grown}@2": 1}), "train", CONFIG)
    mixed.load_state_dict(first)
    assert mixed.state_dict() == first


def test_a_position_below_another_view_is_refused(pets: str) -> None:
    add_view(pets, "some", "width > 3")
    state = NumpyBatches(f"{pets}@some", "train", CONFIG).state_dict()
    add_view(pets, "some", "width > 2")  # the same records
    NumpyBatches(f"{pets}@some", "train", CONFIG).load_state_dict(state)
    message = rf"^The position is of other records than those of {pets}@some, or of the same in another order\. Open "
    add_view(pets, "some", "label <> 'owl'")
    with pytest.raises(ConfigError, match=message):
        NumpyBatches(f"{pets}@some", "train", CONFIG).load_state_dict(state)
    add_view(pets, "some", "width > 3")
    delete_records(pets, list_names(pets)[:1])
    with pytest.raises(ConfigError, match=message):
        NumpyBatches(f"{pets}@some", "train", CONFIG).load_state_dict(state)


def test_a_position_goes_on_in_a_copy_and_in_a_cache(grown: str, tmp_path: Path) -> None:
    state = NumpyBatches(grown, "train", CONFIG).state_dict()
    copied = str(shutil.copytree(grown, tmp_path / "copied"))
    for cache in ("bytes", "decoded"):
        config = replace(CONFIG, cache=cache, decoded_size=16, augment="none", cache_dir=str(tmp_path / cache))
        NumpyBatches(copied, "train", config).load_state_dict(state)
        batches = NumpyBatches(copied, "train", config)
        batches.read(0)
        assert batches.state_dict() == state
        batches.load_state_dict(state)


def test_a_view_shows_what_it_showed(pets: str, tmp_path: Path) -> None:
    add_view(pets, "owls", "label = 'owl'")
    shown = list_names(f"{pets}@owls")
    append(pets, draw_more(tmp_path / "more"))
    assert list_names(f"{pets}@owls") == shown
    add_view(pets, "all", "label in ('owl', 'ant')")
    assert sorted(list_names(f"{pets}@all")) == sorted([*shown, *list_names(pets)[12:]])
    delete_records(pets, [shown[0], "train/ant/0.jpg"])
    assert list_names(f"{pets}@owls") == shown[1:]
    assert "train/ant/0.jpg" not in list_names(f"{pets}@all")
    append(pets, draw_more(tmp_path / "other", 700), num_shards=1)
    assert list_names(f"{pets}@owls") == shown[1:]
    delete_records(pets, [shown[1], "train/ant/1.jpg"])
    assert list_names(f"{pets}@owls") == shown[2:]


def test_layers_lie_on_layers(grown: str, tmp_path: Path) -> None:
    more = write_files(tmp_path / "third", {"train/bee/0.jpg": make_jpeg(900), "test/bee/1.jpg": make_jpeg(901)})
    done = append(grown, more)
    assert (done.layer, done.new_classes) == (3, ("bee",))
    manifest = library.load_manifest(grown)
    assert (manifest.label_names[-2:], manifest.splits["train"].class_counts) == (("ant", "bee"), (6, 4, 5, 2, 1))
    assert manifest.splits["test"].class_counts == (0, 0, 0, 0, 1)
    assert list_names(grown, "test") == ["test/bee/1.jpg"]
    assert list(library.load_manifest(f"{grown}@1").splits) == ["train", "validation"]


def test_the_text_for_a_checkpoint_of_grain_tells_the_layer(pets: str, tmp_path: Path) -> None:
    """A `grain.DataLoader` refuses a checkpoint whose source had another text."""

    def describe(data: str) -> list[str]:
        return [repr(GrainBatches(data, "train", CONFIG)), repr(RecordSource(data, "train"))]

    before = describe(pets)
    append(pets, draw_more(tmp_path / "more"))
    assert all(new != old for new, old in zip(describe(pets), before, strict=True))
    assert describe(f"{pets}@1") == before
    assert describe(f"{pets}@2") == describe(pets)


def test_an_export_has_the_records_of_all_layers_but_hidden_ones(grown: str, tmp_path: Path) -> None:
    hidden = [list_names(grown)[k] for k in (0, 13)]
    delete_records(grown, hidden)
    export(ExportConfig(grown, str(tmp_path / "wds"), "webdataset", workers=0))
    tars = [path.read_bytes() for path in (tmp_path / "wds").glob("*.tar")]
    assert len(tars) == 7
    assert not any(name.encode() in tar for name in hidden for tar in tars)


def test_the_files_of_layers_are_not_read_alone(grown: str) -> None:
    for target in (grown, f"{grown}/train-*", f"{grown}/layers/*/train-*"):
        assert refusal(ConfigError, find_files, target) == (
            f"The files of a dataset with layers must not be read alone, got those of {grown}: they hold deleted "
            f"records. Write the others into a new dataset first: `tfpipe reshard {grown} NEW`."
        )


@pytest.mark.parametrize("cache", ["bytes", "decoded"])
def test_caches_know_layers(grown: str, tmp_path: Path, cache: str) -> None:
    config = replace(CONFIG, decoded_size=16, augment="none", extra_features=(NAME,))
    delete_records(grown, [list_names(grown)[k] for k in (0, 13)])
    plain = NumpyBatches(grown, "train", config)
    expected = [plain.read(step)[NAME] for step in range(6)]
    cached = replace(config, cache=cache, cache_dir=str(tmp_path / "cache"))
    for _ in range(2):
        batches = NumpyBatches(grown, "train", cached)
        assert [batches.read(step)[NAME] for step in range(6)] == expected
        batches._maker._cache.flush()


def test_steps_name_the_records_of_all_layers(grown: str) -> None:
    rows = look_up_step(lock_data(library.load_manifest(grown), "train", replace(CONFIG, batch_size=17)).open(), 3)
    assert sorted(row.name for row in rows) == sorted(list_names(grown))
    assert {row.name: row.label_name for row in rows}["train/ant/1.jpg"] == "ant"


def test_classes_of_boxes_keep_their_numbers(tmp_path: Path) -> None:
    def write(folder: Path, image: str, seed: int, *classes: str) -> Path:
        size = {"width": 40, "height": 20}
        boxes = [{"image_id": 1, "category_id": k, "bbox": [1, 2, 10, 8], "iscrowd": 0} for k in range(len(classes))]
        categories = [{"id": k, "name": name} for k, name in enumerate(classes)]
        arrays = {"images": [{"id": 1, "file_name": image, **size}], "annotations": boxes, "categories": categories}
        text = json.dumps(arrays).encode()
        return write_files(folder, {image: make_jpeg(seed, (40, 20)), "annotations/instances_train.json": text})

    make_dataset(write(tmp_path / "a", "a.jpg", 1, "dog", "person"), tmp_path / "out", input_format="coco")
    more = write(tmp_path / "b", "b.jpg", 2, "bee", "person")
    message = r"does not say in which order the classes of its boxes are numbered\. Give a "
    with pytest.raises(ConfigError, match=message):
        append(tmp_path / "out", more, input_format="coco")
    (tmp_path / "names.txt").write_text("dog\nperson\nbee\n")
    append(tmp_path / "out", more, input_format="coco", labels=str(tmp_path / "names.txt"))
    features = [record.features for record in data_source(str(tmp_path / "out"), "train")]
    labels: list[Any] = [one["image/object/class/label"] for one in features]
    assert [one.tolist() for one in labels] == [[0, 1], [2, 1]]
    assert [one["image/object/class/text"] for one in features] == [[b"dog", b"person"], [b"bee", b"person"]]


def test_a_repetition_appends_nothing(grown: str, tmp_path: Path) -> None:
    """As where the command was killed after its entry, which is its last write."""
    before, more = read_tree(Path(grown)), draw_more(tmp_path / "more")
    with pytest.raises(AppendedBefore) as caught:
        append(grown, more)
    assert caught.value.result == Appended(grown, 2, ("ant",))
    assert read_tree(Path(grown)) == before
    assert append(grown, more, seed=7).layer == 3
    delete_records(grown, ["train/cat/0.jpg"])
    with pytest.raises(AppendedBefore) as caught:  # another change may have come between
        append(grown, more)
    assert caught.value.result.layer == 2


@pytest.mark.parametrize("separator", [None, ";"])
def test_a_repetition_is_known_after_new_classes(tmp_path: Path, separator: str | None) -> None:
    for k, name in enumerate(("cat", "owl", "ape")):
        write_files(tmp_path, {f"{k}.jpg": make_jpeg(k), f"{k}.csv": f"image,label\n{k}.jpg,{name}\n".encode()})
    make_dataset(tmp_path / "0.csv", tmp_path / "out", label_separator=separator)
    for more in ("1.csv", "2.csv"):
        append(tmp_path / "out", tmp_path / more, label_separator=separator)
    with pytest.raises(AppendedBefore, match=r"^These images are layer 2 of .*/out already, from the same command"):
        append(tmp_path / "out", tmp_path / "1.csv", label_separator=separator)


def test_nothing_comes_twice_after_a_deletion(grown: str, tmp_path: Path) -> None:
    """The deleted images of an appended layer are appended again by `drop_duplicates`, or once all of it is deleted."""
    more, names = draw_more(tmp_path / "more"), sorted(list_names(grown))
    delete_records(grown, ["train/ant/1.jpg"])
    with pytest.raises(AppendedBefore) as caught:
        append(grown, more)
    assert str(caught.value) == (
        f"These images are layer 2 of {grown} already, from the same command, less 1 record deleted since, so nothing "
        "is appended. `drop_duplicates` appends the deleted ones again, and another `seed` all of them."
    )
    assert append(grown, more, drop_duplicates=True).layer == 4
    assert sorted(list_names(grown)) == names
    appended = set(list_names(f"{grown}@2")) - set(list_names(f"{grown}@1"))
    delete_records(grown, [*appended, "validation/cat/7.jpg"])
    assert append(grown, more).layer == 6
    assert sorted(list_names(grown)) == names


def test_numbers_are_classes_by_their_names(tmp_path: Path) -> None:
    images = {f"{k}.jpg": make_jpeg(k) for k in range(4)}
    source = write_files(tmp_path / "in", {**images, "t.csv": b"image,label\n0.jpg,1\n1.jpg,0\n"})
    write_files(tmp_path / "in", {"labels.txt": b"red\nblue\n"})
    make_dataset(source / "t.csv", tmp_path / "out", labels=str(source / "labels.txt"))
    (source / "more.csv").write_text("image,label\n2.jpg,1\n3.jpg,1\n")
    append(tmp_path / "out", source / "more.csv")
    assert [record.label_name for record in data_source(str(tmp_path / "out"), "train")][2:] == ["blue", "blue"]
    (source / "bad.csv").write_text("image,label\n2.jpg,2\n")
    with pytest.raises(DataError, match=r"^The dataset names 2 classes, but label 2 occurs\.$"):
        append(tmp_path / "out", source / "bad.csv")


def test_the_images_get_the_form_of_the_dataset(tmp_path: Path) -> None:
    first = write_files(tmp_path / "first", {"a/1.jpg": make_jpeg(1)})
    make_dataset(first, tmp_path / "out", form=ImageForm("raw", square=8))
    append(tmp_path / "out", write_files(tmp_path / "more", {"a/2.png": make_png(2)}))
    manifest = library.load_manifest(str(tmp_path / "out"))
    assert manifest.splits["train"].formats == {"RAW": 2}
    assert [record.image.shape for record in data_source(manifest, "train")] == [(8, 8, 3)] * 2


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"1.jpg": make_jpeg(1)}, "Every record must have the feature 'image/class/label', as those of {pets} have, "),
        (
            {"a.jpg": make_jpeg(1), "t.csv": b"image,label,price\na.jpg,cat,3\n"},
            "The records of {pets} have no feature 'price', and these do.",
        ),
    ],
)
def test_what_does_not_fit_is_refused(pets: str, tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    source = write_files(tmp_path / "more", files)
    given = source / "t.csv" if "t.csv" in files else source
    before = read_tree(Path(pets))
    expected = f"{given} cannot be appended. {message.format(pets=pets)}"
    assert refusal(DataError, append, pets, given).startswith(expected)
    assert read_tree(Path(pets)) == before
    assert library.load_manifest(pets).layer == 1


def test_damaged_layers_are_named(grown: str) -> None:
    manifest = Path(grown, find_part(grown, "append"), "manifest.json")
    manifest.write_text(manifest.read_text().replace('"sha256": "', '"sha256": "0', 1).replace('0"}', '"}', 1))
    with pytest.raises(FormatError, match=r"/grown/layers/2-\w+/manifest\.json"):
        library.load_manifest(grown)
    manifest.unlink()
    missing = r"^The records of layer 2 are missing: .*/layers/2-\w+ holds no manifest\.json"
    with pytest.raises(FormatError, match=missing):
        library.load_manifest(grown)


def test_the_command_says_what_is_new(pets: str, tmp_path: Path, tfpipe: Tfpipe) -> None:
    more = draw_more(tmp_path / "more")
    ran = tfpipe("append", pets, more, "--workers", 1)
    assert ran.code == 0, ran.err
    assert ran.lines[-2:] == [
        "new classes: ant, behind those that there were",
        f"{pets} is at layer 2: 6 records appended",
    ]
    ran = tfpipe("append", pets, more, "--workers", 1, "--seed", 7, "--json")
    assert ran.json.items() >= {"appended_to": pets, "layer": 3, "new_classes": []}.items()
    assert [library.load_manifest(f"{pets}@{k}").splits["train"].records for k in (1, 2, 3)] == [12, 17, 22]
    ran = tfpipe("append", pets, pets)
    assert (ran.code, ran.err.startswith("Error: `tfpipe append` takes images, and ")) == (1, True)
    ran = tfpipe("append", pets, more, "--dry-run")
    assert ran.code == 0, ran.err
    assert library.load_manifest(pets).layer == 3
    again = tfpipe("append", pets, more, "--seed", 7)
    assert (again.code, again.out) == (
        0,
        f"These images are layer 3 of {pets} already, from the same command, so nothing is appended. To have them "
        "twice, give another `seed`.\n",
    )
    printed = json.loads(tfpipe("append", pets, more, "--seed", 7, "--json").out)
    assert (printed["appended_to"], printed["layer"], printed["new_classes"]) == (pets, 3, [])


def test_the_command_says_which_splits_get_no_image(pets: str, tmp_path: Path, tfpipe: Tfpipe) -> None:
    more = write_files(tmp_path / "more", {f"ant/{k}.jpg": make_jpeg(700 + k) for k in range(9)})
    said = (
        "All images go into train, none into validation. Unless the input names their splits, --splits "
        f"train=0.8,validation=0.2 shares them out as the records of {pets} are."
    )
    assert said in tfpipe("append", pets, more, "--workers", 1, "--dry-run").err.splitlines()
    for options, is_said in (((), True), (("--split", "train"), False), (("--splits", "train=0.6,val=0.4"), False)):
        ran = tfpipe("append", pets, more, "--workers", 1, *options)
        assert ran.code == 0, ran.err
        assert (said in ran.err.splitlines()) is is_said
        said = said.replace("0.8", "0.875").replace("0.2", "0.125")


def test_images_that_were_there_before_are_left_out(grown: str, tmp_path: Path, tfpipe: Tfpipe) -> None:
    images = {"train/cat/0.jpg": make_jpeg(503, (33, 23)), "train/cat/1.jpg": make_jpeg(77)}
    images |= {"train/cat/3.jpg": make_jpeg(77), "train/ant/4.jpg": make_jpeg(500, (30, 20))}
    again = write_files(tmp_path / "again", images)
    ran = tfpipe("append", grown, again, "--workers", 1, "--drop-duplicates", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["duplicates"]["dropped"] == 3
    assert list_names(grown)[len(list_names(f"{grown}@2")) :] == ["train/cat/1.jpg"]
    ran = tfpipe("append", grown, again, "--workers", 1, "--drop-duplicates")
    assert (ran.code, ran.err) == (
        1,
        f"Error: All 4 images of {again} are in {grown} already, so there is none to append.\n",
    )
    assert library.load_manifest(grown).layer == 3
    (hidden,) = (name for name in list_names(grown) if name == "train/ant/0.jpg")
    delete_records(grown, [hidden])
    info = next(Path(grown, "index").glob("*.parquet"))
    info.rename(tmp_path / "info.parquet")
    ran = tfpipe("append", grown, again, "--workers", 1, "--drop-duplicates")
    assert ran.err == (
        f"Error: {info} must say which images {grown} has, and is missing or of another shard. Make it by `tfpipe "
        f"view {grown} 'bytes > 0' --name all`, or leave --drop-duplicates out.\n"
    )
    assert tfpipe("view", grown, "bytes > 0", "--name", "all").code == 0
    ran = tfpipe("append", grown, again, "--workers", 1, "--drop-duplicates")
    assert ran.code == 0, ran.err
    assert list_names(grown)[-1] == "train/cat/0.jpg"  # whose image was deleted


def test_other_images_take_the_place_of_an_unfinished_layer(pets: str, tmp_path: Path) -> None:
    assert not write_and_vanish(lambda images, data: append(data, images), draw_more(tmp_path / "more"), Path(pets), 8)
    append(pets, write_files(tmp_path / "other", {"train/cat/5.jpg": make_jpeg(77)}), num_shards=1)
    assert list_names(pets)[12:] == ["train/cat/5.jpg"]
    assert [f"layers/{name}" for name in os.listdir(Path(pets, "layers"))] == [find_part(pets, "append")]
