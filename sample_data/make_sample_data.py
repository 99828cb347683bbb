"""Draws the sample images: three classes of shapes, and one of each odd file that a real collection holds.

    python sample_data/make_sample_data.py [OUT]

writes into OUT, or into the folder of this script. The same Pillow gives the same bytes.
"""

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image

Plane = NDArray[np.float64]  # [height, width]
Pixels = NDArray[np.float64]  # [height, width, 3], 0 to 1

SEED = 7
TURN_RIGHT = 6  # the EXIF orientation of a camera held upright

# Two colours of the background, two of the shape.
PALETTES = [
    ("#0f2a4a", "#2f6f9f", "#ffd166", "#f78c3b"),
    ("#f6efe2", "#e3d3b4", "#d1495b", "#8d1f3c"),
    ("#123524", "#3e7c59", "#f2f5de", "#b7d38c"),
    ("#2b1846", "#7048a8", "#7fe7dc", "#2aa6a1"),
    ("#fde2e4", "#f3b6c2", "#3a6ea5", "#14365f"),
    ("#10131a", "#3c4657", "#ff6b6b", "#c81d4e"),
    ("#d8f0ea", "#8fcfc1", "#f4743b", "#b23a0e"),
    ("#4a1c17", "#a8452f", "#ffe8c2", "#f2b25f"),
    ("#e8ecf5", "#aab8d6", "#5f3dc4", "#2f1a78"),
    ("#0b3c49", "#13808b", "#f7f7ff", "#c3cbe8"),
    ("#fff3bf", "#ffd43b", "#2b8a3e", "#0f4d20"),
    ("#20232a", "#575f70", "#9be564", "#3d9b3a"),
]


def circle(x: Plane, y: Plane) -> Plane:
    """Distance to the edge of a circle about the origin; negative inside. All shapes are about as large."""
    return np.hypot(x, y) - 1.0


def square(x: Plane, y: Plane) -> Plane:
    """Distance to the edge of a square with slightly rounded corners."""
    half, corner = 0.80, 0.08
    dx, dy = np.abs(x) - half, np.abs(y) - half
    outside = np.hypot(np.maximum(dx, 0), np.maximum(dy, 0))
    return outside + np.minimum(np.maximum(dx, dy), 0) - corner


def triangle(x: Plane, y: Plane) -> Plane:
    """Distance to the edge of an equilateral triangle that stands on its base, corners slightly rounded."""
    inner, corner = 0.62, 0.06
    slopes = np.maximum(0.8660254 * x, -0.8660254 * x) - 0.5 * y
    return np.maximum(y, slopes) - inner - corner


SHAPES: dict[str, Callable[[Plane, Plane], Plane]] = {
    "circle": circle,
    "square": square,
    "triangle": triangle,
}


@dataclass(frozen=True)
class Picture:
    """One file to draw: what makes it odd is in its name and in how it is encoded.

    Attributes:
        name: File name, below the folder of its shape.
        width: In pixels, as the picture is looked at.
        height: Likewise.
        encode: Pixels in, file out.
        upright: Do not rotate the shape.
    """

    name: str
    width: int
    height: int
    encode: Callable[[Image.Image], bytes]
    upright: bool = False


def small_pictures(shape: str) -> list[Picture]:
    """Plain pictures, enough for a model to learn from and for an evaluation to count."""
    sizes = [(96, 72), (72, 96), (80, 80)]
    return [Picture(f"{shape}-{number}.jpg", *sizes[number % len(sizes)], jpeg) for number in range(11, 53)]


def jpeg(image: Image.Image, *, progressive: bool = False, exif: Image.Exif | None = None) -> bytes:
    """A JPEG file of good quality."""
    file = io.BytesIO()
    more = {} if exif is None else {"exif": exif}
    image.save(file, "JPEG", quality=88, optimize=True, progressive=progressive, **more)
    return file.getvalue()


def png(image: Image.Image) -> bytes:
    """A PNG file."""
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()


