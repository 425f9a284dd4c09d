"""Scores, relevance and losses from embeddings, against plain loops."""

from __future__ import annotations

import collections
import copy
import math
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from sodeep._core.live_tensors import LiveTensors
from sodeep.losses import similarity as similarities
from sodeep.losses._base import ListStats, UndefinedListWarning
from sodeep.losses.cross_modal import CrossModalLoss
from sodeep.losses.embedding import EmbeddingLoss
from sodeep.losses.memory import EmbeddingMemory
from sodeep.losses.multi_similarity import multi_similarity_loss
from sodeep.losses.nt_xent import NTXentLoss, nt_xent_loss
from sodeep.losses.similarity import pairwise_scores
from sodeep.losses.smooth_ap import smooth_ap_loss


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def smooth_ap(tau: float):
    """Smooth-AP from its formula, one comparison at a time; the list of a query does not hold the query."""

    def loss(scores: Tensor, relevant: Tensor) -> Tensor:
        precisions = []
        for row, is_positive in zip(scores, relevant.tolist(), strict=True):
            positives = [i for i, p in enumerate(is_positive) if p]
            if not positives:
                continue
            ap = 0
            for i in positives:
                above = {j: torch.sigmoid((row[j] - row[i]) / tau) for j in range(len(row)) if j != i}
                among_positives = 1 + sum(above[j] for j in positives if j != i)
                ap = ap + among_positives / (1 + sum(above.values()))
            precisions.append(ap / len(positives))
        return 1 - sum(precisions) / len(precisions)

    return loss


def hinge(scores: Tensor, relevant: Tensor) -> Tensor:
    """A loss that sees the order of rows and columns only through `relevant`."""
    weight = torch.where(relevant, -1.0, 0.5).to(scores.dtype)
    return (scores * weight + 0.3).relu().square().mean()


def refuses(error: type[Exception], message: str):
    return pytest.raises(error, match=f"^{re.escape(message)}$")


# similarity and relevance


def plain_similarity(a: np.ndarray, b: np.ndarray, similarity: str) -> float:
    if similarity == "euclidean":
        return -math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot if similarity == "dot" else dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_and_relevance_are_those_of_a_plain_loop(similarity, dtype):
    x, y = randn(6, 5, dtype=dtype), randn(4, 5, seed=1, dtype=dtype)
    labels, ref_labels = [3, 1, 3, 2, 1, 3], [1, 3, 7, 3]
    scores, relevant = pairwise_scores(x, labels, similarity=similarity)
    others = [[j for j in range(6) if j != i] for i in range(6)]
    expected = [[plain_similarity(x[i].tolist(), x[j].tolist(), similarity) for j in others[i]] for i in range(6)]
    torch.testing.assert_close(scores, torch.tensor(expected, dtype=dtype))
    assert relevant.tolist() == [[labels[i] == labels[j] for j in others[i]] for i in range(6)]

    scores, relevant = pairwise_scores(x, labels, y, ref_labels, similarity)
    expected = [[plain_similarity(a, b, similarity) for b in y.tolist()] for a in x.tolist()]
    torch.testing.assert_close(scores, torch.tensor(expected, dtype=dtype))
    assert relevant.tolist() == [[a == b for b in ref_labels] for a in labels]


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_gradient(similarity):
    x, y = randn(4, 3).requires_grad_(), randn(3, 3, seed=1).requires_grad_()
    labels, ref_labels = [0, 1, 0, 1], [0, 1, 0]
    assert torch.autograd.gradcheck(lambda x: pairwise_scores(x, labels, similarity=similarity)[0], x)
    assert torch.autograd.gradcheck(lambda x, y: pairwise_scores(x, labels, y, ref_labels, similarity)[0], (x, y))
    assert torch.autograd.gradgradcheck(lambda x: pairwise_scores(x, labels, similarity=similarity)[0], x)


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_and_equal_rows_stay_and_are_finite(similarity, dtype):
    x = torch.cat([torch.zeros(2, 700, dtype=dtype), randn(1, 700, dtype=dtype).expand(3, 700)]).requires_grad_()
    scores, relevant = pairwise_scores(x, [0, 0, 1, 1, 1], similarity=similarity)
    assert scores.shape == (5, 4)
    assert relevant.sum(1).tolist() == [1, 1, 2, 2, 2]
    at_zero = {"cosine": 0.0, "dot": 0.0, "euclidean": 0.0}[similarity]
    assert scores[0, 0].item() == at_zero
    equal = {"cosine": 1.0, "dot": x[2].square().sum().item(), "euclidean": 0.0}[similarity]
    torch.testing.assert_close(scores[2:, 2:], torch.full((3, 2), equal, dtype=dtype), atol=0, rtol=1e-5)
    scores.square().sum().backward()
    assert x.grad.isfinite().all()
    x.grad = None
    pairwise_scores(x, [0, 0, 1, 1, 1], similarity=similarity)[0].sum().backward()
    assert x.grad.isfinite().all()
    # at distance 0 the gradient is 0: what rows 0 and 1 get comes from the three others, at distance |x|
    if similarity == "euclidean":
        torch.testing.assert_close(x.grad[0], 6 * (x[2] / x[2].norm()).detach())


def test_euclidean_resolves_small_distances_of_long_float32_rows():
    x = randn(1, 64, dtype=torch.float32) * 100
    y = x.clone()
    y[0, 0] += 0.01
    scores, _ = pairwise_scores(x, [0], y, [0], similarity="euclidean")
    torch.testing.assert_close(scores[0, 0], -(y[0, 0] - x[0, 0]), rtol=1e-4, atol=0)


