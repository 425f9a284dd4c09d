"""Readers of published layouts, on tiny folders in those layouts."""

import io
import itertools
import json
import pickle
import re
import zlib

import numpy as np
import pytest
import torch

from sodeep._core.pickle_stream import NotPlainError
from sodeep.datasets import captions, features, memorability, multi_label, retrieval
from sodeep.datasets._plain_pickle import read_plain_pickle
from sodeep.datasets.captions import read_karpathy
from sodeep.datasets.features import read_features
from sodeep.datasets.memorability import read_mediaeval, read_table
from sodeep.datasets.multi_label import read_voc
from sodeep.datasets.retrieval import read_class_folders, read_cub, read_in_shop, read_online_products
from sodeep.datasets.revisited import RevisitedSet, read_revisited
from sodeep.metrics import UndefinedMetricWarning, average_precision, trapezoidal_ap
from sodeep.tasks import read_data
from sodeep.tasks.memorability import Memorability


def write(root, files):
    """Files under `root`: text as it is, None an image of one colour, "" for an empty file."""
    for number, (name, content) in enumerate(files.items()):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.write_bytes(image(number))
        else:
            path.write_text(content)
    return root


def image(number, suffix="PNG"):
    image = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    image.new("RGB", (20, 10), (number, 2 * number, 3 * number)).save(file, suffix)
    return file.getvalue()


def message(call, *arguments, error=ValueError, **options):
    """The whole message of the error that `call` raises."""
    with pytest.raises(error) as caught:
        call(*arguments, **options)
    assert type(caught.value) is error
    return str(caught.value)


# ---- Caltech birds ---------------------------------------------------------------------------------------------------

CUB = {
    "images.txt": "1 001.Albatross/a.jpg\n2 001.Albatross/b.jpg\n3 002.Auklet/c d.jpg\n",
    "image_class_labels.txt": "1 1\n2 1\n3 2\n",
    "train_test_split.txt": "1 1\n2 0\n3 1\n",
    "classes.txt": "1 001.Albatross\n2 002.Auklet\n",
    "images/001.Albatross/a.jpg": None,
    "images/001.Albatross/b.jpg": None,
    "images/002.Auklet/c d.jpg": None,
}
CUB_ORIGIN = "The data are Caltech-UCSD Birds-200-2011 (CUB-200-2011), from the Caltech Vision Lab's page of that name."


def test_cub(tmp_path):
    root = write(tmp_path, CUB)
    found = read_cub(root)
    images = root / "images"
    assert found.train.paths == [images / "001.Albatross/a.jpg", images / "001.Albatross/b.jpg"]
    assert found.train.labels == [1, 1]
    assert found.queries.paths == [images / "002.Auklet/c d.jpg"]
    assert found.queries.labels == [2]
    assert found.gallery is None
    assert found.names == {1: "001.Albatross", 2: "002.Auklet"}
    official = read_cub(root, split="official")
    assert official.train.labels == [1, 2]
    assert official.queries.paths == [images / "001.Albatross/b.jpg"]


def test_cub_does_not_care_about_the_order_of_lines(tmp_path):
    shuffled = {name: "".join(reversed(c.splitlines(keepends=True))) for name, c in CUB.items() if c is not None}
    first, second = read_cub(write(tmp_path, CUB)), read_cub(write(tmp_path, shuffled), check_files=False)
    pairs = [set(zip(found.train.paths, found.train.labels, strict=True)) for found in (first, second)]
    assert pairs[0] == pairs[1]


def test_no_folder(tmp_path):
    assert message(read_cub, tmp_path / "birds", error=FileNotFoundError) == (
        "`folder` must hold images.txt, image_class_labels.txt, classes.txt, images/, "
        f"got '{tmp_path / 'birds'}', which is no folder. {CUB_ORIGIN}"
    )


def test_another_folder(tmp_path):
    write(tmp_path, {"images.txt": "", "cats/1.txt": "", "readme": ""})
    assert message(read_cub, tmp_path, error=FileNotFoundError) == (
        "`folder` must hold images.txt, image_class_labels.txt, classes.txt, images/, "
        f"got '{tmp_path}' without image_class_labels.txt, classes.txt, images/. "
        f"It holds cats/, images.txt, readme. {CUB_ORIGIN}"
    )


def test_a_folder_of_many_files_is_not_listed_whole(tmp_path):
    write(tmp_path, {f"{i}.txt": "" for i in range(10)})
    text = message(read_online_products, tmp_path, error=FileNotFoundError)
    assert "It holds 0.txt, 1.txt, 2.txt, 3.txt, 4.txt, 5.txt, 6.txt, 7.txt and 2 more. " in text


def test_an_optional_file_is_asked_for_when_needed(tmp_path):
    write(tmp_path, CUB)
    (tmp_path / "train_test_split.txt").unlink()
    assert len(read_cub(tmp_path).train) == 2
    assert message(read_cub, tmp_path, split="official", error=FileNotFoundError) == (
        "`folder` must hold images.txt, image_class_labels.txt, classes.txt, images/, train_test_split.txt, "
        f"got '{tmp_path}' without train_test_split.txt. "
        f"It holds classes.txt, image_class_labels.txt, images.txt, images/. {CUB_ORIGIN}"
    )


def test_images_that_are_not_there(tmp_path):
    write(tmp_path, CUB)
    gone = tmp_path / "images/002.Auklet/c d.jpg"
    gone.unlink()
    assert message(read_cub, tmp_path, error=FileNotFoundError) == (
        f"The 3 listed images must be under '{tmp_path}', but 1 are not, the first: '{gone}'. "
        f"Unpack the images there. {CUB_ORIGIN} With check_files=False the lists are read without them."
    )
    assert read_cub(tmp_path, check_files=False).queries.paths == [gone]


@pytest.mark.parametrize(
    ("file", "content", "fault"),
    [
        ("images.txt", "1\n", "images.txt must have 2 columns in each line, got '1'"),
        ("images.txt", "\n", "images.txt must have at least one line, got none"),
        ("image_class_labels.txt", "1 one\n", "a label must be a whole number, got 'one'"),
        ("images.txt", "9 a.jpg\n", "images.txt and image_class_labels.txt must number the same images"),
        ("classes.txt", "1 001.Albatross\n", "there must be training images"),
    ],
)
def test_damaged_lists(tmp_path, file, content, fault):
    write(tmp_path, CUB | {file: content})
    assert message(read_cub, tmp_path) == f"{fault}, in '{tmp_path}'. {CUB_ORIGIN}"


def test_unknown_split():
    assert message(read_cub, ".", split="test") == "`split` must be one of classes, official, got 'test'."


# ---- products and clothes --------------------------------------------------------------------------------------------

SOP_HEADER = "image_id class_id super_class_id path\n"
SOP = {
    "Ebay_train.txt": SOP_HEADER + "1 1 1 bicycle_final/1_0.JPG\n2 1 1 bicycle_final/1_1.JPG\n",
    "Ebay_test.txt": SOP_HEADER + "3 11319 1 toaster_final/2_0.JPG\n",
    "bicycle_final/1_0.JPG": None,
    "bicycle_final/1_1.JPG": None,
    "toaster_final/2_0.JPG": None,
}
SOP_ORIGIN = (
    "The data are Stanford Online Products, from the page 'Deep Metric Learning via Lifted Structured Feature "
    "Embedding'."
)


def test_online_products(tmp_path):
    found = read_online_products(write(tmp_path, SOP))
    assert found.train.paths == [tmp_path / "bicycle_final/1_0.JPG", tmp_path / "bicycle_final/1_1.JPG"]
    assert (found.train.labels, found.queries.labels, found.gallery) == ([1, 1], [11319], None)
    assert found.names == {1: "bicycle 1", 11319: "toaster 11319"}


def test_online_products_without_a_header(tmp_path):
    write(tmp_path, SOP | {"Ebay_test.txt": "3 11319 1 toaster_final/2_0.JPG\n"})
    assert message(read_online_products, tmp_path) == (
        "Ebay_test.txt must begin with the line 'image_id class_id super_class_id path', "
        f"got '3 11319 1 toaster_final/2_0.JPG', in '{tmp_path}'. {SOP_ORIGIN}"
    )


