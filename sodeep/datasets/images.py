"""Image files of any format, resized to small squares of 8 bits a channel.

All images of a data set are scaled alike, so that their values stay comparable:

* 8 bits or fewer (black and white, grey, palette, RGB, CMYK, YCbCr): as they are, 0 is black and 255 white.
* Whole numbers of more bits: white is the least of 255, 1023, 4095, 16383 and 65535 that no image **of the data set**
  exceeds. Images of 12 bits in files of 16 are so read as of 12. Still larger numbers: white is the largest.
* Floating point: 0 is black and 1 white, or the largest value of the data set where that is above 1.
* Transparency: laid on white.

Of an animation the first frame is read; an image is turned as its EXIF orientation says.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sodeep._core.extras import needed
from sodeep.datasets.types import Array, Source

_MANY_PIXELS = 25_000_000
"""A file of a few bytes has no more: it takes memory by its pixels, not by its size."""

_WHITES = (255, 1023, 4095, 16383, 65535)
"""The largest numbers of 8, 10, 12, 14 and 16 bits."""


PIXELS = 64
"""Height and width that large images are resized to for a small network."""

IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
"""Of files that are taken for images."""


def small_images(sources: Iterable[Source]) -> Array:
    """Images in colour, `PIXELS` high and wide."""
    return read_images(sources, PIXELS)


def read_images(sources: Iterable[Source], size: int, *, grey: bool = False, bicubic: bool = False) -> Array:
    """Read images of any shape as squares; each pixel is the mean over an area.

    Args:
        sources: where they are.
        size: height and width of the result.
        grey: one channel in place of three.
        bicubic: resize with the bicubic filter (that of Pillow, which covers an area too), fit for enlarging.

    Returns:
        uint8 (n, size, size), or (n, size, size, 3) without `grey`. The head of this module says how values are scaled.

    Raises:
        MissingPackageError: Pillow is not installed.
        ValueError: a file that is no image, or has values that are negative or not finite; the message names it.
    """
    with needed("PIL", "Reading images"):
        import PIL.Image  # noqa: F401

    small: list[Array] = []
    wide: dict[str, list[tuple[int, float]]] = {"whole": [], "real": [], "high bytes": []}
    name = ""
    for place, source in enumerate(sources):
        name = source[0] if isinstance(source, tuple) else str(source)
        try:
            given: Any = io.BytesIO(source[1]) if isinstance(source, tuple) else source
            length = len(source[1]) if isinstance(source, tuple) else Path(source).stat().st_size
            pixels, number_type, largest = _read(given, length, size, grey, bicubic)
        except Exception as error:  # Pillow's decoders raise errors of many types
            raise ValueError(f"{name} must be an image, got a file that Pillow cannot read ({error}).") from None
        if not 0 <= largest < np.inf:
            raise ValueError(
                f"{name} must have values that are finite and not negative, 0 for black, got {largest:g}. "
                "Shift or clip them first."
            )
        if number_type in wide:
            wide[number_type].append((place, largest))
        small.append(pixels)
    if wide["high bytes"] and max(largest for _, largest in wide["high bytes"]) < 64:
        raise ValueError(
            f"Images of 16 bits in colour must use more than the lower 14 of them, got less in all, the last in "
            f"{name}. Pillow reads only the upper 8: save them with 8 bits a channel."
        )
    for number_type in ("whole", "real"):
        white = _white(number_type, max((largest for _, largest in wide[number_type]), default=0))
        for place, _ in wide[number_type]:
            small[place] = _as_bytes(small[place] * (255 / white), grey)
    shape = (0, size, size) if grey else (0, size, size, 3)
    return np.stack(small) if small else np.empty(shape, dtype=np.uint8)


def _white(number_type: str, largest: float) -> float:
    if number_type == "real":
        return max(1.0, largest)
    return next((white for white in _WHITES if largest <= white), largest)


def _as_bytes(values: Array, grey: bool) -> Array:
    rounded = values.round().clip(0, 255).astype(np.uint8)
    return rounded if grey else np.repeat(rounded[..., None], 3, axis=-1)


def image_chunks(sources: Sequence[Source], size: int, chunk: int) -> Iterator[Array]:
    """Images in colour as of `read_images`, bicubic, some at a time: uint8 (up to `chunk`, size, size, 3).

    They are read together where a file has more than 8 bits a channel: how values are scaled depends on all of them.
    """
    if any(map(_is_wide, sources)):
        images = read_images(sources, size, bicubic=True)
        yield from (images[start : start + chunk] for start in range(0, len(images), chunk))
        return
    for start in range(0, len(sources), chunk):
        yield read_images(sources[start : start + chunk], size, bicubic=True)


def _is_wide(source: Source) -> bool:
    """Whether an image has more than 8 bits a channel, by its header."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(source[1]) if isinstance(source, tuple) else source) as image:
            return image.mode in ("I", "F") or ";16" in f"{image.mode} {[tile[3] for tile in image.tile]}"
    except Exception:  # of Pillow's decoders, of many types; reading it says so
        return False


