"""Images in every mode that files have, against the arrays that they were written from."""

import io
import re
import struct
import zlib

import numpy as np
import pytest

from sodeep.datasets.images import read_images

Image = pytest.importorskip("PIL.Image")

H, W, SIZE = 24, 16, 8


def ramp(top, dtype=np.float64, channels=()):
    """Values from 0 to `top`, a different one in every place."""
    return np.linspace(0, top, H * W * int(np.prod(channels, dtype=int))).reshape(H, W, *channels).astype(dtype)


def written(array, suffix="png", mode=None, **options):
    """Name and bytes of a file."""
    file = io.BytesIO()
    image = Image.fromarray(array) if mode is None else Image.fromarray(array).convert(mode)
    image.save(file, suffix, **options)
    return f"x.{suffix}", file.getvalue()


def small(values):
    """The mean over areas, of one channel or three."""
    blocks = values.astype(np.float64).reshape(SIZE, H // SIZE, SIZE, W // SIZE, *values.shape[2:])
    return blocks.mean((1, 3))


def read(*files, **options):
    found = read_images(files, SIZE, **options)
    assert found.dtype == np.uint8
    return found


def assert_close(found, expected, most=1.0):
    """Up to the rounding of bytes; an expected grey is all three channels."""
    if expected.ndim < found.ndim:
        expected = np.repeat(expected[..., None], 3, axis=-1)
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=0, atol=most)


WIDE = [
    ("png", np.uint16, 65535, 65535),
    ("tiff", np.uint16, 65535, 65535),
    ("tiff", ">u2", 65535, 65535),
    ("png", np.uint16, 40000, 65535),
    ("png", np.uint16, 4095, 4095),  # 12 bits in 16
    ("tiff", np.uint16, 4095, 4095),
    ("png", np.uint16, 255, 255),  # 8 bits in 16
    ("tiff", np.int32, 65535, 65535),
    ("tiff", np.int32, 1000, 1023),
    ("tiff", np.int32, 1_000_000, 1_000_000),
    ("tiff", np.float32, 1, 1),
    ("tiff", np.float32, 0.5, 1),
    ("tiff", np.float32, 255, 255),
    ("tiff", np.float32, 1.5, 1.5),
]


@pytest.mark.parametrize(("suffix", "dtype", "top", "white"), WIDE)
@pytest.mark.parametrize("grey", [False, True])
def test_more_than_8_bits(suffix, dtype, top, white, grey):
    values = ramp(top, dtype)
    found = read(written(values, suffix), grey=grey)
    assert found.shape == ((1, SIZE, SIZE) if grey else (1, SIZE, SIZE, 3))
    assert_close(found[0], small(values) * 255 / white, most=0.51)


def test_one_white_for_a_data_set():
    dark, bright = ramp(900, np.uint16), ramp(4000, np.uint16)
    eight, real = ramp(255, np.uint8), ramp(0.5, np.float32)
    found = read(written(dark), written(eight), written(bright), written(real, "tiff"))
    for image, values, white in zip(found, (dark, eight, bright, real), (4095, 255, 4095, 1), strict=True):
        assert_close(image, small(values) * 255 / white)


@pytest.mark.parametrize(
    ("mode", "suffix"),
    [
        ("L", "png"),
        ("L", "tiff"),
        ("L", "bmp"),
        ("L", "gif"),
        ("1", "png"),
        ("1", "tiff"),
        ("P", "png"),
        ("P", "gif"),
        ("P", "tiff"),
        ("RGB", "png"),
        ("RGB", "tiff"),
        ("RGB", "bmp"),
        ("CMYK", "tiff"),
        ("YCbCr", "tiff"),
    ],
)
@pytest.mark.parametrize("grey", [False, True])
def test_8_bits_or_fewer_are_as_they_are(mode, suffix, grey):
    if mode == "YCbCr" and int(Image.__version__.partition(".")[0]) < 13:
        pytest.skip("Pillow before 13 cannot read what it writes of this mode")
    values = ramp(255, np.uint8, () if mode in ("L", "1") else (3,))
    given = Image.fromarray(values).convert(mode)
    file = io.BytesIO()
    given.save(file, suffix)
    expected = small(np.asarray(given.convert("RGB")))
    if grey:
        expected = expected @ [0.299, 0.587, 0.114]
    assert_close(read((f"x.{suffix}", file.getvalue()), grey=grey)[0], expected, most=1.6)


def test_cmyk_in_jpeg_and_webp():
    smooth = np.full((H, W, 3), (200, 100, 50), dtype=np.uint8)
    for file in (written(smooth, "jpeg", "CMYK", quality=95), written(smooth, "webp", lossless=True)):
        assert_close(read(file)[0], small(smooth), most=4)