IN_SHOP = (
    "4\nimage_name item_id evaluation_status\n"
    "img/WOMEN/Dresses/id_00000002/02_1_front.jpg   id_00000002 train\n"
    "img/WOMEN/Dresses/id_00000002/02_2_side.jpg    id_00000002 train\n"
    "img/MEN/Denim/id_00000080/01_1_front.jpg       id_00000080 query\n"
    "img/MEN/Denim/id_00000080/01_2_side.jpg        id_00000080 gallery\n"
)
IN_SHOP_IMAGES = {line.split()[0]: None for line in IN_SHOP.splitlines()[2:]}


@pytest.mark.parametrize("folder", ["Eval/", "Anno/", ""])
@pytest.mark.parametrize("images", ["", "Img/"])
def test_in_shop(tmp_path, folder, images):
    files = {images + name: None for name in IN_SHOP_IMAGES}
    found = read_in_shop(write(tmp_path, files | {f"{folder}list_eval_partition.txt": IN_SHOP}))
    assert (found.train.labels, found.queries.labels, found.gallery.labels) == ([2, 2], [80], [80])
    assert found.queries.paths == [tmp_path / images / "img/MEN/Denim/id_00000080/01_1_front.jpg"]
    assert found.names == {2: "id_00000002", 80: "id_00000080"}


IN_SHOP_ORIGIN = (
    "The data are the In-shop Clothes Retrieval Benchmark, from the page of the DeepFashion database (MMLAB, CUHK)."
)


def test_in_shop_errors(tmp_path):
    write(tmp_path, {"img/x.jpg": None})
    assert message(read_in_shop, tmp_path, error=FileNotFoundError) == (
        "`folder` must hold Eval/list_eval_partition.txt or Anno/list_eval_partition.txt or list_eval_partition.txt, "
        f"img/ or Img/img/, got '{tmp_path}' without Eval/list_eval_partition.txt or Anno/list_eval_partition.txt or "
        f"list_eval_partition.txt. It holds img/. {IN_SHOP_ORIGIN}"
    )
    write(tmp_path, {"Eval/list_eval_partition.txt": IN_SHOP.replace("query", "probe")})
    assert message(read_in_shop, tmp_path) == (
        f"Eval/list_eval_partition.txt: a status is train, query or gallery, got 'probe', in '{tmp_path}'. "
        f"{IN_SHOP_ORIGIN}"
    )


# ---- Revisited Oxford and Paris --------------------------------------------------------------------------------------


def truth(array=list):
    return {
        "imlist": ["a", "b", "c", "d", "e"],
        "qimlist": ["q0", "q1"],
        "gnd": [
            {"bbx": [1.0, 2.5, 30.0, 40.0], "easy": array([0]), "hard": array([3]), "junk": array([1])},
            {"bbx": array([0.5, 0.0, 9.0, 9.0]), "easy": array([4, 2]), "hard": array([]), "junk": array([])},
        ],
    }


def integers(values):
    """As the published file: index lists, of any length, as numpy arrays."""
    floats = any(isinstance(value, float) for value in values)
    return np.array(values, dtype=np.float64 if floats else np.int64)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("array", [list, integers])
def test_revisited(tmp_path, protocol, array):
    path = tmp_path / "gnd_roxford5k.pkl"
    path.write_bytes(pickle.dumps(truth(array), protocol=protocol))
    found = read_revisited(path)
    assert found == RevisitedSet(
        ["q0", "q1"],
        ["a", "b", "c", "d", "e"],
        [(1.0, 2.5, 30.0, 40.0), (0.5, 0.0, 9.0, 9.0)],
        [[0], [4, 2]],
        [[3], []],
        [[1], []],
    )
    export = tmp_path / "gnd.json"
    export.write_text(json.dumps(truth()))
    assert read_revisited(export) == found


def test_protocols(tmp_path):
    (tmp_path / "gnd.json").write_text(json.dumps(truth()))
    found = read_revisited(tmp_path / "gnd.json")

    def shown(protocol):  # + right, . wrong, blank left out
        relevant, where = found.relevance(protocol)
        return ["".join("+" if r else "." if w else " " for r, w in zip(*row, strict=True))
                for row in zip(relevant, where, strict=True)]  # fmt: skip

    assert shown("easy") == ["+ . .", "..+.+"]
    assert shown("medium") == ["+ .+.", "..+.+"]
    assert shown("hard") == ["  .+.", ".. . "]
    assert message(found.relevance, "all") == "`protocol` must be one of easy, medium, hard, got 'all'."


def test_revisited_errors(tmp_path):
    path = tmp_path / "gnd.json"
    expected = "a dict of imlist, qimlist and gnd, and in gnd for each query easy, hard, junk and bbx"
    origin = (
        "The data are the 'Revisiting Oxford and Paris' page (Radenović et al. 2018), with the images of Oxford5k and "
        "Paris6k."
    )
    assert message(read_revisited, path, error=FileNotFoundError) == (
        f"`path` must be a ground truth file, {expected}, got '{path}', which is not there. {origin}"
    )
    broken = truth()
    del broken["gnd"][1]["junk"]
    for content, fault in [
        (json.dumps(broken), "there is no 'junk'"),
        (json.dumps(truth() | {"imlist": ["a"]}), "indices from 0 to 4 in a gallery of 1 images"),
        (json.dumps(truth() | {"qimlist": ["a"]}), "1 queries and 2 entries of gnd"),
        ("[1, 2]", "list indices must be integers or slices, not str"),
        ("<html>", "Expecting value: line 1 column 1 (char 0)"),
        ("[" * 100_000, "maximum recursion depth exceeded while decoding a JSON array from a unicode string"),
    ]:
        path.write_text(content)
        assert message(read_revisited, path) == f"`path` must be {expected}, got '{path}': {fault}. {origin}"


def benchmark_ap(ranks, count):
    """The benchmark's own recipe: ranks of the right images from 0 on, junk taken out before they are counted."""
    total = 0.0
    for found, rank in enumerate(ranks):
        before = 1.0 if rank == 0 else found / rank
        total += (before + (found + 1) / (rank + 1)) / 2 / count
    return total


def test_trapezoidal_ap_is_that_of_the_benchmark(generator):
    scores = torch.rand(40, 30, generator=generator, dtype=torch.float64)
    label = torch.randint(0, 4, (40, 30), generator=generator)
    relevant, junk = label == 0, label == 1
    relevant[:, 0] = True
    junk[:, 0] = False
    expected = []
    for s, r, j in zip(scores, relevant, junk, strict=True):
        order = [i for i in s.argsort(descending=True).tolist() if not j[i]]
        ranks = [rank for rank, i in enumerate(order) if r[i]]
        expected.append(benchmark_ap(ranks, len(ranks)))
    found = trapezoidal_ap(scores, relevant, ~junk)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(trapezoidal_ap(scores.float(), relevant, ~junk), found.float())
    for row in range(3):
        alone = trapezoidal_ap(scores[row][~junk[row]], relevant[row][~junk[row]])
        torch.testing.assert_close(alone, found[row])


