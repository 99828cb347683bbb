"""Tells by its name that a file is not an image. Files with other names are opened, and their content decides."""

from functools import lru_cache

NOT_IMAGE_SUFFIXES = frozenset(
    (
        ".txt .md .rst .json .jsonl .ndjson .xml .csv .tsv .html .htm .yaml .yml .toml .ini .cfg .log .pdf "
        ".doc .docx .xls .xlsx .parquet .npy .npz .mat .pkl .h5 .py .ipynb .sh .js .css .db .sqlite .sha256 "
        ".md5 .lnk .url .mp4 .avi .mov .tfrecord .gz .bz2 .xz .7z .rar .aae .xmp .thm .pt .pth .ckpt .onnx .safetensors"
    ).split()
)
NOT_IMAGE_NAMES = frozenset(("thumbs.db", "desktop.ini", "license", "licence", "readme", "makefile"))
# Thumbnails and deleted files that network disks and file systems keep.
NOT_IMAGE_FOLDERS = frozenset(
    ("__macosx", "@eadir", "#recycle", "#snapshot", "@recycle", "@recently-snapshot", "$recycle.bin")
)

_HIDDEN, _BY_NAME = "hidden", "no image by name"


def get_skip_reason(path: str) -> str:
    """Returns the reason why a file is not an image by its name, or an empty text if it may be one."""
    folder, _, name = path.rpartition("/")
    of_folder = get_folder_reason(folder)
    if name.startswith(".") or of_folder == _HIDDEN:
        return _HIDDEN
    if of_folder or name.lower() in NOT_IMAGE_NAMES:
        return _BY_NAME
    _, dot, ending = name.rpartition(".")
    suffix = f"{dot}{ending}".lower()
    return f"*{suffix}" if suffix in NOT_IMAGE_SUFFIXES else ""


@lru_cache(maxsize=1024)
def get_folder_reason(path: str) -> str:
    """Returns the reason to skip all files of a folder, or an empty text."""
    folders = path.split("/")
    if any(folder.startswith(".") for folder in folders):
        return _HIDDEN
    return _BY_NAME if any(folder.lower() in NOT_IMAGE_FOLDERS for folder in folders) else ""
