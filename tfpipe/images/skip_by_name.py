"""Recognizes by its name a file that is not an image."""

from functools import lru_cache

from tfpipe.images.sniff import has_image_name

# Thumbnails and deleted files that network disks and file systems keep.
NOT_IMAGE_FOLDERS = frozenset(
    ("__macosx", "@eadir", "#recycle", "#snapshot", "@recycle", "@recently-snapshot", "$recycle.bin")
)

_HIDDEN, _BY_NAME = "hidden", "no image by name"


def get_skip_reason(path: str) -> str:
    """Returns the reason why a file is not an image, or an empty text if its name is that of one."""
    folder, _, name = path.rpartition("/")
    of_folder = get_folder_reason(folder)
    if name.startswith(".") or of_folder == _HIDDEN:
        return _HIDDEN
    if of_folder or has_image_name(name):
        return of_folder
    _, dot, ending = name.rpartition(".")
    return f"*.{ending.lower()}" if dot else _BY_NAME


@lru_cache(maxsize=1024)
def get_folder_reason(path: str) -> str:
    """Returns the reason to skip all files of a folder, or an empty text."""
    folders = path.split("/")
    if any(folder.startswith(".") for folder in folders):
        return _HIDDEN
    return _BY_NAME if any(folder.lower() in NOT_IMAGE_FOLDERS for folder in folders) else ""
