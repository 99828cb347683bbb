"""Recognizes the format of an image file by its content; its name is only checked against the result."""

from tfpipe.images.errors import BadImage

# The names of formats in messages.
TITLES = {kind: kind.upper() for kind in ("jpeg", "png", "gif", "bmp", "tiff", "ppm", "avif", "heic")}
TITLES["webp"] = "WebP"

_EXTENSIONS = {
    **dict.fromkeys(("jpg", "jpeg", "jpe", "jfif", "mpo"), "jpeg"),
    **dict.fromkeys(("png", "apng"), "png"),
    "gif": "gif",
    **dict.fromkeys(("bmp", "dib"), "bmp"),
    "webp": "webp",
    **dict.fromkeys(("tif", "tiff"), "tiff"),
    **dict.fromkeys(("ppm", "pgm", "pbm", "pnm"), "ppm"),
    "avif": "avif",
    **dict.fromkeys(("heic", "heif", "hif"), "heic"),
    # Formats that cannot be read: a file with such a name and another content always differs from its name.
    **dict.fromkeys(("ico", "svg", "psd", "jxl", "jp2", "j2k", "jpx", "jpf", "j2c", "jpc"), "other"),
}

IMAGE_ENDINGS = frozenset(_EXTENSIONS)
"""The endings of the names of images, without the dot."""

# JPEG and PNG come first: nearly every file of a training set is one of them.
_MAGIC = (
    (b"\xff\xd8\xff", "jpeg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    ((b"GIF87a", b"GIF89a"), "gif"),
    (b"BM", "bmp"),
    ((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), "tiff"),
    (tuple(b"P%d" % digit for digit in range(1, 7)), "ppm"),
)

_REFUSED = (
    (b"\0\0\1\0", "an ICO icon"),
    (b"8BPS", "a Photoshop file"),
    (b"%PDF", "a PDF"),
    (b"PK\3\4", "a ZIP archive"),
    (b"\x1f\x8b", "a gzip file"),
    (b"version https://git-lfs", "a Git LFS pointer"),
)

_CONVERTIBLE = (
    ((b"\0\0\0\x0cjP  \r\n\x87\n", b"\xff\x4f\xff\x51"), "JPEG 2000"),
    ((b"\0\0\0\x0cJXL \r\n\x87\n", b"\xff\x0a"), "JPEG XL"),
)
_TEXTS = (
    ((b"<!doctype", b"<html", b"<head", b"<body", b"<script", b"<!--"), "HTML"),
    ((b"<?xml",), "XML"),
    ((b"{", b"["), "JSON"),
)
_AVIF_BRANDS = (b"avif", b"avis")
_HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1")


def sniff_format(data: bytes) -> str:
    """Recognizes the format of an image file, a key of `TITLES`, by its first bytes."""
    for magic, kind in _MAGIC:
        if data.startswith(magic):
            if kind == "ppm" and data[2:3] not in (b" ", b"\t", b"\n", b"\r", b"#"):
                break
            return kind
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    if data[4:8] == b"ftyp":
        brand = data[8:12]
        if brand in _AVIF_BRANDS or (brand == b"mif1" and b"avif" in data[16:64]):
            return "avif"
        if brand in _HEIC_BRANDS:
            return "heic"
    raise BadImage(_describe_unreadable(data))


def is_image(data: bytes) -> bool:
    """Returns whether `sniff_format` recognizes a file."""
    try:
        sniff_format(data)
    except BadImage:
        return False
    return True


def has_image_name(filename: str) -> bool:
    """Returns whether the extension of `filename` belongs to an image format."""
    return filename.rpartition(".")[2].lower() in _EXTENSIONS


def name_differs(filename: str, kind: str) -> bool:
    """Returns whether the extension of `filename` belongs to an image format other than `kind`."""
    _, dot, extension = filename.rpartition(".")
    return bool(dot) and _EXTENSIONS.get(extension.lower(), kind) != kind


def _describe_unreadable(data: bytes) -> str:
    """Returns one sentence about why `data` is not an image that can be read."""
    if not data:
        return "the file is empty"
    for magics, title in _CONVERTIBLE:
        if data.startswith(magics):
            return f"a {title}, which is not read; convert it to PNG"
    for magic, title in _REFUSED:
        if data.startswith(magic):
            return f"{title}, not an image that can be read"
    if data[4:8] == b"ftyp":
        return "not an image: it begins like a video"
    if not data[:512].strip(b"\0"):
        return "not an image: it begins with zero bytes"
    head = data[:512].removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if head.startswith(b"<svg") or (head.startswith(b"<?xml") and b"<svg" in head):
        return "an SVG drawing, not an image that can be read"
    for begins, title in _TEXTS:
        if head.startswith(begins):
            return f"not an image: it begins like {title}"
    if all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in data[:64]):
        return "not an image: it begins like text"
    return f"not an image of a known format: it begins with the bytes {data[:8].hex(' ')}"