def progressive_jpeg(image: Image.Image) -> bytes:
    """A JPEG that sharpens while it loads."""
    return jpeg(image, progressive=True)


def grey_jpeg(image: Image.Image) -> bytes:
    """A JPEG with one channel."""
    return jpeg(image.convert("L"))


def cmyk_jpeg(image: Image.Image) -> bytes:
    """A JPEG for a printing press: four channels, stored inverted."""
    return jpeg(image.convert("CMYK"))


def turned_jpeg(image: Image.Image) -> bytes:
    """A JPEG that lies on its side and says so, as a telephone writes it."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = TURN_RIGHT
    return jpeg(image.transpose(Image.Transpose.ROTATE_90), exif=exif)


def endless_jpeg(image: Image.Image) -> bytes:
    """A JPEG without the marker at its end."""
    return jpeg(image)[:-2]


def half_jpeg(image: Image.Image) -> bytes:
    """Half a JPEG, as a broken download leaves it."""
    data = jpeg(image)
    return data[: len(data) // 2]


def rgba_png(image: Image.Image) -> bytes:
    """A PNG that fades out towards its corners."""
    x, y = grid(image.width, image.height)
    radius = np.hypot(x / np.abs(x).max(), y / np.abs(y).max())
    alpha = np.clip((1.32 - radius) / 0.25, 0, 1)
    image.putalpha(Image.fromarray(np.round(alpha * 255).astype(np.uint8)))
    return png(image)


PICTURES: dict[str, list[Picture]] = {
    "circle": [
        Picture("circle-1.jpg", 320, 240, jpeg),
        Picture("circle-2.jpg", 96, 96, jpeg),
        Picture("circle-3.jpg", 180, 270, jpeg),
        Picture("circle-4.jpg", 256, 256, jpeg),
        Picture("circle-5.jpg", 400, 210, jpeg),
        Picture("circle-6.jpg", 64, 80, jpeg),
        Picture("circle-png-inside.jpg", 120, 120, png),
        Picture("circle-progressive.jpg", 360, 270, progressive_jpeg),
        *small_pictures("circle"),
    ],
    "square": [
        Picture("square-1.jpg", 300, 300, jpeg),
        Picture("square-2.jpg", 128, 72, jpeg),
        Picture("square-3.jpg", 210, 280, jpeg),
        Picture("square-4.jpg", 384, 256, jpeg),
        Picture("square-cmyk.jpg", 224, 168, cmyk_jpeg),
        Picture("square-cut-in-half.jpg", 240, 180, half_jpeg),
        Picture("square-grey.jpg", 200, 200, grey_jpeg),
        Picture("square-no-end-marker.jpg", 160, 120, endless_jpeg),
        *small_pictures("square"),
    ],
    "triangle": [
        Picture("triangle-1.jpg", 333, 250, jpeg),
        Picture("triangle-2.jpg", 100, 150, jpeg),
        Picture("triangle-3.jpg", 256, 192, jpeg),
        Picture("triangle-4.jpg", 400, 400, jpeg),
        Picture("triangle-5.jpg", 150, 84, jpeg),
        Picture("triangle-rgb.png", 144, 108, png),
        Picture("triangle-rgba.png", 128, 128, rgba_png),
        Picture("triangle-turned.jpg", 180, 240, turned_jpeg, upright=True),
        *small_pictures("triangle"),
    ],
}

NOTES = "Not an image. Real folders hold such files too; they are skipped and counted.\n"


def grid(width: int, height: int) -> tuple[Plane, Plane]:
    """Coordinates of the pixels' centres, [height, width] each; the short side runs from -1 to 1."""
    scale = 2 / min(width, height)
    x = (np.arange(width) + 0.5 - width / 2) * scale
    y = (np.arange(height) + 0.5 - height / 2) * scale
    columns, rows = np.meshgrid(x, y)
    return columns, rows


def colour(code: str) -> Plane:
    """`#rrggbb` as three numbers from 0 to 1."""
    return np.array([int(code[start : start + 2], 16) for start in (1, 3, 5)]) / 255