def test_trapezoidal_ap_of_ties_does_not_depend_on_their_order(generator):
    scores = torch.randint(0, 4, (12,), generator=generator).float()
    relevant = torch.rand(12, generator=generator) < 0.5
    value = trapezoidal_ap(scores, relevant)
    for seed in range(5):
        order = torch.randperm(12, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(trapezoidal_ap(scores[order], relevant[order]), value)
    # one score for all: precision goes from 1 straight to the share of relevant items
    torch.testing.assert_close(trapezoidal_ap(torch.zeros(4), torch.tensor([1, 0, 0, 0])), torch.tensor(0.625))


def test_trapezoidal_ap_masks_and_undefined_lists():
    scores = torch.tensor([[3.0, float("nan"), 1.0], [1.0, 2.0, 3.0]])
    relevant = torch.tensor([[False, True, True], [False, False, False]])
    where = torch.tensor([[True, False, True], [True, True, True]])
    expected = "^trapezoidal_ap is NaN for 1 of 2 lists: a list needs a relevant item.$"
    with pytest.warns(UndefinedMetricWarning, match=expected):
        found = trapezoidal_ap(scores, relevant, where)
    torch.testing.assert_close(found, torch.tensor([0.25, float("nan")]), equal_nan=True)
    # twice the precision of a step: both kinds agree on a perfect order and not elsewhere
    perfect = torch.tensor([3.0, 2.0, 1.0]), torch.tensor([True, True, False])
    torch.testing.assert_close(trapezoidal_ap(*perfect), average_precision(*perfect))
    assert message(trapezoidal_ap, scores, relevant) == (
        "`scores` must be finite, got 1 NaN or infinite of 6 values, the first (nan) at index (0, 1). Mask such items "
        "out with where=, or find the step that made them (torch.autograd.set_detect_anomaly)."
    )


# ---- pickles of plain data -------------------------------------------------------------------------------------------

PLAIN = [
    None, True, False, 0, -3, 300, 70_000, 2**40, -(2**70), 1.5, float("inf"), "text", "ü" * 300, b"bytes" * 60,
    bytearray(b"x"), [], (), {}, (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4),
    [1, [2, [3]]], {"a": {"b": [1.0]}, 1: 2, b"k": 3},
]  # fmt: skip
ARRAYS = [
    np.arange(6).reshape(2, 3), np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.array(7), np.zeros((0, 3)),
    np.array([True, False]), np.array(["ab", "c"]), np.array([b"ab"]), np.arange(3, dtype=">i2"),
    np.arange(3, dtype=np.uint8), np.arange(3, dtype=np.float16),
]  # fmt: skip


def plain(tmp_path, data):
    path = tmp_path / "file.pkl"
    path.write_bytes(data)
    return read_plain_pickle(path)


@pytest.mark.parametrize("protocol", range(6))
def test_plain_pickles(tmp_path, protocol):
    for value in PLAIN:
        if isinstance(value, bytearray) and protocol < 5:
            continue  # written as a call of builtins.bytearray
        if value == b"bytes" * 60 and protocol < 3:
            value = value.decode().encode()
        found = plain(tmp_path, pickle.dumps(value, protocol=protocol))
        assert found == value
        assert type(found) is type(value)
    for value in ARRAYS:
        found = plain(tmp_path, pickle.dumps({"x": [value, value]}, protocol=protocol))["x"]
        for copy in found:
            np.testing.assert_array_equal(copy, value)
            assert copy.dtype == value.dtype
    scalar = plain(tmp_path, pickle.dumps([np.float32(0.5), np.int64(3)], protocol=protocol))
    assert scalar == [0.5, 3]


def test_python_2_pickles(tmp_path):
    """Protocol 2 as Python 2 wrote it: byte strings for text, a numpy array's bytes as one of those."""
    data = (
        b"\x80\x02}q\x00(U\x05namesq\x01]q\x02U\x01aq\x03aU\x01nq\x04cnumpy.core.multiarray\n_reconstruct\nq\x05"
        b"cnumpy\nndarray\nq\x06K\x00\x85q\x07U\x01bq\x08\x87q\x09Rq\x0a(K\x01K\x02\x85q\x0bcnumpy\ndtype\nq\x0c"
        b"U\x02i2q\x0dK\x00K\x01\x87q\x0eRq\x0f(K\x03U\x01<q\x10NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x11b"
        b"\x89U\x04\x01\x00\x02\x00q\x12tq\x13bu."
    )
    found = plain(tmp_path, data)
    assert found["names"] == ["a"]
    np.testing.assert_array_equal(found["n"], [1, 2])


def test_shared_containers(tmp_path):
    inner = [np.arange(2)]
    found = plain(tmp_path, pickle.dumps([inner, inner]))
    assert found[0] is found[1]


def nested(depth, value=1):
    for _ in range(depth):
        value = (value,)
    return value


def pairs(count):
    """Pairs of pairs of pairs: 2**count numbers, written out."""
    value = (1,)
    for _ in range(count):
        value = (value, value)
    return value


def loop(through):
    value = []
    value.append(through(value))
    return value


DEEP = "it has more than 100 lists, dicts and tuples in each other"
LARGE = "it would be much larger than the file, which uses the same parts over and over"
LOOP = "it has a list or dict that holds itself"
LONG_TEXT = b"X\x00\x00\x10\x00" + b"a" * 2**20 + b"q\x00"  # a MiB, kept under 0
HOSTILE_PICKLES = {
    "a million deep": (b")" + b"\x85" * 1_000_000 + b".", "it has more than 200,000 dicts, lists, tuples and arrays"),
    "deep tuples": (b")" + b"\x85" * 100_000 + b".", DEEP),
    "deep lists": (b"]" * 50_000 + b"a" * 49_999 + b".", DEEP),
    "deep by parts": (pickle.dumps([nested(60), nested(60, nested(60))]), DEEP),
    "shared pairs": (pickle.dumps(pairs(60)), LARGE),
    "shared pairs in a name": (
        pickle.dumps(pairs(60))[:-1] + b"h\x00\x93.",
        "it is damaged (a tuple where a str belongs)",
    ),
    "shared list": (b"](](" + b"K\x01" * 40_000 + b"eq\x01" + b"h\x01" * 40_000 + b"e.", LARGE),
    "loop": (pickle.dumps(loop(lambda x: x)), LOOP),
    "loop through a dict and a tuple": (pickle.dumps(loop(lambda x: {"a": (x,)})), LOOP),
    "long number": (
        b"\x8b" + (100_000).to_bytes(4, "little") + b"\xff" * 99_999 + b"\x7f.",
        "it holds a number of 799999 bits",
    ),
    "numbers of one hash as keys": (
        pickle.dumps({i * (2**61 - 1): 0 for i in range(3)}),
        "it has a dict with a int as a key, not a text or a small number",
    ),
    "tuple as a key": (
        pickle.dumps({(1, 2): 3}),
        "it has a dict with a tuple as a key, not a text or a small number",
    ),
    "a memo at the other end": (
        b"Nr\xff\xff\xff\x7f.",
        "it is damaged (a memo of more entries than the file has bytes)",
    ),
    "a text encoded over and over": (
        LONG_TEXT + b"(" + b"c_codecs\nencode\nh\x00X\x06\x00\x00\x00latin1\x86R" * 100 + b"l.",
        "it is damaged (it makes more of its bytes than it holds)",
    ),
    "too many": (b"]" * 200_001, "it has more than 200,000 dicts, lists, tuples and arrays"),
    "too many numbers": (b"(" + b"K\x01" * 1_500_000 + b"l.", "it has more than 1,500,000 entries"),
}


@pytest.mark.parametrize("case", HOSTILE_PICKLES)
def test_pickles_that_ask_for_too_much_are_refused(tmp_path, case):
    data, fault = HOSTILE_PICKLES[case]
    assert message(plain, tmp_path, data, error=NotPlainError) == fault


@pytest.mark.parametrize(
    ("shape", "code", "fault"),
    [
        ((2**40, 0), "u1", "it is damaged (the shape of an array)"),
        ((-1, 0), "u1", "it is damaged (the shape of an array)"),
        ((0,) * 40, "u1", "it is damaged (the shape of an array)"),
        ((2**30, 0), "u1", LARGE),
        ((3,), "U0", "it holds a numpy array of type 'U0'"),
    ],
)
def test_arrays_of_nothing_are_refused(tmp_path, shape, code, fault):
    """Their rows could be walked through for ever."""
    data = b"(cnumpy.core.multiarray\n_reconstruct\n)R(K\x01" + pickle.dumps(shape, 2)[2:-1]
    data += b"cnumpy\ndtype\n" + pickle.dumps((code,), 2)[2:-1] + b"R\x89U\x00tbl."
    assert message(plain, tmp_path, data, error=NotPlainError) == fault


class Call:
    """Pickles as a call of `function`."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (Call(exec, "raise SystemExit"), "it asks for builtins.exec, which is not plain data"),
        (Call(np.load, "x"), "it asks for numpy.load, which is not plain data"),
        (Call(getattr, "x", "upper"), "it asks for builtins.getattr, which is not plain data"),
        (np.array([None, "x"], dtype=object), "it holds a numpy array of objects"),
        (np.zeros(2, dtype=[("a", "i4")]), "it holds a numpy array of type 'V4'"),
        (np.array("2020-01-01", dtype="M8[D]"), "it holds a numpy array of type 'M8'"),
        ({1, 2}, "it uses EMPTY_SET, which plain data does not need"),
        (np.ndarray, "it holds numpy.ndarray, which is not plain data"),
        (np.dtype("f4"), "it holds _Dtype(code='f4', order='<'), which is not plain data"),
        (re.compile("x"), "it asks for re._compile, which is not plain data"),
    ],
)
def test_pickles_of_anything_else_are_refused(tmp_path, value, fault):
    assert message(plain, tmp_path, pickle.dumps(value, protocol=4), error=NotPlainError) == fault


def test_nothing_runs(tmp_path):
    witness = tmp_path / "ran"
    data = pickle.dumps({"imlist": Call(witness.__class__.touch, witness)})
    with pytest.raises(NotPlainError):
        plain(tmp_path, data)
    assert not witness.exists()


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "it is no pickle, or a damaged one (pickle exhausted before seeing STOP)"),
        (b"<html>", "it is no pickle, or a damaged one (at position 0, opcode b'<' unknown)"),
        (b"K\x01", "it is no pickle, or a damaged one (pickle exhausted before seeing STOP)"),
        (b"h\x05.", "it is no pickle, or a damaged one (5)"),
        (b"K\x01K\x02a.", "it is damaged (a int where a list belongs)"),
        (b"}]K\x01s.", "it has a dict with a list as a key, not a text or a small number"),
        (b"cnumpy\ndtype\n).", None),  # something is left
        (b"cnumpy\ndtype\n)R.", None),
        (b"cnumpy\nndarray\n)R.", "it is damaged (a call of numpy.ndarray)"),
        (b"c_codecs\nencode\n(V\xe9\nVrot13\ntR.", "it is damaged (bytes encoded as 'rot13')"),
        (b"cnumpy.core.multiarray\n_reconstruct\n)R.", "it is damaged (an array without data)"),
        (b".", None),
        (b"t.", None),
    ],
)
def test_damaged_pickles(tmp_path, data, fault):
    text = message(plain, tmp_path, data, error=NotPlainError)
    if fault is not None:
        assert text == fault


def test_any_cut_or_flip_of_a_file_is_data_or_an_error(tmp_path):
    """No other exception, and no array that is larger than the file."""
    data = pickle.dumps(truth(integers), protocol=4)
    rng = np.random.default_rng(0)
    for cut in range(0, len(data), 7):
        with pytest.raises(NotPlainError):
            plain(tmp_path, data[:cut])
    for _ in range(500):
        broken = bytearray(data)
        for place in rng.integers(0, len(data), 3):
            broken[place] = rng.integers(0, 256)
        try:
            plain(tmp_path, bytes(broken))
        except NotPlainError:
            continue


def test_an_array_must_have_its_bytes(tmp_path):
    data = pickle.dumps(np.arange(4, dtype=np.uint8), protocol=2).replace(b"K\x04\x85", b"K\x05\x85")
    assert message(plain, tmp_path, data, error=NotPlainError) == (
        "it is damaged (4 bytes for an array of shape (5,) and type uint8)"
    )


# ---- captions --------------------------------------------------------------------------------------------------------


def karpathy(split, count=5, name="1.jpg", **extra):
    captions = [{"raw": f"caption {i} of {name}", "tokens": ["caption"]} for i in range(count)]
    return {"filename": name, "split": split, "sentences": captions, **extra}


def test_karpathy(tmp_path):
    images = [
        karpathy("train", name="1.jpg", filepath="train2014"),
        karpathy("restval", name="2.jpg", filepath="val2014"),
        karpathy("val", name="3.jpg", filepath="val2014"),
        karpathy("test", count=7, name="4.jpg", filepath="val2014"),
    ]
    files = {f"{image['filepath']}/{image['filename']}": None for image in images}
    write(tmp_path, files | {"dataset_coco.json": json.dumps({"images": images, "dataset": "coco"})})
    path = tmp_path / "dataset_coco.json"
    train = read_karpathy(path, tmp_path)
    assert train.paths == [tmp_path / "train2014/1.jpg", tmp_path / "val2014/2.jpg"]
    assert train.captions[1] == [f"caption {i} of 2.jpg" for i in range(5)]
    assert read_karpathy(path, tmp_path, restval=False).paths == train.paths[:1]
    assert read_karpathy(path, tmp_path, split="val").paths == [tmp_path / "val2014/3.jpg"]
    test = read_karpathy(path, tmp_path, split="test")
    assert [len(captions) for captions in test.captions] == [5]
    assert len(read_karpathy(path, tmp_path, split="test", captions_per_image=7).captions[0]) == 7


KARPATHY_ORIGIN = (
    "The data are Karpathy's splits ('Deep Visual-Semantic Alignments' page, caption_datasets.zip); images from COCO, "
    "Flickr30k."
)


def test_karpathy_errors(tmp_path):
    path = tmp_path / "dataset.json"
    assert message(read_karpathy, path, tmp_path, error=FileNotFoundError) == (
        f"`folder` must hold dataset.json, got '{tmp_path}' without dataset.json. It holds nothing. {KARPATHY_ORIGIN}"
    )
    keys = "{'images': [{'filename', 'split', 'sentences': [{'raw'}, …]}, …]}"
    for content, fault in [
        ("<html>", f"dataset.json must be JSON: {keys}, got text that is not JSON"),
        ("[" * 100_000, f"dataset.json must be JSON: {keys}, got text that is not JSON"),
        (
            '{"images": [{"split": "train", "sentences": ' + "9" * 5000 + "}]}",
            f"dataset.json must be JSON: {keys}, got text that is not JSON",
        ),
        ('{"annotations": []}', f"dataset.json must be {keys}, got no 'images'"),
        ('{"images": [{"filename": "1.jpg"}]}', f"dataset.json must be {keys}, got no 'split'"),
        (json.dumps({"images": [karpathy("test")]}), "dataset.json must have images of the split train, got none"),
    ]:
        path.write_text(content)
        assert message(read_karpathy, path, tmp_path) == f"{fault}, in '{tmp_path}'. {KARPATHY_ORIGIN}"
    path.write_text(json.dumps({"images": [karpathy("train", count=4)]}))
    assert message(read_karpathy, path, tmp_path) == (
        f"`captions_per_image` must be at most the captions of each image, got 5 for 1.jpg, which has 4 in '{path}'."
    )
    path.write_text(json.dumps({"images": [karpathy("train")]}))
    assert message(read_karpathy, path, tmp_path, error=FileNotFoundError) == (
        f"The 1 listed images must be under '{tmp_path}', but 1 are not, the first: '{tmp_path / '1.jpg'}'. "
        f"Unpack the images there. {KARPATHY_ORIGIN} With check_files=False the lists are read without them."
    )
    assert message(read_karpathy, path, tmp_path, captions_per_image=0) == (
        "`captions_per_image` must be a whole number of at least 1, got 0."
    )


# ---- memorability ----------------------------------------------------------------------------------------------------

MEDIAEVAL_2018 = (
    "video,short-term_memorability,nb_short-term_annotations,long-term_memorability,nb_long-term_annotations\n"
    "video3.webm,0.924,34,0.846,13\nvideo4.webm,0.923,33,0.667,12\n"
)
MEDIAEVAL_2021 = "video_id,scores_raw_short_term,scores_normalized_short_term,scores_raw_long_term\n1,0.9,0.91,0.5\n"


def test_mediaeval(tmp_path):
    files = {
        "ground-truth_dev-set.csv": MEDIAEVAL_2018,
        "dev-set_video-captions.txt": "video4.webm\ta-dog\nvideo3.webm\tblonde-woman-is-massaged\n",
        "train_scores.csv": "\ufeff" + MEDIAEVAL_2021,
        "train_text_descriptions.csv": 'video_id,video_url,description\n1,x,"a cat, asleep"\n1,x,a sofa\n',
    }
    write(tmp_path, files)
    short = read_mediaeval(tmp_path / "ground-truth_dev-set.csv")
    assert (short.names, short.scores, short.annotations) == (["video3.webm", "video4.webm"], [0.924, 0.923], [34, 33])
    assert short.captions is None
    long = read_mediaeval(tmp_path / "ground-truth_dev-set.csv", tmp_path / "dev-set_video-captions.txt", term="long")
    assert (long.scores, long.annotations) == ([0.846, 0.667], [13, 12])
    assert long.captions == ["blonde woman is massaged", "a dog"]
    found = read_mediaeval(tmp_path / "train_scores.csv", tmp_path / "train_text_descriptions.csv", normalized=True)
    assert (found.scores, found.annotations, found.captions) == ([0.91], None, ["a cat, asleep a sofa"])
    assert read_mediaeval(tmp_path / "train_scores.csv", term="long").scores == [0.5]


MEDIAEVAL_ORIGIN = (
    "The data are the MediaEval benchmark, task 'Predicting Media Memorability', on request from its organisers."
)


def test_mediaeval_errors(tmp_path):
    path = tmp_path / "scores.csv"
    for count in ("many", "1e999", ""):
        path.write_text(MEDIAEVAL_2018.replace(",34,", f",{count},"))
        assert message(read_mediaeval, path) == (
            "scores.csv: nb_short-term_annotations must be a number, "
            f"got {count!r} for video3.webm, in '{tmp_path}'. {MEDIAEVAL_ORIGIN}"
        )
    path.write_text("a,b\n1,2\n")
    assert message(read_mediaeval, path) == (
        "scores.csv must have the columns video and short-term_memorability or video_id and scores_raw_short_term, "
        f"got the columns a, b, in '{tmp_path}'. {MEDIAEVAL_ORIGIN}"
    )
    path.write_text("")
    assert message(read_mediaeval, path, normalized=True) == (
        "scores.csv must have the columns video_id and scores_normalized_short_term, got an empty file, "
        f"in '{tmp_path}'. {MEDIAEVAL_ORIGIN}"
    )
    path.write_text("video,short-term_memorability\n1,high\n")
    assert message(read_mediaeval, path) == (
        f"scores.csv: short-term_memorability must be a number, got 'high' for 1, in '{tmp_path}'. {MEDIAEVAL_ORIGIN}"
    )
    path.write_text(MEDIAEVAL_2018)
    captions = tmp_path / "captions.txt"
    captions.write_text("video3.webm\ta-dog\n")
    assert message(read_mediaeval, path, captions) == (
        f"captions.txt must have a caption for every video, got none for video4.webm, in '{tmp_path}'. "
        f"{MEDIAEVAL_ORIGIN}"
    )
    captions.write_text("video3.webm a-dog\n")
    assert message(read_mediaeval, path, captions) == (
        "captions.txt must have lines of a video, a tab and its caption, or the columns video_id and description, or "
        f"description_0, description_1 and so on, got 'video3.webm a-dog', in '{tmp_path}'. {MEDIAEVAL_ORIGIN}"
    )
    captions = tmp_path / "captions.csv"
    captions.write_text("video_id;caption\n1;a\n")
    assert message(read_mediaeval, path, captions) == (
        "captions.csv must have lines of a video, a tab and its caption, or the columns video_id and description, or "
        "description_0, description_1 and so on, got the columns video_id, caption (apart by semicolons), "
        f"in '{tmp_path}'. {MEDIAEVAL_ORIGIN}"
    )


MEMENTO = {
    "train": (0.9, 0.8, ["a cat", "a red cat"]),
    "dev": (0.7, 0.6, ["a dog", ""]),
    "test": (0.5, 0.4, ["rain", "much rain"]),
}


def memento(parts, folders=False):
    """As MediaEval gives Memento10k out: three files of scores, and three of captions in columns."""
    files = {}
    for part in parts:
        raw, normalized, captions = MEMENTO[part]
        place = "" if not folders else {"train": "training_set/"}.get(part, f"{part}_set/")
        files[f"{place}{part}_scores.csv"] = (
            f"video_id,video_url,scores_raw_short_term,scores_normalized_short_term\n{part}.mp4,x,{raw},{normalized}\n"
        )
        files[f"{place}{part}_text_descriptions.csv"] = (
            f"video_id,video_url,description_0,description_1\n{part}.mp4,x,{captions[0]},{captions[1]}\n"
        )
    return files


@pytest.mark.parametrize("folders", [False, True])
@pytest.mark.parametrize(
    ("parts", "splits"),
    [
        (["train", "dev", "test"], ["train", "val", "test"]),
        (["train", "dev"], ["train", "test"]),  # the scores of the test are kept back
        (["train", "test"], ["train", "test"]),
    ],
)
def test_memento(tmp_path, folders, parts, splits):
    write(tmp_path, memento(parts, folders))
    found = only(memorability.MEMORABILITY, tmp_path)
    assert found.name == "Memento10k, normalized scores, from captions"
    assert found.split.tolist() == splits
    assert found.target.tolist() == [MEMENTO[part][1] for part in parts]
    assert found.texts == [" ".join(filter(None, MEMENTO[part][2])) for part in parts]


def test_memento_in_one_file(tmp_path):
    lines = ["video_id,split,scores_normalized_short_term,description_0,description_1"]
    lines += [f"{i},{split},{i / 10},a {i},b" for i, split in enumerate(("train", "dev", "test"))]
    write(tmp_path, {"memento.csv": "\n".join(lines)})
    data = read_data(
        tmp_path / "memento.csv", memorability.MEMORABILITY, "memorability"
    )  # the first that fits: no table
    assert data.split.tolist() == ["train", "val", "test"]
    assert data.target.tolist() == [0.0, 0.1, 0.2]
    assert data.texts == ["a 0 b", "a 1 b", "a 2 b"]


def test_only_the_training_files_of_mediaeval_have_no_split(tmp_path):
    write(tmp_path, memento(["train"]))
    assert only(memorability.MEMORABILITY, tmp_path).split is None


# ---- class folders ---------------------------------------------------------------------------------------------------

FOLDERS = {f"{name}/{i}.PNG": None for name in ("ant", "bee", "cat", "dog") for i in range(2)}


def test_class_folders(tmp_path):
    found = read_class_folders(
        write(tmp_path / "one", FOLDERS | {"ant/notes.md": "no image", "labels.txt": "", ".cache/x": ""})
    )
    assert [path.parent.name for path in found.train.paths] == ["ant", "ant", "cat", "cat"]
    assert (found.train.labels, found.queries.labels) == ([0, 0, 1, 1], [2, 2, 3, 3])
    assert (found.names, found.gallery) == ({0: "ant", 1: "cat", 2: "bee", 3: "dog"}, None)
    left = {"ant/._0.PNG": "", ".DS_Store": "", "__MACOSX/ant/._0.png": "", "__MACOSX/x.png": "", "ant/Thumbs.db": ""}
    write(tmp_path / "one", {**left, "bee/.DS_Store": "", ".trash/0.png": "", ".trash/1.png": ""})
    assert read_class_folders(tmp_path / "one") == found
    parts = {f"{'train' if name[0] in 'ab' else 'test'}/{name}": content for name, content in FOLDERS.items()}
    found = read_class_folders(write(tmp_path / "two", parts))
    assert found.names == {0: "ant", 1: "bee", 2: "cat", 3: "dog"}
    for name in ("one", "two"):
        data = only(retrieval.RETRIEVAL, tmp_path / name)
        assert data.split.tolist() == ["train"] * 4 + ["test"] * 4
        assert data.items.shape == (8, 64, 64, 3)


def test_images_of_16_bits(tmp_path):
    image = pytest.importorskip("PIL.Image")
    values = np.linspace(0, 65535, 64 * 64).reshape(64, 64).astype(np.uint16)
    write(tmp_path, FOLDERS)
    for name in FOLDERS:
        image.fromarray(values).save(tmp_path / name)
    found = only(retrieval.RETRIEVAL, tmp_path).items
    np.testing.assert_array_equal(found[0, ..., 1], (values / 257).round())


def test_class_folders_errors(tmp_path):
    missing = message(read_class_folders, tmp_path / "x", error=FileNotFoundError)
    assert missing == f"`folder` must have a folder of images for each class, got '{tmp_path / 'x'}', not there."
    few = write(tmp_path / "few", {name: None for name in FOLDERS if name < "d"})
    assert message(read_class_folders, few) == (
        "`folder` must have two classes or more to train on and two for the test, a folder of images each, got 2 and "
        f"1 in '{few}'."
    )
    one = write(tmp_path / "one", FOLDERS)
    (one / "dog/1.PNG").unlink()
    assert message(read_class_folders, one) == (
        f"`folder` must have two images or more of each class, got 1 in '{one / 'dog'}'. "
        "Add some, or move that folder away."
    )
    empty = write(tmp_path / "empty", {**FOLDERS, "notes/readme.md": ""})
    assert message(only, retrieval.RETRIEVAL, empty) == (
        f"`folder` must have two images or more of each class, got 0 in '{empty / 'notes'}'. "
        "Add some, or move that folder away."
    )
    both = write(tmp_path / "both", {f"{part}/{name}": None for part in ("train", "test") for name in FOLDERS})
    assert message(read_class_folders, both) == (
        f"`folder` must not have a class in train and in test, got 'ant' in '{both}'."
    )


# ---- a table of one's own --------------------------------------------------------------------------------------------


def test_table(tmp_path):
    path = tmp_path / "my.csv"
    path.write_text("\ufeffage,score,weight\n41,0.7,70.5\n38,0.2,60\n", encoding="utf-8")
    found = read_table(path)
    np.testing.assert_array_equal(found.scores, [0.7, 0.2])
    np.testing.assert_array_equal(found.features, np.float32([[41, 70.5], [38, 60]]))
    assert (found.names, found.texts) == (["age", "weight"], None)
    path.write_text("text,score\nrain,1e-3\n,2\n")
    found = read_table(path)
    assert (found.features, found.names, found.texts) == (None, [], ["rain", ""])


def test_table_as_data_of_a_comparison(tmp_path):
    rows = [f"{i % 7},{i % 5},{i / 40}" for i in range(40)]
    path = tmp_path / "seven.csv"
    path.write_text("\n".join(["a,b,score", *rows]))
    task = Memorability.load(path, seed=3)
    assert (task.data_name, task.features.shape) == ("seven", (40, 2))
    assert [len(task.index[split]) for split in ("train", "val", "test")] == [24, 8, 8]


def test_columns_of_a_table_by_name(tmp_path):
    path = tmp_path / "my.csv"
    path.write_text("id;said;rt;age;Split\na;so;1.5;4;x\nb;deep;2.5;5;x\n")
    found = read_table(path, target="rt", text="said", predictors=["age"])
    np.testing.assert_array_equal(found.scores, [1.5, 2.5])
    np.testing.assert_array_equal(found.features, np.float32([[4], [5]]))
    assert (found.texts, found.names, found.split) == (["so", "deep"], ["age"], None)
    columns = "the columns id, said, rt, age, Split (apart by semicolons)"
    for options, argument, name, hint in (
        ({"target": "RT"}, "target", "RT", " Is it 'rt'?"),
        ({"target": "rt", "text": "words"}, "text", "words", ""),
        ({"target": "rt", "predictors": ["agee"]}, "predictors", "agee", " Is it 'age'?"),
    ):
        expected = f"`{argument}` must be in '{path}', got {name!r} for {columns}.{hint}"
        assert message(read_table, path, **options) == expected


def test_the_split_of_a_table(tmp_path):
    path = tmp_path / "my.csv"
    path.write_text("score,a,split\n1,2,train\n2,3,Dev\n3,4,test\n")
    found = read_table(path)
    assert (found.split.tolist(), found.names) == (["train", "val", "test"], ["a"])
    path.write_text("score,a,split\n1,2,train\n2,3,later\n")
    assert message(read_table, path) == (
        f"`path` must have train, val or test in each row of split, got 'later' in row 3 of '{path}'."
    )
    path.write_text("score,split\n1,0.5\n2,0.7\n")  # a measurement of that name
    assert read_table(path).names == ["split"]


@pytest.mark.parametrize("name", ["Score", "SCORE", "scores"])
def test_a_column_that_may_be_the_score(tmp_path, name):
    path = tmp_path / "my.csv"
    path.write_text(f"{name},a\n1,2\n")
    assert message(Memorability.load, path) == (
        "`path` must be a csv table with a column score and a column text, columns of numbers or both, got the columns "
        f"{name}, a in '{path}'. Is it {name!r}? Say so: target={name!r} (--target {name})."
    )


def test_table_errors(tmp_path):
    path = tmp_path / "my.csv"
    missing = message(read_table, path, error=FileNotFoundError)
    assert missing == f"`path` must be a csv table with a column score, got '{path}', which is not there."
    columns = "`path` must be a csv table with a column score and a column text, columns of numbers or both, got "
    path.write_text("")
    assert message(read_table, path) == f"{columns}no rows in '{path}'."
    path.write_text("a,b\n1,2\n")
    which = " Which column holds the scores? Say so: target=NAME (--target NAME)."
    assert message(read_table, path) == f"{columns}the columns a, b in '{path}'.{which}"
    path.write_text("score\n1\n")
    assert message(read_table, path) == f"{columns}the columns score in '{path}'."
    for cell, shown in (("many", "'many'"), ("nan", "'nan'"), ("", "''")):
        path.write_text(f"a,score\n1,2\n{cell},3\n")
        expected = f"`path` must have a number in every cell, got {shown} for a in row 3 of '{path}'."
        assert message(lambda path: read_table(path, predictors=["a"]), path) == expected
        assert message(read_table, path) == (
            f"{expected} Name the columns of numbers: predictors=[NAME] (--predictor NAME), or that of texts: "
            "text=NAME (--text NAME)."
        )
    path.write_text("score,a\n1,2\n3\n")
    assert message(read_table, path) == (
        f"'{path}' must have a cell in each row for each of its 2 columns, got 1 in row 3."
    )


def test_a_column_of_a_table_has_one_role(tmp_path):
    path = tmp_path / "my.csv"
    path.write_text("score,a,words\n1,2,x\n2,3,y\n")
    for options, expected in (
        ({"target": "a", "predictors": ["a"]}, "`predictors` must be another column than `target`, got 'a' for both."),
        ({"target": "a", "text": "a"}, "`text` must be another column than `target`, got 'a' for both."),
        ({"text": "a", "predictors": ["a"]}, "`predictors` must be another column than `text`, got 'a' for both."),
        ({"predictors": ["score"]}, "`predictors` must be other columns than that of the scores, got 'score'."),
    ):
        assert message(lambda path, options=options: read_table(path, **options), path) == expected


def test_texts_without_words_in_common(tmp_path):
    path = tmp_path / "my.csv"
    path.write_text("\n".join(["score,text", *(f"{i / 40},{chr(0x4E00 + i)}" for i in range(40))]))
    assert message(Memorability.load, path) == (
        "The texts must have words in common for tf-idf, got none. Is another column that of the texts?"
    )


def test_csv_files_that_cannot_be_read(tmp_path):
    path = tmp_path / "my.csv"
    for content, expected in (
        (
            "score,text\n1,caf\xe9\n".encode("latin-1"),
            "must be text in UTF-8, got the byte 0xe9 at 16. Save it as UTF-8.",
        ),
        (b"score,a,a\n1,2,3\n", "must name each column once, got 'a' 2 times."),
        (b"score,score\n1,2\n", "must name each column once, got 'score' 2 times."),
        (b"score,text\n1," + b"x" * 200_000, "must be a csv file: field larger than field limit (131072)."),
    ):
        path.write_bytes(content)
        for read in (read_table, read_mediaeval, Memorability.load):
            assert message(read, path) == f"'{path}' {expected}"


def test_scores_that_are_all_equal(tmp_path):
    path = tmp_path / "flat.csv"
    path.write_text("\n".join(["score,a", *(f"0.1,{i}" for i in range(40))]))
    assert message(Memorability.load, path) == (
        "`data` flat must have scores that differ in the training split, got 0.1 for all of them. "
        "Nothing can be ranked by them."
    )


# ---- VOC -------------------------------------------------------------------------------------------------------------


def voc_xml(*objects):
    inner = "".join(f"<object><name>{n}</name><difficult>{d}</difficult></object>" for n, d in objects)
    return f"<annotation><filename>x.jpg</filename>{inner}</annotation>"


VOC = {
    "ImageSets/Main/trainval.txt": "000005\n000007\n000009\n",
    "ImageSets/Main/cat_trainval.txt": "000005 -1\n000007  1\n000009  0\n",
    "ImageSets/Main/dog_trainval.txt": "000005  1\n000007 -1\n000009 -1\n",
    "Annotations/000005.xml": voc_xml(("dog", 0), ("dog", 1)),
    "Annotations/000007.xml": voc_xml(("cat", 0)),
    "Annotations/000009.xml": voc_xml(("cat", 1), ("cat", 1)),
    "JPEGImages/000005.jpg": None,
    "JPEGImages/000007.jpg": None,
    "JPEGImages/000009.jpg": None,
}


@pytest.mark.parametrize("source", ["lists", "xml"])
def test_voc(tmp_path, source):
    found = read_voc(write(tmp_path, {**VOC, "ImageSets/Main/._cat_trainval.txt": "\x00"}), source=source)
    assert found.names == ["cat", "dog"]
    assert found.labels.tolist() == [[False, True], [True, False], [False, False]]
    assert found.where.tolist() == [[True, True], [True, True], [False, True]]
    assert found.paths == [tmp_path / f"JPEGImages/00000{i}.jpg" for i in (5, 7, 9)]


def test_voc_errors(tmp_path):
    origin = (
        "The data are the PASCAL Visual Object Classes Challenge 2007 page "
        "(VOCtrainval and VOCtest, unpacked into one folder)."
    )
    write(tmp_path, VOC)
    assert message(read_voc, tmp_path, split="test", error=FileNotFoundError) == (
        f"`folder` must hold ImageSets/Main/test.txt, JPEGImages/, got '{tmp_path}' without ImageSets/Main/test.txt. "
        f"It holds Annotations/, ImageSets/, JPEGImages/. {origin}"
    )
    write(tmp_path, {"Annotations/000007.xml": "<annotation>"})
    assert message(read_voc, tmp_path, source="xml") == (
        f"Annotations/000007.xml must be XML, got no element found: line 1, column 12, in '{tmp_path}'. {origin}"
    )
    (tmp_path / "Annotations/000005.xml").unlink()
    assert message(read_voc, tmp_path, source="xml", error=FileNotFoundError) == (
        "`folder` must hold ImageSets/Main/trainval.txt, JPEGImages/, Annotations/, Annotations/000005.xml, "
        f"got '{tmp_path}' without Annotations/000005.xml. It holds Annotations/, ImageSets/, JPEGImages/. {origin}"
    )
    write(tmp_path, {"ImageSets/Main/cat_trainval.txt": "000005 1\n"})
    assert message(read_voc, tmp_path) == (
        f"ImageSets/Main/cat_trainval.txt must list the images of trainval.txt, in '{tmp_path}'. {origin}"
    )
    write(tmp_path, {"ImageSets/Main/test.txt": "000005\n"})
    assert message(read_voc, tmp_path, split="test", error=FileNotFoundError) == (
        "`folder` must hold ImageSets/Main/test.txt, JPEGImages/, ImageSets/Main/<class>_test.txt, "
        f"got '{tmp_path}' without ImageSets/Main/<class>_test.txt. "
        f"It holds Annotations/, ImageSets/, JPEGImages/. {origin}"
    )


# ---- features --------------------------------------------------------------------------------------------------------


def features_of(task, splits=("train", "test")):
    rng = np.random.default_rng(0)
    by_task = {
        "retrieval": {"features": rng.random((6, 3)), "labels": np.array(list("aabbcc"))},
        "cross-modal": {
            "images": rng.random((2, 3)),
            "captions": rng.random((4, 5), dtype=np.float32),
            "image_of_caption": np.array([0, 0, 1, 1]),
        },
        "memorability": {"features": rng.integers(0, 9, (6, 3)), "scores": rng.random(6)},
        "multi-label": {"features": rng.random((6, 3)), "labels": rng.random((6, 2)) < 0.5},
        "ranking": {
            "features": rng.random((6, 3)),
            "relevance": rng.integers(0, 5, 6).astype(float),
            "group": np.array(list("aabbcc")),
        },
    }
    return {f"{split}_{name}": array for split in splits for name, array in by_task[task].items()}


@pytest.mark.parametrize("task", features.FEATURES)
@pytest.mark.parametrize("splits", [("train", "test"), ("train", "val", "test")])
def test_features(tmp_path, task, splits):
    given = features_of(task, splits)
    np.savez(tmp_path / "x.npz", **given)
    found = read_features(tmp_path / "x.npz", task)
    assert list(found) == list(splits)
    for split, arrays in found.items():
        assert tuple(arrays) == features.FEATURES[task]
        for name, array in arrays.items():
            np.testing.assert_allclose(array, given[f"{split}_{name}"]) if array.dtype.kind != "U" else None
            assert array.dtype == (np.float32 if given[f"{split}_{name}"].dtype.kind == "i" and name == "features"
                                   else given[f"{split}_{name}"].dtype)  # fmt: skip


def test_graded_relevance_of_images(tmp_path):
    given = features_of("cross-modal")
    codes = {f"{split}_codes": np.eye(2, dtype=np.uint8) for split in ("train", "test")}
    classes = {"train_labels": np.array(["cat", "dog"]), "test_labels": np.array(["dog", "cat"])}
    for extra, expected in (
        (codes, [[1, 0], [0, 1], [1, 0], [0, 1]]),
        (classes, [[1, 0], [0, 1], [0, 1], [1, 0]]),
        ({}, None),
    ):
        np.savez(tmp_path / "x.npz", **given, **extra)
        found = only(captions.CROSS_MODAL, tmp_path / "x.npz").codes
        assert (found is None) == (expected is None)
        if expected is not None:
            np.testing.assert_array_equal(found, np.array(expected, dtype=bool))


@pytest.mark.parametrize(
    ("arrays", "fault"),
    [
        ({"train_codes": np.eye(2)}, "codes of some splits, but no test_codes"),
        ({"train_codes": np.eye(2), "test_codes": np.eye(3)}, "2 rows of test_images and 3 of test_codes"),
        ({"train_codes": np.eye(2), "test_codes": 2 * np.eye(2)}, "test_codes holds more than 0 and 1"),
        ({"train_codes": np.eye(2), "test_codes": np.ones(2)}, "test_codes of shape (2,), not (n, c)"),
    ],
)
def test_graded_relevance_of_a_wrong_kind(tmp_path, arrays, fault):
    path = tmp_path / "x.npz"
    np.savez(path, **features_of("cross-modal"), **arrays)
    assert message(read_features, path, "cross-modal").endswith(f", got '{path}': {fault}.")


def test_features_errors(tmp_path):
    path = tmp_path / "x.npz"
    expected = (
        "an npz file with the arrays train_features, train_labels, test_features, test_labels "
        "(and the same for val, if there is a validation split)"
    )
    assert message(read_features, path, "retrieval", error=FileNotFoundError) == (
        f"`path` must be {expected}, got '{path}', which is not there."
    )
    good = features_of("retrieval")
    bad = np.full((6, 3), 0.5)
    bad[2, 1] = np.nan
    for arrays, fault in [
        ({"x": np.zeros(2)}, "no train_features, train_labels, test_features, test_labels, but x"),
        ({**good, "test_labels": np.zeros(5)}, "6 rows of test_features, 5 rows of test_labels"),
        ({**good, "test_labels": np.zeros((6, 2))}, "test_labels of shape (6, 2), not (n,)"),
        ({**good, "train_features": np.zeros(6)}, "train_features of shape (6,) and type float64, not numbers (n, d)"),
        ({**good, "train_features": bad}, "1 values of train_features are NaN or infinite"),
        (
            {**good, "test_features": np.zeros((6, 4))},
            "3 columns of train_features, 4 columns of test_features",
        ),
        (
            {**good, "train_labels": np.array([None] * 6)},
            "it holds Python objects, which are not unpickled: save numbers or strings",
        ),
    ]:
        np.savez(path, **arrays)
        assert message(read_features, path, "retrieval") == f"`path` must be {expected}, got '{path}': {fault}."
    np.save(tmp_path / "x.npy", np.zeros(3))
    (tmp_path / "x.npy").rename(path)
    assert message(read_features, path, "retrieval") == f"`path` must be {expected}, got '{path}': a single array."
    path.write_text("<html>")
    assert "`path` must be" in message(read_features, path, "retrieval")
    assert message(read_features, path, "ordering") == (
        "`task` must be one of retrieval, cross-modal, memorability, multi-label, ranking, got 'ordering'."
    )


@pytest.mark.parametrize(
    ("task", "name", "array", "fault"),
    [
        ("multi-label", "test_labels", np.full((6, 2), 2), "test_labels holds more than 0 and 1"),
        ("multi-label", "test_labels", np.zeros(6), "test_labels of shape (6,), not (n, c)"),
        ("memorability", "test_scores", np.array(list("abcdef")),
         "test_scores of shape (6,) and type <U1, not numbers (n,)"),
        ("cross-modal", "test_image_of_caption", np.array([0, 0, 1, 2]),
         "test_image_of_caption goes from 0 to 2, with 2 rows of test_images"),
        ("cross-modal", "test_image_of_caption", np.array([0, 0, 1]),
         "4 rows of test_captions and 3 of test_image_of_caption"),
        ("cross-modal", "test_image_of_caption", np.zeros(4),
         "test_image_of_caption of shape (4,) and type float64, not whole numbers (m,)"),
    ],
)  # fmt: skip
def test_features_of_a_wrong_kind(tmp_path, task, name, array, fault):
    path = tmp_path / "x.npz"
    np.savez(path, **features_of(task) | {name: array})
    assert message(read_features, path, task).endswith(f", got '{path}': {fault}.")


# ---- as the comparison knows them ------------------------------------------------------------------------------------


def only(kinds, path):
    """Data of the one layout that recognises `path`."""
    (layout,) = (layout for layout in kinds.values() if layout.matches(path))
    return layout.read(path)


def test_retrieval_layouts(tmp_path):
    birds = only(retrieval.RETRIEVAL, write(tmp_path / "birds", CUB))
    assert (birds.items.shape, birds.items.dtype) == ((3, 64, 64, 3), np.uint8)
    assert birds.items[1, 5, 5].tolist() == [5, 10, 15]  # the colour it was painted in, as the file of that number
    assert (birds.labels.tolist(), birds.split.tolist(), birds.query) == ([1, 1, 2], ["train", "train", "test"], None)
    products = only(retrieval.RETRIEVAL, write(tmp_path / "products", SOP))
    assert products.labels.tolist() == [1, 1, 11319]
    clothes = only(
        retrieval.RETRIEVAL, write(tmp_path / "clothes", IN_SHOP_IMAGES | {"Eval/list_eval_partition.txt": IN_SHOP})
    )
    assert clothes.split.tolist() == ["train", "train", "test", "test"]
    assert clothes.query.tolist() == [True, True, True, False]
    np.savez(tmp_path / "x.npz", **features_of("retrieval"))
    given = only(retrieval.RETRIEVAL, tmp_path / "x.npz")
    assert given.items.shape == (12, 3)
    assert given.split.tolist() == ["train"] * 6 + ["test"] * 6
    assert given.labels.tolist() == list("aabbcc") * 2


def test_cross_modal_layouts(tmp_path):
    images = [karpathy(split, name=f"{i}.jpg") for i, split in enumerate(["test", "train", "val", "train"])]
    files = {image["filename"]: None for image in images}
    write(tmp_path, files | {"dataset_flickr30k.json": json.dumps({"images": images})})
    for path in (tmp_path, tmp_path / "dataset_flickr30k.json"):
        found = only(captions.CROSS_MODAL, path)
        assert found.split.tolist() == ["train", "train", "val", "test"]
        assert found.items[0, 0, 0].tolist() == [1, 2, 3]
        assert found.captions[5] == "caption 0 of 3.jpg"
        assert found.owner.tolist() == [*itertools.chain(*([i] * 5 for i in range(4)))]
        assert found.name == "flickr30k captions"
    np.savez(tmp_path / "x.npz", **features_of("cross-modal"))
    given = only(captions.CROSS_MODAL, tmp_path / "x.npz")
    assert given.owner.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert given.split.tolist() == ["train", "train", "test", "test"]


def test_other_layouts(tmp_path):
    captions = "video3.webm\ta\nvideo4.webm\tb-c\n"
    write(tmp_path, {"ground-truth_dev-set.csv": MEDIAEVAL_2018, "dev-set_video-captions.txt": captions})
    found = only(memorability.MEMORABILITY, tmp_path)
    assert (found.target.tolist(), found.texts) == ([0.924, 0.923], ["a", "b c"])
    both = {name.replace("trainval", "test"): content for name, content in VOC.items()}
    found = only(multi_label.MULTI_LABEL, write(tmp_path / "voc", both | VOC))
    assert found.labels.tolist() == 2 * [[False, True], [True, False], [False, False]]
    assert found.known.tolist() == 2 * [[True, True], [True, True], [False, True]]
    assert found.split.tolist() == ["train"] * 3 + ["test"] * 3
    for task, kinds in (("memorability", memorability.MEMORABILITY), ("multi-label", multi_label.MULTI_LABEL)):
        np.savez(tmp_path / "x.npz", **features_of(task, ("train", "val", "test")))
        found = only(kinds, tmp_path / "x.npz")
        assert found.features.shape == (18, 3)
        assert found.split.tolist() == ["train"] * 6 + ["val"] * 6 + ["test"] * 6


@pytest.mark.parametrize(
    ("side", "found"),
    [(5001, "5001 x 5001 pixels in {} bytes"), (20_000, "Image size (400000000 pixels) exceeds limit")],
)
def test_an_image_of_many_pixels_in_few_bytes(tmp_path, side, found):
    path = write(tmp_path, CUB) / "images/001.Albatross/a.jpg"
    header = image(1)[12:16] + side.to_bytes(4, "big") * 2 + image(1)[24:29]
    path.write_bytes(image(1)[:12] + header + zlib.crc32(header).to_bytes(4, "big") + image(1)[33:])
    text = message(only, retrieval.RETRIEVAL, tmp_path)
    found = found.format(path.stat().st_size)
    assert text.startswith(f"{path} must be an image, got a file that Pillow cannot read ({found}")


def test_a_number_beyond_64_bits(tmp_path):
    file = "ImageSets/Main/cat_trainval.txt"
    write(tmp_path, VOC)
    lines = (tmp_path / file).read_text().split()
    (tmp_path / file).write_text("".join(f"{image} {2**63}\n" for image in lines[::2]))
    assert message(read_voc, tmp_path, check_files=False).startswith(
        f"a label must be a whole number, got '9223372036854775808', in '{tmp_path}'."
    )


def test_a_csv_without_an_end_of_a_cell(tmp_path):
    path = tmp_path / "my.csv"
    path.write_text('"' + "x" * 200_000)
    assert message(only, memorability.MEMORABILITY, path) == (
        f"'{path}' must be a csv file: field larger than field limit (131072)."
    )


def test_a_damaged_npz_says_so(tmp_path):
    path = tmp_path / "my.npz"
    np.savez(path, **features_of("retrieval"))
    data = path.read_bytes()
    path.write_bytes(data.replace(b"PK\x01\x02", b"PK\x01\x03"))
    assert message(only, retrieval.RETRIEVAL, path).endswith(
        f"got '{path}': it is no npz file, or a damaged one (Bad magic number for central directory)."
    )


def test_an_image_that_is_none(tmp_path):
    path = write(tmp_path, CUB) / "images/001.Albatross/a.jpg"
    path.write_text("<html>")
    assert message(only, retrieval.RETRIEVAL, tmp_path) == (
        f"{path} must be an image, got a file that Pillow cannot read (cannot identify image file '{path}')."
    )
