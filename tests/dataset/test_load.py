"""Opening a finished dataset, and what is said where there is none."""

from pathlib import Path

from tests.refusals import refusal
from tfpipe.dataset.load import load_manifest
from tfpipe.errors import DataError, FormatError


def test_no_directory_and_a_file_instead_of_one(tmp_path: Path) -> None:
    assert refusal(DataError, load_manifest, str(tmp_path / "none")) == f"{tmp_path / 'none'} does not exist."
    file = tmp_path / "file"
    file.write_bytes(b"")
    message = f"{file} must be the directory of a dataset, the one that holds manifest.json."
    assert refusal(DataError, load_manifest, str(file)) == message


def test_a_url_of_a_local_folder_is_its_path(small_dataset: Path, tmp_path: Path) -> None:
    manifest = load_manifest(f"file://{small_dataset}")
    assert manifest == load_manifest(str(small_dataset))
    assert manifest.directory == str(small_dataset)
    assert refusal(DataError, load_manifest, f"file://{tmp_path}") == (
        f"{tmp_path} holds no manifest.json: it is not a finished tfpipe dataset. `tfpipe shard` writes one out of "
        "images, `tfpipe index` one for TFRecords of others."
    )


def test_a_manifest_that_is_huge_or_no_text(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    with path.open("wb") as file:
        file.truncate(2**30 + 1)  # sparse: takes no room
    message = f"{path} must have at most 33,554,432 bytes, got 1,073,741,825."
    assert refusal(FormatError, load_manifest, str(tmp_path)) == message
    path.write_bytes(b"{}\xff")
    message = f"{path} is not UTF-8: the byte at 2 does not belong there."
    assert refusal(FormatError, load_manifest, str(tmp_path)) == message