def test_transparent_is_white():
    colours = ramp(200, np.uint8, (3,))
    alpha = ramp(255, np.uint8)
    fraction = alpha[..., None] / 255
    shown = small(colours * fraction + 255 * (1 - fraction))
    both = np.dstack([colours, alpha])
    for suffix in ("png", "tiff", "webp"):
        options = {"lossless": True, "exact": True} if suffix == "webp" else {}
        assert_close(read(written(both, suffix, **options))[0], shown)
    grey = np.dstack([colours[..., 0], alpha])
    shown_grey = small(colours[..., 0] * fraction[..., 0] + 255 * (1 - fraction[..., 0]))
    assert_close(read(written(grey))[0], shown_grey)
    assert_close(read(written(grey), grey=True)[0], shown_grey)
    indexed = Image.fromarray(ramp(255, np.uint8)).convert("P")
    for suffix in ("png", "gif"):
        file = io.BytesIO()
        indexed.save(file, suffix, transparency=0)
        expected = np.asarray(indexed.convert("RGB")).copy()
        expected[np.asarray(indexed) == 0] = 255
        assert_close(read((f"x.{suffix}", file.getvalue()))[0], small(expected))


def test_the_first_frame_of_an_animation():
    frames = [Image.new("RGB", (W, H), colour) for colour in ((255, 0, 0), (0, 0, 255))]
    for suffix in ("gif", "png", "webp", "tiff"):
        file = io.BytesIO()
        frames[0].save(file, suffix, save_all=True, append_images=frames[1:])
        assert_close(read((f"x.{suffix}", file.getvalue()))[0], np.full((SIZE, SIZE, 3), (255, 0, 0)), most=3)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_turned_as_their_exif_says(orientation, dtype):
    upright = ramp(np.iinfo(dtype).max, dtype)
    turn = {
        1: lambda x: x,
        2: np.fliplr,
        3: lambda x: np.rot90(x, 2),
        4: np.flipud,
        5: np.transpose,
        6: np.rot90,
        7: lambda x: np.rot90(x, 2).T,
        8: lambda x: np.rot90(x, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    for suffix in ("png", "tiff"):
        found = read(written(np.ascontiguousarray(turn(upright)), suffix, exif=exif))[0]
        assert_close(found, small(upright) * 255 / np.iinfo(dtype).max)


def png(values, colour, interlaced=False):
    """A PNG as Pillow does not write it: 16 bits a channel, or interlaced."""
    bits = 8 * values.dtype.itemsize

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
    parts = [values[y::dy, x::dx] for y, x, dy, dx in passes] if interlaced else [values]
    rows = b"".join(b"\0" + row.astype(values.dtype.newbyteorder(">")).tobytes() for part in parts for row in part)
    head = struct.pack(">IIBBBBB", values.shape[1], values.shape[0], bits, colour, 0, 0, int(interlaced))
    content = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return "x.png", b"\x89PNG\r\n\x1a\n" + content


def test_interlaced():
    for values, colour in ((ramp(255, np.uint8), 0), (ramp(255, np.uint8, (3,)), 2), (ramp(65535, np.uint16), 0)):
        assert_close(read(png(values, colour, interlaced=True))[0], small(values) * 255 / np.iinfo(values.dtype).max)


def test_16_bits_in_colour():
    values = ramp(65535, np.uint16, (3,))
    assert_close(read(png(values, 2))[0], small(values) / 257, most=1.5)
    alpha = np.full((H, W), 65535, dtype=np.uint16)
    assert_close(read(png(np.dstack([values, alpha]), 6))[0], small(values) / 257, most=1.5)
    assert_close(read(png(np.dstack([values[..., 0], alpha]), 4))[0], small(values[..., 0]) / 257, most=1.5)
    expected = (
        "Images of 16 bits in colour must use more than the lower 14 of them, got less in all, the last in x.png. "
        "Pillow reads only the upper 8: save them with 8 bits a channel."
    )
    for dark in (png(ramp(4095, np.uint16, (3,)), 2), png(np.dstack([ramp(4095, np.uint16, (3,)), alpha]), 6)):
        with pytest.raises(ValueError, match="^" + re.escape(expected) + "$"):
            read(dark)
        assert len(read(dark, png(values, 2))) == 2  # a dark one among others


@pytest.mark.parametrize(("value", "shown"), [(-1.0, "-1"), (np.nan, "nan"), (np.inf, "inf")])
def test_values_that_mean_nothing(value, shown):
    values = ramp(1, np.float32)
    values[3, 4] = value
    expected = (
        f"x.tiff must have values that are finite and not negative, 0 for black, got {shown}. Shift or clip them first."
    )
    with pytest.raises(ValueError, match="^" + re.escape(expected) + "$"):
        read(written(values, "tiff"))


def test_files_that_cannot_be_read(tmp_path):
    whole = written(ramp(255, np.uint8))[1]
    for content in (b"", b"<html>", whole[: len(whole) // 2]):
        path = tmp_path / "x.png"
        path.write_bytes(content)
        with pytest.raises(
            ValueError, match=f"^{re.escape(str(path))} must be an image, got a file that Pillow cannot"
        ):
            read_images([path], SIZE)


def test_no_images():
    assert read_images([], 8).shape == (0, 8, 8, 3)
    assert read_images([], 8, grey=True).shape == (0, 8, 8)
