"""Turns one image file into an image of the requested form, or gives a clear reason why it cannot.

A file that every 8-bit decoder reads correctly, and that `judge` accepts, stays as it is. Any other is encoded anew
once, so no reader of the shards has to handle CMYK, alpha, 16 bits, EXIF orientation or a third format.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import PIL
from PIL import Image, features

from tfpipe.format.image_form import ImageForm
from tfpipe.images import jpeg, other_formats, png, seekable, transcode
from tfpipe.images.errors import BadImage, Surplus
from tfpipe.images.exif import Box, apply_orientation, convert_boxes, get_upright_size, swaps_sides
from tfpipe.images.sniff import TITLES, name_differs, sniff_format
from tfpipe.native import jpeg as native_jpeg

__all__ = ["BadImage", "Box", "PreparedImage", "get_codec_versions", "prepare_image"]

_MAX_PIXELS = 2**31


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """An image in the form in which it is stored."""

    encoded: bytes  # for "RAW" `height * width * 3` bytes of RGB, row by row
    format: str  # "JPEG", "PNG" or "RAW"
    height: int  # of the stored pixels; with `ImageForm.square` of the upright original
    width: int
    channels: int  # 1 or 3
    colorspace: str  # "Grayscale" or "RGB"
    changed: tuple[str, ...]  # in order: "eoi_appended", "resized", ...; empty if the bytes are those of the source
    noticed: tuple[str, ...]  # left unchanged: "name_differs", "progressive", "animated"; of `plain` ones "turned", ...
    boxes: tuple[Box, ...]  # turned with the pixels
    mask: bytes | None = None  # a gray PNG, turned and resized with the pixels


@dataclass(slots=True)
class _InputImage:
    """The properties of a file before it is decoded, with the same names for every format."""

    data: bytes
    kind: str
    header: transcode.Header
    acceptable: bool  # every 8-bit decoder reads the bytes correctly
    size: tuple[int, int]  # width and height of the upright image
    changed: tuple[str, ...] = ()
    noticed: tuple[str, ...] = ()
    boxes: tuple[Box, ...] = ()  # for the upright image
    unusual: tuple[str, ...] = ()  # noticed if the bytes stay


def prepare_image(
    data: bytes,
    form: ImageForm,
    *,
    filename: str = "",
    boxes: Sequence[Box] = (),
    frame: Sequence[float] = (),
    mask: bytes | None = None,
    plain: bool = False,
) -> PreparedImage:
    """Checks one image file and brings it into the requested form; whatever `data` is, it raises only `BadImage`.

    Every accepted image has been fully decoded. The result depends only on the arguments and on `get_codec_versions`.
    `frame` is the width and height of the image that boxes and mask were made for: the image in the file, upright or as
    it is stored, or a larger or smaller copy. Zeros if unknown; boxes are then in pixels.
    A `plain` image keeps the pixels that a plain decoder gives, for models and boxes that were made with such pixels:
    EXIF is ignored, and a PNG with alpha or 16 bits stays as it is unless `form` changes it.
    """
    kind = sniff_format(data)
    with other_formats.refuse_unreadable(kind):
        source = _inspect(data, kind, form, plain)
        if name_differs(filename, kind):
            source.noticed = (*source.noticed, "name_differs")
        header = source.header  # as it is before a decoder changes it
        source.boxes = convert_boxes(boxes, frame, (header.width, header.height), header.orientation)
        image = _keep(source, form) if _can_stay(source, form) else _render(source, form)
        if mask is None:
            return image
        from tfpipe.images.masks import prepare_mask  # loads NumPy

        stored, fitted = (header.width, header.height), transcode.fit_size(*source.size, form)
        return replace(image, mask=prepare_mask(mask, stored, header.orientation, fitted, frame, form.max_pixels))


def get_codec_versions() -> dict[str, str]:
    """Returns the versions of all libraries that decide the bytes of an encoded image."""
    versions = {
        "pillow": PIL.__version__,
        "libjpeg_turbo": features.version_feature("libjpeg_turbo"),
        "zlib": features.version_codec("zlib"),
        "zlib_ng": features.version_feature("zlib_ng"),
        "webp": features.version_module("webp"),
    }
    return {name: str(version) for name, version in versions.items() if version}


def _inspect(data: bytes, kind: str, form: ImageForm, plain: bool) -> _InputImage:
    """Reads the header and checks the pixel limit.

    With `plain` the EXIF orientation is ignored, and a file that a plain decoder reads is acceptable.
    """
    header = transcode.read_header(data, kind, form.max_pixels)
    changed: tuple[str, ...] = ()
    unusual: tuple[str, ...] = ()
    if isinstance(header, jpeg.JpegHeader):
        is_usual = header.components != 4 and not header.crops_wrongly
        acceptable = is_usual and (plain or header.orientation == 1)
        unusual = ("turned",) if header.orientation != 1 else ()
    elif isinstance(header, png.PngHeader):
        acceptable, unusual = plain or not header.odd, header.odd
    else:
        acceptable, changed = False, ("first_frame",) if header.animated else ()
    if plain and not (isinstance(header, other_formats.OpenedImage) and header.upright_once_loaded):
        header = replace(header, orientation=1)
    size = get_upright_size((header.width, header.height), header.orientation)
    return _InputImage(data, kind, header, acceptable, size, changed, unusual=unusual if plain else ())


def _can_stay(source: _InputImage, form: ImageForm) -> bool:
    """Returns whether the bytes or the coefficients may be stored as they are, if they can be decoded."""
    if not source.acceptable or transcode.fit_size(*source.size, form) != source.size:
        return False
    if isinstance(source.header, jpeg.JpegHeader):
        return form.encoding != "raw" and not (source.header.progressive and _reencodes_progressive(source, form))
    return form.encoding == "keep"


def _reencodes_progressive(source: _InputImage, form: ImageForm) -> bool:
    assert isinstance(source.header, jpeg.JpegHeader)
    # Where bits of coefficients are missing, decoders guess, and do not agree.
    return (form.reencode_progressive and not form.seekable) or not jpeg.scans_are_whole(source.data, source.header)


def _keep(source: _InputImage, form: ImageForm) -> PreparedImage:
    """Decodes the file as a check, and returns its bytes unchanged, or as a seekable JPEG."""
    if isinstance(source.header, jpeg.JpegHeader):
        becomes_seekable = form.seekable and not seekable.has_chosen_interval(source.data)
        if not (_make_seekable(source, form) if becomes_seekable else _judge(source, form)):
            source.changed = (*source.changed, "rare_jpeg_reencoded")
            return _render(source, form)
        if source.header.progressive:
            source.noticed = ("progressive", *source.noticed)
        if "made_seekable" in source.changed:  # which dropped the EXIF block
            source.unusual = ()
    elif isinstance(source.header, png.PngHeader):
        judge(source.header)
        if source.header.animated:
            source.noticed = ("animated", *source.noticed)
    source.noticed = (*source.unusual, *source.noticed)
    return _make_result(source, source.data, source.kind, source.size, source.header.channels)


def _judge(source: _InputImage, form: ImageForm) -> bool:
    """Returns whether the bytes of a JPEG may be stored. Repairs a missing end marker and padding before markers."""
    assert isinstance(source.header, jpeg.JpegHeader)
    try:
        return judge(source.header)
    except Surplus:
        return judge(_mend(source, drop_padding(source.data, source.header), "surplus_dropped", form))
    except OSError as error:
        body = source.data.rstrip(b"\xff")  # the file may end with half an end marker
        with suppress(BadImage, OSError):  # once there is an end marker, data that is cut off looks damaged
            whole = jpeg.scans_are_whole(body, source.header)
            if whole and judge(_mend(source, body + jpeg.EOI, "eoi_appended", form)):
                return True
        raise BadImage(jpeg.TRUNCATED) from error  # also a rare kind, since nobody can tell if it is whole


def _make_seekable(source: _InputImage, form: ImageForm) -> bool:
    """Makes a JPEG seekable without loss, which also checks it as `judge` does; returns False for a rare kind."""
    assert isinstance(source.header, jpeg.JpegHeader)
    try:
        transcoded = seekable.make_seekable(source.header.decodable, form.max_pixels)
    except BadImage:
        _judge(source, form)  # explains the damage better, or repairs it
        transcoded = seekable.make_seekable(source.header.decodable, form.max_pixels)
    if transcoded is None:
        return False
    source.data = transcoded
    source.header = jpeg.read_header(source.data, form.max_pixels)
    if (source.header.width, source.header.height) != source.size:
        raise BadImage(jpeg.SIZES_DIFFER)
    source.changed = (*source.changed, "made_seekable")
    return True


def _render(source: _InputImage, form: ImageForm) -> PreparedImage:
    """Decodes the file, brings the pixels into the requested form and encodes them."""
    size = transcode.fit_size(*source.size, form)
    header = source.header
    orientation = header.orientation
    applied = 1 if isinstance(header, other_formats.OpenedImage) and header.upright_once_loaded else orientation
    image, changed = _get_pixels(source, form, size, applied)
    image = apply_orientation(image, applied)
    if orientation != 1:
        changed = (*changed, "exif_rotated")
    stored_kind = form.encoding if form.encoding != "keep" else "png" if source.header.lossless else "jpeg"
    if isinstance(source.header, jpeg.JpegHeader) and stored_kind == "jpeg":
        if source.header.crops_wrongly:
            changed = (*changed, "rare_jpeg_reencoded")
        if source.header.progressive and _reencodes_progressive(source, form):
            changed = (*changed, "progressive_reencoded")
    if stored_kind != source.kind:
        changed = (*changed, f"{source.kind}_to_{stored_kind}")
    source.changed = (*source.changed, *changed)
    encoded = transcode.encode(image, stored_kind, form)
    channels = 3 if stored_kind == "raw" or image.mode == "RGB" else 1
    return _make_result(source, encoded, stored_kind, source.size if form.square else size, channels)


def _get_pixels(
    source: _InputImage, form: ImageForm, size: tuple[int, int], applied: int
) -> tuple[Image.Image, tuple[str, ...]]:
    """Returns the pixels, which have this size once `applied` makes them upright, and the kinds of change."""
    stored_size = size[::-1] if swaps_sides(applied) else size
    if isinstance(source.header, jpeg.JpegHeader):
        if size != source.size and (resized := transcode.resize_jpeg(source.header, stored_size)) is not None:
            return resized, ("resized",)
        _judge(source, form)
    image, extent, changed = transcode.load(source.data, source.kind, source.header, size)
    if size == source.size:
        return image, changed
    # The image is resized before it is turned, because the turn then has fewer pixels to move.
    return transcode.resize(image, stored_size, extent), (*changed, "resized")


def _mend(source: _InputImage, data: bytes, change: str, form: ImageForm) -> jpeg.JpegHeader:
    """Puts repaired bytes into the source of a JPEG, and returns their header."""
    source.header = replace(jpeg.read_header(data, form.max_pixels), orientation=source.header.orientation)
    source.data, source.changed = data, (*source.changed, change)
    return source.header


def _make_result(source: _InputImage, encoded: bytes, kind: str, size: tuple[int, int], channels: int) -> PreparedImage:
    return PreparedImage(
        encoded=encoded,
        format=kind.upper(),
        height=size[1],
        width=size[0],
        channels=channels,
        colorspace="Grayscale" if channels == 1 else "RGB",
        changed=source.changed,
        noticed=source.noticed,
        boxes=source.boxes,
    )


def judge(header: jpeg.JpegHeader | png.PngHeader) -> bool:
    """Checks that a file is whole, and returns whether its bytes may be stored.

    For a JPEG of a rare kind, which only some decoders read, it returns False. Raises `Surplus` for more data before a
    marker than the blocks need, which `drop_padding` may repair, and `OSError` for a missing end marker.
    """
    if isinstance(header, png.PngHeader):
        png.verify_png(header)
        return True
    if header.is_plain:
        jpeg.check_end(header)
    else:
        jpeg.open_jpeg(header)
    try:
        native_jpeg.check(header.decodable, header.width * header.height)
    except native_jpeg.UnsupportedJpeg:
        jpeg.verify_by_pillow(header)
        return False
    except native_jpeg.BadJpeg as error:
        jpeg.open_jpeg(header)  # first raises Pillow's error about the headers
        raise _explain(error) from error
    return True


def drop_padding(data: bytes, header: jpeg.JpegHeader) -> bytes:
    """Drops the zeros with which some cameras pad a JPEG before its markers."""
    try:
        mended = native_jpeg.drop_padding(header.decodable, header.width * header.height)
    except native_jpeg.BadJpeg as error:
        raise _explain(error) from error
    if not jpeg.scans_are_whole(data, header):
        raise BadImage("truncated JPEG: zeros take the place of its last scans")
    return data[: header.scan_start] + mended[header.scan_start - len(data) + len(header.decodable) :]


def _explain(error: native_jpeg.BadJpeg) -> BadImage:
    """Returns the error for the user. A flipped bit may make some codes shorter, which leaves surplus data."""
    if isinstance(error, native_jpeg.SurplusJpeg):
        return Surplus(f"damaged JPEG: {error}, as after a flipped bit; if a viewer shows it whole, save it anew there")
    return BadImage(f"damaged JPEG: {error}")


def check_stored(data: bytes, kind: str, form: ImageForm) -> tuple[int, int, int]:
    """Decodes one stored image of a format, "JPEG", "PNG" or "RAW", and returns its width, height and channels."""
    if kind == "RAW":
        side = form.square or 0
        if len(data) != side * side * 3:
            raise BadImage(f"{len(data):,} bytes of raw pixels, not {side} x {side} x 3")
        return side, side, 3
    content = sniff_format(data)
    if content.upper() != kind:
        raise BadImage(f"it is a {TITLES[content]}, not a {kind}")
    return check_encoded(data, form.max_pixels)


def check_encoded(data: bytes, max_pixels: int = _MAX_PIXELS) -> tuple[int, int, int]:
    """Decodes an image file of any format. The result and the errors are those of `check_stored`."""
    kind = sniff_format(data)
    if kind not in ("jpeg", "png"):
        prepared = prepare_image(data, ImageForm(max_pixels=max_pixels))
        return prepared.width, prepared.height, prepared.channels
    with other_formats.refuse_unreadable(kind):
        header = jpeg.read_header(data, max_pixels) if kind == "jpeg" else png.read_header(data, max_pixels)
        try:
            judge(header)
        except Surplus:
            assert isinstance(header, jpeg.JpegHeader)
            drop_padding(data, header)  # raises an error for surplus data that is damage
        return header.width, header.height, header.channels
