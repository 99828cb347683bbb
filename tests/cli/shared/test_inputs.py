"""`--stages module:function`: what is loaded and refused; and where a command may write, whole files only."""

import os
from pathlib import Path

import pytest

from tests.refusals import refusal
from tfpipe.cli.shared.inputs import load_function, load_loader
from tfpipe.cli.shared.outputs import check_target, write_file
from tfpipe.errors import ConfigError, DataError


def test_a_module_in_the_current_directory(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "my_stages_here.py").write_text("def change(stages):\n    return stages\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/nowhere"])
    assert load_function("my_stages_here:change", "--stages")("as it was") == "as it was"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stages", "--stages must be module:function, got 'stages'."),
        (":change", "--stages must be module:function, got ':change'."),
        ("none:change", "--stages: there is no module none. Run the command in the folder of the module"),
        ("json:change", "--stages: json has no function change."),
        ("json:__all__", "--stages: json:__all__ is no function, but a list."),
        ("no/such.py:change", "--stages: there is no module such. Run the command in the folder of the module"),
        ("needs_more:change", "--stages: needs_more imports no_such_library, which is not installed."),
        ("broken:change", "--stages: broken cannot be imported: ZeroDivisionError: division by zero"),
    ],
)
def test_what_cannot_be_loaded(tmp_path: Path, monkeypatch, text: str, message: str) -> None:
    (tmp_path / "needs_more.py").write_text("import no_such_library\n")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    assert refusal(ConfigError, load_function, text, "--stages").startswith(message)


def test_a_file_is_imported_with_what_lies_beside_it(tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "beside_it.py").write_text("batches = [1, 2]\n")
    (folder / "my_training.py").write_text("from beside_it import batches\n\ndef make():\n    return batches\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    made = load_loader("src/my_training.py:make")()
    assert made == [1, 2]
    assert load_loader(f"{folder}/my_training.py:batches")() is made, "a loader that was made already is taken as it is"
    (tmp_path / "my_training.py").write_text("def make():\n    return []\n")
    message = f"--train: my_training.py cannot be loaded: {folder}/my_training.py has a module of this name. Rename the"
    assert refusal(ConfigError, load_function, "my_training.py:make", "--train").startswith(message)


def test_a_file_in_a_folder(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    check_target(str(target))
    assert not target.exists()
    write_file(str(target), b"first")
    check_target(str(target))
    write_file(str(target), b"second")
    assert (target.read_bytes(), os.listdir(tmp_path)) == (b"second", ["page.html"])


def test_where_nothing_can_be_written(tmp_path: Path, monkeypatch) -> None:
    target = tmp_path / "none" / "page.html"
    advice = f"the folder {tmp_path}/none does not exist. Create it, or choose another place."
    assert refusal(ConfigError, check_target, str(target)) == f"{target} cannot be written: {advice}"
    assert refusal(DataError, write_file, str(target), b"") == f"{target} cannot be written: No such file or directory."
    for refuse in (lambda: check_target(str(tmp_path)), lambda: write_file(str(tmp_path), b"")):
        assert "must be a file, and is a folder or a device" in refusal(ConfigError, refuse)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # who is root may everything
    with pytest.raises(ConfigError, match=r"cannot be written: no permission to write to .*\. Choose another place\."):
        check_target(str(tmp_path / "page.html"))


def test_a_link_keeps_pointing(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "page.html"
    link.symlink_to(tmp_path / "real" / "page.html")
    check_target(str(link))
    write_file(str(link), b"page")
    assert link.is_symlink()
    assert (tmp_path / "real" / "page.html").read_bytes() == b"page"