def _read(source: Any, length: int, size: int, grey: bool, bicubic: bool) -> tuple[Array, str, float]:
    """A small image, the type of its numbers, and the largest of them before it was resized.

    The image is uint8 in its final shape, or float32 (size, size) of the types "whole" and "real". In place of the
    largest number, a negative one or NaN is returned where there is one.
    """
    from PIL import Image, ImageOps

    resample = Image.Resampling.BICUBIC if bicubic else Image.Resampling.BOX
    with Image.open(source) as image:
        image.draft("RGB", (2 * size, 2 * size))  # a large JPEG is decoded at a fraction of its size
        _check_pixels(image, length)
        number_type, largest = "bytes", 255.0
        if image.mode.startswith("RGB") and any(";16" in str(tile[3]) for tile in image.tile):
            number_type = "high bytes"  # of each channel: Pillow drops the others
        ImageOps.exif_transpose(image, in_place=True)
        if image.mode in ("I", "F") or image.mode.startswith("I;16"):
            values = np.asarray(image)
            number_type = "whole" if values.dtype.kind in "iu" else "real"
            values = values.astype(np.float32)
            low, high = float(values.min()), float(values.max())  # NaN if there is one
            small = Image.fromarray(values).resize((size, size), resample)
            return np.asarray(small), number_type, high if low >= 0 else low
        if number_type == "high bytes":
            extrema: Any = image.getextrema()  # of each channel
            largest = float(max(high for _, high in extrema[:3]))
        shown = _on_white(image).convert("L" if grey else "RGB").resize((size, size), resample)
        return np.asarray(shown), number_type, largest


def _on_white(image: Any) -> Any:
    """An image of Pillow without transparency."""
    from PIL import Image

    if not image.has_transparency_data:
        return image
    shown = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", shown.size, "white"), shown)


def open_image(source: Source) -> Any:
    """A ``PIL.Image`` in colour at its own size, upright and without transparency, for a transform.

    Raises:
        MissingPackageError: Pillow is not installed.
        ValueError: a file that is no image, or one of more than 8 bits a channel; the message names it.
    """
    with needed("PIL", "Reading images"):
        from PIL import Image, ImageOps
    name = source[0] if isinstance(source, tuple) else str(source)
    if _is_wide(source):
        raise ValueError(
            f"{name} must have at most 8 bits a channel for an encoder with a transform, got more. Save it with 8."
        )
    try:
        given: Any = io.BytesIO(source[1]) if isinstance(source, tuple) else source
        length = len(source[1]) if isinstance(source, tuple) else Path(source).stat().st_size
        with Image.open(given) as image:
            _check_pixels(image, length)
            ImageOps.exif_transpose(image, in_place=True)
            return _on_white(image).convert("RGB")
    except Exception as error:  # Pillow's decoders raise errors of many types
        raise ValueError(f"{name} must be an image, got a file that Pillow cannot read ({error}).") from None


def _check_pixels(image: Any, length: int) -> None:
    """Refuse a file of `length` bytes that would fill the memory."""
    if math.prod(image.size) > max(_MANY_PIXELS, 100 * length):
        raise ValueError(f"{image.width} x {image.height} pixels in {length} bytes")