@pytest.mark.parametrize("scale", [1e-36, 1e-20, 1.0, 1e20, 1e37])
def test_cosine_does_not_depend_on_the_scale(scale):
    x = randn(4, 3, dtype=torch.float32)
    torch.testing.assert_close(pairwise_scores(x * scale, [0, 0, 1, 1])[0], pairwise_scores(x, [0, 0, 1, 1])[0])
    scaled = (x * scale).requires_grad_()
    pairwise_scores(scaled, [0, 0, 1, 1])[0][0, 1].backward()
    x.requires_grad_()
    pairwise_scores(x, [0, 0, 1, 1])[0][0, 1].backward()
    torch.testing.assert_close(scaled.grad.double() * scale, x.grad.double(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_half_precision_is_computed_in_float32(dtype, similarity):
    x = randn(6, 5).to(dtype).requires_grad_()
    labels = torch.arange(6) % 3
    with torch.autocast("cpu", torch.bfloat16):
        scores, relevant = pairwise_scores(x, labels, similarity=similarity)
    expected, expected_relevant = pairwise_scores(x.detach().float(), labels, similarity=similarity)
    torch.testing.assert_close(scores, expected, rtol=0, atol=0)
    assert torch.equal(relevant, expected_relevant)
    scores.sum().backward()
    assert x.grad.dtype == dtype


def test_the_same_tensor_as_reference_leaves_self_pairs_out():
    x = randn(4, 3)
    for ref_labels in ([0, 0, 1, 1], torch.tensor([0, 0, 1, 1])):
        scores, relevant = pairwise_scores(x, [0, 0, 1, 1], x, ref_labels)
        expected = pairwise_scores(x, [0, 0, 1, 1])
        assert torch.equal(scores, expected[0])
        assert torch.equal(relevant, expected[1])
    assert pairwise_scores(x, [0, 0, 1, 1], x.clone(), [0, 0, 1, 1])[0].shape == (4, 4)


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_memory_is_that_of_the_scores_and_some_rows(similarity):
    x = randn(1500, 8, dtype=torch.float32).requires_grad_()
    with LiveTensors() as live:
        scores, relevant = pairwise_scores(x, torch.arange(1500) // 4, similarity=similarity)
    beyond = live.peak - scores.nbytes - relevant.nbytes
    assert beyond < 0.7 * scores.nbytes  # the relevance with its diagonal, and some rows
    with LiveTensors() as live:
        scores.backward(torch.ones_like(scores))
    assert live.peak < 2.7 * scores.nbytes  # the incoming gradient, and some rows


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
@pytest.mark.parametrize("references", [None, 5])
def test_rows_taken_some_at_a_time(similarity, references, monkeypatch):
    """Values, gradients, second derivatives and batches of gradients are those of all rows at once."""
    x, labels = randn(7, 3).requires_grad_(), torch.arange(7) % 3
    y = None if references is None else randn(references, 3, seed=1).requires_grad_()
    leaves = [x] if y is None else [x, y]
    weights = randn(7, references or 6, seed=2)

    def outcome():
        scores = pairwise_scores(x, labels, y, None if y is None else labels[:references], similarity)[0]
        first = torch.autograd.grad((scores**2 * weights).sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum((g**2).sum() for g in first), leaves, retain_graph=True)
        plain = torch.autograd.grad((scores**2 * weights).sum(), leaves, retain_graph=True)
        batch = torch.autograd.grad(scores, leaves, torch.stack([weights, -weights]), is_grads_batched=True)
        return [scores, *first, *plain, *second, *batch]

    expected = outcome()
    for first, plain in zip(
        expected[1 : 1 + len(leaves)], expected[1 + len(leaves) : 1 + 2 * len(leaves)], strict=True
    ):
        torch.testing.assert_close(first, plain)
    monkeypatch.setattr(similarities, "_is_small", lambda x: False)
    monkeypatch.setattr(similarities, "_some_rows", lambda x, entries=0: (slice(i, i + 2) for i in range(0, len(x), 2)))
    for found, whole in zip(outcome(), expected, strict=True):
        torch.testing.assert_close(found, whole)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own, from tracing
def test_encoder_and_loss_are_one_graph_for_batches_of_all_sizes():
    encoder, criterion = torch.nn.Linear(4, 3), EmbeddingLoss(NTXentLoss())
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    step = torch.compile(lambda x, y: criterion(encoder(x), y), fullgraph=True, backend="eager", dynamic=True)
    for n in (6, 8, 12):
        x, labels = randn(n, 4, dtype=torch.float32), torch.arange(n) // 2
        torch.testing.assert_close(step(x, labels), criterion(encoder(x), labels))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_noncontiguous_embeddings():
    x = randn(3, 5).T
    assert torch.equal(pairwise_scores(x, [0] * 5)[0], pairwise_scores(x.contiguous(), [0] * 5)[0])


# labels

FORMS = {
    "int": torch.tensor([1, 2, 1, 2]),
    "int32": torch.tensor([1, 2, 1, 2], dtype=torch.int32),
    "uint8": torch.tensor([1, 2, 1, 2], dtype=torch.uint8),
    "float": torch.tensor([1.0, 2.0, 1.0, 2.0]),
    "half": torch.tensor([1.0, 2.0, 1.0, 2.0], dtype=torch.float16),
    "column": torch.tensor([[1], [2], [1], [2]]),
    "float column": torch.tensor([[1.0], [2.0], [1.0], [2.0]]),
    "bool column": torch.tensor([[True], [False], [True], [False]]),
    "bool": torch.tensor([True, False, True, False]),
    "strings": ["a", "b", "a", "b"],
    "tuple of strings": ("a", "b", "a", "b"),
    "numpy": np.array([1, 2, 1, 2]),
    "numpy float": np.array([1.0, 2.0, 1.0, 2.0]),
    "numpy big endian": np.array([1, 2, 1, 2], dtype=">i4"),
    "numpy strings": np.array(["a", "b", "a", "b"]),
    "numpy objects": np.array(["a", "b", "a", "b"], dtype=object),
    "objects": np.array([["x", 1], ["y", 2], ["x", 1], ["y", 2]], dtype=object)[:, 1],
    "objects of strings": np.array([["x", 1], ["y", 2], ["x", 1], ["y", 2]], dtype=object)[:, 0],
    "objects of floats": np.array([0.5, 2, 0.5, 2], dtype=object),
    "objects of bools": np.array([True, np.False_, True, np.False_], dtype=object),
    "objects of numpy": np.array([np.int8(1), np.uint64(2), 1, 2], dtype=object),
    "column of objects": np.array([["a"], ["b"], ["a"], ["b"]], dtype=object),
    "multi-hot of objects": np.array([[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 1, 0]], dtype=object),
    "bytes": [b"a", b"b", b"a", b"b"],
    "numpy bytes": np.array([b"a", b"b", b"a", b"b"]),
    "bytes and strings": ["a", b"b", np.bytes_(b"a"), np.str_("b")],
    "strings no file system gives": ["\udc80", "\udc81", "\udc80", "\udc81"],
    "uint16": torch.tensor([1, 2, 1, 2], dtype=torch.uint16),
    "uint64": torch.tensor([1, -2, 1, -2]).view(torch.uint64),
    "numpy uint64": np.array([2**64 - 1, 2**64 - 2, 2**64 - 1, 2**64 - 2], dtype=np.uint64),
    "list beyond int64": [2**64 - 1, 2**64 - 2, 2**64 - 1, 2**64 - 2],
    "list": [1, 2, 1, 2],
    "list of bools": [True, False, True, False],
    "list of tensors": [torch.tensor(1), torch.tensor(2), torch.tensor(1), torch.tensor(2)],
    "large": torch.tensor([10**12 + 1, 10**12 + 2, 10**12 + 1, 10**12 + 2]),
    "large list": [10**12 + 1, 10**12 + 2, 10**12 + 1, 10**12 + 2],
    "large floats": [2.0**24, 2.0**24 + 1, 2.0**24, 2.0**24 + 1],
    "negative": [-1, -2, -1, -2],
    "multi-hot": torch.tensor([[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 1, 0]]),
    "multi-hot float": torch.tensor([[1.0, 0, 0], [0, 1, 0], [1, 0, 0], [0, 1, 0]]),
    "multi-hot bool": torch.tensor([[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 1, 0]]).bool(),
    "multi-hot square": torch.tensor([[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0]]),
    "matrix": torch.tensor([[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1]]).bool(),
    "matrix without diagonal": torch.tensor([[0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0], [0, 1, 0, 0]]).bool(),
    "list matrix": [[i % 2 == j % 2 for j in range(4)] for i in range(4)],
}


@pytest.mark.parametrize("form", FORMS)
def test_h7_every_form_of_labels_gives_the_same(form):
    x = randn(4, 3)
    _, relevant = pairwise_scores(x, FORMS[form])
    assert int(relevant.sum()) == 4
    assert int((~relevant).sum()) == 8
    expected = pairwise_scores(x, FORMS["int"])
    assert torch.equal(relevant, expected[1])
    criterion = EmbeddingLoss(hinge)
    assert criterion(x, FORMS[form]).item() == criterion(x, FORMS["int"]).item()


@pytest.mark.parametrize("form", [form for form in FORMS if "matrix" not in form])
def test_reference_labels_take_every_form(form):
    x, y = randn(4, 3), randn(4, 3, seed=1)
    _, relevant = pairwise_scores(x, FORMS[form], y, FORMS[form])
    assert relevant.tolist() == [[i % 2 == j % 2 for j in range(4)] for i in range(4)]


def test_whole_labels_of_a_list_keep_every_bit():
    # of these numpy makes floats, in which the first two are one number
    labels = [2**63 + 1, 2**63, 2**64 - 1, 0]
    assert not pairwise_scores(torch.eye(4), labels)[1].any()
    wrapped = torch.tensor([-(2**63) + 1, -(2**63), -1, 0])  # as torch and numpy turn uint64 into int64
    assert pairwise_scores(torch.eye(4), labels, torch.eye(4), wrapped)[1].equal(torch.eye(4).bool())


def test_labels_mix_containers_but_not_meanings():
    x = randn(2, 3)
    _, relevant = pairwise_scores(x, torch.tensor([7, 8]), randn(3, 3), np.array([8, 7, 9], dtype=np.int16))
    assert relevant.tolist() == [[False, True, False], [True, False, False]]


def test_multi_hot_rows_are_relevant_when_they_share_a_label():
    labels = torch.tensor([[1, 1, 0], [0, 1, 1], [0, 0, 1], [0, 0, 0]])
    _, relevant = pairwise_scores(randn(4, 2), labels, randn(4, 2), labels)
    assert relevant.int().tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]


def test_relevance_matrix_to_a_reference_set():
    matrix = torch.tensor([[True, False, False], [False, True, True]])
    assert torch.equal(pairwise_scores(randn(2, 4), matrix, randn(3, 4))[1], matrix)
    asymmetric = torch.tensor([[True, True], [False, True]])
    x = randn(2, 4)
    assert pairwise_scores(x, asymmetric, x)[1].tolist() == [[True], [False]]


X = torch.eye(4)
ERRORS = {
    "list": (TypeError, ([[1.0, 0.0]], [0]), "`embeddings` must be a torch.Tensor of shape (n, d), got list."),
    "ints": (
        TypeError,
        (X.long(), [0, 0, 1, 1]),
        "`embeddings` must be real floating point, got a tensor of shape (4, 4) and dtype int64.",
    ),
    "one axis": (
        ValueError,
        (X[0], [0, 0, 1, 1]),
        "`embeddings` must have shape (n, d), one row an item, got shape (4,).",
    ),
    "nan": (
        ValueError,
        (X / X, [0, 0, 1, 1]),
        "`embeddings` must be finite, got 12 NaN or infinite of 16 values, the first (nan) at index (0, 1). "
        "Drop those rows, or find the step that made them (torch.autograd.set_detect_anomaly).",
    ),
    "length": (
        ValueError,
        (X, [0, 0, 1]),
        "`labels` must have shape (4,) or multi-hot (4, c), one label for each row of `embeddings`, "
        "got shape (3,) and dtype int64.",
    ),
    "row": (
        ValueError,
        (X, torch.zeros(1, 4)),
        "`labels` must have shape (4,) or multi-hot (4, c), one label for each row of `embeddings`, "
        "got shape (1, 4) and dtype float32.",
    ),
    "scalar": (
        ValueError,
        (X, 3),
        "`labels` must have shape (4,) or multi-hot (4, c), one label for each row of `embeddings`, "
        "got shape () and dtype int64.",
    ),
    "mixed": (
        TypeError,
        (X, ["a", 1, "a", 1]),
        "`labels` must be all numbers or all strings, got 1 at index 1 and 'a' at index 0. "
        "Make them of one kind, for example with str().",
    ),
    "missing": (
        TypeError,
        (X, ["a", "b", None, "b"]),
        "`labels` must be numbers or strings, got None at index 2. Drop such rows, or give them a label of their own.",
    ),
    "missing in a table": (
        TypeError,
        (X, np.array(["a", "b", "a", math.nan], dtype=object)),
        "`labels` must be numbers or strings, got nan at index 3. Drop such rows, or give them a label of their own.",
    ),
    "missing among numbers": (
        TypeError,
        (X, np.array([[1], [2], [None], [2]], dtype=object)),
        "`labels` must be numbers or strings, got None at index (2, 0). "
        "Drop such rows, or give them a label of their own.",
    ),
    "other objects": (
        TypeError,
        (X, ["a", "b", Path("c"), "b"]),
        f"`labels` must be numbers or strings, got {Path('c')!r} at index 2. Convert them, with str() say.",
    ),
    "nan objects": (
        ValueError,
        (X, np.array([1, 2, 1, math.nan], dtype=object)),
        "`labels` must not be NaN, got 1 NaN of 4 labels, the first at index 3. "
        "NaN equals nothing, not even itself: drop those rows.",
    ),
    "65 bits": (
        ValueError,
        (X, [1, 2, 2**64, 2]),
        "`labels` must be numbers that one dtype of 64 bits can hold, got 18446744073709551616 at index 2. "
        "Give them as strings.",
    ),
    "signed and unsigned": (
        ValueError,
        (X, [2**63 - 1, -1, 2**63, -1]),
        "`labels` must be numbers that one dtype of 64 bits can hold, got 9223372036854775808 at index 2. "
        "Give them as strings.",
    ),
    "more than a float holds": (
        ValueError,
        (X, [1.5, 2**53 + 1, 2**53, 2.0]),
        "`labels` must be numbers that a float64 can hold, got 9007199254740993 at index 1. Give them as strings.",
    ),
    "none": (
        TypeError,
        (X, None),
        "`labels` must be numbers or strings, of one kind (a tensor, an array or a list), got None.",
    ),
    "ragged": (
        TypeError,
        (X, [[1], [1, 2], [1], [2]]),
        "`labels` must be numbers or strings, of one kind (a tensor, an array or a list), got [[1], [1, 2], [1], [2]].",
    ),
    "complex": (
        TypeError,
        (X, torch.zeros(4, dtype=torch.complex64)),
        "`labels` must be numbers or strings, got a tensor of shape (4,) and dtype complex64.",
    ),
    "nan label": (
        ValueError,
        (X, [0.0, math.nan, 1.0, math.nan]),
        "`labels` must not be NaN, got 2 NaN of 4 labels, the first at index 1. "
        "NaN equals nothing, not even itself: drop those rows.",
    ),
    "not multi-hot": (
        ValueError,
        (X, torch.tensor([[0, 2]] * 4)),
        "`labels` with two axes must be multi-hot (0 and 1 only), got a tensor of shape (4, 2) and dtype int64 "
        "with other values. One label a row goes in shape (n,).",
    ),
    "not symmetric": (
        ValueError,
        (X, torch.ones(4, 4).triu().bool()),
        "`labels` as a boolean matrix of shape (4, 4) must be symmetric: which rows are relevant to each other. "
        "Multi-hot labels of as many classes as rows go in as numbers: labels.int(). A relevance that is not "
        "symmetric goes in with ref_embeddings=embeddings.",
    ),
    "no ref_labels": (
        ValueError,
        (X, [0, 0, 1, 1], X[:2]),
        "`ref_labels` must be given with `ref_embeddings`, got None. Or give `labels` as a boolean relevance "
        "matrix of shape (4, 2); it is a tensor of shape (4,) and dtype int64.",
    ),
    "no ref_embeddings": (
        ValueError,
        (X, [0, 0, 1, 1], None, [0, 1]),
        "`ref_embeddings` must be given with `ref_labels`, got None.",
    ),
    "ref length": (
        ValueError,
        (X, [0, 0, 1, 1], X[:2], [0]),
        "`ref_labels` must have shape (2,) or multi-hot (2, c), one label for each row of `ref_embeddings`, "
        "got shape (1,) and dtype int64.",
    ),
    "ref kind": (
        ValueError,
        (X, [0, 0, 1, 1], X[:2], [0.0, 1.0]),
        "`ref_labels` must be of the form of `labels` (axes, classes and dtype), "
        "got a tensor of shape (2,) and dtype float64 against a tensor of shape (4,) and dtype int64.",
    ),
    "ref width": (
        ValueError,
        (X, [0, 0, 1, 1], X[:, :2], [0, 0, 1, 1]),
        "`ref_embeddings` must have the width of `embeddings` (4), got shape (4, 2).",
    ),
    "ref device": (
        ValueError,
        (X, [0, 0, 1, 1], X.to("meta"), [0, 0, 1, 1]),
        "`ref_embeddings` must be on the device of `embeddings` (cpu), got meta. "
        "Move it: ref_embeddings.to(embeddings.device).",
    ),
    "similarity": (
        ValueError,
        (X, [0, 0, 1, 1], None, None, "cos"),
        "`similarity` must be one of cosine, dot, euclidean, got 'cos'.",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors(case):
    error, arguments, message = ERRORS[case]
    with refuses(error, message):
        pairwise_scores(*arguments)


# EmbeddingLoss


def test_h6_rows_in_any_order():
    angles = torch.tensor([0, 20, 70, 30, 80, 100], dtype=torch.float64).deg2rad()
    x = torch.stack([angles.cos(), angles.sin()], 1)
    labels = ["A", "A", "A", "B", "B", "B"]
    order = [0, 3, 1, 4, 2, 5]
    for tau, expected in ((0.01, 0.4190945), (0.1, 0.4465857)):
        criterion = EmbeddingLoss(smooth_ap(tau))
        first, second = x.clone().requires_grad_(), x[order].clone().requires_grad_()
        value, permuted = criterion(first, labels), criterion(second, [labels[i] for i in order])
        torch.testing.assert_close(value.item(), expected, rtol=0, atol=5e-8)
        torch.testing.assert_close(permuted, value)
        value.backward()
        permuted.backward()
        torch.testing.assert_close(second.grad, first.grad[order])
        assert criterion(x, [-5 if label == "A" else 10**15 for label in labels]).item() == value.item()


def test_reference_set_under_both_names():
    x, y = randn(3, 4), randn(5, 4, seed=1)
    labels, ref_labels = [0, 1, 2], [2, 1, 0, 0, 1]
    criterion = EmbeddingLoss(hinge, "dot")
    expected = hinge(x @ y.T, torch.tensor([[a == b for b in ref_labels] for a in labels]))
    torch.testing.assert_close(criterion(x, labels, y, ref_labels), expected)
    torch.testing.assert_close(criterion(x, labels, ref_embeddings=y, ref_labels=ref_labels), expected)
    torch.testing.assert_close(criterion(x, labels, ref_emb=y, ref_labels=ref_labels), expected)
    with refuses(ValueError, "`ref_emb` must not be given together with `ref_embeddings`: they are the same."):
        criterion(x, labels, y, ref_labels, ref_emb=y)


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("memory", [None, 4])
def test_a_batch_without_pairs_is_a_zero_with_graph(rows, memory):
    criterion = EmbeddingLoss(hinge, memory=memory and EmbeddingMemory(memory, 3))
    x = torch.ones(rows, 3, requires_grad=True)
    message = f"0 of {rows} lists have a pair: the loss is a constant 0 for this batch."
    with pytest.warns(UndefinedListWarning, match=f"^{message}$"):
        value = criterion(x, [0] * rows)
    value.backward()
    assert value.item() == 0
    assert torch.equal(x.grad, torch.zeros(rows, 3))


def test_loss_modules_are_registered_and_shown():
    inner = torch.nn.Linear(1, 1)
    criterion = EmbeddingLoss(inner, "dot", memory=EmbeddingMemory(2, 3, warmup=1))
    assert set(criterion.state_dict()) == {
        "loss.weight", "loss.bias",
        "memory.embeddings", "memory.labels", "memory.ids", "memory.seen", "memory.seal",
    }  # fmt: skip
    assert "similarity='dot', gather=False" in repr(criterion)
    assert "size=2, dim=3, num_classes=None, warmup=1" in repr(criterion)
    assert "similarity='cosine', gather=False" in repr(CrossModalLoss(inner))


@pytest.mark.parametrize("wrapper", [EmbeddingLoss, CrossModalLoss])
def test_what_is_no_loss_is_refused(wrapper):
    with refuses(TypeError, "`loss` must be a loss, got the class Linear. Build it first: Linear()."):
        wrapper(torch.nn.Linear)
    with refuses(
        TypeError,
        "`loss` must be callable as loss(scores, relevant), got 'smooth-ap'. For example sodeep.NTXentLoss().",
    ):
        wrapper("smooth-ap")
    with refuses(ValueError, "`similarity` must be one of cosine, dot, euclidean, got 'l2'."):
        wrapper(hinge, "l2")


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_compiles_to_one_graph(similarity):
    torch._dynamo.reset()
    x = randn(6, 4, dtype=torch.float32)
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    multi_hot = torch.eye(3)[labels]
    others = [
        multi_hot,
        labels.float(),
        labels[:, None] == labels,
    ]  # what is relevant does not depend on the similarity
    for given in [labels, *(others if similarity == "cosine" else [])]:
        criterion = EmbeddingLoss(hinge, similarity)
        compiled = torch.compile(criterion, fullgraph=True, backend="aot_eager")
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        compiled(a, given).backward()
        criterion(b, given).backward()
        torch.testing.assert_close(a.grad, b.grad)


def test_functional_gradient_and_vmap():
    x = randn(3, 6, 4)
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    criterion = EmbeddingLoss(hinge, "euclidean")
    leaf = x.clone().requires_grad_()
    sum(criterion(one, labels) for one in leaf).backward()
    grads = torch.func.vmap(torch.func.grad(lambda one: criterion(one, labels)))(x)
    torch.testing.assert_close(grads, leaf.grad)


# EmbeddingMemory


def test_memory_is_a_queue():
    memory = EmbeddingMemory(5, 2)
    queue: collections.deque[tuple[list[float], int]] = collections.deque(maxlen=5)
    assert [t.shape for t in memory.get()] == [(0, 2), (0,)]
    for step, rows in enumerate([2, 2, 3, 1, 0, 5, 12, 4]):
        batch, labels = randn(rows, 2, seed=step, dtype=torch.float32), torch.arange(rows) + 100 * step
        memory.update(batch.requires_grad_(), labels)
        queue.extend(zip(batch.tolist(), labels.tolist(), strict=True))
        embeddings, kept = memory.get()
        assert embeddings.tolist() == [row for row, _ in queue]
        assert kept.tolist() == [label for _, label in queue]
        assert not embeddings.requires_grad


def test_memory_is_saved_and_keeps_its_order():
    memory = EmbeddingMemory(3, 1)
    memory.update(torch.tensor([[1.0], [2.0], [3.0], [4.0]]), [10**12 + 1, 10**12 + 2, 10**12 + 3, 10**12 + 4])
    copy = EmbeddingMemory(3, 1)
    copy.load_state_dict(memory.state_dict())
    for each in (memory, copy):
        each.update(torch.tensor([[5.0]]), [0])
        assert each.get()[0].flatten().tolist() == [3, 4, 5]
        assert each.get()[1].tolist() == [10**12 + 3, 10**12 + 4, 0]
    memory.double()
    memory.update(torch.tensor([[0.1]], dtype=torch.float64), [0])
    assert memory.get()[0][-1].item() == 0.1
    assert memory.get()[1].tolist() == [10**12 + 4, 0, 0]


def test_memory_gives_nothing_before_its_warmup():
    memory = EmbeddingMemory(4, 1, warmup=3)
    memory.update(torch.ones(2, 1), [0, 1])
    assert len(memory.get()[0]) == 0
    memory.update(torch.ones(1, 1), [2])
    assert memory.get()[1].tolist() == [0, 1, 2]


@pytest.mark.parametrize("labels", ["ints", "strings", "multi-hot"])
def test_the_memory_adds_past_batches_and_never_the_batch_itself(labels):
    forms = {
        "ints": lambda ids: ids,
        "strings": lambda ids: [f"class {int(i)}" for i in ids],
        "multi-hot": lambda ids: torch.eye(4, dtype=torch.int64)[ids],
    }
    seen = []

    def loss(scores, relevant):
        seen.append((scores, relevant))
        return hinge(scores, relevant)

    criterion = EmbeddingLoss(
        loss, "dot", memory=EmbeddingMemory(5, 3, num_classes=4 if labels == "multi-hot" else None)
    )
    past, past_ids = torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)
    for step in range(4):
        x, ids = randn(4, 3, seed=step, dtype=torch.float32).requires_grad_(), torch.tensor([0, 1, 0, step])
        value = criterion(x, forms[labels](ids))
        value.backward()  # after the update: the graph must not have changed
        scores, relevant = seen.pop()
        others = [[j for j in range(4) if j != i] for i in range(4)]
        expected = torch.stack([torch.cat([x[i] @ x[others[i]].T, x[i] @ past.T]) for i in range(4)])
        torch.testing.assert_close(scores, expected)
        same = [[bool(ids[i] == ids[j]) for j in others[i]] + (past_ids == ids[i]).tolist() for i in range(4)]
        assert relevant.tolist() == same
        grad = x.grad.clone()
        x.grad = None
        hinge(expected, relevant).backward()
        torch.testing.assert_close(grad, x.grad)
        past, past_ids = torch.cat([past, x.detach()])[-5:], torch.cat([past_ids, ids])[-5:]

    state = {name: buffer.clone() for name, buffer in criterion.memory.named_buffers()}
    criterion.eval()
    criterion(x, forms[labels](ids))
    assert seen.pop()[0].shape == (4, 3)
    for name, buffer in criterion.memory.named_buffers():
        assert torch.equal(buffer, state[name])


MEMORY_ERRORS = {
    "size": (
        lambda: EmbeddingMemory(0, 2),
        "`size` must be a whole number of at least 1, got 0.",
    ),
    "dim": (lambda: EmbeddingMemory(2, 2.0), "`dim` must be a whole number of at least 1, got 2.0."),
    "warmup": (lambda: EmbeddingMemory(2, 2, warmup=-1), "`warmup` must be a whole number of at least 0, got -1."),
    "classes": (
        lambda: EmbeddingMemory(2, 2, num_classes=1),
        "`num_classes` must be a whole number of at least 2, got 1.",
    ),
    "width": (
        lambda: EmbeddingMemory(2, 2).update(torch.ones(1, 3), [0]),
        "`embeddings` must have shape (n, 2), with the `dim` of the memory, got shape (1, 3).",
    ),
    "float labels": (
        lambda: EmbeddingMemory(2, 2).update(torch.ones(2, 2), [0.0, 1.0]),
        "`labels` must be whole numbers or strings (n,) for this memory, got [0.0, 1.0].",
    ),
    "no multi-hot": (
        lambda: EmbeddingMemory(2, 2, num_classes=3).update(torch.ones(2, 2), [0, 1]),
        "`labels` must be multi-hot (n, 3) for this memory, got [0, 1].",
    ),
    "length": (
        lambda: EmbeddingMemory(2, 2).update(torch.ones(2, 2), [0]),
        "`labels` must have shape (2,) or multi-hot (2, c), one label for each row of `embeddings`, "
        "got shape (1,) and dtype int64.",
    ),
    "references": (
        lambda: EmbeddingLoss(hinge, memory=EmbeddingMemory(2, 4))(X, [0, 0, 1, 1], X, [0, 0, 1, 1]),
        "`ref_embeddings` must not be given to a loss with a memory, which has its own.",
    ),
    "references and gather": (
        lambda: EmbeddingLoss(hinge, gather=True)(X, [0, 0, 1, 1], X, [0, 0, 1, 1]),
        "`ref_embeddings` must not be given to a loss with gather=True, which has its own.",
    ),
    "matrix": (
        lambda: EmbeddingLoss(hinge, gather=True)(X, X.bool()),
        "`labels` must be labels for a loss with gather=True, got a relevance matrix of shape (4, 4). "
        "Multi-hot labels of as many classes as rows go in as numbers: labels.int().",
    ),
}


@pytest.mark.parametrize("case", MEMORY_ERRORS)
def test_memory_errors(case):
    call, message = MEMORY_ERRORS[case]
    with refuses(ValueError, message):
        call()


def test_nothing_bad_enters_the_memory():
    memory = EmbeddingMemory(2, 4)
    with pytest.raises(ValueError, match=r"^`embeddings` must be finite"):
        EmbeddingLoss(hinge, memory=memory)(X / X, [0, 0, 1, 1])
    with pytest.raises(ValueError, match=r"^`embeddings` must be finite"):
        memory.update(X / X, [0, 0, 1, 1])
    assert len(memory.get()[0]) == 0


# ids


class Seen:
    """A loss that keeps what it is called with."""

    def __init__(self):
        self.calls = []

    def __call__(self, scores, relevant, where=None):
        self.calls.append((scores.detach(), relevant, where))
        return hinge(scores, relevant)


IDS = {
    "tensor": lambda ids: torch.tensor(ids),
    "int32 column": lambda ids: torch.tensor(ids, dtype=torch.int32)[:, None],
    "list": lambda ids: ids,
    "numpy": lambda ids: np.array(ids),
    "strings": lambda ids: [f"image {i}.jpg" for i in ids],
}


@pytest.mark.parametrize("form", IDS)
def test_equal_ids_in_a_batch_are_left_out_as_self_pairs(form):
    x, labels, ids = randn(5, 3), [0, 0, 1, 0, 1], [7, 8, 9, 7, 9]
    seen = Seen()
    EmbeddingLoss(seen)(x, labels, ids=IDS[form](ids))
    scores, relevant, where = seen.calls.pop()
    others = [[j for j in range(5) if j != i] for i in range(5)]
    assert where.tolist() == [[ids[i] != ids[j] for j in others[i]] for i in range(5)]
    expected = pairwise_scores(x, labels)
    assert torch.equal(scores, expected[0])
    assert torch.equal(relevant, expected[1])
    references, ref_ids = randn(3, 3, seed=1), [9, 7, 1]
    EmbeddingLoss(seen)(x, labels, references, [0, 0, 1], ids=IDS[form](ids), ref_ids=IDS[form](ref_ids))
    assert seen.calls.pop()[2].tolist() == [[a != b for b in ref_ids] for a in ids]
    EmbeddingLoss(seen)(x, labels, x, labels, ids=IDS[form](ids))
    assert torch.equal(seen.calls.pop()[2], where)


@pytest.mark.parametrize("keys", [False, True])
@pytest.mark.parametrize("form", IDS)
def test_past_copies_in_a_memory_are_left_out(form, keys):
    """Epochs of six items in batches of four rows with replacement, a memory of nine."""
    seen = Seen()
    criterion = EmbeddingLoss(seen, "dot", memory=EmbeddingMemory(9, 3))
    queue: collections.deque[tuple[list[float], int, int]] = collections.deque(maxlen=9)
    for step in range(8):
        ids = torch.randint(6, (4,), generator=torch.Generator().manual_seed(step)).tolist()
        labels = [i % 2 for i in ids]
        x, k = randn(4, 3, seed=step, dtype=torch.float32), randn(4, 3, seed=100 + step, dtype=torch.float32)
        criterion(x, labels, ids=IDS[form](ids), keys=k if keys else None)
        scores, relevant, where = seen.calls.pop()
        batch = list(zip((k if keys else x).tolist(), labels, ids, range(4), strict=True))
        lists = [[*(b for b in batch if keys or b[3] != i), *((*row, None) for row in queue)] for i in range(4)]
        rows = torch.tensor([[row for row, *_ in items] for items in lists])
        torch.testing.assert_close(scores, (rows @ x.unsqueeze(-1)).squeeze(-1))
        assert relevant.tolist() == [[label == labels[i] for _, label, *_ in lists[i]] for i in range(4)]
        assert where.tolist() == [[id_ != ids[i] or (keys and at == i) for *_, id_, at in lists[i]] for i in range(4)]
        queue.extend((row, label, id_) for row, label, id_, _ in batch)
        assert torch.equal(criterion.memory.get()[0], torch.tensor([row for row, *_ in queue]))
    assert len(criterion.memory.get_ids()) == 9


def test_without_its_past_copies_a_row_alone_of_its_class_has_no_positive():
    x = randn(3, 4, dtype=torch.float32)
    criterion = EmbeddingLoss(NTXentLoss(reduction="none"), memory=EmbeddingMemory(8, 4))
    for _ in range(2):
        with pytest.warns(UndefinedListWarning, match="^0 of 3 lists have both a relevant item and one that is not"):
            assert criterion(x, [0, 1, 2], ids=[5, 6, 7]).isnan().all()
    assert criterion(x, [0, 1, 2]).isfinite().all()  # without ids they are their own positives


def test_momentum_contrast():
    """InfoNCE of He et al. 2020: the own key against the queue, past keys of the batch's own items left out."""
    criterion = EmbeddingLoss(NTXentLoss(temperature=0.5), memory=EmbeddingMemory(7, 4).double())
    queue, queued = torch.zeros(0, 4, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)
    for step in range(5):
        ids = torch.arange(3 * step, 3 * step + 3) % 10
        queries, keys = randn(3, 4, seed=step).requires_grad_(), randn(3, 4, seed=50 + step)
        value = criterion(queries, ids, keys=keys, ids=ids)
        value.backward()
        leaf = queries.detach().clone().requires_grad_()
        unit = torch.nn.functional.normalize
        logits = unit(leaf) @ unit(torch.cat([keys, queue])).T / 0.5
        past_copies = torch.cat([torch.zeros(3, 3).bool(), queued == ids[:, None]], 1)
        expected = torch.nn.functional.cross_entropy(logits.masked_fill(past_copies, -math.inf), torch.arange(3))
        expected.backward()
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(queries.grad, leaf.grad)
        queue, queued = torch.cat([queue, keys])[-7:], torch.cat([queued, ids])[-7:]
        assert torch.equal(criterion.memory.get()[0], queue)
        assert torch.equal(criterion.memory.get_ids(), queued)


def test_keys_without_a_memory_are_a_reference_set_of_the_same_items():
    x, k = randn(4, 3), randn(4, 3, seed=1)
    labels = [0, 1, 0, 1]
    expected = EmbeddingLoss(hinge)(x, labels, k, labels)
    criterion = EmbeddingLoss(hinge, memory=EmbeddingMemory(4, 3)).eval()
    for loss in (EmbeddingLoss(hinge), EmbeddingLoss(hinge, gather=True), criterion):
        assert torch.equal(loss(x, labels, keys=k), expected)
    assert int(criterion.memory.seen) == 0
    seen = Seen()
    EmbeddingLoss(seen)(x, labels, keys=k, ids=[5, 6, 5, 7])
    assert seen.calls.pop()[2].tolist() == [[j == i or {i, j} != {0, 2} for j in range(4)] for i in range(4)]


def test_a_state_of_earlier_versions_has_rows_without_ids():
    memory = EmbeddingMemory(3, 1)
    memory.update(torch.ones(2, 1), [1, 2], ids=[10, 20])
    criterion = EmbeddingLoss(hinge, memory=EmbeddingMemory(3, 1))
    criterion.memory.update(torch.zeros(1, 1), [0], ids=[10])
    state = {f"memory.{name}": tensor.clone() for name, tensor in memory.state_dict().items() if name != "ids"}
    before = dict(state)
    for assign in (False, True):
        assert criterion.load_state_dict(state, assign=assign) == ([], [])
        assert state.keys() == before.keys()
        assert criterion.memory.get()[1].tolist() == [1, 2]
        assert criterion.memory.get_ids().tolist() == [torch.iinfo(torch.int64).min] * 2
    with pytest.raises(RuntimeError, match="Missing key"):
        criterion.load_state_dict({})
    seen = Seen()
    criterion.loss = seen
    criterion(torch.ones(1, 1), [1], ids=[10])
    assert seen.calls.pop()[2].tolist() == [[True, True]]
    criterion.load_state_dict(EmbeddingLoss(hinge, memory=memory).state_dict())
    criterion(torch.ones(1, 1), [1], ids=[10])
    assert seen.calls.pop()[2].tolist() == [[False, True]]


def test_a_memory_on_the_meta_device_says_so():
    message = (
        "`memory` must be on a device that holds values, got one on the meta device. Build it where it is to be, or "
        "load its state: load_state_dict(state, assign=True)."
    )
    memory = EmbeddingMemory(4, 3).to("meta")
    for call in (
        memory.get,
        lambda: memory.update(torch.ones(1, 3), [0]),
        lambda: EmbeddingLoss(hinge, memory=memory)(torch.ones(2, 3), [0, 1]),
        lambda: EmbeddingLoss(hinge, memory=memory)(torch.ones(2, 3, device="meta"), [0, 1]),
    ):
        with refuses(ValueError, message):
            call()
    memory.load_state_dict(EmbeddingMemory(4, 3).state_dict(), assign=True)
    assert len(memory.get()[0]) == 0
    with refuses(
        ValueError,
        "`memory` must be on the device of `embeddings` (meta), got cpu. Move it: memory.to(embeddings.device).",
    ):
        EmbeddingLoss(hinge, memory=memory)(torch.ones(2, 3, device="meta"), [0, 1])


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_batch_and_memory_are_what_two_calls_of_pairwise_scores_give(similarity):
    """To the last bit: rows are brought to unit length once, which changes no order of operations."""
    memory = EmbeddingMemory(6, 16)
    memory.update(randn(6, 16, dtype=torch.float32), [0, 1, 2, 0, 1, 2])
    x, labels = randn(5, 16, seed=1, dtype=torch.float32), torch.tensor([0, 1, 0, 2, 2])
    parts = pairwise_scores(x, labels, similarity=similarity), pairwise_scores(x, labels, *memory.get(), similarity)
    seen = Seen()
    EmbeddingLoss(seen, similarity, memory=memory)(x, labels)
    scores, relevant, where = seen.calls.pop()
    assert torch.equal(scores, torch.cat([parts[0][0], parts[1][0]], 1))
    assert torch.equal(relevant, torch.cat([parts[0][1], parts[1][1]], 1))
    assert where is None


@pytest.mark.parametrize("memory", [None, 4])
@pytest.mark.parametrize("gather", [False, True])
def test_labels_are_read_once(memory, gather):
    class Labels:
        reads = 0

        def __array__(self, dtype=None, copy=None):
            self.reads += 1
            return np.array([0, 0, 1, 1])

    labels = Labels()
    EmbeddingLoss(hinge, memory=memory and EmbeddingMemory(memory, 4), gather=gather)(X, labels)
    assert labels.reads == 1


@pytest.mark.parametrize("kept", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("given", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_memory_takes_every_precision(given, kept):
    x, labels, ids = randn(4, 3).to(given).requires_grad_(), torch.tensor([0, 1, 0, 1]), torch.tensor([0, 1, 2, 3])
    memory = EmbeddingMemory(4, 3).to(kept)
    past = randn(4, 3, seed=1).to(kept)
    wide = torch.float64 if torch.float64 in (given, kept) else torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        memory.update(past, labels, ids + 4)
        value = EmbeddingLoss(nt_xent_loss, memory=memory)(x, labels, ids=ids)
    parts = [pairwise_scores(x.to(wide), labels), pairwise_scores(x.to(wide), labels, past.to(wide), labels)]
    expected = nt_xent_loss(torch.cat([s for s, _ in parts], 1), torch.cat([r for _, r in parts], 1))
    assert value.dtype == wide
    torch.testing.assert_close(value, expected)
    value.backward()
    assert x.grad.dtype == given
    assert torch.equal(memory.get()[0], x.detach().to(kept))


# where

WHERE = torch.tensor([True, False, True, True, False, True])
MASKED_LABELS = {
    "ints": torch.tensor([0, -100, 1, 0, -100, 1]),
    "floats": torch.tensor([0.0, math.nan, 1.0, 0.0, math.nan, 1.0]),
    "strings": ["a", "", "b", "a", "", "b"],
    "multi-hot": torch.tensor([[1, 0], [9, 9], [0, 1], [1, 0], [-1, 5], [0, 1]]),
    "multi-hot of bools": torch.tensor([[1, 0], [1, 1], [0, 1], [1, 0], [0, 0], [0, 1]]).bool(),
    "matrix": torch.tensor(
        [
            [1, 0, 0, 1, 1, 0],
            [1, 1, 1, 1, 1, 1],
            [0, 1, 1, 0, 1, 1],
            [1, 0, 0, 1, 0, 0],
            [0, 0, 0, 0, 0, 0],
            [0, 0, 1, 0, 0, 1],
        ]
    ).bool(),
}


def deleted(x):
    if isinstance(x, list):
        return [value for value, real in zip(x, WHERE, strict=True) if real]
    return x[WHERE]


MASKED = [
    *((labels, "nothing") for labels in MASKED_LABELS),
    *((labels, with_) for labels in MASKED_LABELS if labels != "matrix" for with_ in ("keys", "references", "gather")),
    *((labels, with_) for labels in ("ints", "strings", "multi-hot") for with_ in ("memory", "keys and memory")),
]


@pytest.mark.parametrize(("labels", "with_"), MASKED)
def test_masked_rows_are_as_deleted(labels, with_):
    given, num_classes = MASKED_LABELS[labels], 2 if labels == "multi-hot" else None
    ids = torch.tensor([3, 4, 3, 5, 3, 6])
    for junk in (0.0, math.nan, math.inf, 1e30):
        x, k = randn(6, 4), randn(6, 4, seed=1)
        memories = [EmbeddingMemory(9, 4, num_classes=num_classes).double() for _ in range(2)]
        values, grads = [], []
        for memory, where, cut in zip(memories, (WHERE, None), (lambda x: x, deleted), strict=True):
            criterion = EmbeddingLoss(
                smooth_ap_loss, memory=memory if "memory" in with_ else None, gather=with_ == "gather"
            )
            leaf = cut(x.masked_fill(~WHERE[:, None], junk)).requires_grad_()
            options = {"keys": cut(k.masked_fill(~WHERE[:, None], junk))} if "keys" in with_ else {}
            if with_ == "references":
                options = {"ref_embeddings": k[:3], "ref_labels": deleted(given)[:3], "ref_ids": [3, 8, 9]}
            for _ in range(2 if "memory" in with_ else 1):
                value = criterion(leaf, cut(given), where=where, ids=cut(ids), **options)
            values.append(value.detach())
            grads.append(torch.autograd.grad(value, leaf)[0])
        torch.testing.assert_close(*values)
        torch.testing.assert_close(grads[0][WHERE], grads[1])
        assert not grads[0][~WHERE].any()
        for name, buffer in memories[0].named_buffers():
            assert torch.equal(buffer, memories[1].get_buffer(name))


@pytest.mark.parametrize("rows", [0, 3])
def test_without_a_real_row_nothing_is_learned_and_nothing_kept(rows):
    x = torch.full((rows, 4), math.nan, requires_grad=True)
    memory = EmbeddingMemory(4, 4)
    memory.update(randn(2, 4), [0, 1])
    options = {"where": torch.zeros(rows).bool(), "ids": list(range(rows)), "keys": x.detach()}
    with pytest.warns(UndefinedListWarning, match=f"^0 of {rows} lists have "):
        EmbeddingLoss(nt_xent_loss, memory=memory)(x, [0] * rows, **options).backward()
    assert torch.equal(x.grad, torch.zeros(rows, 4))
    assert int(memory.seen) == 2


@pytest.mark.parametrize("references", [False, True])
def test_pairs_outside_the_mask_are_left_out(references):
    x, y, labels, ref_labels = randn(4, 3), randn(3, 3, seed=1), [0, 0, 1, 1], [0, 1, 1]
    m = 3 if references else 4
    pairs = torch.rand(4, m, generator=torch.Generator().manual_seed(2)) < 0.7
    seen = Seen()
    EmbeddingLoss(seen)(x, labels, *((y, ref_labels) if references else ()), where=pairs)
    columns = [[j for j in range(m) if references or j != i] for i in range(4)]
    assert seen.calls.pop()[2].tolist() == [[bool(pairs[i, j]) for j in columns[i]] for i in range(4)]
    memory = EmbeddingMemory(2, 3)
    memory.update(randn(2, 3, seed=3), [0, 1])
    if not references:  # those of the memory all count
        EmbeddingLoss(seen, memory=memory)(x, labels, where=pairs)
        assert seen.calls.pop()[2].tolist() == [
            [*(bool(pairs[i, j]) for j in columns[i]), True, True] for i in range(4)
        ]


def test_what_else_is_given_goes_to_the_loss():
    x, labels = randn(5, 3), [0, 0, 1, 1, 2]
    where = torch.tensor([True, True, True, True, False])
    criterion = EmbeddingLoss(NTXentLoss())
    value, stats = criterion(x, labels, return_stats=True)
    assert torch.equal(value, criterion(x, labels))
    assert (stats.total, int(stats.defined)) == (5, 4)
    for values in (criterion(x, labels, reduction="none"), EmbeddingLoss(NTXentLoss(reduction="none"))(x, labels)):
        assert values.isnan().tolist() == [False, False, False, False, True]
        torch.testing.assert_close(values.nanmean(), value)
    masked = criterion(x, labels, reduction="none", where=where)
    torch.testing.assert_close(masked[:4], criterion(x[:4], labels[:4], reduction="none"))
    assert masked[4].isnan()


@pytest.mark.parametrize("loss", [NTXentLoss(reduction="none"), partial(nt_xent_loss, reduction="none"), "call"])
def test_values_of_a_batch_without_pairs_are_nan(loss):
    x = torch.ones(1, 3, requires_grad=True)
    options = {"reduction": "none", "return_stats": True} if loss == "call" else {}
    with pytest.warns(UndefinedListWarning, match=r"^0 of 1 lists have a pair: every value is NaN\.$"):
        value = EmbeddingLoss(NTXentLoss() if loss == "call" else loss)(x, [0], **options)
    value, stats = value if loss == "call" else (value, ListStats(1, torch.tensor(0)))
    assert stats == (1, torch.tensor(0))
    assert value.isnan().tolist() == [True]
    value.nansum().backward()
    assert torch.equal(x.grad, torch.zeros(1, 3))


def test_a_loss_without_where_is_refused_when_pairs_are_left_out():
    message = (
        "`loss` must take where=, a boolean tensor of the shape of the scores, to leave pairs out (masked rows, equal "
        f"ids, pairs that were not mined), got {hinge!r}."
    )
    for options in ({"where": torch.ones(4).bool()}, {"ids": [0, 1, 2, 3]}, {"indices_tuple": ([0], [1], [2])}):
        with refuses(TypeError, message):
            EmbeddingLoss(hinge)(X, [0, 0, 1, 1], **options)
    with refuses(TypeError, message):
        CrossModalLoss(hinge)(X, X, where=torch.ones(4).bool())


@pytest.mark.parametrize("keys", [False, True])
def test_gradient_with_masks_keys_and_scale(keys):
    x, k, scale = randn(6, 3).requires_grad_(), randn(6, 3, seed=1).requires_grad_(), torch.tensor([2.0]).double()
    memory = EmbeddingMemory(3, 3).double()
    memory.update(randn(3, 3, seed=2), [0, 1, 2], ids=[0, 9, 8])

    def loss(x, k, scale):
        criterion = EmbeddingLoss(nt_xent_loss, memory=copy.deepcopy(memory), scale=lambda: scale)
        options = {"keys": k} if keys else {}
        return criterion(x, [0, 1, 0, 1, 2, 0], where=WHERE, ids=[0, 1, 2, 3, 4, 0], **options)

    assert torch.autograd.gradcheck(loss, (x, k if keys else k.detach(), scale.requires_grad_()))


def test_a_sum_of_a_batch_without_pairs_is_a_zero():
    with pytest.warns(UndefinedListWarning, match="^0 of 1 lists have a pair: the loss is a constant 0"):
        assert EmbeddingLoss(torch.nn.MSELoss(reduction="sum"))(torch.ones(1, 3), [0]).item() == 0


def test_masked_compiles_to_one_graph():
    torch._dynamo.reset()
    x, labels = randn(6, 4, dtype=torch.float32), torch.tensor([0, 0, 1, 1, 2, 2])
    options = {"where": WHERE, "ids": torch.tensor([0, 0, 1, 2, 3, 4])}
    criterion = EmbeddingLoss(nt_xent_loss, scale=LogitScale(2.0))
    compiled = torch.compile(criterion, fullgraph=True, backend="aot_eager")
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    compiled(a, labels, **options).backward()
    criterion(b, labels, **options).backward()
    torch.testing.assert_close(a.grad, b.grad)


# the pairs of a miner


def test_mined_pairs_are_the_lists():
    x, labels = randn(5, 3), [0, 0, 0, 1, 1]
    pairs = [0, 0, 3], [1, 2, 4], [0, 3, 4, 4], [3, 1, 0, 2]
    triplets = [0, 0, 3], [1, 1, 4], [3, 4, 2]
    for given, positive, negative in (
        (pairs, {(0, 1), (0, 2), (3, 4)}, {(0, 3), (3, 1), (4, 0), (4, 2)}),
        (triplets, {(0, 1), (3, 4)}, {(0, 3), (0, 4), (3, 2)}),
    ):
        tensors = tuple(torch.tensor(part) for part in given)
        columns = [[j for j in range(5) if j != i] for i in range(5)]
        for call in (
            lambda c, t=tensors: c(x, labels, t),
            lambda c, t=tensors: c(x, labels, indices_tuple=t),
            lambda c, t=tensors: c(x, None, t),
            lambda c, t=tensors: c(x, indices_tuple=t),
            lambda c, t=given: c(x, labels, tuple(np.array(part) for part in t)),
        ):
            seen = Seen()
            call(EmbeddingLoss(seen))
            scores, relevant, where = seen.calls.pop()
            assert torch.equal(scores, pairwise_scores(x, labels)[0])
            assert relevant.tolist() == [[(i, j) in positive for j in columns[i]] for i in range(5)]
            assert where.tolist() == [[(i, j) in positive | negative for j in columns[i]] for i in range(5)]
    memory = EmbeddingMemory(2, 3)
    memory.update(randn(2, 3, seed=1), [0, 1])
    EmbeddingLoss(seen, memory=memory)(x, labels, tensors)
    _, relevant, where = seen.calls.pop()
    assert relevant[:, 4:].tolist() == [[label == 0, label == 1] for label in labels]
    assert where[:, 4:].all()
    assert int(where[:, :4].sum()) == 5


def test_mined_pairs_of_a_reference_set():
    x, y = randn(2, 3), randn(3, 3, seed=1)
    seen = Seen()
    EmbeddingLoss(seen)(x, None, ([0], [2], [1, 0], [0, 1]), ref_emb=y)
    _, relevant, where = seen.calls.pop()
    assert relevant.int().tolist() == [[0, 0, 1], [0, 0, 0]]
    assert where.int().tolist() == [[0, 1, 1], [1, 0, 0]]


@pytest.mark.parametrize(
    ("name", "miner"),
    [
        ("MultiSimilarityLoss", "MultiSimilarityMiner"),
        ("MultiSimilarityLoss", "TripletMarginMiner"),
        ("NTXentLoss", "MultiSimilarityMiner"),
    ],
)
def test_mined_losses_are_those_of_pytorch_metric_learning(name, miner):
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    miners = pytest.importorskip("pytorch_metric_learning.miners")
    x, labels = randn(8, 5), torch.arange(8) // 2  # one positive a row: their mean over pairs is one over rows
    mined = getattr(miners, miner)()(x, labels)
    if name == "NTXentLoss":
        ours, options = nt_xent_loss, {"temperature": 0.07}
    else:
        ours, options = partial(multi_similarity_loss, epsilon=None), {"alpha": 2, "beta": 50, "base": 0.5}
    expected = getattr(losses, name)(**options)(x, labels, mined)
    value, stats = EmbeddingLoss(partial(ours, **options))(x, labels, mined, return_stats=True)
    if name == "MultiSimilarityLoss":  # theirs is a mean over all rows, those without a pair included
        expected = expected * 8 / stats.defined
    torch.testing.assert_close(value, expected)


Y = [0, 0, 1, 1]
EMBEDDING_LOSS_ERRORS = {
    "where of numbers": (
        TypeError,
        {"where": torch.ones(4)},
        "`where` must be a boolean tensor (True = a real row or pair), got a tensor of shape (4,) and dtype float32. "
        "Convert it: where.bool().",
    ),
    "where as a list": (
        TypeError,
        {"where": [True] * 4},
        "`where` must be a boolean tensor (True = a real row or pair), got list. "
        "Make it one: torch.as_tensor(where).bool().",
    ),
    "where of another shape": (
        ValueError,
        {"where": torch.ones(4, 3).bool()},
        "`where` must have shape (4,) for rows, or (4, 4) for pairs, got shape (4, 3).",
    ),
    "where of pairs and gather": (
        ValueError,
        {"where": torch.ones(4, 4).bool(), "gather": True},
        "`where` must have shape (4,) for rows with gather=True, got shape (4, 4).",
    ),
    "where elsewhere": (
        ValueError,
        {"where": torch.ones(4, device="meta").bool()},
        "`where` must be on the device of `embeddings` (cpu), got meta. Move it: where.to(embeddings.device).",
    ),
    "nan in a real row": (
        ValueError,
        {"embeddings": torch.where(torch.arange(4)[:, None] % 2 == 1, math.nan, X), "where": torch.arange(4) < 2},
        "`embeddings` must be finite, got 4 NaN or infinite of 16 values, the first (nan) at index (1, 0). "
        "Mask those rows out with where=, or find the step that made them (torch.autograd.set_detect_anomaly).",
    ),
    "ids of floats": (
        ValueError,
        {"ids": [0.0, 1, 2, 3]},
        "`ids` must be whole numbers or strings of shape (4,), one for each row of `embeddings`, got [0.0, 1, 2, 3].",
    ),
    "ids of bools": (
        ValueError,
        {"ids": torch.ones(4).bool()},
        "`ids` must be whole numbers or strings of shape (4,), one for each row of `embeddings`, "
        "got a tensor of shape (4,) and dtype bool.",
    ),
    "ids of others": (
        ValueError,
        {"ids": [0, 1, 2]},
        "`ids` must be whole numbers or strings of shape (4,), one for each row of `embeddings`, got [0, 1, 2].",
    ),
    "no ref_ids": (
        ValueError,
        {"ids": Y, "ref_embeddings": X[:2], "ref_labels": [0, 1]},
        "`ref_ids` must be given with `ids` and `ref_embeddings`, got None.",
    ),
    "ref_ids alone": (
        ValueError,
        {"ref_ids": [1, 2], "ref_embeddings": X[:2], "ref_labels": [0, 1]},
        "`ids` must be given with `ref_ids`, got None.",
    ),
    "ref_ids of nothing": (
        ValueError,
        {"ids": Y, "ref_ids": [1, 2]},
        "`ref_embeddings` must be given with `ref_ids`, got None.",
    ),
    "length of ref_ids": (
        ValueError,
        {"ids": Y, "ref_ids": [1], "ref_embeddings": X[:2], "ref_labels": [0, 1]},
        "`ref_ids` must be whole numbers or strings of shape (2,), one for each row of `ref_embeddings`, got [1].",
    ),
    "keys of others": (
        ValueError,
        {"keys": X[:3]},
        "`keys` must have shape (4, 4), the items of `embeddings` row by row, got shape (3, 4).",
    ),
    "keys of another width": (
        ValueError,
        {"keys": X[:, :3]},
        "`keys` must have the width of `embeddings` (4), got shape (4, 3).",
    ),
    "keys with nan": (
        ValueError,
        {"keys": X / X},
        "`keys` must be finite, got 12 NaN or infinite of 16 values, the first (nan) at index (0, 1). "
        "Mask those rows out with where=, or find the step that made them (torch.autograd.set_detect_anomaly).",
    ),
    "keys and references": (
        ValueError,
        {"keys": X, "ref_embeddings": X[:2], "ref_labels": [0, 1]},
        "`ref_embeddings` must not be given to a loss with keys, which has its own.",
    ),
    "keys and a matrix": (
        ValueError,
        {"keys": X, "labels": X.bool()},
        "`labels` must be labels for a loss with keys, got a relevance matrix of shape (4, 4). "
        "Multi-hot labels of as many classes as rows go in as numbers: labels.int().",
    ),
    "a list of pairs": (
        TypeError,
        {"indices_tuple": "abc"},
        "`indices_tuple` must be the pairs (a1, p, a2, n) or the triplets (a, p, n) of a miner, four or three tensors "
        "of row indices, got 'abc'.",
    ),
    "two tensors": (
        TypeError,
        {"ref_embeddings": ([0], [1])},
        "`indices_tuple` must be the pairs (a1, p, a2, n) or the triplets (a, p, n) of a miner, four or three tensors "
        "of row indices, got ([0], [1]).",
    ),
    "twice": (
        ValueError,
        {"ref_embeddings": ([0], [1], [2]), "indices_tuple": ([0], [1], [2])},
        "`indices_tuple` must be given once, got it as the third argument and by name.",
    ),
    "unequal": (
        ValueError,
        {"indices_tuple": ([0, 1], [1], [2])},
        "`indices_tuple` must hold whole numbers (k,), as many anchors as positives and as negatives, got a tensor of "
        "shape (2,) and dtype int64, a tensor of shape (1,) and dtype int64, a tensor of shape (1,) and dtype int64.",
    ),
    "of floats": (
        ValueError,
        {"indices_tuple": ([0.0], [1], [2])},
        "`indices_tuple` must hold whole numbers (k,), as many anchors as positives and as negatives, got a tensor of "
        "shape (1,) and dtype float32, a tensor of shape (1,) and dtype int64, a tensor of shape (1,) and dtype int64.",
    ),
    "out of range": (
        ValueError,
        {"indices_tuple": ([0], [1], [4])},
        "`indices_tuple` must be indices of the 4 references, got indices from 4 to 4.",
    ),
    "below zero": (
        ValueError,
        {"indices_tuple": ([-1, 1], [1, 0], [2, 2])},
        "`indices_tuple` must be indices of the 4 queries, got indices from -1 to 1.",
    ),
    "both": (
        ValueError,
        {"indices_tuple": ([0, 0], [1, 2], [3, 1])},
        "`indices_tuple` must have each pair as a positive or as a negative, got both for 1 pairs, the first (0, 1).",
    ),
    "mined and gather": (
        ValueError,
        {"indices_tuple": ([0], [1], [2]), "gather": True},
        "`indices_tuple` must not be given to a loss with gather=True: its indices are of one process. Mine and call a "
        "loss without gather on the gathered rows: sodeep.gather(embeddings), sodeep.gather(labels).",
    ),
    "labels of others": (
        ValueError,
        {"labels": [0, 1], "indices_tuple": ([0], [1], [2])},
        "`labels` must have shape (4,) or multi-hot (4, c), one label for each row of `embeddings`, "
        "got shape (2,) and dtype int64.",
    ),
    "ref_labels alone": (
        ValueError,
        {"ref_labels": Y},
        "`ref_embeddings` must be given with `ref_labels`, got None.",
    ),
    "no labels": (
        TypeError,
        {"labels": None, "indices_tuple": ([0], [1], [2]), "memory": EmbeddingMemory(2, 4)},
        "`labels` must be numbers or strings, of one kind (a tensor, an array or a list), got None.",
    ),
}


@pytest.mark.parametrize("case", EMBEDDING_LOSS_ERRORS)
def test_embedding_loss_errors(case):
    error, given, message = EMBEDDING_LOSS_ERRORS[case]
    options = {name: given[name] for name in ("gather", "memory") if name in given}
    call = {"embeddings": X, "labels": Y, **{name: x for name, x in given.items() if name not in options}}
    with refuses(error, message):
        EmbeddingLoss(nt_xent_loss, **options)(**call)


@pytest.mark.parametrize("indices", [([], [], []), tuple(torch.zeros(0) for _ in range(4))])
def test_nothing_mined_is_a_zero_with_a_graph(indices):
    x = randn(4, 3).requires_grad_()
    with pytest.warns(UndefinedListWarning, match="^0 of 4 lists have both a relevant item and one that is not"):
        EmbeddingLoss(nt_xent_loss)(x, [0, 0, 1, 1], indices).backward()
    assert torch.equal(x.grad, torch.zeros_like(x))


def test_cross_modal_where_of_another_shape():
    with refuses(ValueError, "`where` must have shape (4, 3), got shape (4,)."):
        CrossModalLoss(nt_xent_loss)(X, X[:3], torch.ones(4, 3).bool(), where=torch.ones(4).bool())
    with refuses(ValueError, "`where` must have shape (4, 4), or (4,) for rows of both sets, got shape (4, 3)."):
        CrossModalLoss(nt_xent_loss)(X, X, where=torch.ones(4, 3).bool())


def test_gather_with_one_process_changes_nothing():
    x = randn(4, 3)
    for labels in ([0, 0, 1, 1], ["a", "a", "b", "b"], torch.tensor([[1, 0], [1, 0], [0, 1], [0, 1]])):
        assert EmbeddingLoss(hinge, gather=True)(x, labels).item() == EmbeddingLoss(hinge)(x, labels).item()
    assert CrossModalLoss(hinge, gather=True)(x, x + 1).item() == CrossModalLoss(hinge)(x, x + 1).item()


# CrossModalLoss


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_both_directions_of_pairs(similarity):
    x, y = randn(4, 3), randn(4, 3, seed=1)
    s = torch.tensor([[plain_similarity(a, b, similarity) for b in y.tolist()] for a in x.tolist()], dtype=x.dtype)
    there, back = smooth_ap(0.1)(s, torch.eye(4).bool()), smooth_ap(0.1)(s.T, torch.eye(4).bool())
    criterion = CrossModalLoss(smooth_ap(0.1), similarity)
    torch.testing.assert_close(criterion(x, y), (there + back) / 2)
    torch.testing.assert_close(criterion(y, x), (there + back) / 2)


def test_an_image_with_five_captions():
    images, captions = randn(3, 4), randn(15, 4, seed=1)
    relevant = torch.arange(3)[:, None] == torch.arange(15) // 5
    s = torch.tensor([[plain_similarity(a, b, "cosine") for b in captions.tolist()] for a in images.tolist()]).double()
    expected = (smooth_ap(0.1)(s, relevant) + smooth_ap(0.1)(s.T, relevant.T)) / 2
    criterion = CrossModalLoss(smooth_ap(0.1))
    for given in (relevant, relevant.numpy(), relevant.tolist()):
        torch.testing.assert_close(criterion(images, captions, given), expected, rtol=1e-6, atol=0)
    shuffled = torch.randperm(15, generator=torch.Generator().manual_seed(0))
    value = criterion(images, captions[shuffled], relevant[:, shuffled])
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=0)


def test_semantic_scores_go_through_as_they_are():
    seen = []

    def loss(scores, target):
        seen.append(target)
        return (scores * target).mean()

    semantic = randn(3, 5).float()
    CrossModalLoss(loss)(randn(3, 2), randn(5, 2, seed=1), semantic)
    assert torch.equal(seen[0], semantic)
    assert torch.equal(seen[1], semantic.T)


def test_cross_modal_leaves_autocast():
    x, y = randn(4, 3, dtype=torch.float32), randn(4, 3, seed=1, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        value = CrossModalLoss(hinge, "dot")(x, y)
    assert torch.equal(value, CrossModalLoss(hinge, "dot")(x, y))


CROSS_MODAL_ERRORS = {
    "number": (
        (X, X[:3]),
        "`relevant` must be given when queries (4) and gallery (3) differ in number, got None. "
        "Say which belong together in a boolean tensor of shape (4, 3).",
    ),
    "shape": (
        (X, X[:3], torch.ones(3, 4).bool()),
        "`relevant` must have shape (4, 3), queries by gallery, got a tensor of shape (3, 4) and dtype bool.",
    ),
    "width": ((X, X[:, :3]), "`gallery` must have the width of `queries` (4), got shape (4, 3)."),
    "device": (
        (X, X.to("meta")),
        "`gallery` must be on the device of `queries` (cpu), got meta. Move it: gallery.to(queries.device).",
    ),
    "axes": ((X[None], X), "`queries` must have shape (n, d), one row an item, got shape (1, 4, 4)."),
}


@pytest.mark.parametrize("case", CROSS_MODAL_ERRORS)
def test_cross_modal_errors(case):
    arguments, message = CROSS_MODAL_ERRORS[case]
    with refuses(ValueError, message):
        CrossModalLoss(hinge)(*arguments)


@pytest.mark.parametrize(("n", "m"), [(0, 0), (0, 3), (3, 0)])
def test_cross_modal_batch_without_a_pair(n, m):
    queries, gallery = torch.randn(n, 4, requires_grad=True), torch.randn(m, 4, requires_grad=True)
    with pytest.warns(UndefinedListWarning, match="a pair"):
        loss = CrossModalLoss(NTXentLoss())(queries, gallery, torch.zeros(n, m, dtype=torch.bool))
    loss.backward()
    assert loss == 0
    assert queries.grad.shape == (n, 4)
    assert not gallery.grad.any()


def test_cross_modal_loss_that_gives_no_tensor():
    with refuses(TypeError, "`loss` must give a tensor, got list."):
        CrossModalLoss(lambda scores, relevant: [scores])(torch.eye(3), torch.eye(3))


def test_cross_modal_statistics_of_both_directions():
    queries, gallery = randn(3, 4), randn(5, 4, seed=1)
    relevant = torch.tensor([[1, 1, 0, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 0]]).bool()
    expected = CrossModalLoss(NTXentLoss())(queries, gallery, relevant)
    for loss, options in ((NTXentLoss(), {"return_stats": True}), (partial(nt_xent_loss, return_stats=True), {})):
        value, (there, back) = CrossModalLoss(loss)(queries, gallery, relevant, **options)
        assert torch.equal(value, expected)
        assert [(s.total, int(s.defined)) for s in (there, back)] == [(3, 2), (5, 3)]
    there, back = CrossModalLoss(NTXentLoss(reduction="none"))(queries, gallery, relevant)
    assert (there.isnan().tolist(), back.isnan().tolist()) == ([False, False, True], [False, False, True, False, True])
    torch.testing.assert_close((there.nanmean() + back.nanmean()) / 2, expected)


@pytest.mark.parametrize("junk", [0.0, math.nan, math.inf, 1e30])
@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_cross_modal_masked_is_deleted(similarity, junk):
    criterion = CrossModalLoss(smooth_ap_loss, similarity)
    x, y = randn(6, 4), randn(6, 4, seed=1)
    where = torch.tensor([True, False, True, True, False, True])
    a, b = x[where].requires_grad_(), y[where].requires_grad_()
    expected = criterion(a, b)
    expected.backward()
    padded = [rows.masked_fill(~where[:, None], junk).requires_grad_() for rows in (x, y)]
    for mask in (where, where[:, None] & where):
        for rows in padded:
            rows.grad = None
        value = criterion(*padded, where=mask)
        value.backward()
        torch.testing.assert_close(value, expected)
        for rows, alone in zip(padded, (a, b), strict=True):
            torch.testing.assert_close(rows.grad[where], alone.grad)
            assert not rows.grad[~where].any()
    # sets of unequal numbers, by pairs
    relevant = torch.arange(2)[:, None] == torch.arange(6) % 2
    masked = criterion(x[:2], padded[1], relevant, where=where.expand(2, 6))
    torch.testing.assert_close(masked, criterion(x[:2], y[where], relevant[:, where]))


# scale


class LogitScale(torch.nn.Module):
    def __init__(self, scale: float):
        super().__init__()
        self.log = torch.nn.Parameter(torch.tensor(scale).log())

    def forward(self) -> Tensor:
        return self.log.exp()


SCALES = {
    "number": lambda: 10.0,
    "parameter": lambda: torch.nn.Parameter(torch.tensor(10.0)),
    "vector": lambda: torch.nn.Parameter(torch.tensor([10.0], dtype=torch.float64)),
    "half": lambda: torch.nn.Parameter(torch.tensor([10.0], dtype=torch.bfloat16)),
    "module": lambda: LogitScale(10.0),
    "function": lambda: lambda: 10.0,
}


@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize("wrapper", [EmbeddingLoss, CrossModalLoss])
def test_scale_multiplies_the_scores_and_learns(wrapper, kind):
    x, y = randn(6, 4, dtype=torch.float32), randn(6, 4, seed=1, dtype=torch.float32)
    arguments = (x, [0, 0, 1, 1, 2, 2]) if wrapper is EmbeddingLoss else (x, y)
    criterion = wrapper(NTXentLoss(temperature=2), scale=SCALES[kind]())
    value = criterion(*arguments)
    torch.testing.assert_close(value, wrapper(NTXentLoss(temperature=0.2))(*arguments))
    parameters = dict(criterion.named_parameters())
    names = {"module": {"scale.log"}, "number": set(), "function": set()}.get(kind, {"scale"})
    assert set(parameters) == names
    for parameter in parameters.values():
        (grad,) = torch.autograd.grad(criterion(*arguments), parameter)
        step = 1e-2
        with torch.no_grad():
            parameter += step
            above = wrapper(NTXentLoss(temperature=2), scale=criterion.scale)(*arguments)
            parameter -= 2 * step
            below = wrapper(NTXentLoss(temperature=2), scale=criterion.scale)(*arguments)
        if parameter.dtype != torch.bfloat16:
            torch.testing.assert_close(grad.item(), (above - below).item() / (2 * step), rtol=0.02, atol=1e-4)
    assert ("scale=10.0" in repr(criterion)) == (kind == "number")


def test_scale_reaches_the_pairs_with_a_memory():
    memory = EmbeddingMemory(4, 3)
    memory.update(randn(4, 3), [0, 1, 0, 1])
    seen = []
    EmbeddingLoss(lambda s, r: seen.append(s) or s.sum(), memory=memory, scale=2)(randn(2, 3, seed=1), [0, 1])
    memory.seen.zero_()
    memory.update(randn(4, 3), [0, 1, 0, 1])
    EmbeddingLoss(lambda s, r: seen.append(s) or s.sum(), memory=memory)(randn(2, 3, seed=1), [0, 1])
    assert torch.equal(seen[0], 2 * seen[1])


WHAT_SCALE = (
    "`scale` must be a number, an nn.Parameter, or a module or function that gives the factor when called without "
    "arguments, got "
)
SCALE_ERRORS = {
    "zero": (ValueError, 0, "`scale` must be a positive number, got 0."),
    "string": (TypeError, "10", WHAT_SCALE + "'10'."),
    "class": (TypeError, LogitScale, WHAT_SCALE + f"{LogitScale!r}. Build it first: LogitScale()."),
    "tensor": (
        TypeError,
        torch.tensor(10.0),
        WHAT_SCALE + "a tensor of shape () and dtype float32. Wrap it: nn.Parameter(scale) learns, float(scale) stays.",
    ),
    "negative": (
        ValueError,
        torch.nn.Parameter(torch.tensor(-0.5)),
        "`scale` must be a positive number, got -0.5, which would turn the order of the scores round. "
        "Learn its logarithm: a module that gives log_scale.exp().",
    ),
    "nan": (
        ValueError,
        lambda: math.nan,
        "`scale` must be a positive number, got nan, which would turn the order of the scores round. "
        "Learn its logarithm: a module that gives log_scale.exp().",
    ),
    "many": (
        ValueError,
        torch.nn.Parameter(torch.ones(3)),
        "`scale` must be one number, got a tensor of shape (3,) and dtype float32.",
    ),
}


@pytest.mark.parametrize("case", SCALE_ERRORS)
@pytest.mark.parametrize("wrapper", [EmbeddingLoss, CrossModalLoss])
def test_scale_errors(wrapper, case):
    error, scale, message = SCALE_ERRORS[case]
    with refuses(error, message):
        wrapper(hinge, scale=scale)(torch.eye(3), torch.eye(3) if wrapper is CrossModalLoss else [0, 0, 1])


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_one_tensor_on_both_sides_has_the_same_gradient_with_a_graph(similarity):
    x = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    rows = x * 1
    loss = CrossModalLoss(NTXentLoss(temperature=1.0), similarity=similarity)(rows, rows)
    (plain,) = torch.autograd.grad(loss, x, retain_graph=True)
    (graph,) = torch.autograd.grad(loss, x, create_graph=True)
    torch.testing.assert_close(graph, plain)


@pytest.mark.parametrize("n", [2, 5, 1100])
@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_scores_may_be_changed_in_place(n, similarity):
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    scores, _ = pairwise_scores(x, torch.zeros(n), similarity=similarity)
    expected = torch.autograd.grad(2 * scores.sum(), x, retain_graph=True)[0]
    torch.testing.assert_close(torch.autograd.grad(scores.mul_(2.0).sum(), x)[0], expected)
