"""Arrays of npy and npz files: read as numpy writes them, and no further than a file bears out."""

import io
import re
import struct
import zipfile

import numpy as np
import pytest

from sodeep._core.arrays import npz_names, read_npy, read_npz

ARRAYS = {
    "numbers": np.arange(6.0).reshape(2, 3),
    "columns": np.asfortranarray(np.arange(6, dtype="i2").reshape(2, 3)),
    "one": np.array(7, dtype="u8"),
    "none": np.zeros((0, 3), "f4"),
    "flags": np.array([True, False]),
    "words": np.array(["ab", "ü"]),
    "bytes": np.array([b"ab", b"c"]),
    "turned": np.arange(3, dtype=">f2"),
}


def npy(shape: object, descr: object = "<f8", data: bytes = bytes(96), version: bytes = b"\x01\x00") -> bytes:
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text + data


def exactly(message):
    return f"^{re.escape(message)}$"


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_come_back(tmp_path, name):
    path, array = tmp_path / "x.npy", ARRAYS[name]
    np.save(path, array)
    found = read_npy(path)
    np.testing.assert_array_equal(found, array)
    assert (found.dtype, found.shape, found.flags.writeable) == (array.dtype, array.shape, True)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_the_named_arrays_of_an_npz_come_back(tmp_path, save):
    path = tmp_path / "x.npz"
    save(path, **ARRAYS)
    assert npz_names(path) == list(ARRAYS)
    found = read_npz(path, ["words", "numbers", "absent"])
    assert list(found) == ["words", "numbers"]
    for name, array in found.items():
        np.testing.assert_array_equal(array, ARRAYS[name])


BAD_NPY = {
    "more than there is": (
        npy((10**12, 4)),
        "it is truncated or damaged (96 bytes for an array of shape (1000000000000, 4) and type float64)",
    ),
    "less than there is": (
        npy((1, 4)),
        "it is truncated or damaged (96 bytes for an array of shape (1, 4) and type float64)",
    ),
    "a product beyond 64 bits": (
        npy((2**40, 2**40)),
        "it is truncated or damaged (96 bytes for an array of shape (1099511627776, 1099511627776) and type float64)",
    ),
    "negative": (
        npy((-3, -4)),
        "it is truncated or damaged (96 bytes for an array of shape (-3, -4) and type float64)",
    ),
    "strings of nothing": (npy((10**12,), "|S0", b""), "it holds the type |S0: save numbers or strings"),
    "objects": (npy((12,), "|O"), "it holds Python objects, which are not unpickled: save numbers or strings"),
    "records": (
        npy((12,), [("a", "<f8")]),
        "it holds the type [('a', '<f8')]: save numbers or strings",
    ),
    "dates": (npy((12,), "<M8[D]"), "it holds the type datetime64[D]: save numbers or strings"),
    "empty": (b"", "it is no npy array, or a damaged one ("),
    "a version of the future": (npy((3, 4), version=b"\x09\x00"), "it is no npy array, or a damaged one ("),
    "a header that is no Python": (npy("(" * 500), "it is no npy array, or a damaged one ("),
    "another file": (b"1,2\n3,4\n", "it is no npy array, or a damaged one ("),
}


@pytest.mark.parametrize("case", BAD_NPY)
def test_bad_npy_is_one_message(tmp_path, case):
    data, message = BAD_NPY[case]
    path = tmp_path / "x.npy"
    path.write_bytes(data)
    with pytest.raises(
        ValueError, match=exactly(message) if message.endswith((")", "strings")) else re.escape(message)
    ):
        read_npy(path)


def archive(members, method=zipfile.ZIP_STORED):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", method) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return data.getvalue()


def good_npz(tmp_path):
    np.savez_compressed(tmp_path / "good.npz", x=np.arange(1000))
    return (tmp_path / "good.npz").read_bytes()


BAD_NPZ = {
    "no archive": (lambda folder: b"text", "it is no npz file, or a damaged one (File is not a zip file)"),
    "truncated": (
        lambda folder: good_npz(folder)[:-30],
        "it is no npz file, or a damaged one (File is not a zip file)",
    ),
    "other bytes": (
        lambda folder: good_npz(folder).replace(good_npz(folder)[300:310], bytes(10)),
        "it is no npz file, or a damaged one (",
    ),
    "objects": (
        lambda folder: archive({"x.npy": npy((12,), "|O")}),
        "it holds Python objects, which are not unpickled: save numbers or strings",
    ),
    "no array": (lambda folder: archive({"x": b"text"}), "it is no npy array, or a damaged one ("),
    "a bomb": (
        lambda folder: archive({"x.npy": bytes(150 * 2**20)}, zipfile.ZIP_DEFLATED),
        "it would become 150 MiB, ",
    ),
}


@pytest.mark.parametrize("case", BAD_NPZ)
def test_bad_npz_is_one_message(tmp_path, case):
    make, message = BAD_NPZ[case]
    path = tmp_path / "x.npz"
    path.write_bytes(make(tmp_path))
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        read_npz(path, ["x"])


def test_a_bomb_beside_the_named_arrays_is_not_read(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(3))
    data = archive({"x.npy": (tmp_path / "x.npy").read_bytes(), "y.npy": bytes(150 * 2**20)}, zipfile.ZIP_DEFLATED)
    (tmp_path / "x.npz").write_bytes(data)
    np.testing.assert_array_equal(read_npz(tmp_path / "x.npz", ["x"])["x"], np.arange(3))