def mix(first: Pixels | Plane, second: Pixels | Plane, share: Plane) -> Pixels:
    """`second` where `share` is 1, `first` where it is 0."""
    share = np.clip(share, 0, 1)[..., None]
    return first * (1 - share) + second * share


def backdrop(x: Plane, y: Plane, palette: int, rng: np.random.Generator) -> Pixels:
    """A gradient at some angle, with one of four patterns faintly on it."""
    dark, light, *_ = PALETTES[palette]
    angle = rng.random() * 2 * np.pi
    along, across = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
    pixels = mix(colour(dark), colour(light), along / (2 * np.abs(along).max()) + 0.5)
    fine = 3 + 2 * rng.random()
    patterns = [
        np.zeros_like(x),
        0.5 + 0.5 * np.sin(across * fine * 4),  # stripes
        np.clip(0.42 - np.hypot((x * fine) % 1 - 0.5, (y * fine) % 1 - 0.5), 0, 0.12) * 8,  # dots
        0.5 + 0.5 * np.sin(np.hypot(x + 1.2, y - 0.9) * fine * 3),  # rings about a corner
    ]
    return mix(pixels, colour(light), 0.3 * patterns[int(rng.integers(len(patterns)))])


def draw(shape: str, picture: Picture, palette: int, rng: np.random.Generator) -> Image.Image:
    """A shape somewhere near the middle, with a shadow, lit from above left, and a little noise on it all."""
    x, y = grid(picture.width, picture.height)
    pixels = backdrop(x, y, palette, rng)
    size = 0.5 + 0.18 * rng.random()
    room_x, room_y = np.maximum([np.abs(x).max() - size - 0.25, np.abs(y).max() - size - 0.25], 0)
    left, top = room_x * rng.uniform(-0.8, 0.8), room_y * rng.uniform(-0.8, 0.8)
    turn = 0.0 if picture.upright else rng.uniform(-0.6, 0.6)

    def distance(dx: float, dy: float) -> Plane:
        u, v = (x - left - dx) / size, (y - top - dy) / size
        return SHAPES[shape](u * np.cos(turn) + v * np.sin(turn), v * np.cos(turn) - u * np.sin(turn)) * size

    edge = 2 / min(picture.width, picture.height)  # one pixel
    _, _, light, dark = PALETTES[palette]
    shadow = 0.55 * np.clip(0.5 - distance(0.06, 0.09) / 0.16, 0, 1)
    pixels = mix(pixels, np.zeros(3), shadow)
    inside = distance(0, 0)
    fill = mix(colour(light), colour(dark), 0.5 + ((x - left) * 0.35 + (y - top) * 0.6) / size)
    rim = np.clip(1 - np.abs(inside + 0.035) / 0.025, 0, 1) * 0.35
    pixels = mix(pixels, mix(fill, np.ones(3), rim), 0.5 - inside / edge)
    noise = (rng.random((*x.shape, 3)) - 0.5) * 0.02 + (rng.random((*x.shape, 1)) - 0.5) * 0.05
    return Image.fromarray(np.round(np.clip(pixels + noise, 0, 1) * 255).astype(np.uint8))


def main(out: Path) -> None:
    """Draws every picture below `out`."""
    written = 0
    for class_index, (shape, pictures) in enumerate(PICTURES.items()):
        (out / shape).mkdir(parents=True, exist_ok=True)
        for index, picture in enumerate(pictures):
            rng = np.random.default_rng([SEED, class_index, index])
            # Every shape meets every kind of colour, so that colour does not give the class away.
            image = draw(shape, picture, (index * 5 + class_index * 4) % len(PALETTES), rng)
            written += (out / shape / picture.name).write_bytes(picture.encode(image))
    (out / "circle" / "notes.txt").write_text(NOTES, encoding="utf-8")
    print(f"{sum(map(len, PICTURES.values()))} images, {written:,} bytes, in {out}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
